"""Runs the real daemon for the end-to-end tests: start, wait, watch, stop, and read its log.

Environment variables (scripts/test sets them):
  TANDEM_BIN           the daemon; default build/tandemd
  TANDEM_TEST_MODEL    the real model's GGUF; default .cache/models/SmolLM2-135M-Instruct.Q4_1.gguf; for sanitizers, its first layers
  TANDEM_E2E_SLOWNESS  how many times slower than a release build the daemon is (sanitizers); scales waits
  TANDEM_E2E_STREAMS   number of concurrent streams in the isolation test"""
import functools
import json
import os
import pathlib
import re
import signal
import socket
import ssl
import subprocess
import tempfile
import time

import httpx

# Every httpx.get and every client reads all certificates of the machine, for 50 ms of CPU time, and no test here uses TLS. So they are
# read once.
ssl.create_default_context = functools.cache(ssl.create_default_context)

ROOT = pathlib.Path(__file__).resolve().parents[2]
DAEMON = os.environ.get("TANDEM_BIN", str(ROOT / "build" / "tandemd"))
MODEL = os.environ.get("TANDEM_TEST_MODEL", str(ROOT / ".cache/models/SmolLM2-135M-Instruct.Q4_1.gguf"))
MODEL_ID = "SmolLM2-135M-Instruct.Q4_1"
SLOWNESS = float(os.environ.get("TANDEM_E2E_SLOWNESS", "1"))
STREAMS = int(os.environ.get("TANDEM_E2E_STREAMS", "64"))

