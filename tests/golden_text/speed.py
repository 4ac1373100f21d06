#!/usr/bin/env python3
"""MB/s of English on one core, in CPU time, ours and the references in one run. Run by scripts/fidelity --speed.

  speed.py CLI FOLDER [--family NAME]... [--results FILE]

The text is the repository's own Markdown, repeated to fill 4 MB, in texts of 100 KB for ours and the references. Each number is the best of
three. The last columns are milliseconds for 1 MB of one letter, of spaces, of one word."""
import argparse
import os
import pathlib
import random
import re
import struct
import subprocess
import time

from fidelity import BYTES, SENTENCEPIECE, UNIGRAM, forms

ROOT = pathlib.Path(__file__).resolve().parents[2]


def ours(cli, path, texts):
    """Returns the seconds of CPU time for all texts."""
    request = b"".join(struct.pack("=4I", 1, len(t), 0, 0) + t for t in texts)
    done = subprocess.run([cli, path, "--time"], input=request, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=True)
    return float(re.search(rb"in ([0-9.]+) ms", done.stderr)[1]) / 1e3


def theirs(reference, texts):
    begin = time.process_time()
    for t in texts:
        reference.encode([t], reference.modes[0])
    return time.process_time() - begin


def main():
    p = argparse.ArgumentParser()
    p.add_argument("cli")
    p.add_argument("folder")
    p.add_argument("--family", action="append")
    p.add_argument("--results")
    a = p.parse_args()
    files = subprocess.run(["git", "-C", str(ROOT), "ls-files", "*.md"], capture_output=True, text=True, check=True).stdout.split()
    text = "".join((ROOT / f).read_text() for f in files).encode("ascii", "ignore").decode()
    text = (text * (4000000 // len(text) + 1))[:4000000]
    texts = [text[i:i + 100000] for i in range(0, len(text), 100000)]
    rng = random.Random(1)
    worst = [b"a" * 10**6, b" " * 10**6, bytes(rng.choices(b"abcdefghijklmnopqrstuvwxyz", k=10**6))]
    lines = ["| family | form | tandem, MB/s | reference | its MB/s | 1 MB of 'a', ms | of spaces | of letters |", "|---|---|---|---|---|---|---|---|"]
    print("\n".join(lines), flush=True)
    for family in a.family or [*SENTENCEPIECE, *UNIGRAM, *BYTES]:
        for form, path, reference, _ in forms(family, a.folder):
            mine = min(ours(a.cli, path, [t.encode() for t in texts]) for _ in range(3))
            other = min(theirs(reference, texts[:10]) for _ in range(3)) * len(texts) / 10
            slow = ["%.0f" % (1e3 * min(ours(a.cli, path, [w]) for _ in range(3))) for w in worst]
            lines.append("| %s | %s | %.1f | %s | %.1f | %s |" % (family, form, 4 / mine, reference.name, 4 / other, " | ".join(slow)))
            print(lines[-1], flush=True)
    if a.results:
        with open(a.results, "w") as f:
            f.write(time.strftime("%Y-%m-%d\n\n") + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
