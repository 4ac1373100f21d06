#!/usr/bin/env python3
"""Draws docs/img/figures.svg and writes README.md's table of figures, both from a GPU report in tests/gpu/reports.

    draw_figures.py [REPORT]   from this report, or the newest one that has all the stages shown
    draw_figures.py --check    exit code 1 if picture or table differ from the report

Only the standard library. scripts/test lint runs --check, so that README and picture cannot fall behind the report they name."""
import pathlib
import re
import sys
from xml.sax.saxutils import escape

ROOT = pathlib.Path(__file__).resolve().parent.parent
README, PICTURE = ROOT / "README.md", ROOT / "docs/img/figures.svg"
MARKS = re.compile(r"(<!-- figures -->\n).*?(<!-- /figures -->)", re.S)
STREAMS = ("1", "4", "16", "64", "128", "256")
# What operators ask for; shown if the report has it.
LOADS = (("arXiv-like requests/s held at 60 ms between tokens (p99) and 1 s to the first (p50)",
          "arXiv-like load: highest tested rate with p99 time between tokens <= 60 ms and median time to first token <= 1 s"),
         ("toolagent:6, tpot mean", "toolagent load, 6 requests/s: mean time per output token"), ("toolagent:6, ttft p50", "toolagent load, 6 requests/s: median time to first token"),
         ("conversation:20, tpot mean", "conversation load, 20 requests/s: mean time per output token"), ("conversation:20, ttft p50", "conversation load, 20 requests/s: median time to first token"))
CELLS = ("decode 1x16384 32/8", "decode 16x4096 32/8", "decode 64x1024 32/8", "tree 1,10_4096,416 32/8",
         "tree 1,256_256,32 32/8", "tree 1,1024_2048,32 32/8")
OURS, PEER, FLOOR = "#1f6fb4", "#b9c3cc", "#d1541e"


# ---- the report ----

def number(s):
    return float(s.split()[0].replace(",", ""))


def bars(text):
    """Name -> (measured, with its unit; bar; ratio as printed; source). Takes the first row of each name: peers come before goals."""
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([\d.,]+) \| [^|]+ \| ([\d.]+x) \| ([^|]*) \|$", text, re.M)
    return {name: (measured.strip(), number(bar), ratio, source) for name, measured, bar, ratio, source in reversed(rows)}


def floors(text):
    """Rows of a step at context 1024 -> milliseconds needed to read weights and KV once."""
    found = re.findall(r"^decode (\d+)x1024 +[\d.]+ +[\d.]+ +([\d.]+) |^\| decode \| (\d+) \| 1024 \| (?:[^|]+\| ){4}([\d.]+) \|", text, re.M)
    return {rows or rows_too: ms or ms_too for rows, ms, rows_too, ms_too in found}


def is_whole(text):
    found = bars(text)
    return (all(f"time between tokens p50, {n} streams at 1024" in found for n in STREAMS) and
            all(c in found for c in CELLS) and set(STREAMS) <= set(floors(text)))


def newest(fits):
    """Returns the newest report whose text matches."""
    def date(p):
        return re.search(r"^\| date \| (\S+) \|$", p.read_text(), re.M).group(1)
    those = [p for p in (ROOT / "tests/gpu/reports").glob("*.md") if fits(p.read_text())]
    return max(those, key=date)


# ---- the table ----

def table(path, text):
    found = bars(text)
    gpu = re.search(r"^# (.*)$", text, re.M).group(1)
    gpu = re.sub(r", V[\d.]+", "", gpu)
    commit = re.search(r"^Commit (\w+)", text, re.M).group(1)

    def through_http(name, shown):
        measured, bar, ratio, _ = found[name]
        bar = f"{bar:,.0f}" if bar >= 1000 else f"{bar:.4g}"
        return f"| {shown} | {measured} | {bar} {measured.split(maxsplit=1)[1]} | {ratio} |"
    vllm = found["time between tokens p50, 1 streams at 1024"][3]
    lines = [f"{gpu}; commit {commit}; `scripts/gpu-report`.", "Shape of Llama-3-8B in bf16, random weights.",
             f"All figures: [the report](tests/gpu/reports/{path.name}).", "",
             f"| through HTTP | tandem | {vllm} (1) | |", "|---|---|---|---|"]
    lines += [through_http(name, shown + " (2)") for name, shown in LOADS if name in found]
    lines += [through_http(f"time between tokens p50, {n} streams at 1024",
                           f"time between tokens, {n} stream{'s' if n != '1' else ''}, 1,024 tokens each") for n in ("1", "16", "64", "256")]
    lines += [through_http("time to first token p50, one prompt of 2048", "time to first token, 2,048 tokens"),
              through_http("512 requests of 1000 in, 1000 out at once", "512 requests at the same time, each 1,000 tokens in and 1,000 out"),
              through_http("exec to ready", "start until ready, with the measurements of an earlier start")]
    lines += ["", "| inside the engine (peer in the same run) | tandem | peer | |", "|---|---|---|---|"]
    for n in ("1", "64", "256"):
        measured, _, _, source = found[f"all linears of a step of {n} rows"]
        peer = float(re.match(r"cuBLAS ([\d.]+) in this run", source).group(1))
        lines.append(f"| all linears of a step, {n} row{'s' if n != '1' else ''} | {measured} | {peer} ms, cuBLAS | {peer / number(measured):.2f}x |")
    for cell, shown in ((CELLS[0], "decode attention, 1 sequence of 16,384 keys"), (CELLS[1], "decode attention, 16 sequences of 4,096"),
                        (CELLS[5], "1,024 sequences sharing 2,048 keys")):
        measured, bar, ratio, source = found[cell]
        lines.append(f"| {shown} | {measured} | {bar:.4g} us, {source.replace(' tensor cores', '')} | {ratio} |")
    ratios = [float(r[:-1]) for name, (_, _, r, peer) in found.items()
              if peer.startswith("Flash") and re.match("decode |tree ", name)]
    lines += ["", f"Over all {len(ratios)} batches and shared prefixes of the report, decode attention is "
              f"{min(ratios):.2f} to {max(ratios):.2f} times as fast as", "the better of FlashAttention-3 and FlashInfer."]
    lines += ["", f"(1) {vllm} ran in one process, without HTTP. scripts/gpu/peers.json says when and on what.",
              "Machines of a kind differ by 2 to 3 %."]
    if seconds := re.search(r"^\| tandem \| [\d.]+ \| (\d+) \|.*\n(?:\| tandem .*\n)*\| vLLM [\d.]+ \| [\d.]+ \| (\d+) \|", text, re.M):
        lines += ["", f"(2) Requests arrived for {seconds.group(1)} s, vLLM's for {seconds.group(2)} s or more. At first no prefix is cached, which weighs more in a short run."]
    return "\n".join(lines) + "\n"


