#!/usr/bin/env python3
"""Row 7: the device fails in step k of a run of 200 steps, for k from 1 to 200, repeatedly, with different loads. Every open stream gets
an error event and no [DONE], whole answers a 503, new requests a 503, and the process its own exit code. That includes requests that had
arrived but were not read yet when the device failed.

On the CPU backend (TANDEM_FAULT=device:K, kernels/fault.h); scripts/gpu-report does it on a GPU."""
import os
import random

from lib import SLOWNESS, Row, Tiny, parse_answer, post, read_all

FAULT, STEPS = 70, 200


def one(row, rng, step, round_):
    os.environ["TANDEM_FAULT"] = f"device:{step}"
    n, told = rng.randint(1, 6), 0
    with Tiny("--running-requests", rng.choice([1, 2, 8])) as d:
        sockets = [(d.connect(20), rng.random() < 0.6) for _ in range(n)]
        for s, stream in sockets:
            prompt = [5 + rng.randrange(400) for _ in range(rng.choice([1, 30, 200]))]
            s.sendall(post("/v1/completions", {
                "prompt": prompt, "max_tokens": 400, "ignore_eos": True, "stream": stream, "n": rng.choice([1, 1, 2]),
                "temperature": rng.choice([0, 1])}, "Connection: close\r\n"))
        for s, stream in sockets:
            try:
                raw = read_all(s)
                status, body = parse_answer(raw)
            except TimeoutError:
                raw, status, body = b"", "no end", b""
            s.close()
            told += status is not None
            if status == 200:
                good = stream and body and b'"engine_failed"' in body.rsplit(b"data: ", 1)[1] and b"[DONE]" not in body
            else:
                good = status == 503 and body and b'"engine_failed"' in body
            row.expect(good, f"step {step}, round {round_}: stream {stream}: {status} {(body or b'')[-200:]!r}")
        try:
            d.process.wait(20 * SLOWNESS)
        except Exception:  # noqa: BLE001: told below
            pass
    errors = [line for line in d.last_words.splitlines() if " error " in line]
    row.expect(d.exit_code == FAULT and len(errors) == 1, f"step {step}, round {round_}: exit code {d.exit_code}, {errors}")
    return told


def main():
    row = Row(__doc__, 3000)
    rng = random.Random(row.seed)
    steps = list(range(1, STEPS + 1))
    round_ = told = 0
    while row.reached < row.amount:
        rng.shuffle(steps)
        for step in steps[:row.amount - row.reached]:
            told += one(row, rng, step, round_)
            row.done()
        round_ += 1
    row.expect(told > row.amount, f"only {told} requests were told")
    row.note(f"{told} requests told, each that had been sent")
    row.end()


if __name__ == "__main__":
    main()
