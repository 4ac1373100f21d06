"""Reference tokenizers, made with the `tokenizers` package (which is not ours), for goldens and comparison.

A GGUF file's vocabulary becomes the tokenizer.json that its model was published with: transformers' own GGUF
conversion is not used, because it drops smollm's digit split and qwen2's NFC.
"""
import json
import struct

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
MODERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN35 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def read_gguf(path, wanted):
    """Metadata of a GGUF file: the keys for which wanted(key) holds."""
    f = open(path, "rb")
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


PRE = {
    "gpt-2": (byte_level(True), None, False),
    "smollm": (sequence({"type": "Digits", "individual_digits": True}, byte_level(True)), None, False),
    "starcoder": (sequence({"type": "Digits", "individual_digits": True}, byte_level(True)), None, False),
    "refact": (sequence({"type": "Digits", "individual_digits": True}, byte_level(True)), None, False),
    "command-r": (sequence({"type": "Digits", "individual_digits": True}, byte_level(True)), {"type": "NFC"}, False),
    "llama-bpe": (sequence(split(MODERN % r"\p{N}{1,3}"), byte_level(False)), None, True),
    "qwen2": (sequence(split(MODERN % r"\p{N}"), byte_level(False)), {"type": "NFC"}, False),
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
    # the reference numbers added tokens itself, behind the vocabulary: those in front must be in it
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
    """Pieces of data: str where it is UTF-8, int for each byte that is not part of any character."""
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
