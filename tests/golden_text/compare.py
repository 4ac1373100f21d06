#!/usr/bin/env python3
"""Random texts through td_tokenize_cli and through the `tokenizers` package: the ids must be equal.

  compare.py CLI TOKENIZER.json|MODEL.gguf [--texts N] [--seed S] [--code-points]

Encodes with special tokens recognised and with them ignored, and decodes random ids (including broken characters)
against Python's bytes.decode(errors="replace"). Exits 1 on the first differences, which it prints. --code-points puts
every code point there is into a few contexts, instead, and lists those that differ.
"""
import argparse
import json
import random
import struct
import subprocess
import sys

from reference import Reference, json_from_gguf

RANGES = [(0x20, 0x7E)] * 6 + [(0x20, 0x2F)] * 2 + [(0x30, 0x39)] * 2 + [
    (0, 0x1F), (0x7F, 0xFF), (0x100, 0x24F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x52F), (0x591, 0x5F4), (0x600, 0x6FF),
    (0x900, 0x97F), (0xE00, 0xE7F), (0x1100, 0x11FF), (0x1E00, 0x1EFF), (0x2000, 0x206F), (0x2070, 0x218F),
    (0x3000, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xF900, 0xFAFF), (0xFE00, 0xFE0F), (0xFF00, 0xFFEF),
    (0x1D400, 0x1D7FF), (0x1F1E6, 0x1F1FF), (0x1F300, 0x1FAFF), (0x2F800, 0x2FA1D), (0xE0000, 0xE007F)]
ALPHABETS = ["".join(map(chr, range(lo, hi + 1))) for lo, hi in RANGES]
BITS = ["'s", "'S", "'t", "'T", "'re", "'RE", "'Ve", "'ll", "'LL", "'d", "'m", "'\u017f", "'", "''", "\r\n", "\n\n", "\n",
        "\r", "\t", "  ", "    ", "        ", " \n", "\n ", "\t\n\t", "\u00a0", "\u3000", "\u2028", "\u0085", "\u200b",
        "\u200d", "\ufeff", "\ufe0f", "123", "1234567", "3.14", "\u0663\u0664", "\u00bd", "\u2167", "the", " the", "Hello",
        " world", "don't", "I'LL", "e\u0301", "\u00e9", "A\u030a", "\u212b", "q\u0307\u0323", "\u1100\u1161\u11a8",
        "\uac00\u11a8", "Ti\u1ebfng", "Vi\u1ec7t", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea",
        "\U0001f44d\U0001f3fd", "for (int i = 0; i < n; i++) {\n", "    return x\n", "def f(a, b):\n\t", "<|", "|>", "<", ">",
        "==", "!=", "->", "://", "...", "\u2026", "\u4f60\u597d", "\u3053\u3093", "\u0e01\u0e33", "\u0627\u0644",
        "\u05e9\u05c1", "\u0915\u094d\u0937", "\x00", "\x04", "\x7f", "\ud7a3", "\ue000", "\uffff", "\U0010ffff",
        "\ua7cb", "\u1c89", "\U000105c0", "\U00010d40", "\U0002ebf0"]


def random_text(rng, added):
    parts = []
    for _ in range(rng.choice([1, 2, 4, 8, 16])):
        kind = rng.random()
        if kind < 0.35:
            parts.append(rng.choice(BITS).encode("utf-8", "ignore"))
        elif kind < 0.70:
            parts.append("".join(rng.choices(rng.choice(ALPHABETS), k=rng.choice([1, 2, 3, 8]))).encode())
        elif kind < 0.78:
            c = chr(rng.choice([c for c in (rng.randrange(0x110000), rng.randrange(0x3000)) if not 0xD800 <= c < 0xE000] or [65]))
            parts.append(c.encode())
        elif kind < 0.86:
            parts.append(rng.choice([" ", "a", "\n", "=", "1", "\u4e00", "\u0300", "-"]).encode() * rng.randint(1, 70))
        elif kind < 0.96 and added:
            s = rng.choice(added).encode()
            parts.append(s if rng.random() < 0.7 else s[:rng.randrange(1, len(s) + 1)])
        else:
            parts.append(bytes(rng.randrange(256) for _ in range(rng.randint(1, 4))))
    return b"".join(parts)


