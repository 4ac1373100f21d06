#!/usr/bin/env python3
"""Writes tiny random models of every architecture and every weight format, for tests.

    tiny_models.py OUT_DIR [NAME ...]

Standard library only, so that the tests that need these models need nothing but Python. Everything follows from each
model's seed: random.Random.random() is the same in every Python version, and no libm function is used on weights, so the
files are the same everywhere and goldens made from them once (make_golden.py) stay true.

The weights are scaled so that a model behaves like a model and not like a coin: attention is sharp, the layers weigh
more than the embedding (or tied models would repeat their input), and logits spread by a few units.
"""
import array
import hashlib
import json
import math
import os
import random
import struct
import sys

import families

HERE = os.path.dirname(os.path.abspath(__file__))
CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
END, START, STOP = 0, 1, 2  # <|endoftext|>, <|im_start|>, <|im_end|>
LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def config(model_type, **changes):
    """config.json as transformers before v5 writes it."""
    c = {
        "architectures": [model_type.capitalize() + "ForCausalLM"],
        "model_type": model_type,
        "hidden_act": "silu",
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "tie_word_embeddings": False,
        "bos_token_id": START,
        "eos_token_id": STOP,
        "torch_dtype": "float32",
        "use_cache": True,
    }
    c.update(changes)
    return {k: v for k, v in c.items() if v != "absent"}


# name: (dtype of the matrices, number of files, config)
FOLDERS = {
    "llama2": ("F32", 1, config("llama", pretraining_tp=1, attention_bias=False)),
    "llama3": (
        "BF16",
        3,
        config("llama", hidden_size=128, intermediate_size=192, num_attention_heads=8, num_key_value_heads=2,
               head_dim=16, rope_theta=500000.0, rope_scaling=LLAMA3_SCALING, eos_token_id=[END, STOP]),
    ),
    "smollm2": (
        "F16",
        1,
        config("llama", hidden_size=72, intermediate_size=192, num_attention_heads=9, num_key_value_heads=3,
               tie_word_embeddings=True, rope_theta=100000.0, rope_interleaved=False, mlp_bias=False),
    ),
    "mistral": (
        "BF16",
        1,
        config("mistral", num_key_value_heads=2, sliding_window=24, rms_norm_eps=1e-6),
    ),
    "mistral_nemo": (  # heads wider than width / heads, no window
        "F32",
        1,
        config("mistral", num_key_value_heads=1, head_dim=24, sliding_window=None, rope_theta=1000000.0),
    ),
    "qwen2": (
        "BF16",
        1,
        config("qwen2", num_key_value_heads=2, tie_word_embeddings=True, rope_theta=1000000.0, rms_norm_eps=1e-6,
               use_sliding_window=False, sliding_window=16, max_window_layers=1),
    ),
    "qwen2_yarn": (
        "F32",
        1,
        config("qwen2", num_key_value_heads=2, rope_theta=1000000.0, max_position_embeddings=32,
               rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}),
    ),
    "qwen3": (  # as transformers v5 writes it
        "BF16",
        1,
        config("qwen3", num_key_value_heads=2, head_dim=32, rope_theta="absent", rope_scaling="absent",
               rope_parameters={"rope_theta": 1000000.0, "rope_type": "default"}, attention_bias=False,
               use_sliding_window=False, sliding_window=None, max_window_layers=3,
               layer_types=["full_attention"] * 3, rms_norm_eps=1e-6),
    ),
    "yi": (
        "F16",
        2,
        config("llama", hidden_size=96, num_attention_heads=6, num_key_value_heads=2, rope_theta=5000000.0),
    ),
    "llama_linear": (
        "F32",
        1,
        config("llama", num_key_value_heads=2, rope_theta="absent", rope_scaling="absent",
               rope_parameters={"rope_theta": 10000.0, "rope_type": "linear", "factor": 4.0}),
    ),
    "llama_biases": ("F16", 1, config("llama", num_key_value_heads=2, attention_bias=True, mlp_bias=True)),
}

