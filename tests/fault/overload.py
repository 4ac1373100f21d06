#!/usr/bin/env python3
"""Row 17: ten times as many requests as the daemon can serve, for the given time. Its goodput is at least 90 % of the most that it can
serve; refused requests get a 429 with Retry-After; admitted ones get complete answers.

The amount is the seconds of overload. The peak is measured before and after it, with as many clients as there are running places.

Other processes may use the cores meanwhile, so goodput is per unit of the daemon's own time: clock time, less the time in which the
engine's thread was ready to run but got no core. Time in which it is idle or blocked counts. The report also has the CPU time of all
threads, which shows the cost of refusing: one connection each."""
import asyncio
import pathlib
import random
import re
import time

from lib import Row, Tiny, cpu_s, more_files, parse_answer, percentile, post, threads

PLACES, TOKENS, TIMES, GOODPUT = 2, 1500, 10, 0.90



class Own:
    """The daemon's own time since creation: (seconds in which its engine had a core or needed none, CPU seconds of all threads)."""

    def __init__(self, pid):
        self.pid = pid
        self.begin = self.now()

    def now(self):
        used = {t: list(map(int, pathlib.Path(f"/proc/{self.pid}/task/{t}/schedstat").read_text().split())) for t in threads(self.pid)}
        engine = max(used.values())  # the engine is the thread that runs longest, because it computes
        return time.monotonic() - engine[1] / 1e9, cpu_s(self.pid)

    def rates(self, n):
        return [n / (now - before) for now, before in zip(self.now(), self.begin)]


async def ask(port, raw):
    """Returns (status, seconds, whether the answer is complete)."""
    begin = time.monotonic()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(raw)
        data = await reader.read()
        writer.close()
    except OSError:
        return None, 0, False
    status, body = parse_answer(data)
    return status, time.monotonic() - begin, body is not None and (status != 429 or re.search(rb"\r\nretry-after: [1-9]", data) is not None)


def request(rng):
    return post("/v1/completions", {"prompt": [5 + rng.randrange(400) for _ in range(20)], "max_tokens": TOKENS, "ignore_eos": True},
                "Connection: close\r\n")


async def closed(d, rng, n_clients, seconds):
    """Runs that many clients, each with one request at a time. Returns answers per second of each kind."""
    port, own = d.port, Own(d.process.pid)
    done, end = [0], time.monotonic() + seconds

    async def client():
        while time.monotonic() < end:
            status, _, whole = await ask(port, request(rng))
            done[0] += status == 200 and whole
    await asyncio.gather(*(client() for _ in range(n_clients)))
    return own.rates(done[0])


async def arrivals(row, d, rng, rate, seconds):
    """Sends at that rate regardless of the answers. Returns (answers per second of each kind, all outcomes, offered)."""
    seen, tasks = [], set()
    port, own = d.port, Own(d.process.pid)
    begin = time.monotonic()
    n = 0
    while (now := time.monotonic() - begin) < seconds:
        while n < rate * now:
            t = asyncio.create_task(ask(port, request(rng)))
            tasks.add(t)
            t.add_done_callback(lambda t: (tasks.discard(t), seen.append(t.result())))
            n += 1
        row.reached = int(now)
        await asyncio.sleep(0.005)
    rates = own.rates(len([1 for status, _, whole in seen if status == 200 and whole]))
    await asyncio.gather(*tasks)
    return rates, seen, n


async def run(row, d):
    rng = random.Random(row.seed)
    least = max(5, min(30, row.amount / 5))
    before = [max(rates) for rates in zip(*[await closed(d, rng, PLACES * k, least) for k in (1, 2)])]
    rates, seen, n = await arrivals(row, d, rng, TIMES * before[0], row.amount)
    after = await closed(d, rng, 2 * PLACES, least)
    peaks = [(a + b) / 2 for a, b in zip(before, after)]
    refused = [t for status, t, _ in seen if status == 429]
    row.expect(all(whole and status in (200, 429) for status, _, whole in seen),
               f"{[s for s in seen if not (s[2] and s[0] in (200, 429))][:5]} among {len(seen)}")
    row.expect(rates[0] >= GOODPUT * peaks[0], f"{rates[0]:.2f} answers a second of its own of {peaks[0]:.2f}")
    row.expect(len(refused) > len(seen) / 2, f"{len(refused)} of {len(seen)} refused: there was no overload")
    shares = [100 * rate / peak for rate, peak in zip(rates, peaks)]
    row.note(f"{rates[0]:.1f} answers a second of its own at {n / row.amount:.0f}/s offered, peak {peaks[0]:.1f} ({shares[0]:.0f} %); "
             f"by CPU {rates[1]:.2f} of {peaks[1]:.2f} ({shares[1]:.0f} %); "
             f"refusals {1000 * percentile(refused or [0], 50):.1f} ms, p99 {1000 * percentile(refused or [0], 99):.1f} ms (client and daemon share the cores)")


def main():
    more_files()
    row = Row(__doc__, 1800)
    # Steps of few tokens, so that the daemon is the bottleneck and not this program.
    with Tiny("--running-requests", PLACES, "--queue-requests", 4 * PLACES, "--threads", 1, "--connections-per-ip", 4000,
              "--log-level", "error", "--log-requests", 0) as d:
        asyncio.run(run(row, d))
        row.reached = row.amount
    row.expect(d.exit_code == 0, f"exit code {d.exit_code}")
    row.end()


if __name__ == "__main__":
    main()
