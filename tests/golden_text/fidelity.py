#!/usr/bin/env python3
"""family x column: how many cases were compared with the reference, and how many differ. Run by scripts/fidelity.

  fidelity.py CLI FOLDER [--megabytes N] [--seed S] [--family NAME]... [--column NAME]... [--files FOLDER]...
              [--build BUILD] [--results FILE]

FOLDER is what fetch_tokenizers.py made, BUILD where the tests were built. The columns:
  tokenizer   ids of random texts (hard bits, all scripts, special tokens, white space, long runs), N megabytes for each form of
              each vocabulary, beside tokenizers, tiktoken and SentencePiece
  templates   published templates (from llama-cpp-python's package) x 50 conversations, beside jinja2 as transformers sets it up
  logits      of tiny random models, within 2e-4 of the largest, beside transformers in float32
  greedy      tokens of the same models, in five scenarios
  sampling    draws of every sampler beside float64: the sampler knows no family
--family names vocabularies (of the tokenizer column), --files folders whose files' texts it takes instead of random ones. A line for
each is printed as it comes, then the table.
"""
import argparse
import fnmatch
import gzip
import itertools
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import time
import zlib

os.environ["TOKENIZERS_PARALLELISM"] = "false"
from compare import Cli, random_text
from reference import json_from_gguf
from tiktoken_files import CL100K, O200K, QWEN2, TEKKEN_SPECIAL, read_ranks
from sentencepiece_files import json_from_model, json_from_phi3, model_from_gguf, read_model

SENTENCEPIECE = {"llama-2": "ggml-vocab-llama-spm.gguf", "mistral-v1": "mistral-v1.model", "mistral-v3": "mistral-v3.model",
                 "phi-3": "ggml-vocab-phi-3.gguf", "baichuan": "ggml-vocab-baichuan.gguf",
                 "gemma3": "gemma3.gguf"}
# of our own, checked in: no package holds a Unigram vocabulary whose characters are not rewritten
UNIGRAM = {"unigram": "small_unigram.json", "unigram without bytes": "small_unigram_unk.json", "unigram model": "small_unigram.model"}
BYTES = ["smollm2", "llama3", "llama3.2", "qwen2", "qwen35", "gpt-2", "deepseek-v3", "deepseek-llm", "deepseek-coder", "tekken",
         "starcoder", "refact", "command-r", "falcon", "mpt", "cl100k", "o200k", "qwen"]
TIKTOKEN = {"tekken": ("tekken_240718.json", None, TEKKEN_SPECIAL), "cl100k": ("cl100k.tiktoken", CL100K, 0),
            "o200k": ("o200k.tiktoken", O200K, 0), "qwen": ("qwen.tiktoken", QWEN2, 0)}
FILE_BYTES_MAX = 1000000
TEXT_BYTES = [200, 2000, 2000, 20000]  # random texts are joined up to this length


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
        return [e.ids for e in self.t.encode_batch_fast(texts, add_special_tokens=False)]


class HuggingFaceUnigram(HuggingFace):
    """Where special tokens are not recognised, `tokenizers` still finds their texts among the pieces. We never do, so there they have
    other texts."""
    def __init__(self, tokenizer_json):
        super().__init__(tokenizer_json)
        special = {x["id"] for x in tokenizer_json["added_tokens"] if x["special"]}
        hidden = json.loads(json.dumps(tokenizer_json))
        for i in special:
            hidden["model"]["vocab"][i][0] = "\0%d" % i
        for token in hidden["added_tokens"]:
            if token["special"]:
                token["content"] = "\0%d" % token["id"]
        hidden["post_processor"] = None
        self.hidden = HuggingFace(hidden)

    def encode(self, texts, mode):
        return super().encode(texts, mode) if mode else self.hidden.encode(texts, mode)


class Tiktoken:
    """Ranks and a pattern; Qwen's text is converted to NFC first."""
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
    """SentencePiece does not recognise special tokens in text."""
    name = "sentencepiece"
    modes = (0,)

    def __init__(self, model):
        import sentencepiece
        self.t = sentencepiece.SentencePieceProcessor(model_proto=model)

    def encode(self, texts, mode):
        return self.t.encode(texts)


def added_of(model):
    return [t for t, _, kind in read_model(model)["pieces"] if kind in (2, 3, 4)]


