"""A wrong request gets an error in OpenAI's format, with the right status and the name of the field. Never a 5xx."""
import json
import re

import openai
import pytest
from harness import MODEL_ID, ROOT

CHAT = {"model": MODEL_ID, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, "temperature": 0}
TEXT = {"model": MODEL_ID, "prompt": "Hi", "max_tokens": 1, "temperature": 0}


def error_of(r, status=400):
    assert r.status_code == status, (r.status_code, r.text)
    assert r.headers["content-type"].startswith("application/json")
    body = r.json()
    assert list(body) == ["error"] and set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"] and isinstance(body["error"]["type"], str)
    return body["error"]


# ---- fields ----

NOT_SERVED = {
    "echo": True, "logits_processors": ["a"],
    "chat_template": "{{ 1 }}", "return_tokens_as_token_ids": True,
}


@pytest.mark.parametrize("field", NOT_SERVED)
def test_a_field_not_served_is_named(daemon, field):
    e = error_of(daemon.post("/v1/chat/completions", {**CHAT, field: NOT_SERVED[field]}))
    assert e["code"] == "unsupported_parameter" and e["param"] == field
    assert e["message"].startswith(f"'{field}' is not served") and "value" not in e["message"]


NEUTRAL = {"presence_penalty": 0, "frequency_penalty": 0.0, "logprobs": False, "tools": [], "response_format": {"type": "text"},
           "user": "me", "metadata": {"a": "b"}, "store": False, "stop": None, "seed": None, "logit_bias": None, "n": None}


def test_neutral_values_are_taken(daemon):
    assert daemon.post("/v1/chat/completions", {**CHAT, **NEUTRAL}).status_code == 200


def limits():
    """Returns the request fields of config/limits.def: {name: (min, max)}."""
    text = (ROOT / "config/limits.def").read_text()
    named = dict(re.findall(r"(TD_\w+_MAX) = (\d+)", (ROOT / "config/limits.h").read_text()))
    rows = re.findall(r'^TD_LIMIT\(\w+, "(\w+)", REQUEST, (-?[\d.]+), (-?[\d.]+), (-?[\d.]+|TD_\w+),', text, re.M)
    assert len(rows) == text.count('", REQUEST, ')
    return {name: (float(lo), float(named.get(hi, hi))) for name, lo, _, hi in rows}


NUMERIC = {"max_tokens": int, "temperature": float, "top_p": float, "top_k": int, "min_p": float, "n": int, "priority": int,
           "timeout_ms": int, "ttft_timeout_ms": int, "presence_penalty": float, "frequency_penalty": float,
           "repetition_penalty": float, "min_tokens": int}


def test_the_table_is_covered():
    assert set(limits()) == set(NUMERIC) | set(BEYOND)


# Values beyond a bound that does not limit a number in the body: {name: (field, value of the bound)}.
BEYOND = {"stop": ("stop", lambda n: ["x"] * (n + 1)), "stop_token_ids": ("stop_token_ids", lambda n: [2] * (n + 1)),
          "bad_words": ("bad_words", lambda n: ["x"] * (n + 1)), "logit_bias": ("logit_bias", lambda n: {str(i): 1 for i in range(n + 1)}),
          "logit_bias_value": ("logit_bias", lambda n: {"1": n + 0.1}), "top_logprobs": ("top_logprobs", lambda n: n + 1),
          "prompt_logprobs": ("prompt_logprobs", lambda n: n + 1), "prompts": ("prompt", lambda n: ["a"] * (n + 1)),
          "messages": ("messages", lambda n: [{"role": "user", "content": ""}] * (n + 1)), "inputs": ("input", lambda n: ["a"] * (n + 1)),
          "dimensions": ("dimensions", lambda n: n + 1)}
