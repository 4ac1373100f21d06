"""What answers return about their prompts: echo, with and without log-probabilities, and vLLM's prompt_logprobs.

The values are transformers' log-softmax in float32 (tests/golden/make_golden.py scores). `scripts/loglikelihood` shows that
lm-evaluation-harness gets the scores of its hf backend through them."""
import json
import pathlib
import sys

import httpx
import pytest
from harness import MODEL_ID, Daemon, sse_events

GOLDEN_DIR = pathlib.Path(__file__).parents[1] / "golden"
sys.path.insert(0, str(GOLDEN_DIR))
import tiny_models  # noqa: E402

GOLDEN = json.loads((GOLDEN_DIR / "golden_scores.json").read_text())["models"]
TEXT = "The capital of France is"
TOLERANCE = 2e-4


def ask(daemon, path="/v1/completions", **fields):
    body = {"model": MODEL_ID, "prompt": TEXT, "max_tokens": 3, "temperature": 0, **fields}
    if path != "/v1/completions":
        body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
    return daemon.post(path, body)


def choices(daemon, **fields):
    r = ask(daemon, **fields)
    assert r.status_code == 200, r.text
    return r.json()["choices"]


# ---- the values ----

@pytest.fixture(scope="module", params=list(GOLDEN))
def tiny(request, tmp_path_factory):
    """A tiny model whose steps score at most 8 prompt tokens, so that chunks are cut."""
    out = tmp_path_factory.mktemp("models")
    tiny_models.write_folder(str(out), request.param, *tiny_models.FOLDERS[request.param])
    with Daemon("--prompt-logits", 8, model=out / request.param) as d:
        yield d, request.param, GOLDEN[request.param]


def test_scores_are_the_models(tiny):
    """All prompts in one request, sent twice: cached pages must not remove any returned value."""
    daemon, name, runs = tiny
    for _ in range(2):
        r = daemon.post("/v1/completions", {"model": name, "prompt": [run["prompt"] for run in runs], "max_tokens": 1,
                                            "temperature": 0, "echo": True, "logprobs": 5, "prompt_logprobs": 3})
        assert r.status_code == 200, r.text
        assert r.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        for run, choice in zip(runs, r.json()["choices"]):
            told, n = choice["logprobs"], len(run["prompt"])
            assert told["token_logprobs"][0] is None and told["top_logprobs"][0] is None
            assert told["token_logprobs"][1:n] == pytest.approx(run["scores"], abs=TOLERANCE)
            assert len(told["tokens"]) == n + 1
            own = choice["prompt_logprobs"]
            assert own[0] is None and len(own) == n
            for token, score, top, got in zip(run["prompt"][1:], run["scores"], run["top"], own[1:]):
                assert got[str(token)]["logprob"] == pytest.approx(score, abs=TOLERANCE)
                best = [i for i, _ in top[:3]]
                assert set(map(int, got)) == {token, *best}
                for rank, (i, value) in enumerate(top[:3]):
                    assert got[str(i)]["logprob"] == pytest.approx(value, abs=TOLERANCE) and got[str(i)]["rank"] == rank + 1
                ranks = [i for i, _ in top]  # five are known, because logprobs asks for five
                assert got[str(token)]["rank"] == (ranks.index(token) + 1 if token in ranks else None)


# ---- completions ----

def test_a_prompt_that_ends_within_a_character(daemon):
    """Bytes at its end that are not a complete character yet are returned too, and do not wait for bytes of the answer."""
    ids = daemon.post("/tokenize", {"prompt": "to \U0001f9a9"}).json()["tokens"][:-1]
    prompt = daemon.post("/detokenize", {"tokens": ids}).json()["prompt"]
    assert prompt.endswith("\ufffd")
    whole, plain = (choices(daemon, prompt=ids, echo=echo)[0]["text"] for echo in (True, False))
    assert whole == prompt + plain


@pytest.mark.share
def test_an_echo_comes_before_the_answer(daemon):
    plain, = choices(daemon)
    echoed, = choices(daemon, echo=True)
    assert echoed["text"] == TEXT + plain["text"] and echoed["logprobs"] is None and echoed["finish_reason"] == "length"
    told, = choices(daemon, echo=True, logprobs=2)
    own = told["logprobs"]
    assert "".join(own["tokens"]) == told["text"] == echoed["text"]
    assert [told["text"][o:o + len(t)] for o, t in zip(own["text_offset"], own["tokens"])] == own["tokens"]
    assert own["token_logprobs"][0] is None and all(v <= 0 for v in own["token_logprobs"][1:])
    assert all(v == top[t] for t, v, top in list(zip(own["tokens"], own["token_logprobs"], own["top_logprobs"]))[1:])
    alone, = choices(daemon, logprobs=2)
    assert own["token_logprobs"][-3:] == alone["logprobs"]["token_logprobs"]


