"""batch_invariant, where the daemon has it: a request's tokens are the same bits alone, in a batch, and after a prefix hit; and what
that costs."""
import json
import re

import mix
import models
from core import NotRun, must
from daemon import Daemon
from parity import first_difference

OPTION = "--batch-invariant"
N_REQUESTS = 32


def option_words(help_text):
    """Returns the option as in the program's --help, or [] if it has none."""
    m = re.search(rf"^\s*{OPTION}(?: (\S+))?\s", help_text, re.M)
    if not m:
        return []
    value = m.group(1) or ""
    return [OPTION] if not value.isupper() else [OPTION, "1" if value == "N" else "on"]


def differing(a, b):
    """Returns the indices of answers that differ, and where each diverges."""
    return [(i, first_difference(x, y)) for i, (x, y) in enumerate(zip(a, b)) if x != y]


def ids_of(requests, answers):
    done, due = mix.whole(requests, answers)
    if done != due:
        raise RuntimeError(f"only {done} of {due} answers came whole")
    return [a.ids for a in answers]


def compare(ctx, s, what, model, load, vocab, words):
    requests = mix.make(N_REQUESTS, vocab, 700, 48, seed=8)
    with Daemon(ctx, *load, *words, model=model) as d:
        together = ids_of(requests, mix.play(d, requests))
        hits = -d.metrics()["vllm:prefix_cache_hits_total"]
        again = ids_of(requests, [d.stream(r) for r in requests])
        hits += d.metrics()["vllm:prefix_cache_hits_total"]
    some = requests[:: 4 if ctx.quick else 1]
    alone = []
    with Daemon(ctx, *load, *words, model=model) as d:
        for r in some:  # shared prefixes are found here too, but fewer than in the second round
            alone.append(d.stream(r))
        cold_hits = d.metrics()["vllm:prefix_cache_hits_total"]
    alone = ids_of(some, alone)
    pairs = [("alone beside together", differing(alone, together[:: 4 if ctx.quick else 1])),
             (f"alone with prefix hits ({hits:.0f} tokens) beside together", differing(again, together))]
    for name, bad in pairs:
        s.check(not bad, f"{what}: {name}, the same tokens", f"{len(bad)} of {len(requests)} differ" + (f", first {bad[0]}" if bad else ""))
    s.check(hits > 0 and cold_hits < hits, f"{what}: prefixes were found on the second turn", f"{hits:.0f} tokens, {cold_hits:.0f} in a new daemon")


def cost(ctx, s):
    words = option_words(ctx.help_of("tandem-bench", "steps"))
    if not words:
        raise NotRun(f"tandem-bench steps has no {OPTION}")
    rows = {}
    for label, extra in (("default", []), ("batch-invariant", words)):
        path = ctx.work / f"steps-{label}.json"
        must(ctx.run("tandem-bench", "steps", "--backend", ctx.backend, "--shape", "llama3-8b" if ctx.backend == "cuda" else "tiny",
                     "--batches", "1,16,64,256", "--contexts", "1024", "--prompts", "2048", "--chunks", "512", "--max-seconds", 1, "--runs", 10, *extra,
                     "--json", path, limit_s=300), "tandem-bench steps")
        for x in json.loads(path.read_text())["steps"]:
            key = f"{x['kind']} {x['batch']} at {x['context']}" if x["kind"] == "decode" else f"{x['kind']} {x['chunk']}" + \
                (f" beside {x['batch']}" if x["batch"] else "")
            rows.setdefault(key, []).append(min(x["alone_ms_p50"], x.get("pace_ms_p50", 1e9)))
    s.table(["step, ms", "default", "batch-invariant", "cost"], [[k, *v, f"{v[1] / v[0] - 1:+.1%}"] for k, v in rows.items() if len(v) == 2])
    s.data["cost"] = rows
    s.check(all(len(v) == 2 for v in rows.values()), "its cost was measured", f"{len(rows)} kinds of step")


def stage(ctx, s):
    ctx.need_backend()
    words = option_words(ctx.help_of("tandemd"))
    if not words and ctx.backend == "cuda":
        raise NotRun(f"this tandemd has no {OPTION}")
    if ctx.backend == "cuda":
        compare(ctx, s, "made-up 8B", models.describe(ctx.work / "llama3-8b", models.LLAMA3_8B), ["--load-format", "dummy"], 128000, words)
    else:
        compare(ctx, s, "tiny", models.tiny_on_disk(ctx), ["--kv-bytes", 64 << 20], models.TINY["vocab_size"], words)
    if ctx.model:
        with s.part("real model"):
            compare(ctx, s, "real model", ctx.model, ["--context-tokens", 2048], 32000, words)
    with s.part("its cost"):
        cost(ctx, s)
