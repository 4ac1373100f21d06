#!/usr/bin/env python3
"""Row 13: clients disconnect in every state: while they send head or body, while they wait in the queue, in a prompt, in an answer,
between two requests. Within two steps after the last one, pages and requests are back to their numbers before."""
import random
import socket
import struct
import time

from lib import Row, Tiny, ask, get, parse_answer, post

BATCH = 50
STEPS = 2
PROMPT = [5 + i % 400 for i in range(300)]
REQUESTS = [
    post("/v1/completions", {"prompt": PROMPT, "max_tokens": 3000, "ignore_eos": True, "stream": True}),
    post("/v1/completions", {"prompt": PROMPT, "max_tokens": 3000, "ignore_eos": True, "n": 4}),
    post("/v1/completions", {"prompt": PROMPT[:20], "max_tokens": 3000, "ignore_eos": True, "stream": True, "logprobs": 3}),
    post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3000, "stream": True,
                                  "response_format": {"type": "json_object"}}),
    post("/tokenize", {"prompt": "many words " * 3000}),
]


def metrics(d):
    out = {}
    for line in parse_answer(ask(d.port, get("/metrics", "Connection: close\r\n")))[1].decode().splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            out[name.split("{")[0] + (":owned" if 'state="owned"' in name else "")] = float(value)
    return out


def leave(s, rng):
    if rng.random() < 0.3:  # a reset instead of an orderly close
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.close()


def main():
    row = Row(__doc__, 100000)
    rng = random.Random(row.seed)
    worst = 0
    with Tiny("--running-requests", 16, "--queue-requests", 512, "--connections-per-ip", 4000) as d:
        while row.reached < row.amount:
            held = []
            n = min(BATCH, row.amount - row.reached)
            for _ in range(n):
                raw = rng.choice(REQUESTS)
                cut = rng.choice([rng.randrange(len(raw)), len(raw), len(raw), len(raw)])
                s = d.connect()
                s.sendall(raw[:cut])
                if rng.random() < 0.2:
                    time.sleep(rng.choice([0.001, 0.01]))
                if rng.random() < 0.5:
                    leave(s, rng)
                else:
                    held.append(s)
            for s in held:
                leave(s, rng)
            metrics(d)  # the loop handles the closes no later than this request
            before = metrics(d)["tandem:steps_total"]
            end = time.monotonic() + 20
            while True:
                m = metrics(d)
                idle = all(m[k] == 0 for k in ("vllm:num_requests_running", "vllm:num_requests_waiting", "tandem:requests_reading",
                                               "tandem:pages:owned"))
                if idle or time.monotonic() > end:
                    break
            if not row.expect(idle, f"after {row.reached}: {[(k, v) for k, v in m.items() if 'requests' in k or 'owned' in k]}"):
                break
            worst = max(worst, m["tandem:steps_total"] - before)
            row.expect(m["tandem:connections"] <= 2, f"{m['tandem:connections']} connections are open")
            row.done(n)
        row.expect(parse_answer(ask(d.port, post("/v1/completions", {"prompt": [5], "max_tokens": 2}, "Connection: close\r\n")))[0] == 200,
                   "it does not answer any more")
    row.expect(d.exit_code == 0, f"exit code {d.exit_code}")
    row.expect(worst <= STEPS, f"{worst:.0f} steps until the pages were back")
    row.note(f"at most {worst:.0f} steps until pages are back")
    row.end()


if __name__ == "__main__":
    main()
