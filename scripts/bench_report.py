#!/usr/bin/env python3
"""Puts what scripts/bench measured into report.md and draws latency.svg: time to first token, time between tokens and
throughput over the offered load, a line for each server. Only the standard library.

    bench_report.py FOLDER            everything in a folder of scripts/bench
    bench_report.py --svg OUT.svg RESULT.json...   only the picture, from any results of `tandem-bench serve --json`"""
import json
import math
import pathlib
import sys
from xml.sax.saxutils import escape

WIDTH, HEIGHT, GAP, LEFT, TOP, BOTTOM = 330, 250, 40, 62, 46, 46
COLOURS = ["#1f6fb4", "#d1541e", "#2e8b3d", "#7d4bb0", "#8a6d1f", "#b02a5b"]
PANELS = [("time to first token, ms", [("p50", lambda r: r["ttft_ms"]["p50"]), ("p99", lambda r: r["ttft_ms"]["p99"])], True),
          ("time between tokens, ms", [("p50", lambda r: r["tbt_ms"]["p50"]), ("p99", lambda r: r["tbt_ms"]["p99"])], True),
          ("output tokens/s", [("", lambda r: r["output_tokens_per_s"])], False)]
# Values that only a simulation has.
INSIDE = ("KV held: mean, most (dashed); hits (dotted), %",
          [(k, lambda r, field=field: 100 * r["inside"][field] if "inside" in r else None) for k, field in (
              ("", "kv_owned_share_mean"), ("most", "kv_owned_share_max"), ("hit", "prefix_hit_share"))], False)
DASHES = {"p99": "5 3", "most": "5 3", "hit": "1 3"}


def ticks_linear(top):
    step = 10 ** math.floor(math.log10(top / 4)) if top > 0 else 1
    for k in (1, 2, 5, 10):
        if top / (step * k) <= 5:
            step *= k
            break
    return [i * step for i in range(int(top / step) + 1)]


class Axis:
    """Maps values to pixels. A logarithmic scale spans whole thirds of decades around the data."""

    def __init__(self, values, low_px, high_px, log):
        self.log, self.low_px, self.high_px = log, low_px, high_px
        values = [v for v in values if v is not None and v > 0]
        low, high = (min(values), max(values)) if values else (1, 1)
        if log:
            marks = [m * 10.0 ** e for e in range(-4, 9) for m in (1, 2, 5)]
            self.low = max([m for m in marks if m <= low] or [low])
            self.high = min([m for m in marks if m >= high and m > self.low] or [high * 2])
            self.ticks = [m for m in marks if self.low <= m <= self.high]
        else:
            self.low, self.high = 0, high * 1.05 or 1
            self.ticks = ticks_linear(self.high)

    def __call__(self, v):
        a, b, x = (math.log(self.low), math.log(self.high), math.log(v)) if self.log else (self.low, self.high, v)
        return self.low_px + (x - a) / (b - a) * (self.high_px - self.low_px)


def text(x, y, s, size=11, anchor="middle", colour="#333", extra=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{colour}"{extra}>{escape(str(s))}</text>'


def panel(index, title, lines, log, results, x_of):
    left, top = index * (WIDTH + GAP + LEFT) + LEFT, TOP
    values = [v for _, runs in results for r in runs for _, f in lines if (v := f(r)) is not None]
    xs = Axis([x_of(r) for _, runs in results for r in runs], left, left + WIDTH, False)
    ys = Axis(values, top + HEIGHT, top, log)
    out = [text(left + WIDTH / 2, top - 10, title, 13)]
    for t in ys.ticks:
        out.append(f'<line x1="{left}" x2="{left + WIDTH}" y1="{ys(t):.1f}" y2="{ys(t):.1f}" stroke="#e4e4e4"/>')
        out.append(text(left - 6, ys(t) + 4, f"{t:g}", anchor="end"))
    for t in xs.ticks:
        out.append(text(xs(t), top + HEIGHT + 16, f"{t:g}"))
    out.append(f'<rect x="{left}" y="{top}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#999"/>')
    for k, (_, runs) in enumerate(results):
        for name, f in lines:
            points = [(xs(x_of(r)), ys(f(r))) for r in sorted(runs, key=x_of) if f(r) is not None and f(r) > 0]
            if not points:
                continue
            dash = f' stroke-dasharray="{DASHES[name]}"' if name in DASHES else ""
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            out.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS[k % len(COLOURS)]}" stroke-width="1.8"{dash}/>')
            out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.8" fill="{COLOURS[k % len(COLOURS)]}"/>' for x, y in points]
    return out


