#!/usr/bin/env python3
"""Row 18: requests of all kinds, on kept and new connections, from several keys. Once caches are full, memory must not grow by more than 1 MiB
an hour at that rate, and the number of descriptors not at all.

The amount is the number of requests. The slope is that of the last two thirds. If these last less than --least-seconds, growth per request
is judged instead (at most 16 bytes), because a minute cannot show an hour's slope. SIGTERM ends the run early; what it reached is then
judged as a part."""
import argparse
import random
import re
import signal
import socket
import threading
import time

from lib import WORK, Row, Tiny, ask, get, n_files, parse_answer, post, rss_bytes

CLIENTS, KEYS = 8, 4
SLOPE_MIB_H, BYTES_A_REQUEST = 1, 16
SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"], "additionalProperties": False}


def make(rng, auth):
    kind = rng.randrange(14)
    prompt = [5 + rng.randrange(400) for _ in range(rng.choice([1, 5, 40, 200]))]
    chat = {"messages": [{"role": "user", "content": "w" * rng.randrange(1, 60)}], "max_tokens": 4}
    if kind < 5:
        return post("/v1/completions", {"prompt": prompt, "max_tokens": rng.randint(1, 6), "n": rng.choice([1, 1, 2]), "stream": kind == 4}, auth)
    if kind < 8:
        return post("/v1/chat/completions", {**chat, "logprobs": kind == 5, "stop": ["q"] if kind == 6 else []}, auth)
    if kind == 8:
        return post("/v1/chat/completions", {**chat, "max_tokens": 40, "response_format": {"type": "json_schema", "json_schema": {
            "name": "s", "schema": {**SCHEMA, "title": str(rng.randrange(100))}}}}, auth)
    return [get("/health", auth), get("/v1/models", auth), post("/tokenize", {"prompt": "ab " * rng.randrange(1, 200)}, auth),
            post("/v1/completions", {"prompt": "x", "temperature": rng.randint(3, 10**6)}, auth),
            post("/v1/completions", b"{" + bytes([rng.randrange(33, 127)]) * 20, auth)][kind - 9]


def read_answer(s, buffered):
    """Reads one answer of a kept connection. Returns it, and the bytes after it."""
    while b"\r\n\r\n" not in buffered:
        chunk = s.recv(65536)
        if not chunk:
            raise ConnectionResetError
        buffered += chunk
    head, body = buffered.split(b"\r\n\r\n", 1)
    m = re.search(rb"content-length: (\d+)", head.lower())
    while (len(body) < int(m.group(1))) if m else not body.endswith(b"0\r\n\r\n"):
        chunk = s.recv(65536)
        if not chunk:
            raise ConnectionResetError
        body += chunk
    return int(head[9:12])


def slope(points):
    """The slope of y over x, by least squares."""
    n = len(points)
    mx, my = sum(x for x, _ in points) / n, sum(y for _, y in points) / n
    return sum((x - mx) * (y - my) for x, y in points) / max(1e-9, sum((x - mx)**2 for x, _ in points))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--least-seconds", type=float, default=1800)
    row = Row(__doc__, 10**7, parser)
    keys = WORK / "keys"
    keys.write_text("".join(f"key-{i} name=n{i}\n" for i in range(KEYS)))
    lock, stop = threading.Lock(), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with Tiny("--api-key-file", keys, "--log-level", "error", "--kv-bytes", 1 << 24) as d:
        def client(i):
            rng = random.Random(row.seed * 100 + i)
            auth = f"Authorization: Bearer key-{i % KEYS}\r\n"
            s = None
            while not stop.is_set():
                try:
                    s = s or d.connect()
                    s.sendall(make(rng, auth))
                    status = read_answer(s, b"")
                except (OSError, AttributeError) as e:
                    row.fail(repr(e))
                    return
                if status >= 500 or status == 401:
                    row.fail(f"status {status}")
                if status >= 400 or rng.random() < 0.05:  # some refusals close the connection
                    s.close()
                    s = None
                with lock:
                    row.done()
                    if row.reached >= row.amount:
                        stop.set()
            if s:
                s.close()
        workers = [threading.Thread(target=client, args=(i,)) for i in range(CLIENTS)]
        for t in workers:
            t.start()
        begin, seen = time.monotonic(), []
        while any(t.is_alive() for t in workers):
            time.sleep(0.2)
            seen.append((time.monotonic() - begin, row.reached, rss_bytes(d.process.pid), n_files(d.process.pid)))
        took = time.monotonic() - begin
        d.eventually(lambda: n_files(d.process.pid) <= seen[0][3] + 1, 10, "descriptors are given back")
        row.expect(parse_answer(ask(d.port, get("/health", "Connection: close\r\n")))[0] == 200, "no answer any more")
        late = [p for p in seen if p[1] >= row.reached / 3]
        hour = slope([(t, r) for t, _, r, _ in late]) * 3600 / 2**20
        each = slope([(n, r) for _, n, r, _ in late])
        files = max(f for _, _, _, f in late) - max(f for _, _, _, f in seen[:max(1, len(seen) // 3)])
        row.expect(files <= 1, f"{files} descriptors more")
        if late[-1][0] - late[0][0] >= row.args.least_seconds:
            row.expect(hour <= SLOPE_MIB_H, f"{hour:.2f} MiB/h")
        elif row.reached >= 100000:
            row.expect(each <= BYTES_A_REQUEST, f"{each:.1f} bytes a request stay")
    row.expect(d.exit_code == 0, f"exit code {d.exit_code}")
    row.note(f"{took:.0f} s, {row.reached / took:.0f}/s, {seen[-1][2] / 2**20:.1f} MiB, slope {hour:.2f} MiB/h or {each:.2f} bytes a request, "
             f"{files} descriptors more")
    row.end(at_least=1)


if __name__ == "__main__":
    main()