OWN = {"/v1/messages": {"stop": "stop_sequences"}, "/v1/responses": {"max_tokens": "max_output_tokens"}}
OF_ROUTE = {"prompt": ("/v1/completions",), "messages": ("/v1/chat/completions", "/v1/messages"), "input": (), "dimensions": ()}


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses"])
@pytest.mark.parametrize("limit", limits())
def test_no_route_takes_what_is_beyond_a_limit(daemon, limit, path):
    """A field of the route gets a 400 in the route's words; any other is refused, or named as ignored."""
    lo, hi = limits()[limit]
    body = {"/v1/completions": TEXT, "/v1/chat/completions": CHAT, "/v1/messages": {**CHAT, "max_tokens": 1},
            "/v1/responses": {"model": MODEL_ID, "input": "Hi", "max_output_tokens": 1}}[path]
    if limit in NUMERIC:
        field, values = limit, [hi + 1, lo - 1, "1", [], {"a": 1}, True]
    else:
        field, values = BEYOND[limit][0], [BEYOND[limit][1](int(hi))]
    if path not in OF_ROUTE.get(field, (path,)):
        pytest.skip("no field of this route")
    field = OWN.get(path, {}).get(field, field)
    for v in values:
        value = int(v) if isinstance(v, float) and v.is_integer() else v
        r = daemon.post(path, {**body, field: value, **({"logprobs": True} if field == "top_logprobs" and "chat" in path else {})})
        if r.status_code == 200:
            assert field in r.headers["x-tandem-ignored"].split(", "), (value, r.text)
            break  # with any value
        else:
            assert r.status_code == 400 and field in r.json()["error"]["message"], (value, r.text)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("field", NUMERIC)
def test_numeric_borders(daemon, field, path):
    kind, (lo, hi) = NUMERIC[field], limits()[field]
    step = 1 if kind is int else 1e-6
    lo_fits = field not in ("top_p", "repetition_penalty")  # for these, 0 itself is refused
    good = [kind(hi)] + ([kind(lo)] if lo_fits else [1e-9])
    good = [hi, 1] if field == "max_tokens" else good  # -1 continues to the end of the context: test_fields.py tests it with a short one
    good = [0, 1] if field == "min_tokens" else good  # more than max_tokens is refused
    bad = [lo - step, hi + step, -1e9, 1e300, -1e300, 2**63, -2**63, 2**64, "1", True, False, [], {}, [1], "NaN"]
    bad += [0.5, 1.5] if kind is int else []
    bad += [] if lo_fits and field != "max_tokens" else [0]  # max_tokens: -1 means no limit, and 0 asks for nothing
    body = CHAT if "chat" in path else TEXT
    for v in bad:
        value = int(v) if isinstance(v, float) and v.is_integer() and kind is int and abs(v) < 1e18 else v
        e = error_of(daemon.post(path, {**body, field: value}))
        assert e["param"] == field and field in e["message"], (v, e)
    for v in good:
        r = daemon.post(path, {**body, field: v})
        if field == "max_tokens" and v > 8192:
            assert error_of(r)["code"] == "context_length_exceeded"
        elif field.endswith("timeout_ms") and v == lo:
            assert r.status_code in (200, 408, 504), (v, r.text)  # a millisecond may be enough
        else:
            assert r.status_code == 200, (v, r.text)
    assert daemon.post(path, {**body, field: None}).status_code in (200,), "null is absent"
    raw = json.dumps(body)[:-1] + f', "{field}": %s}}'
    for v in ("1e400", "-1e400", "1" + "0" * 400, "NaN", "Infinity", "0x10", "+1", "01", ".5", "1."):
        error_of(daemon.post(path, (raw % v).encode()))


def test_seed_borders(daemon):
    for good in (0, 1, 2**63 - 1, -1, -2**63, None):
        assert daemon.post("/v1/completions", {**TEXT, "temperature": 1, "seed": good}).status_code == 200, good
    for bad in (2**64, -2**63 - 1, 1.5, "1", True, [], 1e30):
        assert error_of(daemon.post("/v1/completions", {**TEXT, "seed": bad}))["param"] == "seed", bad


def test_lists_at_their_borders(daemon):
    def post(**f):
        return daemon.post("/v1/completions", {**TEXT, **f})
    assert post(stop=["x"] * 16).status_code == 200 and post(stop=[]).status_code == 200 and post(stop="y").status_code == 200
    for bad in (["x"] * 17, "", ["a", ""], [1], 5, {}, ["z" * 1025], True):
        assert error_of(post(stop=bad))["param"] == "stop", bad
    assert post(stop=["z" * 1024]).status_code == 200
    assert post(stop_token_ids=[2] * 64).status_code == 200 and post(stop_token_ids=[]).status_code == 200
    for bad in ([2] * 65, [-1], [49152], [2**40], [1.5], ["a"], "a", 5):
        assert error_of(post(stop_token_ids=bad))["param"] == "stop_token_ids", bad
    assert post(logit_bias={str(i): -100 for i in range(300)}).status_code == 200
    for bad in ({str(i): 1 for i in range(301)}, {"49152": 1}, {"-1": 1}, {"1.0": 1}, {"a": 1}, {"1": "1"}, {"1": 100.1}, [], "a", 5):
        assert error_of(post(logit_bias=bad))["param"] == "logit_bias", bad
    assert error_of(post(max_tokens=5, min_tokens=6))["param"] == "min_tokens"
    for bad in (21, -1, 0.5, True, "1", []):
        assert error_of(post(logprobs=bad))["param"] == "logprobs", bad
    for bad in ({"logprobs": 1}, {"logprobs": True, "top_logprobs": 21}, {"top_logprobs": 1}):
        assert error_of(daemon.post("/v1/chat/completions", {**CHAT, **bad}))["param"] in bad, bad
    assert error_of(post(prompt=["a"] * 257))["param"] == "prompt"
    assert error_of(post(prompt=["a"] * 200, n=64))["param"] in ("n", "prompt"), "their product is bounded too"
    r = daemon.post("/v1/chat/completions", {**CHAT, "messages": [{"role": "user", "content": ""}] * 8193})
    assert error_of(r)["param"] == "messages"


