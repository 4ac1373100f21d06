#!/usr/bin/env python3
"""Row 19: can a key learn from its own times to first token whether another key has sent a prompt? In half of the trials the victim sends a
prompt; then the attacker sends the same prompt and measures. The area under the ROC curve of the attacker's guess must be near one half.
The same attack within one key, where the prefix cache does help, shows that the measurement would detect it.

The amount is the number of pairs of measurements."""
import random
import socket
import time

from lib import WORK, Row, Tiny, post

LENGTH = 1500
BOUND, CONTROL = 0.55, 0.9
KEYS = "key-of-victim\nkey-of-attacker\n"


def ttft(port, prompt, key):
    raw = post("/v1/completions", {"prompt": prompt, "max_tokens": 1, "stream": True, "temperature": 0},
               f"Authorization: Bearer {key}\r\nConnection: close\r\n")
    with socket.create_connection(("127.0.0.1", port), timeout=60) as s:
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        begin = time.perf_counter()
        s.sendall(raw)
        out = b""
        while b"data: " not in out:
            chunk = s.recv(65536)
            assert chunk, out
            out += chunk
        took = time.perf_counter() - begin
        while s.recv(65536):
            pass
    return took


def auc(hits, misses):
    """The share of pairs in which a hit is faster than a miss; one half means that it cannot be told."""
    ranked = sorted([(t, 1) for t in hits] + [(t, 0) for t in misses])
    below = wins = 0
    for _, hit in ranked:
        if hit:
            below += 1
        else:
            wins += below
    return wins / (len(hits) * len(misses))


def measure(port, rng, n, victim, attacker):
    times = {True: [], False: []}
    for _ in range(n):
        for sent in rng.sample([True, False], 2):
            prompt = [5 + rng.randrange(400) for _ in range(LENGTH)]
            other = [5 + rng.randrange(400) for _ in range(LENGTH)]
            ttft(port, prompt if sent else other, victim)  # the same work either way
            times[sent].append(ttft(port, prompt, attacker))
    return auc(times[True], times[False])


def main():
    row = Row(__doc__, 1000)
    rng = random.Random(row.seed)
    keys = WORK / "keys"
    keys.write_text(KEYS)
    with Tiny("--api-key-file", keys, "--cache-dir", WORK / "cache") as d:
        a = measure(d.port, rng, row.amount, "key-of-victim", "key-of-attacker")
        control = measure(d.port, rng, min(100, row.amount), "key-of-attacker", "key-of-attacker")
        row.done(row.amount)
    # With few pairs the share scatters more, so three standard errors are allowed.
    bound = max(BOUND, 0.5 + 3 * (1 / (6 * row.amount)) ** 0.5)
    row.expect(1 - bound <= a <= bound, f"AUC {a:.3f}")
    row.expect(control >= CONTROL, f"within a key AUC {control:.3f} only: the measurement is blind")
    row.expect(d.exit_code == 0, f"exit code {d.exit_code}")
    row.note(f"AUC {a:.3f} between two keys, {control:.3f} within one")
    row.end()


if __name__ == "__main__":
    main()
