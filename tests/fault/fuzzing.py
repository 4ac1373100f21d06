#!/usr/bin/env python3
"""Row 1: scripts/fuzz on every target. The amount is the number of runs that each target should have; one call continues for --seconds, and
counts the runs of all calls with this checkout's corpora."""
import argparse
import re
import subprocess

from lib import ROOT, Row


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    row = Row(__doc__, 10**8, parser)
    p = subprocess.run([ROOT / "scripts/fuzz", "--seconds", str(row.args.seconds)], stdout=subprocess.PIPE, text=True, check=False)
    found = re.findall(r"^(\w+) +(\S+) runs +(\d+)/s +(\d+) in all +\S+ edges +(\w+)$", p.stdout, re.M)
    row.expect(found and p.returncode == 0, f"exit code {p.returncode}: {p.stdout[-500:]}")
    for name, _, _, _, state in found:
        row.expect(state == "ok", f"{name}: {state}")
    if found:
        row.reached = min(int(total) for _, _, _, total, _ in found)
        row.note(", ".join(f"{name} {int(total):,} ({rate}/s)" for name, _, rate, total, _ in found))
    row.end(at_least=1)


if __name__ == "__main__":
    main()
