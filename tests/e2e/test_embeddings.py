"""/v1/embeddings, of a daemon with --pooling. The expected vectors are transformers' last hidden state, pooled in float64
(tests/golden/make_golden.py scores)."""
import base64
import json
import math
import pathlib
import re
import struct
import sys

import openai
import pytest
from harness import MODEL_ID, Daemon, run_daemon

GOLDEN_DIR = pathlib.Path(__file__).parents[1] / "golden"
sys.path.insert(0, str(GOLDEN_DIR))
import tiny_models  # noqa: E402

GOLDEN = json.loads((GOLDEN_DIR / "golden_scores.json").read_text())["models"]
WIDTH = 64


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    out = tmp_path_factory.mktemp("models")
    for name in GOLDEN:
        tiny_models.write_folder(str(out), name, *tiny_models.FOLDERS[name])
    return out


@pytest.fixture(scope="module")
def mean(models):
    """Steps of few tokens, so that vectors are computed over several chunks, several at a time."""
    with Daemon("--pooling", "mean", "--step-tokens", 16, "--running-requests", 3, model=models / "llama2") as d:
        yield d


def unit(v):
    length = math.sqrt(sum(x * x for x in v))
    return [x / length for x in v]


def vectors(daemon, input, **fields):
    r = daemon.post("/v1/embeddings", {"input": input, **fields})
    assert r.status_code == 200, r.text
    data = r.json()["data"]
    assert [(d["index"], d["object"]) for d in data] == [(i, "embedding") for i in range(len(data))]
    return [d["embedding"] for d in data]


def check(daemon, name, pooling):
    runs = GOLDEN[name]
    prompts = [run["prompt"] for run in runs]
    for got in (vectors(daemon, prompts), vectors(daemon, prompts), [vectors(daemon, p)[0] for p in prompts]):
        for run, v in zip(runs, got):
            assert v == pytest.approx(unit(run[pooling]), abs=2e-5)
    raw = vectors(daemon, prompts[-1], normalize=False)[0]
    assert raw == pytest.approx(runs[-1][pooling], abs=2e-4, rel=1e-4)


@pytest.mark.share
def test_a_mean_is_the_models(mean):
    check(mean, "llama2", "mean")


def test_the_last_tokens_is_the_models(models):
    with Daemon("--pooling", "last", model=models / "qwen3") as d:
        check(d, "qwen3", "last")


def test_through_the_openai_client(mean):
    """The client asks for base64 by default, and for floats if a program wants them."""
    client, texts = mean.client(), ["a river", "two stones", "a river"]
    r = client.embeddings.create(model="llama2", input=texts)
    assert isinstance(r.data[0].embedding, list)
    assert len(r.data) == 3 and r.data[0].embedding == r.data[2].embedding != r.data[1].embedding
    floats = client.embeddings.create(model="llama2", input=texts, encoding_format="float")
    assert [d.embedding for d in r.data] == [pytest.approx(d.embedding, abs=1e-7) for d in floats.data]
    assert all(sum(x * x for x in d.embedding) == pytest.approx(1, abs=1e-5) for d in floats.data)
    assert r.usage.prompt_tokens == r.usage.total_tokens == sum(
        mean.post("/tokenize", {"prompt": t}).json()["count"] for t in texts)
    short = client.embeddings.create(model="llama2", input="a river", dimensions=10, encoding_format="float").data[0].embedding
    assert short == pytest.approx(unit(floats.data[0].embedding[:10]), abs=1e-6)


def test_base64_is_the_floats(mean):
    a, b = vectors(mean, ["x", "y"]), vectors(mean, ["x", "y"], encoding_format="base64")
    for v, text in zip(a, b):
        raw = base64.b64decode(text, validate=True)
        assert struct.unpack(f"<{WIDTH}f", raw) == pytest.approx(v, abs=1e-8)
    for n in range(1, 5):  # each remainder
        assert len(base64.b64decode(vectors(mean, "x", encoding_format="base64", dimensions=n)[0], validate=True)) == 4 * n


@pytest.mark.parametrize("options,most", [(["--context-tokens", 64], 64), (["--kv-bytes", 1 << 16], None)])
def test_an_input_may_fill_the_context(models, mean, options, most):
    """A vector needs no room for an answer, even if memory limits the context."""
    with Daemon("--pooling", "mean", *options, model=models / "llama2") as d:
        most = most or d.get("/v1/models").json()["data"][0]["max_model_len"]
        ids = [3 + 7 * i % 500 for i in range(most + 1)]
        assert vectors(d, [ids[:most]])[0] == pytest.approx(vectors(mean, [ids[:most]])[0], abs=1e-6)
        r = d.post("/v1/embeddings", {"input": ids})
        assert r.status_code == 400 and r.json()["error"]["message"].startswith(
            f"This model's maximum context length is {most} tokens. However, you requested {most + 1} tokens in the input. "
            "Please reduce the length of the input."), r.text


