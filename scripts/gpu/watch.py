"""What predictions need to know about a daemon: every step as it ends, and the sizes in its log."""
import http.client
import json
import re
import statistics
import threading
import time


class Watcher(threading.Thread):
    """Records all steps of the daemon, and how much longer than calibrated each took."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self.steps, self.error = [], None
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        self.connection.request("GET", "/v1/steps")
        self.start()

    def run(self):
        fields = None
        try:
            for raw in self.connection.getresponse():
                line = raw.decode().strip()
                if not line.startswith("data: "):
                    continue
                data = json.loads(line[6:])
                fields = data.get("fields", fields)
                if data.get("missed"):
                    self.error = f"{data['missed']} steps were missed"
                for row in data.get("steps", ()):
                    self.take(dict(zip(fields, row)))
        except (OSError, http.client.HTTPException, ValueError, AttributeError):
            pass  # the daemon has ended

    def take(self, s):
        kind = int(s["prefills"] > 0)
        before = self.steps[-1] if self.steps else None
        s["kind"], s["begin_us"] = kind, s["end_us"] - s["step_us"]
        if before and before["running"] + before["waiting"] > 0:  # the host's time between two steps belongs to the later one
            s["begin_us"] = before["end_us"]
        s["pace"] = (s["end_us"] - s["begin_us"]) / s["calibrated_us"] if s["calibrated_us"] else None
        self.steps.append(s)

    def since(self, begin_us, step_now):
        """Returns the steps that began after a moment, once the daemon's last step has arrived."""
        end = time.monotonic() + 30
        while (not self.steps or self.steps[-1]["step"] < step_now) and time.monotonic() < end:
            time.sleep(0.02)
        steps = list(self.steps)
        if self.error or not steps or steps[0]["step"] != 1 or len(steps) != steps[-1]["step"] or steps[-1]["step"] < step_now:
            raise RuntimeError(f"/v1/steps told of {len(steps)} steps of {step_now}: {self.error or 'some were left out'}")
        return [s for s in steps if s["begin_us"] >= begin_us]


def now_us():
    return time.monotonic() * 1e6  # the daemon's clock


def outside_us(ttft_ms, steps):
    """The time of a request before and after its steps: median TTFT of requests to an idle daemon, minus the steps that computed their prompts."""
    sums, inside = [], False
    for s in steps:
        if s["kind"]:
            sums.append(s["step_us"] + (sums.pop() if inside else 0))
        inside = bool(s["kind"])
    return max(0.0, 1e3 * ttft_ms - statistics.median(sums))


def between_us(steps):
    """The host's time before a step with prompts that follows another step: such steps are not planned ahead."""
    gaps = [s["end_us"] - s["step_us"] - before["end_us"] for before, s in zip(steps, steps[1:])
            if s["kind"] and before["running"] + before["waiting"] > 0]
    return max(0.0, statistics.median(gaps)) if gaps else 0.0


def write_pace(steps, simulated, path):
    """Writes the file for tandem-plan --pace. simulated: tandem-plan's log of the same load, whose first step corresponds to this first one."""
    begin, first = steps[0]["begin_us"], simulated.read_text().split("\n")[1].split(",")
    lines = [((s["begin_us"] - begin + int(first[1]) - int(first[2])) / 1e6, s["kind"], s["pace"]) for s in steps if s["pace"]]
    path.write_text("".join(f"{t:.6f} {kind} {pace:.4f}\n" for t, kind, pace in lines))


def shape_of(log):
    """The parameters for a simulation of the daemon."""
    pages, page_tokens = map(int, re.search(r"\((\d+) pages of (\d+) tokens\)", log).groups())
    context, running, step_tokens = (int(re.search(p, log).group(1)) for p in (r"context (\d+)", r"up to (\d+) requests", r"requests, (\d+) tokens"))
    return {"kv_tokens": pages * page_tokens, "context": context, "running": running, "step_tokens": step_tokens}


def calibration_in(cache):
    """Returns the table of step times in that folder, measured or learned; None if there is none."""
    found = [p for p in cache.rglob("*") if p.is_file() and p.read_bytes().startswith(b"tandem-steps")]
    return max(found, key=lambda p: p.stat().st_mtime_ns, default=None)
