#!/usr/bin/env python3
"""Draws attention of chunks beside decodes by policy, from a GPU report in tests/gpu/reports or what `tandem-bench hybrid --json FILE` wrote:

    draw_hybrid.py             docs/img/hybrid.svg, from the newest report that has the policies
    draw_hybrid.py --check     exit code 1 if that picture differs from the report
    draw_hybrid.py FILE OUT    from any report, or JSON of `--cuts auto,serial,halves,proportional,streams`

A bar is the hot time of a cut divided by that of `serial` (prefill, then decodes). The line in each group is the floor: the longer of the
times that the matrix units and the memory need (790 TFLOP/s, 4.55 TB/s). Only the standard library. scripts/test lint runs --check."""
import json
import pathlib
import re
import sys

from draw_figures import FLOOR, OURS, ROOT, box, newest, number, say

PICTURE = ROOT / "docs/img/hybrid.svg"
POLICIES = re.compile(r"^### policies: .*\n\n\| +\| heads (\|.*)\n.*\n((?:\|.*\n)+)", re.M)
SERIAL = "serial"
FLOP_US, BYTES_US = 790e6, 4.55e6
COLOURS = {"auto": OURS, "halves": "#8aa1b1", "proportional": "#c3ccd4", "streams": "#dcc98a"}
A_ROW, STEP, LEFT, TOP, HIGH, ROW, HIGHEST = 6, 146, 40, 84, 150, 214, 1.6


# ---- what was measured: [{"name", "heads", "floor_us", "us": {cut: us, hot}}] ----

def of_bench(cells):
    return [{"name": c["name"], "heads": f"{c['heads']}/{c['kv_heads']}", "floor_us": max(c["flop"] / FLOP_US, c["decode_bytes"] / BYTES_US),
             "us": {k["cut"]: k["hot_us"] for k in c["cuts"]}} for c in cells if c["kind"] == "hybrid"]


def columns(line):
    return [x.strip() for x in line.strip("|").split("|")]


def of_report(text):
    """Reads the table of policies, which says how many times as fast as serial each is. The floor is in the table before it."""
    found = POLICIES.search(text)
    if not found:
        return []
    names, cells = columns(found[1])[1:], []
    for name, heads, serial, *times in map(columns, found[2].splitlines()):
        floor = re.search(rf"^\| {re.escape(name)} \| {heads} \| ([\d.,]+) \|", text[:found.start()], re.M)
        us = {SERIAL: number(serial), **{n: number(serial) / float(t) for n, t in zip(names, times)}}
        cells.append({"name": name, "heads": heads, "floor_us": number(floor[1]), "us": us})
    return cells


# ---- the picture ----

def short(tokens):
    return f"{int(tokens) // 1024}K" if int(tokens) % 1024 == 0 else tokens


def label_of(cell):
    """1024@12288 + 80x12288: 1K@12K + 80x12K."""
    return re.sub(r"(\d+)@(\d+) \+ (\d+)x(\d+)", lambda m: f"{short(m[1])}@{short(m[2])} + {m[3]}x{short(m[4])}", cell["name"])


def group(x, bottom, cell, names):
    serial = cell["us"][SERIAL]
    out, wide = [], (STEP - 18) / len(names)

    def up(part):
        return bottom - HIGH * min(part, HIGHEST) / HIGHEST
    for i, name in enumerate(names):
        part = cell["us"][name] / serial
        out += [box(x + i * wide, up(part), wide - 2, bottom - up(part), COLOURS[name]), box(x + i * wide, up(part) - 12, wide - 2, 12, "#fff")]
        out.append(say(x + (i + 0.5) * wide - 1, up(part) - 3, f"{part:.2f}", 10))
    out.append(f'<path d="M{x - 2:.1f} {up(cell["floor_us"] / serial):.1f}h{STEP - 16:.1f}" stroke="{FLOOR}" stroke-width="2"/>')
    for i, line in enumerate((label_of(cell), f"{cell['heads']}, {serial:,.0f} us")):
        out.append(say(x + (STEP - 18) / 2 - 1, bottom + 15 + 13 * i, line))
    return out


def picture(cells):
    names = [n for n in COLOURS if all(n in cell["us"] for cell in cells)]
    rows = [cells[i:i + A_ROW] for i in range(0, len(cells), A_ROW)]
    width, height = LEFT + STEP * len(rows[0]), TOP - 20 + ROW * len(rows)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="DejaVu Sans, Helvetica, Arial, sans-serif">',
           f'<rect width="{width}" height="{height}" fill="#fff"/>',
           say(LEFT, 20, "Attention of a chunk beside decodes, by policy; 1 is the time of one after the other", 13, "start", weight="bold")]
    x = LEFT
    for name in names:
        out += [box(x, 32, 10, 10, COLOURS[name]), say(x + 14, 41, name, 11, "start")]
        x += 30 + 7 * len(name)
    out += [box(x, 36, 10, 2, FLOOR), say(x + 14, 41, f"floor (bars end at {HIGHEST})", 11, "start"),
            say(LEFT, 57, "1K@8K + 128x2K: a chunk of 1,024 tokens, with 8K keys, beside 128 decodes of 2K keys each. 32/8: heads and KV heads. us: one after the other",
                11, "start")]
    for i, row in enumerate(rows):
        bottom = TOP + HIGH + i * ROW
        one = bottom - HIGH / HIGHEST
        out += [f'<path d="M{LEFT - 6} {one:.1f}H{width - 10}" stroke="#888" stroke-dasharray="3 3"/>', say(LEFT - 10, one + 4, "1", 11, "end"),
                f'<path d="M{LEFT - 6} {bottom}H{width - 10}" stroke="#888"/>']
        for j, cell in enumerate(row):
            out += group(LEFT + j * STEP, bottom, cell, names)
    return "\n".join(out + ["</svg>"]) + "\n"


def main():
    check = sys.argv[1:] == ["--check"]
    if len(sys.argv) not in (1, 3) and not check:
        sys.exit(__doc__)
    source = pathlib.Path(sys.argv[1]) if len(sys.argv) == 3 else newest(POLICIES.search)
    out = pathlib.Path(sys.argv[2]) if len(sys.argv) == 3 else PICTURE
    text = source.read_text()
    cells = of_bench(json.loads(text)) if source.suffix == ".json" else of_report(text)
    if not cells or any(SERIAL not in c["us"] for c in cells):
        sys.exit(f"{source}: no cell of chunks beside decodes, or one without the cut {SERIAL}")
    if not check:
        out.write_text(picture(cells))
    elif out.read_text() != picture(cells):
        sys.exit(f"{out.relative_to(ROOT)} does not show {source.name}: run scripts/draw_hybrid.py")


if __name__ == "__main__":
    main()