# ---- the picture ----

def say(x, y, s, size=11, anchor="middle", colour="#333", weight="normal"):
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{colour}" '
            f'font-weight="{weight}">{escape(s)}</text>')


def box(x, y, w, h, colour):
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" fill="{colour}"/>'


def panel(left, title, groups, scale, unit, floor=None):
    """groups: (label, ours, peer[, floor]); one bar each, with its number on top."""
    top, bottom, width = 70, 270, 400
    step = width / len(groups)
    out = [say(left, 24, title, 13, "start", weight="bold")]
    out.append(f'<path d="M{left} {bottom}h{width}" stroke="#888"/>')
    for i, (label, ours, peer, *rest) in enumerate(groups):
        x, bar = left + i * step + step * 0.12, step * 0.36
        for j, (value, colour) in enumerate(((ours, OURS), (peer, PEER))):
            h = (bottom - top) * value / scale
            out.append(box(x + j * bar, bottom - h, bar - 2, h, colour))
            out.append(say(x + (j + 0.5) * bar, bottom - h - 4, f"{value:.3g}", 9))
        if floor:
            h = (bottom - top) * rest[0] / scale
            out.append(f'<path d="M{x - 2:.1f} {bottom - h:.1f}h{bar + 2:.1f}" stroke="{FLOOR}" stroke-width="2"/>')
        for k, part in enumerate(label.split("\n")):
            out.append(say(left + (i + 0.5) * step, bottom + 15 + 12 * k, part, 9.5))
    keys = [("tandem", OURS), (unit, PEER)] + ([(floor, FLOOR)] if floor else [])
    x = left
    for name, colour in keys:
        out += [box(x, 36, 10, 10, colour), say(x + 14, 45, name, 10, "start")]
        x += 26 + 5.6 * len(name)
    return out


def picture(text):
    found, floor = bars(text), floors(text)

    def pair(name):
        measured, bar, _, _ = found[name]
        return number(measured), bar
    steps = [(n, *pair(f"time between tokens p50, {n} streams at 1024"), float(floor[n])) for n in STREAMS]
    labels = ("1 x 16,384", "16 x 4,096", "64 x 1,024", "10 x 416\nshare 4,096", "256 x 32\nshare 256", "1,024 x 32\nshare 2,048")
    cells = []
    for label, cell in zip(labels, CELLS):
        ours, peer = pair(cell)
        cells.append((label, 1.0, peer / ours))
    vllm = found["time between tokens p50, 1 streams at 1024"][3]
    out = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 310" font-family="DejaVu Sans, Helvetica, Arial, sans-serif">',
           '<rect width="900" height="310" fill="#fff"/>']
    out += panel(30, "Time between tokens by streams, ms (less is better)", steps, max(s[2] for s in steps) * 1.05,
                 f"{vllm} (no HTTP)", "memory bandwidth floor")
    out += panel(475, "Decode attention, sequences x keys (tandem = 1)", cells, max(c[2] for c in cells) * 1.05,
                 "the better of FlashAttention-3 and FlashInfer, same run")
    return "\n".join(out + ["</svg>"]) + "\n"


def main():
    check = sys.argv[1:] == ["--check"]
    path = newest(is_whole) if check or not sys.argv[1:] else pathlib.Path(sys.argv[1]).resolve()
    text, readme = path.read_text(), README.read_text()
    wanted, n = MARKS.subn(lambda m: m[1] + table(path, text) + m[2], readme)
    if n != 1:
        sys.exit("README.md has no <!-- figures --> mark")
    if check:
        stale = [p.relative_to(ROOT) for p, new in ((README, wanted), (PICTURE, picture(text))) if p.read_text() != new]
        for p in stale:
            print(f"  {p} does not show {path.name}: run scripts/draw_figures.py", file=sys.stderr)
        sys.exit(bool(stale))
    README.write_text(wanted)
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(picture(text))


if __name__ == "__main__":
    main()
