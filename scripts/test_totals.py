#!/usr/bin/env python3
"""Counts tests in JUnit files of ctest and pytest: test_totals.py FILE... prints `passed failed skipped` and, on stderr, what failed.

A ctest entry is a whole program. A cmocka program prints how many tests it ran, and these are counted. A program that
died before it could print counts as one failed test. So does each missing or unreadable file."""
import re
import sys
import xml.etree.ElementTree as ET

CMOCKA_PASSED = re.compile(r"\[  PASSED  \] (\d+) test\(s\)")
CMOCKA_FAILED = re.compile(r"\[  FAILED  \](?: \[ .*? \])? (\d+) test\(s\)")
CMOCKA_SKIPPED = re.compile(r"\[  SKIPPED \](?: \[ .*? \])? (\d+) test\(s\)")


def count_case(case):
    """Returns (passed, failed, skipped) of one entry."""
    out = "".join(e.text or "" for e in case.iter("system-out"))
    bad = case.find("failure") is not None or case.find("error") is not None
    if case.find("skipped") is not None:
        return 0, 0, 1
    passed, failed, skipped = (sum(map(int, p.findall(out))) for p in (CMOCKA_PASSED, CMOCKA_FAILED, CMOCKA_SKIPPED))
    if passed + failed + skipped == 0:
        return (0, 1, 0) if bad else (1, 0, 0)
    return passed, max(failed, int(bad)), skipped


def main(paths):
    total = [0, 0, 0]
    for path in paths:
        try:
            cases = list(ET.parse(path).getroot().iter("testcase"))
        except (OSError, ET.ParseError) as e:
            print(f"{path}: {e}", file=sys.stderr)
            total[1] += 1
            continue
        for case in cases:
            counts = count_case(case)
            if counts[1]:
                print(f"    failed: {case.get('classname', '')} {case.get('name')}", file=sys.stderr)
            total = [a + b for a, b in zip(total, counts)]
    print(*total)


main(sys.argv[1:])