def draw(path, results):
    """results: [(label, runs)]."""
    open_loop = any(r["rate"] for _, runs in results for r in runs)
    panels = PANELS + [INSIDE] * any("inside" in r for _, runs in results for r in runs)
    total = len(panels) * (WIDTH + GAP + LEFT)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{total}" height="{TOP + HEIGHT + BOTTOM + 20}" font-family="sans-serif">',
           '<rect width="100%" height="100%" fill="white"/>']
    for i, (title, lines, log) in enumerate(panels):
        out += panel(i, title, lines, log, results, lambda r: r["rate"] or r["streams"])
    what = "requests/s offered" if open_loop else "streams"
    out.append(text(total / 2, TOP + HEIGHT + 38, f"{what}; whole lines: median, dashed: 99th percentile", 12))
    x = LEFT + 10
    for k, (label, _) in enumerate(results):
        out.append(text(x, 18, "● " + label, 13, "start", COLOURS[k % len(COLOURS)]))
        x += max(140, 30 + 7.5 * len(label))
    path.write_text("\n".join([*out, "</svg>"]) + "\n")


def load_curves(paths):
    results = []
    for p in paths:
        o = json.loads(p.read_text())
        runs = [r for r in o["runs"] if r["done"] > 0]
        if runs:
            results.append((o["label"], runs))
    return results


def share(v):
    return "-" if v is None else f"{v * 100:.0f} %"


def serve_table(path):
    o = json.loads(path.read_text())
    yield f"\n### {path.stem}\n"
    yield "| run | done | failed | out tok/s | TTFT p50 / p99 ms | TBT p50 / p99 / max ms | stalled > 200 ms | good | generator: core, late p99 ms |"
    yield "|---|---|---|---|---|---|---|---|---|"

    def ms(v):
        return "-" if v is None else f"{v:.1f}" if v < 100 else f"{v:.0f}"
    for r in o["runs"]:
        t, b, g = r["ttft_ms"], r.get("while_all_decode", r)["tbt_ms"] if r["streams"] else r["tbt_ms"], r["generator"]
        stalled = next((v for k, v in r.items() if k.startswith("requests_with_gap_over_")), "-")
        yield (f"| {r['name']} | {r['done']} | {r['sent'] - r['done']} | {r['output_tokens_per_s']:.1f} | {ms(t['p50'])} / {ms(t['p99'])} | "
               f"{ms(b['p50'])} / {ms(b['p99'])} / {ms(b['max'])} | {stalled:g} | {share(r['goodput']['share'])} | "
               f"{g['share_of_a_core']:.2f}, {g['sent_late_ms_p99']:.2f} |")


def report(folder):
    out = ["# tandem, measured\n", "```", (folder / "machine.txt").read_text().strip(), "```",
           "How each figure is measured and what it leaves out: bench/README.md."]
    curves = load_curves(sorted(folder.glob("curves-*.json")))
    if curves:
        draw(folder / "latency.svg", curves)
        out += ["\n![latency over offered load](latency.svg)"]
    serves = [p for p in sorted(folder.glob("*-*.json"))]
    if serves:
        out.append("\n## serve: through HTTP")
        out.append("\nTTFT from the moment a request was due. TBT of closed streams: while all of them decode.")
        for p in serves:
            out += list(serve_table(p))
    for name in ("steps", "kernels"):
        if (folder / f"{name}.txt").exists():
            out += [f"\n## {name}\n", "```", (folder / f"{name}.txt").read_text().rstrip(), "```"]
    (folder / "report.md").write_text("\n".join(out) + "\n")
    print(f"report: {folder / 'report.md'}")


def main(args):
    if len(args) >= 3 and args[0] == "--svg":
        try:
            draw(pathlib.Path(args[1]), load_curves(map(pathlib.Path, args[2:])))
        except (OSError, ValueError, KeyError) as e:
            sys.exit(f"bench_report.py: {e}")
    elif len(args) == 1 and pathlib.Path(args[0]).is_dir():
        report(pathlib.Path(args[0]))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
