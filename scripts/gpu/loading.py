"""Llama-3-8B's bytes on disk, from exec to the first token."""
import pathlib
import re
import shutil
import tempfile
import time

import models
from core import must
from daemon import Daemon

BYTES = 16.1e9


def first_token(ctx, model):
    """Seconds from exec to ready and to the first token of an answer, and the daemon's log."""
    with Daemon(ctx, model=model, ready_s=600) as d:
        answer = d.stream({"prompt": list(range(40, 60)), "max_tokens": 1, "ignore_eos": True})
        if answer.status != 200 or len(answer.ids) != 1:
            raise RuntimeError(f"no token came: status {answer.status}, {answer.error}")
        at = answer.first - d.begin
    return d.ready_after_s, at, d.code, d.log()


def weights_line(text):
    """(GB, seconds, GB/s) of the daemon's own line."""
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
        rows = []
        for turn in ("--check, first", "--check, second: all in page cache"):
            begin = time.monotonic()
            r = ctx.run("tandemd", "--model", folder, "--backend", ctx.backend, "--check", limit_s=600)
            must(r, "tandemd --check")
            rows.append([turn, r.seconds, *weights_line(r.text)[1:]])
        ready, first, code, log = first_token(ctx, folder)
        rows.append(["serving: exec to ready", ready, *weights_line(log)[1:]])
        rows.append(["serving: exec to first token", first, None, None])
        s.table(["", "s in all", "weights, s", "GB/s"], rows)
        s.data["rows"] = rows
        s.check(code == 0 and (ctx.backend == "cpu" or rows[1][3] is not None), "loaded and served from disk",
                f"weights at {rows[1][3]} GB/s from the page cache")
        if config is models.LLAMA3_8B:
            s.bar("8B bf16 from page cache, exec to first token", first, ctx.peers()["goals"]["8B from page cache to first token, s"], "s",
                  source="goal")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
