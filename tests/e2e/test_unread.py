"""Answers that clients do not read: the memory that the daemon holds for them is bounded; the largest holder is cut, and others continue."""
import json
import pathlib
import re
import time

import pytest
from harness import SLOWNESS, Daemon, read_all, status_of
from test_dummy import CONFIG

MIB = 1 << 20
KEYS = "k-greedy name=greedy\nk-other name=other operator=1\n"
GREEDY, OTHER = "Authorization: Bearer k-greedy\r\n", "Authorization: Bearer k-other\r\n"
WHOLE = {"prompt": [5, 6], "max_tokens": 256, "ignore_eos": True, "logprobs": 20, "n": 8}  # some 2 MB
ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "config.json").write_text(json.dumps({**CONFIG, "max_position_embeddings": 4096}))
    (folder / "tokenizer.json").write_bytes((ROOT / "tests/golden/tokenizer.json").read_bytes())
    return folder


def start(model, tmp_path, *options, keys=KEYS):
    more = []
    if keys:
        (tmp_path / "keys").write_text(keys)
        more = ["--api-key-file", tmp_path / "keys"]
    return Daemon("--load-format", "dummy", "--running-requests", 128, "--sse-stall-ms", 600000, *more, *options, model=model, kv_bytes=64 * MIB)


def rss(d):
    return int(re.search(r"VmRSS:\s+(\d+) kB", pathlib.Path(f"/proc/{d.process.pid}/status").read_text()).group(1)) << 10


def metric(d, name, key="k-other", label=""):
    text = d.get("/metrics", headers={"authorization": f"Bearer {key}"}).text
    return float(re.search(rf"^{re.escape(name)}\{{[^}}]*{re.escape(label)}[^}}]*\}} (\S+)$", text, re.M).group(1))


def held(d):
    return metric(d, "tandem:answers_held_bytes")


def unread(d, body=WHOLE, path="/v1/completions", headers=GREEDY):
    """Sends a request whose answer is not read."""
    s = d.connect(rcvbuf=2048)
    d.send_request(s, path, body, headers)
    return s


def is_idle(d):
    return metric(d, "vllm:num_requests_running") + metric(d, "vllm:num_requests_waiting") == 0


def outcome(s):
    """Reads the rest. Returns 'whole', 'cut', or the code of its error."""
    s.settimeout(20 * SLOWNESS)
    raw = read_all(s)
    head, _, body = raw.partition(b"\r\n\r\n")
    n = re.search(rb"content-length: (\d+)", head)
    if not n or len(body) < int(n.group(1)):
        return "cut"
    return "whole" if status_of(raw) == 200 else json.loads(body)["error"]["code"]


def ask(d, body, key="k-other"):
    return d.post("/v1/completions", body, headers={"authorization": f"Bearer {key}"})


CLOSE = "Connection: close\r\n"


def test_one_after_another(model, tmp_path):
    """A client that does not read gets its share of the memory and no more; other clients get the rest when they need it."""
    with start(model, tmp_path, "--answers-bytes", 16 * MIB) as d:
        before, sockets = rss(d), []
        for _ in range(20):
            sockets.append(unread(d, headers=GREEDY + CLOSE))
            d.eventually(lambda: d.log().count("key=greedy ") == len(sockets), 10, "an answer")
            time.sleep(0.1)  # what is compared below is bytes times how long each has waited
        d.eventually(lambda: ask(d, WHOLE, "k-greedy").status_code == 429, 10, "a refusal")
        r = ask(d, WHOLE, "k-greedy")
        assert r.json()["error"]["code"] == "answers_full" and "answers_bytes" in r.json()["error"]["message"] and "retry-after" in r.headers
        assert 8 * MIB <= held(d) <= 13 * MIB
        cut_label = 'reason="answers_bytes"'
        assert metric(d, "tandem:connections_cut_total", label=cut_label) == 0
        others = []
        while metric(d, "tandem:connections_cut_total", label=cut_label) == 0 and len(others) < 6:  # one by one, so that this key holds less than the greedy one
            others.append(unread(d, headers=OTHER + CLOSE))
            d.eventually(lambda: d.log().count("key=other ") == len(others), 10, "an answer")
        assert rss(d) - before < 40 * MIB and held(d) <= 16 * MIB
        cut = metric(d, "tandem:connections_cut_total", label=cut_label)
        assert cut > 0 and "its unread answer takes memory that others need (answers_bytes)" in d.log()
        assert [outcome(s) for s in others] == ["whole"] * len(others)
        seen = [outcome(s) for s in sockets]
        assert seen[:int(cut)] == ["cut"] * int(cut), "who has held for longest goes first"
        assert seen.count("cut") == cut and seen.count("whole") >= 1 and seen.count("answers_full") == 20 - cut - seen.count("whole")
        d.eventually(lambda: held(d) < MIB, 10, "nothing held")
        assert ask(d, WHOLE, "k-greedy").status_code == 200


