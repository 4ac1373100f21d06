"""Keys, or addresses if there are no keys, share: no request is refused or delayed because of what another client holds."""
import contextlib
import json
import random
import signal
import socket
import threading

import httpx
import pytest
from harness import MODEL_ID, SLOWNESS, Daemon, parse_metrics, read_until, status_of

LONG = {"model": MODEL_ID, "prompt": "Tell me a story.", "max_tokens": 4000, "ignore_eos": True, "stream": True}
SHORT = {"model": MODEL_ID, "prompt": "Hi", "max_tokens": 4, "temperature": 0}
HOG, OTHER = "Authorization: Bearer key-of-hog\r\n", {"authorization": "Bearer key-of-other"}


@pytest.fixture
def two_keys(tmp_path):
    path = tmp_path / "keys"
    path.write_text("key-of-hog\nkey-of-other\n")
    return "--api-key-file", path


def gauge(d, name):
    r = d.get("/metrics", headers=OTHER)
    return sum(v for (n, _), v in parse_metrics(r.text).items() if n == name)


def ask(d, s, body, headers=HOG):
    d.send_request(s, "/v1/completions", body, headers=headers)


def read_status(s):
    return status_of(read_until(s, b"\r\n\r\n"))


@pytest.mark.hand_over
def test_a_place_is_kept_for_another_key(two_keys):
    with Daemon(*two_keys, "--running-requests", 8) as d, d.connect(120) as hog:
        ask(d, hog, {**LONG, "n": 16})
        d.eventually(lambda: gauge(d, "vllm:num_requests_running") == 7, 30, "the hog runs all but one")
        for _ in range(3):
            assert d.post("/v1/completions", SHORT, headers=OTHER).status_code == 200
        assert gauge(d, "vllm:num_requests_running") == 7 and gauge(d, "vllm:num_requests_waiting") == 9, "nothing had to end for it"


@pytest.mark.parametrize("keys", ["", "only-key\n"])
def test_one_key_has_all_places(tmp_path, keys):
    path = tmp_path / "keys"
    path.write_text(keys)
    options = ("--api-key-file", path) if keys else ()
    auth = {"authorization": "Bearer only-key"}
    with Daemon(*options, "--running-requests", 4, "--queue-requests", 8) as d, d.connect(60) as s:
        ask(d, s, {**LONG, "n": 8}, headers="Authorization: Bearer only-key\r\n")
        assert read_status(s) == 200

        def running():
            samples = parse_metrics(d.get("/metrics", headers=auth).text)
            return sum(v for (n, _), v in samples.items() if n == "vllm:num_requests_running")
        d.eventually(lambda: running() == 4, 30, "all places are taken")


@pytest.mark.hand_over
def test_the_queue_has_room_for_another_key(two_keys):
    with Daemon(*two_keys, "--running-requests", 4, "--queue-requests", 64) as d:
        hogs = [d.connect(60) for _ in range(16)]
        for s in hogs:
            ask(d, s, {**LONG, "n": 8})
        answers = [read_status(s) for s in hogs]
        assert sorted(answers) == [200] * 6 + [429] * 10, "three quarters of 64"
        others = [d.connect(60) for _ in range(8)]
        for s in others:
            ask(d, s, {**LONG, "max_tokens": 1}, headers="Authorization: Bearer key-of-other\r\n")
        assert [read_status(s) for s in others] == [200] * 8
        r = d.post("/v1/completions", SHORT, headers={"authorization": "Bearer key-of-hog"})
        assert r.status_code == 429 and r.json()["error"]["code"] == "queue_full" and int(r.headers["retry-after"]) >= 1
        assert "your requests already take 48 of 64 places" in r.json()["error"]["message"]
        r = d.post("/v1/completions", {**SHORT, "n": 49}, headers={"authorization": "Bearer key-of-other"})
        assert r.status_code == 400 and "48" in r.json()["error"]["message"], "more than one key ever may have"
        for s in hogs + others:
            s.close()
        d.eventually(lambda: d.post("/v1/completions", SHORT, headers={"authorization": "Bearer key-of-hog"}).status_code == 200,
                     30, "room again")


