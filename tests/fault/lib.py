"""Shared by the programs of this folder: a tiny model, daemons that serve it, the shim's page, and how an outcome is reported.

A program is one row of the plan: `tests/fault/NAME.py [--amount N] [--seed S]`. It does its work N times, reports on stderr, and prints one
line of JSON on stdout, which scripts/release-check reads:
  {"reached": 1000, "failures": [], "note": "..."}
Exit code 1 if there is a failure, or if it reached less than the amount."""
import argparse
import ctypes
import json
import mmap
import os
import pathlib
import random
import re
import resource
import shutil
import socket
import struct
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
sys.dont_write_bytecode = True

import harness  # noqa: E402
from harness import Daemon, SLOWNESS, dechunk, read_all, read_until, sse_events, status_of  # noqa: E402, F401
from test_dummy import CONFIG  # noqa: E402

SHIM = pathlib.Path(os.environ.get("TANDEM_SHIM_LIBRARY", pathlib.Path(harness.DAEMON).parent / "tests/fault/libtd_fault_shim.so"))
TEMPLATE = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
FAILURES_KEPT = 20
WORK = pathlib.Path(tempfile.mkdtemp(prefix="tandem-fault-"))


def tiny_model(context=4096):
    """Makes a model folder from which a daemon starts in a few milliseconds: random weights, a real tokenizer and a chat template."""
    folder = WORK / f"tiny{context}"
    if not folder.exists():
        folder.mkdir(parents=True)
        shutil.copy(ROOT / "tests/golden/tokenizer.json", folder)
        (folder / "config.json").write_text(json.dumps({**CONFIG, "max_position_embeddings": context}))
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return folder


class Tiny(Daemon):
    """A daemon with the tiny model. How it ended is stored (`exit_code`, `last_words`) for the test to judge."""

    def __init__(self, *options, context=4096, kv_bytes=1 << 26, **kw):
        given = [str(o) for o in options]
        level = [] if "--log-level" in given else ["--log-level", "warn"]
        super().__init__("--load-format", "dummy", *level, *given, model=tiny_model(context), kv_bytes=kv_bytes, **kw)
        self.exit_code, self.last_words = None, ""

    def alive(self):
        return self.process.poll() is None

    def __exit__(self, kind, value, trace):
        try:
            self.exit_code = self.stop()
        except AssertionError:
            self.exit_code = "hangs"
        self.last_words = self.log()
        if harness.DEATH_WORDS.search(self.last_words):
            self.exit_code = "bug"
        self.log_file.close()
        os.unlink(self.log_file.name)


def post(path, body, headers="", version="1.1"):
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return (f"POST {path} HTTP/{version}\r\nHost: t\r\nContent-Type: application/json\r\n{headers}"
            f"Content-Length: {len(raw)}\r\n\r\n").encode() + raw


def get(path, headers=""):
    return f"GET {path} HTTP/1.1\r\nHost: t\r\n{headers}\r\n".encode()


def parse_answer(raw):
    """Returns (status, body). body is None if it is incomplete; status is None if the head is."""
    head, mark, body = raw.partition(b"\r\n\r\n")
    status = status_of(head + b" ")
    if not mark or status is None:
        return None, None
    low = head.lower()
    m = re.search(rb"\r\ncontent-length: (\d+)", low)
    if m:
        return status, body if len(body) == int(m.group(1)) else None
    return status, dechunk(body) if b"transfer-encoding: chunked" in low else None


def ask(port, raw, timeout=20, host="127.0.0.1"):
    """Sends on a new connection and returns the whole response; raises TimeoutError if it does not end."""
    with socket.create_connection((host, port), timeout=timeout * harness.SLOWNESS) as s:
        try:
            s.sendall(raw)
        except (BrokenPipeError, ConnectionResetError):
            pass
        return read_all(s)


def more_files():
    """Raises the limit of descriptors for thousands of connections, here and in the daemons, which inherit it."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def rss_bytes(pid):
    m = re.search(r"VmRSS:\s+(\d+) kB", pathlib.Path(f"/proc/{pid}/status").read_text())
    return int(m.group(1)) * 1024


def n_files(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def cpu_s(pid):
    """CPU time of all threads of a process, user and system."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def threads(pid):
    return sorted(int(t) for t in os.listdir(f"/proc/{pid}/task"))


def percentile(values, p):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * p / 100))]


