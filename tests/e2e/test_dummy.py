"""load_format = dummy: a model from a config.json alone. The test computes the same weights with a second implementation of the rule, writes
them to a safetensors file, and compares the tokens."""
import json
import re
import struct

import pytest
from harness import Daemon, run_daemon

CONFIG = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512, "rope_theta": 10000.0, "tie_word_embeddings": False, "eos_token_id": 2,
}
MASK = (1 << 64) - 1
ROLES = ["embed", "out_norm", "head", "attn_norm", "q", "k", "v", "o", "q_bias", "k_bias", "v_bias", "o_bias", "q_norm",
         "k_norm", "ffn_norm", "gate", "up", "down"]  # their order is part of the rule


def hash64(seed, i):
    z = (seed + (i + 1) * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & MASK
    return z ^ z >> 31


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def bf16_bits(seed, i):
    h = hash64(seed, i)
    total = sum(h >> s & 0xFFFF for s in (0, 16, 32, 48)) - 2 * 65535
    bits = struct.unpack("<I", struct.pack("<f", total * f32(5.2858e-7)))[0]
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 & 0xFFFF


def made_up(seed, role, layer, n):
    s = hash64(seed, ROLES.index(role) << 32 | layer)
    return struct.pack(f"<{n}H", *(bf16_bits(s, i) for i in range(n)))


def ones(n):
    return struct.pack(f"<{n}H", *[0x3F80] * n)


def write_model(folder, seed):
    c = CONFIG
    w, ffn, vocab = c["hidden_size"], c["intermediate_size"], c["vocab_size"]
    kv = w // c["num_attention_heads"] * c["num_key_value_heads"]
    tensors = {"model.embed_tokens.weight": ([vocab, w], made_up(seed, "embed", 0, vocab * w)),
               "lm_head.weight": ([vocab, w], made_up(seed, "head", 0, vocab * w)), "model.norm.weight": ([w], ones(w))}
    for i in range(c["num_hidden_layers"]):
        def add(name, shape, role=None):
            n = shape[0] * (shape[1] if len(shape) > 1 else 1)
            tensors[f"model.layers.{i}.{name}"] = (shape, made_up(seed, role, i, n) if role else ones(n))
        add("input_layernorm.weight", [w])
        add("post_attention_layernorm.weight", [w])
        for role, rows in (("q", w), ("k", kv), ("v", kv)):
            add(f"self_attn.{role}_proj.weight", [rows, w], role)
            add(f"self_attn.{role}_proj.bias", [rows], role + "_bias")
        add("self_attn.o_proj.weight", [w, w], "o")
        add("mlp.gate_proj.weight", [ffn, w], "gate")
        add("mlp.up_proj.weight", [ffn, w], "up")
        add("mlp.down_proj.weight", [w, ffn], "down")
    header, data = {}, b""
    for name, (shape, raw) in tensors.items():
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with config.json only."""
    path = tmp_path_factory.mktemp("dummy") / "made-up"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(CONFIG))
    return path


def answers(d):
    prompts = [[1], [5, 6, 7], list(range(40, 90)), [511, 0, 3]]
    return [d.tokens(p, max_tokens=24, ignore_eos=True, model="made-up") for p in prompts]


def test_the_weights_are_those_of_the_rule(folder):
    dummy = ("--load-format", "dummy", "--backend", "cpu")
    with Daemon(*dummy, "--dummy-seed", 7, model=folder) as d:
        seven = answers(d)
        assert "random" in d.log()
    with Daemon(*dummy, model=folder) as d:
        assert answers(d) != seven
    stored = folder.parent / "stored" / "made-up"
    stored.mkdir(parents=True)
    (stored / "config.json").write_text(json.dumps(CONFIG))
    write_model(stored, 7)
    with Daemon("--backend", "cpu", "--load-format", "dummy", "--dummy-seed", 7, model=stored) as d:
        assert answers(d) == seven  # stored weights are ignored
    code, text = run_daemon("--model", stored, "--check", "--backend", "cpu")
    assert code == 65 and "tokenizer.json" in text, text


def test_stored_weights_give_the_same_tokens(folder, tmp_path):
    """The same weights read from a file. Real weights need a tokenizer, so the test makes a small one."""
    write_model(folder_with_tokenizer(tmp_path), 7)
    with Daemon("--load-format", "dummy", "--dummy-seed", 7, "--backend", "cpu", model=folder) as d:
        made = answers(d)
    with Daemon("--backend", "cpu", model=tmp_path / "made-up") as d:
        assert answers(d) == made


def folder_with_tokenizer(tmp_path):
    path = tmp_path / "made-up"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(CONFIG))
    alphabet = [chr(c) for c in [*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324)]]
    (path / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "added_tokens": [], "normalizer": None, "post_processor": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": {c: i for i, c in enumerate(alphabet)}, "merges": []}}))
    return path


def test_text_needs_a_tokenizer(folder):
    with Daemon("--load-format", "dummy", model=folder) as d:
        for path, body, param in (
                ("/v1/completions", {"prompt": "hello"}, "prompt"), ("/v1/completions", {"prompt": [1], "stop": "x"}, "stop"),
                ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}]}, "messages"),
                ("/tokenize", {"prompt": "hello"}, "prompt"), ("/detokenize", {"tokens": [1]}, "tokens")):
            r = d.post(path, body)
            assert r.status_code == 400, (path, r.text)
            assert r.json()["error"]["param"] == param and "tokenizer" in r.json()["error"]["message"], r.text
        r = d.post("/v1/completions", {"prompt": [1, 2], "max_tokens": 5, "ignore_eos": True})
        assert r.status_code == 200 and r.json()["choices"][0]["text"] == "" and len(r.json()["choices"][0]["token_ids"]) == 5


def test_text_with_a_tokenizer(tmp_path):
    with Daemon("--load-format", "dummy", model=folder_with_tokenizer(tmp_path)) as d:
        r = d.post("/v1/completions", {"prompt": "hello", "max_tokens": 12, "ignore_eos": True})
        assert r.status_code == 200 and r.json()["usage"]["prompt_tokens"] == 5 and r.json()["choices"][0]["text"] != ""


def test_what_the_files_ask_for_and_is_not_served_is_told(tmp_path):
    """The log warns the operator at start, because answers differ from those of a server that supports it."""
    folder = tmp_path / "asks"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**CONFIG, "eos_token_id": "</s>"}))
    (folder / "generation_config.json").write_text(json.dumps(
        {"eos_token_id": 3, "temperature": 0.5, "repetition_penalty": 1.1, "num_beams": 1, "suppress_tokens": [7]}))
    with Daemon("--load-format", "dummy", "--backend", "cpu", model=folder) as d:
        lines = [x for x in d.log().splitlines() if " warn " in x]
        assert any(x.endswith("not served and is left out: suppress_tokens") for x in lines), lines
        assert any("config.json: eos_token_id" in x and "left out" in x for x in lines), lines
        assert re.search(r"sampled with temperature 0\.5, .* repetition_penalty 1\.1$", d.log(), re.M)
        r = d.post("/v1/completions", {"prompt": [1, 2], "max_tokens": 2, "ignore_eos": True})
        assert r.status_code == 200, r.text
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 3, "repetition_penalty": 1}))
    with Daemon("--load-format", "dummy", "--backend", "cpu", model=folder) as d:
        assert "not served and is left out" not in d.log()


def test_a_bad_word():
    code, text = run_daemon("--model", "m", "--load-format", "none")
    assert code == 64 and "load_format" in text and "auto or dummy" in text
