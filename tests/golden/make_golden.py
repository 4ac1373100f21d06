#!/usr/bin/env python3
"""Makes the golden files: greedy tokens of transformers in float32, and how close each decision was.

    make_golden.py tiny  TINY_MODELS_DIR            -> golden_tiny.json
    make_golden.py families TINY_MODELS_DIR         -> golden_families.json
    make_golden.py real  SmolLM2-135M-Instruct.gguf -> golden_smollm2.json
    make_golden.py scores TINY_MODELS_DIR           -> golden_scores.json (of prompts' tokens: log-softmax, last hidden state;
                                                       tests/e2e/test_echo.py, test_embeddings.py)

Needs torch, transformers, safetensors, tokenizers, numpy and gguf; run by hand when the models change, the result is
committed. The reference shares no code with tandem: safetensors are read by transformers' own classes, GGUF weights are widened
by the gguf package and (architecture llama) un-permuted back to the order that transformers rotates.
"""
import json
import os
import random
import sys

import numpy as np
import torch
from gguf import GGUFReader, dequantize
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

import families
import tiny_models

HERE = os.path.dirname(os.path.abspath(__file__))
TINY_LENGTHS, TINY_STEPS = (1, 2, 7, 16, 33, 64, 101), 32
FAMILY_LENGTHS = TINY_LENGTHS + (140,)
REAL_STEPS = 64


def greedy(model, prompt, steps):
    """Returns tokens, and for each the distance from the best logit to the second best."""
    tokens, margins, past, ids = [], [], None, torch.tensor([prompt])
    with torch.no_grad():
        for _ in range(steps):
            out = model(input_ids=ids, past_key_values=past, use_cache=True)
            past = out.past_key_values
            top = torch.topk(out.logits[0, -1].double(), 2)
            tokens.append(int(out.logits[0, -1].argmax()))
            margins.append(float("%.3g" % (top.values[0] - top.values[1])))
            ids = torch.tensor([[tokens[-1]]])
    return tokens, margins


