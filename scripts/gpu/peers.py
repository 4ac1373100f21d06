"""Peers that are measured in the same run on the same GPU, by separate scripts, with a Python that has them installed."""
import json
import os
import pathlib
import sys

from core import run
from machine import smi_id

PYTHON = "TANDEM_PEERS_PYTHON"  # which Python has the peers
ERROR_MAX = 0.02  # relative to the largest element of another's output; bf16's own rounding is 0.008


def peers_here(ctx, s, script, args, limit_s):
    """Returns the script's results, or nothing; reports which peers are left out, and why."""
    python, out = os.environ.get(PYTHON, sys.executable), ctx.work / f"{script}.json"
    env = {"CUDA_VISIBLE_DEVICES": smi_id(ctx.device)} if ctx.device else None
    try:
        r = run([python, pathlib.Path(__file__).with_name(f"{script}.py"), *args, "--json", out], limit_s, ctx.log(script), env)
    except OSError as e:
        s.not_run(script, e)
        return {}
    if r.code != 0 or not out.exists():
        how = f"did not end within {limit_s} s" if r.timed_out else f"ended with {r.code}"
        s.not_run(script, f"{python} {how}: {r.text.strip()[-300:]}")
        return {}
    o = json.loads(out.read_text())
    for name, why in {**o["left_out"], **o["errors"]}.items():
        s.not_run(f"{name} beside it", why)
    return o


def check_agree(s, cells):
    """Checks that peers have the same output on every timed cell."""
    seen = [(name, e, f"{c['name']} {c['heads']}/{c['kv_heads']}") for c in cells for name, e in c["error"].items()]
    off = [f"{name} by {e:.1e} on {cell}" for name, e, cell in seen if not e <= ERROR_MAX]  # NaN is off
    if seen:
        s.check(not off, "peers' outputs are the same on every cell", "; ".join(off[:3]) or f"largest difference {max(e for _, e, _ in seen):.1e}")
