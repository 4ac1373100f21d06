#!/usr/bin/env python3
"""Measures and checks the CUDA backend on this machine and writes a dated report. scripts/gpu-report builds what this runs."""
import argparse
import json
import os
import pathlib
import re
import signal
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import attention  # noqa: E402
import constrained  # noqa: E402
import faults  # noqa: E402
import hybrid  # noqa: E402
import invariant  # noqa: E402
import loading  # noqa: E402
import loads  # noqa: E402
import machine  # noqa: E402
import memory  # noqa: E402
import ops  # noqa: E402
import papers  # noqa: E402
import parity  # noqa: E402
import serve  # noqa: E402
import steps  # noqa: E402
from core import EXIT_FAILED, EXIT_NOT_RUN, Context, Stage, folded, number, run_stage, say, table  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
STAGES = [
    ("machine", "the machine", machine.stage),
    ("ops", "every op against float64 and the CPU; sampled tokens against the CPU's", ops.stage_ops),
    ("sanitizers", "compute-sanitizer on the ops and on a small model's whole request mix", ops.stage_sanitizers),
    ("parity", "a real model's greedy answers beside the CPU's", parity.stage),
    ("invariant", "batch_invariant: the same tokens alone, in any batch, after a prefix hit", invariant.stage),
    ("starts", "starts that must fail, each with one line and its own exit code", faults.stage_starts),
    ("fault", "a device that fails in the middle of the work", faults.stage_device),
    ("nan", "NaN in the logits ends one request", faults.stage_nan),
    ("memory", "device memory before, while serving, after; the GPU's figures in /metrics", memory.stage),
    ("loading", "loading 8B from disk", loading.stage),
    ("kernels", "every op beside its floor", steps.stage_kernels),
    ("attention", "decode attention by policy, beside peers measured in the same run", attention.stage),
    ("hybrid", "attention of prefill chunks, alone and beside decodes, beside peers measured in the same run", hybrid.stage),
    ("steps", "whole steps beside their floors", steps.stage_steps),
    ("idle", "what the device waits for between steps", steps.stage_idle),
    ("serve", "through HTTP, beside a peer's figures", serve.stage),
    ("constrained", "streams in a JSON schema beside free ones, through HTTP", constrained.stage),
    ("papers", "the papers' models in their published shapes, made-up weights", papers.stage),
    ("loads", "loads of papers through HTTP, beside a peer's figures, other policies and predictions", loads.stage),
]
NAMES = [name for name, _, _ in STAGES]
BARS_SHOWN = 20  # more of them are folded: those behind stand on the first page


# ---- writing ----

def totals(stages):
    return {"passed": sum(c["ok"] for s in stages for c in s.checks), "failed": sum(s.failed for s in stages),
            "ahead": sum(b["ahead"] for s in stages for b in s.bars), "behind": sum(not b["ahead"] for s in stages for b in s.bars),
            "not_run": sum(len(s.left_out) for s in stages)}


def count_line(t):
    return (f"{t['passed']} checks passed, {t['failed']} failed; {t['ahead']} figures ahead of their bars, {t['behind']} behind; "
            f"{t['not_run']} not run")


def exit_code(t):
    return EXIT_FAILED if t["failed"] else EXIT_NOT_RUN if t["not_run"] else 0


def of_bar(b):
    return "-" if b["ratio"] is None else f"{b['ratio']:.2f}x"


def section(s):
    """The observations of checks; long text is folded."""
    out = [f"\n## {s.name}: {s.title}", "", f"**{s.verdict()}** in {s.seconds:.0f} s"]
    if s.checks:
        out += table(["check", "", "seen"], [[c["what"], "ok" if c["ok"] else "**FAILED**", c["detail"]] for c in s.checks])
    out += [f"\nNot run: {x['what']}: {x['why']}" for x in s.left_out]
    if s.bars:
        bars = table(["", "measured", "bar", "", "of it", "bar's source"],
                     [[b["what"], f"{number(b['ours'])} {b['unit']}".strip(), b["bar"], "ahead" if b["ahead"] else "**behind**", of_bar(b), b["source"]]
                      for b in s.bars])
        behind = sum(not b["ahead"] for b in s.bars)
        out += folded(f"{len(s.bars)} figures beside their bars, {behind} behind", bars) if len(s.bars) > BARS_SHOWN else bars
    return out + s.body


