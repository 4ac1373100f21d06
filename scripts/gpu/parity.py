"""Whole-model greedy parity: the daemon on the GPU is compared with the daemon on the CPU, with a real model.

Both get the same prompts through HTTP, all at the same time. So the comparison includes hybrid batches, captured steps and planning
ahead. Then the program `parity` feeds the same tokens (the CPU's answers) to three models: on the GPU, on the CPU, and on a CPU that
rounds to bf16 whatever a GPU stores in bf16. The difference between the two CPU models is the stated error. It does not come from the
GPU, and it is computed for each position, because some positions of some models are a hundred times as sensitive as others.

- The GPU's logits are off by at most TIMES the stated error, over all positions and for the median prompt.
- Where two answers part, the CPU's logits of the two tokens are close: no further apart than two logits could move, each by TIMES
  the largest error of any logit at that position.
- Two caps do not depend on the model. With u = 2^-8 * sqrt(16 * layers), the median prompt's error is below u, and no margin is
  above 6 u (both as shares of the logits' spread). bf16 keeps 8 bits. A layer has about 16 roundings one after another, and
  independent ones add as squares.
- Of the tokens chosen from the same past, a share of LEAST_AGREEMENT is equal."""
import json
import math
import pathlib

import prompts
from core import NotRun, must, percentile
from daemon import Daemon, together

ANSWER_TOKENS, N_PROMPTS = 64, 100
LEAST_AGREEMENT = 0.95
TIMES, TAIL = 2, 6
KV_BYTES = 4 << 30  # for both, whatever the machine has


def cap(layers):
    return 2.0 ** -8 * math.sqrt(16 * layers)


def first_difference(a, b):
    """Returns the index of the first token that differs, or None."""
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), None if len(a) == len(b) else min(len(a), len(b)))


def make_cases(ids, want, got):
    """The input of `parity`: prompts with the CPU's answers, and where the other answer diverges."""
    cases = []
    for p, w, g in zip(ids, want, got):
        case = {"ids": p + w, "n_prompt": len(p)}
        at = first_difference(w, g)
        if at is not None:
            case |= {"differs_at": at, "other": g[at]}
        cases.append(case)
    return cases


def overall(cases, side):
    """The error over all positions, relative to the logits' spread over all positions."""
    error2 = sum((c[side]["relative"] * c["spread"]) ** 2 * c["positions"] for c in cases)
    return math.sqrt(error2 / sum(c["spread"] ** 2 * c["positions"] for c in cases))


def judge(layers, cases):
    """cases: the output of `parity`. Returns a verdict in numbers; `unexplained` are indices of cases."""
    v = {"cap": cap(layers), "positions": sum(c["positions"] for c in cases), "cpu_agrees": sum(c["cpu_agrees"] for c in cases),
         "spread": percentile([c["spread"] for c in cases], 50), "parted": [i for i, c in enumerate(cases) if "cpu_margin" in c]}
    for side in ("got", "rounded"):
        v[side] = {"overall": overall(cases, side), "median": percentile([c[side]["relative"] for c in cases], 50),
                   "max_diff": max(c[side]["max_diff"] for c in cases), "agrees": sum(c[side]["agrees"] for c in cases),
                   "not_finite": sum(c[side]["not_finite"] for c in cases)}
    v["margins"] = [cases[i]["cpu_margin"] for i in v["parted"]]
    v["allowed"] = [min(2 * TIMES * cases[i]["rounded"]["max_diff_there"], TAIL * v["cap"] * cases[i]["spread"]) for i in v["parted"]]
    v["unexplained"] = [i for i, m, a in zip(v["parted"], v["margins"], v["allowed"]) if not -1e-6 <= m <= a]
    return v


def answers_of(ctx, model, backend, ids):
    with Daemon(ctx, "--context-tokens", 1024, "--kv-bytes", KV_BYTES, model=model, backend=backend) as d:
        jobs = [lambda p=p: d.complete(p, ANSWER_TOKENS, ignore_eos=True) for p in ids]
        out = together(jobs)
    if d.code != 0:
        raise RuntimeError(f"tandemd on {backend} ended with {d.code}: {d.last_line()}")
    return out


def tokenized(ctx, model):
    """Returns the answers of a daemon on the CPU, and the vocabulary's size according to `parity`."""
    with Daemon(ctx, "--kv-bytes", KV_BYTES, model=model, backend="cpu") as d:
        return prompts.all_ids(d, 32000)


def find_model(ctx):
    if ctx.model is None:
        raise NotRun("no real model: --model PATH (a GGUF file or folder that the CPU backend serves, as scripts/fetch-model brings)")
    return pathlib.Path(ctx.model)


def stage(ctx, s):
    ctx.need_backend()
    model = find_model(ctx)
    parity = ctx.program("parity")
    ids = tokenized(ctx, model)
    ids = ids[::10] if ctx.quick else ids
    want = answers_of(ctx, model, "cpu", ids)
    got = answers_of(ctx, model, ctx.backend, ids)
    path = ctx.work / "parity-cases.jsonl"
    path.write_text("".join(json.dumps(c) + "\n" for c in make_cases(ids, want, got)))
    lines = [json.loads(x) for x in must(ctx.run("parity", model, path, ctx.backend, limit_s=900), parity.name).splitlines()
             if x.startswith("{")]
    head, cases = lines[0], lines[1:]
    v = judge(head["layers"], cases)
    s.data.update(v)
    tell(s, model.name, ctx.quick, v, len(ids), len(cases))


def tell(s, name, quick, v, n_asked, n_seen):
    n, got, rounded = v["positions"], v["got"], v["rounded"]
    s.check(n_seen == n_asked and (quick or n_asked == N_PROMPTS), f"{n_asked} prompts answered by both, {ANSWER_TOKENS} tokens each",
            name)
    s.check(got["not_finite"] == 0, "every logit is finite")
    s.check(v["cpu_agrees"] == n, "the CPU's logits, computed in one step, choose the daemon's tokens", f"{v['cpu_agrees']} of {n}")
    s.check(got["overall"] <= TIMES * rounded["overall"], "error of the logits within bf16's, over all positions",
            f"{got['overall']:.4f} of their spread, largest {got['max_diff']:.2f}; the CPU rounding to bf16: {rounded['overall']:.4f}, largest "
            f"{rounded['max_diff']:.2f}")
    s.check(got["median"] <= min(TIMES * rounded["median"], v["cap"]), "the same of the median prompt",
            f"{got['median']:.4f}; the CPU rounding to bf16: {rounded['median']:.4f}; cap {v['cap']:.4f}")
    s.check(got["agrees"] >= LEAST_AGREEMENT * n, "tokens chosen alike from the same past",
            f"{got['agrees']} of {n}; the CPU rounding to bf16: {rounded['agrees']}")
    closest = max(((m / a, m, a) for m, a in zip(v["margins"], v["allowed"]) if a > 0), default=(0, 0, 0))
    s.check(not v["unexplained"], "every difference explained by a margin below the error",
            f"{n_seen - len(v['parted'])} of {n_seen} answers equal; where {len(v['parted'])} part, the CPU's margin is at most "
            f"{max(v['margins'], default=0):.4f} (median {percentile(v['margins'], 50) or 0:.4f}); nearest to its bound: {closest[1]:.4f} of "
            f"{closest[2]:.4f}" + (f"; not explained: {v['unexplained'][:10]}" if v["unexplained"] else ""))
