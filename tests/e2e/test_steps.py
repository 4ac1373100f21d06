"""GET /v1/steps: watchers see what the engine did; watching is limited, cut off if the client is slow, and ended by a drain."""
import contextlib
import http.client
import json
import re
import socket
import threading
import time

import pytest
from harness import SLOWNESS, Daemon, read_all, read_until, status_of

TINY = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 131072, "rope_theta": 10000.0, "tie_word_embeddings": False, "eos_token_id": 2,
}
GET = b"GET /v1/steps HTTP/1.1\r\nHost: t\r\n\r\n"


class Watcher:
    """Reads the stream in a thread: self.hello, self.news, self.steps (each a dict), self.pings."""

    def __init__(self, daemon, headers=None, source="127.0.0.1"):
        self.hello, self.news, self.steps, self.pings, self.ended = None, [], [], 0, False
        self.connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=60 * SLOWNESS, source_address=(source, 0))
        self.connection.request("GET", "/v1/steps", headers=headers or {})
        self.socket = self.connection.sock
        self.response = self.connection.getresponse()
        assert self.response.status == 200, self.response.status
        self.thread = threading.Thread(target=self.read)
        self.thread.start()

    def read(self):
        name = "message"
        with contextlib.suppress(http.client.HTTPException, OSError):
            for raw in self.response:
                line = raw.decode().removesuffix("\n")
                if line.startswith("event: "):
                    name = line[7:]
                elif line.startswith("data: "):
                    self.take(name, json.loads(line[6:]))
                    name = "message"
                else:
                    assert line in ("", ": ping"), line
                    self.pings += line != ""
            self.ended = True

    def take(self, name, data):
        assert name == ("message" if self.hello or data.get("state") == "loading" else "hello")
        if name == "hello":
            self.hello = data
            return
        self.steps += [dict(zip(self.hello["fields"], row, strict=True)) for row in data["steps"]]
        self.news.append(data)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        if not self.ended:
            self.socket.shutdown(socket.SHUT_RDWR)
        self.thread.join(10 * SLOWNESS)
        self.connection.close()
        assert not self.thread.is_alive()


def watch_status(daemon, headers=None, source="127.0.0.1"):
    """Connects, reads whether it may watch, and disconnects."""
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=60 * SLOWNESS, source_address=(source, 0))
    connection.request("GET", "/v1/steps", headers=headers or {})
    status = connection.getresponse().status
    connection.close()
    return status


