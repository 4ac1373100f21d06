"""A Llama-2-like model with SentencePiece's tokenizer, from tokenizer.model and from tokenizer.json: prompts, chats, answers.

The vocabulary is tests/golden_text/small_spm.model; the weights are random and stored as safetensors."""
import json
import pathlib
import random
import struct

import pytest
from harness import Daemon

GOLDEN = pathlib.Path(__file__).parents[1] / "golden_text"
VOCAB, WIDTH, FFN, LAYERS = 900, 64, 128, 2
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": WIDTH, "intermediate_size": FFN,
    "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": VOCAB, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512, "rope_theta": 10000.0, "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2,
}
TEMPLATE = ("{% for m in messages %}{% if m.role == 'user' %}{{ bos_token + '[INST] ' + m.content + ' [/INST]' }}"
            "{% else %}{{ ' ' + m.content + ' ' + eos_token }}{% endif %}{% endfor %}")
TOKENIZER_CONFIG = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True,
                    "chat_template": TEMPLATE}


def write_weights(path):
    rng = random.Random(5)
    shapes = {"model.embed_tokens": [VOCAB, WIDTH], "model.norm": [WIDTH], "lm_head": [VOCAB, WIDTH]}
    for i in range(LAYERS):
        at = f"model.layers.{i}."
        shapes.update({at + f"self_attn.{p}_proj": [WIDTH, WIDTH] for p in "qkvo"})
        shapes.update({at + "mlp.gate_proj": [FFN, WIDTH], at + "mlp.up_proj": [FFN, WIDTH], at + "mlp.down_proj": [WIDTH, FFN]})
        shapes.update({at + n: [WIDTH] for n in ("input_layernorm", "post_attention_layernorm")})
    header, data = {}, []
    at = 0
    for name, shape in shapes.items():
        n = shape[0] * (shape[1] if len(shape) == 2 else 1)
        values = [rng.gauss(0, 0.3) for _ in range(n)] if len(shape) == 2 else [1.0] * n
        data.append(struct.pack(f"<{n}f", *values))
        header[name + ".weight"] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + 4 * n]}
        at += 4 * n
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data))


def make_folder(path, tokenizer):
    path.mkdir()
    (path / "config.json").write_text(json.dumps(CONFIG))
    (path / "tokenizer_config.json").write_text(json.dumps(TOKENIZER_CONFIG))
    write_weights(path)
    (path / tokenizer).write_bytes((GOLDEN / ("small_spm." + tokenizer.split(".")[1])).read_bytes())
    return path


@pytest.fixture(scope="module")
def daemons(tmp_path_factory):
    folder = tmp_path_factory.mktemp("spm")
    with Daemon("--backend", "cpu", model=make_folder(folder / "model", "tokenizer.model")) as a, \
            Daemon("--backend", "cpu", model=make_folder(folder / "json", "tokenizer.json")) as b:
        yield a, b


def ok(r):
    assert r.status_code == 200, r.text
    return r.json()


def test_prompts_have_the_references_ids(daemons):
    golden = json.loads((GOLDEN / "small_spm_ids.json").read_text())
    texts = (GOLDEN / "texts.txt").read_text().split("\n")
    plain = [i for i, t in enumerate(texts[:60]) if "\\" not in t and golden["plain"][i] and golden["legacy"][i] == golden["plain"][i]]
    assert len(plain) > 30
    for d in daemons:
        for i in plain[::5]:
            r = ok(d.post("/tokenize", {"prompt": texts[i]}))
            assert r["tokens"] == [1] + golden["plain"][i], texts[i]
            assert ok(d.post("/detokenize", {"tokens": r["tokens"][1:]}))["prompt"] == texts[i]


def test_answers(daemons):
    body = {"prompt": "Hello world", "max_tokens": 24, "temperature": 0, "return_token_ids": True, "ignore_eos": True,
            "skip_special_tokens": False}
    answers = [ok(d.post("/v1/completions", body))["choices"][0] for d in daemons]
    assert answers[0]["text"] == answers[1]["text"] and answers[0]["text"]
    # a continuation of the prompt keeps the space with which it begins
    d = daemons[0]
    prompt = ok(d.post("/tokenize", {"prompt": "Hello world"}))["tokens"]
    whole = ok(d.post("/detokenize", {"tokens": prompt[1:] + answers[0]["token_ids"]}))["prompt"]
    assert whole == "Hello world" + answers[0]["text"]


def test_chats(daemons):
    messages = [{"role": "user", "content": "Hi </s> there"}]
    ids = [ok(d.post("/tokenize", {"messages": messages}))["tokens"] for d in daemons]
    assert ids[0] == ids[1]
    assert ids[0][0] == 1 and ids[0].count(1) == 1 and 2 not in ids[0]  # </s> from the client is text
    body = {"messages": messages, "max_tokens": 16, "temperature": 0, "return_token_ids": True, "skip_special_tokens": False}
    for d in daemons:
        whole = ok(d.post("/v1/chat/completions", body))["choices"][0]
        text = whole["message"]["content"]
        # an answer is a separate text: it does not begin with the space that is put before every text
        assert text == ok(d.post("/detokenize", {"tokens": whole["token_ids"]}))["prompt"]
        r = d.post("/v1/chat/completions", {**body, "stream": True})
        events = [json.loads(line[6:]) for line in r.text.split("\n") if line.startswith("data: {")]
        assert "".join(e["choices"][0]["delta"].get("content") or "" for e in events if e["choices"]) == text
