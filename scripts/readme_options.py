#!/usr/bin/env python3
"""Writes README.md's options table anew from `tandemd --help` (stdin). Usage: build/tandemd --help | scripts/readme_options.py

tests/e2e/test_start.py fails when the table and --help differ."""
import pathlib
import re
import sys

README = pathlib.Path(__file__).resolve().parent.parent / "README.md"
LINE = re.compile(r"^  (--[a-z0-9-]+) (\S*) *(.*?)(?: \((default .*)\)| \[(\d+), (\d+\.\.\d+)( .*)?\])?$")

rows = ["| option | what | default | range |", "|---|---|---|---|"]
for line in sys.stdin.read().splitlines():
    m = LINE.match(line)
    if m:
        name, value, what, default, number, bounds, unit = m.groups()
        shown = (default or "").removeprefix("default ") or number or ""
        rows.append(f"| `{(name + ' ' + value).strip()}` | {what} | {shown} | {(bounds or '') + (unit or '')} |")
if len(rows) < 10:
    sys.exit("no options on stdin")
text = README.read_text()
new, n = re.subn(r"(<!-- options -->\n).*?(<!-- /options -->)", lambda m: m[1] + "\n".join(rows) + "\n" + m[2], text, flags=re.S)
if n != 1:
    sys.exit("README.md has no <!-- options --> mark")
README.write_text(new)
