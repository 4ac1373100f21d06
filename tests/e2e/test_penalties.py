"""Penalties, logit_bias, min_tokens and log-probabilities, with vLLM's meaning, through the openai client where it has a parameter for them."""
import math
from collections import Counter

import pytest
from harness import MODEL_ID, SLOWNESS

STORY = "Once upon a time, in a small village by the sea,"
N = 40 if SLOWNESS < 8 else 16  # tokens of an answer; with a sanitizer 16 are enough
ASK = [{"role": "user", "content": "Name three rivers."}]


def complete(client, **fields):
    extra = fields.pop("extra", {})
    kw = {"model": MODEL_ID, "prompt": STORY, "max_tokens": N, "temperature": 0, **fields}
    return client.completions.create(extra_body={"return_token_ids": True, **extra}, **kw)


def ids(client, **fields):
    return complete(client, **fields).choices[0].token_ids


def chat(client, **fields):
    return client.chat.completions.create(**{"model": MODEL_ID, "messages": ASK, "max_tokens": 24, "temperature": 0, **fields})


# ---- what the next token is ----

@pytest.mark.share
def test_a_bias_forces_and_forbids(client):
    plain = ids(client)
    assert ids(client, logit_bias={"198": 100}) == [198] * N
    often = Counter(plain).most_common(1)[0][0]
    assert often not in ids(client, logit_bias={str(often): -100})
    assert ids(client, logit_bias={str(often): 0}) == plain and ids(client, logit_bias={}) == plain
    assert ids(client, logit_bias={"198": 100}, temperature=1, seed=4) == [198] * N
    assert len(ids(client, logit_bias={str(i): -100 for i in range(300)})) == N


@pytest.mark.parametrize("presence,frequency", [(2, 0), (0, 2), (1.5, 0.5), (-2, 0), (0, -1.5), (0.3, 0.1)])
def test_the_answer_is_penalised_as_it_grows(client, presence, frequency):
    """Log-probabilities are the model's own, so the chosen token is the best of them less its penalties: a softmax moves
    all logits of a step by the same."""
    r = complete(client, presence_penalty=presence, frequency_penalty=frequency, logprobs=20, max_tokens=80)
    told, seen = r.choices[0].logprobs, Counter()
    for token, own, top in zip(told.tokens, told.token_logprobs, told.top_logprobs):
        def score(t, lp):
            return lp - frequency * seen[t] - presence * (t in seen)
        best = max(score(t, lp) for t, lp in top.items())
        assert score(token, own) >= best - 1e-4, (token, own, top, seen)
        seen[token] += 1
    plain = ids(client, max_tokens=80)
    most = Counter(plain).most_common(1)[0][1]
    if frequency == 2:
        assert Counter(r.choices[0].token_ids).most_common(1)[0][1] < most
    if frequency == -1.5:
        assert Counter(r.choices[0].token_ids).most_common(1)[0][1] > most


def test_repetition_counts_the_prompt_too(client, daemon):
    prompt = daemon.post("/tokenize", {"model": MODEL_ID, "prompt": STORY}).json()["tokens"]
    plain = ids(client)
    assert set(plain) & set(prompt), "else this shows nothing"
    answer = ids(client, extra={"repetition_penalty": 1000})
    assert len(set(answer)) == len(answer) and not set(answer) & set(prompt)
    assert ids(client, extra={"repetition_penalty": 1.0}) == plain
    assert ids(client, extra={"repetition_penalty": 0.2}) != plain


def test_penalised_answers_do_not_depend_on_their_neighbours(client):
    """Alone, and as choices of one prompt, each with its own counts."""
    f = {"temperature": 1, "seed": 5, "frequency_penalty": 1.2, "presence_penalty": -0.4, "logit_bias": {"30": -3}}
    both = complete(client, n=3, **f).choices
    alone = [ids(client, **{**f, "seed": 5 + i}) for i in range(3)]
    assert [c.token_ids for c in both] == alone and alone[0] != alone[1]


