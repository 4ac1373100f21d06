"""Every op against float64 and the CPU; then the same, and the daemon's whole request mix, under compute-sanitizer."""
import collections
import concurrent.futures
import os
import re
import shutil
import time

import mix
import models
from core import NotRun
from daemon import Daemon

TOOLS = ["memcheck", "racecheck", "initcheck", "synccheck"]
CLEAN = re.compile(r"(?:ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards displayed)")
# racecheck does not follow cuBLAS's kernels that multicast between the blocks of a cluster: races within those are told, not counted
RACE = re.compile(r"^=+ .*Race reported between \w+ access at (?:void )?([\w:]+).*\+0x.*\n=+\s+and \w+ access at (?:void )?([\w:]+).*\+0x", re.M)
LIBRARY = re.compile(r"nvjet_|cutlass_|cublas")
UNTRACKED = re.compile(r"Internal Sanitizer Error: .* launching (\w+) and didn't track the launch")
ERROR_AT = re.compile(r"^=+ +at (?:void )?([\w:]+).*\+0x", re.M) # of memcheck's, initcheck's and synccheck's errors
# racecheck follows every access to shared memory, some thousand times slower than the kernel: it gets every kernel on few elements,
# 160 s on an H200 where the others take 12. (Leaving out cuBLAS's by --kernel-name ends in an illegal access with the tool of CUDA 13.0.)
AMOUNT = {"memcheck": "small", "racecheck": "tiny", "initcheck": "small", "synccheck": "small"}
# synccheck guesses how many barriers a block has, and for its guess of kernels like these it has no memory: it leaves their launches
# unchecked. Told a number, it runs out of room for barriers in a process that makes all of the ops' backends: so these go section by section.
OPTIONS = {"synccheck": ["--num-cuda-barriers", "256"]}
SECTIONS = {"synccheck": [["products"], ["attention"], ["plans"], ["cuts"], ["captures"], ["alone", "steps", "sampling"]]}
OPS_LIMIT_S, MIX_LIMIT_S = 580, 240 # a dozen concurrent runs share the cores: racecheck of the ops took 315 s alone, and over 360 beside others


# Processes beside each other: words of test_ops, and what share of the cores its references get. A GPU is idle most of the time there.
PARTS = {"products": 3, "attention": 4, "always": 2, "tiles": 2, "pat": 2, "persistentkv": 2, "flashdecode": 2, "cuts": 4, "captures": 1, "alone": 1, "steps": 1, "sampling": 2}


RANDOM = {"random batches": [], "random batches of chunks and decodes": ["hybrid"]} # arguments of random_plans, besides the number: kind of attention
RANDOM_PLANS = 3000
RANDOM_SHARE = 3 # of the cores, each, beside PARTS
RANDOM_PLANS_UNDER = {"memcheck": 72} # per tool: two of each head shape and policy