def test_many_at_once(mean):
    """More inputs than can run at the same time, rendered by a worker. Each vector is independent of the others."""
    ids = [[3 + (7 * i + k) % 500 for k in range(1 + i % 40)] for i in range(300)]
    got = vectors(mean, ids)
    for i in (0, 1, 39, 150, 299):
        assert got[i] == vectors(mean, ids[i])[0]
    assert mean.gauge("vllm:generation_tokens_total") == 0 and mean.gauge("vllm:prefix_cache_hits_total") == 0


BAD = [({"input": []}, "input"), ({"input": ""}, None), ({"input": [[]]}, "input"), ({"input": [1, "a"]}, "input"), ({"input": ["a", [1]]}, "input"),
       ({"input": 5}, "input"), ({"input": [512]}, "input"), ({"input": [-1]}, "input"), ({"input": [1.5]}, "input"), ({}, "input"),
       ({"input": ["a"] * 2049}, "input"), ({"input": ["a"] * 1500}, "input"), ({"input": [5] * 600}, "input"),
       ({"input": "a", "encoding_format": "int8"}, "encoding_format"), ({"input": "a", "encoding_format": 1}, "encoding_format"),
       ({"input": "a", "dimensions": 0}, "dimensions"), ({"input": "a", "dimensions": 65}, "dimensions"),
       ({"input": "a", "dimensions": 1.5}, "dimensions"), ({"input": "a", "normalize": 1}, "normalize"),
       ({"input": "a", "truncate_prompt_tokens": 5}, "truncate_prompt_tokens"), ({"input": "a", "dimension": 5}, "dimension"),
       ({"input": "a", "Input": "a"}, "Input")]


@pytest.mark.parametrize("fields,param", BAD)
def test_bad_input_is_named(mean, fields, param):
    r = mean.post("/v1/embeddings", {"model": "llama2", **fields})
    if param is None:  # if a tokenizer adds BOS, an empty text has a vector
        assert r.status_code in (200, 400)
        return
    assert r.status_code == 400 and r.json()["error"]["param"] == param, r.text


def test_what_it_says_of_itself(daemon, mean):
    info = daemon.get("/tokenizer_info").json()
    assert info["eos_token"] == "<|im_end|>" and info["bos_token"] == "<|im_start|>" and info["model_max_length"] == 8192
    assert "<|im_start|>" in info["chat_template"] and info["vocab_size"] == 49152
    for d in (daemon, mean):
        assert re.fullmatch(r"\d+\.\d+\.\d+", d.get("/version").json()["version"])
    assert mean.get("/tokenizer_info").json()["chat_template"] and mean.get("/ready").status_code == 200


def test_no_room_for_an_output_matrix(tmp_path):
    """An untied output matrix is neither loaded nor counted, nor are logits: 131,072 tokens x 64 in bf16 are 16 MiB, and 8 M parameters."""
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1,
              "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 131072, "rms_norm_eps": 1e-5, "max_position_embeddings": 512,
              "tie_word_embeddings": False, "eos_token_id": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    said = []
    for pooling in ("none", "mean"):
        code, text = run_daemon("--check", "--load-format", "dummy", "--model", tmp_path, "--kv-bytes", 1 << 22, "--pooling", pooling)
        assert code == 0, text
        weights, workspace = map(int, re.search(r"memory: weights (\d+) MiB, .*workspace (\d+) MiB", text).groups())
        said.append((weights, workspace, float(re.search(r"([\d.]+) M parameters", text)[1])))
    (w0, s0, p0), (w1, s1, p1) = said
    assert w0 - w1 == 16 and s0 - s1 >= 64 * 131072 * 4 >> 20 and p0 - p1 == pytest.approx(8.4, abs=0.11), said
    with Daemon("--load-format", "dummy", "--pooling", "mean", model=tmp_path, kv_bytes=1 << 22) as d:
        assert len(vectors(d, [[5, 6, 7]])[0]) == WIDTH


def test_a_daemon_does_one_of_both(daemon, mean):
    with pytest.raises(openai.NotFoundError) as e:
        daemon.client().embeddings.create(model=MODEL_ID, input="a")
    assert e.value.code == "not_served" and "pooling" in str(e.value)
    for path, body in (("/v1/completions", {"prompt": "a"}), ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]})):
        r = mean.post(path, body)
        assert r.status_code == 404 and "/v1/embeddings" in r.json()["error"]["message"]
    assert run_daemon("--pooling", "max", "--model", "x")[0] != 0
