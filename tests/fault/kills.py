#!/usr/bin/env python3
"""Row 16: kill -9 at random moments, while the daemon starts, serves, reloads or writes its cache. Each time it becomes ready again, and
copes with what the killed one left behind: the socket's file and the files of its cache."""
import random
import re
import signal
import socket
import subprocess
import threading
import time

import httpx
from lib import SLOWNESS, WORK, Row, harness, post, tiny_model

BODY = {"prompt": [5, 6, 7], "temperature": 0, "max_tokens": 40, "ignore_eos": True}
READY_S = 20


def ask(path, raw):
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(10 * SLOWNESS)
        s.connect(path)
        s.sendall(raw)
        return s.recv(65536)


def main():
    row = Row(__doc__, 1000)
    rng = random.Random(row.seed)
    path, cache, log = str(WORK / "socket"), WORK / "cache", WORK / "log"
    command = [harness.DAEMON, "--load-format", "dummy", "--model", str(tiny_model()), "--kv-bytes", "64M", "--cache-dir", str(cache),
               "--listen", f"unix:{path}", "--allowed-hosts", "t"]
    stop, answers = threading.Event(), [0]

    def load():
        while not stop.is_set():
            try:
                answers[0] += ask(path, post("/v1/completions", BODY)).startswith(b"HTTP/1.1 200 ")
            except OSError:
                time.sleep(0.001)

    client = httpx.Client(transport=httpx.HTTPTransport(uds=path))
    threads = [threading.Thread(target=load, daemon=True) for _ in range(2)]
    for t in threads:
        t.start()
    slowest = 0
    for i in range(row.amount):
        with open(log, "wb") as f:
            p = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=f, stderr=f)
        begin = time.monotonic()
        early = rng.random() < 0.2  # one in five is killed while it starts
        if early:
            time.sleep(rng.random() * 0.03)
        else:
            ready = False
            while not ready and p.poll() is None and time.monotonic() - begin < READY_S * SLOWNESS:
                try:
                    ready = client.get("http://localhost/ready", timeout=5 * SLOWNESS).status_code == 200
                except httpx.TransportError:
                    time.sleep(0.001)
            slowest = max(slowest, time.monotonic() - begin)
            if not row.expect(ready, f"kill {i}: not ready again: {log.read_text('utf-8', 'replace')[-500:]}"):
                p.kill()
                break
            row.expect(" error " not in log.read_text("utf-8", "replace"), f"kill {i}: {log.read_text()[-300:]}")
            time.sleep(rng.random() * 0.05)
            kind = rng.randrange(4)
            if kind == 0:
                p.send_signal(signal.SIGHUP)
            elif kind == 1:
                p.send_signal(signal.SIGTERM)  # the cache is written at the end
            time.sleep(rng.random() * (0.1 if kind == 1 else 0.01))
        p.send_signal(signal.SIGKILL)
        p.wait()
        row.done()
    stop.set()
    row.expect(answers[0] >= row.amount, f"{answers[0]} answers only: there was no load")
    for f in cache.glob("*"):
        row.expect(f.name.endswith(".txt") or re.search(r"\.txt\.\d+$", f.name), f"{f} in the cache")
    row.note(f"{answers[0]} answers meanwhile, slowest start {slowest:.2f} s, {len(list(cache.glob('*')))} files in the cache")
    row.end()


if __name__ == "__main__":
    main()
