"""Ops and whole steps compared with their floors; and how much of the time between steps the device is idle."""
import json

import models
from core import must, number, percentile
from daemon import Daemon
from peers import peers_here

LINEARS = ("qkv", "o", "gate_up", "down")
ROWS = (*range(1, 9), 16, 64, 256, 2048)
HEAD_ROWS_MAX = 256  # a prompt's head computes one row
GLUE = {"rmsnorm": 2, "rope_kv": 1, "swiglu": 1}  # of a layer: so many of each
PROMPT = 2048
ROWS_OF = {"kernels": ("ops", ["op", "size", "us", "gb_s", "tflop_s", "floor_us", "share"]),
           "steps": ("steps", ["kind", "batch", "context", "chunk", "chunk_context", "alone_ms_p50", "pace_ms_p50", "floor_ms", "tokens_per_s"])}
GLUE_STEPS = ((64, 1024), (256, 1024))
ATTENTION_STEPS = ((64, 4096), (256, 2048))  # batch and context
# one whose rows fill whole tiles of the linears, one whose chunk does
HYBRID_CHUNKS, HYBRID_DECODES, HYBRID_CONTEXT = "496,512", 16, 1024
HYBRID_PARTS = {"linears": "linear,swiglu", "attention": "attention", "all other ops": "embed,rmsnorm,rope_kv,gather,sample"}


def measured(ctx, s, what, args, limit_s):
    """Puts tandem-bench's figures into the report, and returns its JSON."""
    path = ctx.work / f"{what}.json"
    must(ctx.run("tandem-bench", what, *args, "--json", path, limit_s=limit_s), f"tandem-bench {what}")
    o = s.data[what] = json.loads(path.read_text())
    rows, columns = ROWS_OF[what]
    s.table(columns, [[r.get(c) for c in columns] for r in o[rows]], f"tandem-bench {what}: all figures")
    return o


def linears_ms(ops, rows, layers=32):
    """The time of all GEMMs of a step, from the times of single ops; for many rows without the head."""
    us = {(o["op"], int(o["size"].split()[0])): o["us"] for o in ops if o["op"] in (*LINEARS, "lm_head")}
    parts = [(m, rows) for m in LINEARS]
    if any(p not in us for p in parts) or (rows <= HEAD_ROWS_MAX and ("lm_head", rows) not in us):
        return None
    return (layers * sum(us[p] for p in parts) + (us[("lm_head", rows)] if rows <= HEAD_ROWS_MAX else 0)) / 1000


def prompt_shares(ops, rows):
    """Of a prompt's step by the ops' own times: its products' share of the ceiling, and the share of the time that goes into
    what is neither a product nor attention."""
    by = {(o["op"], o["size"].split(" ")[0]): o for o in ops}
    both = ("glu", str(rows)) in by  # gate_up and swiglu are one op
    linears = [by.get(("glu" if both and m == "gate_up" else m, str(rows))) for m in LINEARS]
    glue = [by.get((op, str(rows))) for op in GLUE if not (both and op == "swiglu")]
    attention = by.get(("attention", f"{rows}@{rows}"))
    if None in (*linears, *glue, attention):
        return None, None
    linears_us = sum(o["us"] for o in linears)
    glue_us = sum(GLUE[o["op"]] * o["us"] for o in glue)
    return sum(o["floor_us"] for o in linears) / linears_us, glue_us / (linears_us + glue_us + attention["us"])


def tell_linears(s, ops, peers, here):
    """Bars against cuBLAS: as measured in this run, by its faster API; otherwise as measured on another machine."""
    for rows, elsewhere in peers["cublas"]["linears, ms"].items():
        figures = here.get("linears, ms", {}).get(rows, {})
        way = min(figures, key=figures.get, default=None)
        theirs = figures.get(way, elsewhere)
        slack = peers["goals"]["linears beside cuBLAS"] if int(rows) > 1 else 1
        s.bar(f"all linears of a step of {rows} rows", linears_ms(ops, int(rows)), theirs * slack, "ms",
              source=f"{peers['cublas']['name']} {number(theirs)} {f'in this run ({way})' if way else 'on another machine'}"
              + (f" and {slack - 1:.0%}" if slack > 1 else ""))


