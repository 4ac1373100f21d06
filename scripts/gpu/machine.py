"""The machine: the device, the driver, the programs; and whether there is a device at all."""
import os
import pathlib
import time

import models
from core import NotRun, first_line


def smi_id(device):
    """nvidia-smi ignores CUDA_VISIBLE_DEVICES. Returns its number, or UUID, for the device that programs use."""
    visible = [d.strip() for d in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if d.strip()]
    return visible[device] if device < len(visible) else str(device)


def nvidia_smi(query, device=0):
    """Returns the values of one line of nvidia-smi, or nothing."""
    line = first_line(["nvidia-smi", f"--id={smi_id(device)}", f"--query-gpu={query}", "--format=csv,noheader,nounits"])
    return [v.strip() for v in line.split(",")] if line else []


def device_mib(device=0):
    """Device memory in use by all processes."""
    used = nvidia_smi("memory.used", device)
    if not used:
        raise NotRun("nvidia-smi does not say how much device memory is used")
    return int(used[0])


def commit(root):
    head = first_line(["git", "-C", str(root), "rev-parse", "--short=12", "HEAD"])
    changed = head and first_line(["git", "-C", str(root), "status", "--porcelain", "--untracked-files=no"])
    return (head + (" and changes" if changed else "")) if head else "unknown"


def cpu():
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    name = next((x.split(":", 1)[1].strip() for x in lines if x.startswith("model name")), "unknown CPU")
    mine, all_cores = len(os.sched_getaffinity(0)), os.cpu_count()
    return f"{name}, {all_cores} cores" if mine == all_cores else f"{name}, {mine} of {all_cores} cores"


def busy_share(before, after, cores):
    """The share of these cores' time that was neither idle nor waiting for a disk, between two texts of /proc/stat."""
    def spent(text):
        lines = (line.split() for line in text.splitlines())
        times = [[int(v) for v in f[1:9]] for f in lines if f and f[0][:3] == "cpu" and f[0][3:].isdigit() and int(f[0][3:]) in cores]
        return [sum(v) for v in zip(*times)]
    times = [b - a for a, b in zip(spent(before), spent(after))]
    return 1 - (times[3] + times[4]) / max(1, sum(times))


def cores_busy(seconds=1.0):
    """Of the cores that this process may use: with several GPUs, taskset gives each report its own."""
    stat = pathlib.Path("/proc/stat")
    before = stat.read_text()
    time.sleep(seconds)
    return busy_share(before, stat.read_text(), os.sched_getaffinity(0))


def look(ctx, commit_text=None):
    """Fills ctx.machine; called before any stage."""
    m = ctx.machine
    m["date"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    m["commit"] = commit_text or commit(ctx.root)
    m["cpu"], m["load before"] = cpu(), " ".join(f"{x:.2f}" for x in os.getloadavg())
    m["memory"] = f"{models.memory_available() / 1e9:.0f} GB available"
    m["tandemd"] = first_line([str(ctx.program("tandemd")), "--version"])
    if ctx.backend != "cuda":
        m["backend"] = f"{ctx.backend}: this report is no GPU's"
        return
    names = "name,driver_version,memory.total,clocks.max.sm,clocks.sm,clocks.mem,power.limit,temperature.gpu,utilization.gpu"
    for key, value in zip(names.split(","), nvidia_smi(names, ctx.device)):
        m["gpu " + key] = value
    folder = models.describe(ctx.work / "described-tiny", models.TINY)
    r = ctx.run("tandemd", "--model", folder, "--load-format", "dummy", "--backend", "cuda", "--device", ctx.device, "--check", limit_s=120)
    m["cuda"] = first_line(["sh", "-c", "nvcc --version 2>/dev/null || /usr/local/cuda/bin/nvcc --version | tail -n 1"]) and \
        first_line(["sh", "-c", "(nvcc --version 2>/dev/null || /usr/local/cuda/bin/nvcc --version) | sed -n 's/.*release //p'"])
    if r.code != 0:
        m["no_gpu"] = "no GPU: " + (r.text.strip().splitlines() or ["tandemd said nothing"])[-1]


def stage(ctx, s):
    s.table(["", ""], [[k, v] for k, v in ctx.machine.items()])
    s.data.update(ctx.machine)
    ctx.need_gpu()
    s.check(True, "tandemd runs on this GPU", ctx.machine.get("gpu name", f"device {ctx.device}"))
    busy = ctx.machine.get("gpu utilization.gpu", "0")
    s.check(busy.isdigit() and int(busy) <= 5, "nobody else uses the GPU", f"{busy} % busy before")
