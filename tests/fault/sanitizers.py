#!/usr/bin/env python3
"""Row 20: the stages of scripts/test that build with another compiler or a sanitizer. Branch coverage: scripts/coverage. The unit's exposure:
tests/e2e/test_install.py. The amount is the number of runs."""
import re
import subprocess

from lib import ROOT, Row

STAGES = ["unit", "clang", "asan", "tsan"]


def main():
    row = Row(__doc__, 1)
    for _ in range(row.amount):
        p = subprocess.run([ROOT / "scripts/test", *STAGES], stdout=subprocess.PIPE, text=True, check=False)
        row.expect(p.returncode == 0, f"exit code {p.returncode}: {p.stdout[-600:]}")
        row.note("; ".join(re.findall(r"^ *(\S+ +\d+ passed, \d+ failed)", p.stdout, re.M))[-300:])
        row.done()
    row.end()


if __name__ == "__main__":
    main()
