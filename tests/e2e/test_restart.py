"""A socket that systemd holds (LISTEN_FDS): a client that connects while the daemon loads, or while one daemon ends and the next begins, waits
and is answered. None is refused, none gets a 503."""
import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import httpx
import pytest
from harness import DAEMON, MODEL, MODEL_ID, SLOWNESS, read_until, status_of

SHORT = {"model": MODEL_ID, "prompt": "Hi", "max_tokens": 2, "temperature": 0}
# Does what systemd does between fork and exec.
LAUNCH = """import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ.update(LISTEN_FDS="1", LISTEN_PID=str(os.getpid()))
os.execv(sys.argv[2], sys.argv[2:])"""


class Holder:
    """Holds the listening socket, as systemd does, and starts daemons that inherit it."""

    def __enter__(self):
        self.socket = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port = self.socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.log_file = tempfile.NamedTemporaryFile(prefix="tandemd-", suffix=".log")
        self.daemons = []
        return self

    def start(self, *options):
        fd = self.socket.fileno()
        d = subprocess.Popen([sys.executable, "-c", LAUNCH, str(fd), DAEMON, "--model", MODEL, "--kv-bytes", str(1 << 28),
                              "--cache-dir", "", *map(str, options)],
                             pass_fds=(fd,), stdin=subprocess.DEVNULL, stdout=self.log_file, stderr=subprocess.STDOUT,
                             env={k: v for k, v in os.environ.items() if k != "NOTIFY_SOCKET"})
        self.daemons.append(d)
        return d

    def log(self):
        return pathlib.Path(self.log_file.name).read_text("utf-8", "replace")

    def __exit__(self, kind, value, trace):
        for d in self.daemons:
            if d.poll() is None:
                d.send_signal(signal.SIGTERM)
        codes = []
        for d in self.daemons:
            try:
                codes.append(d.wait(40 * SLOWNESS))
            except subprocess.TimeoutExpired:
                d.kill()
                codes.append(d.wait())
        if kind is None:
            assert codes == [0] * len(codes), self.log()[-3000:]
        else:
            print(self.log()[-3000:])
        self.log_file.close()
        self.socket.close()


@pytest.mark.share
def test_clients_wait_for_the_model():
    """Also requests that arrived before the daemon was started."""
    with Holder() as h, contextlib.ExitStack() as stack:
        def ask():
            s = stack.enter_context(socket.create_connection(("127.0.0.1", h.port), timeout=60 * SLOWNESS))
            s.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
            return s
        sockets = [ask()]
        h.start()
        for _ in range(20):
            time.sleep(0.02)
            sockets.append(ask())
        assert [status_of(read_until(s, b"]}")) for s in sockets] == [200] * 21
        assert httpx.get(h.url + "/ready", timeout=10 * SLOWNESS).status_code == 200
        assert httpx.post(h.url + "/v1/completions", json=SHORT, timeout=60 * SLOWNESS).status_code == 200


def test_a_restart_refuses_nobody():
    """Requests, each on its own connection, arrive without a pause while one daemon drains and the next starts, twice."""
    with Holder() as h:
        stop, statuses = threading.Event(), []

        def ask():
            while not stop.is_set():
                try:
                    statuses.append(httpx.post(h.url + "/v1/completions", json=SHORT, timeout=120 * SLOWNESS).status_code)
                except httpx.TransportError as e:
                    statuses.append(repr(e))

        old = h.start()
        threads = [threading.Thread(target=ask) for _ in range(4)]
        for t in threads:
            t.start()
        try:
            for _ in range(2):
                n = len(statuses)
                end = time.monotonic() + 60 * SLOWNESS
                while len(statuses) < n + 8 and time.monotonic() < end:
                    time.sleep(0.02)
                old.send_signal(signal.SIGTERM)
                assert old.wait(40 * SLOWNESS) == 0
                time.sleep(0.3)
                old = h.start()
        finally:
            time.sleep(1)
            stop.set()
            for t in threads:
                t.join()
        assert len(statuses) > 16 and set(statuses) == {200}, statuses


def test_connections_of_a_daemon_that_ends():
    """A request that is being sent when SIGTERM comes is served; a connection that waits for none is closed, and none keeps
    the process."""
    with Holder() as h, contextlib.ExitStack() as stack:
        def connect():
            return stack.enter_context(socket.create_connection(("127.0.0.1", h.port), timeout=60 * SLOWNESS))
        idle, half = connect(), connect()
        get = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
        old = h.start("--drain-timeout-ms", 20000)
        for s in (idle, half):
            s.sendall(get)
            assert status_of(read_until(s, b"]}")) == 200
        time.sleep(0.3)
        half.sendall(get[:20])
        fresh = connect()
        time.sleep(0.1)
        begin = time.monotonic()
        old.send_signal(signal.SIGTERM)
        assert idle.recv(100) == b""
        fresh.sendall(get)
        half.sendall(get[20:])
        for s in (fresh, half):
            answer = read_until(s, b"]}")
            assert status_of(answer) == 200 and b"\r\nconnection: close\r\n" in answer
        assert old.wait(20 * SLOWNESS) == 0
        assert time.monotonic() - begin < 10 * SLOWNESS


def test_a_drain_ends_in_time_whatever_comes():
    """Each connection's requests go on past drain_timeout_ms: the process has its second to send the errors, and not one more for
    every request that comes meanwhile."""
    with Holder() as h, contextlib.ExitStack() as stack:
        long = {**SHORT, "max_tokens": 4000, "ignore_eos": True, "stream": True}
        body = json.dumps(long).encode()
        request = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                   b"Content-Length: %d\r\n\r\n" % len(body)) + body
        old = h.start("--drain-timeout-ms", 1000, "--http-header-timeout-ms", 60000)
        sockets = [stack.enter_context(socket.create_connection(("127.0.0.1", h.port), timeout=60 * SLOWNESS)) for _ in range(9)]
        sockets[0].sendall(request)
        read_until(sockets[0], b"data: ")
        for s in sockets[1:]:
            s.sendall(request[:40])  # half a request head each, for which the drain waits
        time.sleep(0.3)
        begin = time.monotonic()
        old.send_signal(signal.SIGTERM)
        for i, s in enumerate(sockets[1:]):
            while time.monotonic() < begin + 0.9 + 0.9 * i and old.poll() is None:
                time.sleep(0.02)
            with contextlib.suppress(OSError):
                s.sendall(request[40:])
        assert old.wait(40 * SLOWNESS) == 0
        assert time.monotonic() - begin < 5 * SLOWNESS


@pytest.mark.parametrize("handed", ["nothing", "a file"])
def test_a_socket_that_was_not_handed_over(handed, tmp_path):
    """LISTEN_FDS names descriptor 3, but it is closed, so that a file of the daemon gets that number, or it is not a socket."""
    script = LAUNCH.replace("os.dup2(int(sys.argv[1]), 3)", "os.closerange(3, 9)" if handed == "nothing" else "os.dup2(0, 3)")
    r = subprocess.run([sys.executable, "-c", script, "", DAEMON, "--model", MODEL, "--kv-bytes", str(1 << 28), "--cache-dir", "", "--calibrate-ms", "0"],
                       stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60 * SLOWNESS)
    assert r.returncode == 66 and "cannot listen on socket 3 from systemd" in r.stderr, (r.returncode, r.stderr)
