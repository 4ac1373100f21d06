"""What determines the next token and the end: greedy, seeds, filters, stops, lengths, token ids in and out."""
import itertools

import pytest
from harness import MODEL_ID, SLOWNESS, Daemon

STORY = "Once upon a time, in a small village by the sea,"


def completion(daemon, prompt=STORY, **fields):
    body = {"model": MODEL_ID, "prompt": prompt, "max_tokens": 24, "return_token_ids": True, **fields}
    r = daemon.post("/v1/completions", body)
    assert r.status_code == 200, r.text
    return r.json()


def ids(daemon, **fields):
    return completion(daemon, **fields)["choices"][0]["token_ids"]


def test_greedy_is_one_answer(daemon):
    first = ids(daemon, temperature=0)
    assert first == ids(daemon, temperature=0, seed=99, top_p=0.1)
    assert first == ids(daemon, temperature=1, top_k=1, seed=3), "top_k 1 leaves the highest logit only"
    assert first == ids(daemon, temperature=1, top_p=1e-6, seed=4), "a tiny top_p leaves the highest logit only"
    assert first == ids(daemon, temperature=1, min_p=1, seed=5), "min_p 1 leaves the highest logit only"


def test_seed_repeats_and_differs(daemon):
    runs = {seed: ids(daemon, temperature=1, seed=seed) for seed in (1, 2, 3)}
    assert len({tuple(r) for r in runs.values()}) == 3
    for seed, tokens in runs.items():
        assert ids(daemon, temperature=1, seed=seed) == tokens


def test_no_seed_differs(daemon):
    assert len({tuple(ids(daemon, temperature=1.5)) for _ in range(4)}) > 1


def test_seed_is_exact_to_the_last_bit(daemon):
    """Neighbours above 2^53 are the same double: if their answers are equal, the seed went through a double."""
    seeds = [2**53, 2**53 + 1, 2**62, 2**62 + 1, 2**63 - 1, 2**63 - 2]
    answers = [tuple(ids(daemon, temperature=2, seed=s)) for s in seeds]
    assert len(set(answers)) == len(seeds)
    assert tuple(ids(daemon, temperature=2, seed=seeds[3])) == answers[3]


def test_top_k_narrows(daemon):
    """With top_k 2 the first token is one of the two likeliest, and over many seeds both occur."""
    def firsts(**f):
        return {ids(daemon, temperature=2, seed=s, max_tokens=1, **f)[0] for s in range(24)}
    two, wide = firsts(top_k=2), firsts()
    assert len(two) == 2 and ids(daemon, temperature=0, max_tokens=1)[0] in two
    assert len(wide) > 4
    assert len(firsts(top_k=-1)) > 4 and len(firsts(top_k=0)) > 4, "0 and -1 mean off"


@pytest.mark.share
def test_stop_strings_across_token_borders(daemon):
    whole = completion(daemon, temperature=0, max_tokens=32)
    text = whole["choices"][0]["text"]
    assert len(text) > 60
    for start, size in itertools.product(range(5, 50, 9 if SLOWNESS == 1 else 22), (1, 4, 9)):
        stop = text[start:start + size]
        for stream in (False, True):
            r = completion_text(daemon, stop=stop, stream=stream) if size == 4 or not stream else None
            if r:
                assert r == (text[:text.index(stop)], "stop"), (stop, stream)


def completion_text(daemon, stop, stream):
    """Returns (text, finish_reason) of a greedy answer."""
    from harness import sse_events
    body = {"model": MODEL_ID, "prompt": STORY, "temperature": 0, "max_tokens": 32, "stop": stop, "stream": stream}
    r = daemon.post("/v1/completions", body)
    assert r.status_code == 200, r.text
    if not stream:
        c = r.json()["choices"][0]
        return c["text"], c["finish_reason"]
    events = sse_events(r.text)
    reasons = [e["choices"][0]["finish_reason"] for e in events if e["choices"][0]["finish_reason"]]
    assert len(reasons) == 1
    return "".join(e["choices"][0]["text"] for e in events), reasons[0]


def test_stop_picks_the_first_of_several(daemon):
    text = completion(daemon, temperature=0, max_tokens=32)["choices"][0]["text"]
    stops = [text[40:46], text[20:24], "never there"]
    expect = min(text.index(s) for s in stops[:2])
    assert completion_text(daemon, stops, True) == (text[:expect], "stop")


def test_a_stop_that_almost_comes_loses_nothing(daemon):
    """Text is held back while it may begin a stop string, and must be sent when it does not."""
    text = completion(daemon, temperature=0, max_tokens=32)["choices"][0]["text"]
    almost = [text[i:i + 12] + "\x01" for i in (3, 17, 30)]
    assert completion_text(daemon, almost, True) == (text, "length")
    end = text[-6:] + "?"
    assert completion_text(daemon, end, True)[0] == text