def test_all_at_once(model, tmp_path):
    with start(model, tmp_path, "--answers-bytes", 16 * MIB) as d:
        before, most = rss(d), 0
        sockets = [unread(d, headers=GREEDY + CLOSE) for _ in range(60)]

        def is_over():
            nonlocal most
            r = ask(d, {"prompt": [7, 8], "max_tokens": 4, "ignore_eos": True})
            assert r.status_code == 200 and r.json()["usage"]["completion_tokens"] == 4, r.text
            most = max(most, rss(d) - before)
            return is_idle(d)

        d.eventually(is_over, 60, "the end of all answers")
        assert most < 64 * MIB, f"{most >> 20} MiB"
        assert held(d) <= 16 * MIB
        seen = [outcome(s) for s in sockets]
        assert {"whole", "answers_full"} <= set(seen) <= {"whole", "answers_full", "cut"}, seen


def test_streams(model, tmp_path):
    """Memory that the engine holds for unread streams counts too."""
    body = {**WHOLE, "max_tokens": 2000, "stream": True}
    with start(model, tmp_path, "--answers-bytes", 8 * MIB) as d:
        sockets = [unread(d, body, headers=GREEDY + CLOSE) for _ in range(8)]
        d.eventually(lambda: metric(d, "tandem:connections_cut_total", label='reason="answers_bytes"') > 0, 30, "a cut")
        assert ask(d, {"prompt": [7, 8], "max_tokens": 4}).status_code == 200
        d.eventually(lambda: is_idle(d), 60, "idle")
        assert held(d) <= 8 * MIB
        for s in sockets:
            s.close()


def test_one_answer(model, tmp_path):
    with start(model, tmp_path, "--answer-bytes", MIB) as d:
        r = ask(d, WHOLE)
        assert r.status_code == 400 and r.json()["error"]["code"] == "answer_too_long" and "answer_bytes" in r.json()["error"]["message"]
        assert ask(d, {**WHOLE, "max_tokens": 32}).status_code == 200
        text = "a " * 400000
        for path, b in (("/tokenize", {"prompt": text}), ("/detokenize", {"tokens": [406] * 40000})):
            r = d.post(path, b, headers={"authorization": "Bearer k-other"})
            assert r.status_code == 400 and r.json()["error"]["code"] == "answer_too_long", r.text[:300]
        r = d.post("/tokenize", {"prompt": text[:20000]}, headers={"authorization": "Bearer k-other"})
        assert r.status_code == 200 and r.json()["count"] == len(r.json()["tokens"])


def test_memory_goes_back(tmp_path):
    """What the engine took for requests that were given up is the system's again. The arrays of such a context are just below the size
    from which glibc maps them by themselves, unless it is told."""
    folder = tmp_path / "long"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**CONFIG, "max_position_embeddings": 65536}))
    body = {"prompt": [5, 6], "max_tokens": 65000, "ignore_eos": True, "logprobs": 1}
    with start(folder, tmp_path, keys=None) as d:
        before = rss(d)
        for _ in range(8):
            sockets = [unread(d, body) for _ in range(500)]
            d.eventually(lambda: metric(d, "vllm:num_requests_waiting") > 300, 20, "a queue")
            for s in sockets:
                s.close()
            d.eventually(lambda: is_idle(d), 20, "idle")
        left = rss(d) - before
        assert left < (64 + 96) * MIB, f"{left >> 20} MiB, 64 of them KV"