@pytest.mark.share
def test_min_tokens(client):
    ends = {"logit_bias": {"2": 100}}  # <|im_end|>, with which every answer would begin
    r = complete(client, **ends)
    assert r.choices[0].token_ids == [2] and r.choices[0].text == ""
    for n in (1, 5, N - 1):
        r = complete(client, extra={"min_tokens": n}, **ends)
        assert len(r.choices[0].token_ids) == n + 1 and r.choices[0].token_ids[-1] == 2 and r.choices[0].finish_reason == "stop"
        assert 2 not in r.choices[0].token_ids[:-1]
    plain = complete(client)
    third = plain.choices[0].token_ids[2]
    stopped = ids(client, extra={"stop_token_ids": [third]})
    assert stopped == plain.choices[0].token_ids[:plain.choices[0].token_ids.index(third) + 1]
    later = ids(client, extra={"stop_token_ids": [third], "min_tokens": 10})
    assert len(later) > 10 and third not in later[:10]
    assert ids(client, extra={"min_tokens": N, "ignore_eos": True}) == plain.choices[0].token_ids


def test_stop_strings_within_min_tokens_are_text(client):
    whole = complete(client).choices[0].text
    word = whole.split()[1]
    assert complete(client, stop=[word]).choices[0].text == whole[:whole.index(word)]
    r = complete(client, stop=[word], extra={"min_tokens": N})
    assert r.choices[0].text == whole and r.choices[0].finish_reason == "length"


# ---- log-probabilities ----

def check_content(content, text, n_top):
    assert b"".join(bytes(t.bytes) for t in content).decode() == text
    for t in content:
        assert t.logprob <= 0 and len(t.top_logprobs) == n_top
        values = [x.logprob for x in t.top_logprobs]
        assert values == sorted(values, reverse=True) and sum(math.exp(v) for v in values) <= 1 + 1e-5
        assert all(x.token.encode() == bytes(x.bytes) or "�" in x.token for x in t.top_logprobs)


@pytest.mark.share
def test_of_a_chat(client):
    r = chat(client, logprobs=True, top_logprobs=4)
    content = r.choices[0].logprobs.content
    check_content(content, r.choices[0].message.content, 4)
    assert all(t.token == t.top_logprobs[0].token and t.logprob == t.top_logprobs[0].logprob for t in content), "greedy"
    assert chat(client).choices[0].logprobs is None
    bare = chat(client, logprobs=True).choices[0].logprobs.content
    assert [t.logprob for t in bare] == [t.logprob for t in content] and all(t.top_logprobs == [] for t in bare)


def test_a_stream_says_the_same(client):
    whole = chat(client, logprobs=True, top_logprobs=3, stop=["zzz"])
    for stop in (None, ["zzz"]):
        got = []
        for chunk in chat(client, logprobs=True, top_logprobs=3, stop=stop, stream=True):
            if chunk.choices and chunk.choices[0].logprobs:
                got += chunk.choices[0].logprobs.content
        assert [t.model_dump() for t in got] == [t.model_dump() for t in whole.choices[0].logprobs.content]


def test_they_are_of_the_model_whatever_is_asked_for(client):
    """Temperature, penalties and biases affect the choice, but not the returned log-probabilities."""
    plain = complete(client, logprobs=20, max_tokens=1).choices[0].logprobs
    for f in ({"temperature": 2, "seed": 3}, {"logit_bias": {"198": 100}}, {"temperature": 1, "top_p": 0.1}, {"presence_penalty": 2}):
        told = complete(client, logprobs=20, max_tokens=1, **f).choices[0].logprobs
        token, own = told.tokens[0], told.token_logprobs[0]
        assert {t: v for t, v in told.top_logprobs[0].items() if t != token} == {
            t: v for t, v in plain.top_logprobs[0].items() if t != token}
        assert own == told.top_logprobs[0][token]
    first = sum(math.exp(v) for v in plain.top_logprobs[0].values())
    assert 0.1 < first <= 1 + 1e-5


def test_of_a_completion(client):
    for n in (0, 1, 5):
        r = complete(client, logprobs=n)
        told, text = r.choices[0].logprobs, r.choices[0].text
        assert "".join(told.tokens) == text and len(told.tokens) == len(told.token_logprobs) == len(told.top_logprobs)
        assert [text[o:o + len(t)] for o, t in zip(told.text_offset, told.tokens)] == told.tokens
        assert all(len(top) == max(n, 1) and top[t] == v for t, v, top in zip(told.tokens, told.token_logprobs, told.top_logprobs))
    streamed = {"tokens": [], "token_logprobs": [], "text_offset": [], "top_logprobs": []}
    for chunk in complete(client, logprobs=5, stream=True):
        for name, values in streamed.items():
            if chunk.choices and chunk.choices[0].logprobs:
                values += getattr(chunk.choices[0].logprobs, name)
    assert streamed == {name: getattr(told, name) for name in streamed}
