#!/usr/bin/env python3
"""Writes the seed inputs seeds/<target>/* and the small tokenizers in tokenizers/. Needs nothing but Python.

It never touches files that fuzzing found (seeds/<target>/found-*): these are kept as regression tests. Nor does it touch targets for which it
makes nothing: their seeds were collected."""
import glob
import json
import os
import struct

HERE = os.path.dirname(os.path.abspath(__file__))
WRITTEN = set()


def write(target, name, data):
    folder = os.path.join(HERE, "seeds", target)
    os.makedirs(folder, exist_ok=True)
    WRITTEN.add(os.path.join(folder, name))
    with open(os.path.join(folder, name), "wb") as f:
        f.write(data if isinstance(data, bytes) else data.encode())


def drop_stale():
    """Returns the files that an earlier version of this program wrote."""
    for folder in {os.path.dirname(path) for path in WRITTEN}:
        for path in set(glob.glob(os.path.join(folder, "*"))) - WRITTEN:
            if not os.path.basename(path).startswith("found-"):
                os.unlink(path)


# ---- grammars ----

def make_grammar():
    obj = {"type": "object", "properties": {"a": {"type": "integer", "minimum": -3, "maximum": 120}, "b": {"enum": ["x", "xy", None]}},
           "required": ["a"], "additionalProperties": False}
    sources = {
        "object": ("s", obj, '{"a":12,"b":"xy"}'),
        "free": ("s", {}, '[{"a":"\\u00e9\u2603"},-1.5e3,null]'),
        "extra": ("s", {"properties": {"ab": {"type": "null"}}, "additionalProperties": {"type": "boolean"}}, '{"ab":null,"ac":true}'),
        "patterns": ("s", {"type": "object", "patternProperties": {"^x": {"const": 1}}, "additionalProperties": {"const": 2}}, '{"xa":1,"a":2}'),
        "recursive": ("s", {"$ref": "#/$defs/t", "$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}}}}, "[[],[[]]]"),
        "loop": ("s", {"anyOf": [{"$ref": "#"}, {"type": "null"}]}, "null"),
        "string": ("s", {"type": "string", "minLength": 2, "maxLength": 70, "pattern": "^a.*b$"}, '"a\u2603b"'),
        "format": ("s", {"type": "string", "format": "date-time"}, '"2024-01-31T10:00:00Z"'),
        "number": ("s", {"type": "number", "minimum": -1.5, "exclusiveMaximum": 2.25}, "2.249"),
        "multiple": ("s", {"type": "integer", "multipleOf": 7, "minimum": 1}, "14"),
        "all": ("s", {"allOf": [{"required": ["a"]}, {"properties": {"a": {"type": "string"}}}], "type": "object"}, '{"a":""}'),
        "one": ("s", {"oneOf": [{"type": "null"}, {"type": "array", "maxItems": 2, "minItems": 1}]}, "[1, 2]"),
        "counts": ("s", {"type": "object", "minProperties": 1, "maxProperties": 2, "properties": {"a": {}, "b": {}, "c": {}}}, '{"a":1,"z":2}'),
        "choice": ("s", ["ab", "abc", "b"], "abc"),
        "regex": ("r", "(foo|ba[rz])+[^x]{2,3}\\d?$", "foobar12"),
        "repeats": ("r", "((ab?){2,70}c){65,}", "abac"),
        "gbnf": ("g", 'root ::= t "+" root | t "-" root | t\nt ::= [0-9]+ | "(" root ")" # c\n', "1+(2-3)"),
        "ambiguous": ("g", 'root ::= "a" root "b" | "a" root "c" | ""', "aaabcb"),
        "left": ("g", 'root ::= root "a" | "b"', "baa"),
    }
    for name, (kind, source, answer) in sources.items():
        write("grammar", name, kind + (source if isinstance(source, str) else json.dumps(source)) + "\0" + answer)


# ---- JSON ----

def make_json():
    texts = {
        "all-kinds": '{"a":[1,-2.5e3,12345678901234567890,0,-0],"b":{"c":null,"d":true,"e":false},"f":"\\u00e9\\ud83d\\ude00\\n\u20ac"}',
        "edges": "[9007199254740991,9007199254740993,1e308,1e999,4.9e-324,%s]" % ("1" * 63),
        "whole-floats": '[1.0,-0.0,1e5,{"a\\"1.0":1E+2,"b":[12345678901234567890,4503599627370497.25]},"2.0",3,1.5e300]',
        "same-key": '{"a":1,"\\u0061":2}',
        "deep": "[" * 64 + "]" * 64,
        "deepest": "[" * 64 + "true" + "]" * 64,
        "spaces": " \t\r\n[ 1 , 2 ]\n",
        "ids": json.dumps(list(range(200))),
        "long-number": "1" * 64,
        "nul": '{"a":["\\u0000",{"b":"x\\u0000\\\\u0000"}]}',
        "escapes": '"\\"\\\\\\/\\b\\f\\n\\r\\t\\u001f"',
    }
    for name, text in texts.items():
        write("json", name, text)


def make_options():
    write("options", "sample", "# comment\n; other\nmodel = /m.gguf\nlisten=unix:/run/t\nstep-tokens = 256\n\nlog_level = debug\r\n")
    write("options", "section", "[server]\nworkers = 1\n")
    write("options", "twice", "workers = 1\nworkers = 2\n")
    write("options", "range", "page_tokens = 48\n")
    write("options", "no-newline", "backend = cpu")
    write("options", "nul", b"model = a\0b\n")
    write("options", "cuda", "backend = cuda\nload_format = dummy\ncache_dir =\n")
    write("options", "bom", b"\xef\xbb\xbfconnections_per_ip = 65536\n")
    write("options", "long", b"model = " + b"m" * 4200 + b"\n")


# ---- model files ----

def gguf_string(s):
    b = s if isinstance(s, bytes) else s.encode()
    return struct.pack("<Q", len(b)) + b


U32, F32, BOOL, STRING, ARRAY, U64, I32 = 4, 6, 7, 8, 9, 10, 5


def gguf_value(kind, v):
    if kind == STRING:
        return gguf_string(v)
    if kind == ARRAY:
        sub, items = v
        return struct.pack("<IQ", sub, len(items)) + b"".join(gguf_value(sub, i) for i in items)
    return struct.pack({U32: "<I", F32: "<f", BOOL: "<?", U64: "<Q", I32: "<i"}[kind], v)


def gguf(keys, tensors, version=3, align=32):
    out = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys))
    for k, kind, v in keys:
        out += gguf_string(k) + struct.pack("<I", kind) + gguf_value(kind, v)
    offset, data = 0, b""
    for name, dims, ggml_type, nbytes in tensors:
        out += gguf_string(name) + struct.pack("<I", len(dims)) + b"".join(struct.pack("<Q", d) for d in dims)
        out += struct.pack("<IQ", ggml_type, offset)
        padded = (nbytes + align - 1) // align * align
        offset += padded
        data += b"\0" * padded
    out += b"\0" * (-len(out) % align)
    return out + data


