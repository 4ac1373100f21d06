"""Many, slow or silent clients: how many connections an address may have, bodies that stop arriving, and what the log and /metrics say
about connections that are cut."""
import contextlib
import json
import re
import socket
import time

import httpx
import pytest
from harness import MODEL, MODEL_ID, SLOWNESS, Daemon, read_all, read_until, run_daemon, status_of
from test_dummy import folder_with_tokenizer

SHORT = {"model": MODEL_ID, "prompt": "Hi", "max_tokens": 1, "temperature": 0}
HEALTH = b"GET /health HTTP/1.1\r\nHost: t\r\n\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nx-request-id: %s\r\nContent-Length: %d\r\n\r\n"
BODY_BYTES = 8 * 1024 * 1024


def cut(d, reason):
    (n,) = [v for (name, labels), v in d.metrics().items()
            if name == "tandem:connections_cut_total" and f'reason="{reason}"' in labels]
    return n


def lines(d, part):
    return [line for line in d.log().splitlines() if part in line]


@pytest.mark.share
def test_a_proxy_fits_in():
    """By default, 500 connections of one address, such as a reverse proxy's, are all served."""
    with Daemon() as d, contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(d.connect(60)) for _ in range(500)]
        for s in sockets:
            s.sendall(HEALTH)
        assert [status_of(read_until(s, b'"ok"}')) for s in sockets] == [200] * 500
        assert d.gauge("tandem:connections_refused_total") == 0


def test_one_address_cannot_have_all():
    """Connections over an address's limit are refused with that reason, and logged: at most one line a second."""
    with Daemon("--connections-per-ip", 10) as d, contextlib.ExitStack() as stack:
        held = [stack.enter_context(d.connect()) for _ in range(10)]
        d.eventually(lambda: lines(d, "listening"), what="log")
        time.sleep(0.3)
        begin = time.monotonic()
        for _ in range(20):
            with d.connect() as s:
                s.sendall(HEALTH)
                answer = read_all(s)
            assert status_of(answer) == 503 and b"\r\nretry-after: 1\r\n" in answer
            assert b'"code":"too_many_connections"' in answer and b'"type":"server_error"' in answer
        told = lines(d, "refused a connection")
        assert 1 <= len(told) <= 2 + time.monotonic() - begin
        assert "127.0.0.1" in told[0] and "10 connections" in told[0] and "connections_per_ip" in told[0]
        held.pop().close()
        d.eventually(lambda: d.get("/health").status_code == 200, what="room again")
        assert d.gauge("tandem:connections_refused_total") >= 20


def test_trusted_proxies_are_not_counted():
    with Daemon("--connections-per-ip", 10, "--trusted-proxies", "192.0.2.0/24, 127.0.0.0/8") as d, contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(d.connect()) for _ in range(40)]
        for s in sockets:
            s.sendall(HEALTH)
        assert [status_of(read_until(s, b'"ok"}')) for s in sockets] == [200] * 40
    code, text = run_daemon("--model", MODEL, "--trusted-proxies", "127.0.0.1,localhost", "--check")
    assert code == 64 and "trusted_proxies" in text and "'localhost'" in text


def test_silent_bodies_are_cut():
    """33 clients send bodies of 8 MiB but for the last byte at once and fall silent: they use up what one address may hold of
    http_bodies_bytes, three quarters, which is 24 of them. A burst buys no silence: they are cut after http_body_grace_ms and
    others are served again."""
    with Daemon("--http-body-grace-ms", int(2000 * SLOWNESS)) as d, contextlib.ExitStack() as stack:
        blob = b"x" * (BODY_BYTES - 1)
        for _ in range(33):
            s = stack.enter_context(d.connect(60))
            s.sendall(POST % (b"silent", BODY_BYTES))
            with contextlib.suppress(OSError):  # the last ones are refused
                s.sendall(blob)
        d.eventually(lambda: d.post("/v1/completions", SHORT).status_code == 200, 10, "others are served")
        d.eventually(lambda: cut(d, "body_rate") >= 23, 10, "all that are held are cut")
        assert any("request silent" in line and "127.0.0.1" in line and "http_body_min_rate" in line
                   for line in lines(d, "cut a connection"))


def test_who_is_not_read_is_not_slow():
    """A client that does not read its answers delays its own next body. That does not count as a slow body; once it reads, the body arrives."""
    with Daemon("--http-body-grace-ms", 500, "--sse-queue-bytes", 4096) as d, d.connect(60, rcvbuf=2048) as s:
        raw = json.dumps(SHORT).encode()
        s.sendall(HEALTH * 240 + POST % (b"patient", len(raw)) + raw[:4])  # about 55 KiB of answers, a part of which the kernel buffers
        time.sleep(2 * SLOWNESS)
        assert cut(d, "body_rate") == 0
        answers = b""
        while answers.count(b'"ok"}') < 240:
            chunk = s.recv(65536)
            assert chunk, answers[-500:]
            answers += chunk
        s.sendall(raw[4:])
        assert status_of(read_until(s, b"}]")) == 200


