#!/usr/bin/env python3
"""Writes golden.json: what the reference makes of templates/*.jinja x conversations, and of random programs.
Needs jinja2 (see reference.py). test_template_golden.c checks our rendering against it."""
import json
import os
import pathlib
import time

os.environ["TZ"] = "UTC"
time.tzset()
from conversations import conversations  # noqa: E402
from programs import INPUT, programs  # noqa: E402
from reference import Reference  # noqa: E402

NOW = 1735689600
PROGRAMS = 900
HERE = pathlib.Path(__file__).resolve().parent


def main():
    ref = Reference(NOW)
    chats = list(conversations())
    out = {"now": NOW, "conversations": chats, "templates": [], "program_input": INPUT, "programs": []}
    for path in sorted((HERE / "templates").glob("*.jinja")):
        source = path.read_bytes().decode()
        expect = []
        for chat in chats:
            ok, text, _ = ref.render(source, {**chat["input"], **chat["trusted"]})
            expect.append(text if ok else None)
        out["templates"].append({"name": path.name, "expect": expect})
    for name, source, chat in programs(PROGRAMS, 11):
        ok, text, _ = ref.render(source, {**chat["input"], **chat["trusted"]})
        if len(source) < 600 and (ok or len(out["programs"]) % 8 == 0) and not (ok and (" at 0x" in text or len(text) > 600)):
            out["programs"].append([source, text if ok else None])
    lines = json.dumps(out, ensure_ascii=False, separators=(",", ":")).replace('{"name":', '\n{"name":').replace('],[', '],\n[')
    assert json.loads(lines) == out
    (HERE / "golden.json").write_text(lines + "\n", encoding="utf-8")
    print(len(chats), "conversations,", len(out["templates"]), "templates,", len(out["programs"]), "programs,", len(lines), "bytes")


if __name__ == "__main__":
    main()