def llama_keys(tokenizer, arch="llama", pre="gpt-2"):
    a = arch + "."
    keys = [("general.architecture", STRING, arch), (a + "block_count", U32, 1), (a + "context_length", U32, 64),
            (a + "embedding_length", U32, 8), (a + "feed_forward_length", U32, 16), (a + "attention.head_count", U32, 2),
            (a + "attention.head_count_kv", U32, 1), (a + "attention.layer_norm_rms_epsilon", F32, 1e-5),
            (a + "rope.freq_base", F32, 10000.0), (a + "rope.dimension_count", U32, 4)]
    if tokenizer:
        vocab, merges = tokenizer
        keys += [("tokenizer.ggml.model", STRING, "gpt2"), ("tokenizer.ggml.pre", STRING, pre),
                 ("tokenizer.ggml.tokens", ARRAY, (STRING, vocab)),
                 ("tokenizer.ggml.token_type", ARRAY, (I32, [3 if t.startswith("<") and len(t) > 1 else 1 for t in vocab])),
                 ("tokenizer.ggml.merges", ARRAY, (STRING, merges)),
                 ("tokenizer.ggml.bos_token_id", U32, 0), ("tokenizer.ggml.eos_token_id", U32, 1),
                 ("tokenizer.ggml.add_bos_token", BOOL, True),
                 ("tokenizer.chat_template", STRING, "{% for m in messages %}{{ m.content }}{% endfor %}")]
    return keys


def llama_tensors(vocab):
    f32 = lambda name, *dims: (name, list(dims), 0, 4 * int(__import__("math").prod(dims)))
    t = [f32("token_embd.weight", 8, vocab), f32("output_norm.weight", 8)]
    for name, dims in {"attn_norm": (8,), "attn_q": (8, 8), "attn_k": (8, 4), "attn_v": (8, 4), "attn_output": (8, 8), "ffn_norm": (8,),
                       "ffn_gate": (8, 16), "ffn_up": (8, 16), "ffn_down": (16, 8)}.items():
        t.append(f32("blk.0.%s.weight" % name, *dims))
    return t


