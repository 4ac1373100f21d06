"""Whole conversations, byte for byte: requests of every route and their responses, as in golden/conversations.txt.

Our own daemon wrote that file (`test_conversations.py --write`). So it proves nothing right, but detects changes of status lines, headers,
bodies, events, error texts, the log and counters. If you change an answer on purpose, write the file again and read the diff.
Everything that depends on time or chance is left out: ids, dates, durations, digits of log-probabilities, the number of tokens in an event."""
import itertools
import json
import pathlib
import re
import sys
import tempfile

import pytest
from harness import MODEL_ID, Daemon, dechunk, read_all, read_until

GOLDEN = pathlib.Path(__file__).resolve().parent / "golden" / "conversations.txt"
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}, "n": {"type": "integer", "maximum": 99}},
          "required": ["city", "n"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "weather", "description": "Tells it", "parameters": SCHEMA, "strict": True}}
TOOL2 = {"type": "function", "function": {"name": "time"}}
USER = [{"role": "user", "content": "Name a city."}]
STORY = "Once upon a time"
MANY = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "One"}, {"type": "text", "text": "Two"}]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "time", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "noon"}]

COMPLETIONS = [
    {}, {"n": 2, "seed": 3}, {"echo": True}, {"echo": True, "max_tokens": 0, "logprobs": 1}, {"logprobs": 2},
    {"prompt": [STORY, "Two and two"]}, {"prompt": [510, 1234, 77]}, {"prompt": [[510, 1234], [77]], "n": 2}, {"stop": ["a ", "e"]},
    {"stop": ",", "include_stop_str_in_output": True}, {"stop_token_ids": [28], "return_token_ids": True}, {"prompt_logprobs": 1, "max_tokens": 2},
    {"bad_words": ["there", " was"]}, {"logit_bias": {"28": 100}, "max_tokens": 3}, {"ignore_eos": True, "min_tokens": 3, "max_tokens": 5},
    {"guided_choice": ["yes", "no"]}, {"guided_regex": "[a-c]{4}"}, {"guided_json": SCHEMA, "max_tokens": 30}, {"guided_grammar": "root ::= \"x\" | \"yz\""},
    {"structured_outputs": {"choice": ["left", "right"]}}, {"suffix": "x"}, {"user": "u", "best_of": 1}, {"prompt": ""}, {"prompt": []},
    {"prompt": [[]]}, {"prompt": {}}, {"prompt": [1, "a"]}, {"prompt": [-1]}, {"prompt": [99999999]}, {"prompt": [1.5]}, {"prompt": None},
    {"max_tokens": 100000}, {"n": 0}, {"echo": 1}, {"logprobs": 100}, {"stop": [""]}, {"stop": ["a"] * 40}, {"stop": {}}, {"logit_bias": []},
    {"logit_bias": {"x": 1}}, {"logit_bias": {"5": 101}}, {"logit_bias": {"99999999": 1}}, {"bad_words": "a"}, {"bad_words": [""]}, {"bad_words": [1]},
    {"stop_token_ids": ["a"]}, {"stop_token_ids": [-1]}, {"guided_choice": []}, {"guided_choice": [""]}, {"guided_regex": "("}, {"guided_grammar": "root ::="},
    {"guided_json": {"type": "wrong"}}, {"guided_json": "{"}, {"guided_choice": ["a"], "guided_regex": "b"}, {"structured_outputs": {"a": 1}},
    {"priority": 5, "cache_salt": "s"}, {"cache_salt": 7}, {"timeout_ms": 60000}, {"model": "other"}, {"model": 5}, {"unheard_of": 1}, {"min_tokens": 9, "max_tokens": 3},
    {"stream_options": {"include_usage": True}}, {"return_token_ids": "x"}, {"add_special_tokens": False}, {"temperature": "hot"}, {"top_p": 0}, {"seed": 1.5},
]
CHATS = [
    {}, {"n": 2}, {"logprobs": True, "top_logprobs": 2, "max_tokens": 2}, {"messages": MANY}, {"messages": USER + [{"role": "assistant", "content": "A"}],
     "add_generation_prompt": False, "continue_final_message": True}, {"tools": [TOOL], "tool_choice": "required", "max_tokens": 60},
    {"tools": [TOOL, TOOL2], "tool_choice": {"type": "function", "function": {"name": "weather"}}, "max_tokens": 60}, {"tools": [TOOL], "tool_choice": "none"},
    {"tools": [TOOL], "tool_choice": "auto"}, {"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [
        {"type": "function", "function": {"name": "weather"}}]}}, "max_tokens": 60},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}, "max_tokens": 40}, {"response_format": {"type": "json_object"}},
    {"response_format": {"type": "text"}}, {"max_completion_tokens": 3}, {"reasoning_effort": "low"}, {"include_reasoning": False}, {"chat_template_kwargs": {"a": 1}},
    {"return_token_ids": True}, {"parallel_tool_calls": False}, {"messages": []}, {"messages": {}}, {"messages": [5]}, {"messages": [{}]},
    {"messages": [{"role": "king", "content": "x"}]}, {"messages": [{"role": "user"}]}, {"messages": [{"role": "user", "content": 5}]},
    {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
    {"messages": [{"role": "tool", "content": "x"}]}, {"messages": [{"role": "assistant", "tool_calls": 5}]},
    {"messages": [{"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": 5}}]}]}, {"tools": 5}, {"tools": [5]}, {"tools": [{"type": "x"}]},
    {"tools": [{"type": "function"}]}, {"tools": [{"type": "function", "function": {"name": "a b"}}]}, {"tools": [TOOL, TOOL]}, {"tool_choice": "required"},
    {"tools": [TOOL], "tool_choice": "maybe"}, {"tools": [TOOL], "tool_choice": {}}, {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "x"}}},
    {"tools": [TOOL], "tool_choice": {"type": "allowed_tools"}}, {"response_format": {"type": "x"}}, {"response_format": 5}, {"response_format": {"type": "json_schema"}},
    {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": 5}}}}, {"top_logprobs": 2}, {"logprobs": 3}, {"logprobs": True, "top_logprobs": 99},
    {"continue_final_message": True}, {"reasoning_effort": "x"}, {"chat_template_kwargs": 5}, {"functions": []}, {"audio": {}}, {"modalities": ["audio"]},
]
RESPONSES = [
    {}, {"input": [{"role": "user", "content": "Hi"}], "instructions": "Be brief."}, {"input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}]},
    {"tools": [{"type": "function", "name": "weather", "parameters": SCHEMA, "strict": True}], "tool_choice": "required", "max_output_tokens": 60},
    {"text": {"format": {"type": "json_schema", "name": "s", "schema": SCHEMA}}, "max_output_tokens": 40}, {"input": [{"type": "function_call", "call_id": "c", "name": "f",
     "arguments": "{}"}, {"type": "function_call_output", "call_id": "c", "output": "1"}]}, {"metadata": {"a": "b"}, "store": False}, {"top_logprobs": 1, "include": ["message.output_text.logprobs"]},
    {"input": 5}, {"input": []}, {"input": [{"type": "x"}]}, {"input": None}, {"previous_response_id": "r"}, {"background": True}, {"tools": [{"type": "web_search"}]}, {"text": 5},
    {"instructions": 5}, {"max_output_tokens": 0}, {"truncation": "auto"}, {"include": ["x"]}, {"reasoning": {"effort": "low"}}, {"store": True}, {"input": [{"role": "user", "content": [5]}]},
]
MESSAGES = [
    {}, {"system": "Be brief."}, {"system": [{"type": "text", "text": "Be brief."}]}, {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]},
    {"tools": [{"name": "weather", "input_schema": SCHEMA}], "tool_choice": {"type": "any"}, "max_tokens": 60}, {"stop_sequences": ["a "]}, {"temperature": 0.5, "top_k": 1},
    {"messages": USER + [{"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}]},
                         {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "1"}]}], "tools": [{"name": "f", "input_schema": {"type": "object"}}]},
    {"tools": [{"name": "weather", "input_schema": SCHEMA}], "tool_choice": {"type": "tool", "name": "weather", "disable_parallel_tool_use": True}, "max_tokens": 60},
    {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}, "max_tokens": 40}, {"thinking": {"type": "disabled"}}, {"metadata": {"user_id": "u"}},
    {"max_tokens": None}, {"messages": 5}, {"messages": []}, {"messages": [{"role": "x", "content": "a"}]}, {"system": 5}, {"tools": 5}, {"tool_choice": {"type": "x"}}, {"stop_sequences": 5},
    {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, {"thinking": 5}, {"model": "x"},
]
TOKENIZE = [{"prompt": "Hello\n"}, {"prompt": "Hello", "add_special_tokens": False, "return_token_strs": True}, {"messages": USER}, {"messages": USER, "tools": [TOOL]}, {}, {"prompt": 5},
            {"prompt": "a", "messages": USER}, {"messages": 5}]
