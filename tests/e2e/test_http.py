"""Raw bytes on the wire: malformed HTTP, framing that two parsers could read differently, limits, keep-alive, keys."""
import json
import re
import socket
import time

import pytest
from harness import MODEL_ID, SLOWNESS, Daemon, read_all, read_until, status_of

BODY = json.dumps({"model": MODEL_ID, "prompt": "Hi", "max_tokens": 1}).encode()
POST = b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
LEN = b"Content-Length: %d\r\n" % len(BODY)


def chunked(body=BODY):
    return b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)


# name: (bytes, allowed statuses)
MALFORMED = {
    "garbage": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", {400}),
    "empty lines": (b"\r\n\r\n\r\n\r\n", {400}),
    "no version": (b"GET /health\r\n\r\n", {400}),
    "http/2 preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {400, 405}),
    "version 2.0": (b"GET /health HTTP/2.0\r\nHost: t\r\n\r\n", {400}),
    "version 1.2": (b"GET /health HTTP/1.2\r\nHost: t\r\n\r\n", {400}),
    "version text": (b"GET /health HTTPS/1.1\r\nHost: t\r\n\r\n", {400}),
    "lower method": (b"get /health HTTP/1.1\r\nHost: t\r\n\r\n", {400, 405}),
    "rtsp method": (b"DESCRIBE /health HTTP/1.1\r\nHost: t\r\n\r\n", {400, 405}),
    "connect": (b"CONNECT t:80 HTTP/1.1\r\nHost: t\r\n\r\n", {400, 405}),
    "trace": (b"TRACE /health HTTP/1.1\r\nHost: t\r\n\r\n", {405}),
    "no host": (b"GET /health HTTP/1.1\r\n\r\n", {400}),
    "two hosts": (b"GET /health HTTP/1.1\r\nHost: t\r\nHost: t\r\n\r\n", {400}),
    "empty host": (b"GET /health HTTP/1.1\r\nHost:\r\n\r\n", {400}),
    "bad host": (b"GET /health HTTP/1.1\r\nHost: a b\r\n\r\n", {400}),
    "bare lf": (b"GET /health HTTP/1.1\nHost: t\n\n", {400}),
    "bare cr": (b"GET /health HTTP/1.1\r\nHost: t\rX: y\r\n\r\n", {400}),
    "space before colon": (b"GET /health HTTP/1.1\r\nHost : t\r\n\r\n", {400}),
    "empty name": (b"GET /health HTTP/1.1\r\nHost: t\r\n: x\r\n\r\n", {400}),
    "folded header": (b"GET /health HTTP/1.1\r\nHost: t\r\nX: a\r\n b\r\n\r\n", {400}),
    "leading space": (b"GET /health HTTP/1.1\r\n Host: t\r\n\r\n", {400}),
    "nul in value": (b"GET /health HTTP/1.1\r\nHost: t\r\nX: a\0b\r\n\r\n", {400}),
    "control in name": (b"GET /health HTTP/1.1\r\nHost: t\r\nX\x01: a\r\n\r\n", {400}),
    "space in target": (b"GET /hea lth HTTP/1.1\r\nHost: t\r\n\r\n", {400}),
    "control in target": (b"GET /health\x01 HTTP/1.1\r\nHost: t\r\n\r\n", {400}),
    "high byte in target": (b"GET /health\xff HTTP/1.1\r\nHost: t\r\n\r\n", {400}),
    "relative target": (b"GET health HTTP/1.1\r\nHost: t\r\n\r\n", {400}),
    "host mismatch": (b"GET http://a/health HTTP/1.1\r\nHost: b\r\n\r\n", {400}),
    "te and cl": (POST + LEN + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(), {400}),
    "cl and te": (POST + b"Transfer-Encoding: chunked\r\n" + LEN + b"\r\n" + chunked(), {400}),
    "two lengths": (POST + LEN + b"Content-Length: 5\r\n\r\n" + BODY, {400}),
    "same length twice": (POST + LEN + LEN + b"\r\n" + BODY, {400}),
    "length list": (POST + b"Content-Length: 5, 5\r\n\r\n" + BODY, {400}),
    "length plus": (POST + b"Content-Length: +5\r\n\r\n" + BODY, {400}),
    "length minus": (POST + b"Content-Length: -5\r\n\r\n" + BODY, {400}),
    "length hex": (POST + b"Content-Length: 0x5\r\n\r\n" + BODY, {400}),
    "length empty": (POST + b"Content-Length:\r\n\r\n" + BODY, {400}),
    "length 2^63-1": (POST + b"Content-Length: 9223372036854775807\r\n\r\n", {400, 413}),
    "length 2^64+5": (POST + b"Content-Length: 18446744073709551621\r\n\r\n", {400, 413}),
    "length 9 MiB": (POST + b"Content-Length: 9437184\r\n\r\n", {413}),
    "te identity": (POST + b"Transfer-Encoding: identity\r\n\r\n" + BODY, {400}),
    "te gzip": (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + chunked(), {400}),
    "te twice": (POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(), {400}),
    "te spelled oddly": (POST + b"Transfer-Encoding: xchunked\r\n\r\n" + chunked(), {400}),
    "te with vt": (POST + b"Transfer-Encoding:\x0bchunked\r\n\r\n" + chunked(), {400}),
    "te on 1.0": (POST.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(), {400}),
    "chunk no crlf": (POST + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello5\r\nworld\r\n0\r\n\r\n", {400}),
    "chunk size text": (POST + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n\r\n", {400}),
    "chunk size minus": (POST + b"Transfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n", {400}),
    "chunk size 0x": (POST + b"Transfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n", {400}),
    "chunk size space": (POST + b"Transfer-Encoding: chunked\r\n\r\n5 \r\nhello\r\n0\r\n\r\n", {400}),
    "chunk size 2^64": (POST + b"Transfer-Encoding: chunked\r\n\r\n10000000000000005\r\nhello\r\n0\r\n\r\n", {413}),
    "chunk size 2^64-1": (POST + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n", {413}),
    "chunk size 9 MiB": (POST + b"Transfer-Encoding: chunked\r\n\r\n900000\r\n", {413}),
    "chunk bare lf": (POST + b"Transfer-Encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n", {400}),
    "chunk end bare lf": (POST + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\n0\r\n\r\n", {400}),
    "length in trailers": (POST + b"Transfer-Encoding: chunked\r\n\r\n" + chunked()[:-2] + b"Content-Length: 5\r\n\r\n", {400}),
    "bad expectation": (POST + LEN + b"Expect: 200-ok\r\n\r\n" + BODY, {417}),
    "two types": (POST + b"Content-Type: text/plain\r\n" + LEN + b"\r\n" + BODY, {400}),
    "long line": (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: t\r\n\r\n", {414}),
    "long header": (b"GET /health HTTP/1.1\r\nHost: t\r\nX: " + b"a" * 9000 + b"\r\n\r\n", {431}),
    "many headers": (b"GET /health HTTP/1.1\r\nHost: t\r\n" + b"X: y\r\n" * 70 + b"\r\n", {431}),
    "large head": (b"GET /health HTTP/1.1\r\nHost: t\r\n" + (b"X: " + b"a" * 4000 + b"\r\n") * 10 + b"\r\n", {431}),
    "endless line": (b"GET /" + b"a" * 60000, {414}),
}


@pytest.mark.share
@pytest.mark.parametrize("name", MALFORMED)
def test_malformed(daemon, name):
    """The right status, as JSON. Then the connection is closed, so that later bytes cannot be read as a request."""
    raw, statuses = MALFORMED[name]
    with daemon.connect() as s:
        try:
            s.sendall(raw + b"GET /health HTTP/1.1\r\nHost: smuggled\r\n\r\n")
        except (BrokenPipeError, ConnectionResetError):
            pass
        answer = read_all(s)
    assert len(re.findall(rb"HTTP/1\.1 \d{3} ", answer)) == 1, answer[:2000]
    assert status_of(answer) in statuses, answer[:300]
    head, body = answer.split(b"\r\n\r\n", 1)
    assert b"connection: close" in head.lower() and json.loads(body)["error"]["message"]


@pytest.mark.share
def test_wellformed_oddities(daemon):
    for raw in (b"\r\nGET /health HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n",
                b"GET http://t/health HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n",
                b"GET /health?x=1 HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n",
                b"GET /health HTTP/1.0\r\n\r\n",
                POST + LEN.replace(b": ", b":\t").replace(b"\r", b"\t\r") + b"Connection:\tclose\t\r\n\r\n" + BODY,
                POST + b"Transfer-Encoding:\tchunked\t\r\nConnection: close\r\n\r\n" + chunked(),
                b"GET /health HTTP/1.1\r\nhOsT:   t  \r\nConnection: close\r\n\r\n"):
        with daemon.connect() as s:
            s.sendall(raw)
            assert status_of(read_all(s)) == 200, raw


def test_byte_by_byte_and_chunked(daemon):
    raw = POST + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    raw += b"".join(b"%x;ext=1\r\n%s\r\n" % (len(p), p) for p in (BODY[:7], BODY[7:8], BODY[8:])) + b"0\r\nX-Trailer: y\r\n\r\n"
    with daemon.connect() as s:
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for i in range(len(raw)):
            s.sendall(raw[i:i + 1])
        assert status_of(read_all(s)) == 200


def test_pipelined_requests_are_answered_in_order(daemon):
    with daemon.connect() as s:
        s.sendall(POST + LEN + b"\r\n" + BODY + b"GET /v1/models HTTP/1.1\r\nHost: t\r\n\r\n" +
                  b"GET /health HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n")
        answer = read_all(s)
    assert answer.count(b"HTTP/1.1 200 ") == 3
    assert answer.index(b"text_completion") < answer.index(b'"list"')


def test_keep_alive_after_a_refused_request(daemon):
    bad = b'{"model": 5}'
    with daemon.connect() as s:
        for _ in range(3):
            s.sendall(POST + b"Content-Length: %d\r\n\r\n" % len(bad) + bad)
            assert status_of(read_until(s, b"}}")) == 400


def test_expect_continue(daemon):
    with daemon.connect() as s:
        s.sendall(POST + LEN + b"Expect: 100-continue\r\nConnection: close\r\n\r\n")
        assert read_until(s, b"\r\n\r\n").startswith(b"HTTP/1.1 100 ")
        s.sendall(BODY)
        assert status_of(read_all(s)) == 200


def test_head_has_no_body(daemon):
    with daemon.connect() as s:
        s.sendall(b"HEAD /health HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n")
        answer = read_all(s)
    assert status_of(answer) == 200 and answer.endswith(b"\r\n\r\n") and answer.count(b"\r\n\r\n") == 1


def test_request_id(daemon):
    mine = daemon.get("/health", headers={"x-request-id": "abc-123"})
    assert mine.headers["x-request-id"] == "abc-123"
    made = {daemon.get("/health").headers["x-request-id"] for _ in range(3)}
    assert len(made) == 3
    long = daemon.get("/health", headers={"x-request-id": "a" * 500})
    assert long.status_code == 200 and len(long.headers["x-request-id"]) <= 128


def test_slow_header_and_slow_body_are_cut():
    with Daemon("--http-header-timeout-ms", 500, "--http-body-grace-ms", 500, "--http-body-min-rate", 100000,
                "--http-idle-timeout-ms", 700) as d:
        for raw in (b"GET /hea", POST + LEN + b"\r\n" + BODY[:4], b""):
            with d.connect() as s:
                begin = time.monotonic()
                s.sendall(raw)
                answer = read_all(s)
                assert time.monotonic() - begin < 5 * SLOWNESS, raw
                assert status_of(answer) in ((408,) if raw else (None, 408)), (raw, answer)
        assert d.get("/health").status_code == 200


def test_connections_are_bounded():
    with Daemon("--connections", 20, "--connections-per-ip", 20, "--http-idle-timeout-ms", 60000) as d:
        held = [d.connect() for _ in range(20)]
        time.sleep(0.3)
        with d.connect() as one_more:
            one_more.sendall(b"GET /health HTTP/1.1\r\nHost: t\r\n\r\n")
            assert status_of(read_all(one_more)) in (None, 503, 429)
        for s in held:
            s.close()
        d.eventually(lambda: d.get("/health").status_code == 200)
        assert "open files" not in d.log(), "there are enough descriptors for 20"


# ---- keys ----

def test_api_keys(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("# comment\nsk-one\n\nsk-two\n")
    with Daemon("--api-key-file", keys) as d:
        for path in ("/health", "/ready"):
            assert d.get(path).status_code == 200, "health and readiness need no key"
        for path in ("/v1/models", "/metrics"):
            assert d.get(path).status_code == 401
        body = {"model": MODEL_ID, "prompt": "Hi", "max_tokens": 1}
        for auth in (None, "Bearer", "Bearer x", "Bearer sk-on", "Bearer sk-onee", "Basic sk-one", "sk-one", "Bearer # comment"):
            r = d.post("/v1/completions", body, headers={"authorization": auth} if auth is not None else {})
            assert r.status_code == 401 and r.json()["error"]["code"] == "invalid_api_key", auth
            assert r.headers["www-authenticate"] == "Bearer"
            says = "this API key is not valid" if auth and auth.startswith("Bearer ") else "an API key is needed: 'Authorization: Bearer KEY'"
            assert says in r.json()["error"]["message"], auth
        for key in ("sk-one", "sk-two"):
            assert d.post("/v1/completions", body, headers={"authorization": f"Bearer {key}"}).status_code == 200
            assert d.client(api_key=key).models.list().data[0].id == MODEL_ID


def test_keys_do_not_share_prefixes(tmp_path):
    """One key's prompts have no effect on another's: neither on cached_tokens nor, therefore, on timing."""
    keys = tmp_path / "keys"
    keys.write_text("a\nb\n")
    body = {"model": MODEL_ID, "prompt": [900 + i % 50 for i in range(200)], "max_tokens": 2, "temperature": 0}
    with Daemon("--api-key-file", keys) as d:
        def cached(key):
            r = d.post("/v1/completions", body, headers={"authorization": f"Bearer {key}"})
            return r.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached("a") == 0 and cached("a") > 0 and cached("b") == 0 and cached("b") > 0
