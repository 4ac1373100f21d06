"""Reference tokenizers, made with the `tokenizers` package, for goldens and comparison.

A GGUF file's vocabulary becomes the tokenizer.json with which its model was published. transformers' own GGUF conversion is not used,
because it drops smollm's digit split and qwen2's NFC."""
import json
import struct

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
MODERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN35 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")

# DeepSeek's first tokenizers. Their letters are a hand-made list, not a Unicode property.
DEEPSEEK_LETTERS = ("[A-Za-z\xb5\xc0-\xd6\xd8-\xf6\xf8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
                    "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1"
                    "\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5"
                    "\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a"
                    "\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
                    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3"
                    "\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115"
                    "\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f"
                    "\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3"
                    "\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
                    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f"
                    "\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
                    "\U000118a0-\U000118df\U0001e900-\U0001e943]+")
DEEPSEEK_PUNCTUATION = "[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
DEEPSEEK_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
DIGITS = {"type": "Digits", "individual_digits": True}


def read_gguf(path, wanted):
    """Metadata of a GGUF file: the keys for which wanted(key) holds."""
    with open(path, "rb") as f:
        return gguf_metadata(f, wanted)


def gguf_metadata(f, wanted):
    """The same for an open file, which is then positioned after the metadata."""
    take = lambda fmt: struct.unpack("<" + fmt, f.read(struct.calcsize("<" + fmt)))[0]
    kinds = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

    def value(kind):
        if kind == 8:
            return f.read(take("Q"))
        if kind == 9:
            inner, n = take("I"), take("Q")
            if inner in kinds:
                size = struct.calcsize("<" + kinds[inner])
                return list(struct.unpack("<%d%s" % (n, kinds[inner]), f.read(n * size)))
            return [value(inner) for _ in range(n)]
        return take(kinds[kind])

    assert f.read(4) == b"GGUF"
    take("I"), take("Q")
    out = {}
    for _ in range(take("Q")):
        key = value(8).decode()
        v = value(take("I"))
        if wanted(key):
            out[key] = v
    return out


def split(regex):
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


def byte_level(use_regex):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def sequence(*steps):
    return {"type": "Sequence", "pretokenizers": list(steps)}


# Punctuation is cut off first; digits are cut off in GPT-2's alphabet, where "\u00b2" is a digit and a part of other characters.
FALCON = sequence({"type": "Punctuation", "behavior": "Contiguous"}, byte_level(True), {"type": "Digits", "individual_digits": False},
                  split("[0-9][0-9][0-9]"))
DEEPSEEK_LLM = sequence(split("[\r\n]"), split("\\s?" + DEEPSEEK_LETTERS), split("\\s?" + DEEPSEEK_PUNCTUATION), split("\\s+$"),
                        split(DEEPSEEK_CJK), DIGITS, byte_level(False))
DEEPSEEK_CODER = sequence(split("[\r\n]"), split("\\s?\\p{L}+"), split("\\s?\\p{P}+"), split(DEEPSEEK_CJK), DIGITS, byte_level(False))
PRE = {
    "gpt-2": (byte_level(True), None, False),
    "smollm": (sequence(DIGITS, byte_level(True)), None, False),
    "starcoder": (sequence(DIGITS, byte_level(True)), None, False),
    "refact": (sequence(DIGITS, byte_level(True)), None, False),
    "command-r": (sequence(DIGITS, byte_level(True)), {"type": "NFC"}, False),
    "llama-bpe": (sequence(split(MODERN % r"\p{N}{1,3}"), byte_level(False)), None, True),
    "qwen2": (sequence(split(MODERN % r"\p{N}"), byte_level(False)), {"type": "NFC"}, False),
    "falcon": (FALCON, None, False),
    "mpt": (byte_level(True), {"type": "NFC"}, False),
    "deepseek-llm": (DEEPSEEK_LLM, None, False),
    "deepseek-coder": (DEEPSEEK_CODER, None, False),
    "qwen35": (sequence(split(QWEN35), byte_level(False)), {"type": "NFC"}, False),
}


def json_from_gguf(path):
    """The tokenizer.json (as a dict) that equals a GGUF file's tokenizer."""
    g = read_gguf(path, lambda k: k.startswith("tokenizer."))
    get = lambda k: g.get("tokenizer.ggml." + k)
    assert get("model") == b"gpt2", get("model")
    pre_tokenizer, normalizer, ignore_merges = PRE[get("pre").decode()]
    tokens = [t.decode() for t in get("tokens")]
    types = get("token_type") or [1] * len(tokens)
    added = [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": kind != 4} for i, (t, kind) in enumerate(zip(tokens, types)) if kind in (2, 3, 4)]
    # the reference numbers added tokens after the vocabulary, so those with smaller ids must be in it
    last = max(i for i, kind in enumerate(types) if kind not in (2, 3, 4))
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer, "post_processor": None, "decoder": byte_level(True),
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                  "ignore_merges": ignore_merges,
                  "vocab": {t: i for i, t in enumerate(tokens) if i <= last},
                  "merges": [m.decode().split(" ") for m in get("merges")]},
    }


class Reference:
    """Ids as the reference makes them. Bytes that are not UTF-8 cut the text, as our rule is: each goes to its own
    byte token, and what lies between is encoded by itself."""

    def __init__(self, tokenizer_json):
        from tokenizers import Tokenizer
        self.t = Tokenizer.from_str(tokenizer_json if isinstance(tokenizer_json, str) else json.dumps(tokenizer_json))
        self.t.no_padding()
        self.t.no_truncation()
        self.alphabet = byte_alphabet()
        model_vocab = self.t.get_vocab(with_added_tokens=False)
        self.byte_id = [model_vocab.get(c) for c in self.alphabet]

    def encode(self, data, special=True):
        """data: bytes. special: whether special tokens in the text are recognised."""
        self.t.encode_special_tokens = not special
        ids = []
        for part in cut_invalid(data):
            if isinstance(part, int):
                if self.byte_id[part] is not None:
                    ids.append(self.byte_id[part])
            elif part:
                ids += self.t.encode(part, add_special_tokens=False).ids
        return ids

    def token_bytes(self, i):
        """The bytes of token i: added tokens that are not model tokens stand for themselves."""
        text = self.t.id_to_token(i)
        if text is None:
            return b""
        back = {c: b for b, c in enumerate(self.alphabet)}
        if self.t.get_vocab(with_added_tokens=False).get(text) == i and all(c in back for c in text):
            return bytes(back[c] for c in text)
        return text.encode()


def byte_alphabet():
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    other = [b for b in range(256) if b not in own]
    return [chr(b) if b in own else chr(256 + other.index(b)) for b in range(256)]


def cut_invalid(data):
    """Yields parts of data: str for valid UTF-8, int for each byte that is not part of a character."""
    out, i = [], 0
    while i < len(data):
        try:
            out.append(data[i:].decode())
            return out
        except UnicodeDecodeError as e:
            if e.start:
                out.append(data[i:i + e.start].decode())
            out.append(data[i + e.start])
            i += e.start + 1
    return out
