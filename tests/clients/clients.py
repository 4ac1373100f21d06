#!/usr/bin/env python3
"""Runs third-party clients, unmodified, and prints a line for each client and feature: works or FAILS. It starts a daemon with a small real
model. Grammars constrain the answers, so each has the form that the client needs.

    clients.py DAEMON [--lines FILE] [--only WORD]

scripts/clients runs it in one virtual environment per set of compatible clients, and makes a table of the lines. A client that is not
installed is left out. --only: packages and features whose names contain the word. Exit code 1 if a check fails."""
import argparse
import pathlib
import sys
import tempfile
import traceback

import common
import checks_openai  # noqa: F401
import checks_typed  # noqa: F401
import checks_agents  # noqa: F401
import checks_loads  # noqa: F401
import harness

# A template with tools, calls and results; calls in Hermes format.
TEMPLATE = ("{% if tools %}<|im_start|>system\nTools: {{ tools|tojson }} <tool_call></tool_call><|im_end|>\n{% endif %}"
            "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}{% for c in m.tool_calls or [] %}<tool_call>"
            "{{ c.function|tojson }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


def run(f, d):
    try:
        f(d)
        return "works"
    except BaseException as e:  # some clients raise SystemExit
        if isinstance(e, KeyboardInterrupt):
            raise
        traceback.print_exc()
        print(f"{f.__name__}: {e}", file=sys.stderr, flush=True)
        return "FAILS"


def main():
    p = argparse.ArgumentParser()
    p.add_argument("daemon")
    p.add_argument("--lines")
    p.add_argument("--only", default="")
    a = p.parse_args()
    harness.DAEMON = a.daemon
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "template.jinja"
        path.write_text(TEMPLATE, encoding="utf-8")
        with harness.Daemon("--chat-template", path) as d:
            for package, feature, f in common.CHECKS:
                version = common.version(package)
                if version is None or a.only not in f"{package} {feature}":
                    continue
                lines.append((package, version, feature, run(f, d)))
                print("  {:32} {:10} {:48} {}".format(*lines[-1]), flush=True)
    if a.lines:
        with open(a.lines, "a", encoding="utf-8") as out:
            out.writelines("\t".join(line) + "\n" for line in lines)
    return 1 if any(line[3] != "works" for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
