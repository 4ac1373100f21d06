"""Limits in the key file: 429 with OpenAI's headers, and which keys see what in /metrics."""
import random
import time

import openai
import pytest
from harness import MODEL_ID, Daemon, parse_metrics, read_until

KEYS = """\
k-rpm name=rpm requests_per_minute=2
k-tpm name=tpm tokens_per_minute=40
k-few name=few requests=2 waiting=1
k-op name=op operator=1
k-one name=one waiting=1
"""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(KEYS)
    with Daemon("--api-key-file", keys, api_key="k-op") as d:
        yield d


def ask(d, key, path="/v1/completions", **fields):
    body = {"model": MODEL_ID, "prompt": [700 + i for i in range(10)], "max_tokens": 3, "ignore_eos": True, **fields}
    return d.post(path, body, headers={"authorization": f"Bearer {key}"})


def metrics(d, key):
    text = d.get("/metrics", headers={"authorization": f"Bearer {key}"}).text
    return {(n, labels.split('key="')[1].rstrip('"')): v for (n, labels), v in parse_metrics(text).items() if 'key="' in labels}


def test_requests_a_minute(daemon):
    first, second, third = (ask(daemon, "k-rpm") for _ in range(3))
    assert first.status_code == second.status_code == 200 and third.status_code == 429
    assert [r.headers["x-ratelimit-remaining-requests"] for r in (first, second, third)] == ["1", "0", "0"]
    assert third.headers["x-ratelimit-limit-requests"] == "2" and "x-ratelimit-limit-tokens" not in third.headers
    assert 1 <= int(third.headers["retry-after"]) <= 31 and third.headers["x-ratelimit-reset-requests"].endswith("s")
    error = third.json()["error"]
    assert error["code"] == "rate_limit_exceeded" and error["type"] == "requests"
    with pytest.raises(openai.RateLimitError):
        daemon.client(api_key="k-rpm").models.list() and daemon.client(api_key="k-rpm").completions.create(model=MODEL_ID, prompt="x")
    assert metrics(daemon, "k-op")[("tandem:key_refused_total", "rpm")] == 2


def test_tokens_a_minute(daemon):
    assert ask(daemon, "k-tpm", prompt=[5] * 41).status_code == 400, "never a 429 for what never fits"
    r = ask(daemon, "k-tpm", max_tokens=25)
    assert r.status_code == 200 and r.headers["x-ratelimit-limit-tokens"] == "40"
    r = ask(daemon, "k-tpm")
    assert r.status_code == 429 and r.json()["error"]["type"] == "tokens" and int(r.headers["retry-after"]) >= 2
    assert int(r.headers["x-ratelimit-remaining-tokens"]) <= 8
    r = ask(daemon, "k-tpm", path="/tokenize", prompt="x")
    assert r.status_code == 200, r.text


def test_at_once(daemon):
    assert ask(daemon, "k-few", n=2).status_code == 400, "two that wait are never allowed"
    streams = []
    for _ in range(2):
        s = daemon.connect(60)
        daemon.send_request(s, "/v1/completions", {"model": MODEL_ID, "prompt": "x", "max_tokens": 2000, "ignore_eos": True, "stream": True},
                            "Authorization: Bearer k-few\r\n")
        head = s.recv(4096)
        while b"data: " not in head:
            head += s.recv(4096)
        streams.append(s)
    r = ask(daemon, "k-few")
    assert r.status_code == 429 and "2 requests under way" in r.json()["error"]["message"] and r.headers["retry-after"]
    assert metrics(daemon, "k-op")[("tandem:key_requests_running", "few")] == 2
    for s in streams:
        s.close()
    daemon.eventually(lambda: metrics(daemon, "k-op")[("tandem:key_requests_running", "few")] == 0, what="they end")
    assert ask(daemon, "k-few").status_code == 200


def test_what_only_counts_tokens_does_not_wait_for_any(daemon):
    rng = random.Random(1)
    words = " ".join("".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=30)) for _ in range(100000))
    with daemon.connect(60) as s:
        daemon.send_request(s, "/tokenize", {"model": MODEL_ID, "prompt": words}, "Authorization: Bearer k-one\r\n")
        time.sleep(0.1)  # until a worker has the request
        r = ask(daemon, "k-one")
        assert r.status_code == 200, r.text
        assert b" 200 OK" in read_until(s, b"\r\n\r\n")


def test_tokens_of_what_the_engine_refuses_are_given_back(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("k-op operator=1\nk-tpm tokens_per_minute=2000\n")
    body = {"model": MODEL_ID, "prompt": [1000 + i for i in range(600)], "max_tokens": 2000, "ignore_eos": True, "stream": True}
    with Daemon("--api-key-file", keys, "--running-requests", 1, "--queue-tokens", 1024, api_key="k-op") as d, \
            d.connect(60) as running, d.connect(60) as waiting:
        d.send_request(running, "/v1/completions", {**body, "prompt": "x"}, "Authorization: Bearer k-op\r\n")
        read_until(running, b"data: ")
        d.send_request(waiting, "/v1/completions", body, "Authorization: Bearer k-tpm\r\n")
        read_until(waiting, b"\r\n\r\n")
        r = ask(d, "k-tpm", prompt=body["prompt"])
        assert r.status_code == 429 and r.json()["error"]["code"] == "queue_full", r.text
        assert int(r.headers["x-ratelimit-remaining-tokens"]) >= 1400, "600 are taken, not 1200"


def test_the_key_may_come_as_anthropics_clients_send_it(daemon):
    def status(**headers):
        return daemon.get("/v1/models", headers={name.replace("_", "-"): value for name, value in headers.items()}).status_code
    assert status(x_api_key="k-op") == 200 == status(x_api_key="wrong", authorization="Bearer k-op")
    assert status(x_api_key="wrong") == 401 == status(x_api_key="k-op", authorization="Bearer wrong") == status()


def test_usage_is_shown_to_its_key_and_to_operators(daemon):
    before = metrics(daemon, "k-op")
    assert ask(daemon, "k-op").status_code == 200 == ask(daemon, "k-op").status_code
    after = metrics(daemon, "k-op")

    def grew(what):
        return after[(f"tandem:key_{what}", "op")] - before[(f"tandem:key_{what}", "op")]
    assert grew("requests_total") == 2 and grew("prompt_tokens_total") == 20 and grew("generation_tokens_total") == 6 and grew("refused_total") == 0
    assert {key for _, key in after} == {"rpm", "tpm", "few", "op", "one"}
    assert {key for _, key in metrics(daemon, "k-few")} == {"few"}
    assert all(v >= 0 for v in after.values())
