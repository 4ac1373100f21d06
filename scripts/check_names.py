#!/usr/bin/env python3
"""Checks that no two types or functions share a td_ name: a struct, union, enum, typedef or function td_x is
defined in one file only. Otherwise readers and debuggers confuse them, and with link-time optimisation it is an error
in C++. Forward declarations may repeat. check_names.py [FILE...]: checks these files, or all that git tracks."""
import collections
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SUFFIXES = {".c", ".h", ".cu", ".cuh"}
NOISE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|^[ \t]*#(?:\\\n|[^\n])*', re.S | re.M)
LINKAGE = re.compile(r'\bextern\s*""\s*\{')
TAG = re.compile(r"\b(?:struct|union|enum)\s+(td_\w+)\s*\{")
FORWARD = re.compile(r"typedef\s+(?:struct|union|enum)\s+\w+\s+\w+\s*$")
POINTER = re.compile(r"\(\s*\*\s*(td_\w+)\s*\)")
LAST = re.compile(r"(td_\w+)\s*(?:\[[^\]]*\]\s*)*$")
FUNCTION = re.compile(r"\b(td_\w+)\s*\((?!\s*\*)")
# Names with two definitions on purpose: backends' bodies of one opaque type. Delete names that no longer exist.
KNOWN = set()


def declarations(text):
    """Yields the declarations at global scope. Bodies are replaced by empty braces; a function ends with its braces."""
    text = LINKAGE.sub(" ", NOISE.sub(lambda m: '""' if m.group()[0] == '"' else " ", text))
    depth, chunk = 0, ""
    for c in text:
        if c == "}" and depth > 0:
            depth -= 1
        if depth == 0:
            chunk += c
            if c == ";" or (c == "}" and "(" in chunk.split("{")[0] and "=" not in chunk.split("{")[0]
                            and not chunk.lstrip().startswith("typedef")):
                yield chunk.strip("; \n\t}") if c == ";" else chunk.strip()
                chunk = ""
        if c == "{":
            depth += 1


def names(text):
    """Returns the td_ names that a file defines at global scope."""
    found = set()
    for d in declarations(text):
        found.update(TAG.findall(d))
        if d.startswith("typedef"):
            if not FORWARD.match(d):
                m = POINTER.search(d) or LAST.search(d)
                found.update(m.groups() if m else ())
        elif d.endswith("}"):
            head = d.split("{")[0]
            m = FUNCTION.search(head)
            if m and "=" not in head:
                found.add(m.group(1))
    return found


def tracked():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [ROOT / p for p in listed.split("\0") if pathlib.Path(p).suffix in SUFFIXES]


def main():
    where = collections.defaultdict(list)
    files = [pathlib.Path(a) for a in sys.argv[1:]] or tracked()
    for path in files:
        for name in names(path.read_text(encoding="utf-8")):
            where[name].append(str(path.resolve().relative_to(ROOT) if path.resolve().is_relative_to(ROOT) else path))
    twice = {n for n, at in where.items() if len(at) > 1}
    for name in sorted(twice - KNOWN):
        print(f"  {name} is defined in {' and '.join(sorted(where[name]))}", file=sys.stderr)
    for name in sorted(KNOWN - twice if not sys.argv[1:] else ()):
        print(f"  {name} is defined once: take it out of KNOWN in {__file__}", file=sys.stderr)
    print(f"  names: {len(where)} types and functions in {len(files)} files, {len(twice)} of them in more than one")
    return twice != KNOWN if not sys.argv[1:] else bool(twice - KNOWN)


if __name__ == "__main__":
    sys.exit(main())
