#!/usr/bin/env python3
"""Row 10: many simultaneous SSE streams beside twice as many idle connections. Nothing is lost or reordered: each stream delivers the tokens
that the same request delivers alone, in order, its usage, and its end. Afterwards the idle connections are served.

The amount is the number of streams."""
import asyncio
import json
import time

from lib import Row, Tiny, more_files, post

TOKENS, KINDS = 200, 40


def body(kind):
    return post("/v1/completions", {"prompt": [5 + kind, 9, 11], "max_tokens": TOKENS, "ignore_eos": True, "temperature": 0, "stream": True,
                                    "return_token_ids": True, "stream_options": {"include_usage": True}}, "Connection: close\r\n")


async def read_stream(port, raw, host):
    """Returns (tokens, usage, whether it ended properly)."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0), limit=1 << 20)
    writer.write(raw)
    tokens, usage, last = [], None, ""
    while line := await reader.readline():
        if line.startswith(b"data: "):
            last = line[6:].strip()
            if last != b"[DONE]":
                event = json.loads(last)
                for c in event["choices"]:
                    tokens += c.get("token_ids") or []
                usage = event.get("usage") or usage
    writer.close()
    return tokens, usage and usage["completion_tokens"], last == b"[DONE]"


async def idle(port, host):
    """A connection kept open after a first request; without any request it would count as late, not as idle."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0))
    writer.write(b"GET /health HTTP/1.1\r\nHost: t\r\n\r\n")
    await reader.readuntil(b'"ok"}')
    return reader, writer


async def is_served(pair):
    reader, writer = pair
    writer.write(b"GET /health HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    return answer.startswith(b"HTTP/1.1 200 ")


async def run(row, d):
    alone = [await read_stream(d.port, body(k), "127.0.0.1") for k in range(KINDS)]
    for k, (tokens, usage, ended) in enumerate(alone):
        row.expect(len(tokens) == TOKENS == usage and ended, f"alone, {k}: {len(tokens)} tokens, {usage}, {ended}")
    waiting = await asyncio.gather(*(idle(d.port, f"127.0.0.{2 + i % 8}") for i in range(2 * row.amount)))
    begin = time.monotonic()
    got = await asyncio.gather(*(read_stream(d.port, body(i % KINDS), f"127.0.0.{10 + i % 8}") for i in range(row.amount)))
    took = time.monotonic() - begin
    for i, g in enumerate(got):
        row.expect(g == alone[i % KINDS], f"stream {i}: {len(g[0])} tokens, usage {g[1]}, ended {g[2]}")
    good = await asyncio.gather(*map(is_served, waiting))
    row.expect(all(good), f"{good.count(False)} idle connections are not served")
    row.note(f"{len(waiting)} idle; {row.amount * TOKENS / took:.0f} tokens/s, whole in {took:.1f} s")


def main():
    more_files()
    row = Row(__doc__, 2000)
    n = 3 * row.amount + 100
    with Tiny("--connections", n, "--connections-per-ip", n, "--queue-requests", max(1024, row.amount + 1), "--kv-bytes", 1 << 28,
              "--http-idle-timeout-ms", 3600000) as d:
        asyncio.run(run(row, d))
        row.done(row.amount)
    row.expect(d.exit_code == 0, f"exit code {d.exit_code}")
    row.end()


if __name__ == "__main__":
    main()