DETOKENIZE = [{"tokens": [510, 28]}, {"tokens": []}, {"tokens": [99999999]}, {"tokens": ["a"]}, {}, {"tokens": 5}]
BODIES = [b"", b"{", b"[]", b"5", b'{"a":1,}', b'{"model":"\xff"}', b'{"prompt":"a"} x', b"[" * 200, b'{"prompt":"a","prompt":"b"}', b'{"prompt":"\\ud800"}']
HEADS = [
    b"GET / HTTP/1.1\r\n\r\n", b"GET /health HTTP/1.1\r\nHost: t\r\n\r\n", b"GET /ready HTTP/1.1\r\nHost: t\r\n\r\n", b"HEAD /health HTTP/1.1\r\nHost: t\r\n\r\n",
    b"GET /version HTTP/1.1\r\nHost: t\r\n\r\n", b"GET /v1/models HTTP/1.1\r\nHost: t\r\n\r\n", b"GET /v1/models/%s HTTP/1.1\r\nHost: t\r\n\r\n" % MODEL_ID.encode(),
    b"GET /v1/models/x HTTP/1.1\r\nHost: t\r\n\r\n", b"GET /none HTTP/1.1\r\nHost: t\r\n\r\n", b"PUT /v1/completions HTTP/1.1\r\nHost: t\r\n\r\n", b"OPTIONS /v1/completions HTTP/1.1\r\nHost: t\r\n\r\n",
    b"GET /v1/completions HTTP/1.1\r\nHost: t\r\n\r\n", b"POST /health HTTP/1.1\r\nHost: t\r\nContent-Length: 0\r\n\r\n", b"GET /health HTTP/1.0\r\n\r\n", b"GET /health HTTP/2.0\r\nHost: t\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: t\r\nHost: t\r\n\r\n", b"GET /health HTTP/1.1\r\nHost: elsewhere\r\n\r\n", b"GET /health HTTP/1.1\nHost: t\n\n", b"GET /health HTTP/1.1\r\nHost: t\r\n x: y\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: t\r\nA : b\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}",
    b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: x\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 99999999999\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
    b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n{}",
    b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nExpect: x\r\nContent-Length: 2\r\n\r\n{}",
    b"GET /health HTTP/1.1\r\nHost: t\r\nOrigin: http://evil.example\r\n\r\n", b"GET /health?a=b HTTP/1.1\r\nHost: t\r\n\r\n", b"GET http://t/health HTTP/1.1\r\nHost: t\r\n\r\n",
    b"GET /he%61lth HTTP/1.1\r\nHost: t\r\n\r\n", b"GET /health HTTP/1.1\r\nHost: t\r\nX-Request-Id: abc-1\r\n\r\n", b"\r\nGET /health HTTP/1.1\r\nHost: t\r\n\r\n", b"\r\n\r\nGET /health HTTP/1.1\r\n\r\n",
]
ROUTES = [("/v1/completions", {"prompt": STORY, "max_tokens": 4, "temperature": 0}, COMPLETIONS, True), ("/v1/chat/completions", {"messages": USER, "max_tokens": 4, "temperature": 0}, CHATS, True),
          ("/v1/responses", {"input": "Name a city.", "max_output_tokens": 4, "temperature": 0}, RESPONSES, True),
          ("/v1/messages", {"messages": USER, "max_tokens": 4, "temperature": 0}, MESSAGES, True), ("/v1/messages/count_tokens", {"messages": USER}, MESSAGES[:4], False),
          ("/tokenize", {}, TOKENIZE, False), ("/detokenize", {}, DETOKENIZE, False), ("/v1/embeddings", {"input": "a"}, [{}], False)]
