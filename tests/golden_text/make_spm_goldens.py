#!/usr/bin/env python3
"""Writes small SentencePiece models of our own, BPE and Unigram, in their forms, and what the references make of texts.txt with it.

  make_spm_goldens.py       needs the packages `sentencepiece` 0.2.3 and `tokenizers`

small_spm.model is trained here; small_spm.gguf holds the same vocabulary, small_spm.json is what transformers converts it to.
small_unigram.json is the conversion of a Unigram model, small_unigram_unk.json has no byte tokens, small_unigram.model is the model
with pieces of type USER_DEFINED added.
small_spm_ids.json: for each text of texts.txt that is UTF-8 (null for others) the ids by SentencePiece, special tokens
ignored ("plain"), and by `tokenizers`, special tokens recognised, for the older ("legacy") and the newer form of the
conversion ("first"), whose changes of small_spm.json it names. "decode": [ids, text without special tokens by SentencePiece,
text with them by `tokenizers`, null where it gives up a whole run of bytes for one that is broken].
small_unigram_ids.json: "texts": [text, ids by `tokenizers` for both forms of the conversion, and without byte tokens], "ties": the same
for long texts in which float sums lead to other ids (by SentencePiece); "model": [text, ids by SentencePiece with small_unigram.model],
"long": [text, how often, text after it, last ids] likewise, where the sums are so low that rounding and new beginnings count;
"decode": [ids, text by SentencePiece].
"""
import hashlib
import io
import json
import os
import random
import struct

import sentencepiece
import tokenizers

from make_goldens import HERE, texts, valid, write
from sentencepiece_files import NORMAL, UNIGRAM, USER_DEFINED, json_from_model, read_model, without_bytes, write_model


def train(ts, model_type, **more):
    out = io.BytesIO()
    corpus = [x.decode() for x in ts if len(x) < 300 and valid(x) and b"\0" not in x and b"\n" not in x and b"[" not in x]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus), model_writer=out, model_type=model_type, vocab_size=900, byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, split_digits=True, num_threads=1,
        allow_whitespace_only_pieces=True, control_symbols=["[INST]", "[/INST]"],
        character_coverage=0.98, minloglevel=2, **more)
    return out.getvalue()


def gguf(model):
    pieces = model["pieces"]
    text = lambda s: struct.pack("<Q", len(s.encode())) + s.encode()
    array = lambda kind, items: struct.pack("<IIQ", 9, kind, len(items)) + b"".join(items)
    keys = [("general.architecture", struct.pack("<I", 8) + text("llama")),
            ("tokenizer.ggml.model", struct.pack("<I", 8) + text("llama")),
            ("tokenizer.ggml.tokens", array(8, [text(t) for t, _, _ in pieces])),
            ("tokenizer.ggml.scores", array(6, [struct.pack("<f", s) for _, s, _ in pieces])),
            ("tokenizer.ggml.token_type", array(5, [struct.pack("<i", k) for _, _, k in pieces])),
            ("tokenizer.ggml.bos_token_id", struct.pack("<II", 4, 1)),
            ("tokenizer.ggml.eos_token_id", struct.pack("<II", 4, 2))]
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(keys)) + b"".join(text(k) + v for k, v in keys)


def decodings(sp, hf, pieces):
    rng, out = random.Random(7), []
    bytes_ = [i for i, p in enumerate(pieces) if p[2] == 6 and p[0] != "<0x20>"]  # at the very beginning the references differ
    special = [i for i, p in enumerate(pieces) if p[2] == 3]
    high = [i for i in bytes_ if int(pieces[i][0][3:5], 16) >= 0x80]
    lead = [i for i in bytes_ if int(pieces[i][0][3:5], 16) in (0xC2, 0xE0, 0xE2, 0xED, 0xF0, 0xF4)]
    spaces = [i for i, p in enumerate(pieces) if p[0].startswith("\u2581")]
    while len(out) < 400:
        ids = [rng.choice([rng.choice(high), rng.choice(lead), rng.choice(bytes_), rng.choice(spaces), rng.choice(special),
                           rng.choice(range(259, len(pieces)))]) for _ in range(rng.randint(1, 8))]
        if rng.random() < 0.5:
            ids += sp.encode(rng.choice(["\u4f60\u597d\U0001f600", "\u0915\u094d\u0937 x", " a\U0001f44d\U0001f3fdb"]))
        plain, full = sp.decode([i for i in ids if i not in special]), hf.decode(ids, skip_special_tokens=False)
        if "\0" not in plain:
            out.append([ids, plain, None if "\ufffd" in full else full])
    return out