@pytest.mark.parametrize("reloaded", [False, True])
def test_waiting_prompt_tokens_have_shares(two_keys, reloaded):
    """1024 may wait: with its third prompt of 300, the first key would hold more than three quarters. A second key may come later."""
    prompt, both = [1000 + i for i in range(300)], two_keys[1].read_text()
    if reloaded:
        two_keys[1].write_text("key-of-hog\n")
    with Daemon(*two_keys, "--running-requests", 2, "--queue-tokens", 1024) as d:
        if reloaded:
            two_keys[1].write_text(both)
            d.process.send_signal(signal.SIGHUP)
            d.eventually(lambda: "keys are read again" in d.log(), what="a reload")
        running, hogs, other = d.connect(60), [d.connect(60) for _ in range(3)], d.connect(60)
        ask(d, running, LONG)
        assert read_status(running) == 200
        read_until(running, b"data: ")
        for s in hogs:
            ask(d, s, {**LONG, "prompt": prompt})
        answers = [read_status(s) for s in hogs]
        assert sorted(answers) == [200, 200, 429], answers
        ask(d, other, {**LONG, "prompt": prompt[:90], "max_tokens": 1}, headers="Authorization: Bearer key-of-other\r\n")
        assert read_status(other) == 200
        for s in [running, *hogs, other]:
            s.close()


@pytest.mark.parametrize("keys,most", [("key-of-hog\nkey-of-other\n", 768), ("key-of-hog\n", 1024)])
def test_what_can_never_wait_is_told_so(tmp_path, keys, most):
    """Choices and prompts of one request wait together. If their tokens can never fit, it is a 400, which clients do not retry."""
    path = tmp_path / "keys"
    path.write_text(keys)
    with Daemon("--api-key-file", path, "--running-requests", 2, "--queue-tokens", 1024) as d:
        def status(body):
            r = d.post("/v1/completions", {**SHORT, **body}, headers={"authorization": "Bearer key-of-hog"})
            return r.status_code, r.json().get("error", {})
        some = [1000 + i for i in range(most // 8)]
        assert status({"prompt": some, "n": 8})[0] == 200
        assert status({"prompt": [some] * 8})[0] == 200
        for body, param in (({"prompt": some + [7], "n": 8}, "n"), ({"prompt": [some] * 7 + [some + [7]]}, "prompt")):
            code, e = status(body)
            assert (code, e.get("param")) == (400, param) and f"{most}" in e["message"] and "queue_tokens" in e["message"], e
        assert status({"prompt": some * 9})[0] == 200, "one prompt alone may be longer"


def words(n_bytes, seed):
    """Text that the tokeniser has not seen before."""
    rng = random.Random(seed)
    out = []
    while n_bytes > 0:
        out.append("".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(3, 30))))
        n_bytes -= len(out[-1]) + 1
    return " ".join(out)


def test_worker_time_is_shared(two_keys):
    with Daemon(*two_keys) as d:
        raw = json.dumps({"model": MODEL_ID, "prompt": words(2_000_000, 1)}).encode()
        done = []

        def heavy():
            r = d.post("/tokenize", raw, headers={"authorization": "Bearer key-of-hog"})
            done.append(r.status_code)

        threads = [threading.Thread(target=heavy) for _ in range(8)]
        for t in threads:
            t.start()
        d.eventually(lambda: gauge(d, "tandem:requests_reading") >= 6, 30, "they are there")
        n_at_begin = len(done)
        for _ in range(4):
            assert d.post("/tokenize", {"model": MODEL_ID, "prompt": "x"}, headers=OTHER).status_code == 200
        n_meanwhile = len(done) - n_at_begin
        for t in threads:
            t.join()
        assert done == [200] * 8 and n_meanwhile <= 4, f"{n_meanwhile} of the 8 large ones were done while four small ones were"


N_HEAVY = 10  # each takes a worker half a second on a fast machine; a busy one may take seconds for three short requests


