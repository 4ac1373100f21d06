"""Fields that real clients send. A field that does not affect answers is accepted, one that is not served is refused by name, a misspelt one
gets a suggestion, and any other is ignored and named in the header and once in the log."""
import re

import openai
import pytest
from harness import MODEL_ID, Daemon, sse_events

CHAT = {"model": MODEL_ID, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "temperature": 0}
TEXT = {"model": MODEL_ID, "prompt": "Hi", "max_tokens": 4, "temperature": 0}
ROUTES = (("/v1/chat/completions", CHAT), ("/v1/completions", TEXT))
HEADER = "x-tandem-ignored"


def error_of(r, code="unsupported_parameter"):
    assert r.status_code == 400, (r.status_code, r.text)
    e = r.json()["error"]
    assert e["code"] == code and e["param"], e
    return e


def text_of(r):
    assert r.status_code == 200, r.text
    choice = r.json()["choices"][0]
    return choice["text"] if "text" in choice else choice["message"]["content"]


# ---- unknown ----

def test_an_unknown_field_is_ignored_and_named(daemon):
    for path, body in ROUTES:
        plain = daemon.post(path, body)
        assert HEADER not in plain.headers
        r = daemon.post(path, {**body, "frobnicate": 1, "x": None, "top_secret": [1]})
        assert text_of(r) == text_of(plain) and r.headers[HEADER] == "frobnicate, top_secret"
        with_stream = daemon.post(path, {**body, "stream": True, "stream_options": {"foo": 1}, "bar": 2})
        assert with_stream.headers[HEADER] == "bar, stream_options.foo" and sse_events(with_stream.text)
    r = daemon.post("/tokenize", {**CHAT, "frobnicate": 1})
    assert r.status_code == 200 and r.headers[HEADER] == "max_tokens, temperature, frobnicate"
    r = daemon.post("/detokenize", {"tokens": [504], "frobnicate": 1})
    assert r.status_code == 200 and r.headers[HEADER] == "frobnicate"


def test_a_name_forges_no_header(daemon):
    """With any field names, and however many there are, the header stays short."""
    evil = {"a\r\nset-cookie: x=y\r\n\r\n<html>": 1, "b\nc": 2, "é\x7f\x01": 3, 'd"e,f;g': 4}
    for path, body in ROUTES:
        for stream in (False, True):
            r = daemon.post(path, {**body, "stream": stream, **evil})
            assert r.status_code == 200 and "set-cookie" not in r.headers
            assert r.headers[HEADER] == "a??set-cookie??x?y?????html?, b?c, ????, d?e?f?g"
            r = daemon.post(path, {**body, "stream": stream, **{f"field{i}": i for i in range(3000)}, "z" * 5000: 1})
            assert r.status_code == 200 and r.headers[HEADER].endswith(", ...") and len(r.headers[HEADER]) < 256


def test_an_unknown_field_is_logged_once():
    with Daemon() as d:
        for _ in range(3):
            d.post("/v1/completions", {**TEXT, "frobnicate": 1, "evil\n<3>forged": 1})
        assert d.log().count("'frobnicate'") == 1 and "evil??3?forged" in d.log() and "\n<3>forged" not in d.log()
        for i in range(100):
            d.post("/tokenize", {"prompt": "a", **{f"f{i}_{k}": 1 for k in range(5)}})
        assert len(re.findall(r"is not known and is ignored", d.log())) == 64
        assert d.log().count("no more of them are told") == 1


def test_strict_fields():
    with Daemon("--strict-fields", 1) as d:
        for path, body in ROUTES:
            e = error_of(d.post(path, {**body, "frobnicate": 1}))
            assert e["param"] == "frobnicate" and "is not a field of this route" in e["message"]
            assert d.post(path, {**body, "frobnicate": None, "user": "me", "lora_path": None}).status_code == 200
        messages = [{"role": "user", "content": [{"type": "text", "text": "x", "foo": 1, "cache_control": {}}]}]
        assert error_of(d.post("/v1/chat/completions", {**CHAT, "messages": messages}))["param"] == "messages[0].content[0].foo"


# ---- near misses ----

NEAR = {"max_token": "max_tokens", "Temperature": "temperature", "top-p": "top_p", "topK": "top_k", " seed": "seed", "stops": "stop",
        "temprature": "temperature", "maxCompletionTokens": "max_completion_tokens", "steam": "stream"}


@pytest.mark.parametrize("name", NEAR)
def test_a_near_miss_is_told(daemon, name):
    e = error_of(daemon.post("/v1/chat/completions", {**CHAT, name: 1}))
    assert e["param"] == name and f"'{NEAR[name]}' meant" in e["message"]


