"""Independent references for text: the GGUF's vocabulary and merges in Hugging Face's tokenizers library, and its chat template in Jinja,
set up as transformers does."""
import functools
import json
import struct

import jinja2
import jinja2.sandbox
import tokenizers
from harness import MODEL

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


@functools.cache
def gguf_metadata(path=MODEL):
    """Reads the key-value part of a GGUF file."""
    with open(path, "rb") as f:
        def number(code):
            return struct.unpack("<" + code, f.read(struct.calcsize("<" + code)))[0]

        def string():
            return f.read(number("Q")).decode("utf-8", "surrogateescape")

        def value(kind):
            if kind == 8:
                return string()
            if kind == 9:
                inner, n = number("I"), number("Q")
                return [value(inner) for _ in range(n)]
            return number(SCALARS[kind])

        assert f.read(4) == b"GGUF" and number("I") == 3
        number("Q")
        n = number("Q")
        meta = {}
        for _ in range(n):
            key = string()
            meta[key] = value(number("I"))
        return meta


@functools.cache
def tokenizer():
    """smollm's splitter: digits one by one, then GPT-2's pattern; byte-level BPE. Special tokens are recognised in all text."""
    meta = gguf_metadata()
    words = meta["tokenizer.ggml.tokens"]
    merges = [tuple(m.split(" ", 1)) for m in meta["tokenizer.ggml.merges"]]
    t = tokenizers.Tokenizer(tokenizers.models.BPE({w: i for i, w in enumerate(words)}, merges, fuse_unk=False))
    t.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([
        tokenizers.pre_tokenizers.Digits(individual_digits=True),
        tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    t.decoder = tokenizers.decoders.ByteLevel()
    control = [w for w, kind in zip(words, meta["tokenizer.ggml.token_type"]) if kind == 3]
    t.add_special_tokens(control)
    return t


def render_chat(messages, add_generation_prompt=True):
    meta = gguf_metadata()
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    env.filters["tojson"] = lambda x, **kw: json.dumps(x, ensure_ascii=False)
    words = meta["tokenizer.ggml.tokens"]
    return env.from_string(meta["tokenizer.chat_template"]).render(
        messages=messages, add_generation_prompt=add_generation_prompt,
        bos_token=words[meta["tokenizer.ggml.bos_token_id"]], eos_token=words[meta["tokenizer.ggml.eos_token_id"]])
