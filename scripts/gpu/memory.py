"""Device memory: allocated at start, constant while serving, completely freed, also after a fault."""
import os
import threading
import time

import mix
import models
from daemon import Daemon
from machine import device_mib, nvidia_smi

SLACK_MIB = 8  # nvidia-smi's resolution, and what a driver keeps for a moment


def settled(ctx, want, seconds=10):
    """A process's memory is freed a moment after its end: returns the least that is seen within the time."""
    end = time.monotonic() + seconds
    least = device_mib(ctx.device)
    while least > want + SLACK_MIB and time.monotonic() < end:
        time.sleep(0.2)
        least = min(least, device_mib(ctx.device))
    return least


class Watch:
    """Samples device memory every 0.2 s while something runs."""

    def __init__(self, ctx):
        self.ctx, self.seen, self.stop = ctx, [], threading.Event()

    def __enter__(self):
        def look():
            while not self.stop.is_set():
                self.seen.append(device_mib(self.ctx.device))
                self.stop.wait(0.2)
        self.thread = threading.Thread(target=look, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join(30)


def check_gpu_metrics(ctx, s, m):
    """Two of these values are constant; the others change between the two samples."""
    names = {"memory_clock_hertz": ("clocks.mem", 1e6), "power_limit_watts": ("enforced.power.limit", 1), "sm_clock_hertz": ("clocks.sm", 1e6),
             "power_watts": ("power.draw", 1), "temperature_celsius": ("temperature.gpu", 1)}
    told = nvidia_smi(",".join(query for query, _ in names.values()), ctx.device)
    smi = {name: float(v) * unit for (name, (_, unit)), v in zip(names.items(), told, strict=True)}
    ours = {name: m.get("tandem:gpu_" + name, 0) for name in names}
    same = all(ours[n] == smi[n] for n in ("memory_clock_hertz", "power_limit_watts"))
    s.check(same and all(0.3 * smi[n] < ours[n] < 3 * smi[n] for n in names),
            "/metrics has the GPU's memory clock and power limit as nvidia-smi has them, and its other figures within a factor of 3",
            ", ".join(f"{n} {ours[n]:g} ({smi[n]:g})" for n in names))


def stage(ctx, s):
    ctx.need_gpu()
    before = device_mib(ctx.device)
    model = models.describe(ctx.work / "llama3-8b", models.LLAMA3_8B)
    requests = mix.make(48 if ctx.quick else 256, 128000, 900, 48)
    with Daemon(ctx, "--load-format", "dummy", model=model) as d:
        at_ready = device_mib(ctx.device)
        with Watch(ctx) as w:
            answers = mix.play(d, requests, leavers=7)
            told = d.until_idle()
        check_gpu_metrics(ctx, s, told)
        at_end = device_mib(ctx.device)
    done, due = mix.whole(requests, answers)
    s.check(done == due and d.code == 0, "a mix of requests is served meanwhile", f"{done} of {due} whole, exit code {d.code}")
    s.check(at_ready > before and w.seen and max(w.seen) == min(w.seen) == at_ready == at_end, "constant from ready on",
            f"{before} MiB before, {at_ready} at ready, {min(w.seen)} to {max(w.seen)} in {len(w.seen)} looks while serving, {at_end} after")
    left = settled(ctx, before)
    s.check(left <= before + SLACK_MIB, "all given back after SIGTERM", f"{left} MiB, {before} before")
    s.data.update(before=before, at_ready=at_ready, seen=[min(w.seen), max(w.seen)], after=left)
    with Daemon(ctx, "--load-format", "dummy", model=model, env={**os.environ, "TANDEM_FAULT": "device:40"}) as d:
        mix.play(d, mix.make(8, 128000, 100, 200))
        code = d.wait(60)
    left = settled(ctx, before)
    s.check(code == 70 and left <= before + SLACK_MIB, "all given back after a device fault", f"exit code {code}; {left} MiB, {before} before")
    s.data["after_fault"] = left