@pytest.fixture
def tiny(tmp_path):
    """Steps of a fraction of a millisecond."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(TINY))
    return folder


def work(daemon, n_prompt, n_new, **fields):
    body = {"prompt": [10 + i % 400 for i in range(n_prompt)], "max_tokens": n_new, "ignore_eos": True, "temperature": 0, **fields}
    r = daemon.post("/v1/completions", body)
    assert r.status_code == 200, r.text


@pytest.mark.hand_over
def test_steps_are_those_of_the_engine(tiny):
    with Daemon("--load-format", "dummy", "--step-tokens", 64, model=tiny) as d:
        work(d, 20, 4)
        d.until_idle()
        before = d.metrics()
        with Watcher(d) as w:
            d.eventually(lambda: w.steps, what="the steps before it came")
            last_before = w.steps[-1]["step"]
            for _ in range(200):  # until a prompt has arrived while another request answered; fewer steps at a time than the ring keeps, however fast they are
                threads = [threading.Thread(target=work, args=(d, *of)) for of in ((3, 700), (300, 30), (400, 30), (500, 30))]
                for t in threads:
                    t.start()
                for t in threads:
                    t.join()
                d.until_idle()
                after = d.metrics()
                steps_after = next(v for (n, _), v in after.items() if n == "tandem:steps_total")
                d.eventually(lambda: w.steps and w.steps[-1]["step"] == steps_after, what="the last step")
                if any(s["decodes"] and s["prefills"] for s in w.steps):
                    break
            d.eventually(lambda: w.news[-1]["running"] == 0 and w.news[-1]["waiting"] == 0, what="idleness")

    def grew(name):
        return sum(v for (n, _), v in after.items() if n == name) - sum(v for (n, _), v in before.items() if n == name)
    assert w.hello["model"] == "tiny" and w.hello["backend"] == "cpu" and w.hello["page_tokens"] == 16
    assert [s["step"] for s in w.steps] == list(range(w.steps[0]["step"], int(steps_after) + 1)), "none twice, none left out"
    new = [s for s in w.steps if s["step"] > last_before]
    for field, metric in (("decodes", "tandem:decode_tokens_total"), ("prefill_tokens", "tandem:prefill_tokens_total"),
                          ("hit_tokens", "vllm:prefix_cache_hits_total"), ("preemptions", "vllm:num_preemptions_total")):
        assert sum(s[field] for s in new) == grew(metric), field
    assert abs(sum(s["step_us"] for s in new) / 1e6 - grew("tandem:step_seconds_total")) < 1e-3
    for a, b in zip(new, new[1:]):
        assert a["end_us"] <= b["end_us"] - b["step_us"] + 1, "steps do not overlap"
    for s in new:
        assert s["free"] + s["cached"] + s["owned"] == w.hello["pages"]
        assert s["decodes"] + s["prefill_tokens"] <= w.hello["step_tokens"] and (s["prefills"] > 0) == (s["prefill_tokens"] > 0)
    assert any(s["decodes"] and s["prefills"] for s in new), "hybrid batches"
    assert w.news[-1]["missed"] == 0 and w.news[-1]["state"] == "ready"
    assert w.news[-1]["prefix_hit_tokens"] == sum(v for (n, _), v in after.items() if n == "vllm:prefix_cache_hits_total")


def test_headers_and_methods(daemon):
    head = daemon.raw("HEAD", "/v1/steps")
    assert head.status_code == 200 and head.content == b"" and head.headers["content-type"].startswith("text/event-stream")
    assert head.headers["cache-control"] == "no-cache"
    assert daemon.post("/v1/steps", {}).status_code == 405 and daemon.get("/v1/steps/").status_code == 404
    assert daemon.gauge("tandem:watchers") == 0
    with daemon.connect() as s:  # HTTP/1.0: no chunks
        s.sendall(GET.replace(b"1.1", b"1.0"))
        raw = read_until(s, b"\n\ndata: ")
    assert b"chunked" not in raw.lower() and b"\r\n\r\nevent: hello\ndata: {" in raw
    with daemon.connect() as s:  # a head and the stream on one connection
        s.sendall(b"HEAD /v1/steps HTTP/1.1\r\nHost: t\r\n\r\n" + GET)
        raw = read_until(s, b"\n\ndata: ")
    assert raw.count(b"HTTP/1.1 200 OK") == 2


def test_key(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("sk-one\n")
    with Daemon("--api-key-file", keys) as d:
        for auth in ({}, {"authorization": "Bearer sk-two"}):
            r = d.get("/v1/steps", headers=auth)
            assert r.status_code == 401 and r.json()["error"]["code"] == "invalid_api_key"
        with Watcher(d, headers={"authorization": "Bearer sk-one"}) as w:
            d.eventually(lambda: w.hello)


def key(name):
    return {"authorization": f"Bearer {name}"}


def test_one_key_leaves_places_to_others(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("sk-one\nsk-two\n")
    with Daemon("--api-key-file", keys, "--watchers", 8) as d:
        with Watcher(d, key("sk-one")), Watcher(d, key("sk-one"), source="127.0.0.2"):
            for source in ("127.0.0.1", "127.0.0.3"):
                assert watch_status(d, key("sk-one"), source) == 429
            with Watcher(d, key("sk-two")), Watcher(d, key("sk-two")):
                assert watch_status(d, key("sk-two")) == 429


@pytest.mark.share
def test_keys_do_not_see_each_others_lengths(tiny, tmp_path):
    """If several keys share the device, a watcher sees no number that grows with a prompt."""
    keys = tmp_path / "keys"
    keys.write_text("sk-one\nsk-two\n")
    told = []
    for n_prompt in (20, 57):
        with Daemon("--load-format", "dummy", "--step-tokens", 64, "--api-key-file", keys, model=tiny) as d:
            with Watcher(d, key("sk-one")) as w:
                d.eventually(lambda: w.hello)
                body = {"prompt": [10 + i for i in range(n_prompt)], "max_tokens": 6, "ignore_eos": True, "temperature": 0}
                assert d.post("/v1/completions", body, headers=key("sk-two")).status_code == 200
                d.eventually(lambda: len(w.steps) >= 6 and w.news[-1]["running"] == 0)
            assert w.hello["fields"] == ["step", "end_us", "step_us", "decodes", "prefills", "running", "waiting", "preemptions"]
            assert sum(s["prefills"] for s in w.steps) == 1 and sum(s["decodes"] for s in w.steps) == 5
            names = set().union(*(set(n) for n in w.news))
            assert names == {"state", "running", "waiting", "preemptions", "tbt_slo_us", "missed", "steps"}
            told.append([{k: v for k, v in s.items() if not k.endswith("_us")} for s in w.steps])
    assert told[0] == told[1], "beside the time they took, the steps of both prompts look the same"


def test_watchers_are_bounded():
    with Daemon("--watchers", 8, "--sse-ping-ms", 100) as d:
        with Watcher(d) as a, Watcher(d) as b:
            r = d.get("/v1/steps")  # a quarter for one address
            assert r.status_code == 429 and r.json()["error"]["code"] == "too_many_watchers" and int(r.headers["retry-after"]) > 0
            with contextlib.ExitStack() as others:
                for i in range(2, 8):
                    others.enter_context(Watcher(d, source=f"127.0.0.{i}"))
                assert d.gauge("tandem:watchers") == 8
                assert watch_status(d, source="127.0.0.9") == 429, "all places together"
            d.eventually(lambda: d.gauge("tandem:watchers") == 2)
            assert watch_status(d, source="127.0.0.9") == 200
            d.eventually(lambda: d.gauge("tandem:watchers") == 2)
            d.eventually(lambda: a.pings > 1 and b.pings > 1, what="pings of an idle engine")
        d.eventually(lambda: d.gauge("tandem:watchers") == 0, what="that places are free again")
        for _ in range(20):  # watchers that disconnect immediately, before or after their first event
            with d.connect() as s:
                s.sendall(GET)
        d.eventually(lambda: d.gauge("tandem:watchers") == 0)
        with d.connect() as s:  # a watcher that continues to send
            s.sendall(GET + b"x" * 100000)
            read_until(s, b"event: hello")
        d.eventually(lambda: d.gauge("tandem:watchers") == 0)
        with Watcher(d) as w:
            d.eventually(lambda: w.hello)


def test_none_may_watch():
    with Daemon("--watchers", 0) as d:
        r = d.get("/v1/steps")
        assert r.status_code == 404 and "watchers" in r.json()["error"]["message"]
        assert d.get("/").status_code == 200


@pytest.mark.share
def test_a_slow_watcher_misses_steps(tiny):
    """And learns how many; neither the engine nor another watcher waits for it."""
    with Daemon("--load-format", "dummy", "--sse-queue-bytes", 4096, model=tiny) as d:
        with d.connect(rcvbuf=16384) as slow, Watcher(d) as quick:
            slow.sendall(GET)
            d.eventually(lambda: d.gauge("tandem:watchers") == 2)
            work(d, 4, 3500)
            d.eventually(lambda: quick.steps and quick.steps[-1]["step"] == d.gauge("tandem:steps_total"))
            assert len(quick.steps) + quick.news[-1]["missed"] == quick.steps[-1]["step"], "each step is told or counted as missed"
            assert sorted({s["step"] for s in quick.steps}) == [s["step"] for s in quick.steps]
            raw = b""
            while not re.search(rb'"missed":[1-9]\d*,', raw):
                chunk = slow.recv(65536)
                assert chunk, "it was cut"
                raw += chunk
            assert d.gauge("tandem:watch_missed_steps_total") > 0
        d.eventually(lambda: d.gauge("tandem:watchers") == 0)


def test_a_watcher_that_never_reads_is_cut(tiny):
    with Daemon("--load-format", "dummy", "--sse-queue-bytes", 4096, "--sse-stall-ms", 500, model=tiny) as d, d.connect(rcvbuf=2048) as s:
        s.sendall(GET)
        d.eventually(lambda: d.gauge("tandem:watchers") == 1)
        work(d, 4, 1000)
        d.eventually(lambda: d.gauge("tandem:watchers") == 0, what="that it is cut")


def test_a_drain_ends_the_streams():
    with Daemon("--drain-timeout-ms", 60000) as d, Watcher(d) as w:
        d.eventually(lambda: w.hello)
        begin = time.monotonic()
        assert d.stop() == 0
        w.thread.join(10 * SLOWNESS)
        assert w.ended and w.news[-1]["state"] == "draining" and time.monotonic() - begin < 10 * SLOWNESS


def test_no_new_watchers_while_draining():
    with Daemon("--drain-timeout-ms", 600000) as d:
        with d.connect(60) as s, d.connect(60) as late:
            d.send_request(s, "/v1/completions", {"prompt": "Once", "max_tokens": 60, "ignore_eos": True, "stream": True})
            read_until(s, b"data: ")
            d.process.terminate()
            d.eventually(lambda: d.get("/ready").status_code == 503)
            assert d.get("/").status_code == 200
            late.sendall(GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
            assert status_of(read_all(late)) == 503
            read_until(s, b"[DONE]")
            assert d.process.wait(20 * SLOWNESS) == 0
