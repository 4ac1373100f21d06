#!/usr/bin/env python3
"""Row 2: malformed HTTP over loopback: hand-written texts, cut and joined in all ways known from published advisories, then mutations of
them. No crash, no hang, no 5xx, and after malformed input a connection gets at most one answer.

The amount is the number of mutations; the 600 of the hand-made set always run first."""
import random
import re
import select
import socket
import time


from lib import Row, Tiny, ask, get, more_files, parse_answer

import test_http  # after lib, which sets the path

METHODS = [b"GET", b"POST", b"HEAD", b"OPTIONS", b"PUT", b"get", b"", b"G\0T", b"CONNECT", b"PRI", b"GET\t", b" GET"]
TARGETS = [b"/health", b"/v1/completions", b"*", b"//", b"/%00", b"/../etc/passwd", b"http://t/health", b"http://x@t/health", b"/" * 300,
           b"/health#x", b"/health?a=\xff", b"", b"t:80"]
VERSIONS = [b"HTTP/1.1", b"HTTP/1.0", b"HTTP/0.9", b"HTTP/1.10", b"HTTP/01.1", b"http/1.1", b"HTTP/11", b"HTTP/1.1 ", b"HTTP /1.1", b""]
LENGTHS = [b"0", b"1", b"-1", b"+1", b"01", b"1 1", b"1,1", b"0x1", b"1e1", b"1.0", b" ", b"\t1", b"99999999999999999999", b"9223372036854775808",
           b"4294967296", b"1\x0b", b"\xef\xbc\x91"]
CODINGS = [b"chunked", b"Chunked", b"chunked,chunked", b"chunked, identity", b"identity", b"gzip", b"\x0bchunked", b"chunked\x0b", b"chun\0ked",
           b"\"chunked\"", b"chunked;q=1", b"", b" ", b",chunked", b"chunked,"]
NAMES = [b"Content-Length", b"content-length", b"Content-Length ", b" Content-Length", b"Content\0Length", b"Content_Length", b"Content-Length\t",
         b"Transfer-Encoding", b"Transfer_Encoding", b"Transfer-Encoding ", b"TRANSFER-ENCODING", b"Host", b"host ", b"Hos\xc2\xadt", b":", b"",
         b"X\r", b"X\n", b"X\rY", b"X\x80", b"X Y", b"X\x7f"]
ENDS = [b"\r\n", b"\n", b"\r", b"\r\r\n", b"\n\r", b"\x00\r\n", b"\r\n ", b"\x0b\r\n"]
CHUNKS = [b"1\r\na\r\n0\r\n\r\n", b"1\na\n0\n\n", b"01\r\na\r\n0\r\n\r\n", b"1;\r\na\r\n0\r\n\r\n", b"1;a=\"\r\n\"\r\na\r\n0\r\n\r\n", b"g\r\na\r\n",
          b"1 \r\na\r\n0\r\n\r\n", b" 1\r\na\r\n0\r\n\r\n", b"1\r\nab\r\n0\r\n\r\n", b"2\r\na\r\n0\r\n\r\n", b"-1\r\na\r\n0\r\n\r\n", b"0x1\r\na\r\n0\r\n\r\n",
          b"ffffffffffffffff\r\na", b"10000000000000000\r\na", b"1\r\na0\r\n\r\n", b"0\r\nContent-Length: 5\r\n\r\n", b"0\r\nX: y\r\n\r\n",
          b"0\r\n\r\nGET", b"1\r\na\r\n0\r\n \r\n", b"00000000000000000000001\r\na\r\n0\r\n\r\n", b"1\r\na\r\n00\r\n\r\n", b"1\x00\r\na\r\n0\r\n\r\n"]
TAIL = b"GET /health HTTP/1.1\r\nHost: behind\r\n\r\n"
AT_ONCE = 64


def by_hand():
    """Returns the bytes of about 600 connections."""
    out = [raw for raw, _ in test_http.MALFORMED.values()]
    post = b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
    for m in METHODS:
        for v in VERSIONS[:6]:
            out.append(m + b" /health " + v + b"\r\nHost: t\r\n\r\n")
    for t in TARGETS:
        for v in (b"HTTP/1.1", b"HTTP/1.0", b""):
            out.append(b"GET " + t + b" " + v + b"\r\nHost: t\r\n\r\n")
    for n in LENGTHS:
        out += [post + b"Content-Length: " + n + b"\r\n\r\n{", post + b"Content-Length:" + n + b"\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKS[0],
                post + b"Content-Length: 1\r\nContent-Length: " + n + b"\r\n\r\n{"]
    for c in CODINGS:
        out += [post + b"Transfer-Encoding: " + c + b"\r\n\r\n" + CHUNKS[0], post + b"Transfer-Encoding:" + c + b"\r\nContent-Length: 1\r\n\r\n{",
                post.replace(b"1.1", b"1.0") + b"Transfer-Encoding: " + c + b"\r\n\r\n" + CHUNKS[0]]
    for n in NAMES:
        for e in ENDS:
            out.append(post + n + b": 1" + e + b"\r\n{")
    for c in CHUNKS:
        out += [post + b"Transfer-Encoding: chunked\r\n\r\n" + c, post + b"Transfer-Encoding: chunked\r\nTrailer: X\r\n\r\n" + c]
    for e in ENDS:
        out += [b"GET /health HTTP/1.1" + e + b"Host: t" + e + e, b"GET /health HTTP/1.1\r\nHost: t" + e + b"\r\n", b"GET /health HTTP/1.1" + e,
                e + b"GET /health HTTP/1.1\r\nHost: t\r\n\r\n"]
    for name, value in ((b"Host", b"t\x00"), (b"Host", b"t,t"), (b"Host", b"t:99999"), (b"Host", b"[::1"), (b"Host", b"@"), (b"Host", b"t/"),
                        (b"Expect", b"100-continue, x"), (b"Connection", b"close, keep-alive"), (b"Connection", b"transfer-encoding"),
                        (b"Upgrade", b"h2c"), (b"Upgrade", b"websocket"), (b"Content-Type", b"text/plain"), (b"Content-Type", b"application/json;"),
                        (b"Content-Encoding", b"gzip"), (b"Authorization", b"Bearer \xff"), (b"Range", b"bytes=0-"), (b"x-request-id", b"a" * 5000)):
        for e in (b"\r\n", b"\n", b"\r\n\t"):
            out.append(b"GET /health HTTP/1.1\r\nHost: t\r\n" + name + b": " + value + e + b"\r\n")
    for n in (0, 1, 2, 3, 10, 63, 64, 65, 66, 100, 500, 1000):
        out += [b"GET /health HTTP/1.1\r\nHost: t\r\n" + b"A: b\r\n" * n + b"\r\n", b"GET /health HTTP/1.1\r\n" + b"Host: t\r\n" * n + b"\r\n"]
    return out