EMBEDDINGS = [{}, {"input": ["a", "b c"]}, {"input": [510, 28]}, {"input": [[510], [28]]}, {"encoding_format": "base64"}, {"dimensions": 3}, {"input": ""}, {"input": []}, {"input": 5}, {"dimensions": 0},
              {"dimensions": 99999}, {"encoding_format": "x"}, {"input": [[]]}, {"user": "u"}]

# ---- what is compared ----

TEXTS = {"content", "text", "delta", "reasoning_content", "arguments", "partial_json"}
LISTS = {"token_ids", "content", "tokens", "logprobs", "token_logprobs", "top_logprobs", "text_offset"}
CHANCE = [(re.compile(p), r) for p, r in [
    (r"\b(chatcmpl-|cmpl-|resp_|msg_|call_|fc_|rs_|toolu_|req_|embd-|tokn-)[0-9a-zA-Z]{9,}", r"\1ID"), (r'"id": ?"[0-9a-f]{32}"', '"id":"ID"'), (r"(?i)(date|x-request-id): (?!abc-1)[^\r\n]+", r"\1: ?"),
    (r'"(created|created_at|completed_at|started_at)":\d+(\.\d+)?', r'"\1":0'), (r"-?\d+\.\d{3,}(e[-+]?\d+)?", "#"), (r'"embedding":"[^"]+"', '"embedding":"#"'), (r"((?:retry-after|x-tandem-\w+-ms|x-ratelimit-(?:reset-\w+|remaining-tokens)): )\S+", r"\1#"),
    (r'"version":"[^"]+"', '"version":"?"'), (r"(?m)^(server|etag|content-security-policy): .*$", r"\1: ?"), (r"server: \?\s+date: \?\s+x-request-id: \?", "(usual)")]]