def share_of_cores(share, shares):
    """For references on all cores, in processes beside each other: threads that spin while they wait would take what others need."""
    return {"OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) * share // shares)), "OMP_WAIT_POLICY": "passive"}


def random_plans(ctx):
    return 2 if ctx.backend == "cpu" else RANDOM_PLANS // (10 if ctx.quick else 1)


def run_parts(ctx, amount, limit_s):
    """Runs the parts and returns their outcomes. A CPU has one set of threads, and one policy."""
    if ctx.backend == "cpu":
        parts = {"all": ctx.run("test_ops", "cpu", amount, limit_s=limit_s)}
        return parts | {what: ctx.run("random_plans", *words, "cpu", random_plans(ctx), limit_s=limit_s) for what, words in RANDOM.items()}
    shares = sum(PARTS.values()) + RANDOM_SHARE * len(RANDOM)
    with concurrent.futures.ThreadPoolExecutor(len(PARTS) + len(RANDOM)) as pool:
        started = {what: pool.submit(ctx.run, "random_plans", *words, ctx.backend, random_plans(ctx), limit_s=limit_s,
                                     env=share_of_cores(RANDOM_SHARE, shares)) for what, words in RANDOM.items()}
        started |= {part: pool.submit(ctx.run, "test_ops", ctx.backend, amount, part, limit_s=limit_s, env=share_of_cores(share, shares))
                    for part, share in PARTS.items()}
        parts = {part: f.result() for part, f in started.items()}
    parts["times"] = ctx.run("test_ops", ctx.backend, amount, "times", limit_s=limit_s)  # by itself: it measures
    return parts


def check_random(s, what, r, n_plans):
    """Checks that every requested plan ran: refused ones are left out, and no backend here refuses any."""
    told = r.find(r"^random_plans \w+: (\d+ passed, 0 failed; (\d+) plans .*)", ("", "0"))
    wrong = next((line for line in r.text.splitlines() if line.startswith("FAIL")), "")
    s.check(r.code == 0 and int(told[1]) == n_plans and not wrong, f"attention of {what} against float64",
            f"{told[0] or f'exit code {r.code}'}, {r.seconds:.0f} s" + (f"; {wrong}" if wrong else ""))


def stage_ops(ctx, s):
    ctx.need_backend()
    begin = time.monotonic()
    amount = "tiny" if ctx.backend == "cpu" else "small" if ctx.quick else "all"  # on the CPU, ctest runs more of both programs
    parts = run_parts(ctx, amount, OPS_LIMIT_S)
    seconds = time.monotonic() - begin
    random = {what: parts.pop(what) for what in RANDOM}
    text = "".join(r.text for r in parts.values())
    counts = [r.find(r"^test_ops \w+: (\d+) passed, (\d+) failed") for r in parts.values()]
    passed, failed = (sum(int(c[i]) for c in counts if c) for i in (0, 1))
    wrong = [f"{part}: exit code {r.code} after {r.seconds:.0f} s" for (part, r), c in zip(parts.items(), counts) if not c]
    for (part, r), c in zip(parts.items(), counts):
        if not c: # test_ops reported where it was when its time limit passed
            s.block(f"The last words of {part}", r.text[-3000:])
    wrong += [f"{part}: nothing was tested" for part, c in zip(parts, counts) if c and c[0] == "0" and part != "times"]
    wrong += [line for line in text.splitlines() if line.startswith("FAIL")]
    ok = all(r.code == 0 for r in parts.values()) and not wrong and failed == 0 and passed > 0
    s.check(ok, "ops against float64 and the CPU", f"{passed} passed, {failed} failed, {seconds:.0f} s" + (f"; {wrong[0]}" if wrong else ""))
    for what, r in random.items():
        check_random(s, what, r, random_plans(ctx))
    vocabs = re.findall(r"^sampling, vocab (\d+): (\d+) tokens in (\d+) steps, (\d+) of them captured.*: (\d+) differ", text, re.M)
    s.check(vocabs and all(v[4] == "0" for v in vocabs), "sampled tokens equal to the CPU's",
            f"{sum(int(v[1]) for v in vocabs):,} tokens, {len(vocabs)} vocabularies of {vocabs[0][0]} to {vocabs[-1][0]}" if vocabs else "none")
    s.data.update(passed=passed, vocabularies=[list(map(int, v)) for v in vocabs],
                  seconds={part: round(r.seconds, 1) for part, r in parts.items()})
    times = re.search(r"^sampling, us per op.*?(?=^times:)", text, re.M | re.S)
    if times:
        s.block("What sampling takes", times[0])


def sanitizer():
    for p in (shutil.which("compute-sanitizer"), "/usr/local/cuda/bin/compute-sanitizer"):
        if p and os.path.exists(p):
            return p
    raise NotRun("compute-sanitizer is not installed")


def judge(s, what, code, text, seconds, detail=""):
    """Judges by the tool's summary and the program's exit code, because a tool that did not run has no summary."""
    summary = re.findall(r"=+ ((?:ERROR|RACECHECK) SUMMARY: .*)", text)
    races = RACE.findall(text)
    in_library = [a for a, b in races if LIBRARY.match(a) and LIBRARY.match(b)]
    shown = re.findall(r"RACECHECK SUMMARY: (\d+) hazard", summary[-1] if summary else "")
    ours = [m for m in RACE.finditer(text) if not (LIBRARY.match(m[1]) and LIBRARY.match(m[2]))]
    kernels = collections.Counter(ERROR_AT.findall(text)) if not races else collections.Counter(m[1] for m in ours)
    untracked = collections.Counter(UNTRACKED.findall(text))
    if untracked:
        detail += f", {sum(untracked.values())} launches left unchecked, most of {untracked.most_common(1)[0][0]}"
    if kernels:
        detail += ", in " + ", ".join(f"{name} ({n})" for name, n in kernels.most_common(4))
    clean = summary and not untracked and (CLEAN.search(summary[-1]) or (shown and int(shown[0]) == len(races) == len(in_library)))
    if in_library:
        detail += f", {len(in_library)} of them in cuBLAS's {', '.join(sorted(set(in_library)))}"
    s.check(code in (0, 99) and clean if in_library else code == 0 and clean, what,
            f"{summary[-1] if summary else 'no summary'}{detail}; exit code {code}, {seconds:.0f} s")
    s.data[what] = {"seconds": seconds, "code": code, "summary": summary[-1:]}
    if first := (ours[0] if ours else re.search(r"^=+ +at .*\+0x", text, re.M)) if kernels else None: # logs may be deleted before they are needed
        s.block("What it saw first", "\n".join(text[:first.start()].splitlines()[-1:] + text[first.start():].splitlines()[:6]))


def command(tool, path):
    return [path, "--tool", tool, "--error-exitcode", "99", *OPTIONS.get(tool, [])]


def run_ops(ctx, tool, path, words, n_beside):
    return ctx.run("test_ops", "cuda", AMOUNT[tool], *words, limit_s=OPS_LIMIT_S, prefix=command(tool, path), env=share_of_cores(1, n_beside))


def check_ops(s, tool, words, r):
    what = " ".join([f"{tool} of test_ops cuda {AMOUNT[tool]}", *words])
    if r.timed_out:
        s.check(False, what, f"did not end within {OPS_LIMIT_S} s")
        return
    passed = r.find(r"^test_ops cuda: (\d+ passed, \d+ failed)", "no count")
    if wrong := next((line for line in r.text.splitlines() if line.startswith("FAIL")), ""):
        passed += f" ({wrong})"
    judge(s, what, r.code, r.text, r.seconds, f", {passed}")


def run_random(ctx, tool, path, n_beside, words):
    return ctx.run("random_plans", *words, "cuda", RANDOM_PLANS_UNDER[tool], limit_s=OPS_LIMIT_S, prefix=command(tool, path), env=share_of_cores(1, n_beside))


def check_random_under(s, tool, words, r):
    what = " ".join([f"{tool} of random_plans", *words, f"cuda {RANDOM_PLANS_UNDER[tool]}"])
    if r.timed_out:
        s.check(False, what, f"did not end within {OPS_LIMIT_S} s")
    else:
        judge(s, what, r.code, r.text, r.seconds, f", {r.find(r'^random_plans cuda: (.*)', 'no count')}")


def run_mix(ctx, tool, path):
    """A small model from disk: loading, hybrid steps, captured steps, planning ahead, all samplings, cancels, prefix hits. By default
    decodes of so small a model would each read what they share. Times of steps under a tool are nobody's."""
    begin = time.monotonic()
    n, longest, answer = (9, 60, 4) if tool == "racecheck" else (24, 300, 16)
    requests = mix.make(n, models.TINY["vocab_size"], longest, answer)
    options = ["--step-tokens", 128, "--running-requests", 16, "--kv-bytes", 64 << 20, "--sse-stall-ms", 600000, "--health-stall-ms", 600000,
               "--cache-dir", "", "--capture-ms", 1000 * MIX_LIMIT_S]
    with Daemon(ctx, *options, env={"TANDEM_SHARE": "always"}, model=models.tiny_on_disk(ctx), ready_s=MIX_LIMIT_S, stop_s=120,
                prefix=command(tool, path)) as d:
        d.until_captured(MIX_LIMIT_S)
        first = mix.play(d, requests, leavers=6, timeout=MIX_LIMIT_S)
        again = mix.play(d, requests, leavers=5, timeout=MIX_LIMIT_S)
        m = d.until_idle()
    done, due = (sum(x) for x in zip(mix.whole(requests, first), mix.whole(requests, again)))
    return d, m, done, due, time.monotonic() - begin


def check_mix(s, tool, d, m, done, due, seconds):
    judge(s, f"{tool} of tandemd under a request mix", d.code, d.log(), seconds,
          f", {m['tandem:steps_total']:.0f} steps, {m['vllm:prefix_cache_hits_total']:.0f} prefix tokens found")
    s.check(m["tandem:captured_steps_total"] > 0, f"{tool}: captured steps were launched meanwhile", f"{m['tandem:captured_steps_total']:.0f} of them")
    s.check(done == due and m["vllm:prefix_cache_hits_total"] > 0, f"{tool}: every answer came whole meanwhile", f"{done} of {due}")


def stage_sanitizers(ctx, s):
    """All at once: none of them fills the GPU, and nothing here is timed. But racecheck keeps every access it has seen in the host's memory:
    115 GB in the end of a mix that calibrated first. So its mix comes after all others."""
    ctx.need_gpu()
    path = sanitizer()
    models.tiny_on_disk(ctx)
    sections = [(tool, words) for tool in TOOLS for words in SECTIONS.get(tool, [[]])]
    batches = [(tool, words) for tool in RANDOM_PLANS_UNDER for words in RANDOM.values()]
    with concurrent.futures.ThreadPoolExecutor(len(sections) + len(batches) + len(TOOLS)) as pool:
        random = [(tool, words, pool.submit(run_random, ctx, tool, path, len(sections), words)) for tool, words in batches]
        ops = [(tool, words, pool.submit(run_ops, ctx, tool, path, words, len(sections))) for tool, words in sections]
        mixes = {tool: pool.submit(run_mix, ctx, tool, path) for tool in TOOLS if tool != "racecheck"}
        for tool, words, run in ops:
            with s.part(" ".join([f"{tool} of test_ops cuda {AMOUNT[tool]}", *words])):
                check_ops(s, tool, words, run.result())
        for tool, words, run in random:
            with s.part(" ".join([f"{tool} of random_plans", *words])):
                check_random_under(s, tool, words, run.result())
        for tool, run in mixes.items():
            with s.part(f"{tool} of tandemd under a request mix"):
                check_mix(s, tool, *run.result())
    with s.part("racecheck of tandemd under a request mix"):
        check_mix(s, "racecheck", *run_mix(ctx, "racecheck", path))