def forms(family, folder):
    """Yields (form, path for our side, reference, added tokens) of a family."""
    path = lambda name: os.path.join(folder, name)
    if family in BYTES:
        j = json.load(open(path(family + ".json")))
        added = [x["content"] for x in j["added_tokens"]]
        ref = HuggingFace(j)
        yield "json", path(family + ".json"), ref, added
        gguf = path("ggml-vocab-%s.gguf" % {"llama3": "llama-bpe"}.get(family, family))
        if os.path.exists(gguf):
            yield "gguf", gguf, ref if family != "llama3" else HuggingFace(json_from_gguf(gguf)), added
        if family in TIKTOKEN:
            name, pattern, first_id = TIKTOKEN[family]
            yield "json", path(family + ".json"), Tiktoken(path(name), pattern, first_id, family == "qwen"), added
        return
    if family in UNIGRAM:
        made = os.path.join(os.path.dirname(os.path.abspath(__file__)), UNIGRAM[family])
        if made.endswith(".model"):
            model = open(made, "rb").read()
            yield "model", made, SentencePiece(model), added_of(model)
            return
        j = json.load(open(made))
        yield "json", made, HuggingFaceUnigram(j), [x["content"] for x in j["added_tokens"]]
        return
    name = SENTENCEPIECE[family]
    if family == "phi-3":
        j = json_from_phi3(path(name))
        yield "gguf", path(name), HuggingFace(j), [x["content"] for x in j["added_tokens"]]
        return
    gguf = name.endswith(".gguf")
    model = model_from_gguf(path(name)) if gguf else open(path(name), "rb").read()
    added, ref = added_of(model), SentencePiece(model)
    if gguf:
        yield "gguf", path(name), ref, added
    made = path(family + ".made.model")
    with open(made, "wb") as f:
        f.write(model)
    yield "model", made, ref, added
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


def file_texts(rng, folders):
    """Real texts from files below folders, in random order: valid UTF-8, in parts as long as the random texts."""
    paths = sorted(os.path.join(at, name) for folder in folders for at, _, names in os.walk(folder) for name in names)
    rng.shuffle(paths)
    for path in paths:
        if os.path.islink(path) or not os.path.isfile(path) or os.path.getsize(path) > FILE_BYTES_MAX:
            continue
        try:
            with (gzip.open if path.endswith(".gz") else open)(path, "rb") as f:
                text = f.read().decode().replace("\0", "")
        except (OSError, EOFError, zlib.error, UnicodeDecodeError):
            continue
        while text:
            n = rng.choice(TEXT_BYTES)
            yield text[:n]
            text = text[n:]


def shrunk(text, differs):
    """Minimises a text: removes every part without which the results still differ."""
    step = len(text)
    while step > 0:
        for at in range(0, len(text), step):
            while text[at:at + step] and differs(text[:at] + text[at + step:]):
                text = text[:at] + text[at + step:]
        step //= 2
    return text


def compare(a, family, group):
    """Forms with the same reference get the same texts, with special tokens recognised and ignored alternately."""
    ref, added = group[0][2:]
    rng, some = random.Random("%d %s %s %s" % (a.seed, family, group[0][0], ref.name)), sorted(added, key=len)[:40]
    forms_here = [(form, Cli(a.cli, path)) for form, path, _, _ in group]
    source = file_texts(rng, a.files) if a.files else iter(lambda: long_text(rng, some), None)
    bad, cases, size, n_read = [0] * len(group), 0, 0, 1
    while size < a.megabytes * 1e6 and n_read > 0:
        for mode in ref.modes:
            texts = list(itertools.islice(source, 16))
            n_read = len(texts)
            bytes_of = [t.encode() for t in texts]
            cases, size, wants = cases + len(texts), size + sum(map(len, bytes_of)), ref.encode(texts, mode)
            for i, (form, cli) in enumerate(forms_here):
                for text, raw, want in zip(texts, bytes_of, wants):
                    if want != cli.ask(mode, raw):
                        bad[i] += 1
                        if bad[i] <= 3:
                            differs = lambda t, c=cli: ref.encode([t], mode)[0] != c.ask(mode, t.encode())
                            print("  differs:", family, form, mode, ascii(shrunk(text, differs)), file=sys.stderr)
    return [(family, form, ref.name, cases, size, bad[i]) for i, (form, _) in enumerate(forms_here)]