class Shim:
    """shim.c's shared page. Daemons started inside `with Shim() as shim:` have the shim loaded."""

    NAMES = ("n_allocs", "fail_alloc_at", "fail_allocs", "n_allocs_failed", "n_live", "kind", "n_calls", "fail_call_at", "fail_calls",
             "n_calls_failed", "hold_tid", "held", "hold_at_alloc", "n_sites")
    KINDS = {"short": 1, "EINTR": 2, "EAGAIN": 3, "EMFILE": 4, "ENOSPC": 5}

    def __enter__(self):
        assert SHIM.exists(), f"{SHIM} is not built"
        self.file = tempfile.NamedTemporaryFile(prefix="tandem-shim-", dir=WORK)
        self.file.truncate(4096)
        self.page = mmap.mmap(self.file.fileno(), 4096)
        self.before = {k: os.environ.get(k) for k in ("LD_PRELOAD", "TANDEM_SHIM")}
        os.environ.update(LD_PRELOAD=str(SHIM), TANDEM_SHIM=self.file.name)
        return self

    def __exit__(self, *_):
        for k, v in self.before.items():
            os.environ.pop(k) if v is None else os.environ.update({k: v})
        self.file.close()

    def __getitem__(self, name):
        return struct.unpack_from("q", self.page, 8 * self.NAMES.index(name))[0]

    def __setitem__(self, name, value):
        struct.pack_into("q", self.page, 8 * self.NAMES.index(name), value)

    def sites(self):
        """Where calls failed: addresses in a library or the program, relative to its base, so that they are equal in every process."""
        at = 8 * len(self.NAMES)
        return {struct.unpack_from("Q", self.page, at + 8 * i)[0] & 0x7FFF for i in range(self["n_sites"])}

    def fail_allocs(self, k, n=1):
        """Makes the k-th allocation from now on fail, and the n - 1 after it."""
        self["n_allocs_failed"], self["n_allocs"], self["fail_allocs"], self["fail_alloc_at"] = 0, 0, n, k

    def fail_calls(self, kind, k, n=1):
        self["n_calls_failed"], self["n_calls"], self["fail_calls"], self["fail_call_at"] = 0, 0, n, k
        self["kind"] = self.KINDS[kind]

    def rest(self):
        self["fail_alloc_at"] = self["fail_call_at"] = self["kind"] = 0


def hold(shim, pid, tid, at_alloc=False):
    """Holds a thread until let_go, either in its next allocation or immediately."""
    shim["hold_at_alloc"], shim["hold_tid"] = int(at_alloc), tid
    if not at_alloc:
        ctypes.CDLL(None, use_errno=True).syscall(234, pid, tid, 12)  # tgkill, SIGUSR2


def let_go(shim):
    shim["hold_tid"] = 0


class Row:
    """Counts what was done and what failed; `end` prints it."""

    def __init__(self, text, amount, parser=None):
        p = parser or argparse.ArgumentParser(description=text)
        p.add_argument("--amount", type=int, default=amount, help=f"how much of it (default {amount})")
        p.add_argument("--seed", type=int, default=1)
        self.args = p.parse_args()
        self.amount, self.seed = self.args.amount, self.args.seed
        self.rng = random.Random(self.seed)
        self.reached, self.failures, self.n_failures, self.notes = 0, [], 0, []
        self.begin = self.said = time.monotonic()

    def fail(self, text):
        self.n_failures += 1
        if len(self.failures) < FAILURES_KEPT:
            self.failures.append(text)
            print(f"  FAILED: {text}", file=sys.stderr, flush=True)

    def expect(self, good, text):
        if not good:
            self.fail(text)
        return good

    def done(self, n=1):
        self.reached += n
        if time.monotonic() - self.said > 15:
            self.said = time.monotonic()
            print(f"  {self.reached} of {self.amount}, {self.said - self.begin:.0f} s", file=sys.stderr, flush=True)

    def note(self, text):
        self.notes.append(text)

    def end(self, at_least=None):
        """at_least: reaching less than the amount is not a failure."""
        shutil.rmtree(WORK, ignore_errors=True)
        good = self.n_failures == 0 and self.reached >= (self.amount if at_least is None else at_least)
        print(json.dumps({"reached": self.reached, "wanted": self.amount, "n_failures": self.n_failures, "failures": self.failures,
                          "note": "; ".join(self.notes), "seconds": round(time.monotonic() - self.begin, 1)}), flush=True)
        sys.exit(0 if good else 1)


def stride(row):
    """The random distance to the next k, if the amount is a share in percent; its mean gives that share."""
    return 1 if row.amount >= 100 else row.rng.randint(1, max(1, round(200 / max(1, row.amount)) - 1))