def summary(stages, hosts):
    """The report's first page: every stage, then what failed, what is behind, what was not run. hosts: CPUs of stages, where another one's."""
    out = table(["stage", "", "checks", "bars behind", "s"],
                [[s.name, s.verdict(), f"{len(s.checks) - s.failed} of {len(s.checks)}", f"{sum(not b['ahead'] for b in s.bars)} of {len(s.bars)}",
                  f"{s.seconds:.0f}"] for s in stages])
    absent = [n for n in NAMES if n not in {s.name for s in stages}]
    if absent:
        out += ["", f"No part of this report: {', '.join(absent)}."]
    for host in sorted(set(hosts.values())):
        out += ["", f"On {host}: {', '.join(n for n in NAMES if hosts.get(n) == host)}."]
    failed = [[s.name, c["what"], c["detail"]] for s in stages for c in s.checks if not c["ok"]]
    behind = [[s.name, b["what"], f"{number(b['ours'])} {b['unit']}".strip(), b["bar"], of_bar(b), b["source"]] for s in stages for b in s.bars if not b["ahead"]]
    not_run = [[s.name, x["what"], x["why"]] for s in stages for x in s.left_out]
    for title, head, rows in (("Failed", ["stage", "check", "seen"], failed),
                              ("Behind their bars", ["stage", "", "measured", "bar", "of it", "bar's source"], behind),
                              ("Not run", ["stage", "", "why"], not_run)):
        if rows:
            out += ["", f"**{title}: {len(rows)}**", *table(head, rows)]
    return out


def markdown(ctx, stages, t, command):
    m = ctx.machine
    if "gpu name" in m and "no_gpu" not in m:
        title = f"# {m['gpu name']}, driver {m['gpu driver_version']}, CUDA {m.get('cuda') or 'unknown'}, {m['date'][:10]}"
    else:
        title = f"# {m['cpu']}, no GPU measured, {m['date'][:10]}"
    out = [title, "", f"Commit {m['commit']}; `{command}`. {count_line(t)}.", *summary(stages, m.get("hosts", {}))]
    for s in stages:
        out += section(s)
    return "\n".join(out) + "\n"


def write(out, ctx, stages, command):
    t = totals(stages)
    o = {"machine": ctx.machine, "quick": ctx.quick, "command": command, "totals": t, "stages": [s.as_json() for s in stages]}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(markdown(ctx, stages, t, command))
    out.with_suffix(".json").write_text(json.dumps(o, indent=1) + "\n")
    return t


SAME = ("commit", "gpu name", "gpu driver_version", "cuda", "backend")


def host_of(machine, stage):
    return machine.get("hosts", {}).get(stage, machine["cpu"])


def earlier(path, names, machine_now, quick, before):
    """Stages of an earlier report, but for those that run now, whose data go into `before`. It must be of the same commit and amount, on the
    same kind of GPU; hosts that differ are told."""
    o = json.loads(path.read_text())
    if o.get("quick") != quick:
        sys.exit(f"scripts/gpu-report: {path}: one of the two is --quick")
    for key in SAME:
        if o["machine"].get(key) != machine_now.get(key):
            sys.exit(f"scripts/gpu-report: {path}: {key} is {o['machine'].get(key)} there and {machine_now.get(key)} here")
    for x in o["stages"]:
        if x["name"] in names:
            before.setdefault(x["name"], []).append(x["data"])
    kept = [Stage.from_json(x) for x in o["stages"] if x["name"] not in names]
    for s in kept:
        if (host := host_of(o["machine"], s.name)) != machine_now["cpu"]:
            machine_now.setdefault("hosts", {})[s.name] = host
    return kept


# ---- the run ----