def test_a_stream_echoes_the_same(daemon):
    """Also for a prompt with more tokens than fit into one event, whose choices wait for its scores; stop strings apply to answers only."""
    prompt = " the cat and the dog"
    for fields in ({}, {"logprobs": 1}, {"logprobs": 0, "n": 2, "seed": 1, "temperature": 1, "prompt": prompt * 105},
                   {"max_tokens": 0, "logprobs": 1}):
        fields = {"prompt": prompt, "echo": True, "stop": ["dog and a", "cat"], **fields}
        whole = choices(daemon, **fields)
        got = [{"text": "", "logprobs": None} for _ in whole]
        for event in sse_events(ask(daemon, stream=True, **fields).text):
            for c in event["choices"]:
                g = got[c["index"]]
                g["text"] += c["text"]
                for name, values in (c["logprobs"] or {}).items():
                    g["logprobs"] = g["logprobs"] or {}
                    g["logprobs"].setdefault(name, []).extend(values)
        assert got == [{"text": c["text"], "logprobs": c["logprobs"]} for c in whole]
        assert all(c["text"].startswith(prompt) for c in whole)


def test_a_long_answer_is_written_beside_others(daemon):
    """A worker renders it, and nothing leaks if the client disconnects meanwhile."""
    fields = {"prompt": [[504 + i] * 50 for i in range(6)], "echo": True, "logprobs": 20, "max_tokens": 1}
    told = choices(daemon, **fields)
    assert [len(c["logprobs"]["top_logprobs"]) for c in told] == [51] * 6
    assert told[3] == {**choices(daemon, **{**fields, "prompt": fields["prompt"][3]})[0], "index": 3}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(daemon.url + "/v1/completions", json={"model": MODEL_ID, "temperature": 0, **fields}, timeout=0.1)
    assert choices(daemon)


def test_no_answer_at_all(daemon):
    for n in (1, 3):
        r = ask(daemon, echo=True, logprobs=0, max_tokens=0, n=n)
        assert [c["text"] for c in r.json()["choices"]] == [TEXT] * n and len(r.json()["choices"][0]["logprobs"]["tokens"]) == 5
        assert r.json()["usage"]["completion_tokens"] == 0 and r.json()["choices"][-1]["logprobs"] == r.json()["choices"][0]["logprobs"]
    one, = choices(daemon, prompt=[504], echo=True, logprobs=1, max_tokens=0)
    assert one["logprobs"]["token_logprobs"] == [None] and one["text"] == "The"
    bare, = choices(daemon, prompt_logprobs=0, max_tokens=0)
    assert bare["text"] == "" and [p and len(p) for p in bare["prompt_logprobs"]] == [None, 1, 1, 1, 1]


def test_ids_are_echoed_as_text(daemon):
    ids = daemon.post("/tokenize", {"prompt": "<|im_start|>user\né世"}).json()["tokens"]
    assert choices(daemon, prompt=[ids, ids[:3]], echo=True, max_tokens=0)[0]["text"] == "<|im_start|>user\né世"


def test_the_token_that_ends_is_told_too(daemon):
    """lm-evaluation-harness always takes the last log-probability for the answer's."""
    told, = choices(daemon, echo=True, logprobs=1, logit_bias={"2": 100}, max_tokens=1)
    assert told["text"] == TEXT and told["logprobs"]["tokens"][5:] == ["<|im_end|>"] and told["finish_reason"] == "stop"


# ---- both ----

def test_prompt_logprobs_of_a_chat(daemon):
    r = ask(daemon, "/v1/chat/completions", prompt_logprobs=2, return_token_ids=True)
    told, ids = r.json()["prompt_logprobs"], r.json()["prompt_token_ids"]
    assert told[0] is None and len(told) == len(ids) and all(str(i) in t for i, t in zip(ids[1:], told[1:]))
    assert {frozenset(v) for t in told[1:] for v in t.values()} == {frozenset(("logprob", "rank", "decoded_token"))}
    assert all(len(t) in (2, 3) for t in told[1:]) and r.json()["choices"][0]["logprobs"] is None
    same = choices(daemon, prompt=ids, prompt_logprobs=2)[0]["prompt_logprobs"]
    assert same == told
    assert "prompt_logprobs" not in ask(daemon, "/v1/chat/completions").json()


BAD = [({"echo": 1}, "echo"), ({"echo": "true"}, "echo"), ({"prompt_logprobs": -1}, "prompt_logprobs"), ({"prompt_logprobs": 21}, "prompt_logprobs"),
       ({"prompt_logprobs": 1.5}, "prompt_logprobs"), ({"prompt_logprobs": True}, "prompt_logprobs"), ({"prompt_logprobs": "1"}, "prompt_logprobs"),
       ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"), ({"max_tokens": 0}, "max_tokens"),
       ({"max_tokens": 0, "echo": True, "min_tokens": 1}, "min_tokens")]


@pytest.mark.parametrize("fields,param", BAD)
def test_bad_values_are_named(daemon, fields, param):
    r = ask(daemon, **fields)
    assert r.status_code == 400 and r.json()["error"]["param"] == param, r.text


def test_what_an_answer_tells_is_bounded():
    with Daemon("--prompt-scores", 20) as d:
        assert ask(d, prompt_logprobs=3).status_code == 200
        for fields in ({"prompt_logprobs": 4}, {"echo": True, "logprobs": 0, "n": 5}, {"echo": True, "logprobs": 1, "prompt_logprobs": 2}):
            r = ask(d, **fields)
            assert r.status_code == 400 and "prompt_scores" in r.json()["error"]["message"], r.text
        assert ask(d, echo=True, n=5).status_code == 200
