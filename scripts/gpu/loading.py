"""Starts with Llama-3-8B's bytes on disk: the time from exec to the first token, and what a start knows about the machine (nothing, or
what an earlier run learned)."""
import pathlib
import re
import shutil
import tempfile
import time

import models
from core import must
from daemon import Daemon

BYTES = 16.1e9


def start(ctx, model, cache):
    """Seconds from exec to ready and to the first token of an answer, of measuring in idle moments behind that, and the daemon's log."""
    with Daemon(ctx, "--cache-dir", cache, model=model, ready_s=600, tuned=False) as d:
        answer = d.stream({"prompt": list(range(40, 60)), "max_tokens": 1, "ignore_eos": True})
        if answer.status != 200 or len(answer.ids) != 1:
            raise RuntimeError(f"no token came: status {answer.status}, {answer.error}")
        at = answer.first - d.begin
        learned_s = d.until_tuned()
    return d.ready_after_s, at, learned_s, d.code, d.log()


def algorithms_lines(log):
    """Returns what the daemon's log says about known and measured times."""
    return [line.split("info ", 1)[1].strip() for line in log.splitlines() if "info  algorithms: " in line]


def weights_line(text):
    """Returns (GB, seconds, GB/s) from the daemon's log line."""
    m = re.search(r"weights: ([\d.]+) GB in ([\d.]+) s, ([\d.]+) GB/s", text)
    return tuple(map(float, m.groups())) if m else (None, None, None)


def stage(ctx, s):
    ctx.need_backend()
    config, n_bytes = (models.LLAMA3_8B, BYTES) if ctx.backend == "cuda" and not ctx.quick else (models.TINY, 4e6)
    place = models.scratch_for(ctx, n_bytes)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="tandem-load-", dir=place))
    try:
        begin = time.monotonic()
        models.write_weights(ctx, models.describe(folder, config), limit_s=900)
        s.text(f"A model of {n_bytes / 1e9:.1f} GB was written to {'memory (/dev/shm)' if str(place) == '/dev/shm' else 'disk'} "
               f"in {time.monotonic() - begin:.0f} s; what was written last may still be in the page cache.")
        rows, starts = [], []
        for turn in ("--check, first", "--check, second: all in page cache"):
            begin = time.monotonic()
            r = ctx.run("tandemd", "--model", folder, "--backend", ctx.backend, "--check", limit_s=600)
            must(r, "tandemd --check")
            rows.append([turn, r.seconds, *weights_line(r.text)[1:]])
        cache = tempfile.mkdtemp(prefix="cache-", dir=ctx.work)
        for turn in ("first start, of a machine that nothing is known of", "second start", "third start"):
            ready, first, learned_s, code, log = start(ctx, folder, cache)
            rows.append([f"{turn}: exec to ready", ready, *weights_line(log)[1:]])
            rows.append([f"{turn}: exec to first token", first, None, None])
            starts.append({"ready_s": ready, "first_token_s": first, "learned_s": learned_s, "code": code, "algorithms": algorithms_lines(log)})
        s.table(["", "s in all", "weights, s", "GB/s"], rows)
        for number, one in enumerate(starts, 1):
            s.text(f"Start {number}, {one['learned_s']:.1f} s of idle moments: {'; '.join(one['algorithms']) or 'nothing to measure'}")
        s.data["rows"], s.data["starts"] = rows, starts
        s.check(all(one["code"] == 0 for one in starts) and (ctx.backend == "cpu" or rows[1][3] is not None), "loaded and served from disk",
                f"weights at {rows[1][3]} GB/s from the page cache")
        anew = [line for one in starts[1:] for line in one["algorithms"] if re.match("algorithms: measured [1-9]", line)]
        s.check(not anew, "what one start measured, the next ones know", "; ".join(anew))
        if config is models.LLAMA3_8B:
            goals = ctx.peers()["goals"]
            s.bar("8B bf16 from page cache, exec to first token", starts[0]["first_token_s"], goals["8B from page cache to first token, s"],
                  "s", source="goal")
            s.bar("8B bf16 from page cache, exec to ready, nothing known", starts[0]["ready_s"], goals["8B to ready on a bare machine, s"],
                  "s", source="goal")
            s.bar("8B bf16 from page cache, exec to ready, all known", starts[-1]["ready_s"], goals["8B to ready on a known machine, s"],
                  "s", source="goal")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
