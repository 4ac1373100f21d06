#!/usr/bin/env python3
"""Row 3: payloads that two parsers could split in different places, through nginx and through haproxy (Debian's), which share connections to
the daemon between all clients. The daemon must have seen as many requests as the proxy sent, and the next client on the same connections
must get the answer to its own request.

The amount is the number of payloads for each proxy. If a proxy is not installed, the program says so and does not test it."""
import argparse
import os
import pathlib
import random
import re
import shutil
import socket
import subprocess
import time

from lib import SLOWNESS, WORK, Row, Tiny, ask, get, harness, parse_answer

from hostile_http import CHUNKS, CODINGS, ENDS, LENGTHS, by_hand, mutate

NGINX = """daemon off; master_process off; pid {work}/nginx.pid; error_log {work}/nginx.error warn;
events {{ worker_connections 512; }}
http {{
  log_format counted '$upstream_status $request_length $request'; access_log {work}/proxy.log counted;
  client_body_temp_path {work}/b; proxy_temp_path {work}/p; fastcgi_temp_path {work}/f; uwsgi_temp_path {work}/u; scgi_temp_path {work}/s;
  underscores_in_headers on; ignore_invalid_headers off; client_header_timeout 2s; client_body_timeout 2s; keepalive_timeout 2s;
  upstream daemon {{ server 127.0.0.1:{backend}; keepalive 8; }}
  server {{ listen 127.0.0.1:{port}; location / {{
    proxy_pass http://daemon; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host t;
    proxy_request_buffering {buffering}; proxy_next_upstream off; proxy_ignore_client_abort on; }} }}
}}
"""
HAPROXY = """global
  log {work}/proxy.socket len 8192 local0
  maxconn 512
defaults
  mode http
  log global
  log-format "%s %ST %bq"
  timeout connect 2s
  timeout client 2s
  timeout server 5s
  timeout http-request 2s
  option accept-invalid-http-request
  http-reuse always
  retries 0
frontend f
  bind 127.0.0.1:{port}
  default_backend b
backend b
  http-request set-header Host t
  server daemon 127.0.0.1:{backend}
"""
HIDDEN = b"GET /hidden HTTP/1.1\r\nHost: t\r\nX: "
AT_ONCE = 40
POST = b"POST /tokenize HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"


def payloads(rng, n):
    """Yields published attacks first, then all combinations of lengths, codings, ends and chunks, then mutations of these."""
    out = []
    whole = b"0\r\n\r\n" + HIDDEN
    names = [b"Transfer-Encoding", b"Transfer-Encoding ", b" Transfer-Encoding", b"Transfer_Encoding", b"transfer-encoding\t", b"X: y\r\nTransfer-Encoding",
             b"X: y\nTransfer-Encoding", b"X: y\rTransfer-Encoding", b"\x00Transfer-Encoding", b"Transfer-Encoding\x00"]
    for c in CODINGS:
        for name in names:
            for first in (True, False):
                length = b"Content-Length: %d\r\n" % len(whole)
                te = name + b": " + c + b"\r\n"
                out.append(POST + (length + te if first else te + length) + b"\r\n" + whole)
    for n_bytes in LENGTHS:
        for other in (b"5", b"0", b"%d" % len(HIDDEN)):
            for e in ENDS[:4]:
                out.append(POST + b"Content-Length: " + other + e + b"Content-Length: " + n_bytes + b"\r\n\r\n" + HIDDEN)
    for c in CHUNKS:
        for e in (b"\r\n", b"\n"):
            out.append(POST + b"Transfer-Encoding: chunked" + e + b"\r\n" + c + HIDDEN)
    for m in (b"GET", b"HEAD", b"DELETE", b"OPTIONS"):
        for n_bytes in (b"%d" % len(HIDDEN), b"0", b"5"):
            out.append(m + b" /health HTTP/1.1\r\nHost: t\r\nContent-Length: " + n_bytes + b"\r\n\r\n" + HIDDEN)
            out.append(m + b" /health HTTP/1.0\r\nHost: t\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\nContent-Length: " + n_bytes +
                       b"\r\n\r\n0\r\n\r\n" + HIDDEN)
    out += [raw + HIDDEN for raw in by_hand()]
    while len(out) < n:
        out.append(mutate(rng, out) + rng.choice([HIDDEN, b""]))
    return out[:n]


