#!/usr/bin/env python3
"""family x column: how many cases were compared with the reference, and how many differ. Run by scripts/fidelity.

  fidelity.py CLI FOLDER [--megabytes N] [--seed S] [--family NAME]... [--results FILE]

FOLDER is what fetch_tokenizers.py made. One column today: "tokenizer", the ids of random texts (hard bits, all scripts,
special tokens, white space, long runs), N megabytes for each form of each family. A column is a function from the arguments to
rows (family, form, reference, cases, bytes, mismatches); new ones go into COLUMNS.
"""
import argparse
import json
import os
import random
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
from compare import Cli, random_text
from reference import json_from_gguf
from tiktoken_files import CL100K, QWEN2, TEKKEN_SPECIAL, read_ranks
from sentencepiece_files import json_from_model, json_from_phi3, model_from_gguf, read_model

SENTENCEPIECE = {"llama-2": "ggml-vocab-llama-spm.gguf", "mistral-v1": "mistral-v1.model", "mistral-v3": "mistral-v3.model",
                 "phi-3": "ggml-vocab-phi-3.gguf", "baichuan": "ggml-vocab-baichuan.gguf"}
BYTES = ["smollm2", "llama3", "llama3.2", "qwen2", "qwen35", "gpt-2", "deepseek-v3", "deepseek-llm", "deepseek-coder", "tekken",
         "starcoder", "refact", "command-r", "falcon", "mpt", "cl100k", "qwen"]
TIKTOKEN = {"tekken": ("tekken_240718.json", None, TEKKEN_SPECIAL), "cl100k": ("cl100k.tiktoken", CL100K, 0),
            "qwen": ("qwen.tiktoken", QWEN2, 0)}
TEXT_BYTES = [200, 2000, 2000, 20000]  # a text is made of random ones until it is so long


class HuggingFace:
    """Text without broken bytes, special tokens recognised or not."""
    name = "tokenizers"
    modes = (1, 0)

    def __init__(self, tokenizer_json):
        from tokenizers import Tokenizer
        self.t = Tokenizer.from_str(json.dumps(tokenizer_json))
        self.t.no_padding()
        self.t.no_truncation()

    def encode(self, texts, mode):
        self.t.encode_special_tokens = not mode
        return [e.ids for e in self.t.encode_batch(texts, add_special_tokens=False)]


class Tiktoken:
    """Ranks and a pattern; Qwen's text is NFC before."""
    name = "tiktoken"
    modes = (0,)

    def __init__(self, path, pattern, first_id, nfc):
        import tiktoken
        from tokenizers import normalizers
        pattern = pattern or json.load(open(path))["config"]["pattern"]
        self.t = tiktoken.Encoding(os.path.basename(path), pat_str=pattern, mergeable_ranks=read_ranks(path), special_tokens={})
        self.first_id, self.nfc = first_id, normalizers.NFC().normalize_str if nfc else lambda text: text

    def encode(self, texts, mode):
        return [[self.first_id + i for i in self.t.encode_ordinary(self.nfc(text))] for text in texts]


class SentencePiece:
    """SentencePiece knows no special tokens in text."""
    name = "sentencepiece"
    modes = (0,)

    def __init__(self, model):
        import sentencepiece
        self.t = sentencepiece.SentencePieceProcessor(model_proto=model)

    def encode(self, texts, mode):
        return self.t.encode(texts)


def forms(family, folder):
    """(form, path that our side reads, reference, added tokens) of a family."""
    path = lambda name: os.path.join(folder, name)
    if family in BYTES:
        j = json.load(open(path(family + ".json")))
        added = [x["content"] for x in j["added_tokens"]]
        yield "json", path(family + ".json"), HuggingFace(j), added
        gguf = path("ggml-vocab-%s.gguf" % {"llama3": "llama-bpe"}.get(family, family))
        if os.path.exists(gguf):
            yield "gguf", gguf, HuggingFace(j if family != "llama3" else json_from_gguf(gguf)), added
        if family in TIKTOKEN:
            name, pattern, first_id = TIKTOKEN[family]
            yield "json", path(family + ".json"), Tiktoken(path(name), pattern, first_id, family == "qwen"), added
        return
    name = SENTENCEPIECE[family]
    if family == "phi-3":
        j = json_from_phi3(path(name))
        yield "gguf", path(name), HuggingFace(j), [x["content"] for x in j["added_tokens"]]
        return
    gguf = name.endswith(".gguf")
    model = model_from_gguf(path(name)) if gguf else open(path(name), "rb").read()
    added = [t for t, _, kind in read_model(model)["pieces"] if kind in (2, 3, 4)]
    if gguf:
        yield "gguf", path(name), SentencePiece(model), added
    made = path(family + ".made.model")
    with open(made, "wb") as f:
        f.write(model)
    yield "model", made, SentencePiece(model), added
    for form, legacy in (("json, Prepend", True), ("json, Metaspace", False)):
        j = json_from_model(model, legacy)
        made = path("%s.made%d.json" % (family, legacy))
        with open(made, "w") as f:
            json.dump(j, f)
        yield form, made, HuggingFace(j), added


def long_text(rng, added):
    parts, wanted, size = [], rng.choice(TEXT_BYTES), 0
    while size < wanted:
        parts.append(random_text(rng, added).decode("utf-8", "ignore").replace("\0", ""))
        size += len(parts[-1])
    return "".join(parts)


def tokenizer_column(a):
    for family in a.family or [*SENTENCEPIECE, *BYTES]:
        for form, path, ref, added in forms(family, a.folder):
            rng, cli = random.Random("%d %s %s" % (a.seed, family, form)), Cli(a.cli, path)
            some = sorted(added, key=len)[:40]
            cases = size = bad = 0
            while size < a.megabytes * 1e6:
                texts = [long_text(rng, some) for _ in range(16)]
                size += sum(len(t.encode()) for t in texts)
                for mode in ref.modes:
                    for text, want in zip(texts, ref.encode(texts, mode)):
                        cases += 1
                        if want != cli.ask(mode, text.encode()):
                            bad += 1
                            if bad <= 3:
                                print("  differs:", family, form, ascii(text), file=sys.stderr)
            yield family, form, ref.name, cases, size, bad


COLUMNS = {"tokenizer": tokenizer_column}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("cli")
    p.add_argument("folder")
    p.add_argument("--megabytes", type=float, default=100, help="of text for each form of each family")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--family", action="append")
    p.add_argument("--results", help="file for the table, beside standard output")
    a = p.parse_args()
    bad, lines = 0, ["| family | form | column | reference | cases | bytes | mismatches |", "|---|---|---|---|---|---|---|"]
    print("\n".join(lines), flush=True)
    for column, rows in COLUMNS.items():
        for family, form, reference, cases, size, mismatches in rows(a):
            lines.append("| %s | %s | %s | %s | %s | %s | %d |" % (
                family, form, column, reference, format(cases, ","), format(size, ","), mismatches))
            print(lines[-1], flush=True)
            bad += mismatches
    if a.results:
        with open(a.results, "w") as f:
            f.write(time.strftime("%Y-%m-%d, seed ") + "%d\n\n" % a.seed + "\n".join(lines) + "\n")
    sys.exit(bad != 0)


if __name__ == "__main__":
    main()