# name: (ggml type of the matrices, GGUF architecture, config with the same meaning)
GGUF_NARROW = config("llama", num_hidden_layers=2, num_key_value_heads=2)
GGUF_WIDE = config("llama", num_hidden_layers=2, hidden_size=256, intermediate_size=256, num_key_value_heads=2)
GGUFS = {"gguf_" + t.lower(): (t, "llama", GGUF_NARROW) for t in
         ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")}
GGUFS.update({"gguf_" + t.lower(): (t, "llama", GGUF_WIDE) for t in ("Q4_K", "Q5_K", "Q6_K")})
GGUFS["gguf_q4_k_m"] = ("Q4_K_M", "llama", dict(GGUF_WIDE, tie_word_embeddings=True))
GGUFS["gguf_llama3"] = ("Q8_0", "llama", dict(GGUF_NARROW, rope_theta=500000.0, rope_scaling=LLAMA3_SCALING))
GGUFS["gguf_qwen2"] = ("Q8_0", "qwen2", config("qwen2", num_hidden_layers=2, num_key_value_heads=2, rope_theta=1e6))
GGUFS["gguf_qwen3"] = (
    "F16", "qwen3", config("qwen3", num_hidden_layers=2, num_key_value_heads=2, head_dim=32, rope_theta=1e6))
GGUFS["gguf_yarn"] = (
    "F32", "llama",
    dict(GGUF_NARROW, max_position_embeddings=128,
         rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}))

FOLDERS.update(families.folders(config))
GGUFS.update(families.ggufs(config))

GGML_TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q4_K": 12, "Q5_K": 13,
              "Q6_K": 14, "BF16": 30}


# ---- the tensors of a model ----


def head_dim(c):
    return c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]


def tensors(c):
    """(name without .weight/.bias, kind, shape, gain) of every tensor; kind: matrix, norm or bias."""
    w, ffn = c["hidden_size"], c["intermediate_size"]
    q, kv = c["num_attention_heads"] * head_dim(c), c["num_key_value_heads"] * head_dim(c)
    family = c["model_type"]
    tied = c["tie_word_embeddings"]
    qkv_bias = family in ("qwen2", "qwen2_5_vl") or c.get("attention_bias", False)
    after, parallel = family in ("olmo2", "olmo3"), family in ("cohere", "cohere2")
    yield "model.embed_tokens", "matrix", (c["vocab_size"], w), (3.0 if tied else math.sqrt(w)) * c.get("embed_gain", 1)
    for i in range(c["num_hidden_layers"]):
        p = "model.layers.%d." % i
        if not after:
            yield p + "input_layernorm", "norm", (w,), 1
        if family == "phi3":
            yield p + "self_attn.qkv_proj", "matrix", (q + 2 * kv, w), 1.5
        else:
            for name, rows, gain in (("q", q, 1.5), ("k", kv, 1.5), ("v", kv, 1.0)):
                yield p + "self_attn.%s_proj" % name, "matrix", (rows, w), gain
                if qkv_bias:
                    yield p + "self_attn.%s_proj" % name, "bias", (rows,), 0.5
        if family in ("qwen3", "qwen3_vl_text") or after:
            yield p + "self_attn.q_norm", "norm", (q if after else head_dim(c),), 1.5
            yield p + "self_attn.k_norm", "norm", (kv if after else head_dim(c),), 1.5
        yield p + "self_attn.o_proj", "matrix", (w, q), 3.0
        if c.get("attention_bias", False):
            yield p + "self_attn.o_proj", "bias", (w,), 0.5
        if not parallel:
            yield p + "post_attention_layernorm", "norm", (w,), (2 if after else 1)
        if after:
            yield p + "post_feedforward_layernorm", "norm", (w,), 2
        if family == "phi3":
            yield p + "mlp.gate_up_proj", "matrix", (2 * ffn, w), 1.2
            yield p + "mlp.down_proj", "matrix", (w, ffn), 3.0
            continue
        for name, rows, cols, gain in (("gate", ffn, w, 1.5), ("up", ffn, w, 1.0), ("down", w, ffn, 3.0)):
            yield p + "mlp.%s_proj" % name, "matrix", (rows, cols), gain
            if c.get("mlp_bias", False):
                yield p + "mlp.%s_proj" % name, "bias", (rows,), 0.5
    yield "model.norm", "norm", (w,), 1
    if not tied:
        yield "lm_head", "matrix", (c["vocab_size"], w), 3.0


def uniform(rng, n, low, high):
    r, span = rng.random, high - low
    return array.array("f", [low + span * r() for _ in range(n)])


def values(rng, kind, shape, gain):
    n = math.prod(shape)
    if kind == "norm":
        return uniform(rng, n, 0.5 * gain, 1.5 * gain)
    a = gain if kind == "bias" else gain * math.sqrt(3.0 / shape[1])  # deviation gain / sqrt(columns)
    return uniform(rng, n, -a, a)


def le_bytes(a):
    if sys.byteorder != "little":
        a = array.array(a.typecode, a)
        a.byteswap()
    return a.tobytes()