def stage_kernels(ctx, s):
    ctx.need_gpu()
    args = ["--backend", "cuda", "--device", ctx.device, "--shape", "llama3-8b", "--rows", ",".join(map(str, ROWS))]
    ops = measured(ctx, s, "kernels", [*args, "--max-seconds", 0.2 if ctx.quick else 1], 600)["ops"]
    s.check(len(ops) > 30, "every op was measured", f"{len(ops)} figures")
    peers = ctx.peers()
    goal = peers["goals"]["share of the bandwidth, 1 to 8 rows"]
    for o in ops:
        if o["op"] in (*LINEARS, "lm_head") and int(o["size"].split()[0]) <= 8:
            s.bar(f"{o['op']} {o['size']}, share of the memory's bandwidth", o["share"], goal, "", less_is_better=False, source="goal")
    rows = ",".join(peers["cublas"]["linears, ms"])
    here = s.data["product_peers"] = peers_here(ctx, s, "product_peers", ["--rows", rows], 300)
    tell_linears(s, ops, peers, here)
    linears, glue = prompt_shares(ops, PROMPT)
    s.bar(f"products of a prompt of {PROMPT}, share of 790 TFLOP/s", linears, peers["goals"]["products of a prompt, share of 790 TFLOP/s"], "",
          less_is_better=False, source="goal")
    s.bar(f"neither products nor attention, share of a prompt of {PROMPT}", glue, peers["goals"]["glue of a prompt"], "", source="goal")


def decode_ms(steps, batch, context):
    """A whole step, and the step without each left-out part, in turns."""
    both = [x["alone_ms_p50"] for x in steps if x["kind"] == "decode" and x["batch"] == batch and x["context"] == context]
    return both[0], both[1]


def tell_parts(s, glue, attention, alone_us, goals, layers=32):
    """What a step takes longer with what is neither a product nor attention, and with attention; the latter beside attention alone, us by (batch, context)."""
    for batch, context in GLUE_STEPS:
        whole, without = decode_ms(glue, batch, context)
        s.bar(f"neither products nor attention, share of a step of {batch} at context {context}", 1 - without / whole, goals["glue of a step"], "", source="goal")
    for batch, context in ATTENTION_STEPS:
        whole, without = decode_ms(attention, batch, context)
        us = 1000 * (whole - without) / layers
        s.bar(f"attention of {batch} decodes at context {context} in a step, share of its rate alone", alone_us[batch, context] / us,
              goals["attention in a step, share of its rate alone"], "", less_is_better=False, source=f"goal; {us:.1f} us a layer, alone {alone_us[batch, context]:.1f}")


def tell_hybrid_parts(s, by_part):
    """Where a hybrid step's time goes: what it takes longer with each kind of op. What no kind accounts for is launches and gaps."""
    rows = []
    for chunk in map(int, HYBRID_CHUNKS.split(",")):
        wholes, parts = [], []
        for steps in by_part.values():
            found = [x for x in steps if x["kind"] == "hybrid" and x["chunk"] == chunk]
            whole, without = (next(x for x in found if ("without" in x) == left_out)["alone_ms_p50"] for left_out in (False, True))
            wholes.append(whole)
            parts.append(whole - without)
        whole = sum(wholes) / len(wholes)
        rows.append([f"{chunk} tokens beside {HYBRID_DECODES} decodes at {HYBRID_CONTEXT}", whole, *parts, whole - sum(parts)])
    s.text("ms of a hybrid step, and what it takes longer with each kind of op, whole and without in turns:")
    s.table(["", "whole", *by_part, "rest"], rows)


def measure_parts(ctx, s, args):
    """Measures whole steps and steps with parts left out, in turns, and attention alone, all in one run."""
    decodes = ["--prompts", 0, "--chunks", 0]

    def steps_without(name, batches, contexts, without, kinds=decodes):
        path = ctx.work / f"{name}.json"
        must(ctx.run("tandem-bench", "steps", *args, *kinds, "--max-seconds", 0.5 if ctx.quick else 1.5, "--batches", batches,
                     "--contexts", contexts, "--without", without, "--json", path, limit_s=300), f"tandem-bench {name}")
        return json.loads(path.read_text())["steps"]

    def hybrid_without(without):
        return steps_without("hybrid_parts", HYBRID_DECODES, HYBRID_CONTEXT, without, ["--prompts", 0, "--chunks", HYBRID_CHUNKS])

    def attention_alone(batch, context):
        path = ctx.work / "attention_alone.json"
        must(ctx.run("tandem-bench", "attention", "--backend", "cuda", "--device", ctx.device, "--only", "decode", "--heads", "32/8", "--policies", "auto",
                     "--name", f"{batch}x{context}", "--json", path, limit_s=300), "tandem-bench attention")
        return json.loads(path.read_text())["cells"][0]["us"]["auto"]

    parts = {"glue": steps_without("no_glue", "64,256", "1024", "rmsnorm,rope_kv,swiglu,sample"),
             "attention": steps_without("no_attention", "64,256", "2048,4096", "attention")}
    alone_us = {cell: attention_alone(*cell) for cell in ATTENTION_STEPS}
    hybrid = {name: hybrid_without(ops) for name, ops in HYBRID_PARTS.items()}
    s.data["parts"] = {**parts, "hybrid": hybrid, "attention_alone_us": {f"{b}x{c}": us for (b, c), us in alone_us.items()}}
    tell_parts(s, **parts, alone_us=alone_us, goals=ctx.peers()["goals"])
    tell_hybrid_parts(s, hybrid)


