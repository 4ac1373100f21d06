"""What must go wrong well: bad devices, too little memory, shapes without kernels, a device that fails in the middle of the work, NaN in
the logits."""
import re

import mix
import models
from core import NotRun
from daemon import Answer, Daemon, together

USAGE, MODEL, NOMEM, NO_DEVICE, FAULT = 64, 65, 67, 69, 70
CUDA_WORDS = r"CUDA|device fault|TANDEM_FAULT"


def errors_of(text):
    return [line for line in text.splitlines() if " error " in line or line.startswith("tandemd: ")]


def start_that_fails(ctx, s, what, code, words, model, *options, env=None):
    r = ctx.run("tandemd", "--model", model, "--load-format", "dummy", "--backend", "cuda", "--check", *options, limit_s=120, env=env)
    lines = errors_of(r.text)
    last = (r.text.strip().splitlines() or [""])[-1]
    s.check(r.code == code and len(lines) == 1 and lines[0] == last and all(re.search(w, last) for w in words), f"{what}: exit code {code}, one line",
            f"{r.code}: {last[:220]}")


def stage_starts(ctx, s):
    ctx.need_gpu()
    tiny = models.describe(ctx.work / "described-tiny", models.TINY)
    big = models.describe(ctx.work / "llama3-8b", models.LLAMA3_8B)
    odd = models.describe(ctx.work / "head-dim-80", models.TINY, hidden_size=320, head_dim=80)
    start_that_fails(ctx, s, "no such device", USAGE, ["device = 63", "no such GPU"], tiny, "--device", 63)
    start_that_fails(ctx, s, "too little memory", NOMEM, ["MiB are missing", "attention", "gpu_memory_percent"], big, "--gpu-memory-percent", 5, "--device", ctx.device)
    start_that_fails(ctx, s, "no GPU to be seen", NO_DEVICE, ["sees no GPU", "CUDA_VISIBLE_DEVICES"], tiny, env={"CUDA_VISIBLE_DEVICES": ""})
    start_that_fails(ctx, s, "a head dim without a kernel", MODEL, ["80"], odd, "--device", ctx.device)
    r = ctx.run("tandemd", "--model", tiny, "--load-format", "dummy", "--check", limit_s=120, env={"CUDA_VISIBLE_DEVICES": ""})
    why = [line for line in r.text.splitlines() if "serving from the CPU" in line]
    s.check(r.code == 0 and len(why) == 1 and "backend cpu" in r.text, "backend = auto goes to the CPU and says so",
            f"{r.code}: {why[0][:200] if why else 'no word of it'}")
    r = ctx.run("tandemd", "--model", tiny, "--load-format", "dummy", "--check", "--device", ctx.device, limit_s=120)
    s.check(r.code == 0 and "backend cuda" in r.text, "backend = auto takes the GPU where there is one", r.code)


def unless_too_late(ask):
    """Returns None if nothing listened any more, or if the connection was not accepted before the end."""
    try:
        answer = ask()
    except (ConnectionRefusedError, ConnectionResetError, BrokenPipeError):
        return None
    return None if isinstance(answer, Answer) and answer.status is None else answer


def one_fault(ctx, s, step, model, options):
    """Running streams, streams that wait for a place, and an answer that is not a stream."""
    requests = mix.make(10, models.TINY["vocab_size"], 200, 300, seed=step)
    for r in requests:
        r["max_tokens"] = 600
    with Daemon(ctx, *options, "--running-requests", 6, model=model, env={"TANDEM_FAULT": f"device:{step}"}) as d:
        answers = together([lambda r=r: unless_too_late(lambda: d.stream(r)) for r in requests] +
                           [lambda: unless_too_late(lambda: d.post("/v1/completions", {"prompt": [5, 6], "max_tokens": 600, "ignore_eos": True}))])
        code = d.wait(60)
    whole = answers.pop()  # None: it arrived after the daemon had ended
    late = answers.count(None)
    answers = [a for a in answers if a]
    # a stream whose request arrived after the device had failed is refused with a plain 503
    told = [a for a in answers if a.status == 503 or (a.status == 200 and a.error and a.error.get("code") == "engine_failed" and not a.done)]
    running = sum(a.status == 200 for a in answers)
    lines = errors_of(d.log())
    s.check(len(told) == len(answers) and (whole is None or whole[0] == 503) and running > 0, f"device fault in step {step}: every open stream is told",
            f"{running} streams by an error event, {len(answers) - running} by 503, {late} came too late; whole answer {whole[0] if whole else 'came too late'}")
    s.check(code == FAULT and len(lines) == 1 and re.search(CUDA_WORDS, lines[0]), f"device fault in step {step}: exit code {FAULT}, one line",
            f"{code}: {lines[-1][:220] if lines else 'no error line'}")


def stage_device(ctx, s):
    ctx.need_backend()
    model = models.describe(ctx.work / "described-tiny", models.TINY)
    for step in (1, 300) if not ctx.quick else (300,):
        with s.part(f"device fault in step {step}"):
            one_fault(ctx, s, step, model, ["--load-format", "dummy", "--kv-bytes", 256 << 20])


# ---- NaN in the logits ----

def unused_token(requests, answers, vocab):
    used = {t for r in requests for t in r["prompt"]} | {t for a in answers for t in a.ids}
    for t in range(vocab - 1, 1, -1):
        if t not in used:
            return t
    raise NotRun("every token of the small model is in use")


def stage_nan(ctx, s):
    """A model in which one token's embedding is NaN: requests with that token end, others in the same steps do not."""
    ctx.need_backend()
    clean = models.tiny_on_disk(ctx)
    requests = mix.make(12, models.TINY["vocab_size"], 120, 32, seed=3)
    options = ["--kv-bytes", 64 << 20]
    with Daemon(ctx, *options, model=clean) as d:
        before = mix.play(d, requests)
    token = unused_token(requests, before, models.TINY["vocab_size"])
    poisoned = models.poison_token(clean, ctx.work / "tiny-nan", token)
    bad = [{"prompt": [9, 10, token, 11], "max_tokens": 32, "ignore_eos": True, "temperature": t, "seed": 1} for t in (0, 1.0)] + \
          [{"prompt": [7] * 90 + [token], "max_tokens": 32, "ignore_eos": True, "temperature": 0}]
    both = [x for i, r in enumerate(requests) for x in ([bad[i // 4], r] if i % 4 == 0 else [r])]
    with Daemon(ctx, *options, model=poisoned) as d:
        answers = mix.play(d, both)
        d.until_idle()
        again = mix.play(d, requests)  # over pages that held NaN
        healthy = d.get("/health")[0]
    ended = [a for a, r in zip(answers, both) if r in bad]
    s.check(all(a.error and a.error.get("type") == "server_error" for a in ended) and len(ended) == len(bad),
            "a request with NaN in its logits ends with an error event", "; ".join(str(a.error or a.finish) for a in ended)[:200])
    others = [(r, a) for a, r in zip(answers, both) if r not in bad]
    done, due = mix.whole(*zip(*others))
    later, due_later = mix.whole(requests, again)
    same = sum(a.ids == b.ids for (_, a), b in zip(others, before))
    s.check(done == due and later == due_later and healthy == 200 and d.code == 0, "all others beside it and after it are answered",
            f"{done} of {due} beside, {later} of {due_later} after; {same} with the same tokens as without it; exit code {d.code}")
