"""The event stream, byte for byte: role chunk, deltas, finish chunk, usage chunk, [DONE], pings, headers."""
import time

import pytest
from harness import MODEL_ID, SLOWNESS, Daemon, read_until, sse_events

CHAT = {"model": MODEL_ID, "messages": [{"role": "user", "content": "Count from one to five."}], "temperature": 0, "max_tokens": 24,
        "stream": True}
TEXT = {"model": MODEL_ID, "prompt": "One, two, three,", "temperature": 0, "max_tokens": 12, "stream": True}


@pytest.mark.share
def test_chat_stream_shape(daemon):
    r = daemon.post("/v1/chat/completions", {**CHAT, "stream_options": {"include_usage": True}})
    assert r.headers["content-type"].startswith("text/event-stream") and r.headers["cache-control"] == "no-cache"
    events = sse_events(r.text)
    for e in events:
        assert {"id", "object", "created", "model", "choices"} <= set(e) and e["object"] == "chat.completion.chunk"
        assert (e["id"], e["created"], e["model"]) == (events[0]["id"], events[0]["created"], MODEL_ID)
    first, last, usage = events[0]["choices"][0], events[-2]["choices"][0], events[-1]
    assert first["delta"]["role"] == "assistant" and first["finish_reason"] is None and first["index"] == 0
    assert all("role" not in e["choices"][0]["delta"] for e in events[1:-1])
    assert last["finish_reason"] in ("stop", "length")
    assert all(e["choices"][0]["finish_reason"] is None for e in events[:-2])
    assert usage["choices"] == [] and set(usage["usage"]) >= {"prompt_tokens", "completion_tokens", "total_tokens"}
    assert all(e.get("usage") is None for e in events[:-1])
    assert all(isinstance(e["choices"][0]["delta"].get("content", ""), str) for e in events[:-1])


@pytest.mark.share
def test_completion_stream_shape(daemon):
    events = sse_events(daemon.post("/v1/completions", TEXT).text)
    for e in events:
        assert e["object"] == "text_completion" and len(e["choices"]) == 1 and isinstance(e["choices"][0]["text"], str)
    assert [e["choices"][0]["finish_reason"] for e in events][-1] == "length"
    assert all("usage" not in e or e["usage"] is None for e in events), "no usage unless asked"


def test_chat_stream_tells_every_token_id(daemon):
    """Most tokens arrive alone: one token per event."""
    body = {**CHAT, "return_token_ids": True}
    whole = daemon.post("/v1/chat/completions", {**body, "stream": False}).json()["choices"][0]["token_ids"]
    events = sse_events(daemon.post("/v1/chat/completions", body).text)
    assert sum((e["choices"][0].get("token_ids") or [] for e in events), []) == whole and len(whole) == 24


def test_stream_of_a_stopped_answer_ends_once(daemon):
    whole = "".join(e["choices"][0]["text"] for e in sse_events(daemon.post("/v1/completions", TEXT).text))
    events = sse_events(daemon.post("/v1/completions", {**TEXT, "stop": whole[6:10]}).text)
    assert "".join(e["choices"][0]["text"] for e in events) == whole[:whole.index(whole[6:10])]
    assert [e["choices"][0]["finish_reason"] for e in events if e["choices"][0]["finish_reason"]] == ["stop"]


def test_error_before_the_stream_is_plain(daemon):
    r = daemon.post("/v1/chat/completions", {**CHAT, "temperature": 7})
    assert r.status_code == 400 and r.headers["content-type"].startswith("application/json")


def test_keep_alive_after_a_stream(daemon):
    with daemon.connect() as s:
        for _ in range(2):
            daemon.send_request(s, "/v1/completions", TEXT)
            raw = read_until(s, b"data: [DONE]\n\n")
            raw += b"" if raw.endswith(b"0\r\n\r\n") else read_until(s, b"0\r\n\r\n")
            assert b"transfer-encoding: chunked" in raw.lower()


def test_http_1_0_stream_ends_with_the_connection(daemon):
    import json
    body = json.dumps(TEXT).encode()
    with daemon.connect() as s:
        s.sendall(b"POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        raw = b""
        while chunk := s.recv(65536):
            raw += chunk
    head, text = raw.split(b"\r\n\r\n", 1)
    assert b"chunked" not in head.lower() and len(sse_events(text.decode())) > 3


def test_timing_headers(daemon):
    r = daemon.post("/v1/completions", {**TEXT, "stream": False})
    timing = {k: v for k, v in r.headers.items() if "ms" in k or "cached" in k}
    assert len(timing) >= 4, dict(r.headers)
    assert all(float(v) >= 0 for v in timing.values())


def test_pings_during_a_long_prefill():
    """While nothing else is sent, a comment keeps the connection alive; clients do not see it."""
    with Daemon("--sse-ping-ms", 100, "--step-tokens", 64) as d:
        prompt = [300 + i % 1000 for i in range(2500)]
        body = {"model": MODEL_ID, "prompt": prompt, "max_tokens": 2, "temperature": 0, "stream": True}
        begin = time.monotonic()
        r = d.post("/v1/completions", body)
        assert r.text.index("\n:") < r.text.index("data: ") if not r.text.startswith(":") else True
        pings = sum(line.startswith(":") for line in r.text.split("\n"))
        took = time.monotonic() - begin
        assert 2 <= pings <= took / 0.1 + 2, (pings, took)
        assert len(sse_events(r.text)) >= 2
        assert len(list(d.client().completions.create(**body))) >= 2


def test_first_token_comes_before_the_last(daemon):
    """Text is sent as it is produced: the first chunk arrives while most of the answer is not produced yet."""
    with daemon.connect(timeout=60) as s:
        begin = time.monotonic()
        daemon.send_request(s, "/v1/completions", {**TEXT, "max_tokens": 120, "ignore_eos": True})
        read_until(s, b"data: ")
        first = time.monotonic() - begin
        read_until(s, b"[DONE]")
        whole = time.monotonic() - begin
    assert first < whole / 2 + 0.05 * SLOWNESS, (first, whole)


def test_chat_stream_tells_the_answers_log_probabilities(daemon):
    body = {"model": MODEL_ID, "messages": [{"role": "user", "content": "Name a river."}], "max_tokens": 8, "temperature": 0, "logprobs": True, "top_logprobs": 2}
    want = daemon.post("/v1/chat/completions", body).json()["choices"][0]["logprobs"]["content"]
    events = sse_events(daemon.post("/v1/chat/completions", {**body, "stream": True}).text)
    assert all("logprobs" in c for e in events for c in e["choices"])
    got = [t for e in events for c in e["choices"] for t in (c["logprobs"] or {"content": []})["content"]]
    assert len(want) == 8 and got == want