def unpermute(rows, n_heads):
    """Undoes llama.cpp's order of q and k rows: pairs side by side back to halves."""
    n = rows.shape[0] // n_heads
    return rows.reshape(n_heads, n // 2, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def hf_name(gguf_name, family):
    stem, _, tail = gguf_name.rpartition(".")
    back = {v: k for k, v in tiny_models.GGUF_NAMES.items() if family == "phi3" or k != "mlp.gate_up_proj"}
    back.update({v: k for k, v in tiny_models.GGUF_NAMES_AFTER.items()})
    if stem.startswith("blk."):
        _, layer, rest = stem.split(".", 2)
        return "model.layers.%s.%s.%s" % (layer, back[rest], tail)
    return "%s.%s" % (back[stem], tail)


def reference_config(config):
    """The configuration of transformers' class that computes what the tiny model's family does."""
    c = {k: v for k, v in config.items() if k not in ("wrap", "embed_gain", "split", "vision_config", "architectures")}
    if c["model_type"] == "minicpm":  # not a class of transformers, but what Granite's computes with these factors
        c.update(model_type="granite", embedding_multiplier=float(c["scale_emb"]),
                 residual_multiplier=c["scale_depth"] / c["num_hidden_layers"] ** 0.5,
                 attention_multiplier=tiny_models.head_dim(c) ** -0.5,
                 logits_scaling=c["hidden_size"] / c["dim_model_base"])
    if c["model_type"] in ("qwen2_5_vl", "qwen3_vl_text"):  # text has positions of one kind only
        c.update(model_type=c["model_type"][:5], rope_scaling=None)
    return AutoConfig.for_model(c.pop("model_type"), **c)


def pin_rope(model, config):
    """Fixes frequencies that transformers makes anew for each length to those of the whole context, and shows that they are
    what transformers uses for a text of that length."""
    kind = model.config.rope_parameters.get("rope_type")
    if kind not in ("dynamic", "longrope"):
        return
    context = config["max_position_embeddings"] * (int(config["rope_scaling"]["factor"]) if kind == "dynamic" else 1)
    text = torch.tensor([[3 + i * 7 % 509 for i in range(context)]])
    with torch.no_grad():
        want = model(input_ids=text, use_cache=False).logits
    rope = model.model.rotary_emb
    rope.inv_freq, rope.attention_scaling = ROPE_INIT_FUNCTIONS[kind](model.config, "cpu", seq_len=torch.tensor(context))
    rope.rope_type = "default"
    with torch.no_grad():
        assert torch.equal(want, model(input_ids=text, use_cache=False).logits), kind


def model_from_gguf(paths, config):
    hf = reference_config(config)
    permuted = config["model_type"] in ("llama", "granite", "minicpm", "smollm3")
    state = {}
    for t in [t for path in paths for t in GGUFReader(path).tensors]:
        if t.name.startswith("rope_f"):
            continue
        data = dequantize(t.data, t.tensor_type).astype(np.float32).reshape([int(n) for n in reversed(t.shape)])
        for part, heads in (("attn_q.", hf.num_attention_heads), ("attn_k.", hf.num_key_value_heads)):
            if permuted and part in t.name:
                data = unpermute(data, heads)
        state[hf_name(t.name, config["model_type"])] = torch.from_numpy(np.ascontiguousarray(data))
    return with_weights(hf, state)


def with_weights(hf, state):
    model = AutoModelForCausalLM.from_config(hf, dtype=torch.float32, attn_implementation="eager")
    missing, unexpected = model.load_state_dict(state, strict=False)
    tied = {"lm_head.weight"} if hf.tie_word_embeddings else set()
    assert set(missing) <= tied and not unexpected, (missing, unexpected)
    model.tie_weights()
    return model.eval()


def write(file, models):
    """One line per list of numbers, so that a diff shows which prompt changed."""
    with open(os.path.join(HERE, file), "w", encoding="utf-8") as f:
        f.write('{"made_with": "transformers %s, torch %s, float32, eager attention",\n "models": {\n' % (
            __import__("transformers").__version__, torch.__version__))
        blocks = []
        for name, runs in models.items():
            lines = ["   " + json.dumps(run, separators=(",", ":")) for run in runs]
            blocks.append("  %s: [\n%s\n  ]" % (json.dumps(name), ",\n".join(lines)))
        f.write(",\n".join(blocks) + "\n }}\n")


def run_model(name, model, prompts, steps):
    runs = []
    for prompt in prompts:
        tokens, margins = greedy(model, prompt, steps)
        runs.append({"prompt": prompt, "tokens": tokens, "margins": margins})
        print("%s: %d of %d prompts" % (name, len(runs), len(prompts)), end="\r", file=sys.stderr, flush=True)
    margins = sorted(m for r in runs for m in r["margins"])
    different = len({t for r in runs for t in r["tokens"]})
    print("%-14s %4d tokens, %3d different, margins: least %.3g, 1%% %.3g, median %.3g" % (
        name, len(margins), different, margins[0], margins[len(margins) // 100], margins[len(margins) // 2]), flush=True)
    return runs


def some_logits(model, prompt):
    """Returns [[id, logit], ...] after the prompt, and the largest logit."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt]), use_cache=False).logits[0, -1]
    return [[i, float("%.8g" % logits[i])] for i in range(0, 512, 64)], float("%.4g" % logits.abs().max())


def with_logits(model, runs):
    for run in runs:
        run["logits"], run["scale"] = some_logits(model, run["prompt"])
    return runs


def tiny(folder):
    models = {}
    others = {**families.folders(tiny_models.config), **families.ggufs(tiny_models.config)}
    for name in [n for n in (*tiny_models.FOLDERS, *tiny_models.GGUFS) if n not in others]:
        rng = random.Random("tandem prompts " + name)
        prompts = [[rng.randrange(3, 512) for _ in range(n)] for n in TINY_LENGTHS]
        if name in tiny_models.FOLDERS:
            model = AutoModelForCausalLM.from_pretrained(
                os.path.join(folder, name), dtype=torch.float32, attn_implementation="eager").eval()
        else:
            model = model_from_gguf([os.path.join(folder, name + ".gguf")], tiny_models.GGUFS[name][2])
        models[name] = with_logits(model, run_model(name, model, prompts, TINY_STEPS))
    write("golden_tiny.json", models)


def plain_name(name):
    """Returns the name that a wrapper's tensor has in the text model alone; None if it belongs to another part."""
    for old, new in (("language_model.", ""), ("model.language_model.", "model."), ("model.text_model.", "model.")):
        if name.startswith(old):
            return new + name[len(old):]
    return name if name.startswith(("model.layers.", "model.embed", "model.norm", "lm_head")) else None


def family_model(folder, name):
    if name.startswith("gguf_"):
        paths = sorted(p for p in os.listdir(folder) if p.startswith((name + ".gguf", name + "-0")))
        return model_from_gguf([os.path.join(folder, p) for p in paths], tiny_models.GGUFS[name][2])
    config = tiny_models.FOLDERS[name][2]
    path = os.path.join(folder, name)
    if "wrap" not in config and config["model_type"] != "minicpm":
        return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    state = {plain_name(k): v.float() for k, v in load_file(os.path.join(path, "model.safetensors")).items()}
    state.pop(None, None)
    return with_weights(reference_config(config), state)


def all_families(folder):
    models = {}
    for name in list(families.folders(tiny_models.config)) + list(families.ggufs(tiny_models.config)):
        rng = random.Random("tandem prompts " + name)
        prompts = [[rng.randrange(3, 512) for _ in range(n)] for n in FAMILY_LENGTHS]
        model = family_model(folder, name)
        pin_rope(model, (tiny_models.FOLDERS.get(name) or tiny_models.GGUFS[name])[2])
        models[name] = with_logits(model, run_model(name, model, prompts, TINY_STEPS))
    write("golden_families.json", models)


# ---- log-probabilities of prompts ----

SCORE_LENGTHS, SCORE_TOPS = (2, 17, 64, 200), 5


def scores(folder):
    """Of each token but the first: its log-probability, and the likeliest [id, log-probability] in its place; of the whole
    prompt: the last norm's output, pooled."""
    models = {}
    for name in ("llama2", "qwen3"):
        rng = random.Random("tandem scores " + name)
        model = AutoModelForCausalLM.from_pretrained(
            os.path.join(folder, name), dtype=torch.float32, attn_implementation="eager").eval()
        models[name] = []
        for n in SCORE_LENGTHS:
            prompt = [rng.randrange(3, 512) for _ in range(n)]
            with torch.no_grad():
                out = model(input_ids=torch.tensor([prompt]), use_cache=False, output_hidden_states=True)
            logits, states = out.logits[0, :-1], out.hidden_states[-1][0].double()
            told = torch.log_softmax(logits.double(), -1)
            top = torch.topk(told, SCORE_TOPS)
            models[name].append({
                "prompt": prompt, "scores": [float("%.7g" % told[i, t]) for i, t in enumerate(prompt[1:])],
                "top": [[[int(t), float("%.7g" % v)] for t, v in zip(ids, values)] for ids, values in zip(top.indices, top.values)],
                "last": [float("%.6g" % v) for v in states[-1]], "mean": [float("%.6g" % v) for v in states.mean(0)]})
    write("golden_scores.json", models)


# ---- the real model ----

TEXTS = [
    "What is the capital of France?",
    "Write a short poem about the sea.",
    "Explain in one sentence why the sky is blue.",
    "List three fruits that are yellow.",
    "Translate 'good morning' into Spanish.",
    "What is 17 plus 25?",
    "Give me a recipe for pancakes.",
    "def fibonacci(n):",
    "Who wrote the play Hamlet?",
    "Summarise: The quick brown fox jumps over the lazy dog. The dog does not mind. They become friends and live "
    "together in a small house at the edge of the forest, where every evening they watch the sun go down.",
    "How does a bicycle stay upright?",
    "Name the planets of the solar system in order.",
    "Is a tomato a fruit or a vegetable? Answer and say why.",
    "Write an email asking a colleague for the sales figures of March.",
    "What does HTTP status 404 mean?",
    "Continue the story: Once upon a time, in a village by the river,",
]
RAW = ["The", "Once upon a time", "import numpy as np\n\ndef main():\n", "1, 2, 3, 4, 5,"]


def real_prompts(reader):
    """Byte-level BPE according to the model's metadata; goldens hold ids, so nothing later depends on this."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

    strings = lambda key: [bytes(reader.fields[key].parts[i]).decode() for i in reader.fields[key].data]
    tokens = strings("tokenizer.ggml.tokens")
    merges = [tuple(m.split(" ")) for m in strings("tokenizer.ggml.merges")]
    tok = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, merges))
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    tok.add_special_tokens([AddedToken(t, special=True) for t in tokens[:17]])
    system = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    chats = [system + "<|im_start|>user\n%s<|im_end|>\n<|im_start|>assistant\n" % t for t in TEXTS]
    return [tok.encode(t).ids for t in chats + RAW]


def real(path):
    reader = GGUFReader(path)
    number = lambda key: reader.fields["llama." + key].parts[-1][0].item()
    config = {
        "model_type": "llama", "hidden_act": "silu", "tie_word_embeddings": True,
        "vocab_size": len(reader.fields["tokenizer.ggml.tokens"].data),
        "hidden_size": number("embedding_length"), "intermediate_size": number("feed_forward_length"),
        "num_hidden_layers": number("block_count"), "num_attention_heads": number("attention.head_count"),
        "num_key_value_heads": number("attention.head_count_kv"),
        "max_position_embeddings": number("context_length"),
        "rms_norm_eps": float(number("attention.layer_norm_rms_epsilon")),
        "rope_parameters": {"rope_type": "default", "rope_theta": float(number("rope.freq_base"))},
    }
    prompts = real_prompts(reader)
    write("golden_smollm2.json", {"smollm2_135m_q4_1": run_model("smollm2_135m", model_from_gguf([path], config), prompts, REAL_STEPS)})


if __name__ == "__main__":
    torch.set_num_threads(1)  # the sizes are small, so on a busy machine more threads would be slower
    {"tiny": tiny, "families": all_families, "real": real, "scores": scores}[sys.argv[1]](sys.argv[2])