def test_stop_token_ids(daemon):
    tokens = ids(daemon, temperature=0)
    k = next(i for i in range(5, len(tokens)) if tokens[i] not in tokens[:i])
    r = completion(daemon, temperature=0, stop_token_ids=[tokens[k]])
    assert r["choices"][0]["finish_reason"] == "stop" and r["usage"]["completion_tokens"] == k + 1
    assert r["choices"][0]["token_ids"] == tokens[:k + 1]
    text = daemon.post("/detokenize", {"model": MODEL_ID, "tokens": tokens[:k]}).json()["prompt"]
    assert r["choices"][0]["text"] == text, "a stop token's own text is not part of the answer"


def test_token_ids_in_equal_text_in(daemon):
    tokens = daemon.post("/tokenize", {"model": MODEL_ID, "prompt": STORY}).json()["tokens"]
    by_text, by_ids = completion(daemon, temperature=0), completion(daemon, prompt=tokens, temperature=0)
    assert by_text["choices"][0]["text"] == by_ids["choices"][0]["text"]
    assert by_text["usage"]["prompt_tokens"] == by_ids["usage"]["prompt_tokens"] == len(tokens)
    assert by_ids["choices"][0]["prompt_token_ids"] == tokens
    both = completion(daemon, prompt=[tokens, tokens[:5]], temperature=0)
    assert both["choices"][0]["token_ids"] == by_text["choices"][0]["token_ids"]
    assert both["usage"]["prompt_tokens"] == len(tokens) + 5


def test_returned_ids_spell_the_text(daemon):
    from harness import sse_events
    body = {"model": MODEL_ID, "prompt": STORY, "temperature": 1, "seed": 5, "max_tokens": 30, "return_token_ids": True}
    whole = daemon.post("/v1/completions", body).json()["choices"][0]
    text = daemon.post("/detokenize", {"model": MODEL_ID, "tokens": whole["token_ids"]}).json()["prompt"]
    assert whole["finish_reason"] != "length" or text == whole["text"]
    events = sse_events(daemon.post("/v1/completions", {**body, "stream": True}).text)
    streamed = [t for e in events for t in e["choices"][0].get("token_ids") or []]
    assert streamed == whole["token_ids"]


def test_max_tokens_one_and_ignore_eos(daemon):
    assert completion(daemon, temperature=0, max_tokens=1)["usage"]["completion_tokens"] == 1
    chat = {"model": MODEL_ID, "messages": [{"role": "user", "content": "Say hi."}], "temperature": 0, "max_tokens": 200}
    r = daemon.post("/v1/chat/completions", chat).json()
    assert r["choices"][0]["finish_reason"] == "stop" and r["usage"]["completion_tokens"] < 200
    assert len(r["choices"][0]["message"]["content"]) > 0


def test_max_completion_tokens_is_max_tokens(client):
    r = client.chat.completions.create(model=MODEL_ID, messages=[{"role": "user", "content": "Count to fifty."}],
                                       temperature=0, max_completion_tokens=7)
    assert r.usage.completion_tokens == 7 and r.choices[0].finish_reason == "length"


def test_context_end_is_a_length_finish():
    """An answer with no max_tokens runs to the end of the context and no further."""
    with Daemon("--context-tokens", 256) as d:
        body = {"model": MODEL_ID, "prompt": [1000] * 244, "temperature": 0, "ignore_eos": True}
        for extra in ({}, {"max_tokens": 12}):
            r = d.post("/v1/completions", {**body, **extra}).json()
            assert r["usage"]["total_tokens"] == 256 and r["choices"][0]["finish_reason"] == "length"
        r = d.post("/v1/completions", {**body, "max_tokens": 13})
        assert r.status_code == 400 and r.json()["error"]["code"] == "context_length_exceeded"


# ---- where sampling parameters come from: request > option > model > API ----

def test_the_operators_sampling_is_the_default_and_a_request_wins():
    fields = {"seed": 7, "max_tokens": 16}
    with Daemon("--temperature", "0.3", "--top-p", "0.5", "--top-k", "7", "--min-p", "0.05") as d:
        assert "temperature 0.3, top_p 0.5, top_k 7, min_p 0.05" in d.log()
        as_said = ids(d, temperature=0.3, top_p=0.5, top_k=7, min_p=0.05, **fields)
        assert ids(d, **fields) == as_said
        hot = ids(d, temperature=2, top_p=1, top_k=0, min_p=0, **fields)
        assert hot != as_said
        greedy = ids(d, temperature=0, **fields)
    with Daemon("--temperature", 0) as d:
        assert "temperature 0, top_p 1, top_k 0, min_p 0" in d.log()
        assert ids(d, **fields) == greedy
        assert ids(d, temperature=2, **fields) == hot


def test_what_ends_an_answer_is_logged(daemon):
    assert "answers end at: 2 <|im_end|>, 0 <|endoftext|>" in daemon.log()