def encode(floats, dtype):
    if dtype == "F32":
        return le_bytes(floats)
    if dtype == "F16":
        return struct.pack("<%de" % len(floats), *floats)
    bits = array.array("I", floats.tobytes())  # BF16: round to nearest even
    return le_bytes(array.array("H", [(u + 0x7FFF + (u >> 16 & 1)) >> 16 for u in bits]))


def write_json(path, value):
    with open(path, "w", encoding="utf-8") as f:
        json.dump(value, f, indent=1, sort_keys=True)
        f.write("\n")


# ---- safetensors ----


def write_safetensors(path, items):
    """items: name -> (dtype, shape, bytes)."""
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, shape, data) in items.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in items.values():
            f.write(data)


def write_folder(out, name, dtype, n_files, c):
    rng = random.Random("tandem tiny " + name)
    folder = os.path.join(out, name)
    os.makedirs(folder, exist_ok=True)
    wrap = c.get("wrap")  # how a text model's tensors are named inside a wrapper, and the wrapper's config
    inner = c
    c = dict(c, torch_dtype={"F32": "float32", "F16": "float16", "BF16": "bfloat16"}[dtype])
    items = {}
    for tensor, kind, shape, gain in tensors(c):
        data = encode(values(rng, kind, shape, gain), dtype)
        items[tensor + (".bias" if kind == "bias" else ".weight")] = (dtype, shape, data)
    c = {k: v for k, v in c.items() if k not in ("wrap", "embed_gain")}
    if wrap:
        items = {families.wrapped(n, wrap["names"]): v for n, v in items.items()}
        items[wrap["other"]] = ("F32", wrap.get("shape", (2, 2)), le_bytes(array.array("f", [0.5, 1, 2, 3])))
        c = dict(wrap["config"], text_config=c) if wrap["config"] else c
    if n_files == 1:
        write_safetensors(os.path.join(folder, "model.safetensors"), items)
    else:
        names, weight_map = list(items), {}
        for k in range(n_files):
            file = "model-%05d-of-%05d.safetensors" % (k + 1, n_files)
            part = names[k * len(names) // n_files:(k + 1) * len(names) // n_files]
            write_safetensors(os.path.join(folder, file), {n: items[n] for n in part})
            weight_map.update({n: file for n in part})
        total = sum(len(data) for _, _, data in items.values())
        write_json(os.path.join(folder, "model.safetensors.index.json"),
                   {"metadata": {"total_size": total}, "weight_map": weight_map})
    write_json(os.path.join(folder, "config.json"), c)
    write_json(os.path.join(folder, "generation_config.json"),
               {"bos_token_id": START, "eos_token_id": inner["eos_token_id"], "temperature": 0.7, "top_p": 0.9})
    write_json(os.path.join(folder, "tokenizer_config.json"), {
        "add_bos_token": False, "bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "chat_template": CHATML,
        "clean_up_tokenization_spaces": False, "model_max_length": inner["max_position_embeddings"],
        "tokenizer_class": "PreTrainedTokenizerFast"})
    with open(os.path.join(HERE, "tokenizer.json"), "rb") as src, open(os.path.join(folder, "tokenizer.json"), "wb") as dst:
        dst.write(src.read())


# ---- GGUF ----

# Quantised weights need no quantiser: every bit pattern is a valid block, so blocks are random and only their scales are
# chosen. rms: of the integers that a scale multiplies.


def f16(*v):
    return struct.pack("<%de" % len(v), *v)


def block32(rng, t, deviation):
    bits = {"Q4": 4, "Q5": 5, "Q8": 8}[t[:2]]
    d = deviation / (2 ** bits / math.sqrt(12)) * (0.5 + rng.random())
    middle = (2 ** bits - 1) / 2
    head = f16(d, -d * middle) if t.endswith("_1") else f16(d)
    return head + rng.randbytes({4: 16, 5: 20, 8: 32}[bits])


def block_q45k(rng, t, deviation):
    levels = 16 if t == "Q4_K" else 32
    rms_scale = 42.0  # of 6-bit scales drawn from 20 .. 63
    d = deviation / (levels / math.sqrt(12)) / rms_scale * (0.5 + rng.random())
    scales = [rng.randrange(20, 64) for _ in range(8)]
    mins = scales  # with dmin = middle * d the values are centred on 0
    packed = bytearray(12)
    for j in range(4):
        packed[j] = scales[j] | (scales[j + 4] >> 4) << 6
        packed[j + 4] = mins[j] | (mins[j + 4] >> 4) << 6
        packed[j + 8] = scales[j + 4] & 15 | (mins[j + 4] & 15) << 4
    return f16(d, d * (levels - 1) / 2) + bytes(packed) + rng.randbytes(128 if t == "Q4_K" else 160)


def block_q6k(rng, deviation):
    d = deviation / (64 / math.sqrt(12)) / 74.0 * (0.5 + rng.random())
    return rng.randbytes(192) + rng.randbytes(16) + f16(d)


def gguf_matrix(rng, t, shape, gain):
    if t in ("F32", "F16", "BF16"):
        return encode(values(rng, "matrix", shape, gain), t)
    deviation, n = gain / math.sqrt(shape[1]), math.prod(shape)
    if t in ("Q4_K", "Q5_K"):
        return b"".join(block_q45k(rng, t, deviation) for _ in range(n // 256))
    if t == "Q6_K":
        return b"".join(block_q6k(rng, deviation) for _ in range(n // 256))
    return b"".join(block32(rng, t, deviation) for _ in range(n // 32))


def gguf_string(s):
    b = s.encode("utf-8")
    return struct.pack("<Q", len(b)) + b


def gguf_value(v):
    """(type, bytes): bool, int as u32, float as f32, str, and lists of one kind."""
    if isinstance(v, bool):
        return 7, struct.pack("<B", v)
    if isinstance(v, families.U16):
        return 2, struct.pack("<H", v)
    if isinstance(v, int):
        return 4, struct.pack("<I", v)
    if isinstance(v, float):
        return 6, struct.pack("<f", v)
    if isinstance(v, str):
        return 8, gguf_string(v)
    kinds = [gguf_value(x) for x in v]
    return 9, struct.pack("<IQ", kinds[0][0], len(v)) + b"".join(b for _, b in kinds)


GGUF_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "self_attn.qkv_proj": "attn_qkv",
    "mlp.gate_up_proj": "ffn_up",
}
GGUF_NAMES_AFTER = {"post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm"}


def gguf_name(hf, family):
    names = dict(GGUF_NAMES, **(GGUF_NAMES_AFTER if family in ("olmo2", "olmo3") else {}))
    if hf in names:
        return names[hf]
    layer, rest = hf[len("model.layers."):].split(".", 1)
    return "blk.%s.%s" % (layer, names[rest])


def llama3_divisors(c):
    """rope_freqs.weight: what each rotary frequency is divided by (Llama 3.1's bands)."""
    s, dim, out = c["rope_scaling"], head_dim(c), []
    low = s["original_max_position_embeddings"] / s["low_freq_factor"]
    high = s["original_max_position_embeddings"] / s["high_freq_factor"]
    for i in range(0, dim, 2):
        wavelength = 2 * math.pi * c["rope_theta"] ** (i / dim)
        if wavelength < high:
            out.append(1.0)
        elif wavelength > low:
            out.append(s["factor"])
        else:
            smooth = (s["original_max_position_embeddings"] / wavelength - s["low_freq_factor"]) / (
                s["high_freq_factor"] - s["low_freq_factor"])
            out.append(1 / ((1 - smooth) / s["factor"] + smooth))
    return array.array("f", out)


def gguf_metadata(name, arch, c):
    scaling = c["rope_scaling"] or {}
    with open(os.path.join(HERE, "tokenizer.json"), encoding="utf-8") as f:
        tok = json.load(f)
    by_id = {i: t for t, i in tok["model"]["vocab"].items()}
    special = {t["id"] for t in tok["added_tokens"]}
    merges = [m if isinstance(m, str) else " ".join(m) for m in tok["model"]["merges"]]
    kv = {
        "general.architecture": arch,
        "general.name": name,
        "general.alignment": 32,
        arch + ".block_count": c["num_hidden_layers"],
        arch + ".context_length": c["max_position_embeddings"],
        arch + ".embedding_length": c["hidden_size"],
        arch + ".feed_forward_length": c["intermediate_size"],
        arch + ".attention.head_count": c["num_attention_heads"],
        arch + ".attention.head_count_kv": c["num_key_value_heads"],
        arch + ".attention." + ("layer_norm_epsilon" if "layer_norm_eps" in c else "layer_norm_rms_epsilon"):
            c.get("layer_norm_eps", c["rms_norm_eps"]),
        arch + ".rope.freq_base": float(c["rope_theta"]),
        arch + ".vocab_size": c["vocab_size"],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [by_id[i] for i in range(len(by_id))],
        "tokenizer.ggml.token_type": [3 if i in special else 1 for i in range(len(by_id))],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": START,
        "tokenizer.ggml.eos_token_id": STOP,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHATML,
    }
    if "head_dim" in c:
        kv[arch + ".attention.key_length"] = kv[arch + ".attention.value_length"] = c["head_dim"]
    elif c["model_type"] != "phi3":
        kv[arch + ".rope.dimension_count"] = head_dim(c)
    kv.update(families.gguf_keys(arch, c))
    if scaling.get("rope_type") == "yarn":
        kv[arch + ".rope.scaling.type"] = "yarn"
        kv[arch + ".rope.scaling.factor"] = scaling["factor"]
        kv[arch + ".rope.scaling.original_context_length"] = scaling["original_max_position_embeddings"]
    return kv


def write_gguf_file(path, kv, items):
    """items: (name, ggml type, shape outermost first, bytes)."""
    out = [b"GGUF", struct.pack("<IQQ", 3, len(items), len(kv))]
    for k, v in kv.items():
        kind, data = gguf_value(v)
        out.append(gguf_string(k) + struct.pack("<I", kind) + data)
    at = 0
    for name, t, shape, data in items:
        dims = list(reversed(shape))
        out.append(gguf_string(name) + struct.pack("<I%dQIQ" % len(dims), len(dims), *dims, GGML_TYPES[t], at))
        at += len(data) + -len(data) % 32
    header = b"".join(out)
    with open(path, "wb") as f:
        f.write(header + b"\0" * (-len(header) % 32))
        for _, _, _, data in items:
            f.write(data + b"\0" * (-len(data) % 32))


def write_gguf(out, name, t, arch, c):
    rng = random.Random("tandem tiny " + name)
    items = []
    for hf, kind, shape, gain in tensors(c):
        n = gguf_name(hf, c["model_type"]) + (".bias" if kind == "bias" else ".weight")
        if kind != "matrix":
            items.append((n, "F32", shape, encode(values(rng, kind, shape, gain), "F32")))
            continue
        # Q4_K_M mixes types, also among q, k and v, which are one product
        mixed = {"token_embd.weight": "Q8_0", "attn_v.weight": "Q6_K", "attn_k.weight": "Q5_K", "ffn_down.weight": "Q6_K"}
        kept = t if t != "Q4_K_M" else next((x for end, x in mixed.items() if n.endswith(end)), "Q4_K")
        items.append((n, kept, shape, gguf_matrix(rng, kept, shape, gain)))
    if (c["rope_scaling"] or {}).get("rope_type") == "llama3":
        d = llama3_divisors(c)
        items.append(("rope_freqs.weight", "F32", (len(d),), encode(d, "F32")))
    if (c["rope_scaling"] or {}).get("rope_type") == "longrope":
        for which in ("long", "short"):
            d = array.array("f", c["rope_scaling"][which + "_factor"])
            items.append(("rope_factors_%s.weight" % which, "F32", (len(d),), encode(d, "F32")))
    kv, n_files = gguf_metadata(name, arch, c), c.get("split", 1)
    if n_files == 1:
        write_gguf_file(os.path.join(out, name + ".gguf"), kv, items)
    for k in range(n_files if n_files > 1 else 0):
        part = items[k * len(items) // n_files:(k + 1) * len(items) // n_files]
        own = dict(kv if k == 0 else {}, **{"split.no": families.U16(k), "split.count": families.U16(n_files),
                                            "split.tensors.count": len(items)})
        write_gguf_file(os.path.join(out, "%s-%05d-of-%05d.gguf" % (name, k + 1, n_files)), own, part)


def main():
    out, wanted = sys.argv[1], sys.argv[2:]
    os.makedirs(out, exist_ok=True)
    digest = hashlib.sha256()
    for file in (__file__, families.__file__, os.path.join(HERE, "tokenizer.json")):
        with open(file, "rb") as f:
            digest.update(f.read())
    stamp = os.path.join(out, "stamp")
    if not wanted and os.path.exists(stamp) and open(stamp).read() == digest.hexdigest():
        print("tiny models are up to date in", out)
        return
    for name, (dtype, n_files, c) in FOLDERS.items():
        if not wanted or name in wanted:
            write_folder(out, name, dtype, n_files, c)
    for name, (t, arch, c) in GGUFS.items():
        if not wanted or name in wanted:
            write_gguf(out, name, t, arch, c)
    if not wanted:
        with open(stamp, "w") as f:
            f.write(digest.hexdigest())
    print("wrote", len(FOLDERS) + len(GGUFS) if not wanted else len(wanted), "tiny models to", out)


if __name__ == "__main__":
    main()
