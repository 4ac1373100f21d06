"""tandemd as stages use it: started, watched, asked over plain sockets, stopped. Standard library only, since a GPU machine may
have nothing else."""
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import threading
import time

from core import end_group

SAMPLE = re.compile(r"^([a-zA-Z_:]\w*(?::\w+)*)(?:\{([^}]*)\})? (\S+)$")


given_ports, giving = set(), threading.Lock()


def free_port():
    """Never returns a port twice: otherwise, of two daemons that start together, the slower would be taken for the other."""
    with giving:
        while True:
            with socket.socket() as s:
                s.bind(("127.0.0.1", 0))
                port = s.getsockname()[1]
            if port not in given_ports:
                given_ports.add(port)
                return port


def descendant(pid, name):
    """Returns the process of that name below pid (a wrapper that we started), or None."""
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                head, _, rest = pathlib.Path("/proc", entry, "stat").read_text().rpartition(")")
                parents[int(entry)] = (int(rest.split()[1]), head.split("(", 1)[1])
            except (OSError, IndexError):
                continue  # it has just ended
    for child, (_, what) in parents.items():
        at = child
        while what == name and at in parents:
            if at == pid:
                return child
            at = parents[at][0]
    return None


class Daemon:
    """`with Daemon(ctx, options) as d:` a daemon that is ready and, unless tuned is False or it runs under a tool, has captured its decode
    steps and measured what it does not know, in idle moments: what is timed, or compared with an earlier answer, is of a machine that does
    not change meanwhile. Its exit code is in d.code afterwards."""

    def __init__(self, ctx, *options, model, env=None, prefix=(), ready_s=120, stop_s=60, backend=None, start_only=False, tuned=True):
        self.ctx, self.model, self.prefix, self.ready_s, self.stop_s = ctx, model, list(prefix), ready_s, stop_s
        self.options = ["--backend", backend or ctx.backend, "--connections-per-ip", "4096", *map(str, options)]
        if (backend or ctx.backend) != "cpu":
            self.options += ["--device", str(ctx.device)]
        self.env = {**os.environ, **(env or {})}
        self.code, self.start_only, self.ready_after_s = None, start_only, None
        self.tuned = tuned and not start_only and not prefix

    def __enter__(self):
        self.port = free_port()
        self.log_path = self.ctx.log("tandemd")
        command = [*self.prefix, self.ctx.program("tandemd"), "--model", self.model, "--listen", f"127.0.0.1:{self.port}", *self.options]
        with open(self.log_path, "wb") as log:
            self.begin = time.monotonic()
            self.process = subprocess.Popen([str(c) for c in command], stdout=log, stderr=subprocess.STDOUT,
                                            stdin=subprocess.DEVNULL, env=self.env, start_new_session=True)
        try:
            if not self.start_only:
                self.wait_ready()
            if self.tuned:
                self.until_tuned()
        except BaseException:
            end_group(self.process)
            raise
        return self

    def wait_ready(self):
        while time.monotonic() - self.begin < self.ready_s:
            if self.process.poll() is not None:
                raise RuntimeError(f"tandemd ended with {self.process.returncode}: {self.last_line()}")
            try:
                if self.get("/ready", 5)[0] == 200:
                    self.ready_after_s = time.monotonic() - self.begin
                    return
            except OSError:
                pass
            time.sleep(0.005)
        raise RuntimeError(f"tandemd was not ready after {self.ready_s} s: {self.last_line()}")

    def log(self):
        return self.log_path.read_text("utf-8", "replace")

    def last_line(self):
        """Returns its last messages, errors first."""
        lines = self.log().strip().splitlines()
        errors = [line for line in lines if " error " in line]
        return (errors or lines or ["(no output)"])[-1]

    def is_gone(self, seconds=2):
        """Whether it ended, or is about to: its sockets close first. A tool that it runs under may take long to report."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.process.poll() is not None or (self.prefix and not descendant(self.process.pid, "tandemd")):
                return True
            time.sleep(0.02)
        return False

    def __exit__(self, kind, value, trace):
        gone = kind is not None and issubclass(kind, (ConnectionError, TimeoutError, http.client.HTTPException)) and self.is_gone()
        pid = descendant(self.process.pid, "tandemd") if self.prefix else self.process.pid
        if self.process.poll() is None and pid and not gone:
            try:
                os.kill(pid, signal.SIGTERM)
            except ProcessLookupError:
                pass
        try:
            self.code = self.process.wait(self.stop_s)
        except subprocess.TimeoutExpired:
            end_group(self.process)
            self.code = self.process.returncode
            if kind is None:
                raise RuntimeError(f"tandemd did not stop within {self.stop_s} s: {self.last_line()}") from None
        if gone:  # a refused connection says less
            raise RuntimeError(f"tandemd ended with {self.code}: {self.last_line()}") from value

    def wait(self, seconds):
        """Waits for a daemon that is about to end by itself, and returns its exit code."""
        return self.process.wait(seconds)

    # ---- asking it ----

    def get(self, path, timeout=60):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            c.request("GET", path)
            r = c.getresponse()
            return r.status, r.read().decode("utf-8", "replace")
        finally:
            c.close()

    def post(self, path, body, timeout=600):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            c.request("POST", path, json.dumps(body), {"content-type": "application/json"})
            r = c.getresponse()
            return r.status, json.loads(r.read())
        finally:
            c.close()

    def complete(self, prompt, n, **fields):
        """Returns the token ids of a whole answer."""
        status, o = self.post("/v1/completions", {"prompt": prompt, "max_tokens": n, "return_token_ids": True, "temperature": 0, **fields})
        if status != 200:
            raise RuntimeError(f"status {status}: {o}")
        return o["choices"][0]["token_ids"]

    def stream(self, body, leave_after=None, timeout=600):
        """An answer as events. leave_after: close the connection after that many."""
        answer = Answer()
        raw = json.dumps({**body, "stream": True, "return_token_ids": True}).encode()
        with socket.create_connection(("127.0.0.1", self.port), timeout) as s:
            answer.sent = time.monotonic()
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
                      b"Content-Length: %d\r\n\r\n" % len(raw) + raw)
            try:
                for line in s.makefile("rb"):
                    answer.take(line)
                    if leave_after is not None and answer.n_events >= leave_after:
                        break
            except ConnectionResetError:
                pass
        return answer

    def metrics(self):
        """{name: sum over its labels}."""
        out = {}
        for line in self.get("/metrics")[1].splitlines():
            m = SAMPLE.match(line)
            if m:
                out[m.group(1)] = out.get(m.group(1), 0) + float(m.group(3))
        return out

    def until_tuned(self, seconds=120):
        """Waits until idle work is done; returns the seconds."""
        begin = time.monotonic()
        while time.monotonic() - begin < seconds:
            if self.metrics()["tandem:tuning_left"] == 0:
                return time.monotonic() - begin
            time.sleep(0.05)
        raise RuntimeError(f"steps are still to be captured, or algorithms measured, after {seconds} s")

    def until_captured(self, seconds):
        """Waits until its decode steps are captured; algorithms may still be measured, which takes long under a tool."""
        end = time.monotonic() + seconds
        while not re.search(r"info +captured \d+ decode steps", self.log()):
            if time.monotonic() > end or self.process.poll() is not None:
                raise RuntimeError(f"its steps were not captured within {seconds} s: {self.last_line()}")
            time.sleep(0.1)

    def until_idle(self, seconds=60):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            m = self.metrics()
            if m["vllm:num_requests_running"] == 0 and m["vllm:num_requests_waiting"] == 0:
                return m
            time.sleep(0.02)
        raise RuntimeError(f"requests still run after {seconds} s")


class Answer:
    """The result of one stream."""

    def __init__(self):
        self.status, self.ids, self.finish, self.error, self.done, self.n_events, self.first = None, [], None, None, False, 0, None

    def take(self, line):
        if self.status is None:
            self.status = int(line.split()[1])
        elif line.startswith(b"data: {"):
            event = json.loads(line[6:])
            self.n_events += 1
            if "error" in event:
                self.error = event["error"]
                return
            for c in event.get("choices", []):
                ids = c.get("token_ids") or []
                if ids and self.first is None:
                    self.first = time.monotonic()
                self.ids += ids
                self.finish = c.get("finish_reason") or self.finish
        elif line.startswith(b"data: [DONE]"):
            self.done = True


def together(jobs, timeout=900):
    """Makes all calls concurrently, each in a thread. Returns results in order, or raises the first error."""
    results, errors = [None] * len(jobs), []

    def work(i, job):
        try:
            results[i] = job()
        except Exception as e:
            errors.append(e)
    threads = [threading.Thread(target=work, args=(i, j), daemon=True) for i, j in enumerate(jobs)]
    for t in threads:
        t.start()
    end = time.monotonic() + timeout
    for t in threads:
        t.join(max(0, end - time.monotonic()))
        if t.is_alive():
            raise RuntimeError(f"requests did not end within {timeout} s")
    if errors:
        raise errors[0]
    return results