def tokenizer_column(a):
    for family in a.family or [*SENTENCEPIECE, *UNIGRAM, *BYTES]:
        for _, group in itertools.groupby(forms(family, a.folder), key=lambda form: form[2]):
            yield from compare(a, family, list(group))


# ---- the other columns ----

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden"
# family: vocabularies, published templates, tiny models
FAMILIES = {
    "Llama 3": (["llama3", "llama3.2"], ["meta-llama-*", "*Llama-3*", "*R1-Distill-Llama*", "fireworks*", "meetkai*"],
                ["llama3", "gguf_llama3", "llama_dynamic"]),
    "Llama 2, LLaMA": (["llama-2"], [], ["llama2", "llama_linear", "llama_biases", "gguf_f32", "gguf_f16", "gguf_bf16", "gguf_q[4-8]_*",
                                         "gguf_yarn", "gguf_split"]),
    "Yi (vocabulary: Baichuan's, a substitute)": (["baichuan"], [], ["yi"]),
    "Mistral": (["mistral-v1", "mistral-v3", "tekken"], ["mistralai-*", "unsloth-mistral*", "Mistral-Small*"], ["mistral", "mistral_nemo", "mistral3"]),
    "SmolLM2": (["smollm2"], [], ["smollm2"]),
    "SmolLM3": ([], ["*SmolLM3*"], ["smollm3", "gguf_smollm3"]),
    "Qwen2, Qwen2.5": (["qwen2", "qwen"], ["Qwen-*", "*R1-Distill-Qwen*"], ["qwen2", "qwen2_yarn", "gguf_qwen2", "qwen25_vl"]),
    "Qwen3": (["qwen2"], ["Qwen3*"], ["qwen3", "gguf_qwen3", "qwen3_vl"]),
    "Phi-3, Phi-4-mini": (["phi-3", "cl100k", "o200k"], ["microsoft*"], ["phi3", "phi3_long", "gguf_phi3"]),
    "Granite": (["refact", "starcoder"], ["ibm-granite*"], ["granite", "gguf_granite"]),
    "MiniCPM": ([], ["openbmb*"], ["minicpm", "gguf_minicpm"]),
    "OLMo 2, OLMo 3": (["cl100k"], [], ["olmo2", "olmo3", "gguf_olmo2"]),
    "Command R": (["command-r"], ["CohereForAI*", "Cohere2*"], ["cohere", "cohere2", "gguf_command_r", "gguf_cohere2"]),
    "DeepSeek (text to ids)": (["deepseek-llm", "deepseek-coder", "deepseek-v3"], ["deepseek-ai*", "llama-cpp-deepseek*"], []),
    "Gemma 3 (text to ids)": (["gemma3"], ["google-gemma*"], []),
    "Unigram (text to ids; a vocabulary of our own)": (["unigram", "unigram without bytes", "unigram model"], [], []),
    "others": (["qwen35", "gpt-2", "falcon", "mpt"], ["*"], ["llava"]),
}


def family_of(place, name):
    """Returns the first family that lists it; place: 0 vocabularies, 1 templates, 2 models."""
    return next((f for f, lists in FAMILIES.items() if any(fnmatch.fnmatch(name, p) for p in lists[place])), "others")


def template_column(a):
    """Equal text, or a refusal by both."""
    sys.path.insert(0, str(GOLDEN.parent / "golden_template"))
    import conversations
    import differential
    import random_chats
    chats = [*conversations.conversations(), *random_chats.random_chats(a.chats, a.seed)]
    ours, ref = differential.Ours(a.render), differential.Reference(differential.NOW)
    for path in sorted(pathlib.Path(a.folder, "templates").glob("*.jinja")):
        source, cases, bad = path.read_bytes().decode(), 0, 0
        for chat in chats:
            difference, _ = differential.compare(ours, ref, source, chat)
            cases += 1
            bad += difference is not None
        yield path.stem, "", "jinja2", cases, len(source), bad


def lines_of(command, mark):
    out = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False).stdout
    return [line.split(" | ")[1:] for line in out.splitlines() if line.startswith(mark)]


golden_models = []  # the output of test_golden_models, run once for two columns


