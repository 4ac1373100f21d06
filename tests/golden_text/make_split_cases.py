#!/usr/bin/env python3
"""Writes split_cases.json: how the reference (the `tokenizers` package) splits texts by random expressions from the grammar of
models/tokenizer/regex.c. {"texts": [..], "cases": [[expression, [lengths in bytes of the parts of each text]], ..]}"""
import json
import os
import random

from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

HERE = os.path.dirname(os.path.abspath(__file__))
SETS = ["a", "b", "k", "s", " ", "1", "\\r", "\\n", "\\t", "\\p{L}", "\\p{N}", "\\p{Lu}", "\\p{Ll}", "\\p{Lo}", "\\p{M}", "\\p{P}", "\\p{S}",
        "\\s", "\\S", "\\d", "[ab]", "[^ab]", "[a-c\\d]", "[^\\s\\p{L}\\p{N}]", "[^\\r\\n\\p{L}\\p{N}]", "[\u4e00-\u9fa5]", "\u00e9",
        "[\u00e0-\u00fc]", "[^\u00e0-\u00fc]", "\\.", "[.,!]", "[-x]", "[x-]", "[\\p{Lu}\\p{M}]", "[\\p{Ll}\\s]", "[a\u00e0-\u00e9\u00e7-\u00fc]",
        "[\u00e9\u00e0-\u00e3]", "[^\\d]", "[!-/]"]
COUNTS = ["", "", "", "?", "*", "+", "+", "{2}", "{1,3}", "{2,}", "?+", "*+", "++"]
GROUPS = ["(?:ab|c)", "(?:a|ab)", "(?i:ab|k)", "(?i:'s|'t|'re)", "(?i:[a-c]x)", "(?:a{2}b|b)", "(?i:s)", "(?:\\d\\d|a)", "(?:[ab]1|\u00e9)"]
WORDS = ["(?:ab)", "(?:a\\d)", "(?:[ab]{2})", "(?i:as)"]
LOOKS = ["(?!\\S)", "(?=a)", "(?!ab)", "(?=\\p{N})", "(?!\\p{L})", "(?=\\s+b)", "(?=[ab]?1)"]
ALPHABET = ("aabbcckKsSxX''ttrreeABZ  \t\r\n\n1123.,!-/+$" "\u017f\u212a\u00e9\u00e9\u00e0\u00fc\u0301\u4e2d\u6587\u00b2\u0663\u00a0\u2003\u01c5\u02b0\u20ac")


def step(r):
    """(text, whether it consumes something)"""
    kind = r.random()
    if kind < 0.72:
        count = r.choice(COUNTS)
        return r.choice(SETS) + count, count[:1] not in ("?", "*")
    if kind < 0.84:
        count = r.choice(["", "", "?"])
        return r.choice(GROUPS) + count, not count
    if kind < 0.92:
        count = r.choice(["", "?", "*", "+", "++"])
        return r.choice(WORDS) + count, count[:1] not in ("?", "*")
    return r.choice(LOOKS), False


def alternative(r):
    while True:
        steps = [step(r) for _ in range(r.randint(1, 4))]
        if any(consumes for _, consumes in steps):
            return "".join(text for text, _ in steps) + ("$" if r.random() < 0.06 else "")


def main():
    r = random.Random(29)
    texts = ["", "a", "it's", "IT'RE 123ab", "ab1\u00e9 b"]
    texts += ["".join(r.choice(ALPHABET) for _ in range(r.randint(2, 24))) for _ in range(27)]
    cases = []
    while len(cases) < 220:
        expression = "|".join(alternative(r) for _ in range(r.choice([1, 1, 2, 2, 3])))
        split = Split(Regex(expression), "isolated")
        cuts = [[len(piece.encode()) for piece, _ in split.pre_tokenize_str(text)] for text in texts]
        cases.append([expression, cuts])
    with open(os.path.join(HERE, "split_cases.json"), "w") as f:
        f.write('{"texts":' + json.dumps(texts) + ',\n"cases":[\n')
        f.write(",\n".join(json.dumps(c, separators=(",", ":")) for c in cases))
        f.write("\n]}\n")


if __name__ == "__main__":
    main()
