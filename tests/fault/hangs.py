#!/usr/bin/env python3
"""Row 15: the loop, a worker or the engine hangs, repeatedly: shim.c holds one thread. Within 2 s /health must stop saying ok, or not answer
at all. A watchdog like systemd's, which the daemon no longer feeds, then ends and restarts it: it is ready again within 20 s of the hang.

The amount is the number of hangs of each kind; --beside is the number of simultaneous daemons."""
import argparse
import os
import pathlib
import signal
import socket
import threading
import time

from lib import SLOWNESS, WORK, Row, Shim, Tiny, ask, get, hold, let_go, parse_answer, post, threads

KINDS = ("loop", "worker", "engine")
UNHEALTHY_S, RESTARTED_S = 2, 20
WATCHDOG_S = 8  # an allowed setting of a unit; the packaged unit has 20 s, counted from the last notification
LONG = post("/v1/completions", {"prompt": [5, 6], "max_tokens": 30000, "ignore_eos": True, "stream": True})
ENGINE_TICKS = 5  # of 10 ms: no other thread computes that long for one short request
LATE_S = 0.5  # allowance for delays of this test on a busy machine


class Notified:
    """Plays systemd's end of NOTIFY_SOCKET."""

    def __init__(self):
        self.path = str(WORK / f"notify-{os.urandom(4).hex()}")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.last, self.ready = time.monotonic(), threading.Event()
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        while True:
            text = self.socket.recv(4096)
            self.last = time.monotonic() if b"WATCHDOG=1" in text or b"READY=1" in text else self.last
            if b"READY=1" in text:
                self.ready.set()


def healthy(port, timeout):
    """Whether /health says ok within that time."""
    try:
        return parse_answer(ask(port, get("/health", "Connection: close\r\n"), timeout))[0] == 200
    except OSError:
        return False


def thread_of(pid, kind):
    """The loop is the process's first thread. The engine is the thread that used most CPU time when a request arrived."""
    first, *rest = threads(pid)
    if kind == "loop":
        return first

    def used(t):
        fields = pathlib.Path(f"/proc/{pid}/task/{t}/stat").read_text().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])
    end = time.monotonic() + 5
    while max(map(used, rest)) < ENGINE_TICKS and time.monotonic() < end:
        time.sleep(0.01)
    return max(rest, key=used)


ENV = threading.Lock()  # daemons inherit this process's environment


def start(notified):
    with ENV:
        shim = Shim().__enter__()
        os.environ.update(NOTIFY_SOCKET=notified.path, WATCHDOG_USEC=str(int(WATCHDOG_S * 1e6)))
        d = Tiny("--workers", 1, "--threads", 1, "--step-tokens", 16, "--queue-requests", 64, context=32768)
        os.environ.pop("WATCHDOG_USEC", None)
        try:
            d.__enter__()
        finally:
            os.environ.pop("NOTIFY_SOCKET", None)
            shim.__exit__()
    return d, shim


def one(row, kind):
    notified = Notified()
    d, shim = start(notified)
    clients = []
    try:
        if not row.expect(notified.ready.wait(10 * SLOWNESS), f"{kind}: no READY=1"):
            return
        pid = d.process.pid
        if kind == "worker":  # the thread, other than the loop, that allocates while a body is read
            for t in threads(pid)[1:]:
                hold(shim, pid, t, at_alloc=True)
                s = d.connect()
                clients.append(s)
                s.sendall(post("/tokenize", {"prompt": "words " * 50}))
                end = time.monotonic() + 0.3
                while not shim["held"] and time.monotonic() < end:
                    time.sleep(0.002)
                if shim["held"]:
                    break
        else:
            s = d.connect()
            clients.append(s)
            s.sendall(LONG)
            s.recv(1000)
            hold(shim, pid, thread_of(pid, kind))
            end = time.monotonic() + 1
            while not shim["held"] and time.monotonic() < end:
                time.sleep(0.002)
        begin = time.monotonic()
        if not row.expect(shim["held"], f"{kind}: no thread was held"):
            return
        while healthy(d.port, UNHEALTHY_S) and time.monotonic() < begin + 10:
            time.sleep(0.05)
        took = time.monotonic() - begin
        row.expect(took <= UNHEALTHY_S + LATE_S * SLOWNESS, f"{kind}: healthy for {took:.2f} s")
        while time.monotonic() < notified.last + WATCHDOG_S:
            time.sleep(0.01)
        d.process.send_signal(signal.SIGABRT)
        d.process.wait()
        again = Notified()
        other, other_shim = start(again)
        ready = again.ready.wait(10 * SLOWNESS)
        after = time.monotonic() - begin
        other.__exit__(None, None, None)
        if row.expect(ready, f"{kind}: not ready again"):
            row.expect(after <= RESTARTED_S, f"{kind}: restarted after {after:.1f} s")
            row.seen[kind].append((took, after))
        row.expect(other.exit_code == 0, f"{kind}: the next one ended with {other.exit_code}")
    finally:
        let_go(shim)
        for s in clients:
            s.close()
        if d.alive():
            d.process.kill()
        d.__exit__(None, None, None)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--beside", type=int, default=10)
    row = Row(__doc__, 100, parser)
    row.seen = {k: [] for k in KINDS}
    left = [k for _ in range(row.amount) for k in KINDS]
    lock = threading.Lock()

    def work():
        while row.n_failures < 20:
            with lock:
                if not left:
                    return
                kind = left.pop()
            try:
                one(row, kind)
            except Exception as e:  # noqa: BLE001: a thread's must be told
                row.fail(f"{kind}: {e!r}")
    workers = [threading.Thread(target=work) for _ in range(row.args.beside)]
    for t in workers:
        t.start()
    for t in workers:
        t.join()
    row.done(min(len(v) for v in row.seen.values()))
    for k, v in row.seen.items():
        if v:
            row.note(f"{k}: unhealthy after {max(t for t, _ in v):.2f} s at most, ready again after {max(a for _, a in v):.1f} s")
    row.end()


if __name__ == "__main__":
    main()