def test_an_empty_name(daemon):
    for path, body in ROUTES:
        for name in ("", "  "):
            assert "empty" in error_of(daemon.post(path, {**body, name: 1}))["message"]
    long = "a" * 300
    assert daemon.post("/v1/completions", {**TEXT, long: 1}).headers[HEADER] == "a" * 63


# ---- what others serve ----

STEERING = {"json_schema": {"type": "object"}, "regex": "a", "grammar": "root ::= [a]", "lora_path": "a",
            "logits_processors": ["x"], "mirostat": 2, "dry_multiplier": 0.8,
            "xtc_probability": 0.5, "typical_p": 0.9, "use_beam_search": True, "suffix": "x", "thinking": {"type": "enabled"},
            "n_predict": 5, "stop_sequences": ["a"], "system": "Be brief.", "ebnf": "x", "extra_body": {"a": 1},
            "options": {"temperature": 0}, "reasoning": {"effort": "low"}}


@pytest.mark.parametrize("field", STEERING)
def test_what_steers_elsewhere_is_never_ignored(daemon, field):
    for path, body in ROUTES:
        e = error_of(daemon.post(path, {**body, field: STEERING[field]}))
        assert e["param"] == field and e["message"] == f"'{field}' is not served"
        assert HEADER not in daemon.post(path, {**body, field: None}).headers


# ---- bodies that real clients send ----

CLIENTS = {
    "SGLang's benchmark": {"lora_path": None, "ignore_eos": False, "return_routed_experts": False},
    "Qwen's and DeepSeek's chats": {"messages": [
        {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?", "reasoning_content": "They greet."},
        {"role": "user", "content": "Go on"}]},
    "Claude's caches through litellm": {"messages": [
        {"role": "system", "content": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]},
        {"role": "user", "content": "Hi", "cache_control": {"type": "ephemeral"}}]},
    "chat windows": {"messages": [{"role": "user", "content": "Hi", "id": "m1", "timestamp": 1700000000, "metadata": {"a": 1}, "name": "me"}]},
    "OpenRouter's": {"reasoning": {"effort": None, "max_tokens": None}, "transforms": [], "plugins": []},
    "LM Studio's": {"max_tokens": -1, "stop": ["\n", "."]},
    "llama.cpp's page": {"cache_prompt": True, "samplers": [], "dynatemp_range": 0, "dynatemp_exponent": 1, "typical_p": 1,
                         "xtc_probability": 0, "xtc_threshold": 0.1, "repeat_last_n": 64, "repeat_penalty": 1, "dry_multiplier": 0, "dry_base": 1.75,
                         "dry_allowed_length": 2, "dry_penalty_last_n": -1, "mirostat": 0, "timings_per_token": False},
    "vLLM's examples": {"guided_json": None, "bad_words": [], "min_tokens": 0, "length_penalty": 1, "spaces_between_special_tokens": True},
}


@pytest.mark.parametrize("client", CLIENTS)
def test_bodies_of_real_clients(daemon, client):
    r = daemon.post("/v1/chat/completions", {**CHAT, **CLIENTS[client]})
    assert r.status_code == 200 and HEADER not in r.headers, r.text


def test_no_limit(daemon):
    """max_tokens -1 continues to the end of the context, as in llama.cpp. If absent, it means the same in chats, and 16 in completions."""
    body = {**TEXT, "stop": ["zzzz"], "ignore_eos": True}
    assert daemon.post("/v1/completions", {**body, "max_tokens": None}).json()["usage"]["completion_tokens"] == 16
    with Daemon("--context-tokens", 128) as d:
        for extra in ({"max_tokens": -1}, {"max_tokens": None}, {"max_completion_tokens": -1, "max_tokens": 3}):
            usage = d.post("/v1/chat/completions", {**CHAT, "ignore_eos": True, **extra}).json()["usage"]
            assert usage["total_tokens"] == 128, extra
        assert d.post("/v1/completions", {**body, "max_tokens": -1}).json()["usage"]["total_tokens"] == 128


def test_neutral_fields_of_the_openai_client(client):
    r = client.chat.completions.create(
        model=MODEL_ID, messages=CHAT["messages"], max_completion_tokens=4, temperature=0, prompt_cache_key="k", safety_identifier="s",
        verbosity="medium", service_tier="flex", store=True, metadata={"a": "b"}, user="me")
    assert r.choices[0].message.content
    with pytest.raises(openai.BadRequestError) as e:
        client.chat.completions.create(model=MODEL_ID, messages=CHAT["messages"], reasoning_effort="much")
    assert e.value.param == "reasoning_effort" and "'reasoning_effort' must be none, minimal, low" in str(e.value)


