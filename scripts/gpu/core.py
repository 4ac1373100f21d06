"""Shared by all stages of scripts/gpu-report: counted checks, figures with bars, tables, programs run with a time limit.

A stage is a function(ctx, stage). It calls stage.check for what must hold, stage.bar for figures that have one, and raises
NotRun if it cannot judge. What could not run is reported as such, and never counts as passed."""
import contextlib
import itertools
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

EXIT_FAILED, EXIT_NOT_RUN = 1, 2
QUIET_EVERY_S = 15


class NotRun(Exception):
    """This stage, or this part of a stage, cannot run here; the text says why."""


def say(text):
    print(text, file=sys.stderr, flush=True)


class Stage:
    """One section of the report."""

    def __init__(self, name, title):
        self.name, self.title = name, title
        self.checks, self.bars, self.left_out, self.body, self.data = [], [], [], [], {}
        self.seconds = 0

    def check(self, ok, what, detail=""):
        """ok: whether it holds. detail: what was observed, in one line."""
        self.checks.append({"what": what, "ok": bool(ok), "detail": str(detail)})
        say(f"  {'ok    ' if ok else 'FAILED'} {what}" + (f": {detail}" if detail != "" else ""))
        return bool(ok)

    def bar(self, what, ours, bar, unit, less_is_better=True, source=""):
        """A figure with a bar. A figure that misses its bar is marked and not hidden, and is not a failure."""
        ahead = ours is not None and (ours <= bar if less_is_better else ours >= bar)
        self.bars.append({"what": what, "ours": ours, "bar": bar, "unit": unit, "ahead": ahead, "source": source,
                          "ratio": None if not ours else bar / ours if less_is_better else ours / bar})
        say(f"  {'ahead ' if ahead else 'BEHIND'} {what}: {number(ours)} {unit}, bar {number(bar)}")

    def not_run(self, what, why):
        self.left_out.append({"what": what, "why": str(why)})
        say(f"  not run: {what}: {why}")

    @contextlib.contextmanager
    def part(self, what):
        """A part of a stage that may be impossible by itself, or break without ending the rest."""
        try:
            yield
        except NotRun as e:
            self.not_run(what, e)
        except Exception as e:  # a broken part is a failed check, for any reason
            self.check(False, what, one_line(e))

    def text(self, *lines):
        self.body += ["", *lines]

    def table(self, head, rows, title=None):
        """title: the text is folded under it."""
        lines = table(head, rows)
        self.text(*(folded(title, lines) if title else lines)[1:])

    def block(self, title, text):
        """A program's output, folded."""
        self.text(*folded(title, ["", "```", text.rstrip(), "```"])[1:])

    def as_json(self):
        return {"name": self.name, "title": self.title, "verdict": self.verdict(), "seconds": round(self.seconds, 1), "checks": self.checks,
                "bars": self.bars, "not_run": self.left_out, "body": self.body, "data": self.data}

    @classmethod
    def from_json(cls, o):
        s = cls(o["name"], o["title"])
        s.seconds, s.checks, s.bars, s.left_out, s.body, s.data = (o[k] for k in ("seconds", "checks", "bars", "not_run", "body", "data"))
        return s

    @property
    def failed(self):
        return sum(not c["ok"] for c in self.checks)

    def verdict(self):
        if self.failed:
            return "FAILED"
        if self.left_out and not self.checks and not self.bars:
            return "not run"
        return "passed" + (", parts not run" if self.left_out else "")


def run_stage(ctx, name, title, function):
    stage = Stage(name, title)
    say(f"[{name}] {title}")
    begin = time.monotonic()
    try:
        function(ctx, stage)
        if not (stage.checks or stage.bars or stage.left_out):
            stage.check(False, "the stage said nothing")
    except NotRun as e:
        stage.not_run(title, e)
    except Exception as e:
        stage.check(False, "the stage ran to its end", one_line(e))
        if os.environ.get("TANDEM_REPORT_TRACEBACK"):
            raise
    stage.seconds = time.monotonic() - begin
    say(f"  {stage.verdict()} ({stage.seconds:.0f} s)")
    return stage


# ---- text ----

def table(head, rows):
    """Markdown, with an empty line before."""
    return ["", "| " + " | ".join(head) + " |", "|" + "---|" * len(head), *("| " + " | ".join(map(cell, r)) + " |" for r in rows)]


def folded(title, lines):
    """Folds long text."""
    return ["", f"<details><summary>{title}</summary>", *lines, "", "</details>"]


def cell(v):
    return number(v).replace("|", "\\|").replace("\n", " ")


