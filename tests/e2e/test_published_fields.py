"""Every field that OpenAI, Anthropic, vLLM, llama.cpp and SGLang publish for a request (published_fields.json) is served, refused by name, or
known to change no answer. With a value that must have an effect, no field is dropped silently."""
import importlib
import json
import pathlib
import typing

import pytest
from harness import MODEL_ID, Daemon

HEADER = "x-tandem-ignored"
FILE = json.loads((pathlib.Path(__file__).parent / "published_fields.json").read_text())
LISTS = {entry["of"]: entry for entry in FILE["lists"]}
NEUTRAL = set(FILE["neutral"].split())
VALUES = {**dict.fromkeys(FILE["numbers"].split(), 0.5), **dict.fromkeys(FILE["true"].split(), True),
          **dict.fromkeys(FILE["texts"].split(), "x")}
ASK = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "temperature": 0}
BODIES = {"/v1/chat/completions": ASK, "/v1/messages": ASK, "/v1/completions": {"prompt": "Hi", "max_tokens": 4, "temperature": 0},
          "/v1/responses": {"input": "Hi", "max_output_tokens": 4, "temperature": 0}, "/v1/embeddings": {"input": "Hi"}}
SAID = {"/v1/chat/completions": lambda r: r["choices"][0]["message"]["content"], "/v1/completions": lambda r: r["choices"][0]["text"],
        "/v1/messages": lambda r: r["content"][0]["text"], "/v1/responses": lambda r: r["output"][0]["content"][0]["text"]}


def says(daemon, route, body):
    r = daemon.post(route, {"model": MODEL_ID, **body})
    assert r.status_code == 200 and HEADER not in r.headers, (r.text, r.headers)
    return SAID[route](r.json())


def names_it(r, name):
    """Anthropic's errors have no param. A member of an object may be ignored and named in the header instead."""
    told = r.json()["error"]["message"] if r.status_code == 400 else f"'{r.headers.get(HEADER)}"
    return f"'{name}." in told or (r.status_code == 400 and f"'{name}'" in told)


@pytest.fixture(scope="module")
def embedder():
    with Daemon("--pooling", "last") as d:
        yield d


@pytest.mark.parametrize("of", LISTS)
def test_no_published_field_is_dropped(daemon, request, of):
    daemon = request.getfixturevalue("embedder") if "pooling" in LISTS[of] else daemon
    neutrals = NEUTRAL | set(LISTS[of].get("neutral", "").split())
    route, names = LISTS[of]["route"], LISTS[of]["names"].split()
    body, dropped = BODIES[route], []
    values = {name: VALUES.get(name, FILE["default"]) for name in names}
    for name in set(names) - neutrals:
        r = daemon.post(route, {"model": MODEL_ID, **body, name: values[name]})
        if not names_it(r, name):
            dropped.append(f"{name}: {r.status_code} {r.headers.get(HEADER)} {r.text[:200]}")
    assert not dropped, "\n".join(dropped)
    neutral = {name: values[name] for name in names if name in neutrals}
    if neutral and route in SAID:
        assert says(daemon, route, {**body, **neutral}) == says(daemon, route, body)


GENERATING = sorted(SAID)
OFF = {"logprobs": False, "n": 1, "echo": False, "best_of": 1, "return_token_ids": False, "continue_final_message": False,
       "add_generation_prompt": True, "include_reasoning": True, "mirostat": 0, "logits_processors": [], "min_tokens": 0, "stop_token_ids": []}


@pytest.mark.parametrize("route", ("/v1/messages", "/v1/responses"))
def test_no_field_of_another_route_is_dropped(daemon, route):
    """A field that affects answers on one route is served, refused or neutral on these routes too, no matter for which route it is published."""
    names = {name for entry in FILE["lists"] if entry["route"] in GENERATING for name in entry["names"].split()}
    own = {name for entry in FILE["lists"] if entry["route"] == route for name in entry["names"].split()}
    neutrals = NEUTRAL | {name for entry in FILE["lists"] for name in entry.get("neutral", "").split()}
    body, dropped = BODIES[route], []
    for name in sorted(names - own - neutrals):
        r = daemon.post(route, {"model": MODEL_ID, **body, name: VALUES.get(name, FILE["default"])})
        if not names_it(r, name):
            dropped.append(f"{name}: {r.status_code} {r.headers.get(HEADER)} {r.text[:200]}")
    assert len(names - own) > 100 and not dropped, "\n".join(dropped)
    assert says(daemon, route, {**body, **OFF}) == says(daemon, route, body)