def test_a_body_has_a_deadline():
    """The deadline also applies to a body that always arrives fast enough."""
    with Daemon("--http-body-grace-ms", 500, "--http-body-timeout-ms", 1500) as d, d.connect() as s:
        begin = time.monotonic()
        s.sendall(POST % (b"endless", BODY_BYTES))
        s.settimeout(0.05)
        answer = b""
        while not answer and time.monotonic() - begin < 10 * SLOWNESS:
            s.sendall(b" " * 1024)
            with contextlib.suppress(TimeoutError):
                answer = s.recv(65536)
        assert status_of(answer) == 408 and b"too long" in answer
        assert time.monotonic() - begin > 1.4
        assert cut(d, "body_timeout") == 1 and cut(d, "body_rate") == 0
        assert any("request endless" in line and "http_body_timeout_ms" in line for line in lines(d, "cut a connection"))


def test_a_head_that_does_not_end_is_told():
    with Daemon("--http-header-timeout-ms", 300) as d, d.connect() as s:
        s.sendall(b"GET /hea")
        assert status_of(read_all(s)) == 408
        assert cut(d, "head_timeout") == 1
        assert any("http_header_timeout_ms" in line for line in lines(d, "cut a connection"))


def test_a_stalled_reader_is_told():
    with Daemon("--sse-stall-ms", 1000, "--sse-queue-bytes", 4096) as d, d.connect(60, rcvbuf=2048) as s:
        body = {"model": MODEL_ID, "prompt": "Tell me a story.", "max_tokens": 4000, "ignore_eos": True, "n": 8, "stream": True}
        d.send_request(s, "/v1/completions", body, headers="x-request-id: stalled\r\n")
        d.eventually(lambda: cut(d, "stall") == 1, 90, "it is cut")
        (line,) = lines(d, "cut a connection")
        assert re.search(r"127\.0\.0\.1, request stalled: .*sse_stall_ms", line)


def test_a_stalled_reader_of_a_whole_answer_is_told():
    with Daemon("--sse-stall-ms", 500, "--sse-queue-bytes", 4096) as d, d.connect(60, rcvbuf=2048) as s:
        ids = list(range(1000, 9000))
        d.send_request(s, "/detokenize", {"model": MODEL_ID, "tokens": ids * 4}, headers="x-request-id: whole\r\n")
        d.eventually(lambda: cut(d, "stall") == 1, 30, "it is cut")
        (line,) = lines(d, "cut a connection")
        assert "request whole:" in line


def test_a_unix_socket(tmp_path):
    """A unix socket serves, is left behind by a killed process, taken over by the next one, and removed at that one's end."""
    path = tmp_path / "tandem.sock"

    def ready(d):
        def ask():
            try:
                with httpx.Client(transport=httpx.HTTPTransport(uds=str(path))) as c:
                    return c.get("http://t/ready", timeout=5).status_code == 200
            except httpx.TransportError:
                return False
        d.eventually(ask, 60, "ready")

    with Daemon("--listen", f"unix:{path}", wait=False, expect_exit=-9) as d:
        ready(d)
        d.process.kill()
    assert path.is_socket()
    with Daemon("--listen", f"unix:{path}", wait=False) as d:
        ready(d)
    assert not path.exists()


def test_the_next_daemon_keeps_its_socket(tmp_path):
    """The next daemon's socket is renamed over the first one's. When the first stops, that socket stays. The next one removes it at its end."""
    folder, path, after = folder_with_tokenizer(tmp_path), tmp_path / "s", tmp_path / "next"
    options = ["--load-format", "dummy", "--listen"]
    with Daemon(*options, f"unix:{path}", model=folder, kv_bytes=1 << 24, wait=False) as first:
        first.eventually(path.exists, what="the socket")
        with Daemon(*options, f"unix:{after}", model=folder, kv_bytes=1 << 24, wait=False) as second:
            second.eventually(after.exists, what="its socket")
            after.rename(path)
            assert first.stop() == 0
            with socket.socket(socket.AF_UNIX) as s:
                s.connect(str(path))
            path.rename(after)
            assert second.stop() == 0 and not after.exists()


def test_a_file_that_is_no_socket_is_kept(tmp_path):
    path = tmp_path / "notes"
    path.write_text("my notes")
    code, text = run_daemon("--model", MODEL, "--listen", f"unix:{path}", "--kv-bytes", 1 << 28)
    assert code == 66 and str(path) in text and "no socket" in text
    assert path.read_text() == "my notes"
