"""What the daemon tells systemd (sd_notify), over a socket of the test: ready when it serves, alive while it serves, stopping at its end.
scripts/package-test uses the real systemd."""
import contextlib
import os
import signal
import socket
import subprocess
import threading
import time

import httpx
from harness import DAEMON, MODEL, SLOWNESS, free_port

PERIOD_S = 0.2


class Manager:
    """Plays the service manager's end of NOTIFY_SOCKET."""

    def __init__(self, tmp_path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(tmp_path / "notify"))
        self.socket.settimeout(0.05)
        self.told, self.stop = [], threading.Event()
        self.thread = threading.Thread(target=self.listen, daemon=True)
        self.thread.start()
        self.env = {**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": str(int(2e6 * PERIOD_S))}

    def listen(self):
        while not self.stop.is_set():
            with contextlib.suppress(TimeoutError):
                self.told.append(self.socket.recv(4096).decode())

    def until(self, check, seconds=30):
        end = time.monotonic() + seconds * SLOWNESS
        while not check():
            assert time.monotonic() < end, self.told
            time.sleep(0.02)


@contextlib.contextmanager
def run(manager, model=MODEL):
    port = free_port()
    p = subprocess.Popen([DAEMON, "--model", model, "--listen", f"127.0.0.1:{port}", "--kv-bytes", str(1 << 28), "--calibrate-ms", "0", "--cache-dir", ""],
                         env=manager.env, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    p.port = port
    try:
        yield p
    finally:
        p.kill()
        p.wait()
        manager.stop.set()
        manager.thread.join()


def test_ready_alive_stopping(tmp_path):
    m = Manager(tmp_path)
    with run(m) as p:
        m.until(lambda: any("READY=1" in t for t in m.told))
        assert httpx.get(f"http://127.0.0.1:{p.port}/ready").status_code == 200
        n = len(m.told)
        m.until(lambda: m.told[n:].count("WATCHDOG=1") >= 5)
        p.send_signal(signal.SIGTERM)
        assert p.wait(30 * SLOWNESS) == 0
        m.until(lambda: any("STOPPING=1" in t for t in m.told))
    told = "\n".join(m.told)
    assert told.index("STATUS=loading") < told.index("READY=1") < told.index("STOPPING=1")
    assert told.count("READY=1") == 1


def test_one_that_is_stopped_says_nothing(tmp_path):
    """The watchdog's notifications stop while the process is stopped, and resume afterwards."""
    m = Manager(tmp_path)
    with run(m) as p:
        m.until(lambda: "WATCHDOG=1" in m.told[-1:] and any("READY=1" in t for t in m.told))
        p.send_signal(signal.SIGSTOP)
        time.sleep(0.1)
        n = len(m.told)
        time.sleep(4 * PERIOD_S)
        assert len(m.told) == n
        p.send_signal(signal.SIGCONT)
        m.until(lambda: "WATCHDOG=1" in m.told[n:])


def test_a_model_that_fails_is_never_ready(tmp_path):
    m = Manager(tmp_path)
    with run(m, "/nowhere/model.gguf") as p:
        assert p.wait(30 * SLOWNESS) == 65
    assert m.told and not any("READY" in t for t in m.told)


def test_without_a_manager_nothing_is_told(tmp_path):
    m = Manager(tmp_path)
    del m.env["NOTIFY_SOCKET"]
    with run(m, "/nowhere/model.gguf") as p:
        assert p.wait(30 * SLOWNESS) == 65
    assert m.told == []