class Nginx:
    def __init__(self, backend, port, buffering):
        self.log = WORK / "proxy.log"
        config = WORK / "nginx.conf"
        config.write_text(NGINX.format(work=WORK, backend=backend, port=port, buffering=buffering))
        self.process = subprocess.Popen([tool("nginx"), "-c", str(config), "-p", str(WORK)], stderr=subprocess.DEVNULL)

    def count(self):
        """Returns (requests that the daemon answered, requests without an answer that reached it or a connection that had just ended)."""
        lines = self.log.read_bytes().splitlines() if self.log.exists() else []
        lost = sum(line.startswith((b"502", b"504")) for line in lines)
        return sum(bool(re.match(rb"[1-5]\d\d", line)) for line in lines) - lost, lost


class Haproxy:
    def __init__(self, backend, port, _):
        self.log = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.log.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        self.log.bind(str(WORK / "proxy.socket"))
        self.log.setblocking(False)
        self.n = self.lost = 0
        config = WORK / "haproxy.conf"
        config.write_text(HAPROXY.format(work=WORK, backend=backend, port=port))
        self.process = subprocess.Popen([tool("haproxy"), "-db", "-q", "-f", str(config)], stderr=subprocess.DEVNULL)

    def count(self):
        while True:
            try:
                line = self.log.recv(65536)
            except BlockingIOError:
                return self.n, self.lost
            self.n += bool(re.search(rb"daemon (?!50[234])[1-5]\d\d ", line))
            self.lost += bool(re.search(rb"daemon (?:50[234]|-1) ", line))  # -1: the client closed before the answer arrived


def tool(name):
    return shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin:/usr/local/sbin")


def seen(d):
    raw = parse_answer(ask(d.port, get("/metrics", "Connection: close\r\n")))[1].decode()
    return sum(float(m) for m in re.findall(r"^tandem:http_responses_total\{[^}]*\} (\S+)$", raw, re.M))


def attack(row, name, d, proxy, port, batch):
    """Sends each payload on its own connection, and then compares both counts."""
    d.eventually(lambda: answers(port), 10, f"{name} answers")
    time.sleep(0.05)
    before, sent = seen(d) + 1, proxy.count()  # + 1: the request made here
    sockets = []
    for raw in batch:
        s = socket.create_connection(("127.0.0.1", port), timeout=10 * SLOWNESS)
        try:
            s.sendall(raw)
            s.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        sockets.append(s)
    for s in sockets:
        try:
            harness.read_all(s)
        except TimeoutError:
            row.fail(f"{name}: hangs")
        s.close()
    end, n = time.monotonic() + 3, 0
    while time.monotonic() < end:
        n += 1
        there, here, lost = seen(d) - before - (n - 1), proxy.count()[0] - sent[0], proxy.count()[1] - sent[1]
        if here <= there <= here + lost:
            return True
        time.sleep(0.05)
    return (there, here)


def answers(port):
    try:
        status, body = parse_answer(ask(port, get("/v1/models", "Connection: close\r\n"), 5))
    except OSError:
        return False
    return status == 200 and body is not None and b'"object":"list"' in body


def run(row, name, make, buffering, texts):
    port = harness.free_port()
    for f in ("proxy.log", "proxy.socket"):
        pathlib.Path(WORK / f).unlink(missing_ok=True)
    total = 0
    with Tiny("--log-level", "error", "--trusted-proxies", "127.0.0.1", "--http-header-timeout-ms", 3000, "--http-body-grace-ms", 3000) as d:
        proxy = make(d.port, port, buffering)
        try:
            for i in range(0, len(texts), AT_ONCE):
                batch = texts[i:i + AT_ONCE]
                counts = attack(row, name, d, proxy, port, batch)
                if counts is not True:  # find out which payload it was
                    for raw in batch:
                        one = attack(row, name, d, proxy, port, [raw])
                        if one is not True:
                            row.fail(f"{name}: the daemon saw {one[0]:.0f} requests, the proxy sent {one[1]}: {raw[:300]!r}")
                if not row.expect(answers(port), f"{name}: the next client does not get his answer: {batch!r}"[:3000]):
                    break
                total += len(batch)
            row.note(f"{name}: {total} payloads, {proxy.count()[0]} requests reached the daemon")
        finally:
            proxy.process.terminate()
            proxy.process.wait(10)
    row.expect(d.exit_code == 0, f"{name}: exit code {d.exit_code}")
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    row = Row(__doc__, 2000, parser)
    texts = payloads(random.Random(row.seed), row.amount)
    reached = []
    for name, make, buffering in (("nginx", Nginx, "off"), ("nginx, bodies buffered", Nginx, "on"), ("haproxy", Haproxy, "")):
        if not tool(name.split(",")[0]):
            row.note(f"{name} is not installed: not run")
            reached.append(0)
        else:
            reached.append(run(row, name, make, buffering, texts))
    row.done(min(reached))
    row.end()


if __name__ == "__main__":
    main()