# Words that a sanitizer, or the daemon at a broken invariant, writes to the log.
DEATH_WORDS = re.compile(r"AddressSanitizer|LeakSanitizer|ThreadSanitizer|UndefinedBehavior|runtime error:|bug: \S+:\d+:")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run_daemon(*args, timeout=60, env=None):
    """Runs the daemon to its end (for starts that must fail); returns (exit code, all output)."""
    r = subprocess.run([DAEMON, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout * SLOWNESS,
                       env={**os.environ, **(env or {})}, stdin=subprocess.DEVNULL)
    return r.returncode, r.stdout.decode("utf-8", "replace")


class Daemon:
    """A running tandemd. `with Daemon("--queue-requests", 2) as d:` stops it and checks that it ended properly."""

    def __init__(self, *options, model=MODEL, wait=True, kv_bytes=1 << 30, api_key="none", expect_exit=0, pass_fds=()):
        self.options = [str(o) for o in options]
        if kv_bytes and "--kv-bytes" not in self.options:
            self.options += ["--kv-bytes", str(kv_bytes)]
        if "--cache-dir" not in self.options:  # only tests about kept step times keep them
            self.options += ["--cache-dir", ""]
        if "--allowed-hosts" not in self.options:  # the name that tests with raw sockets use
            self.options += ["--allowed-hosts", "t"]
        self.model, self.wait, self.api_key, self.expect_exit, self.pass_fds = str(model), wait, api_key, expect_exit, pass_fds
        self.process = None

    def __enter__(self):
        for _ in range(5):  # another process may take the port between the choice and the bind: exit code 66
            self.port = free_port()
            self.log_file = tempfile.NamedTemporaryFile(prefix="tandemd-", suffix=".log", delete=False)
            self.process = subprocess.Popen(
                [DAEMON, "--model", self.model, "--listen", f"127.0.0.1:{self.port}", *self.options],
                stdout=self.log_file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, pass_fds=self.pass_fds)
            self.url = f"http://127.0.0.1:{self.port}"
            if not self.wait or self.wait_ready():
                return self
        raise AssertionError(f"no port could be bound: {self.log()}")

    def wait_ready(self, seconds=60):
        end = time.monotonic() + seconds * SLOWNESS
        while time.monotonic() < end:
            if self.process.poll() is not None:
                if self.process.returncode == 66:
                    return False
                raise AssertionError(f"tandemd ended with {self.process.returncode}:\n{self.log()}")
            try:
                if httpx.get(self.url + "/ready", timeout=5).status_code == 200:
                    return True
            except httpx.TransportError:
                pass
            time.sleep(0.02)
        self.process.kill()
        raise AssertionError(f"tandemd was not ready after {seconds * SLOWNESS:.0f} s:\n{self.log()}")

    def log(self):
        return pathlib.Path(self.log_file.name).read_text("utf-8", "replace")

    def stop(self, seconds=60):
        """SIGTERM, then the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds * SLOWNESS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"tandemd did not stop in {seconds * SLOWNESS:.0f} s:\n{self.log()[-3000:]}") from None

    def __exit__(self, kind, value, trace):
        try:
            code = self.stop()
            if kind is None:
                assert code == self.expect_exit, f"exit code {code}:\n{self.log()[-3000:]}"
                assert not DEATH_WORDS.search(self.log()), self.log()[-6000:]
        finally:
            self.log_file.close()
            if kind is None:
                os.unlink(self.log_file.name)
            else:
                print(f"daemon's log: {self.log_file.name}\n{self.log()[-4000:]}")

    # ---- requests ----

    def client(self, **kw):
        import openai  # takes a second of CPU time, and tests/fault's programs do not need it
        kw.setdefault("api_key", self.api_key)
        return openai.OpenAI(base_url=self.url + "/v1", max_retries=0, timeout=120 * SLOWNESS, **kw)

    def aclient(self, **kw):
        import openai
        kw.setdefault("api_key", self.api_key)
        return openai.AsyncOpenAI(base_url=self.url + "/v1", max_retries=0, timeout=120 * SLOWNESS, **kw)

    def get(self, path, **kw):
        return httpx.get(self.url + path, timeout=60 * SLOWNESS, **kw)

    def raw(self, method, path, **kw):
        return httpx.request(method, self.url + path, timeout=60 * SLOWNESS, **kw)

    def post(self, path, body, **kw):
        """body: an object sent as JSON, or bytes sent as they are."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"content-type": "application/json", **kw.pop("headers", {})}
        return httpx.post(self.url + path, content=raw, headers=headers, timeout=120 * SLOWNESS, **kw)

    def tokens(self, prompt, **fields):
        """Greedy completion as token ids."""
        body = {"model": MODEL_ID, "prompt": prompt, "temperature": 0, "max_tokens": 16, "return_token_ids": True, **fields}
        r = self.post("/v1/completions", body)
        assert r.status_code == 200, r.text
        return r.json()["choices"][0]["token_ids"]

    def metrics(self):
        r = self.get("/metrics")
        assert r.status_code == 200, r.text
        return parse_metrics(r.text)

    def gauge(self, name):
        """A metric with one sample, whatever its labels."""
        values = [v for (n, _), v in self.metrics().items() if n == name]
        assert len(values) == 1, f"{name}: {values}"
        return values[0]

    def eventually(self, check, seconds=10, what="condition", every_s=0.05):
        end = time.monotonic() + seconds * SLOWNESS
        while True:
            value = check()
            if value:
                return value
            assert time.monotonic() < end, f"{what} did not come true in {seconds * SLOWNESS:.0f} s"
            time.sleep(every_s)

    def until_idle(self, seconds=10):
        self.eventually(lambda: self.gauge("vllm:num_requests_running") == 0 and self.gauge("vllm:num_requests_waiting") == 0,
                        seconds, "idle")

    def connect(self, timeout=20, rcvbuf=None):
        s = socket.socket()
        if rcvbuf:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
        s.settimeout(timeout * SLOWNESS)
        s.connect(("127.0.0.1", self.port))
        return s

    def send_request(self, s, path, body, headers=""):
        raw = json.dumps(body).encode()
        s.sendall(f"POST {path} HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n{headers}"
                  f"Content-Length: {len(raw)}\r\n\r\n".encode() + raw)


def read_all(s):
    """Reads until the peer closes (a reset counts as the end)."""
    out = b""
    try:
        while chunk := s.recv(65536):
            out += chunk
    except ConnectionResetError:
        pass
    return out


def read_until(s, mark):
    out = b""
    while mark not in out:
        chunk = s.recv(65536)
        assert chunk, f"closed before {mark!r}: {out[-500:]!r}"
        out += chunk
    return out


def dechunk(raw):
    """Decodes a chunked body; returns None if its end is missing."""
    out = b""
    while True:
        m = re.match(rb"([0-9a-f]+)\r\n", raw)
        if not m:
            return None
        n, raw = int(m.group(1), 16), raw[m.end():]
        if len(raw) < n + 2 or raw[n:n + 2] != b"\r\n":
            return None
        if n == 0:
            return out
        out, raw = out + raw[:n], raw[n + 2:]


def status_of(raw):
    m = re.match(rb"HTTP/1\.1 (\d{3}) ", raw)
    return int(m.group(1)) if m else None


def sse_events(text):
    """Payloads of an event stream, checked for its exact shape; comments are left out."""
    assert text.endswith("\n\n"), repr(text[-80:])
    events = []
    for block in text[:-2].split("\n\n"):
        lines = block.split("\n")
        if all(line.startswith(":") for line in lines):
            continue
        assert len(lines) == 1 and lines[0].startswith("data: "), block
        events.append(lines[0][6:])
    assert events[-1] == "[DONE]", events[-1]
    return [json.loads(e) for e in events[:-1]]


def read_trace(path):
    """Reads the file of --trace as {step: {event's name: event}} in the file's order; metadata is separate."""
    steps = {}
    for e in json.loads(pathlib.Path(path).read_text()):
        assert e["ph"] in "MX" and e["pid"] == 1, e
        if e["ph"] == "X":
            assert e["name"] not in steps.setdefault(e["args"]["step"], {}), e
            steps[e["args"]["step"]][e["name"]] = e
    return steps


SAMPLE = re.compile(r'^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\.)*",?)*)\})? (\S+)$')


def parse_metrics(text):
    """A strict reader of the Prometheus text format: {(name, labels): value}. Every sample's family must have HELP and TYPE
    before it, all samples of a family stand together, and none comes twice."""
    families, samples, closed, current = {}, {}, set(), None
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# "):
            _, kind, name, rest = line.split(" ", 3)
            assert kind in ("HELP", "TYPE"), line
            assert (name, kind) not in families, f"twice: {line}"
            families[(name, kind)] = rest
            if kind == "TYPE":
                assert rest in ("counter", "gauge", "histogram"), line
            if name != current:
                assert name not in closed, f"family {name} is torn apart"
                closed.add(current)
                current = name
            continue
        m = SAMPLE.match(line)
        assert m, f"not a sample: {line!r}"
        name, labels, value = m.group(1), m.group(2) or "", float(m.group(3))
        family = name if (name, "TYPE") in families else re.sub(r"_(bucket|sum|count)$", "", name)
        assert family == current and (family, "TYPE") in families and (family, "HELP") in families, line
        if family != name:
            assert families[(family, "TYPE")] == "histogram", line
        assert (name, labels) not in samples, f"twice: {line}"
        samples[(name, labels)] = value
    return samples