def model_rows(a):
    if not golden_models:
        tiny = pathlib.Path(a.build, "tiny_models")
        subprocess.run([sys.executable, str(GOLDEN / "tiny_models.py"), str(tiny)], check=True, stdout=subprocess.DEVNULL)
        for name in "golden_tiny.json", "golden_families.json":
            golden_models.extend(lines_of([pathlib.Path(a.build, "tests/golden/test_golden_models"), GOLDEN / name, tiny], "fidelity model"))
    return golden_models


def logits_column(a):
    for name, cases, bad, _, _ in model_rows(a):
        yield name, "", "transformers", int(cases), 0, int(bad)


def greedy_column(a):
    for name, _, _, cases, bad in model_rows(a):
        yield name, "", "transformers", int(cases), 0, int(bad)


def sampling_column(a):
    for name, cases, bad in lines_of([pathlib.Path(a.build, "tests/test_kernels_draws")], "fidelity sampling"):
        yield name, "", "float64", int(cases), 0, int(bad)


COLUMNS = {"tokenizer": (tokenizer_column, 0), "templates": (template_column, 1), "logits": (logits_column, 2), "greedy": (greedy_column, 2),
           "sampling": (sampling_column, None)}


def table(rows):
    """family x column: cases / mismatches."""
    sums = {}
    for column, name, cases, size, bad in rows:
        place = COLUMNS[column][1]
        # a vocabulary counts for all families that use it
        for family in (["every family"] if place is None else
                       [f for f, lists in FAMILIES.items() if name in lists[0]] if place == 0 else [family_of(place, name)]):
            old = sums.setdefault((family, column), [0, 0, 0])
            sums[family, column] = [old[0] + cases, old[1] + size, old[2] + bad]

    def cell(family, column):
        if (family, column) not in sums:
            return ""
        cases, size, bad = sums[family, column]
        if cases == 0:
            return "none kept"
        return "%s%s / %d" % (format(cases, ","), " (%.1f MB)" % (size / 1e6) if column == "tokenizer" else "", bad)
    shown = [c for c in COLUMNS if any(k[1] == c for k in sums)]
    out = ["| family, cases / mismatches | " + " | ".join(shown) + " |", "|---" * (len(shown) + 1) + "|"]
    return out + ["| %s | %s |" % (f, " | ".join(cell(f, c) for c in shown)) for f in [*FAMILIES, "every family"] if any(k[0] == f for k in sums)]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("cli")
    p.add_argument("folder")
    p.add_argument("--megabytes", type=float, default=100, help="of text for each form of each vocabulary")
    p.add_argument("--files", action="append", help="folder: texts from the files below it, not random ones; may be given again")
    p.add_argument("--chats", type=int, default=100, help="random conversations for each template, beside those that are listed")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--family", action="append")
    p.add_argument("--column", action="append", choices=COLUMNS, help="only this one; may be given again (all)")
    p.add_argument("--build", default="build-fidelity")
    p.add_argument("--render", help="td_render_cli (in BUILD)")
    p.add_argument("--results", help="file for the tables, beside standard output")
    a = p.parse_args()
    a.render = a.render or os.path.join(a.build, "tests/golden_template/td_render_cli")
    lines, rows = ["| column | what | form | reference | cases | bytes | mismatches |", "|---|---|---|---|---|---|---|"], []
    print("\n".join(lines), flush=True)
    for column, (function, _) in COLUMNS.items():
        n_before = len(rows)
        for name, form, reference, cases, size, bad in function(a) if not a.column or column in a.column else ():
            lines.append("| %s | %s | %s | %s | %s | %s | %d |" % (
                column, name, form, reference, format(cases, ","), format(size, ",") if size else "", bad))
            print(lines[-1], flush=True)
            rows.append((column, name, cases, size, bad))
        if len(rows) == n_before and (not a.column or column in a.column):
            sys.exit("%s: nothing was compared" % column)
    summary = table(rows)
    print("\n" + "\n".join(summary), flush=True)
    if a.results:
        with open(a.results, "w") as f:
            f.write(time.strftime("%Y-%m-%d, seed ") + "%d\n\n" % a.seed + "\n".join([*summary, "", *lines]) + "\n")
    sys.exit(any(bad for *_, bad in rows))


if __name__ == "__main__":
    main()