def merged(a, b):
    """Joins two events that carry parts of the same text; returns None if they cannot be joined."""
    if not isinstance(a, dict) or not isinstance(b, dict):
        return None
    out = {}
    for k in {**a, **b}:
        x, y = a.get(k), b.get(k)
        if k == "sequence_number":
            out[k] = 0
        elif x is None or y is None or x == {}:
            out[k] = y if x is None or x == {} else x
        elif k in TEXTS and isinstance(x, str) and isinstance(y, str) or k in LISTS and isinstance(x, list) and isinstance(y, list):
            out[k] = x + y
        elif isinstance(x, dict) and isinstance(y, dict) and merged(x, y):
            out[k] = merged(x, y)
        elif isinstance(x, list) and isinstance(y, list) and len(x) == len(y) == 1 and merged(x[0], y[0]):
            out[k] = [merged(x[0], y[0])]
        elif x != y:
            return None
        else:
            out[k] = x
    return out


def index_of(event):
    """Returns the index of the event's choice, or -1."""
    choices = event.get("choices") if isinstance(event, dict) else None
    return choices[0].get("index", -1) if choices else -1


def plain_stream(text):
    """Returns the events, with parts of the same text joined, choice by choice."""
    out = []
    for block in text.rstrip("\n").split("\n\n"):
        name, _, data = block.rpartition("data: ")
        try:
            event = json.loads(data)
        except ValueError:
            out.append([block, None])
            continue
        if isinstance(event, dict) and "sequence_number" in event:
            event["sequence_number"] = 0
        before = next((e for e in reversed(out) if index_of(e[1]) == index_of(event)), None)
        both = merged(before[1], event) if before and before[0] == name and before[1] else None
        if both:
            before[1] = both
        else:
            out.append([name, event])
    out.sort(key=lambda e: index_of(e[1]) if index_of(e[1]) >= 0 else 99)
    return "\n".join(name if event is None else name.replace("\n", " ") + json.dumps(event, separators=(",", ":")) for name, event in out)


def plain(text):
    for pattern, by in CHANCE:
        text = pattern.sub(by, text)
    return text.replace("\r\n", "\n").rstrip("\n")


def exchange(d, raw, half_close=True):
    """Sends these bytes and returns the whole response as text."""
    s = d.connect()
    s.sendall(raw)
    if half_close:
        s.shutdown(1)
    got = read_all(s)
    s.close()
    head, _, body = got.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" in head.lower():
        body = dechunk(body)
    text = body.decode("utf-8", "backslashreplace")
    if b"text/event-stream" in head.lower():
        text = plain_stream(text)
    return plain(head.decode("latin1") + "\n\n" + text)


def post(d, path, body, headers=""):
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return exchange(d, f"POST {path} HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nConnection: close\r\n{headers}Content-Length: {len(raw)}\r\n\r\n".encode() + raw, False)


def title(*what):
    return "==== " + " ".join(w if isinstance(w, str) else w.decode("latin1").replace("\r\n", "|") if isinstance(w, bytes) else json.dumps(w) for w in what)


def routes():
    with Daemon() as d:
        for path, base, changes, streams in ROUTES:
            for change in changes:
                body = {k: v for k, v in {"model": MODEL_ID, **base, **change}.items() if v is not None}
                for stream in (False, True) if streams else (False,):
                    yield title(path, change, "stream" if stream else "")
                    yield post(d, path, {**body, "stream": True} if stream else body)
        for body in BODIES:
            yield title("/v1/completions", body)
            yield post(d, "/v1/completions", body)
        for head in HEADS:
            yield title(head)
            yield exchange(d, head)
        d.until_idle()
        yield title("counters")  # except those that count probes, that depend on which request arrived first, or that count tokens generated past a stop
        yield "\n".join(line for line in d.get("/metrics").text.splitlines() if line.startswith("#") or not re.search(r"second|_time|bytes|cpu|fds|step|kv_cache|predicted|correction|slo|code=\"[25]xx\"|_hits_|prefill_tokens|decode_tokens|generation_tokens|pages{|connections{", line))


