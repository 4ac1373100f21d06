#!/usr/bin/env python3
"""Makes one Markdown table of the lines that clients.py wrote in all environments: client x feature, works or FAILS.

    table.py LINES >FILE"""
import datetime
import sys

HEAD = """# Other people's clients, {date}

`scripts/clients` on a CPU, SmolLM2-135M-Instruct Q4_1: {n} checks, {bad} fail. Clients are as PyPI has them, and pinned
(tests/clients). The model is small: what a client demands is held by a grammar, and where a client only asks in words,
the model is shown the answer. Each check is a function of tests/clients/checks_*.py.

| client | feature | result | versions |
|---|---|---|---|"""


def main():
    rows, n, bad = {}, 0, 0
    for line in open(sys.argv[1], encoding="utf-8"):
        package, version, feature, result = line.rstrip("\n").split("\t")
        rows.setdefault((package, feature, result), []).append(version)
        n, bad = n + 1, bad + (result != "works")
    print(HEAD.format(date=datetime.date.today(), n=n, bad=bad))
    order = list(dict.fromkeys(package for package, _, _ in rows))
    for (package, feature, result), versions in sorted(rows.items(), key=lambda r: order.index(r[0][0])):
        print(f"| {package} | {feature} | {result} | {', '.join(versions)} |")


if __name__ == "__main__":
    main()
