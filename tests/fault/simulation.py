#!/usr/bin/env python3
"""Row 8: the scheduler's simulator (tests/sim) over seeds. A workload is a separate small world in which all invariants are checked by brute
force in each step: pages are conserved, references count, the token budget holds, waiting is bounded, and it drains.

The amount is the number of workloads."""
import pathlib
import re
import subprocess

from lib import Row, harness

STEPS = 1000000


def main():
    row = Row(__doc__, 1000000)
    program = pathlib.Path(harness.DAEMON).parent / "tests/sim/sim_scheduler"
    seed = row.seed * 1000
    while row.reached < row.amount:
        p = subprocess.run([program, "--steps", str(STEPS), "--seed", str(seed)], capture_output=True, text=True, check=False)
        m = re.search(r"^worlds +(\d+)$", p.stdout, re.M)
        if not row.expect(p.returncode == 0 and m, f"seed {seed}: {p.returncode} {p.stderr[-500:]}"):
            break
        row.done(int(m.group(1)))
        seed += 1
    row.note(f"{seed - row.seed * 1000} seeds of {STEPS} steps")
    row.end()


if __name__ == "__main__":
    main()