def arguments(argv):
    ap = argparse.ArgumentParser(prog="scripts/gpu-report", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, epilog=
                                 "stages:\n" + "\n".join(f"  {n:11} {t}" for n, t, _ in STAGES) +
                                 "\n\nexit code: 0 all ran and passed; 1 a check failed; 2 none failed, but something could not be run")
    ap.add_argument("--stages", help="comma-separated; default: all; none: only what --add names, without a GPU")
    ap.add_argument("--out", type=pathlib.Path, help="the report, Markdown; JSON goes beside it. Default: of a whole run "
                    "tests/gpu/reports/DATE-GPU.md, else in .cache/gpu-report")
    ap.add_argument("--model", help="real model for parity; default: what scripts/fetch-model brings")
    ap.add_argument("--bin", type=pathlib.Path, help="folder with tandemd, tandem-bench, test_ops, random_plans, write_model and parity, built already")
    ap.add_argument("--quick", action="store_true", help="some minutes instead of about half an hour: fewer sizes, shorter runs, no HTTP bars")
    ap.add_argument("--add", type=pathlib.Path, metavar="REPORT.json", action="append", default=[], help="take the other stages from an earlier report "
                    "of the same commit and kind of GPU, so that a whole one can be made in parts; may be given several times")
    ap.add_argument("--device", type=int, default=0, help="which GPU")
    ap.add_argument("--head-dim", type=int, default=128, choices=[64, 96, 128, 256], help="of the attention stage's cells (128)")
    ap.add_argument("--loads", metavar="LOAD,...", help="of the loads stage: NAME:RATE[:POLICY[-STEP_TOKENS]] of open arrivals, RATE also as a share of the highest, 95%% "
                    f"({', '.join(loads.OPEN)}), or {', '.join(loads.CLOSED)}; default: {loads.DEFAULT}. With --add of a report that has some, they are added to them")
    ap.add_argument("--seconds", type=float, help=f"of arrivals of each open load ({loads.SECONDS})")
    ap.add_argument("--scratch", help="folder with room for 17 GB, for the loading stage")
    ap.add_argument("--work", type=pathlib.Path, help="folder for logs and small files; default: in .cache/gpu-report")
    ap.add_argument("--commit", help="what the programs were built from, where this is not a git checkout")
    ap.add_argument("--backend", choices=["cuda", "cpu"], default="cuda", help="cpu: for work on this script itself")
    a = ap.parse_args(argv)
    a.names = [] if a.stages == "none" else a.stages.split(",") if a.stages else NAMES
    if not a.names and not a.add:
        ap.error("--stages none goes with --add")
    if a.seconds is not None and not 0 < a.seconds <= 3600:
        ap.error("--seconds is above 0, and an hour at most")
    try:
        loads.cells_of(a.loads)
    except ValueError as e:
        ap.error(f"--loads: {e}")
    unknown = [n for n in a.names if n not in NAMES]
    if unknown:
        ap.error(f"no stage {unknown[0]}; there are {', '.join(NAMES)}")
    return a


def default_out(a, ctx, cache, stamp):
    if a.names == NAMES and not a.quick and "gpu name" in ctx.machine and "no_gpu" not in ctx.machine:
        short = re.sub(r"[^a-z0-9]+", "-", ctx.machine["gpu name"].lower().replace("nvidia ", ""))
        return ROOT / "tests/gpu/reports" / f"{stamp[:10]}-{short}.md"
    return cache / f"{stamp}.md"


def main(argv):
    a = arguments(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("scripts/gpu-report: ended by a signal"))  # programs of ours would run on
    stamp = time.strftime("%Y-%m-%d-%H%M%S", time.gmtime())
    cache = pathlib.Path(os.environ.get("TANDEM_CACHE", ROOT / ".cache")) / "gpu-report"
    stored = cache.parent / "models" / MODEL
    model = a.model or (str(stored) if stored.exists() else None)
    ctx = Context(ROOT, (a.bin or ROOT / "build-gpu-report").resolve(), (a.work or cache / stamp).resolve(), a.backend, a.quick, model,
                  a.scratch, a.device, a.head_dim)
    if a.names:
        machine.look(ctx, a.commit)
    else:
        ctx.machine = json.loads(a.add[0].read_text())["machine"]
    out = a.out or default_out(a, ctx, cache, stamp)
    ctx.loads, ctx.seconds, ctx.out = a.loads, a.seconds, out
    command = "scripts/gpu-report, in parts put together by --add" if not a.names else \
        "scripts/gpu-report" + (f" --stages {a.stages}" if a.stages else "") + (" --quick" if a.quick else "") + \
        (f" --head-dim {a.head_dim}" if a.head_dim != 128 else "") + (f" --loads {a.loads}" if a.loads else "") + \
        (f" --seconds {a.seconds:g}" if a.seconds else "") + \
        (f" --backend {a.backend}" if a.backend != "cuda" else "")
    stages = []
    for path in a.add:
        stages += earlier(path, [*a.names, *(s.name for s in stages)], ctx.machine, a.quick, ctx.before)
    stages.sort(key=lambda s: NAMES.index(s.name))
    if not a.names:
        t = write(out, ctx, stages, command)
    for name, title, function in STAGES:
        if name in a.names:
            stages.append(run_stage(ctx, name, title, function))
            stages.sort(key=lambda s: NAMES.index(s.name))
            t = write(out, ctx, stages, command)  # after each: what was measured stays if the rest does not come
    print(f"report: {out}\nlogs: {ctx.logs}")
    for s in stages:
        print(f"  {s.name:11} {s.verdict()}")
    print(count_line(t))
    say("")
    return exit_code(t)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
