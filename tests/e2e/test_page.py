"""GET /: the page's headers and what they allow a browser to do. tests/browser tests the page in a browser."""
import base64
import hashlib
import re

import pytest
from harness import Daemon


@pytest.mark.share
def test_headers_and_revalidation(daemon):
    r = daemon.get("/")
    assert r.status_code == 200 and r.headers["content-type"] == "text/html; charset=utf-8"
    assert r.headers["cache-control"] == "no-cache" and r.headers["x-content-type-options"] == "nosniff"
    tag = r.headers["etag"]
    assert re.fullmatch(r'"[0-9a-f]{32}"', tag) and hashlib.sha256(r.content).hexdigest().startswith(tag.strip('"'))
    for value in (tag, f'"other", W/{tag}', "*"):
        again = daemon.get("/", headers={"if-none-match": value})
        assert again.status_code == 304 and again.content == b"" and again.headers["etag"] == tag, value
        assert "content-length" not in again.headers and "content-type" not in again.headers
    for value in ('"other"', tag[:-2] + '"', tag.strip('"'), ""):
        assert daemon.get("/", headers={"if-none-match": value}).status_code == 200, value
    with daemon.connect() as s:  # after a 304 the connection stays open
        for _ in range(2):
            s.sendall(f"GET / HTTP/1.1\r\nHost: t\r\nIf-None-Match: {tag}\r\n\r\n".encode())
            answer = s.recv(65536)
            assert answer.startswith(b"HTTP/1.1 304 Not Modified\r\n") and answer.endswith(b"\r\n\r\n")


def test_methods(daemon):
    head = daemon.raw("HEAD", "/")
    assert head.status_code == 200 and head.content == b"" and head.headers["content-length"] == str(len(daemon.get("/").content))
    assert daemon.post("/", {}).status_code == 405
    assert daemon.raw("OPTIONS", "/").headers["allow"] == "GET, HEAD, OPTIONS"
    assert daemon.get("/?a=b").status_code == 200
    for path in ("//", "/index.html", "/page.html", "/%2e", "/%2e%2e/"):
        assert daemon.get(path).status_code == 404, path


def test_policy_allows_the_page_and_nothing_else(daemon):
    r = daemon.get("/")
    policy = {p.split()[0]: p.split()[1:] for p in r.headers["content-security-policy"].split("; ")}
    for tag, directive in (("style", "style-src"), ("script", "script-src")):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", r.text, re.S)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert policy[directive] == [f"'sha256-{digest}'"]
    assert policy["default-src"] == policy["base-uri"] == policy["form-action"] == policy["frame-ancestors"] == ["'none'"]
    assert policy["connect-src"] == ["'self'"] and policy["img-src"] == ["data:"]


def test_small_and_from_one_place(daemon):
    page = daemon.get("/").content
    assert len(page) < 40000 and page.isascii()
    urls = set(re.findall(rb"https?://[^\s'\"]+", page))
    assert urls == {b"http://www.w3.org/2000/svg"}, urls  # a namespace name, never fetched
    for word in (b"innerHTML =", b"outerHTML", b"insertAdjacentHTML", b"document.write", b"eval(", b"onclick=\"", b"style=\"", b"@import", b"src="):
        assert word not in page, word


def test_needs_no_key_but_what_it_shows_does(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("sk-one\n")
    with Daemon("--api-key-file", keys) as d:
        page = d.get("/")
        assert page.status_code == 200 and "sk-one" not in page.text
        assert d.get("/v1/steps").status_code == 401 and d.get("/v1/models").status_code == 401
