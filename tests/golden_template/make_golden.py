#!/usr/bin/env python3
"""Writes golden.json: the reference's output for templates/*.jinja x conversations, and for random programs. Needs jinja2 (see
jinja_reference.py). test_template_golden.c compares our rendering with it."""
import json
import os
import pathlib
import random
import time

os.environ["TZ"] = "UTC"
time.tzset()
from conversations import conversations  # noqa: E402
from programs import INPUT, programs  # noqa: E402
from jinja_reference import Reference  # noqa: E402

NOW = 1735689600
PROGRAMS = 900
HERE = pathlib.Path(__file__).resolve().parent
NUMBER_SOURCE = ("{{ x }} {{ x|string }} {{ x ~ '' }} {{ '%s' % x }} {{ [x, {'k': (x,), x: 'k'}] }} {{ x|tojson }} "
                 "{{ {'k': [x], x: 1}|tojson(indent=1) }} {{ x is float }} {{ x is integer }} {{ x is number }}")
NUMBERS = """0 -0 0.0 -0.0 0e0 -0E-0 1 1.0 -1.0 1.00 1e0 1E0 10 10.0 1e1 1E+1 100.0 1e2 12e-1 120e-1 1e5 1e15 1e16 1e17 1e-4 1e-5 1e22 1e23
123456789.0 0.1 0.30000000000000004 2.5 1.5e300 1e308 1e309 -1e309 5e-324 1e-400 0.5 0.7 100 1000000 999999999999999 999999999999999.0
9999999999999998 9999999999999999.0 4503599627370497.25 4503599627370497.5 9007199254740991 9007199254740991.0 9007199254740992
9007199254740992.0 9007199254740993 9007199254740993.0 9007199254740993.5 -9007199254740993 9223372036854775807 9223372036854775808
-9223372036854775808 -9223372036854775809 9223372036854775808.0 12345678901234567890 123456789012345678901234567890 1234567890123456789012e1
0.00000000000000000000000000001 1.0000000000000001 1.00000000000000001 0.99999999999999999 1234567890.12345678901 3.0e-1 30.0e-1 7E-05""".split()


def number_texts(r):
    yield from NUMBERS
    for _ in range(150):
        fraction = r.choice(["", ".0", ".00", f".{r.randrange(100)}", f".{r.randrange(10 ** 9)}"])
        exponent = r.choice(["", "", f"{r.choice('eE')}{r.choice(['', '+', '-'])}{r.randrange(25)}"])
        yield f"{r.choice(['', '-'])}{r.randrange(10 ** r.randrange(1, 22))}{fraction}{exponent}"


def main():
    ref = Reference(NOW)
    chats = list(conversations())
    out = {"now": NOW, "conversations": chats, "templates": [], "program_input": INPUT, "programs": [],
           "number_source": NUMBER_SOURCE, "numbers": []}
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
    for text in number_texts(random.Random(5)):
        out["numbers"].append([text, ref.render(NUMBER_SOURCE, {"x": json.loads(text)})[1]])
    lines = json.dumps(out, ensure_ascii=False, separators=(",", ":")).replace('{"name":', '\n{"name":').replace('],[', '],\n[')
    assert json.loads(lines) == out
    (HERE / "golden.json").write_text(lines + "\n", encoding="utf-8")
    print(len(chats), "conversations,", len(out["templates"]), "templates,", len(out["programs"]), "programs,", len(lines), "bytes")


if __name__ == "__main__":
    main()
