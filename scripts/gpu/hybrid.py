"""Attention of prefill chunks, alone and beside decodes, compared with FlashAttention-3 and -4 and FlashInfer in the same run: in one
launch, and as a serial pair of prefill and decode. The GPU's clock and watts are recorded, because its power limit matters as much
as the kernel."""
import datetime
import json
import statistics
import subprocess

from core import must
from machine import smi_id
from peers import ERROR_MAX, check_agree, peers_here

HOT_S, SAMPLE_MS, SMALLEST_SAMPLES = 0.4, 20, 3
POLICIES = ("auto", "serial", "halves", "proportional", "streams")  # ours, serial, and POD's (bench/README.md)
COLUMNS = ("FlashAttention-3", "FlashAttention-4")  # of peers, beside the best one
NOISE = 1.02
FLOOR_BYTES_US, FLOOR_FLOP_US = 4.55e6, 790e6


class Watch:
    """Records clock and watts of the GPU while a block runs."""

    def __init__(self, ctx):
        self.file = ctx.log("clocks")
        self.command = ["nvidia-smi", f"--id={smi_id(ctx.device)}", "--query-gpu=timestamp,clocks.sm,power.draw", "--format=csv,noheader,nounits",
                        f"--loop-ms={SAMPLE_MS}"]

    def __enter__(self):
        self.out = open(self.file, "wb")
        self.process = subprocess.Popen(self.command, stdout=self.out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
        self.out.close()
        self.samples = [s for s in map(sample_of, self.file.read_text("utf-8", "replace").splitlines()) if s]

    def during(self, begin_s, end_s):
        """(MHz, W), medians of the second half of the time, or nothing."""
        seen = [s[1:] for s in self.samples if (begin_s + end_s) / 2 <= s[0] <= end_s]
        return tuple(statistics.median(v) for v in zip(*seen)) if len(seen) >= SMALLEST_SAMPLES else (None, None)


def sample_of(line):
    try:
        when, mhz, watts = (v.strip() for v in line.split(","))
        return datetime.datetime.strptime(when, "%Y/%m/%d %H:%M:%S.%f").timestamp(), float(mhz), float(watts)
    except ValueError:
        return None


def key_of(cell):
    return cell["name"], cell["heads"], cell["kv_heads"]


def best_peer(figures):
    name = min(figures, key=figures.get, default=None)
    return name, figures.get(name)


def of_peer(figures, peer):
    """Returns its fastest time, in one launch or as a pair, with any pages; None if it was not measured."""
    return min((us for name, us in figures.items() if name.startswith(peer)), default=None)


def tell_policies(s, cells):
    """scripts/draw_hybrid.py draws them."""
    rows = []
    for c in cells:
        us = {k["cut"]: k["hot_us"] for k in c["cuts"]}
        rows.append([c["name"], f"{c['heads']}/{c['kv_heads']}", us["serial"], *(us["serial"] / us[p] for p in POLICIES if p != "serial")])
        s.check(all(k["error"] is not None and k["error"] <= ERROR_MAX for k in c["cuts"]), f"{c['name']} {c['heads']}/{c['kv_heads']}: every policy "
                "has the same output", f"largest difference {max(k['error'] for k in c['cuts']):.1e}")
    s.text("### policies: how many times as fast as one after the other (us), hot")
    s.table(["", "heads", "serial", *(p for p in POLICIES if p != "serial")], rows)


def tell(s, ours, peers, watch):
    theirs = {key_of(c): c["us"] for c in peers.get("cells", ())}
    rows = []
    for c in ours:
        cuts = {k["cut"]: k for k in c["cuts"]}
        auto, serial, name = cuts["auto"], cuts["serial"], f"{c['name']} {c['heads']}/{c['kv_heads']}"
        figures = theirs.get(key_of(c), {})
        peer, peer_us = best_peer(figures)
        floor = max(c["flop"] / FLOOR_FLOP_US, c["decode_bytes"] / FLOOR_BYTES_US)
        rows.append([c["name"], f"{c['heads']}/{c['kv_heads']}", floor, auto["us"], auto["hot_us"], serial["us"], serial["hot_us"],
                     c["flop"] / auto["hot_us"] * 1e-6, *watch.during(auto["hot_begin_s"], auto["hot_end_s"]),
                     *(of_peer(figures, p) for p in COLUMNS), peer_us, peer or "-"])
        s.check(all(k["error"] is not None and k["error"] <= ERROR_MAX for k in c["cuts"]), f"{name}: every cut has the same output",
                f"largest difference {max(k['error'] for k in c['cuts']):.1e}")
        if c["kind"] in ("hybrid", "sharing"):
            s.bar(f"{name}, hot, beside our serial", auto["hot_us"], serial["hot_us"] * NOISE, "us", source="serial")
        if peer_us:
            s.bar(f"{name}, hot, beside the best peer", auto["hot_us"], peer_us * NOISE, "us", source=peer)
    s.text("us of one layer; hot: after the same for a while on end, with clock and watts then; serial: decodes after prefill")
    s.table(["", "heads", "floor", "us", "hot", "serial", "serial hot", "TFLOP/s hot", "MHz", "W", *COLUMNS, "best peer", ""], rows)
    check_agree(s, peers.get("cells", ()))


def stage(ctx, s):
    ctx.need_gpu()
    what = ["--head-dim", ctx.head_dim, *(["--heads", "32/8"] if ctx.quick else [])]
    cells, out = ctx.work / "hybrid-cells.json", ctx.work / "hybrid.json"
    must(ctx.run("tandem-bench", "hybrid", *what, "--cells", cells, limit_s=60), "tandem-bench hybrid --cells")
    with Watch(ctx) as watch:
        must(ctx.run("tandem-bench", "hybrid", *what, "--backend", "cuda", "--device", ctx.device, "--cuts", "auto,serial", "--seconds", 0.2,
                     "--hot-seconds", HOT_S, "--json", out, limit_s=300), "tandem-bench hybrid")
    policies = ctx.work / "hybrid-policies.json"
    must(ctx.run("tandem-bench", "hybrid", *what, "--backend", "cuda", "--device", ctx.device, "--only", "hybrid", "--cuts", ",".join(POLICIES),
                 "--seconds", 0.1, "--hot-seconds", HOT_S / 4, "--json", policies, limit_s=120), "tandem-bench hybrid, policies")
    peers = peers_here(ctx, s, "attention_peers", ["--cells", cells, "--max-seconds", 60 if ctx.quick else 250, "--hot-seconds", HOT_S], 420)
    ours = json.loads(out.read_text())
    of_policies = json.loads(policies.read_text())
    s.data.update(hybrid=ours, policies=of_policies, peers=peers.get("cells", []))
    tell(s, ours, peers, watch)
    tell_policies(s, of_policies)