def stage_steps(ctx, s):
    ctx.need_gpu()
    shape = ["--backend", "cuda", "--device", ctx.device, "--shape", "llama3-8b"]
    what = ["--batches", "1,64,256", "--contexts", "1024", "--prompts", "2048", "--chunks", "512", "--runs", 10, "--max-seconds", 1] if ctx.quick \
        else ["--contexts", "1024,4096", "--prompts", "512,2048,8192,16384", "--chunks", "512,2048", "--max-seconds", 4]
    steps = measured(ctx, s, "steps", [*shape, *what], 900)["steps"]
    s.check(len(steps) >= 5, "every step was measured", f"{len(steps)} figures")
    measure_parts(ctx, s, shape)
    one = next(x for x in steps if x["kind"] == "decode" and x["batch"] == 1 and x["context"] == 1024)
    s.bar("decode step of 1 at context 1024", min(one["alone_ms_p50"], one.get("pace_ms_p50", 1e9)),
          ctx.peers()["goals"]["decode step of 1 at context 1024, ms"], "ms", source="goal")


# ---- the time between steps ----

def read_trace(path, decodes):
    """Steps of so many decodes and nothing else, out of the daemon's trace: host microseconds by kind and step, and the
    device's steps as (number, end, duration)."""
    host, device = {}, []
    for e in json.loads(path.read_text()):
        if e["ph"] != "X" or e["args"]["decodes"] != decodes or e["args"]["prefill_tokens"]:
            continue
        if e["name"] == "step":
            device.append((e["args"]["step"], e["ts"] + e["dur"], e["dur"]))
        else:
            host.setdefault(e["args"]["step"], {})[e["name"]] = e["dur"]
    return host, sorted(device)


def idle_share(device):
    """Idle time as a share of the time from one step's end to the next one's, over runs of consecutive steps."""
    busy = total = 0
    for (n, end, _), (n2, end2, dur) in zip(device, device[1:]):
        if n2 == n + 1:
            busy, total = busy + dur, total + end2 - end
    return max(0.0, 1 - busy / total) if total else None


def stage_idle(ctx, s):
    ctx.need_gpu()
    n = 256
    trace = ctx.work / "trace.json"
    model = models.describe(ctx.work / "llama3-8b", models.LLAMA3_8B)
    with Daemon(ctx, "--load-format", "dummy", "--trace", trace, model=model) as d:
        load = ["--url", f"http://127.0.0.1:{d.port}", "--ignore-eos", "--token-ids", "--vocab", 128000, "--warm", 0]
        # prompts first, which are no decodes: their steps are read off the counters after a run of prompts alone
        must(ctx.run("tandem-bench", "serve", *load, "--streams", n, "--input", 128, "--output", 1, limit_s=120), "load")
        before = d.until_idle()
        must(ctx.run("tandem-bench", "serve", *load, "--streams", n, "--input", 128, "--output", 100 if ctx.quick else 300,
                     limit_s=300), "load")
        after = d.until_idle()
    s.check(d.code == 0, "the daemon ends with 0", d.code)
    busy, idle, plan, steps = (after[f"tandem:{x}"] - before[f"tandem:{x}"] for x in
                               ("device_busy_seconds_total", "device_idle_seconds_total", "plan_seconds_total", "steps_total"))
    goals = ctx.peers()["goals"]
    limit = goals["device idle share at 256 decodes"]
    s.check(steps > 50 and busy > 0 and idle / (idle + busy) < limit, f"device idle between steps, by its own clock, below {limit:.0%}",
            f"{idle / (idle + busy):.3%} of {busy + idle:.2f} s in {steps:.0f} steps, planning {1e6 * plan / steps:.0f} us a step")
    host, device = read_trace(trace, n)
    share = idle_share(device)
    s.check(len(device) > 50 and share is not None and share < limit, f"the same by the trace, steps of {n} decodes",
            f"{share:.3%} of {len(device)} steps, each {percentile([x[2] for x in device], 50) / 1000:.2f} ms" if share is not None else
            f"{len(device)} such steps")
    s.data.update(idle_by_counters=idle / (idle + busy), idle_by_trace=share, steps=len(device))
    if host:
        parts = ("plan", "queue", "publish")
        s.table(["host, us a step", "p50", "p90", "p99"],
                [[p, *(percentile([h.get(p, 0) for h in host.values()], q) for q in (50, 90, 99))] for p in parts])
        whole = percentile([sum(h.get(p, 0) for p in parts) for h in host.values()], 50)
        s.bar(f"host work of a step of {n} decodes, p50", whole, goals["host work of a step of 256 decodes, us"], "us", source="goal")
