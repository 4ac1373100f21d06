#!/usr/bin/env python3
"""Draws attention of chunks beside decodes by policy, from what `tandem-bench hybrid --json FILE` wrote, or from a GPU report's JSON:

    tandem-bench hybrid --only hybrid --cuts auto,serial,halves,proportional,streams --json hybrid.json
    draw_hybrid.py hybrid.json [docs/img/hybrid.svg]

A bar is a cut's time, hot, over that of `serial` (one after the other); the line in each group is the floor: the longer of what the matrix
units and memory need (790 TFLOP/s, 4.55 TB/s). Only the standard library."""
import json
import pathlib
import sys

from draw_figures import FLOOR, OURS, ROOT, box, say

FLOP_US, BYTES_US = 790e6, 4.55e6
COLOURS = {"auto": OURS, "halves": "#8aa1b1", "proportional": "#b9c3cc", "streams": "#dcd3b6"}
SERIAL = "serial"
LEFT, TOP, BOTTOM, STEP, HIGHEST = 50, 60, 260, 96, 1.6


def short(tokens):
    return f"{tokens // 1024}K" if tokens % 1024 == 0 else str(tokens)


def label_of(cell):
    """1024@12288 + 80x12288 -> two lines: 1K@12K, + 80x12K."""
    chunk, decodes = cell["name"].split(" + ")
    tokens, context = map(int, chunk.split("@"))
    rows, row_context = map(int, decodes.split("x"))
    return f"{short(tokens)}@{short(context)}", f"+ {rows}x{short(row_context)}", f"{cell['heads']}/{cell['kv_heads']}"


def group(x, cell, names):
    cuts = {c["cut"]: c["hot_us"] for c in cell["cuts"]}
    serial = cuts[SERIAL]
    floor = max(cell["flop"] / FLOP_US, cell["decode_bytes"] / BYTES_US) / serial
    out, wide = [], (STEP - 16) / len(names)

    def up(part):
        return BOTTOM - (BOTTOM - TOP) * min(part, HIGHEST) / HIGHEST
    for i, name in enumerate(names):
        part = cuts[name] / serial
        out.append(box(x + i * wide, up(part), wide - 2, BOTTOM - up(part), COLOURS[name]))
        out.append(say(x + (i + 0.5) * wide - 1, up(part) - 3, f"{part:.2f}", 8))
    out.append(f'<path d="M{x - 2:.1f} {up(floor):.1f}h{STEP - 14:.1f}" stroke="{FLOOR}" stroke-width="2"/>')
    for i, line in enumerate((*label_of(cell), f"{serial:.0f} us")):
        out.append(say(x + (STEP - 16) / 2, BOTTOM + 14 + 12 * i, line, 9.5))
    return out


def picture(cells):
    names = [n for n in COLOURS if all(n in {c["cut"] for c in cell["cuts"]} for cell in cells)]
    width = LEFT + STEP * len(cells) + 10
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} 320" font-family="DejaVu Sans, Helvetica, Arial, sans-serif">',
           f'<rect width="{width}" height="320" fill="#fff"/>',
           say(LEFT, 22, "Attention of a chunk beside decodes, hot: time over one after the other (its us stand below)", 13, "start", weight="bold")]
    x = LEFT
    for name in names:
        out += [box(x, 32, 10, 10, COLOURS[name]), say(x + 14, 41, name, 10, "start")]
        x += 30 + 6 * len(name)
    out += [box(x, 36, 10, 2, FLOOR), say(x + 14, 41, "floor", 10, "start")]
    one = BOTTOM - (BOTTOM - TOP) / HIGHEST
    out += [f'<path d="M{LEFT - 6} {one:.1f}H{width - 10}" stroke="#888" stroke-dasharray="3 3"/>', say(LEFT - 10, one + 3, "1", 10, "end"),
            f'<path d="M{LEFT - 6} {BOTTOM}H{width - 10}" stroke="#888"/>']
    for i, cell in enumerate(cells):
        out += group(LEFT + i * STEP, cell, names)
    return "\n".join(out + ["</svg>"]) + "\n"


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    told = json.loads(pathlib.Path(sys.argv[1]).read_text())
    if isinstance(told, dict):
        told = next((s["data"]["policies"] for s in told["stages"] if "policies" in s["data"]), [])
    cells = [c for c in told if c["kind"] == "hybrid"]
    if not cells or any(SERIAL not in {k["cut"] for k in c["cuts"]} for c in cells):
        sys.exit(f"{sys.argv[1]}: no cell of chunks beside decodes, or one without the cut {SERIAL}")
    out = pathlib.Path(sys.argv[2]) if len(sys.argv) == 3 else ROOT / "docs/img/hybrid.svg"
    out.write_text(picture(cells))


if __name__ == "__main__":
    main()
