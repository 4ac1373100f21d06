#!/usr/bin/env python3
"""The table in docs/OPTIONS.md, made from `tandemd --help` on stdin.

    build/tandemd --help | scripts/options_table.py           writes the table anew
    build/tandemd --help | scripts/options_table.py --check   exit code 1 if it would change

tests/e2e/test_start.py checks it."""
import pathlib
import re
import sys

PAGE = pathlib.Path(__file__).resolve().parent.parent / "docs/OPTIONS.md"
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
text = PAGE.read_text()
new, n = re.subn(r"(<!-- options -->\n).*?(<!-- /options -->)", lambda m: m[1] + "\n".join(rows) + "\n" + m[2], text, flags=re.S)
if n != 1:
    sys.exit(f"{PAGE} has no <!-- options --> mark")
if sys.argv[1:] == ["--check"]:
    sys.exit(f"{PAGE} is not what --help says: build/tandemd --help | scripts/options_table.py" if new != text else 0)
PAGE.write_text(new)
