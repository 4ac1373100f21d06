"""A device fault during work: every open stream gets an error, new requests get 503, and the process ends with its own exit code, after
which systemd restarts it. TANDEM_FAULT=device:STEP injects the fault."""
import json
import os
import threading
import time

import httpx
import pytest
from harness import MODEL_ID, ROOT, SLOWNESS, Daemon, read_all, run_daemon, status_of

FAULT = 70
BACKEND = os.environ.get("TANDEM_E2E_BACKEND", "auto")


def faulty(monkeypatch, step, *options):
    monkeypatch.setenv("TANDEM_FAULT", f"device:{step}")
    return Daemon("--backend", BACKEND, *options, expect_exit=FAULT)


def body(**fields):
    return {"model": MODEL_ID, "prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": True, "temperature": 0, **fields}


def events_of(raw):
    text = raw.split(b"\r\n\r\n", 1)[1].decode()
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


@pytest.mark.share
@pytest.mark.hand_over
@pytest.mark.parametrize("step", [1, 40])
def test_every_open_stream_is_told(monkeypatch, step):
    """Running streams, streams that wait for a place, and one answer that is not a stream."""
    with faulty(monkeypatch, step, "--running-requests", 4) as d:
        streams = [d.connect(60) for _ in range(8)]
        whole = d.connect(60)
        for s in streams:
            d.send_request(s, "/v1/completions", body(stream=True))
        d.send_request(whole, "/v1/completions", body())
        for s in streams:
            raw = read_all(s)
            assert raw, "closed without an answer"
            if step == 1 and status_of(raw) == 503:
                continue  # not yet submitted when the fault occurred
            events = events_of(raw)
            assert status_of(raw) == 200 and b"[DONE]" not in raw
            assert events[-1]["error"]["code"] == "engine_failed" and events[-1]["error"]["type"] == "server_error"
            assert all("error" not in e for e in events[:-1])
        assert status_of(read_all(whole)) == 503
        assert d.process.wait(20 * SLOWNESS) == FAULT
        errors = [line for line in d.log().splitlines() if " error " in line]
        assert len(errors) == 1 and ("TANDEM_FAULT" in errors[0] or "CUDA" in errors[0]), d.log()


def test_answers_before_are_whole_and_after_refused(monkeypatch):
    with faulty(monkeypatch, 60) as d:
        seen = []

        def ask():
            while True:
                try:
                    r = httpx.post(d.url + "/v1/completions", json=body(max_tokens=3), timeout=30 * SLOWNESS)
                except httpx.TransportError:
                    return
                seen.append(r.status_code)
                if r.status_code == 200:
                    assert r.json()["usage"]["completion_tokens"] == 3

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for t in threads:
            t.start()
        end = time.monotonic() + 60 * SLOWNESS
        for t in threads:
            t.join(end - time.monotonic())
            assert not t.is_alive()
        assert d.process.wait(20 * SLOWNESS) == FAULT
        assert 200 in seen and set(seen) <= {200, 503}


def test_a_bad_fault_is_refused():
    for text in ("device", "device:", "device:0", "device:x", "stall:0", "disk:3"):
        code, log = run_daemon("--model", os.environ.get("TANDEM_TEST_MODEL", ROOT / ".cache/models" / (MODEL_ID + ".gguf")),
                               "--check", env={"TANDEM_FAULT": text})
        assert code == 64 and "TANDEM_FAULT" in log, (text, code, log)


def test_systemd_starts_it_again():
    unit = dict(line.split("=", 1) for line in (ROOT / "packaging/tandemd.service").read_text().splitlines() if "=" in line)
    assert unit["Restart"] == "on-failure" and str(FAULT) not in unit["RestartPreventExitStatus"].split()