def test_messages_and_responses_take_a_chats_sampling_alike(daemon):
    for route in ("/v1/messages", "/v1/responses"):
        ask = {**BODIES[route], "max_tokens" if route == "/v1/messages" else "max_output_tokens": 9}
        assert says(daemon, route, {**ask, "guided_choice": ["Bergen"]}) == "Bergen"
        assert says(daemon, route, {**ask, "guided_regex": "[0-9]{3}"}).isdigit()
        word = says(daemon, route, ask).split()[0]
        assert word not in says(daemon, route, {**ask, "bad_words": [word]})
        ids = daemon.post("/tokenize", {"prompt": says(daemon, route, ask), "add_special_tokens": False}).json()["tokens"]
        assert says(daemon, route, {**ask, "stop_token_ids": [ids[2]]}) == daemon.post("/detokenize", {"tokens": ids[:2]}).json()["prompt"]
        r = daemon.post(route, {**ask, "timeout_ms": 1, "min_tokens": 9})
        assert r.status_code in (408, 504), r.text


@pytest.mark.parametrize("of", [of for of in LISTS if "client" in LISTS[of]])
def test_the_list_is_the_installed_clients(of):
    """If a newer client has new fields, add them to the list and to the daemon's table."""
    module, kind = LISTS[of]["client"].split(":")
    published = set(typing.get_type_hints(getattr(importlib.import_module(module), kind)))
    assert published | {"stream"} == set(LISTS[of]["names"].split()) | {"stream"}


def test_neutral_names_stand_in_a_list():
    known = {name for entry in FILE["lists"] for name in entry["names"].split()}
    assert NEUTRAL | set(VALUES) <= known, (NEUTRAL | set(VALUES)) - known


# ---- members of objects of which only some members are served ----

THINKING = {"type": "enabled", "budget_tokens": 1024}
NESTED = (("/v1/responses", {"text": {"format": {"type": "text"}, "frobnicate": 1}}, "text.frobnicate"),
          ("/v1/messages", {"output_config": {"frobnicate": 1}}, "output_config.frobnicate"),
          ("/v1/messages", {"thinking": THINKING}, "thinking.budget_tokens"))


@pytest.mark.parametrize("route, extra, name", NESTED, ids=[n[2] for n in NESTED])
def test_a_nested_field_is_named(daemon, route, extra, name):
    r = daemon.post(route, {"model": MODEL_ID, **BODIES[route], **extra})
    assert r.status_code == 200 and r.headers[HEADER] == name, (r.text, r.headers)


def test_nested_fields_that_mean_nothing(daemon):
    for route, extra in (("/v1/responses", {"reasoning": {"effort": None, "summary": "auto"}, "include": ["reasoning.encrypted_content"], "tool_choice": "auto",
                                            "text": {"format": {"type": "text"}, "verbosity": "low"}}),
                         ("/v1/messages", {"thinking": {"type": "disabled"}, "output_config": {"effort": None}})):
        says(daemon, route, {**BODIES[route], **extra})


# ---- fields of a chat that /v1/responses and /v1/messages take in addition to their own ----

def test_responses_take_a_chats_sampling(daemon):
    route, body = "/v1/responses", BODIES["/v1/responses"]
    assert says(daemon, route, {**body, "structured_outputs": {"choice": ["Bergen"]}, "max_output_tokens": 9}) == "Bergen"
    ask = {**body, "temperature": 1, "max_output_tokens": 12}
    first = says(daemon, route, {**ask, "seed": 7, "ignore_eos": True})
    assert first == says(daemon, route, {**ask, "seed": 7, "ignore_eos": True}) != says(daemon, route, {**ask, "seed": 8, "ignore_eos": True})
    assert says(daemon, route, {**ask, "top_k": 1}) == says(daemon, route, {**ask, "temperature": 0})
    greedy = says(daemon, route, {**body, "max_output_tokens": 12})
    word = greedy.split()[2]
    assert says(daemon, route, {**body, "max_output_tokens": 12, "stop": word}) == greedy.split(word)[0]
    ids = daemon.post("/tokenize", {"prompt": greedy.split()[0], "add_special_tokens": False}).json()["tokens"]
    assert not says(daemon, route, {**body, "logit_bias": {str(ids[0]): -100}}).startswith(greedy.split()[0])
