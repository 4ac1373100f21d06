#!/usr/bin/env python3
"""Runs llama.cpp's own test vectors through td_tokenize_cli: a second reference, for the GGUF path.

  vectors.py CLI FOLDER      FOLDER has ggml-vocab-NAME.gguf, with .inp and .out next to them"""
import glob
import sys

from compare import Cli


def main():
    failed = 0
    for path in sorted(glob.glob(sys.argv[2] + "/ggml-vocab-*.gguf")):
        try:
            inp = open(path + ".inp", encoding="utf-8", newline="").read().split("\n__ggml_vocab_test__\n")
            out = open(path + ".out").read().split("\n")
        except FileNotFoundError:
            continue
        try:
            cli, bad = Cli(sys.argv[1], path), []
            for text, ids in zip(inp, out):
                want = [int(i) for i in ids.split()]
                if cli.ask(0, text.encode()) != want:
                    bad.append(text)
        except Exception:
            print("%s: refused" % path.rsplit("/", 1)[1])
            continue
        print("%s: %d texts, %d differ %s" % (path.rsplit("/", 1)[1], len(inp), len(bad), ascii(bad)[:200] if bad else ""))
        failed += len(bad)
    sys.exit(failed != 0)


if __name__ == "__main__":
    main()
