"""Measurements through HTTP, compared with the peer's figures: time between tokens, time to first token, throughput, start."""
import json

import models
from core import must
from daemon import Daemon
from machine import cores_busy

BUSY_MAX = 0.1
KNOWN_BEFORE = 100000  # prompt tokens of a decode run from which on the preset has them computed before


def load(ctx, d, name, *args, limit_s=600, ignore_eos=True):
    path = ctx.work / f"serve-{name}.json"
    must(ctx.run("tandem-bench", "serve", "--url", f"http://127.0.0.1:{d.port}", "--label", "tandem", *(["--ignore-eos"] if ignore_eos else []),
                 "--token-ids", "--vocab", 128000 if ctx.backend == "cuda" else models.TINY["vocab_size"], *args, "--json", path, limit_s=limit_s),
         "tandem-bench serve")
    return json.loads(path.read_text())["runs"]


def all_done(s, runs):
    failed = {r["name"]: r["errors"] or r["shorter_than_asked"] or r["warm_failed"]
              for r in runs if r["done"] != r["sent"] or r["shorter_than_asked"] or r["warm_failed"]}
    s.check(runs and not failed, f"every request of {', '.join(r['name'] for r in runs)} was answered whole", failed or "")
    slow = [r["name"] for r in runs if r["generator"]["share_of_a_core"] > 0.7 or r["generator"]["sent_late_ms_p99"] > 5]
    if slow:
        s.text(f"The load generator was itself near its limit in: {', '.join(slow)}.")


def row(r):
    b = r.get("while_all_decode", r)["tbt_ms"]
    return [r["name"], r["done"], r["output_tokens_per_s"], r["ttft_ms"]["p50"], r["ttft_ms"]["p99"], b["p50"], b["p99"], b["max"]]


def judge_decode(s, runs, peer):
    for r in runs:
        where = r["name"].split()[-1]
        bar = peer["time between tokens p50, ms"].get(where)
        known = r["prompt_tokens"] < KNOWN_BEFORE or r["cached_prompt_tokens"] > 0.9 * r["prompt_tokens"]
        s.check("while_all_decode" in r and known, f"{r['name']}: there is a time in which all decode, of prompts known before where they are many",
                f"{r['cached_prompt_tokens']} of {r['prompt_tokens']} prompt tokens were found")
        if bar and "while_all_decode" in r:
            s.bar(f"time between tokens p50, {where.replace('@', ' streams at ')}", r["while_all_decode"]["tbt_ms"]["p50"], bar, "ms", source=peer["name"])


def stage(ctx, s):
    ctx.need_backend()
    gpu = ctx.backend == "cuda"
    if gpu:  # the daemon's threads and the generator's would wait for cores: what is measured then is the host
        busy = cores_busy()
        s.check(busy <= BUSY_MAX, "the host has its cores for the daemon", f"{100 * busy:.0f} % busy before")
    model = models.describe(ctx.work / "llama3-8b", models.LLAMA3_8B) if gpu else models.describe(ctx.work / "described-tiny", models.TINY)
    peer = ctx.peers()["vllm"]
    source = peer["name"]
    if not ctx.quick:  # the figures are those of a calibrated daemon
        must(ctx.run("tandemd", "--calibrate", "--model", model, "--load-format", "dummy", "--backend", ctx.backend, "--device", ctx.device),
             "tandemd --calibrate")
    with Daemon(ctx, "--load-format", "dummy", model=model) as d:
        if ctx.quick:
            decode = load(ctx, d, "decode", "--streams", "1,16", "--input", 64, "--output", 16)
            prefill, offline = load(ctx, d, "prefill", "--streams", "1", "--requests", 3, "--input", 256, "--output", 1), []
        else:
            decode = load(ctx, d, "decode", "--preset", "decode")
            prefill = load(ctx, d, "prefill", "--preset", "prefill")
            offline = load(ctx, d, "offline", "--preset", "offline")
    s.check(d.code == 0, "the daemon ends with 0 afterwards", d.code)
    runs = decode + prefill + offline
    all_done(s, runs)
    s.table(["run", "done", "out tok/s", "TTFT p50", "p99 ms", "TBT p50", "p99", "max ms"], [row(r) for r in runs])
    s.data["runs"], s.data["ready_s"] = runs, d.ready_after_s
    if ctx.quick or not gpu:
        s.not_run("the bars", "the runs were short (--quick)" if gpu else "the backend is not a GPU's")
        return
    judge_decode(s, decode, peer)
    for r in prefill:
        bar = peer["time to first token, ms"].get(r["name"].split()[-1])
        if bar:
            s.bar(f"time to first token p50, one prompt of {r['name'].split()[-1]}", r["ttft_ms"]["p50"], bar, "ms", source=source)
    for r in offline:
        s.bar("512 requests of 1000 in, 1000 out at once", r["output_tokens_per_s"],
              peer["512 requests of 1000 in, 1000 out, output tokens/s"], "tok/s", less_is_better=False, source=source)
    s.bar("exec to ready", d.ready_after_s, peer["exec to ready, s"], "s", source=source)
    s.text("Where streams have 100,000 tokens of prompts together, these are computed before, for one token each, and found in the prefix cache: "
           "all then decode at contexts of the length named to 256 tokens more, as the peer's streams do while all of them decode.")
    s.text(f"The bars: {peer['provenance']}.")