def mutate(rng, seeds):
    raw = bytearray(rng.choice(seeds))
    for _ in range(rng.choice([1, 1, 1, 2, 3, 8])):
        i, kind = rng.randrange(len(raw) + 1), rng.randrange(8)
        if kind == 0 and raw:
            raw[i % len(raw)] ^= 1 << rng.randrange(8)
        elif kind == 1:
            raw[i:i] = bytes([rng.randrange(256)])
        elif kind == 2:
            del raw[i:i + rng.choice([1, 1, 2, 10])]
        elif kind == 3:
            raw[i:i] = rng.choice(ENDS + LENGTHS + CODINGS)
        elif kind == 4:
            other = rng.choice(seeds)
            j = rng.randrange(len(other) + 1)
            raw[i:] = other[j:j + 4096]
        elif kind == 5:
            raw[i:i] = raw[i:i + rng.randrange(1, 60)]
        elif kind == 6:
            raw[i:i] = b"\r\n" + rng.choice(NAMES) + b": " + rng.choice(LENGTHS + CODINGS) + b"\r\n"
        else:
            raw[i:i + 1] = bytes([rng.choice(b"\r\n \t:,;\0")])
    return bytes(raw[:20000])


def talk(row, d, texts):
    """Sends each on its own connection, shuts down the sending side, and judges everything received until the daemon closes."""
    open_ = {}
    for raw in texts:
        s = socket.create_connection(("127.0.0.1", d.port), timeout=20)
        open_[s] = [raw, b""]
        try:
            s.sendall(raw)
            s.shutdown(socket.SHUT_WR)
        except OSError:
            pass
    end = time.monotonic() + 30
    while open_:
        ready, _, _ = select.select(list(open_), [], [], max(0, end - time.monotonic()))
        if not ready:
            for raw, got in open_.values():
                row.fail(f"hangs: {raw[:300]!r} after {got[:200]!r}")
            for s in open_:
                s.close()
            return
        for s in ready:
            try:
                chunk = s.recv(65536)
            except OSError:
                chunk = b""
            open_[s][1] += chunk
            if not chunk:
                raw, got = open_.pop(s)
                s.close()
                judge(row, raw, got)


def judge(row, raw, got):
    statuses = [int(m) for m in re.findall(rb"HTTP/1\.[01] (\d{3}) ", got)]
    if any(s >= 500 for s in statuses):
        row.fail(f"{statuses} for {raw[:400]!r}")
    refused = [i for i, s in enumerate(statuses) if s in (400, 405, 408, 413, 414, 431) and b"connection: close" in got.lower()]
    if refused and refused[0] != len(statuses) - 1 and got.count(b"connection: close") > 1:
        row.fail(f"goes on behind a refusal: {statuses} for {raw[:400]!r}")


def main():
    more_files()
    row = Row(__doc__, 1000000)
    rng = random.Random(row.seed)
    seeds = by_hand()
    valid = [b"GET /health HTTP/1.1\r\nHost: t\r\n\r\n", test_http.POST + test_http.LEN + b"\r\n" + test_http.BODY,
             test_http.POST + b"Transfer-Encoding: chunked\r\n\r\n" + test_http.chunked()]
    with Tiny("--log-level", "error", "--http-header-timeout-ms", 2000, "--http-body-grace-ms", 1000, "--connections-per-ip", 4000) as d:
        for i in range(0, len(seeds), AT_ONCE):
            talk(row, d, [raw + TAIL for raw in seeds[i:i + AT_ONCE]])
        row.note(f"{len(seeds)} by hand")
        seeds += valid * 40
        while row.reached < row.amount and row.n_failures < 20:
            n = min(AT_ONCE, row.amount - row.reached)
            talk(row, d, [mutate(rng, seeds) + rng.choice([b"", b"", TAIL]) for _ in range(n)])
            if not row.expect(d.alive(), f"it ended: {d.log()[-800:]}"):
                break
            row.done(n)
        if d.alive():
            row.expect(parse_answer(ask(d.port, get("/health", "Connection: close\r\n")))[0] == 200, "no answer any more")
    row.expect(d.exit_code == 0, f"exit code {d.exit_code}: {d.last_words[-500:]}")
    row.note(f"{row.reached / (time.monotonic() - row.begin):.0f}/s")
    row.end()


if __name__ == "__main__":
    main()
