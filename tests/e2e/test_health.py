"""/health reports what is stuck: an engine whose step does not end, a worker that does not return."""
import json
import threading
import time

from harness import MODEL_ID, SLOWNESS, Daemon, run_daemon
from test_dummy import CONFIG
from test_shares import words


def test_an_engine_that_stalls_is_told_by_what_steps_take(monkeypatch, tmp_path):
    """The default is 2 s if steps take much less; TANDEM_FAULT makes one step take 6 s longer."""
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text(json.dumps(CONFIG))
    monkeypatch.setenv("TANDEM_FAULT", "stall:5")
    options = ("--load-format", "dummy", "--cache-dir", tmp_path / "cache", "--kv-bytes", 1 << 26)
    assert run_daemon("--calibrate", "--calibrate-ms", 300, "--model", tmp_path / "tiny", *options, env={"TANDEM_FAULT": ""})[0] == 0
    with Daemon(*options, model=tmp_path / "tiny") as d:
        body = {"model": "tiny", "prompt": [5, 6, 7], "max_tokens": 20, "temperature": 0, "ignore_eos": True}
        assert d.get("/health").status_code == 200
        out = []
        t = threading.Thread(target=lambda: out.append(d.post("/v1/completions", body).status_code))
        begin = time.monotonic()
        t.start()
        r = d.eventually(lambda: next((r for r in [d.get("/health")] if r.status_code == 503), None), 5 / SLOWNESS, "unhealthy")
        assert time.monotonic() - begin >= 2
        assert r.json() == {"status": "unhealthy", "reason": "engine: a step does not end"} and "retry-after" in r.headers
        assert d.get("/ready").json()["reason"] == r.json()["reason"]
        t.join()
        assert out == [200]
        assert d.get("/health").status_code == 200


def test_steps_that_nobody_predicts_have_longer(monkeypatch):
    """A guess must not make a daemon unhealthy: on a slow machine, a step may really take 2 s."""
    monkeypatch.setenv("TANDEM_FAULT", "stall:5")
    with Daemon() as d:
        out = []
        t = threading.Thread(target=lambda: out.append(d.tokens("Hi", max_tokens=8, ignore_eos=True)))
        begin = time.monotonic()
        t.start()
        while t.is_alive():
            assert d.get("/health").status_code == 200
            time.sleep(0.1)
        assert time.monotonic() - begin >= 6 and len(out[0]) == 8


def test_a_large_body_is_no_fault():
    """Long jobs make progress; only a job without progress counts as stuck (test_server_workers)."""
    raw = json.dumps({"model": MODEL_ID, "prompt": words(3_000_000, 2)}).encode()
    word = json.dumps({"model": MODEL_ID, "prompt": "a" * 7_000_000}).encode()
    with Daemon("--health-stall-ms", int(2000 * SLOWNESS)) as d:
        out = []
        threads = [threading.Thread(target=lambda b=b: out.append(d.post("/tokenize", b).status_code)) for b in (raw, word)]
        for t in threads:
            t.start()
        while any(t.is_alive() for t in threads):
            assert d.get("/health").status_code == 200
            time.sleep(0.05)
        assert out == [200, 200]
