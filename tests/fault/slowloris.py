#!/usr/bin/env python3
"""Row 12: thousands of clients that send a head byte by byte, or a body, or do not read their answer, beside one that behaves. A client that is
cut reconnects immediately. At least 99.9 % of the well-behaved client's requests are answered, and everything that the others held is
freed when they are gone.

The daemon is judged by its own CPU time, since this program and others share the cores: an answer counts if the daemon used no more than
CPU_S between request and answer, on all threads together. On an idle machine that is less than CPU_S of clock time.

The amount is the number of slow connections of each kind, from eight addresses and with a separate key."""
import argparse
import re
import selectors
import socket
import time

from lib import WORK, Row, Tiny, ask, cpu_s, get, more_files, n_files, parse_answer, post

GOOD, SPARE, ADDRESSES = 99.9, 96, 8
CPU_S, WAIT_S = 2, 120
AUTH = "Authorization: Bearer {}\r\nConnection: close\r\n"
HEAD = get("/v1/models", "X-Slow: " + "a" * 4000 + "\r\n")
BODY = post("/v1/completions", b'{"prompt": "' + b"a" * 4000, AUTH.format("slow"))
# More than the socket's buffers hold.
READ = post("/v1/completions", {"prompt": [5, 6], "max_tokens": 500, "logprobs": 5, "ignore_eos": True, "stream": True}, AUTH.format("slow"))
FINE = post("/v1/completions", {"prompt": [5, 6, 7], "max_tokens": 2}, AUTH.format("good"))
KINDS = {"head": (HEAD, 10), "body": (BODY, BODY.index(b"\r\n\r\n") + 4), "read": (READ, len(READ))}


class Slow:
    """Connections that send one byte a second after the first `at` bytes, and read nothing."""

    def __init__(self, port, n, raw, at):
        self.port, self.raw, self.at, self.n = port, raw, at, n
        self.selector, self.open, self.n_cut, self.opened = selectors.DefaultSelector(), {}, 0, 0

    def fill(self):
        while len(self.open) < self.n:
            s = socket.socket()
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            s.bind((f"127.0.1.{1 + self.opened % ADDRESSES}", 0))
            self.opened += 1
            s.settimeout(5)
            try:
                s.connect(("127.0.0.1", self.port))
                s.sendall(self.raw[:self.at])
            except OSError:
                s.close()
                return
            s.setblocking(False)
            self.open[s] = self.at

    def tick(self):
        """Sends one byte on each; detects connections that were cut, and opens them again."""
        for s in list(self.open):
            try:
                if self.open[s] < len(self.raw):
                    s.send(self.raw[self.open[s]:self.open[s] + 1])
                    self.open[s] += 1
                else:
                    s.send(b"\0")
                gone = False
            except BlockingIOError:
                gone = False
            except OSError:
                gone = True
            if gone:
                self.n_cut += 1
                del self.open[s]
                s.close()
        self.fill()

    def close(self):
        for s in self.open:
            s.close()


def main():
    more_files()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=45, help="of each kind")
    parser.add_argument("--kinds", default=",".join(KINDS))
    row = Row(__doc__, 4000, parser)
    keys = WORK / "keys"
    keys.write_text("slow\ngood\n")
    reached = []
    for kind in row.args.kinds.split(","):
        raw, at = KINDS[kind]
        with Tiny("--api-key-file", keys, "--log-level", "error", "--connections", row.amount + SPARE, "--listen-backlog", 4096,
                  "--connections-per-ip", max(64, row.amount // ADDRESSES + 1), "--sse-stall-ms", 10000, "--sse-queue-bytes", 65536, "--http-header-timeout-ms", 10000,
                  api_key="good") as d:
            slow = Slow(d.port, row.amount, raw, at)
            slow.fill()
            reached.append(len(slow.open))
            n = good = 0
            wrong, slowest, most_s, ticked, end = [], 0, 0, time.monotonic(), time.monotonic() + row.args.seconds
            while time.monotonic() < end:
                begin, used = time.monotonic(), cpu_s(d.process.pid)
                try:
                    status = parse_answer(ask(d.port, FINE, WAIT_S))[0]
                except OSError as e:
                    status = repr(e)
                slowest, used = max(slowest, time.monotonic() - begin), cpu_s(d.process.pid) - used
                most_s = max(most_s, used)
                n += 1
                good += status == 200 and used <= CPU_S
                if status != 200 or used > CPU_S:
                    wrong.append((status, round(used, 2)))
                time.sleep(0.005)
                if time.monotonic() - ticked > 1:
                    slow.tick()
                    ticked = time.monotonic()
            text = parse_answer(ask(d.port, get("/metrics", AUTH.format("good"))))[1].decode()
            cut = sum(float(m) for m in re.findall(r"^tandem:connections_cut_total\{.*\} (\S+)$", text, re.M))
            slow.close()
            d.eventually(lambda: n_files(d.process.pid) < 60, 30, "connections are given back")
            row.expect(100 * good >= GOOD * n and n > 20, f"{kind}: {good} of {n} answered: {wrong[:5]}")
            if row.args.seconds >= 20:
                row.expect(cut > 0, f"{kind}: nobody was cut")
            row.note(f"{kind}: {good} of {n} answered, slowest {1000 * slowest:.0f} ms, {1000 * most_s:.0f} ms of the daemon's, {cut:.0f} cut")
        row.expect(d.exit_code == 0, f"{kind}: exit code {d.exit_code}")
    row.done(min(reached))
    row.end()


if __name__ == "__main__":
    main()