def number(v):
    """For tables: integers as they are, other numbers with three or four digits; text as it is."""
    if v is None:
        return "-"
    if not isinstance(v, float):
        return str(v)
    if v == 0 or abs(v) >= 1000:
        return f"{v:,.0f}"
    return f"{v:.1f}" if abs(v) >= 100 else f"{v:.3g}"


def one_line(e):
    text = " ".join(str(e).split())
    return f"{type(e).__name__}: {text[:600]}" if text else type(e).__name__


def percentile(values, p):
    """Nearest rank; None for an empty list."""
    v = sorted(values)
    return v[min(len(v) - 1, max(0, -(-len(v) * p // 100) - 1))] if v else None


# ---- programs ----

class Outcome:
    def __init__(self, code, text, seconds, timed_out):
        self.code, self.text, self.seconds, self.timed_out = code, text, seconds, timed_out

    def find(self, pattern, default=None):
        """Returns the groups of the last match."""
        found = re.findall(pattern, self.text, re.M)
        return found[-1] if found else default


def end_group(p, seconds=20):
    """Ends a program that we started, and its children (it has its own session)."""
    for sig in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(p.pid, sig)
        with contextlib.suppress(subprocess.TimeoutExpired):
            p.wait(seconds)
            return
    p.wait()


def run(command, limit_s, log, env=None, cwd=None):
    """Runs to the end or the limit, with all output in the file `log`; reports every 15 s that it is still running."""
    command = [str(c) for c in command]
    log = pathlib.Path(log)
    begin = told = time.monotonic()
    with open(log, "wb") as out:
        out.write(("$ " + " ".join(command) + "\n").encode())
        out.flush()
        p = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=cwd,
                             env={**os.environ, **(env or {})}, start_new_session=True)
        try:
            timed_out = False
            while p.poll() is None and not timed_out:
                time.sleep(0.02)
                now = time.monotonic()
                timed_out = now - begin > limit_s
                if now - told > QUIET_EVERY_S:
                    told = now
                    say(f"    {pathlib.Path(command[0]).name}: {now - begin:.0f} s")
        finally:
            if p.poll() is None:
                end_group(p)
    text = log.read_text("utf-8", "replace").split("\n", 1)[-1]
    return Outcome(p.returncode, text, time.monotonic() - begin, timed_out)


def must(outcome, what):
    """Returns the output of a program that must succeed."""
    if outcome.timed_out:
        raise RuntimeError(f"{what} did not end within its limit of {outcome.seconds:.0f} s")
    if outcome.code != 0:
        raise RuntimeError(f"{what} ended with {outcome.code}: {outcome.text.strip()[-500:]}")
    return outcome.text


def first_line(command):
    """Returns a small program's output, or nothing."""
    try:
        r = subprocess.run(command, capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return r.stdout.strip().splitlines()[0] if r.returncode == 0 and r.stdout.strip() else ""


# ---- the context ----

class Context:
    """The context of stages: programs, folders, the device, how much to measure."""

    def __init__(self, root, bin_dir, work, backend="cuda", quick=False, model=None, scratch=None, device=0, head_dim=128):
        self.root, self.bin_dir, self.work = pathlib.Path(root), pathlib.Path(bin_dir), pathlib.Path(work)
        self.backend, self.quick, self.scratch, self.device = backend, quick, scratch, device
        self.model, self.head_dim = model, head_dim
        self.logs = self.work / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.log_numbers = itertools.count(1)  # stages may run programs side by side
        self.machine = {}
        self.loads, self.seconds = None, None  # for the loads stage: which loads, and how long arrivals last
        self.before = {}  # stage -> its data in earlier reports, if it is run again to add to them
        self.out = None  # the report

    def program(self, name):
        for p in (self.bin_dir / name, self.bin_dir / "tests/gpu" / name):
            if p.exists():
                return p
        raise NotRun(f"{name} is not in {self.bin_dir}")

    def log(self, name):
        return self.logs / f"{next(self.log_numbers):02d}-{name}.log"

    def run(self, name, *args, limit_s=600, env=None, prefix=()):
        return run([*prefix, self.program(name), *args], limit_s, self.log(name), env)

    def help_of(self, name, *command):
        return self.run(name, *command, "--help", limit_s=30).text

    def need_gpu(self):
        """For stages that cannot run on a CPU."""
        if self.backend != "cuda":
            raise NotRun(f"it is about a GPU, and the backend is {self.backend}")
        if self.machine.get("no_gpu"):
            raise NotRun(self.machine["no_gpu"])

    def need_backend(self):
        if self.backend == "cuda":
            self.need_gpu()

    def peers(self):
        return json.loads((pathlib.Path(__file__).parent / "peers.json").read_text())
