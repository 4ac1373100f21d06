"""Step times: guessed, learned, measured by --calibrate, kept, and compared with what steps took; and what depends on them: targets,
policies, Retry-After."""
import json
import re
import threading
import time

import httpx
import pytest
from harness import MODEL, MODEL_ID, Daemon, read_until, run_daemon
from test_dummy import CONFIG

USAGE = 64


@pytest.fixture
def tiny(tmp_path):
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


def start(tiny, *options):
    return Daemon("--load-format", "dummy", *options, model=tiny, kv_bytes=1 << 26)


def answer(d, i, n=24):
    prompt = [(7 * i + k * k) % 500 + 3 for k in range(40 + 90 * i)]
    r = d.post("/v1/completions", {"model": "tiny", "prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True})
    assert r.status_code == 200, r.text
    return r.json()["choices"][0]["token_ids"]


def answers(d):
    out = [None] * 5

    def one(i):
        out[i] = answer(d, i)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return out


def calibrate(model, *options):
    code, text = run_daemon("--calibrate", "--model", model, *options)
    assert code == 0, text
    return text


def source(d):
    """Returns the source of the daemon's step times."""
    (one,) = (re.search(r'source="([a-z-]+)"', labels).group(1) for (n, labels), v in d.metrics().items()
              if n == "tandem:step_times_source" and v == 1)
    return one


def test_measured_on_purpose_and_kept(tiny, tmp_path):
    cache = tmp_path / "cache"
    options = ("--load-format", "dummy", "--kv-bytes", 1 << 26, "--cache-dir", cache)
    text = calibrate(tiny, "--calibrate-ms", 1500, *options)
    assert re.search(r"step times: \d+ kinds of steps measured in \d\.\d\d s", text), text
    (kept,) = cache.iterdir()
    table = kept.read_text()
    assert table.startswith("tandem-steps 4\ntandem ")
    assert table.split("\n", 2)[2].split("xxh3")[0] in text, "what is kept is printed"
    with start(tiny, "--cache-dir", cache) as d:
        assert f"step times: {kept}" in d.log() and source(d) == "kept"
        answers(d)
        d.until_idle()
        m = {n: v for (n, labels), v in d.metrics().items() if "le=" not in labels}
        assert m["tandem:step_prediction_error_ratio_count"] == m["tandem:steps_total"] > 20
        assert 0 < m["tandem:step_prediction_error_median"] <= m["tandem:step_prediction_error_p99"]
        of_all = m["tandem:step_predicted_seconds_total"] / m["tandem:step_seconds_total"]
        # a busy machine stalls some steps, so their sum says little; the median error is checked
        assert 0.1 < of_all < 10 or m["tandem:step_prediction_error_median"] < 0.9, "of the right size, on any machine"
        assert m["tandem:tbt_slo_seconds"] == 0.1
        assert "at most 3.4 times what its answers take alone, but never less than 24 ms nor more than 100 ms" in d.log()
        assert m["tandem:request_queue_time_predicted_seconds_count"] == m["vllm:request_queue_time_seconds_count"] == 5
    with start(tiny, "--cache-dir", cache, "--step-tokens", 96) as d:
        assert "step times: built in" in d.log() and source(d) == "built-in", "other settings, other times"
    kept.write_bytes(kept.read_bytes().replace(b"us ", b"us 1", 1))
    with start(tiny, "--cache-dir", cache) as d:
        assert "is not used: damaged" in d.log() and source(d) == "built-in"
        answer(d, 0)


def test_no_start_measures_and_serving_teaches(tmp_path):
    """The real model: from the first steps on, predictions have the right magnitude, and an orderly end keeps what was learned."""
    cache = tmp_path / "cache"
    with Daemon("--cache-dir", cache) as d:
        assert "step times: built in" in d.log() and source(d) == "built-in"
        assert d.gauge("tandem:steps_total") == 0 and d.gauge("tandem:tbt_slo_seconds") > 0
        for i in range(6):
            d.tokens([5 + 3 * i] * 20, max_tokens=16, ignore_eos=True)
        d.until_idle()
        assert d.gauge("tandem:steps_total") >= 64 and source(d) == "learned"
        assert d.gauge("tandem:step_prediction_error_median") < 1
        assert 0.3 < d.gauge("tandem:step_predicted_seconds_total") / d.gauge("tandem:step_seconds_total") < 3
    (kept,) = cache.iterdir()
    assert re.search(r"; learned from \d+ steps$", kept.read_text(), re.M)
    with Daemon("--cache-dir", cache) as d:
        assert re.search(rf"step times: {kept}, learned from \d+ steps", d.log()), d.log()
        assert source(d) == "learned" and d.gauge("tandem:steps_total") == 0


def learned_in(path):
    """How many times as long as calibrated the steps of a load took, without and with prompts; 0 if unknown."""
    found = dict(re.findall(r"^learned_(without|with)_prompts (.*)$", path.read_text(), re.M))
    return [float(found.get(k, 0)) for k in ("without", "with")]


def load(d, n):
    """Runs, one after the other, n steps with prompts and five times as many without."""
    prompts = [[(7 * i + k * k * (i + 3)) % 500 + 3 for k in range(60)] for i in range(n)]
    return d.post("/v1/completions", {"prompt": prompts, "max_tokens": 6, "temperature": 0, "ignore_eos": True}).status_code


def test_what_a_load_took_is_kept_at_an_orderly_end(tiny, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    options = ("--load-format", "dummy", "--running-requests", 1, "--cache-dir", cache, "--kv-bytes", 1 << 26)

    def again(expect_exit=0):
        return Daemon(*options, model=tiny, expect_exit=expect_exit)

    calibrate(tiny, "--calibrate-ms", 1000, *options)
    with again() as d:
        assert load(d, 2) == 200
    (path,) = cache.iterdir()
    fresh = path.read_bytes()
    assert learned_in(path) == [0, 0], "two steps with prompts tell nothing"
    with again(expect_exit=-9) as d:
        assert re.search(rf"step times: {path}$", d.log(), re.M), d.log()
        assert load(d, 80) == 200
        d.process.kill()
    assert path.read_bytes() == fresh, "no orderly end"
    monkeypatch.setenv("TANDEM_FAULT", "device:300")
    with again(expect_exit=70) as d:
        assert load(d, 80) == 503
        d.process.wait(60)
    monkeypatch.delenv("TANDEM_FAULT")
    assert path.read_bytes() == fresh, "no orderly end either"
    with again() as d:
        assert load(d, 80) == 200
        d.stop()
        log = d.log()
    said = re.search(r"beside what was calibrated: without prompts (.*), with prompts (.*); kept in ", log)
    learned = learned_in(path)
    for kind, name in enumerate(("without", "with")):
        if learned[kind]:  # otherwise this machine became more than twice as slow or as fast as before
            assert f"{learned[kind]:.3f} times" in said.group(1 + kind) and 0.5 <= learned[kind] <= 2, (said, learned)
        else:
            assert re.search(rf"steps {name} prompts took .* times what was calibrated: too far off to be kept", log), log
    rest = re.sub(rb"learned_.*\n", b"", path.read_bytes())
    assert rest.split(b"xxh3")[0] == fresh.split(b"xxh3")[0], "and nothing else"
    with again() as d:
        known = [f or 1 for f in learned]
        if any(learned):
            assert f"{path}; steps without and with prompts begin at {known[0]:.3f} and {known[1]:.3f} times these, learned under load" in d.log()
        m = d.metrics()
        begins = [next(v for (n, labels), v in m.items() if n == "tandem:step_prediction_correction" and f'prompts="{k}"' in labels)
                  for k in ("without", "with")]
        assert begins == pytest.approx(known, rel=1e-3)


def test_every_policy_answers_the_same(tiny):
    with start(tiny) as d:
        expect = [answer(d, i) for i in range(5)]
    for policy in ("tandem", "sarathi", "prefill-first", "decode-first", "orca"):
        more = ("--step-tokens", 640) if policy == "orca" else ()
        with start(tiny, "--policy", policy, *more) as d:
            assert f"policy {policy}: " in d.log()
            assert answers(d) == expect, policy


@pytest.mark.parametrize("options, words", [
    (("--policy", "vllm"), ("policy", "'vllm'", "tandem, sarathi, prefill-first, decode-first or orca")),
    (("--policy", "orca"), ("step_tokens (128)", "575")),  # 512 + 64 - 1
    (("--tbt-target-ms", 50), ("tbt-target-ms", "removed", "tbt_slo_ms")),
    (("--ttft-target-ms", 50), ("ttft-target-ms", "removed", "slack_percent")),
])
def test_refused_at_start(tiny, options, words):
    code, text = run_daemon("--model", tiny, "--load-format", "dummy", "--kv-bytes", 1 << 26, "--cache-dir", "", "--check", *options)
    assert code == USAGE, (code, text)
    for w in words:
        assert w in text, (w, text)


def test_an_slo_that_cannot_be_kept_is_told(tmp_path):
    options = ("--kv-bytes", 1 << 28, "--step-tokens", 32, "--running-requests", 4, "--cache-dir", tmp_path / "cache")
    calibrate(MODEL, *options, "--calibrate-ms", 3000)
    with Daemon(*options, "--tbt-slo-ms", 1) as d:
        log = d.log()
    smallest = int(re.search(r"tbt_slo_ms cannot be kept: .* takes (\d+) ms", log).group(1))
    assert 2 <= smallest <= 5000, "for 17 tokens"


def test_retry_after_is_when_there_is_room():
    body = {"model": MODEL_ID, "prompt": "Once upon a time", "max_tokens": 300, "n": 3, "ignore_eos": True, "temperature": 0, "stream": True}
    with Daemon("--queue-requests", 3, "--step-tokens", 32) as d:
        s = d.connect(120)
        d.send_request(s, "/v1/completions", body)
        read_until(s, b"data: ")
        d.eventually(lambda: d.gauge("tandem:queue_delay_predicted_seconds") > 0, what="a forecast")
        said = []
        begin = time.monotonic()
        with httpx.Client(base_url=d.url, timeout=60) as client:  # all 50 are sent quickly, while the three answers are computed
            for _ in range(50):
                r = client.post("/v1/completions", json=body)
                assert r.status_code == 429 and r.json()["error"]["code"] == "queue_full"
                said.append(int(r.headers["retry-after"]))
        read_until(s, b"[DONE]")
        took = time.monotonic() - begin
        assert took / 5 < said[0] < 5 * took + 2, (said, took)
        assert said[0] <= said[1] <= said[2] and said[0] < said[2], f"who is refused later is told later: {said}"
        # three answers run, so repeated requests are told the wait for three answers, not for fifty: that would be 24 times. The forecast
        # grows while it learns that the machine is busy.
        assert max(said) <= said[0] + 12 * (said[2] - said[0]), said
        assert d.post("/v1/completions", {**body, "max_tokens": 1, "n": 1, "stream": False}).status_code == 200


def test_larger_than_the_memory():
    with Daemon("--kv-bytes", 64 << 20) as d:
        limit = d.get("/v1/models").json()["data"][0]["max_model_len"]
        assert 1024 <= limit < 8192
        for n, max_tokens in ((limit + 1, 1), (limit - 10, 11)):
            r = d.post("/v1/completions", {"model": MODEL_ID, "prompt": [300] * n, "max_tokens": max_tokens})
            message = r.json()["error"]["message"]
            assert r.status_code == 400 and r.json()["error"]["code"] == "context_length_exceeded"
            assert message.startswith(f"This model's maximum context length is {limit} tokens."), message
            assert message.endswith("this server's KV memory (kv_bytes) bounds it."), message
        assert d.post("/v1/completions", {"model": MODEL_ID, "prompt": [300] * 20, "max_tokens": 2}).status_code == 200
