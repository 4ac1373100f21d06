#!/usr/bin/env python3
"""Row 11: streams whose clients read one byte a second run beside fast ones. With slow readers, the fast ones' 99th percentile of the time
between two events is at most a tenth longer than without. A slow one takes at most 64 KiB of the daemon's memory, and is cut at its deadline.

The amount is the number of slow readers. They come and go repeatedly, and the same daemon is measured with and without them, because one of
two daemons can be a fifth slower for as long as both live. Medians are compared. The fast clients are tandem-bench's, which takes a sixth
of a core: a client slower than the daemon would measure itself."""
import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys
import time

from lib import WORK, Row, Tiny, ask, get, harness, more_files, parse_answer, post, rss_bytes

FAST, TOKENS, SLOW_TOKENS, ROUNDS, RUNS = 200, 250, 500, 3, 5
KV_BYTES, KV_TOKENS = 1 << 25, 1 << 16
MORE, KIB, STALL_S = 1.10, 64, 60
CLOSE = "Connection: close\r\n"
SLOW = post("/v1/completions", {"prompt": [5, 6], "max_tokens": SLOW_TOKENS, "ignore_eos": True, "stream": True, "logprobs": 5}, CLOSE)
BENCH = pathlib.Path(harness.DAEMON).with_name("tandem-bench")


def touch_kv(port):
    """Uses all pages once, so that they count as memory both before and after."""
    for i in range(KV_TOKENS // 2000 + 1):
        ask(port, post("/v1/completions", {"prompt": [5 + i] + [9 + j % 300 for j in range(2000)], "max_tokens": 1}, CLOSE), 60)


def metric(d, name):
    text = parse_answer(ask(d.port, get("/metrics", CLOSE)))[1].decode()
    return sum(float(m) for m in re.findall(rf"^{name}(?:\{{.*\}})? (\S+)$", text, re.M))


def read_a_byte(slow):
    for s in slow:
        try:
            s.recv(1)
        except BlockingIOError:
            pass


def measure(d, n, seed, slow):
    """The 99th percentile in ms of n simultaneous fast streams, while each slow one reads a byte a second."""
    out = WORK / "fast.json"
    bench = subprocess.Popen([BENCH, "serve", "--url", f"http://127.0.0.1:{d.port}", "--streams", str(n), "--requests", str(n), "--seed", str(seed),
                              "--input", "2", "--output", str(TOKENS), "--ignore-eos", "--first-id", "5", "--vocab", "400", "--warm", "0",
                              "--json", out], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while bench.poll() is None:
        read_a_byte(slow)
        try:
            bench.wait(1)
        except subprocess.TimeoutExpired:
            pass
    (seen,) = json.loads(out.read_text())["runs"]
    assert bench.returncode == 0 and seen["done"] == n and not seen["errors"], seen
    return seen["tbt_ms"]["p99"]


def connect_slow(d, n):
    """Opens that many streams, whose answers are produced but not read."""
    slow = []
    for _ in range(n):
        s = d.connect(rcvbuf=2048)
        s.sendall(SLOW)
        s.setblocking(False)
        slow.append(s)
    d.eventually(lambda: metric(d, "vllm:num_requests_running") + metric(d, "vllm:num_requests_waiting") == 0, 120, "answers are made")
    return slow


def main():
    more_files()
    parser = argparse.ArgumentParser(description=__doc__)
    row = Row(__doc__, 1000, parser)
    n_fast = min(FAST, max(10, row.amount // 5))
    options = ("--running-requests", 256, "--queue-requests", 4096, "--connections-per-ip", 4000, "--log-level", "error", "--kv-bytes", KV_BYTES,
               "--sse-stall-ms", STALL_S * 1000, "--sse-queue-bytes", 16384)  # then the kernel's buffers hold that much, and not a whole answer
    with Tiny(*options) as d:
        measure(d, n_fast, 0, [])
        touch_kv(d.port)
        with_slow, without, each = [], [], []
        for i, out in enumerate([with_slow, without, without, with_slow] * ROUNDS):  # so that drift affects both alike
            before, slow = rss_bytes(d.process.pid), []
            if out is with_slow:
                slow, made = connect_slow(d, row.amount), time.monotonic()
                each.append((rss_bytes(d.process.pid) - before) / row.amount / 1024)
            out += [measure(d, n_fast, 1 + RUNS * i + k, slow) for k in range(RUNS)]
            still = metric(d, "tandem:connections") - 1
            row.expect(still >= 0.9 * len(slow), f"{still:.0f} slow ones are left: the row proves nothing")
            print(f"  {'beside slow ones' if slow else 'without'}: {' '.join(f'{x:.1f}' for x in out[-RUNS:])} ms", file=sys.stderr, flush=True)
            if i < 4 * ROUNDS - 1:
                for s in slow:
                    s.close()
                d.eventually(lambda: metric(d, "tandem:connections") == 1, 20, "the slow ones have gone")
        a, b = statistics.median(with_slow), statistics.median(without)
        row.expect(a <= MORE * b, f"p99 TBT {a:.1f} ms beside them, {b:.1f} ms without")
        row.expect(max(each) <= KIB, f"{max(each):.1f} KiB each")
        while metric(d, "tandem:connections") > 1 and time.monotonic() < made + STALL_S + 30:
            time.sleep(0.5)
        took, cut = time.monotonic() - made, metric(d, "tandem:connections_cut_total")
        row.expect(metric(d, "tandem:connections") == 1 and cut == row.amount, f"{cut:.0f} cut after {took:.0f} s")
        row.note(f"p99 TBT {a:.1f} ms beside {still:.0f} slow ones, {b:.1f} ms without; {max(each):.1f} KiB each; cut after {took:.0f} s: {cut:.0f}")
        for s in slow:
            s.close()
        row.done(row.amount)
    row.expect(d.exit_code == 0, f"exit code {d.exit_code}")
    row.end()


if __name__ == "__main__":
    main()