def embeddings():
    with Daemon("--pooling", "mean") as d:
        for change in EMBEDDINGS:
            yield title("/v1/embeddings", change)
            yield post(d, "/v1/embeddings", {"model": MODEL_ID, "input": "a", **change})
        yield title("/v1/completions")
        yield post(d, "/v1/completions", {"model": MODEL_ID, "prompt": "a"})


def endings():
    """Answers that the daemon's end cuts off: streams get an error event, other answers a status."""
    with Daemon("--drain-timeout-ms", 300) as d:
        waiting = []
        for path, base, _, streams in ROUTES:
            for stream in (False, True) if streams else ():
                body = {"model": MODEL_ID, **base, "ignore_eos": True, "min_tokens": 1500, "max_output_tokens" if "responses" in path else "max_tokens": 1500}
                s = d.connect()
                d.send_request(s, path, {**body, "stream": stream})
                waiting.append((path, stream, s, read_until(s, b"data: ") if stream else b""))
        d.eventually(lambda: d.gauge("vllm:num_requests_running") == len(waiting), what="all to run")
        d.process.terminate()
        for path, stream, s, begun in waiting:
            head, _, body = (begun + read_all(s)).partition(b"\r\n\r\n")
            s.close()
            blocks = dechunk(body).decode().split("\n\n") if stream else [body.decode()]
            yield title("the end", path, "stream" if stream else "")
            yield re.sub(r'"sequence_number":\d+', '"sequence_number":0', plain(head.decode() + "\n\n" + "\n".join(b for b in blocks if "error" in b or "DONE" in b)))


LOGGED = re.compile(r"request id=\S+ ")


def keys():
    """Keys and their limits, a proxy in front, and the log line of each request."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "keys"
        path.write_text("k1 name=alice\nk2 name=bob requests_per_minute=2 tokens_per_minute=400\n")
        with Daemon("--api-key-file", path, "--trusted-proxies", "127.0.0.1", "--strict-fields", "1", api_key="k1") as d:
            body = {"model": MODEL_ID, "prompt": STORY, "max_tokens": 2, "temperature": 0}
            for headers in ["", "Authorization: Bearer k0\r\n", "Authorization: Basic k1\r\n", "Authorization: Bearer k1\r\n", "x-api-key: k1\r\n", "authorization:bearer  k1\r\n",
                            "Authorization: Bearer k1\r\nX-Forwarded-For: 10.0.0.9\r\n", "Authorization: Bearer k1\r\nX-Forwarded-For: 1.2.3.4, 127.0.0.1\r\n",
                            "Authorization: Bearer k1\r\nX-Forwarded-For: rubbish\r\n", "Authorization: Bearer k1\r\nX-Forwarded-For: [::1]:80\r\n",
                            "Authorization: Bearer k1\r\nX-Forwarded-For: 5.6.7.8 , , 127.0.0.1\r\n", *["Authorization: Bearer k2\r\n"] * 3]:
                yield title(headers.encode())
                yield post(d, "/v1/completions", body, headers)
            for change in [{"user": "u"}, {"unheard_of": 1}, {"n": 99}, {"max_tokens": 3, "stream": True}]:
                yield title(change)
                yield post(d, "/v1/completions", {**body, **change}, "Authorization: Bearer k1\r\n")
            yield title("counters of keys")
            text = d.get("/metrics", headers={"authorization": "Bearer k1"}).text
            yield "\n".join(line for line in text.splitlines() if 'key="' in line and not re.search("second|_time", line))
            d.stop()
            yield title("the end")
            yield next(line.split(" ", 2)[2] for line in d.log().splitlines() if "SIGTERM" in line)
            yield title("log")
            lines = [line.split(" ", 2)[2] for line in d.log().splitlines() if LOGGED.search(line) and "path=/ready" not in line]
            yield "\n".join(re.sub(r"(\w*_ms|id|port)=\S+", r"\1=?", line) for line in lines)


def everything():
    for source in (routes, embeddings, endings, keys):
        yield from source()


def test_conversations():
    want = GOLDEN.read_text(encoding="utf-8").split("\n\x1e\n")
    what = ""
    for n, (is_, should) in enumerate(itertools.zip_longest(everything(), want), 1):  # stop at the first difference
        what = is_ if n % 2 else what
        assert (what, is_) == (what, should)


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: test_conversations.py --write")
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text("\n\x1e\n".join(everything()), encoding="utf-8")