def make_gguf():
    tok = (["<s>", "</s>", "a", "b", "ab", "\u0120", "\u0120a", "\u010a", "1", "2"], ["a b", "\u0120 a"])
    whole = gguf(llama_keys(tok), llama_tensors(10))
    write("gguf", "llama", whole)
    write("gguf", "cut", whole[: len(whole) // 2])
    write("gguf", "qwen3", gguf(llama_keys(tok, "qwen3", "qwen2"), llama_tensors(10)))
    spm = ["<unk>", "<s>", "</s>", *("<0x%02X>" % b for b in range(256)), "\u2581", "a", "b", "ab", "\u2581a"]
    keys = [k for k in llama_keys(tok) if not k[0].startswith("tokenizer.ggml.")] + [
        ("tokenizer.ggml.model", STRING, "llama"), ("tokenizer.ggml.tokens", ARRAY, (STRING, spm)),
        ("tokenizer.ggml.scores", ARRAY, (F32, [float(-i) for i in range(len(spm))])),
        ("tokenizer.ggml.token_type", ARRAY, (I32, [2, 3, 3] + [6] * 256 + [1] * 5)),
        ("tokenizer.ggml.bos_token_id", U32, 1), ("tokenizer.ggml.eos_token_id", U32, 2)]
    write("gguf", "sentencepiece", gguf(keys, llama_tensors(len(spm))))
    write("gguf", "empty", gguf([], []))
    write("gguf", "version2", gguf([("general.architecture", STRING, "llama")], [("t", [32], 2, 18)], version=2))
    write("gguf", "quantised", gguf([("k", ARRAY, (U64, [1, 2]))], [("q", [64, 2], 8, 136), ("h", [3], 1, 6), ("b", [256], 12, 144)]))
    write("gguf", "nested", gguf([("k", ARRAY, (ARRAY, [(U32, [1]), (U32, [])]))], []))
    lie = bytearray(gguf([("k", STRING, "v")], []))
    lie[8:16] = struct.pack("<Q", 2**63)
    write("gguf", "many-tensors", bytes(lie))
    lie = bytearray(gguf([("k", ARRAY, (STRING, ["v"]))], []))
    at = lie.index(b"k") + 1 + 4 + 4
    lie[at:at + 8] = struct.pack("<Q", 2**61)
    write("gguf", "long-array", bytes(lie))


def safetensors_header(entries):
    header, at = {}, 0
    for name, dtype, shape, size in entries:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    return header, at


def safetensors_text(header):
    """Returns the header as text, padded with spaces as other writers do, so that the data behind it are aligned."""
    text = json.dumps(header, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % 8)


def make_safetensors():
    header, n = safetensors_header([("model.embed_tokens.weight", "F32", [4, 8], 128), ("model.norm.weight", "BF16", [8], 16),
                                    ("x", "F16", [2, 2], 8), ("y", "F32", [26], 104)])
    header["__metadata__"] = {"format": "pt"}
    text = safetensors_text(header)
    write("safetensors", "header", bytes([6]) + text)  # 384 bytes of data: more than the tensors have
    write("safetensors", "header-256", bytes([n // 64]) + text)
    whole = struct.pack("<Q", len(text)) + text + b"\1" * n
    write("safetensors", "file", bytes([1]) + whole)
    write("safetensors", "cut", bytes([1]) + whole[:-1])
    write("safetensors", "length", bytes([1]) + struct.pack("<Q", 2**63) + text)
    exact, m = safetensors_header([("a", "F32", [4, 8], 128), ("b", "BF16", [0], 0)])
    write("safetensors", "exact", bytes([2]) + safetensors_text(exact))
    write("safetensors", "dtype", bytes([2]) + safetensors_text(safetensors_header([("i", "I64", [16], 128)])[0]))
    for name, change in {"gap": [4, 132], "reverse": [128, 0], "huge": [0, 2**64 - 1], "fraction": [0, 128.5], "negative": [-1, 127]}.items():
        bad = json.loads(json.dumps(exact))
        bad["a"]["data_offsets"] = change
        write("safetensors", name, bytes([2]) + safetensors_text(bad))
    write("safetensors", "overflow", bytes([2]) + b'{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,128]}}')
    write("safetensors", "dims", bytes([0]) + b'{"a":{"dtype":"F32","shape":[1,1,1,1,1,1,1],"data_offsets":[0,4]}}')


def make_model_config():
    base = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1,
            "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 32, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
            "tie_word_embeddings": True, "hidden_act": "silu", "rope_theta": 10000.0, "bos_token_id": 1, "eos_token_id": [2, 3]}
    scaling = {"linear": {"rope_type": "linear", "factor": 2.0},
               "llama3": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32},
               "yarn": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 32, "beta_slow": 1}}
    generation = json.dumps({"eos_token_id": 2, "temperature": 0.7, "top_p": 0.9, "top_k": 20})
    write("model_config", "llama", json.dumps(base) + "\0" + generation)
    for name, s in scaling.items():
        write("model_config", name, json.dumps({**base, "rope_scaling": s}))
    write("model_config", "mistral", json.dumps({**base, "model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 16, "head_dim": 4}))
    write("model_config", "qwen2", json.dumps({**base, "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True,
                                                 "sliding_window": 16, "max_window_layers": 1, "layer_types": ["full_attention"]}))
    write("model_config", "qwen3", json.dumps({**base, "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "head_dim": 128, "attention_bias": False}))
    write("model_config", "index", json.dumps(base) + "\0{}\0" + json.dumps({"metadata": {"total_size": 1024}, "weight_map": {
        "model.embed_tokens.weight": "model.safetensors"}}))
    write("model_config", "index-elsewhere", json.dumps(base) + "\0\0" + json.dumps({"weight_map": {"a": "../x.safetensors", "b": "/etc/passwd"}}))


def make_linears():
    """Mode 1: entries only; the target adds head and checksum."""
    def entry(n_out, n_in, f32, bias, bucket, us, words="1 2 3 4 5 6 7 ffffffffffffffff"):
        return "%s %s %d %d %s %s %s\n" % (n_out, n_in, f32, bias, bucket, us, words)
    one = entry(6144, 4096, 0, 0, 16, "12.345")
    write("linears", "entries", "\1" + one + entry(6144, 4096, 0, 1, 16, "2.000") + entry(128256, 4096, 1, 0, 2048, "2000000000.999"))
    write("linears", "same-twice", "\1" + one + entry(6144, 4096, 0, 0, 16, "1000000000.000", "0 0 0 0 0 0 0 0"))
    write("linears", "none", "\1")
    write("linears", "many", "\1" + "".join(entry(8 * i, 8, 0, 0, 8, "0.001", "0 0 0 0 0 0 0 a") for i in range(1, 41)))
    bad = {"no-bucket": entry(64, 64, 0, 0, 17, "1.000"), "largest": entry(4294967295, 4294967295, 0, 0, 4294966272, "0.000"),
           "too-large": entry(4294967296, 64, 0, 0, 16, "1.000"), "flag": entry(64, 64, 2, 0, 16, "1.000"),
           "word": entry(64, 64, 0, 0, 16, "1.000", "1 2 3 4 5 6 7 10000000000000000"), "fraction": entry(64, 64, 0, 0, 16, "1"),
           "sign": entry(-1, 64, 0, 0, 16, "1.000"), "nul": one.replace(" ", "\0", 1), "cut-entry": one[:-2]}
    for name, text in bad.items():
        write("linears", name, "\1" + one + text)
    head = "tandem-linears 1\nSome GPU (80 GB) cc9.0\n"
    write("linears", "whole", "\0" + head + one + "xxh3 fc23063176e73388\n")
    write("linears", "whole-wrong-sum", "\0" + head + one + "xxh3 0123456789abcdef\n")
    write("linears", "whole-no-sum", "\0" + head + one)
    write("linears", "whole-short", "\0" + head + "xxh3 0\n")
    write("linears", "other-device", "\0" + head.replace("80", "40") + one)
    write("linears", "other-version", "\0" + head.replace("1", "2", 1) + one)
    write("linears", "binary", b"\0" + bytes(range(256)))


def make_steps():
    """Modes 1 and 3: points, coefficients and learned factors; the target adds head (3: of the previous version) and checksum."""
    names = ("logits_us_per_row", "decode_us_per_row", "decode_us_per_kv_token", "prefill_us_per_chunk", "prefill_us_per_pair", "prefill_us_per_kv_token",
             "prefill_us_per_thin_token", "hybrid_us", "hybrid_us_per_decode_row")
    rest = "".join("%s %s\n" % (n, v) for n, v in zip(names, ("0.5", "2", "0.030481860465116279", "7.25e1", "9.3622857142857142e-04", "0", "0.39", "400", "13.25")))
    points = "tokens 1 us 4099\ntokens 64 us 4973.5\ntokens 16384 us 374800\n"
    write("steps", "plain", "\1" + points + rest)
    write("steps", "most", "\1" + "".join("tokens %d us %d\n" % (i * i, 100 + i) for i in range(1, 97)) + rest)
    write("steps", "largest", "\1tokens 16777216 us 1e12\n" + rest.replace(" 2\n", " 1e9\n"))
    bad = {"falls": points.replace("4973.5", "4"), "same": points.replace("64", "1"), "none": "", "nan": points.replace("4099", "nan"), "hex": points.replace("4099", "0x10"),
           "inf": points.replace("4099", "1e400"), "minus": points.replace("4099", "-1"), "long": points.replace("4099", "1" * 40), "nul": points.replace("4099", "40\0"),
           "zero": points.replace("4099", "0"), "too-many": "".join("tokens %d us %d\n" % (i, i) for i in range(1, 120))}
    for name, text in bad.items():
        write("steps", name, "\1" + text + rest)
    write("steps", "no-coefficients", "\1" + points)
    write("steps", "more", "\1" + points + rest + "more 1\n")
    learned = "learned_without_prompts 1.0123\nlearned_with_prompts 0.97\n"
    write("steps", "learned", "\1" + points + rest + learned)
    write("steps", "kv-beside-chunks", "\1" + points + rest + "hybrid_us_per_kv_token 0.043\n" + learned)
    write("steps", "beside", "\1" + points + rest + "hybrid_us_per_kv_token 0.043\nhybrid_beside 0.36\n" + learned)
    write("steps", "beside-all", "\1" + points + rest + "hybrid_beside 0.91\n")
    write("steps", "kv-behind-learned", "\1" + points + rest + learned + "hybrid_us_per_kv_token 0.043\n")
    write("steps", "learned-one", "\1" + points + rest + "learned_with_prompts 2\n")
    write("steps", "learned-absurd", "\1" + points + rest + learned.replace("0.97", "2.5"))
    write("steps", "learned-nothing", "\1" + points + rest + learned.replace("0.97", "0"))
    write("steps", "learned-twice", "\1" + points + rest + learned + learned)
    write("steps", "before", "\3" + points + rest)
    write("steps", "before-learned", "\3" + points + rest + learned)
    write("steps", "whole-wrong-sum", "\0tandem-steps 4\nSome GPU\n" + points + rest + "xxh3 0123456789abcdef\n")
    write("steps", "whole-before", "\0tandem-steps 2\nSome GPU\n" + points + rest + "xxh3 0123456789abcdef\n")
    write("steps", "other-version", "\0tandem-steps 1\nSome GPU\n" + points + rest)
    write("steps", "binary", b"\0" + bytes(range(256)))


# ---- tokenizers ----

def byte_alphabet():
    keep = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    chars, n = {b: chr(b) for b in keep}, 0
    for b in range(256):
        if b not in chars:
            chars[b] = chr(256 + n)
            n += 1
    return chars


TEXT = ("the cat sat on the mat and the dog ran to the man who said it's not 12345 but 678 or 90 and they'll see we're here I'm "
        "caf\u00e9 na\u00efve \u00fcber stra\u00dfe \u20ac \U0001f600 \u4f60\u597d \u4e16\u754c hello world Hello WORLD function return if else for while\n\n    x = y + 1;\r\n\t")


def train(n_merges):
    """Byte-level BPE over TEXT: the most frequent pair first, ties by text. Words begin at a space."""
    chars = byte_alphabet()
    words = {}
    for w in TEXT.replace(" ", "\0 ").split("\0"):
        key = tuple(chars[b] for b in w.encode())
        words[key] = words.get(key, 0) + 1
    vocab = [chars[b] for b in range(256)]
    merges = []
    while len(merges) < n_merges:
        pairs = {}
        for w, n in words.items():
            for p in zip(w, w[1:]):
                pairs[p] = pairs.get(p, 0) + n
        if not pairs:
            break
        best = max(pairs, key=lambda p: (pairs[p], p))
        merges.append(best)
        vocab.append(best[0] + best[1])
        merged = {}
        for w, n in words.items():
            out, i = [], 0
            while i < len(w):
                if w[i:i + 2] == best:
                    out.append(w[i] + w[i + 1])
                    i += 2
                else:
                    out.append(w[i])
                    i += 1
            merged[tuple(out)] = merged.get(tuple(out), 0) + n
        words = merged
    return vocab, merges


LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def tokenizer_json(family, vocab, merges, pairs=False):
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    split = lambda regex: {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
    pre = {"gpt2": {**level, "use_regex": True},
           "llama3": {"type": "Sequence", "pretokenizers": [split(LLAMA3), level]},
           "qwen2": {"type": "Sequence", "pretokenizers": [split(QWEN2), level]},
           "smollm": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, {**level, "use_regex": True}]}}[family]
    n = len(vocab)
    token = lambda i, text, special: {"id": n + i, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
                                      "normalized": False, "special": special}
    return {"version": "1.0", "truncation": None, "padding": None,
            "added_tokens": [token(0, "<s>", True), token(1, "<|im_start|>", True), token(2, "<|im_end|>", True), token(3, "<think>", False)],
            "normalizer": {"type": "NFC"} if family == "qwen2" else None, "pre_tokenizer": pre, "post_processor": None,
            "decoder": {"type": "ByteLevel"},
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": "",
                      "fuse_unk": False, "byte_fallback": False, "ignore_merges": family == "llama3", "vocab": {t: i for i, t in enumerate(vocab)},
                      "merges": [list(m) if pairs else "%s %s" % m for m in merges]}}


def make_tokenizers():
    vocab, merges = train(200)
    os.makedirs(os.path.join(HERE, "tokenizers"), exist_ok=True)
    for family in ("gpt2", "llama3", "qwen2", "smollm"):
        with open(os.path.join(HERE, "tokenizers", family + ".json"), "w", encoding="ascii") as f:
            json.dump(tokenizer_json(family, vocab, merges, family == "llama3"), f, separators=(",", ":"))
            f.write("\n")
    few = ["a", "b", "c", "ab", "\u0120", "\u0120a", "1", "2", "\u00c3", "\u00a9", "'s"]
    few_merges = [("a", "b"), ("\u0120", "a"), ("'", "s")][:2]
    for family in ("gpt2", "llama3", "qwen2", "smollm"):
        write("tokenizer", family, json.dumps(tokenizer_json(family, few, few_merges, family == "qwen2"), ensure_ascii=False))
    t = tokenizer_json("gpt2", few, few_merges)
    t["post_processor"] = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                           "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [len(few)], "tokens": ["<s>"]}}}
    write("tokenizer", "template-bos", json.dumps(t) + "\0" + json.dumps({"bos_token": "<s>", "eos_token": {"content": "<|im_end|>"}, "add_bos_token": True}))
    t = tokenizer_json("gpt2", few, few_merges)
    t["model"]["vocab"]["big"] = 1048575
    t["added_tokens"][0].update(lstrip=True, rstrip=True, single_word=True, normalized=True)
    write("tokenizer", "hole-and-strip", json.dumps(t))
    t["model"]["merges"].append("no such")
    write("tokenizer", "bad-merge", json.dumps(t))
    t = tokenizer_json("gpt2", few, few_merges)
    regex = lambda text: {"type": "Split", "pattern": {"Regex": text}, "behavior": "Isolated", "invert": False}
    t["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [
        {"type": "Punctuation", "behavior": "Contiguous"}, regex(r"\d{1,3}(?=(?:\d{3})*\b)"), regex("[a-c\u0800-\u4e00\u4e00-\u9fa5]+(?!a{2}b)|\\s+$"),
        regex(r"\s+$"), t["pre_tokenizer"], {"type": "Digits", "individual_digits": False}, regex("[0-9][0-9][0-9]")]}
    write("tokenizer", "expressions", json.dumps(t, ensure_ascii=False))
    t = tokenizer_json("gpt2", few, few_merges)
    pieces = [["<unk>", 0], ["\u2581", -3], ["a", -1], ["b", -1], ["ab", -2], ["\u2581a", -2.5], ["\u00e9", -4]]
    t["added_tokens"] = [{**t["added_tokens"][0], "id": 0, "content": "<unk>"}]
    t["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    t["pre_tokenizer"] = None
    steps = [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]
    t["decoder"] = {"type": "Sequence", "decoders": steps}
    t["model"] = {"type": "Unigram", "unk_id": 0, "vocab": pieces, "byte_fallback": False}
    write("tokenizer", "unigram", json.dumps(t, ensure_ascii=False))
    t["model"].update(byte_fallback=True, vocab=pieces + [["<0x%02X>" % b, 0] for b in range(256)])
    write("tokenizer", "unigram-bytes", json.dumps(t, ensure_ascii=False))


def make_tokenize():
    texts = {"plain": b"the cat said it's 12345", "spaces": b"  a   b \n\n\t c\r\n  ", "special": b"<s><|im_start|>user\nhi<|im_end|><think>",
             "partial": b"<|im_sta<|im_start|", "utf8": "caf\u00e9 e\u0301 \U0001f600\U0001f468\u200d\U0001f469 \u4f60\u597d\u4e16\u754c \u0627\u0644".encode(),
             "bytes": bytes(range(256)), "long": b"ab" * 300 + b" " * 50, "digits": "1234567890 \u0661\u0662\u0663\u00b2".encode(),
             "contractions": b"I'M we'Re THEY'LL don'T 's'd''ve", "sentencepiece": b" [U] a  [V]b[INST]", "sentencepiece-model": b"[U]  \xe2\x96\x81[V] a",
             "unigram": b"aaaa <0x41> ---- \xf0\x9f\xa6\x80", "unigram-model": b"[U]xyzzy  e \xe4\xbd\xa0"}
    family = {"sentencepiece": 4, "sentencepiece-model": 5, "unigram": 6, "unigram-model": 7}
    for i, (name, text) in enumerate(texts.items()):
        write("tokenize", name, bytes([family.get(name, i % 4), len(text) // 2 & 0xFF]) + text)


# ---- templates ----

def make_template():
    chatml = ("{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nHi<|im_end|>\n' }}"
              "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
              "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
    texts = {
        "chatml": chatml,
        "llama2": "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content | trim }} [/INST]{% else %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}",
        "raise": "{{ raise_exception('no ' ~ messages|length) }}",
        "macro": "{%- macro f(x, y=2) -%}{{ x }}{{ y }}{%- endmacro -%}{{ f(1) }}{{ f(1, y='b') }}",
        "namespace": "{% set ns = namespace(i=0) %}{% for x in list if x %}{% set ns.i = ns.i + loop.index0 %}{{ loop.last }}{% else %}none{% endfor %}{{ ns.i }}",
        "filters": "{{ list|length }}{{ ' a b '|trim|upper }}{{ [3,1]|sort|join(',') }}{{ messages|map(attribute='role')|list }}{{ messages[0]|tojson(indent=2) }}",
        "tests": "{% if x is defined and x is not none and n is odd and messages is iterable and 'a' in 'abc' %}{{ x }}{% endif %}",
        "slices": "{{ list[1:-1] }}{{ 'abcdef'[::-1] }}{{ messages[1:][0].content.split(' ')[0] }}{{ 'a-b'.replace('-', '+').strip() }}",
        "maths": "{{ 1 + 2 * 3 // 2 % 4 - 7 / 2 ** 2 }}{{ -x }}{{ big + 1 }}{{ 9223372036854775807 + 1 }}{{ not (1 < 2 <= 3) }}",
        "loopcontrols": "{% for i in range(10) %}{% if i == 3 %}{% continue %}{% endif %}{% if i > 5 %}{% break %}{% endif %}{{ i }}{% endfor %}",
        "format": "{{ '%s-%d' | format('a', 3) }}{{ strftime_now('%Y') }}{# comment #}{% raw %}{{ no }}{% endraw %}",
        "long-range": "{% for i in range(999999999) %}{{ i }}{% endfor %}",
        "deep": "{{ " + "(" * 150 + "1" + ")" * 150 + " }}",
        "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "grow": "{% set ns = namespace(s='ab') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}",
        "call": "{% macro w() %}<{{ caller() }}>{% endmacro %}{% call w() %}x{% endcall %}{% filter upper %}abc{% endfilter %}",
        "items": "{% for k, v in {'a': 1, 'b': [2, {'c': None}]}.items() %}{{ k }}={{ v }}{% endfor %}{{ dict(a=1)|dictsort }}",
        "conditional": "{{ 'a' if n > 1 else 'b' }}{{ (messages|selectattr('role', 'equalto', 'user')|first).content }}{{ missing.deeper }}",
        "unterminated": "{% for x in list %}{{ x",
        "whitespace": "a  \n {%- if true -%} \n b {%+ endif %}  \n{{- 'c' -}} \n d",
    }
    for name, text in texts.items():
        write("template", name, text)
    write("template", "numbers", "{{ x }}{{ x|tojson }}{{ x|string|length }}{{ x is float }}{{ {x: x}|tojson }}" + "\0" + '{"x":[1.0,-0.0,1e16,1E-5,1.5e300,1e999,123456789012345678901.0]}')
    write("template", "own-input", chatml + "\0" + json.dumps({"messages": [{"role": "user", "content": "x\u2603"}], "tools": [{"type": "function"}], "enable_thinking": False}))


# ---- server ----

def make_http():
    get = b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n"
    post = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a:8080\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
    chunked = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nab\r\n3\r\ncde\r\n0\r\nTrailer: x\r\n\r\n"
    texts = {"get": get, "post": post, "chunked": chunked, "pipelined": get + post + chunked + get, "http10": b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" + get,
             "expect": post.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n"), "absolute": get.replace(b"/v1", b"http://a/v1"),
             "options": b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", "te-cl": chunked.replace(b"Host", b"Content-Length: 2\r\nHost"),
             "two-lengths": post.replace(b"Content-Length", b"Content-Length: 2\r\nContent-Length"), "fold": get.replace(b"\r\n\r\n", b"\r\nX: a\r\n b\r\n\r\n"),
             "bare-lf": get.replace(b"\r\n", b"\n"), "no-host": b"GET / HTTP/1.1\r\n\r\n", "huge-length": post.replace(b": 2", b": 9223372036854775807"),
             "huge-chunk": chunked.replace(b"\r\n2;", b"\r\nffffffffffffffff;"), "trailer-length": chunked.replace(b"Trailer: x", b"Content-Length: 5"),
             "large-body": post.replace(b": 2", b": 301") + b"x" * 299, "close": get.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") + get,
             "upgrade": get.replace(b"\r\n\r\n", b"\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"), "preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"}
    for i, (name, data) in enumerate(texts.items()):
        write("http", name, bytes([i]) + data)


def make_request():
    chat = {"model": "m", "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                                      {"role": "assistant", "content": None, "tool_calls": []}, {"role": "developer", "content": "d", "name": "n"}],
            "max_completion_tokens": 5, "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.1, "seed": -1, "n": 2, "stop": ["a", "bc"], "stream": True,
            "stream_options": {"include_usage": True}, "stop_token_ids": [1, 2], "logprobs": False, "response_format": {"type": "text"}, "tools": [],
            "chat_template_kwargs": {"enable_thinking": False}, "user": "u", "logit_bias": {}, "presence_penalty": 0}
    completion = {"model": "m", "prompt": ["a", "b"], "max_tokens": 1, "echo": False, "best_of": 1, "seed": 18446744073709551615, "ignore_eos": True}
    write("request", "chat", b"\1" + json.dumps(chat).encode())
    write("request", "completion", b"\0" + json.dumps(completion).encode())
    write("request", "ids", b"\0" + json.dumps({"prompt": [[1, 2], [3]], "stop": "x", "stream": False}).encode())
    write("request", "tokenize", b"\2" + json.dumps({"prompt": "a", "add_special_tokens": False, "return_token_strs": True}).encode())
    write("request", "detokenize", b"\3" + json.dumps({"tokens": [1, 2, 3]}).encode())
    write("request", "unknown", b"\1" + json.dumps({"messages": [{"role": "user", "content": "a", "x": 1}], "no_such": 1}).encode())
    write("request", "bounds", b"\1" + json.dumps({"messages": [{"role": "user", "content": ""}], "temperature": 2.0001, "top_p": 0, "n": 65}).encode())
    write("request", "echo", b"\0" + json.dumps({"prompt": "a", "max_tokens": 0, "echo": True, "logprobs": 1}).encode())
    write("request", "nulls", b"\1" + json.dumps({k: None for k in chat}).encode())
    write("request", "not-json", b"\1{")


def make_translate():
    tool = {"name": "f", "description": "d", "input_schema": {"type": "object"}, "strict": True}
    messages = {"model": "m", "max_tokens": 5, "system": [{"type": "text", "text": "x-anthropic-billing-header: a\nBe brief."}],
                "messages": [{"role": "user", "content": "a"},
                             {"role": "assistant", "content": [{"type": "thinking", "thinking": "t"}, {"type": "text", "text": "b"},
                                                               {"type": "tool_use", "id": "1", "name": "f", "input": {"a": [1.0, None]}}]},
                             {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "r"}]},
                                                          {"type": "text", "text": "and?"}]}],
                "tools": [tool], "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True}, "stop_sequences": ["x"],
                "thinking": {"type": "enabled", "budget_tokens": 9}, "chat_template_kwargs": {"a": 1}, "temperature": 0.5, "top_k": 3,
                "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}}, "stream": True}
    function = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False}
    responses = {"model": "m", "instructions": "i", "max_output_tokens": 5, "tools": [function, {"type": "web_search"}],
                 "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
                 "input": [{"role": "developer", "content": "a"}, {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "t"}]},
                           {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}, {"type": "refusal", "refusal": "n"}]},
                           {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{\"a\": 1}"},
                           {"type": "function_call_output", "call_id": "1", "output": "r"}, {"role": "user", "content": [{"type": "input_text", "text": "c"}]}],
                 "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}, "verbosity": "low"},
                 "reasoning": {"effort": "low", "summary": "auto"}, "include": ["reasoning.encrypted_content", "message.output_text.logprobs"],
                 "seed": 1, "stop": ["x"], "logit_bias": {"5": 1}, "structured_outputs": {"choice": ["a"]}, "stream": False}
    for name, body in (("messages", messages), ("responses", responses)):
        for flags in range(4):
            write("translate", f"{name}-{flags}", bytes([flags]) + json.dumps(body).encode())
        write("translate", f"{name}-nulls", b"\0" + json.dumps({k: None for k in body}).encode())
        for key, wrong in (("tools", 5), ("tool_choice", {"type": "x"}), ("text", 5), ("output_config", []), ("system", [5]), ("thinking", "x"), ("input", [[]]),
                           ("messages", [{"role": "user", "content": [{"type": "image"}]}]), ("max_output_tokens", "x"), ("stop_sequences", 5)):
            if key in body:
                write("translate", f"{name}-{key}", b"\1" + json.dumps({**body, key: wrong}).encode())
    write("translate", "text", b"\2" + json.dumps({"input": "a", "model": "m"}).encode())
    write("translate", "system", b"\2" + json.dumps({"max_tokens": 1, "system": "x-anthropic-billing-header: a", "messages": [{"role": "user", "content": []}]}).encode())


def make_sentencepiece():
    """tokenizer.model: SentencePiece's messages, whole, cut, and with settings that are refused."""
    def field(number, value):
        if isinstance(value, float):
            return bytes([number << 3 | 5]) + struct.pack("<f", value)
        if isinstance(value, int):
            return varint(number << 3) + varint(value)
        return varint(number << 3 | 2) + varint(len(value)) + value

    def varint(n):
        return bytes([n]) if n < 128 else bytes([n & 127 | 128]) + varint(n >> 7)

    def piece(text, score, kind=1):
        return field(1, field(1, text.encode()) + field(2, float(score)) + field(3, kind))

    pieces = [("<unk>", 0, 2), ("<s>", 0, 3), ("</s>", 0, 3), ("[U]", 0, 4)] + [("<0x%02X>" % b, 0, 6) for b in range(256)]
    words = ["\u2581", "a", "b", "c", "\u2581a", "ab", "\u2581ab", "bc", "\u2581\u2581", "\u00e9", "\u4f60"]
    pieces += [(w, -i, 1) for i, w in enumerate(words)]
    body = b"".join(piece(*p) for p in pieces)
    bpe, plain = field(2, field(3, 2) + field(35, 1)), field(3, field(1, b"identity") + field(4, 0))
    write("sentencepiece", "llama", body + bpe + plain)
    write("sentencepiece", "squeezing", body + bpe + field(3, field(3, 0) + field(4, 1)))
    write("sentencepiece", "no-bytes", b"".join(piece(*p) for p in pieces if p[2] != 6) + bpe + plain)
    write("sentencepiece", "unigram", body + field(2, field(3, 1)) + plain)
    low = [(t, 0 if k != 1 else -60000 + score, k) for t, score, k in pieces]  # sums begin anew after two pieces
    write("sentencepiece", "unigram-low", b"".join(piece(*p) for p in low) + field(2, field(3, 1)) + plain)
    write("sentencepiece", "charsmap", body + bpe + field(3, field(2, b"xyz")))
    write("sentencepiece", "cut", (body + bpe)[:-3])
    write("sentencepiece", "huge-length", b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01a")
    write("sentencepiece", "nan-scores", b"".join(piece(t, float("nan"), k) for t, _, k in pieces) + bpe + plain)
    write("sentencepiece", "unknown-fields", field(9, 5) + body + bytes([7 << 3 | 1]) + bytes(8) + bpe + plain)


def make_answers():
    thinks, special, few = 32, 64, 16
    calls = [b'Hi <tool_call>\n{"name": "f", "arguments": {"a": "</tool_call>", "b": 1}}\n</tool_call>\n<tool_call>{"name":"g"}',
             b'{"name": "f", "parameters": {"a": [1, -2.5e3, null]}}; {"parameters": {}, "name": "f"}',
             b"[f(a='it\\'s', b=[True, {'k': .5}]), f()]",
             b'[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]f[CALL_ID]abc[ARGS]{}',
             b"<tool_call>\n<function=f>\n<parameter=a>\n</parameter>x\n</parameter>\n<parameter=b>\nNone\n</parameter>\n</function>"]
    for i, text in enumerate(calls):
        write("answers", f"call-{i}", bytes([i, 2]) + text)
        write("answers", f"thinks-{i}", bytes([i | thinks, 1]) + b"<think>\nso\n</think>\n\n" + text)
        write("answers", f"broken-{i}", bytes([i, 3]) + text[:-9])
    write("answers", "list", bytes([3 | few, 0]) + b'[TOOL_CALLS] [{"name": "f", "arguments": {}}, {"name": "f", "arguments": {"a": 1}}]')
    write("answers", "special", bytes([3 | special, 4]) + b'\xff[TOOL_CALLS]f\xff[ARGS]{"a": "[TOOL_CALLS]"}\xff[ARGS]')


def make_stop():
    def case(stops, text, step=1):
        return bytes([len(stops) - 1, step]) + b"".join(bytes([len(s) - 1]) + s for s in stops) + text
    write("stop", "plain", case([b"stop", b"\n\n"], b"go on and stop here"))
    write("stop", "overlap", case([b"aab", b"ab", b"aaab"], b"aaaaaaab", 2))
    write("stop", "border", case([b"abababc", b"babac"], b"abababababac", 3))
    write("stop", "none", case([b"xyz"], b"xyxyxyx"))


def main():
    for make in (make_json, make_options, make_gguf, make_safetensors, make_model_config, make_linears, make_steps, make_tokenizers, make_tokenize, make_template, make_http,
                 make_grammar, make_request, make_translate, make_sentencepiece, make_stop, make_answers):
        make()
    drop_stale()


main()
