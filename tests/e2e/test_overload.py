"""More work than the daemon has room for, slow readers, and the end: queue full, drain on SIGTERM, stalls."""
import signal
import threading
import time

import pytest
from harness import MODEL_ID, SLOWNESS, Daemon, dechunk, read_all, read_until, sse_events, status_of

LONG = {"model": MODEL_ID, "prompt": "Tell me a story.", "max_tokens": 4000, "ignore_eos": True, "temperature": 0, "stream": True}
SHORT = {"model": MODEL_ID, "prompt": "Hi", "max_tokens": 2, "temperature": 0}


@pytest.mark.share
def test_a_full_queue_answers_429_at_once():
    with Daemon("--queue-requests", 3, "--running-requests", 1) as d:
        held = [d.connect(60) for _ in range(3)]
        d.send_request(held[0], "/v1/completions", LONG)
        read_until(held[0], b"data: ")
        for s in held[1:]:
            d.send_request(s, "/v1/completions", LONG)
        d.eventually(lambda: d.gauge("vllm:num_requests_waiting") == 2, what="two wait")
        assert d.gauge("vllm:num_requests_running") == 1
        r = d.post("/v1/completions", SHORT)
        assert r.status_code == 429 and r.json()["error"]["code"] == "queue_full" and int(r.headers["retry-after"]) >= 1
        assert d.gauge("vllm:num_requests_running") == 1 and d.gauge("vllm:num_requests_waiting") == 2, "nothing had to end for that"
        assert d.get("/health").status_code == 200 and d.get("/ready").status_code == 200
        assert d.post("/tokenize", {"model": MODEL_ID, "prompt": "x"}).status_code == 200, "work that needs no slot goes on"
        for s in held:
            s.close()
        d.eventually(lambda: d.post("/v1/completions", SHORT).status_code == 200, 20, "room again")


def test_waiting_requests_are_served_in_turn():
    with Daemon("--running-requests", 1) as d:
        results, threads = [], []
        for i in range(5):
            t = threading.Thread(target=lambda i=i: results.append((i, d.tokens(f"Number {i} is", max_tokens=8))))
            t.start()
            threads.append(t)
            time.sleep(0.05)
        for t in threads:
            t.join()
        assert sorted(i for i, _ in results) == list(range(5))


def begin_drain(d):
    d.process.send_signal(signal.SIGTERM)
    d.eventually(lambda: "SIGTERM: finishing " in d.log(), 10, "the drain")


@pytest.mark.share
@pytest.mark.hand_over
def test_drain_lets_streams_finish_and_takes_no_more():
    n = 150 if SLOWNESS == 1 else 40  # long enough to be still running when SIGTERM arrives
    body = {**LONG, "max_tokens": n}
    with Daemon("--drain-timeout-ms", int(30000 * SLOWNESS)) as d:
        expect = d.tokens(body["prompt"], max_tokens=n, ignore_eos=True)
        sockets = [d.connect(120) for _ in range(3)]
        got = []
        for s in sockets:
            d.send_request(s, "/v1/completions", {**body, "return_token_ids": True}, headers="Connection: close\r\n")
            got.append(read_until(s, b"data: "))
        kept = d.connect()
        begin_drain(d)
        try:
            refused = d.post("/v1/completions", SHORT)
            assert refused.status_code == 503 and refused.json()["error"]["code"] == "shutting_down"
            assert "retry-after" in refused.headers
        except Exception as e:  # noqa: BLE001: the listener may be closed instead
            assert "onnect" in repr(e), repr(e)
        try:
            d.send_request(kept, "/v1/completions", SHORT)
            assert status_of(read_all(kept)) in (503, None)
        except (BrokenPipeError, ConnectionResetError):
            pass
        for i, s in enumerate(sockets):
            raw = got[i] + read_all(s)
            events = sse_events(dechunk(raw.split(b"\r\n\r\n", 1)[1]).decode())
            assert [t for e in events for t in e["choices"][0].get("token_ids") or []] == expect
            assert events[-1]["choices"][0]["finish_reason"] == "length"
        assert d.process.wait(20 * SLOWNESS) == 0


def test_drain_has_an_end():
    """After drain_timeout_ms, open streams get an error event, and the exit is still clean."""
    with Daemon("--drain-timeout-ms", 500) as d:
        s = d.connect(60)
        d.send_request(s, "/v1/completions", LONG)
        head = read_until(s, b"data: ")
        begin = time.monotonic()
        d.process.send_signal(signal.SIGTERM)
        raw = head + read_all(s)
        assert d.process.wait(20 * SLOWNESS) == 0
        assert time.monotonic() - begin < 15 * SLOWNESS
        assert b'"error"' in raw and b"[DONE]" not in raw.split(b'"error"')[0]


def test_second_signal_ends_at_once():
    with Daemon("--drain-timeout-ms", int(60000 * SLOWNESS)) as d:
        s = d.connect(60)
        d.send_request(s, "/v1/completions", LONG)
        read_until(s, b"data: ")
        begin = time.monotonic()
        begin_drain(d)
        d.process.send_signal(signal.SIGTERM)
        d.process.wait(10 * SLOWNESS)
        assert time.monotonic() - begin < 10 * SLOWNESS
        assert "second signal: exiting now" in d.log()


def test_signals_at_the_very_end_change_no_exit_code():
    """Signals between the end of the loop and the end of the process. The growing wait moves them through that period."""
    for i in range(20):
        with Daemon() as d:
            d.process.send_signal(signal.SIGTERM)
            time.sleep(i * 2e-4)
            while d.process.poll() is None:
                for again in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
                    d.process.send_signal(again)
                time.sleep(2e-4)
            assert d.process.returncode == 0, d.log()


def test_idle_daemon_stops_at_once():
    for sig in (signal.SIGTERM, signal.SIGINT):
        with Daemon() as d:
            begin = time.monotonic()
            d.process.send_signal(sig)
            assert d.process.wait(10 * SLOWNESS) == 0
            assert time.monotonic() - begin < 10 * SLOWNESS


def test_ready_says_503_while_draining():
    with Daemon() as d:
        s = d.connect(60)
        d.send_request(s, "/v1/completions", {**LONG, "max_tokens": 200})
        read_until(s, b"data: ")
        probe = d.connect()
        begin_drain(d)
        try:
            probe.sendall(b"GET /ready HTTP/1.1\r\nHost: t\r\n\r\n")
            assert status_of(probe.recv(65536)) in (503, None)
        except (BrokenPipeError, ConnectionResetError):
            pass
        s.close()


def test_a_slow_reader_is_cut_and_slows_nobody():
    with Daemon("--sse-stall-ms", 1000, "--sse-queue-bytes", 4096) as d:
        fast = d.tokens("The capital of France is", max_tokens=20)
        slow = [d.connect(120, rcvbuf=2048) for _ in range(2)]
        for s in slow:
            d.send_request(s, "/v1/completions", {**LONG, "n": 8, "temperature": 1})
        d.eventually(lambda: d.gauge("vllm:num_requests_running") == 16, 20, "running")
        assert d.tokens("The capital of France is", max_tokens=20) == fast, "others are served meanwhile"
        d.eventually(lambda: d.gauge("vllm:num_requests_running") == 0, 90, "the stalled streams are cut")
        assert d.gauge("vllm:kv_cache_usage_perc") == 0
        for s in slow:
            s.close()


@pytest.mark.share
def test_health_and_ready(daemon):
    for path in ("/health", "/ready"):
        r = daemon.get(path)
        assert r.status_code == 200
