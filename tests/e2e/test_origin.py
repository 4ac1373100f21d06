"""Which hosts and web pages may use the daemon: Content-Type, Host, Origin, CORS, with and without keys, over TCP and a unix socket."""
import json
import socket

import httpx
import pytest
from harness import MODEL_ID, SLOWNESS, Daemon, read_all, status_of

BODY = {"model": MODEL_ID, "prompt": "Hi", "max_tokens": 16, "ignore_eos": True}
RAW = json.dumps(BODY).encode()
EVIL = "https://evil.example"


@pytest.fixture(scope="module")
def plain():
    """A daemon with the defaults: no keys, no allowed hosts, no CORS origins."""
    with Daemon("--allowed-hosts", "") as d:
        yield d


def refused(r, status, code):
    assert r.status_code == status, r.text
    e = r.json()["error"]
    assert e["code"] == code and e["type"] and e["message"], e
    return e["message"]


def generated(d):
    return d.gauge("vllm:generation_tokens_total")


@pytest.mark.share
def test_a_web_page_makes_no_tokens(plain):
    """Requests that a page of another origin can send without a preflight: no Content-Type, or that of a form."""
    before = generated(plain)
    headers = {"origin": EVIL, "sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
    refused(plain.raw("POST", "/v1/completions", content=RAW, headers=headers), 403, "origin_not_allowed")
    refused(plain.raw("POST", "/v1/completions", content=RAW, headers={**headers, "content-type": "text/plain"}), 403, "origin_not_allowed")
    refused(plain.post("/v1/completions", BODY, headers=headers), 403, "origin_not_allowed")
    refused(plain.post("/v1/completions", BODY, headers={"origin": "null"}), 403, "origin_not_allowed")
    refused(plain.post("/v1/completions", BODY, headers={"host": "evil.example", "origin": "http://evil.example"}), 403, "host_not_allowed")
    preflight = plain.raw("OPTIONS", "/v1/completions", headers={"origin": EVIL, "access-control-request-method": "POST"})
    refused(preflight, 403, "origin_not_allowed")
    assert not [h for h in preflight.headers if h.startswith("access-control")]
    refused(plain.get("/v1/steps", headers={"origin": EVIL}), 403, "origin_not_allowed")
    plain.until_idle()
    assert generated(plain) == before


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"])
def test_a_post_names_its_type(plain, path):
    message = refused(plain.raw("POST", path, content=RAW), 415, "unsupported_content_type")
    assert "application/json" in message
    refused(plain.raw("POST", path), 415, "unsupported_content_type")


def test_hosts(plain):
    port = plain.port
    for host in (f"127.0.0.1:{port}", "127.0.0.1", "10.0.0.1", f"[::1]:{port}", "localhost", f"LOCALHOST:{port}", "a.localhost"):
        assert plain.post("/v1/completions", BODY, headers={"host": host}).status_code == 200, host
    for host in ("t", "evil.example", f"evil.example:{port}", "127.0.0.1.evil.example"):
        for method, path in (("GET", "/"), ("GET", "/v1/models"), ("GET", "/metrics"), ("GET", "/nothing"), ("OPTIONS", "/v1/models"), ("POST", "/tokenize")):
            message = refused(plain.raw(method, path, headers={"host": host}), 403, "host_not_allowed")
            assert f"'{host}'" in message and "--allowed-hosts" in message
        for path in ("/health", "/ready"):  # an orchestrator may use any host name
            assert plain.get(path, headers={"host": host, "origin": EVIL}).status_code == 200
    with plain.connect() as s:  # HTTP/1.0 needs no Host
        s.sendall(b"GET /v1/models HTTP/1.0\r\n\r\n")
        assert status_of(read_all(s)) == 200


def test_our_own_page(plain):
    """The request that a browser sends from the page at /."""
    for host in (f"127.0.0.1:{plain.port}", f"localhost:{plain.port}"):
        r = plain.post("/v1/completions", BODY, headers={"host": host, "origin": f"http://{host}", "sec-fetch-site": "same-origin"})
        assert r.status_code == 200 and not [h for h in r.headers if h.startswith("access-control")] and "vary" not in r.headers


def test_the_refusal_comes_when_the_body_has_passed(plain):
    """And the connection stays usable, as after every early refusal."""
    with httpx.Client(base_url=plain.url, timeout=60 * SLOWNESS) as c:
        for _ in range(2):
            r = c.post("/v1/completions", content=json.dumps({**BODY, "prompt": "x" * 300000}), headers={"host": "evil.example"})
            refused(r, 403, "host_not_allowed")
        assert c.get("/v1/models").status_code == 200


@pytest.mark.share
def test_cors():
    chat = "https://chat.example.com"
    with Daemon("--allowed-hosts", "gpu", "--cors-origin", f"{chat}, http://localhost:3000") as d:
        assert d.post("/v1/completions", BODY, headers={"host": "gpu:8080"}).status_code == 200
        for origin in (chat, "http://localhost:3000"):
            ask = {"origin": origin, "access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}
            r = d.raw("OPTIONS", "/v1/chat/completions", headers=ask)
            assert r.status_code == 204 and r.headers["access-control-allow-origin"] == origin and r.headers["vary"] == "origin"
            assert "POST" in r.headers["access-control-allow-methods"].split(", ")
            assert {"authorization", "content-type", "x-api-key", "x-request-id"} <= set(r.headers["access-control-allow-headers"].split(", "))
            assert int(r.headers["access-control-max-age"]) > 0
            for stream in (False, True):
                r = d.post("/v1/completions", {**BODY, "stream": stream}, headers={"origin": origin})
                assert r.status_code == 200 and r.headers["access-control-allow-origin"] == origin
                assert r.headers["access-control-expose-headers"] == "*"
            r = d.post("/v1/completions", {**BODY, "max_tokens": -2}, headers={"origin": origin})
            assert r.status_code == 400 and r.headers["access-control-allow-origin"] == origin, "a page may read what was wrong"
        refused(d.post("/v1/completions", BODY, headers={"origin": EVIL}), 403, "origin_not_allowed")
        refused(d.post("/v1/completions", BODY, headers={"origin": "null"}), 403, "origin_not_allowed")
        assert d.get("/v1/models").headers["vary"] == "origin"
        with d.connect() as s:
            s.sendall(f"GET /v1/models HTTP/1.1\r\nHost: gpu\r\nOrigin: {chat}\r\nOrigin: {chat}\r\n\r\n".encode())
            assert status_of(read_all(s)) == 400


def test_with_keys_the_key_decides(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("sk-one\n")
    with Daemon("--api-key-file", keys, "--cors-origin", "https://chat.example.com", "--allowed-hosts", "") as d:
        auth = {"authorization": "Bearer sk-one"}
        assert d.post("/v1/completions", BODY, headers={**auth, "host": "any.example", "origin": EVIL}).status_code == 200
        assert d.post("/v1/completions", BODY, headers={"origin": EVIL}).status_code == 401
        for origin, allowed in (("https://chat.example.com", "https://chat.example.com"), (EVIL, None)):
            preflight = d.raw("OPTIONS", "/v1/completions", headers={"origin": origin, "access-control-request-method": "POST"})
            assert preflight.status_code == 204 and preflight.headers.get("access-control-allow-origin") == allowed
            assert d.get("/v1/models", headers={"origin": origin}).headers.get("access-control-allow-origin") == allowed, "a 401 too"


def test_unix_socket(tmp_path):
    """The same rules hold, because a proxy that browsers can reach may be in front of the socket."""
    path = tmp_path / "s"
    with Daemon("--listen", f"unix:{path}", "--allowed-hosts", "", wait=False) as d:
        d.eventually(path.exists, 60)
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://localhost", timeout=60 * SLOWNESS) as c:
            d.eventually(lambda: c.get("/ready").status_code == 200, 60)
            assert c.post("/v1/completions", json=BODY).status_code == 200
            refused(c.post("/v1/completions", json=BODY, headers={"host": "evil.example"}), 403, "host_not_allowed")
            refused(c.post("/v1/completions", json=BODY, headers={"origin": EVIL}), 403, "origin_not_allowed")
            assert c.post("/v1/completions", json=BODY, headers={"origin": "http://localhost"}).status_code == 200
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(str(path))
            s.sendall(b"GET /v1/models HTTP/1.0\r\n\r\n")
            assert status_of(read_all(s)) == 200
