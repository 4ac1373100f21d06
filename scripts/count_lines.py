#!/usr/bin/env python3
"""Prints the lines of C and CUDA outside tests, by room, and the longest file."""
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
ROOMS = ["common", "config", "step", "kernels", "models", "answers", "scheduler", "engine", "server", "loadgen", "bench", "capacity", "pull"]
MAX_FILE_LINES = 800
files = {p: p.read_bytes().count(b"\n") for r in ROOMS for p in (ROOT / r).rglob("*")
         if p.suffix in (".c", ".h", ".cu", ".cuh", ".inc", ".def")}
for room in ROOMS:
    print(f"  {room:10} {sum(n for p, n in files.items() if p.parts[len(ROOT.parts)] == room):6}")
longest = max(files, key=files.get)
print(f"  lines of C and CUDA outside tests: {sum(files.values())}; longest file: {longest.relative_to(ROOT)}, {files[longest]} lines")
too_long = [p for p, n in files.items() if n > MAX_FILE_LINES]
for p in too_long:
    print(f"  {p.relative_to(ROOT)} has more than {MAX_FILE_LINES} lines", file=sys.stderr)
sys.exit(bool(too_long))