class Cli:
    def __init__(self, program, path):
        self.p = subprocess.Popen([program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, op, payload, spans=(), max_tokens=0):
        w = self.p.stdin
        w.write(struct.pack("=4I", op, len(payload), len(spans), max_tokens))
        for a, b in spans:
            w.write(struct.pack("=2I", a, b))
        w.write(payload)
        w.flush()
        n = struct.unpack("=I", self.p.stdout.read(4))[0]
        if n == 0xFFFFFFFF:
            n = struct.unpack("=I", self.p.stdout.read(4))[0]
            return self.p.stdout.read(n).decode()
        if op == 5:
            sizes = []
            while n:
                sizes.append(n)
                n = struct.unpack("=I", self.p.stdout.read(4))[0]
            return sizes
        if op in (2, 3):
            return self.p.stdout.read(n)
        return list(struct.unpack("=%di" % n, self.p.stdout.read(4 * n)))


def all_code_points(ref, cli):
    """Returns the ranges of code points whose class, case folding or normal form differs from the reference."""
    probe = lambda c: "x%s1%s %s%s\n.%s'%s" % (c, c, c, c, c, c)
    # between two probes: a word that joins with nothing
    def differs(cs):
        text = " | ".join(map(probe, cs))
        sizes = [len(text[a:b].encode()) for _, (a, b) in ref.t.pre_tokenizer.pre_tokenize_str(text)]
        return sizes != cli.ask(5, text.encode()) or ref.encode(text.encode()) != cli.ask(1, text.encode())

    points = [chr(c) for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000]
    bad = []
    for i in range(0, len(points), 64):
        if differs(points[i:i + 64]):
            bad += [c for c in points[i:i + 64] if differs([c])]
    ranges = []
    for c in map(ord, bad):
        if ranges and ranges[-1][1] == c - 1:
            ranges[-1][1] = c
        else:
            ranges.append([c, c])
    print("%d code points, %d differ: %s" % (len(points), len(bad), " ".join("%X-%X" % tuple(r) for r in ranges)))
    return len(bad)


def main():
    a = argparse.ArgumentParser()
    a.add_argument("cli")
    a.add_argument("tokenizer")
    a.add_argument("--texts", type=int, default=20000)
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("--code-points", action="store_true")
    a = a.parse_args()
    tj = json_from_gguf(a.tokenizer) if a.tokenizer.endswith(".gguf") else json.load(open(a.tokenizer))
    ref, cli, rng = Reference(tj), Cli(a.cli, a.tokenizer), random.Random(a.seed)
    if a.code_points:
        sys.exit(all_code_points(ref, cli) != 0)
    added = [x["content"] for x in tj["added_tokens"]]
    special = {x["id"] for x in tj["added_tokens"] if x["special"]}
    names = sorted(added, key=len)
    some = names[:40] + rng.sample(names, min(40, len(names)))
    vocab = ref.t.get_vocab_size()
    token_bytes = {}
    model_vocab = ref.t.get_vocab(with_added_tokens=False)
    back = {c: b for b, c in enumerate(ref.alphabet)}

    def bytes_of(i):
        if i not in token_bytes:
            text = ref.t.id_to_token(i)
            raw = model_vocab.get(text) != i or any(c not in back for c in text)
            token_bytes[i] = text.encode() if raw else bytes(back[c] for c in text)
        return token_bytes[i]

    bad = n = 0
    for k in range(a.texts):
        text = random_text(rng, some)
        for trusted in (True, False):
            want, got = ref.encode(text, trusted), cli.ask(1 if trusted else 0, text)
            n += 1
            if want != got:
                bad += 1
                print("encode", "trusted" if trusted else "plain", ascii(text), "\n  want", want, "\n  got ", got)
        ids = ref.encode(text) if k % 2 else [rng.randrange(vocab) for _ in range(rng.randint(1, 12))]
        ids = [i for i in ids if ref.t.id_to_token(i) is not None]
        if k % 4 < 2 and ids:
            ids.insert(rng.randrange(len(ids)), next((b for b in [ref.byte_id[rng.randrange(128, 256)]] if b is not None), ids[0]))
        for skip in (False, True):
            want = b"".join(bytes_of(i) for i in ids if not (skip and i in special)).decode("utf-8", "replace").encode()
            got = cli.ask(3 if skip else 2, struct.pack("=%di" % len(ids), *ids))
            n += 1
            if want != got:
                bad += 1
                print("decode", ids, "\n  want", want, "\n  got ", got)
        if bad >= 10:
            break
    print("%s: %d texts, %d comparisons, %d differences" % (a.tokenizer, k + 1, n, bad))
    sys.exit(bad != 0)


if __name__ == "__main__":
    main()
