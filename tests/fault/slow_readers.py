#!/usr/bin/env python3
"""Row 11: streams whose clients read one byte a second beside fast ones. The fast ones' 99th percentile of the time between two events
is at most a tenth more than without the slow, a slow one takes at most 64 KiB of the daemon's memory, and is cut at its deadline.

The amount is the number of slow readers. A round with them and one without take turns; the medians over the rounds are compared."""
import argparse
import asyncio
import re
import statistics
import time

from lib import Row, Tiny, ask, get, more_files, parse_answer, percentile, post, rss_bytes

FAST, TOKENS, ROUNDS = 200, 60, 9
KV_BYTES, KV_TOKENS = 1 << 25, 1 << 16
MORE, KIB, STALL_S = 1.10, 64, 30
CLOSE = "Connection: close\r\n"
SLOW = post("/v1/completions", {"prompt": [5, 6], "max_tokens": 500, "ignore_eos": True, "stream": True, "logprobs": 5}, CLOSE)
QUICK = post("/v1/completions", {"prompt": [7, 8], "max_tokens": TOKENS, "ignore_eos": True, "stream": True}, CLOSE)


async def gaps_of(port, raw):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(raw)
    times = []
    while line := await reader.readline():
        if line.startswith(b"data: "):
            times.append(time.perf_counter())
    writer.close()
    return [b - a for a, b in zip(times, times[1:])]


async def fast(port, n, raw=QUICK):
    """All gaps of n streams at once."""
    return [g for gaps in await asyncio.gather(*(gaps_of(port, raw) for _ in range(n))) for g in gaps]


def touch_kv(port):
    """Once all pages were used, they count as memory before and after."""
    for i in range(KV_TOKENS // 2000 + 1):
        ask(port, post("/v1/completions", {"prompt": [5 + i] + [9 + j % 300 for j in range(2000)], "max_tokens": 1}, CLOSE), 60)


def metric(d, name):
    text = parse_answer(ask(d.port, get("/metrics", CLOSE)))[1].decode()
    return sum(float(m) for m in re.findall(rf"^{name}(?:\{{.*\}})? (\S+)$", text, re.M))


def main():
    more_files()
    parser = argparse.ArgumentParser(description=__doc__)
    row = Row(__doc__, 1000, parser)
    n_fast = min(FAST, max(10, row.amount // 5))
    options = ("--running-requests", 256, "--queue-requests", 4096, "--connections-per-ip", 4000, "--log-level", "error", "--kv-bytes", KV_BYTES,
               "--sse-stall-ms", STALL_S * 1000, "--sse-queue-bytes", 16384)  # the kernel then holds as much, and not a whole answer
    with Tiny(*options) as d, Tiny(*options) as other:
        for one in (d, other):
            asyncio.run(fast(one.port, n_fast))
            touch_kv(one.port)
        before, slow = rss_bytes(d.process.pid), []
        for _ in range(row.amount):
            s = d.connect(rcvbuf=2048)
            s.sendall(SLOW)
            slow.append(s)
        d.eventually(lambda: metric(d, "vllm:num_requests_running") + metric(d, "vllm:num_requests_waiting") == 0, 120, "answers are made")
        asyncio.run(fast(other.port, row.amount, SLOW))  # the same work, read: both have learned the same of their steps
        made = time.monotonic()
        each = (rss_bytes(d.process.pid) - before) / row.amount / 1024
        row.expect(metric(d, "tandem:connections") >= 0.9 * row.amount, "the slow ones are not there any more: the row proves nothing")
        with_slow, without = [], []
        for i in range(ROUNDS):
            for port, out in ((d.port, with_slow), (other.port, without))[::1 if i % 2 else -1]:
                for s in slow:
                    try:
                        s.setblocking(False)
                        s.recv(1)
                    except BlockingIOError:
                        pass
                out.append(percentile(asyncio.run(fast(port, n_fast)), 99))
        still = metric(d, "tandem:connections")
        a, b = statistics.median(with_slow), statistics.median(without)
        row.expect(a <= MORE * b, f"p99 TBT {1000 * a:.1f} ms beside them, {1000 * b:.1f} ms without")
        row.expect(each <= KIB, f"{each:.1f} KiB each")
        while metric(d, "tandem:connections") > 3 and time.monotonic() < made + STALL_S + 30:
            time.sleep(0.5)
        took = time.monotonic() - made
        row.expect(metric(d, "tandem:connections") <= 3, f"not cut after {took:.0f} s")
        row.note(f"p99 TBT {1000 * a:.1f} ms beside {still:.0f} slow ones, {1000 * b:.1f} ms without; {each:.1f} KiB each; "
                 f"cut after {took:.0f} s: {metric(d, 'tandem:connections_cut_total'):.0f}")
        for s in slow:
            s.close()
        row.done(row.amount)
    row.expect(d.exit_code == 0 and other.exit_code == 0, f"exit codes {d.exit_code}, {other.exit_code}")
    row.end()


if __name__ == "__main__":
    main()
