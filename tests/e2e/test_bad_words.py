"""bad_words and include_stop_str_in_output, with vLLM's meaning."""
import pytest
import reference
from harness import MODEL_ID

STORY = "Once upon a time, in a small village by the sea,"
BODY = {"model": MODEL_ID, "prompt": STORY, "max_tokens": 16, "temperature": 0, "return_token_ids": True}


def ask(daemon, **fields):
    r = daemon.post("/v1/completions", {**BODY, **fields})
    assert r.status_code == 200, r.text
    return r.json()["choices"][0]


def tokens(text):
    return reference.tokenizer().encode(text).ids


def forbidden(words):
    """A second implementation of vLLM's rule: returns the sequences that must not be completed."""
    out = []
    for word in words:
        plain, blank = tokens(word.lstrip()), tokens(" " + word.lstrip())
        out.append(plain)
        if len(blank) == len(plain) and blank[0] != plain[0]:
            out.append(blank)
    return out


def may_come(answer, token, sequences):
    return not any(s[-1] == token and answer[len(answer) - len(s) + 1:] == s[:-1] for s in sequences if len(s) - 1 <= len(answer))


@pytest.mark.share
@pytest.mark.parametrize("n_words", [1, 12])
def test_each_token_is_the_best_that_may_come(daemon, n_words):
    """Log-probabilities are the model's own, so the chosen token is the likeliest returned one that is allowed."""
    plain = ask(daemon)["text"].split()
    words = (plain + ["gold coin", "ed", "lighthouse keeper"])[:n_words]
    sequences = forbidden(words)
    got = ask(daemon, bad_words=words, logprobs=20)
    told, so_far, forbade = got["logprobs"], [], 0
    text_of = {}
    for token, chosen, top in zip(got["token_ids"], told["tokens"], told["top_logprobs"]):
        text_of[chosen] = token
        for text in top:
            if text not in text_of:
                ids = tokens(text)
                text_of[text] = ids[0] if len(ids) == 1 else None
        allowed = [v for text, v in top.items() if text_of[text] is None or may_come(so_far, text_of[text], sequences)]
        forbade += len(allowed) < len(top)
        assert may_come(so_far, token, sequences) and top[chosen] >= max(allowed) - 1e-6, (so_far, chosen, top)
        so_far.append(token)
    assert forbade, "else this shows nothing"


def test_a_sequence_is_forbidden_and_its_parts_are_not(daemon):
    whole = ask(daemon)["token_ids"]
    at = next(i for i in range(3, 15) if whole.index(whole[i]) == i and whole[i - 1] in whole[:i])
    text = daemon.post("/detokenize", {"tokens": whole[at - 1:at + 1]}).json()["prompt"]
    got = ask(daemon, bad_words=[text])["token_ids"]
    assert got[:at] == whole[:at] and got[at] != whole[at]


def test_in_chats_and_streams_and_beside_a_grammar(daemon):
    body = {"model": MODEL_ID, "messages": [{"role": "user", "content": "Say yes or no."}], "temperature": 0, "max_tokens": 8}
    r = daemon.post("/v1/chat/completions", {**body, "guided_choice": ["yes", "no"], "bad_words": ["yes", "y", "ye"]})
    assert r.json()["choices"][0]["message"]["content"] == "no", r.text
    r = daemon.post("/v1/chat/completions", {**body, "guided_choice": ["yes"], "bad_words": ["yes", "y", "ye"]})
    assert r.status_code == 400 and r.json()["error"]["code"] == "grammar_stuck" and r.json()["error"]["param"] == "bad_words", r.text
    alone = ask(daemon)
    both = daemon.post("/v1/completions", {**BODY, "n": 2, "temperature": 1, "seed": 3, "bad_words": [alone["text"].split()[0]]})
    assert both.status_code == 200 and ask(daemon) == alone


def test_a_stop_string_stays(daemon):
    whole = ask(daemon)["text"]
    word = whole.split()[2]
    cut = whole[:whole.index(word)]
    assert ask(daemon, stop=[word])["text"] == cut
    kept = ask(daemon, stop=[word], include_stop_str_in_output=True)
    assert kept["text"] == cut + word and kept["finish_reason"] == "stop"
    token = ask(daemon)["token_ids"][4]
    r = ask(daemon, stop_token_ids=[token], include_stop_str_in_output=True)
    assert r["token_ids"][-1] == token and r["text"] == daemon.post("/detokenize", {"tokens": r["token_ids"]}).json()["prompt"]
    assert len(ask(daemon, stop_token_ids=[token])["text"]) < len(r["text"])


BAD = [({"bad_words": "a"}, "bad_words"), ({"bad_words": [1]}, "bad_words"), ({"bad_words": [""]}, "bad_words"), ({"bad_words": [" "]}, "bad_words"),
       ({"bad_words": {"a": 1}}, "bad_words"), ({"bad_words": True}, "bad_words"), ({"bad_words": ["a"] * 257}, "bad_words"),
       ({"bad_words": ["a" * 257]}, "bad_words"), ({"bad_words": [["a"]]}, "bad_words"), ({"bad_words": ["a", None]}, "bad_words"),
       ({"include_stop_str_in_output": 1}, "include_stop_str_in_output"), ({"include_stop_str_in_output": "yes"}, "include_stop_str_in_output")]


@pytest.mark.parametrize("fields,param", BAD)
def test_bad_values_are_named(daemon, fields, param):
    for path, body in (("/v1/completions", {**BODY, **fields}),
                       ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, **fields})):
        r = daemon.post(path, body)
        assert r.status_code == 400 and r.json()["error"]["param"] == param, r.text


def test_the_bounds_are_reached(daemon):
    assert ask(daemon, bad_words=["x" * 256] * 256, max_tokens=2) and ask(daemon, bad_words=[], max_tokens=1)