def test_short_token_ids_wait_for_no_worker():
    """The loop thread reads them, and makes their errors: the only worker is busy with earlier work of the same client."""
    # random letters are the slowest text: however fast the worker is, some are still waiting when all have arrived
    heavy = json.dumps({"model": MODEL_ID, "prompt": "".join(random.Random(2).choices("abcdefghijklmnopqrstuvwxyz", k=2_000_000))}).encode()
    short = {"model": MODEL_ID, "prompt": [5, 6, 7, 8], "max_tokens": 1}
    with Daemon("--workers", "1") as d:
        done = []
        threads = [threading.Thread(target=lambda: done.append(d.post("/tokenize", heavy).status_code)) for _ in range(N_HEAVY)]
        for t in threads:
            t.start()
        reading = lambda: sum(v for (n, _), v in parse_metrics(d.get("/metrics").text).items() if n == "tandem:requests_reading")
        d.eventually(lambda: reading() + len(done) >= N_HEAVY, 30, "all have come: what waits as they do is answered after the last")
        answers = [d.post("/v1/completions", body) for body in (short, {**short, "temperature": -1}, {**short, "prompt": [5, -1]})]
        n_meanwhile = len(done)
        for t in threads:
            t.join()
        assert [r.status_code for r in answers] == [200, 400, 400] and answers[0].json()["usage"]["completion_tokens"] == 1
        assert [r.json()["error"]["param"] for r in answers[1:]] == ["temperature", "prompt"]
        assert done == [200] * N_HEAVY
        assert n_meanwhile < N_HEAVY - 1, "they stood in the worker's queue"  # the last heavy answer may be read after theirs


def hold_body(d, n, headers="", source="127.0.0.1", request="POST /v1/completions"):
    s = socket.socket()
    s.settimeout(60 * SLOWNESS)
    s.bind((source, 0))
    s.connect(("127.0.0.1", d.port))
    s.sendall(f"{request} HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n{headers}Content-Length: {n}\r\n\r\n".encode())
    try:
        s.sendall(b" " * (n - 1))
    except OSError:
        pass  # it was refused
    return s


@pytest.mark.parametrize("by", ["key", "address"])
def test_held_bodies_refuse_nobody_else(two_keys, by):
    options = two_keys if by == "key" else ()
    body = 2 << 20
    with Daemon(*options, "--http-bodies-bytes", 8 * body, "--http-body-bytes", body, "--http-body-grace-ms", 300000) as d:  # so that it is not cut meanwhile
        held = [hold_body(d, body, HOG) for _ in range(12)]
        source = "127.0.0.1" if by == "key" else "127.0.0.2"
        with httpx.Client(transport=httpx.HTTPTransport(local_address=source), timeout=60 * SLOWNESS) as client:
            for _ in range(10):
                assert client.post(d.url + "/v1/completions", json=SHORT, headers=OTHER).status_code == 200
        refused = 0
        for s in held:
            s.settimeout(0.2 * SLOWNESS)
            try:
                raw = s.recv(65536)
                assert status_of(raw) == 429 and (b"your share" in raw or b"your share" in s.recv(65536))
                refused += 1
            except TimeoutError:
                pass
            except ConnectionResetError:
                refused += 1
            s.close()
        assert refused >= 6 - 1, "what is above the share"
        d.eventually(lambda: d.post("/v1/completions", SHORT, headers=OTHER).status_code == 200, 20, "room again")


@pytest.mark.parametrize("request_line", ["GET /health", "OPTIONS /v1/completions", "HEAD /v1/models"])
def test_bodies_that_nobody_reads_are_not_held(request_line):
    body = 2 << 20
    with Daemon("--http-bodies-bytes", 4 * body, "--http-body-bytes", body) as d, contextlib.ExitStack() as stack:
        for _ in range(6):
            stack.enter_context(hold_body(d, body, request=request_line))
        for _ in range(3):
            assert d.post("/v1/completions", SHORT).status_code == 200
        with hold_body(d, body, request=request_line) as s: # whole, it is answered
            s.sendall(b" ")
            assert status_of(s.recv(65536)) in (200, 204)


def test_one_body_may_take_all(tmp_path):
    """As before shares existed: a body of the largest size is accepted if no other is held."""
    with Daemon("--http-bodies-bytes", 1 << 20, "--http-body-bytes", 1 << 20) as d:
        body = json.dumps({"model": MODEL_ID, "prompt": "x"}).encode()
        r = d.post("/tokenize", body + b" " * ((1 << 20) - len(body)))
        assert r.status_code == 200