BAD_MESSAGES = [None, [], {}, "hi", [1], [None], [{}], [{"role": "user"}], [{"content": "x"}], [{"role": "robot", "content": "x"}],
                [{"role": 1, "content": "x"}], [{"role": "user", "content": 5}], [{"role": "user", "content": None}],
                [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/"}}]}],
                [{"role": "user", "content": [{"type": "text"}]}], [{"role": "user", "content": ["x"]}],
                [{"role": "user", "content": "x", "": 1}], [{"role": "user", "content": "x", "audio": {"id": "a"}}]]


@pytest.mark.parametrize("messages", BAD_MESSAGES, ids=lambda m: json.dumps(m)[:40])
def test_bad_messages(daemon, messages):
    e = error_of(daemon.post("/v1/chat/completions", {**CHAT, "messages": messages}))
    assert e["param"].startswith("messages"), e


def test_missing_fields(daemon):
    assert error_of(daemon.post("/v1/completions", {"model": MODEL_ID}))["param"] == "prompt"
    assert error_of(daemon.post("/v1/chat/completions", {"model": MODEL_ID}))["param"] == "messages"
    assert error_of(daemon.post("/detokenize", {"model": MODEL_ID}))["param"] == "tokens"
    error_of(daemon.post("/tokenize", {"model": MODEL_ID}))
    error_of(daemon.post("/tokenize", {"model": MODEL_ID, "prompt": "a", "messages": CHAT["messages"]}))
    e = error_of(daemon.post("/v1/completions", {**TEXT, "stream_options": {"include_usage": True}}))
    assert e["param"] == "stream_options"


def test_context_length(daemon):
    long = "word " * 9000
    for path, body in (("/v1/completions", {**TEXT, "prompt": long}), ("/v1/completions", {**TEXT, "prompt": [500] * 8192}),
                       ("/v1/chat/completions", {**CHAT, "messages": [{"role": "user", "content": long}]}),
                       ("/v1/completions", {**TEXT, "max_tokens": 8192})):
        e = error_of(daemon.post(path, body))
        assert e["code"] == "context_length_exceeded" and e["param"] == ("messages" if "chat" in path else "prompt"), e
        assert re.fullmatch(r"This model's maximum context length is 8192 tokens\. However, you requested (\d+) tokens \(\d+ in the "
                            r"(messages|prompt), \d+ in the completion\)\. Please reduce the length of the \2 or completion\.",
                            e["message"]), e
    e = error_of(daemon.post("/v1/completions", {**TEXT, "prompt": [500] * 8000, "max_tokens": 300}))
    assert "requested 8300 tokens (8000 in the prompt, 300 in the completion)" in e["message"]
    e = error_of(daemon.post("/v1/chat/completions", {**CHAT, "messages": [{"role": "user", "content": "word " * 90000}]}))
    assert e["code"] == "context_length_exceeded" and "(more than 73728 in the messages, 1 in the completion)" in e["message"], e


def test_token_ids_in_any_writing(daemon):
    """Plain ids are read from the body's text, all others from a tree. Both must have the same meaning and the same errors."""
    def post(ids):
        body = '{"prompt": [%s], "max_tokens": 4, "temperature": 0, "return_token_ids": true}' % ids
        return daemon.post("/v1/completions", body.encode())
    want = post("504,  280,49151 ,0").json()["choices"][0]
    assert want["prompt_token_ids"] == [504, 280, 49151, 0] and len(want["token_ids"]) == 4
    assert post("504,2.8e2,49151.0,-0").json()["choices"][0] == want
    for bad in ("49152", "1,49152,2", "999999999", "1000000000", "5,12345678901234567890", "-1", "1.5", "5,null", '5,"1"', "5,[2]"):
        e = error_of(post(bad))
        assert e["param"] == "prompt" and "token ids from 0 to 49151" in e["message"], (bad, e)
    for bad in ("", "[]"):
        assert error_of(post(bad))["param"] == "prompt", bad
    for bad in ([[1], "a"], ["a", [1]], ["a", 1], [[1], 2], [[1], None], [{}], [[]]):
        assert error_of(daemon.post("/v1/completions", {**TEXT, "prompt": bad}))["param"] == "prompt", bad
    texts = [daemon.post("/detokenize", ('{"tokens": [%s]}' % ids).encode()).text for ids in ("504,280", "504,280.0", "504.0,280")]
    assert texts[0] == texts[1] == texts[2] and "prompt" in json.loads(texts[0])
    assert error_of(daemon.post("/detokenize", b'{"tokens": [49152]}'))["param"] == "tokens"
    assert error_of(daemon.post("/tokenize", b'{"prompt": [1, 2]}'))["param"] == "prompt"


def test_wrong_model_everywhere(daemon):
    for path, body in (("/v1/completions", TEXT), ("/v1/chat/completions", CHAT), ("/tokenize", {"prompt": "a"}),
                       ("/detokenize", {"tokens": [1]})):
        for name in ("gpt-4", "", "x" * 5000):
            assert error_of(daemon.post(path, {**body, "model": name}), 404)["code"] == "model_not_found"
        assert error_of(daemon.post(path, {**body, "model": 5}))["param"] == "model"


# ---- bodies ----

BAD_JSON = [b"", b"{", b"null", b"[]", b"5", b'"x"', b"{} {}", b"{}x", b"\xef\xbb\xbf{}", b'{"model":"a","model":"b"}', b'{"a":1,}',
            b"{'a':1}", b'{"a":"\xff"}', b'{"a":"\xed\xa0\x80"}', b'{"a":"\\ud800"}', b'{"a\\u0000":1}', b'{"model":"a\\u0000","prompt":"a"}', b'{"a":"\x01"}',
            b'{"a":' + b"[" * 70 + b"]" * 70 + b"}", b'{"a":[' + b"0," * 300000 + b"0]}", b'{"a":nan}', b'{"a":tru}', b"\x00", b"{" * 5000]


@pytest.mark.parametrize("raw", BAD_JSON, ids=lambda b: repr(b[:20]))
@pytest.mark.share
def test_bad_json(daemon, raw):
    for path in ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"):
        error_of(daemon.post(path, raw))


def test_body_too_large(daemon):
    body = json.dumps({**TEXT, "prompt": "x" * (8 << 20)}).encode()
    e = error_of(daemon.post("/v1/completions", body), 413)
    assert e["message"] == "the body is larger than 8388608 bytes (http_body_bytes)" and e["code"] == "body_too_large"


def test_content_type(daemon):
    ok = json.dumps(TEXT).encode()
    for kind in ("text/plain", "application/x-www-form-urlencoded", "application/jsonx", "multipart/form-data; boundary=x"):
        error_of(daemon.post("/v1/completions", ok, headers={"content-type": kind}), 415)
    error_of(daemon.raw("POST", "/v1/completions", content=ok), 415)
    for kind in ("application/json", "application/json; charset=utf-8", "Application/JSON"):
        assert daemon.post("/v1/completions", ok, headers={"content-type": kind}).status_code == 200
    error_of(daemon.post("/v1/completions", ok, headers={"content-encoding": "gzip"}), 415)


def test_routes_and_methods(daemon):
    import httpx
    for method, path, status in (("GET", "/v1/chat/completions", 405), ("DELETE", "/v1/models", 405), ("POST", "/health", 405),
                                 ("PUT", "/v1/completions", 405), ("GET", "/nothing", 404), ("POST", "/v1/", 404),
                                 ("GET", "/v1/models/x/y", 404), ("GET", "/..%2f..%2fetc/passwd", 404), ("GET", "/v1/models/%00", 404)):
        r = httpx.request(method, daemon.url + path, timeout=20)
        error_of(r, status)
        assert status != 405 or r.headers["allow"], path


def test_a_slash_behind_models(daemon):
    assert daemon.get("/v1/models/").json() == daemon.get("/v1/models").json()
    assert daemon.raw("HEAD", "/v1/models/").status_code == 200
    message = error_of(daemon.get("/v1/models//"), 404)["message"]
    assert message.startswith("the model '/' is not served here"), message
    for path, name in (("org%2Fa%20b", "org/a b"), ("%ff", "\ufffd"), ("%00", "%00")):
        message = error_of(daemon.get("/v1/models/" + path), 404)["message"]
        assert message.startswith(f"the model '{name}' is not served here"), message


@pytest.mark.parametrize("method, path, meant", [
    ("POST", "/chat/completions", "/v1/chat/completions"), ("POST", "/v1/v1/completions", "/v1/completions"), ("GET", "/models", "/v1/models"),
    ("POST", "/v1/completions/", "/v1/completions"), ("GET", "/v1/health", "/health"), ("GET", "/metrics//", "/metrics"), ("POST", "/v1/tokenize", "/tokenize"),
    ("GET", "/v1/rerank", None), ("GET", "/v1", None), ("GET", "/v1/v1/v1/models", None), ("GET", "/" + "a" * 5000, None),
])
def test_a_path_that_is_nearly_right(daemon, method, path, meant):
    message = error_of(daemon.raw(method, path), 404)["message"]
    assert message.endswith(f"; {meant} is one") if meant else "is one" not in message, message


def test_messages_say_what_would_be_right(daemon):
    for path, body, words in (("/v1/completions", CHAT, "'messages' is a field of /v1/chat/completions"), ("/v1/chat/completions", TEXT, "'prompt' is a field of /v1/completions"),
                              ("/v1/completions", {**TEXT, "topk": 5}, "'topk' is not a field; is 'top_k' meant?"), ("/v1/completions", b"", "the body is empty")):
        assert words in error_of(daemon.post(path, body))["message"]
    assert error_of(daemon.raw("GET", "/v1/completions"), 405)["message"] == "GET is not allowed here; POST is"
    assert error_of(daemon.raw("POST", "/metrics"), 405)["message"] == "POST is not allowed here; GET is"
    kind = "application/x-www-form-urlencoded"  # what curl -d sends
    assert f"application/json, not '{kind}'" in error_of(daemon.post("/v1/completions", TEXT, headers={"content-type": kind}), 415)["message"]


UNNAMED = (("prompt", "/v1/completions", {**TEXT, "prompt": ""}, "'prompt' gives an empty prompt"),
           ("guided_regex", "/v1/chat/completions", {**CHAT, "guided_regex": "("}, "'guided_regex': a group without its ')'"),
           ("guided_grammar", "/v1/completions", {**TEXT, "guided_grammar": "root ::= x"}, "'guided_grammar': the grammar has no rule 'x'"),
           ("text.format", "/v1/responses", {"input": "Hi", "text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "x"}}}},
            "'text.format': 'type' at '/' of the schema"))


@pytest.mark.parametrize("param, path, body, words", UNNAMED, ids=[u[0] for u in UNNAMED])
def test_the_message_alone_names_the_field(daemon, param, path, body, words):
    """Many clients show only the message to their users."""
    e = error_of(daemon.post(path, body))
    assert e["param"] == param and e["message"].startswith(words), e


def test_a_routes_own_errors_keep_their_names(daemon):
    """An error in the route's own body uses the field name of that body."""
    for path, name in (("/v1/messages", "stop"), ("/v1/messages", "response_format"), ("/v1/responses", "max_tokens"), ("/v1/responses", "reasoning_effort")):
        body = {"input": "Hi"} if path == "/v1/responses" else CHAT
        told = daemon.post(path, {**body, name: "x"}).json()["error"]["message"]
        assert told == f"'{name}' is a field of /v1/chat/completions, not of this route"


def test_openai_error_classes(client):
    """The client library maps our errors to its own exceptions."""
    with pytest.raises(openai.BadRequestError) as e:
        client.chat.completions.create(model=MODEL_ID, messages=CHAT["messages"], temperature=9)
    assert e.value.param == "temperature" and e.value.status_code == 400
    with pytest.raises(openai.BadRequestError) as e:
        client.chat.completions.create(model=MODEL_ID, messages=CHAT["messages"], tools=[{"type": "function", "function": {"name": "f"}}])
    assert e.value.code == "unsupported_parameter" and e.value.param == "tools"


def test_the_daemon_still_answers(daemon):
    assert daemon.get("/health").status_code == 200
    assert "Paris" in daemon.post("/v1/completions", {**TEXT, "prompt": "The capital of France is", "max_tokens": 5}).text
