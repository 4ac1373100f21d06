"""The log: one line per request, as text and as JSON, with client, request, duration and error, and nothing of prompt or answer."""
import json
import os
import re
import shlex
import subprocess
import time

import httpx
import pytest
from harness import DAEMON, MODEL_ID, SLOWNESS, Daemon, free_port, read_all
from test_dummy import folder_with_tokenizer, write_model

SECRET = "a very private xylophone"
TIME = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")


def body(**fields):
    return {"model": MODEL_ID, "prompt": SECRET, "max_tokens": 4, "ignore_eos": True, **fields}


def lines_of(d, form):
    """Returns the request lines as dictionaries of text."""
    out = []
    for line in d.log().splitlines():
        if form == "json":
            o = json.loads(line)
            assert TIME.match(o["time"]) and o["level"] in ("info", "warn", "error"), line
            if o.get("event") == "request":
                out.append({k: str(v) for k, v in o.items()})
        else:
            time, level, rest = line.split(None, 2)
            assert TIME.match(time), line
            if rest.startswith("request id="):
                out.append(dict(f.split("=", 1) for f in shlex.split(rest)[1:]))
    return out


@pytest.fixture(scope="module", params=["text", "json"])
def daemon(request, tmp_path_factory):
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("k1 name=alice\nk2\n")
    with Daemon("--api-key-file", keys, "--log-format", request.param, api_key="k1") as d:
        d.form = request.param
        d.headers = {"authorization": "Bearer k1"}
        yield d
        assert SECRET not in d.log() and "xylophone" not in d.log()


def one_line(d, do):
    """Returns the only log line of a request."""
    n = len(lines_of(d, d.form))
    do()
    d.eventually(lambda: len(lines_of(d, d.form)) > n, what="a line")
    lines = lines_of(d, d.form)[n:]
    assert len(lines) == 1, lines
    return lines[0]


def test_an_answer(daemon):
    d = daemon
    for stream in (False, True):
        line = one_line(d, lambda s=stream: d.post("/v1/completions", body(stream=s), headers={**d.headers, "x-request-id": f"mine-{s}"}))
        assert line["id"] == f"mine-{stream}" and line["key"] == "alice" and line["client"] == "127.0.0.1" and line["model"] == MODEL_ID
        assert line["method"] == "POST" and line["path"] == "/v1/completions" and line["status"] == "200" and line["finish"] == "length"
        assert line["output_tokens"] == "4" and int(line["prompt_tokens"]) >= 4 and int(line["cached_tokens"]) >= 0
        assert float(line["total_ms"]) >= float(line["prefill_ms"]) + float(line["decode_ms"]) > 0 and float(line["queue_ms"]) >= 0
        assert "code" not in line


def test_why_a_400(daemon):
    d = daemon
    line = one_line(d, lambda: d.post("/v1/completions", body(temperature=SECRET), headers={"authorization": "Bearer k2"}))
    assert line["status"] == "400" and line["param"] == "temperature" and line["code"] and line["key"] == "key-2" and "output_tokens" not in line
    line = one_line(d, lambda: d.post("/v1/completions", body(model=SECRET), headers=d.headers))
    assert line["status"] == "404" and line["code"] == "model_not_found"
    line = one_line(d, lambda: d.post("/v1/completions", body()))
    assert line["status"] == "401" and "key" not in line
    line = one_line(d, lambda: d.get("/nowhere", headers=d.headers))
    assert line["status"] == "404" and line["path"] == "/nowhere"


def test_a_client_that_goes(daemon):
    d = daemon

    def go(stream):
        s = d.connect()
        d.send_request(s, "/v1/completions", body(max_tokens=4000, stream=stream), "Authorization: Bearer k1\r\n")
        if stream:
            s.recv(4096)
        else:
            d.eventually(lambda: 'vllm:num_requests_running{model_name="' + MODEL_ID + '"} 1' in d.get("/metrics", headers=d.headers).text, what="it runs")
        s.close()
    line = one_line(d, lambda: go(True))
    assert line["status"] == "200" and line["finish"] == "abort" and 0 <= int(line["output_tokens"]) < 4000
    line = one_line(d, lambda: go(False))
    assert line["status"] == "499" and line["finish"] == "abort"


def test_probes_leave_none(daemon):
    n = len(lines_of(daemon, daemon.form))
    for path in ("/health", "/ready"):
        daemon.get(path)
    assert len(lines_of(daemon, daemon.form)) == n