def unigram(ts):
    data = train(ts, "unigram", hard_vocab_limit=False)
    forms = [json_from_model(data), json_from_model(data, legacy=False), json_from_model(without_bytes(data))]
    newer = forms[1]
    write("small_unigram.json", forms[0])
    write("small_unigram_unk.json", forms[2])
    sp = sentencepiece.SentencePieceProcessor(model_proto=data)
    hf = [tokenizers.Tokenizer.from_str(json.dumps(j)) for j in forms]
    case = lambda t: [t, *(h.encode(t, add_special_tokens=False).ids for h in hf)]
    made = {"changes": {k: newer[k] for k in ("normalizer", "pre_tokenizer")}, "texts": [], "ties": []}
    made["texts"] = [case(x.decode()) for x in ts if valid(x) and b"\0" not in x and len(x) < 400][::2]
    pieces = read_model(data)["pieces"]
    parts, rng = [t.replace("\u2581", " ") for t, _, kind in pieces if kind == 1], random.Random(3)
    while len(made["ties"]) < 4:
        text = "".join(rng.choice(parts) for _ in range(400))
        if sp.encode(text) != hf[0].encode(text, add_special_tokens=False).ids:
            made["ties"].append(case(text))
    made["decode"] = [d[:2] for d in decodings(sp, hf[0], pieces)[:100]]
    user = ["[U]", "\u2581[V]", "xyzzy", "\u4f60\u597d\u4f60", "\u2581\u2581e", "er", "tio", "nth", "e\u2581s"]
    pieces = [p for p in pieces if p[0] not in user]
    sp = with_user(pieces, [(t, 0.0, USER_DEFINED) for t in user], "small_unigram.model")
    others = [with_user(pieces, [(t, score * len(t.encode()), NORMAL) for t in user]) for score in (0.0, 0.1)]
    made["model"] = [[t, sp.encode(t)] for t in [c[0] for c in made["texts"]] + ["<0x0A> <0x41>a", "[U][V] [V]"]]
    for other in others:  # texts in which the score of USER_DEFINED pieces counts
        n = len(made["model"]) + 12
        while len(made["model"]) < n:
            text = "".join(rng.choice(parts + user).replace("\u2581", " ") for _ in range(20))
            if sp.encode(text) != other.encode(text):
                made["model"].append([text, sp.encode(text)])
    made["long"] = long_cases(sp, parts, rng)
    write("small_unigram_ids.json", made)


def with_user(pieces, user, name=None):
    data = write_model(pieces + user, model_type=UNIGRAM)
    if name:
        with open(os.path.join(HERE, name), "wb") as f:
            f.write(data)
    return sentencepiece.SentencePieceProcessor(model_proto=data)


def long_cases(sp, parts, rng):
    """Texts whose end is encoded otherwise than without the 12,000 unknown characters before it."""
    made, unknown = [], "\U0001f980"
    while len(made) < 12:
        n = rng.choice([5040, 5060, 5100, 7000, 9000, 10100, 12000])
        text = "".join(rng.choice(["-", "=", "  ", "a", "e", *parts]) * rng.choice([1, 5, 17]) for _ in range(40))
        ids, alone = sp.encode(unknown * n + text), sp.encode("-" + text)[-30:]
        if ids[-30:] != alone:
            made.append([unknown, n, text, ids[4 * n + 1:]])
    return made


def main():
    ts = texts()
    unigram(ts)
    data = train(ts, "bpe", user_defined_symbols=["[U]", "\u2581[V]"])
    model, legacy, newer = read_model(data), json_from_model(data), json_from_model(data, legacy=False)
    for name, content in ("small_spm.model", data), ("small_spm.gguf", gguf(model)):
        with open(os.path.join(HERE, name), "wb") as f:
            f.write(content)
    write("small_spm.json", legacy)
    sp = sentencepiece.SentencePieceProcessor(model_proto=data)
    made = {"of": hashlib.sha256(open(os.path.join(HERE, "texts.txt"), "rb").read()).hexdigest(),
            "changes": {k: newer[k] for k in ("normalizer", "pre_tokenizer")}}
    hf = {name: tokenizers.Tokenizer.from_str(json.dumps(j)) for name, j in (("legacy", legacy), ("first", newer))}
    made["plain"] = [sp.encode(t.decode()) if valid(t) else None for t in ts]
    for name, t in hf.items():
        made[name] = [t.encode(x.decode(), add_special_tokens=False).ids if valid(x) else None for x in ts]
    made["decode"] = decodings(sp, hf["legacy"], model["pieces"])
    write("small_spm_ids.json", made)


if __name__ == "__main__":
    main()
