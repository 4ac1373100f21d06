#!/usr/bin/env python3
"""Writes the goldens: what the reference (the `tokenizers` package) makes of texts.txt.

  make_goldens.py [FOLDER]

small.json is a tokenizer of our own, trained here on texts.txt; its goldens (small_*.json) are made always. FOLDER is
what fetch_tokenizers.py made: for each of its tokenizers NAME.json is written. A golden is {"of": SHA-256 of texts.txt,
"trusted": the ids of each text, special tokens recognised, "plain": [index, ids] of the texts that differ if they are not}.
"""
import hashlib
import json
import os
import random
import re
import sys

from reference import (DEEPSEEK_CODER, DEEPSEEK_LLM, DIGITS, FALCON, GPT2, MODERN, QWEN35, Reference, byte_level, sequence,
                       split)

HERE = os.path.dirname(os.path.abspath(__file__))
REAL = ["smollm2", "llama3", "llama3.2", "qwen2", "qwen35", "gpt-2", "deepseek-v3"]
DEEPSEEK = ("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
            "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+")
CASED = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s"
         r"|%s| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
FOLDED = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
POSSESSIVE = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+")
# The changes of each variant of small.json.
VARIANTS = {
    "gpt2": {"pre_tokenizer": byte_level(True)},
    "smollm": {"pre_tokenizer": sequence(DIGITS, byte_level(True))},
    "llama3": {"pre_tokenizer": sequence(split(MODERN % r"\p{N}{1,3}"), byte_level(False)), "ignore_merges": True},
    "qwen2": {"pre_tokenizer": sequence(split(MODERN % r"\p{N}"), byte_level(False)), "normalizer": {"type": "NFC"}},
    "qwen35": {"pre_tokenizer": sequence(split(QWEN35), byte_level(False)),
               "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}]}},
    "tekken": {"pre_tokenizer": sequence(split(CASED % ("", "", r"\p{N}")), byte_level(False))},
    "o200k": {"pre_tokenizer": sequence(split(CASED % (FOLDED, FOLDED, r"\p{N}{1,3}")), byte_level(False))},
    "possessive": {"pre_tokenizer": sequence(split(POSSESSIVE), byte_level(False))},
    "deepseek": {"pre_tokenizer": sequence(split(r"\p{N}{1,3}"), split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"),
                                           split(DEEPSEEK), byte_level(False))},
    "deepseek_llm": {"pre_tokenizer": DEEPSEEK_LLM},
    "deepseek_coder": {"pre_tokenizer": DEEPSEEK_CODER},
    "falcon": {"pre_tokenizer": FALCON},
    # Cohere's newest: digits in threes from the right; and the rest of Punctuation and Digits
    "thousands": {"pre_tokenizer": sequence(split(r"\d{1,3}(?=(?:\d{3})*\b)"), split(CASED % (FOLDED, FOLDED, r"\p{N}{1,3}")),
                                            byte_level(False))},
    "punctuation": {"pre_tokenizer": sequence({"type": "Punctuation", "behavior": "Isolated"},
                                              {"type": "Digits", "individual_digits": False}, split(r"\s+$"), byte_level(True),
                                              DIGITS)},
}


def texts():
    lines = open(os.path.join(HERE, "texts.txt")).read().split("\n")[:-1]
    return [re.sub(rb"\\x(..)", lambda m: bytes([int(m[1], 16)]), line.encode()) for line in lines]


def train_small(ts):
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    corpus = sorted(x.decode() for x in ts if len(x) < 200 and b"[" not in x and b"<" not in x and valid(x)
                    and not any(w in x for w in (b"\4", b"\6", b"\x13", b"Donau", b"pneumo")))
    t.train_from_iterator(corpus, trainers.BpeTrainer(
        vocab_size=900, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    j = json.loads(t.to_str())
    # three bytes without a token, as real vocabularies have, and two tokens that only ignore_merges can reach
    vocab = j["model"]["vocab"]
    for c in "\u0104\u0106\u0113":
        assert [w for w in vocab if c in w] == [c]
        del vocab[c]
    for w in ("Donaudampf", "pneumonoultramicroscopicsilicovolcanoconiosis"):
        assert w not in vocab
        vocab[w] = 100000 + len(vocab)
    # no holes, because the reference numbers added tokens from the size of the vocabulary on
    j["model"]["vocab"] = {w: i for i, w in enumerate(sorted(vocab, key=vocab.get))}
    flags = lambda **k: {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False, **k}
    words = [("<|endoftext|>", flags(special=True)), ("<|im_start|>", flags(special=True)), ("<|im_end|>", flags(special=True)),
             ("[L]", flags(lstrip=True)), ("[R]", flags(rstrip=True)), ("[W]", flags(single_word=True)),
             ("[N\u00e9]", flags(normalized=True)), ("[S]", flags(special=True, normalized=True)), ("[SS]", flags(special=True)), ("<think>", flags())]
    j["added_tokens"] = [{"id": len(vocab) + k, "content": w, **f} for k, (w, f) in enumerate(words)]
    return j


def valid(b):
    try:
        b.decode()
        return True
    except UnicodeDecodeError:
        return False


def write(name, golden):
    with open(os.path.join(HERE, name), "w") as f:
        json.dump(golden, f, separators=(",", ":"), ensure_ascii=True)
        f.write("\n")
    print(name, os.path.getsize(os.path.join(HERE, name)), "bytes")


def golden(tokenizer_json, ts):
    ref = Reference(tokenizer_json)
    trusted = [ref.encode(t) for t in ts]
    plain = [ref.encode(t, False) for t in ts]
    return {"of": hashlib.sha256(open(os.path.join(HERE, "texts.txt"), "rb").read()).hexdigest(), "trusted": trusted,
            "plain": [[i, p] for i, (p, q) in enumerate(zip(plain, trusted)) if p != q]}


def decodings(tokenizer_json):
    """Random ids, many of them single bytes, and their bytes decoded by Python: all, and without special tokens."""
    ref, rng, out = Reference(tokenizer_json), random.Random(7), []
    special = {x["id"] for x in tokenizer_json["added_tokens"] if x["special"]}
    high = [ref.byte_id[b] for b in range(0x80, 0x100)]
    lead = [ref.byte_id[b] for b in (0xC2, 0xE0, 0xE2, 0xED, 0xF0, 0xF4)]
    n = ref.t.get_vocab_size()
    text = lambda ids: b"".join(map(ref.token_bytes, ids)).decode("utf-8", "replace")
    while len(out) < 400:
        ids = [rng.choice([rng.choice(high), rng.choice(high), rng.choice(lead), rng.randrange(n), n - 1 - rng.randrange(10)])
               for _ in range(rng.randint(1, 8))]
        if "\0" not in text(ids):
            out.append([ids, text(ids), text([i for i in ids if i not in special])])
    return out


def main():
    ts = texts()
    small = train_small(ts)
    write("small.json", small)
    for name, change in VARIANTS.items():
        j = json.loads(json.dumps(small))
        j["model"]["ignore_merges"] = change.get("ignore_merges", False)
        j["pre_tokenizer"] = change["pre_tokenizer"]
        j["normalizer"] = change.get("normalizer")
        write("small_%s.json" % name, {"change": change, **golden(j, ts)})
    write("small_decode.json", decodings(small))
    if len(sys.argv) > 1:
        for name in REAL:
            write(name + ".json", golden(open(os.path.join(sys.argv[1], name + ".json")).read(), ts))


if __name__ == "__main__":
    main()