EFFORT = ("{% for m in messages %}{{ m.content }}{% endfor %}|{{ reasoning_effort }}|"
          "{{ enable_thinking is defined and enable_thinking }}|{{ enable_thinking is defined }}|{{ a }}")
EFFORTS = (({}, "||False|False|"), ({"reasoning_effort": None}, "||False|False|"), ({"reasoning_effort": "none"}, "|none|False|True|"),
           *(({"reasoning_effort": e}, f"|{e}|True|True|") for e in ("minimal", "low", "medium", "high", "xhigh", "max")),
           ({"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False, "reasoning_effort": "high", "a": [1]}}, "|low|False|True|[1]"),
           ({"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}}, "|none|True|True|"))


def test_how_hard_to_think(tmp_path):
    """Templates see it as in vLLM: on every chat route the prompt has the same number of tokens."""
    path = tmp_path / "template.jinja"
    path.write_text(EFFORT, encoding="utf-8")
    with Daemon("--chat-template", path) as d:
        for fields, shown in EFFORTS:
            messages = [{"role": "user", "content": "Hi"}]
            ids = d.post("/tokenize", {"messages": messages, **fields}).json()["tokens"]
            assert d.post("/detokenize", {"tokens": ids}).json()["prompt"] == "Hi" + shown, fields
            chat = d.post("/v1/chat/completions", {"messages": messages, "max_tokens": 1, "return_token_ids": True, **fields}).json()
            assert chat["prompt_token_ids"] == ids, fields
            effort, kwargs = fields.get("reasoning_effort"), {k: v for k, v in fields.items() if k == "chat_template_kwargs"}
            r = d.post("/v1/responses", {"input": "Hi", "max_output_tokens": 1, "reasoning": {"effort": effort}, **kwargs}).json()
            assert r["usage"]["input_tokens"] == len(ids) and r["reasoning"]["effort"] == effort, fields
            m = {"messages": messages, "output_config": {"effort": effort}, **kwargs}
            assert d.post("/v1/messages/count_tokens", m).json()["input_tokens"] == len(ids), fields


@pytest.mark.parametrize("n", [1, 2])
def test_usage_in_every_chunk(client, daemon, n):
    """As guidellm asks for in each request; each chunk counts the tokens of its choice so far."""
    stream = client.chat.completions.create(model=MODEL_ID, messages=CHAT["messages"], max_tokens=12, temperature=0, n=n, stream=True, extra_body={"ignore_eos": True},
                                            stream_options={"include_usage": True, "continuous_usage_stats": True})
    chunks = list(stream)
    *parts, last = chunks
    assert not last.choices and last.usage.completion_tokens == sum(
        max(c.usage.completion_tokens for c in parts if c.choices[0].index == i) for i in range(n))
    for i in range(n):
        counts = [c.usage.completion_tokens for c in parts if c.choices[0].index == i]
        assert counts[0] == 0 and counts == sorted(counts) and counts[-1] == 12
    assert all(c.usage.prompt_tokens == last.usage.prompt_tokens and
               c.usage.total_tokens == c.usage.prompt_tokens + c.usage.completion_tokens for c in parts)
    r = daemon.post("/v1/completions", {**TEXT, "n": n, "stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}})
    assert all(c["usage"]["completion_tokens"] for c in sse_events(r.text))
    r = daemon.post("/v1/completions", {**TEXT, "stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": False}})
    *parts, last = sse_events(r.text)
    assert all(c["usage"] is None for c in parts) and last["usage"]
    r = daemon.post("/v1/completions", {**TEXT, "stream": True, "stream_options": {"continuous_usage_stats": True}})
    assert all("usage" not in c for c in sse_events(r.text))


# ---- messages and parts ----

def test_fields_of_messages(daemon):
    def post(message):
        return daemon.post("/v1/chat/completions", {**CHAT, "messages": [message]})
    picture = [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": "http://x/"}}]
    for message, param in (({"role": "user", "content": "x", "audio": {"id": "a"}}, "messages[0].audio"),
                           ({"role": "assistant", "content": "x", "prefix": True}, "messages[0].prefix"),
                           ({"role": "user", "content": picture}, "messages[0].content[1]"),
                           ({"role": "user", "content": [{"type": "text", "text": "x", "image_url": "y"}]}, "messages[0].content[0].image_url"),
                           ({"role": "user", "content": "x", "conten": "y"}, "messages[0].conten")):
        e = error_of(post(message))
        assert e["param"] == param and param in e["message"], e
        assert "not served" in e["message"] or "meant" in e["message"]
    r = post({"role": "user", "content": [{"type": "text", "text": "Hi", "foo": 1}], "weight": 1})
    assert text_of(r) == text_of(daemon.post("/v1/chat/completions", CHAT))
    assert r.headers[HEADER] == "messages[].weight, messages[].content[].foo"
