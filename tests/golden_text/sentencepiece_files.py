"""SentencePiece's tokenizer.model in Python: read, written from a GGUF's vocabulary, and converted to the tokenizer.json that transformers'
LlamaConverter makes from it. Standard library only."""
import struct

from reference import read_gguf

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
UNIGRAM, BPE = 1, 2


def varint(n):
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes(out + bytes([n]))


def field(number, value):
    """One field: int, float, or bytes."""
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value & (1 << 64) - 1)
    return varint(number << 3 | 2) + varint(len(value)) + value


def write_model(pieces, bos=1, eos=2, unk=0, dummy_prefix=True, squeezes=False, byte_fallback=True, model_type=BPE):
    """pieces: [(text, score, type)]."""
    out = b"".join(field(1, field(1, t.encode()) + field(2, float(s)) + (field(3, k) if k != NORMAL else b""))
                   for t, s, k in pieces)
    trainer = field(3, model_type) + field(4, len(pieces)) + field(35, int(byte_fallback)) + field(40, unk) + field(41, bos) + field(42, eos)
    normalizer = field(1, b"identity") + field(3, int(dummy_prefix)) + field(4, int(squeezes)) + field(5, 1)
    return out + field(2, trainer) + field(3, normalizer)


def read_message(data):
    """Returns [(number, value)] of a message's fields; bytes for length-delimited ones."""
    at, out = 0, []

    def number():
        nonlocal at
        n = shift = 0
        while True:
            b = data[at]
            at += 1
            n |= (b & 127) << shift
            shift += 7
            if b < 128:
                return n

    while at < len(data):
        key = number()
        if key & 7 == 0:
            value = number()
        else:
            size = {1: 8, 5: 4}.get(key & 7) or number()
            value = data[at:at + size]
            at += size
        out.append((key >> 3, value))
    return out


def read_model(data):
    """{"pieces": [(text, score, type)], "dummy_prefix": bool, "model_type": UNIGRAM or BPE}"""
    pieces, dummy_prefix, model_type = [], True, UNIGRAM
    for number, value in read_message(data):
        if number == 1:
            f = dict(read_message(value))
            pieces.append((f[1].decode(), struct.unpack("<f", f.get(2, bytes(4)))[0], f.get(3, NORMAL)))
        elif number == 2:
            model_type = dict(read_message(value)).get(3, UNIGRAM)
        elif number == 3:
            dummy_prefix = bool(dict(read_message(value)).get(3, 1))
    return {"pieces": pieces, "dummy_prefix": dummy_prefix, "model_type": model_type}


def without_bytes(data):
    """The same Unigram model without pieces for bytes: its unknown characters become the unknown token."""
    pieces = [p for p in read_model(data)["pieces"] if p[2] != BYTE]
    return write_model(pieces, byte_fallback=False, model_type=UNIGRAM)


def model_from_gguf(path):
    """llama.cpp has written spaces and a score of -1000 into USER_DEFINED pieces."""
    g = read_gguf(path, lambda k: k.startswith("tokenizer."))
    get = lambda k: g.get("tokenizer.ggml." + k)
    assert get("model") == b"llama", get("model")
    unk = get("unknown_token_id")
    kinds = [UNKNOWN if i == unk else CONTROL if k == UNKNOWN and unk is not None else k for i, k in enumerate(get("token_type"))]
    pieces = [(t.decode().replace(" ", "\u2581"), 0.0, k) if k == USER_DEFINED else (t.decode(), s, k)
              for t, s, k in zip(get("tokens"), get("scores"), kinds)]
    prefix = get("add_space_prefix")
    return write_model(pieces, dummy_prefix=True if prefix is None else prefix)


def merges_of(pieces):
    """All ways to join two pieces into a third, the highest score first: transformers' generate_merges."""
    normal = {t: s for t, s, k in pieces if k in (NORMAL, UNUSED, USER_DEFINED)}
    merges = []
    for text, score in normal.items():
        ways = [(text[:i], text[i:]) for i in range(1, len(text)) if text[:i] in normal and text[i:] in normal]
        merges += [(a, b, score) for a, b in ways]
    return [[a, b] for a, b, _ in sorted(merges, key=lambda m: m[2], reverse=True)]


def json_from_phi3(path):
    """Phi-3's published tokenizer: like Llama 2's, but its own tokens absorb the white space after them."""
    j = json_from_model(model_from_gguf(path))
    for token in j["added_tokens"]:
        token["rstrip"] = token["content"] not in ("<unk>", "<s>", "<|endoftext|>")
    return j


def model_json(pieces, model_type):
    if model_type == UNIGRAM:
        bytes_ = any(k == BYTE for _, _, k in pieces)
        return {"type": "Unigram", "unk_id": 0, "vocab": [[t, s] for t, s, _ in pieces], "byte_fallback": bytes_}
    return {"type": "BPE", "dropout": None, "unk_token": pieces[0][0], "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
            "vocab": {t: i for i, (t, _, _) in enumerate(pieces)}, "merges": merges_of(pieces)}


def json_from_model(data, legacy=True):
    """Transformers' conversion of a LlamaTokenizer: the older form (Prepend) or the newer one (Metaspace, first)."""
    model = read_model(data)
    pieces, prefix = model["pieces"], model["dummy_prefix"]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
    normalizers = [{"type": "Prepend", "prepend": "\u2581"}] * prefix + [
        {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": i, "content": t, "special": k != USER_DEFINED, **flags}
                         for i, (t, _, k) in enumerate(pieces) if k in (UNKNOWN, CONTROL, USER_DEFINED)],
        "normalizer": {"type": "Sequence", "normalizers": normalizers} if legacy else None,
        "pre_tokenizer": None if legacy else {"type": "Metaspace", "replacement": "\u2581", "split": False,
                                              "prepend_scheme": "first" if prefix else "never"},
        "post_processor": {"type": "TemplateProcessing", "single": [
            {"SpecialToken": {"id": pieces[1][0], "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {pieces[1][0]: {"id": pieces[1][0], "ids": [1], "tokens": [pieces[1][0]]}}},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
            *strip]},
        "model": model_json(pieces, model["model_type"]),
    }
