"""Models that a report makes: descriptions (config.json) for dummy weights, and small models on disk."""
import json
import os
import shutil
import struct

from core import NotRun, must

LLAMA3_8B = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
             "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256,
             "rope_theta": 500000.0, "max_position_embeddings": 32768, "rms_norm_eps": 1e-5, "hidden_act": "silu",
             "tie_word_embeddings": False, "bos_token_id": 128000, "eos_token_id": 128001}
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "tie_word_embeddings": False, "use_cache": True,
         "bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.02}
LLAMA2_7B = {**LLAMA, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
             "num_key_value_heads": 32, "vocab_size": 32000, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "pretraining_tp": 1,
             "rope_scaling": None, "torch_dtype": "float16"}
LLAMA1_13B = {**LLAMA, "hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 40, "num_attention_heads": 40,
              "vocab_size": 32000, "max_position_embeddings": 2048, "max_sequence_length": 2048, "rms_norm_eps": 1e-6, "pad_token_id": 0,
              "torch_dtype": "float16"}
LLAMA1_33B = {**LLAMA1_13B, "hidden_size": 6656, "intermediate_size": 17920, "num_hidden_layers": 60, "num_attention_heads": 52}
YI_6B_200K = {**LLAMA, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
              "num_key_value_heads": 4, "vocab_size": 64000, "max_position_embeddings": 200000, "rms_norm_eps": 1e-5, "pad_token_id": 0,
              "pretraining_tp": 1, "rope_scaling": None, "rope_theta": 10000000.0, "torch_dtype": "bfloat16"}
QWEN3_8B = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": False, "attention_dropout": 0.0,
            "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096,
            "initializer_range": 0.02, "intermediate_size": 12288, "max_position_embeddings": 40960, "max_window_layers": 36,
            "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8, "rms_norm_eps": 1e-6, "rope_scaling": None,
            "rope_theta": 1000000, "sliding_window": None, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": True,
            "use_sliding_window": False, "vocab_size": 151936}
TINY = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 2048,
        "rope_theta": 10000.0, "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "hidden_act": "silu",
        "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 1}
NAN_BF16 = b"\xc0\x7f"


def describe(folder, config, **changes):
    """A folder with only a config.json, which is enough for load_format = dummy."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    return folder


def write_weights(ctx, folder, limit_s=600):
    """Writes the dummy weights of the folder's config.json to disk, and a tokenizer of single bytes."""
    must(ctx.run("write_model", folder, limit_s=limit_s), "write_model")
    return folder


def tiny_on_disk(ctx):
    folder = ctx.work / "tiny"
    if not (folder / "model.safetensors").exists():
        write_weights(ctx, describe(folder, TINY))
    return folder


def poison_token(source, folder, token, name="model.embed_tokens.weight"):
    """A copy of a bf16 safetensors model in which one token's embedding is NaN."""
    shutil.copytree(source, folder, dirs_exist_ok=True)
    with open(folder / "model.safetensors", "r+b") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        tensor = json.loads(f.read(n))[name]
        rows, width = tensor["shape"]
        if tensor["dtype"] != "BF16" or not 0 <= token < rows:
            raise ValueError(f"{name}: {tensor['dtype']} {tensor['shape']}")
        f.seek(8 + n + tensor["data_offsets"][0] + token * width * 2)
        f.write(NAN_BF16 * width)
    return folder


def memory_available():
    with open("/proc/meminfo") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("MemAvailable")) * 1024


def scratch_for(ctx, n_bytes):
    """Returns a folder with room for n_bytes: --scratch, the work folder, or memory (/dev/shm) if there is enough."""
    places = [ctx.scratch] if ctx.scratch else [ctx.work, "/var/tmp", "/dev/shm"]
    for p in places:
        if os.path.isdir(p) and shutil.disk_usage(p).free > n_bytes * 1.1:
            if str(p) != "/dev/shm" or memory_available() > n_bytes * 2.5:
                return p
    raise NotRun(f"no room for {n_bytes / 1e9:.0f} GB in {', '.join(map(str, places))}; --scratch DIR names another place")