def test_lines_are_bounded():
    with Daemon("--log-requests", 0) as d:
        assert d.post("/v1/completions", body()).status_code == 200
        assert not lines_of(d, "text")
    with Daemon() as d:
        time.sleep(1.1)  # requests refused while the model was loading used up lines of their second
        s = d.connect()
        s.sendall(b"GET /nowhere HTTP/1.1\r\nHost: t\r\n\r\n" * 500 + b"GET /health HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n")
        assert read_all(s).count(b"HTTP/1.1 404 ") == 500
        def told():  # without requests that were refused while the model was loading
            return [line for line in lines_of(d, "text") if line["path"] == "/nowhere"]
        before = len(told())
        assert 20 <= before < 500
        time.sleep(1.1)
        d.get("/nowhere")
        assert len(told()) == before + 1 and sum(int(line.get("left_out", 0)) for line in told()) == 500 - before


def test_behind_a_proxy():
    forwarded = {"x-forwarded-for": "6.6.6.6, 192.0.2.7, 127.0.0.1"}
    with Daemon("--trusted-proxies", "127.0.0.0/8") as d:
        d.form = "text"
        assert one_line(d, lambda: d.post("/v1/completions", body(), headers=forwarded))["client"] == "192.0.2.7"
        lines = [("x-forwarded-for", "6.6.6.6"), ("x-forwarded-for", "192.0.2.8"), ("x-forwarded-for", "127.0.0.2")]
        assert one_line(d, lambda: httpx.post(d.url + "/v1/completions", json=body(), headers=lines))["client"] == "192.0.2.8", "a line a proxy"
        assert one_line(d, lambda: d.post("/v1/completions", body()))["client"] == "127.0.0.1"
        assert one_line(d, lambda: d.post("/v1/completions", body(), headers={"x-forwarded-for": "nobody"}))["client"] == "127.0.0.1"
    with Daemon("--trusted-proxies", "10.0.0.1") as d:
        d.form = "text"
        assert one_line(d, lambda: d.post("/v1/completions", body(), headers=forwarded))["client"] == "127.0.0.1", "anybody may send that"


def test_a_log_that_nobody_reads_holds_nobody_up(tmp_path):
    """stderr is a full pipe: requests are answered. When the pipe is read again, a line says how many lines are lost."""
    folder = folder_with_tokenizer(tmp_path)
    port, (read_end, write_end) = free_port(), os.pipe()
    daemon = subprocess.Popen([DAEMON, "--model", folder, "--load-format", "dummy", "--kv-bytes", "64M", "--cache-dir", "",
                               "--listen", f"127.0.0.1:{port}"], stderr=write_end, stdin=subprocess.DEVNULL)
    os.close(write_end)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=10 * SLOWNESS, transport=httpx.HTTPTransport(retries=9)) as c:
            def ask():
                assert c.post("/v1/completions", json={"prompt": [1, 2], "max_tokens": 1}).status_code == 200
            while c.get("/ready").status_code != 200:
                time.sleep(0.02)
            for _ in range(600):  # lines of 200 bytes each; a pipe holds 64 KiB
                ask()
            os.read(read_end, 1 << 20)
            ask()
            told = ""
            while told.count("\n") < 2:  # each line is a separate write
                told += os.read(read_end, 1 << 20).decode()
        assert re.search(r" warn  [1-9]\d* lines before are lost: stderr took none\n.* request id=[^\n]*\n$", told), told
        daemon.terminate()
        assert daemon.wait(20 * SLOWNESS) == 0
    finally:
        daemon.kill()
        daemon.wait()
        os.close(read_end)


def test_errors_of_the_engine_do_not_fill_the_log(tmp_path):
    """A model whose weights are NaN fails every request: the log says so ten times a second, and counts the lines left out."""
    folder = folder_with_tokenizer(tmp_path)
    write_model(folder, 1)
    file = folder / "model.safetensors"
    data = bytearray(file.read_bytes())
    begin = 8 + int.from_bytes(data[:8], "little")
    data[begin:] = b"\xc0\x7f" * ((len(data) - begin) // 2)
    file.write_bytes(data)
    with Daemon("--log-requests", 0, model=folder, kv_bytes=1 << 24) as d:
        with httpx.Client(timeout=60 * SLOWNESS) as client:
            n = [client.post(d.url + "/v1/completions", json={"prompt": [5, 6, i + 3], "max_tokens": 2}).status_code for i in range(120)]
        time.sleep(1.1)
        assert d.post("/v1/completions", {"prompt": [5], "max_tokens": 1}).status_code == 500
        lines = [line for line in d.log().splitlines() if " error " in line and "request " in line]
        seconds = {line[:19] for line in lines}
        assert set(n) == {500} and 1 < len(lines) <= 20 * len(seconds) + 1  # one second of the limit may span two clock seconds
        told = sum(int(m.group(1)) for line in lines if (m := re.search(r"; (\d+) lines like this were left out", line)))
        assert len(lines) + told == 121
