"""packaging/haproxy.cfg with two daemons: a prefix stays with one of them, and a rolling restart under load loses no request."""
import contextlib
import itertools
import json
import shutil
import subprocess
import threading
import time

import httpx
import pytest
from harness import ROOT, SLOWNESS, Daemon, free_port
from test_dummy import CONFIG

HAPROXY = shutil.which("haproxy") or "/usr/sbin/haproxy"


class Proxy:
    """Runs haproxy with our configuration file, but other ports."""

    def __init__(self, folder, daemons, **replaced):
        text = (ROOT / "packaging/haproxy.cfg").read_text()
        self.port = free_port()
        for old, new in {":8080": f":{self.port}", ":8081": f":{daemons[0]}", ":8082": f":{daemons[1]}", **replaced}.items():
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        self.file = folder / "haproxy.cfg"
        self.file.write_text(text)
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self):
        subprocess.run([HAPROXY, "-c", "-f", self.file], check=True, capture_output=True)
        self.process = subprocess.Popen([HAPROXY, "-db", "-f", self.file], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(600):
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(self.url + "/ready").status_code == 200:
                    return self
            time.sleep(0.05)
        raise AssertionError("haproxy has no daemon that is ready")

    def __exit__(self, *error):
        self.process.terminate()
        self.process.wait(20)


class Node(Daemon):
    """A daemon that keeps its address over restarts."""

    def __init__(self, model, port=None):
        super().__init__("--load-format", "dummy", "--trusted-proxies", "127.0.0.1", model=model, kv_bytes=1 << 26)
        self.fixed = port or free_port()

    def __enter__(self):
        self.options[:0] = ["--listen", f"127.0.0.1:{self.fixed}"]
        return super().__enter__()

    def wait_ready(self, seconds=60):
        self.port, self.url = self.fixed, f"http://127.0.0.1:{self.fixed}"
        return super().wait_ready(seconds)


@pytest.fixture
def tiny(tmp_path):
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


def hits(d):
    m = d.metrics()
    return [sum(v for (n, _), v in m.items() if n == f"vllm:prefix_cache_{what}_total") for what in ("queries", "hits")]


def body(prefix, i, **fields):
    return {"prompt": [prefix + 3] * 300 + [i % 500 + 3] * 20, "max_tokens": 2, "temperature": 0, "ignore_eos": True, **fields}


def test_prefixes_stay_where_they_are_cached(tiny, tmp_path):
    """A prompt that is sent again is cached except for its end. If daemons take turns, each must compute it first."""
    rates = []
    for replaced in ({}, {"balance hdr(x-prefix)": "balance roundrobin"}):
        with Node(tiny) as a, Node(tiny) as b, Proxy(tmp_path, (a.port, b.port), **replaced) as p, httpx.Client(timeout=60 * SLOWNESS) as client:
            for i, prefix in itertools.product(range(4), range(13)):
                r = client.post(p.url + "/v1/completions", json=body(prefix, i + 4 * prefix), headers={"x-prefix": f"p{prefix}"})
                assert r.status_code == 200, r.text
            asked, found = map(sum, zip(hits(a), hits(b), strict=True))
            rates.append(found / asked)
            if not replaced:
                assert all(hits(d)[0] > 0 for d in (a, b))  # both have served some
    assert rates[0] > 0.65 and rates[0] > rates[1] + 0.1, rates  # three of four prompts, 288 of 320 tokens; with turns two of four


def test_a_rolling_restart_loses_nothing(tiny, tmp_path):
    """One daemon after the other is ended by SIGTERM and restarted, while clients send requests without a pause: streams and whole answers."""
    with contextlib.ExitStack() as stack:
        nodes = [stack.enter_context(Node(tiny)) for _ in range(2)]
        p = stack.enter_context(Proxy(tmp_path, [n.fixed for n in nodes]))
        stop, faults, done = threading.Event(), [], [0] * 6

        def ask(k):
            client = httpx.Client(timeout=60 * SLOWNESS)
            for i in itertools.count():
                if stop.is_set():
                    return
                stream = (i + k) % 2 == 0
                try:
                    r = client.post(p.url + "/v1/completions", json=body(k, i, max_tokens=60, stream=stream), headers={"x-prefix": f"p{k}"})
                    whole = r.text.endswith("data: [DONE]\n\n") if stream else r.status_code == 200 and r.json()["usage"]["completion_tokens"] == 60
                    if r.status_code != 200 or not whole:
                        faults.append((r.status_code, r.text[-300:]))
                except httpx.HTTPError as e:
                    faults.append(repr(e))
                done[k] += 1

        threads = [threading.Thread(target=ask, args=(k,)) for k in range(6)]
        for t in threads:
            t.start()
        try:
            for i in (0, 1):
                time.sleep(1)
                before = sum(done)
                assert nodes[i].stop() == 0
                while sum(done) < before + 20 and not faults:
                    time.sleep(0.05)
                nodes[i] = stack.enter_context(Node(tiny, port=nodes[i].fixed))
            time.sleep(1)
        finally:
            stop.set()
            for t in threads:
                t.join()
        assert not faults, faults[:5]
        assert min(done) > 5
