"""SIGHUP: what changes, what does not, and that a bad file changes nothing."""
import contextlib
import http.client
import json
import os
import re
import signal

from harness import MODEL_ID, Daemon
from test_dummy import folder_with_tokenizer

BODY = {"model": MODEL_ID, "prompt": "x", "max_tokens": 2, "ignore_eos": True}


def ask(d, key, **fields):
    return d.post("/v1/completions", {**BODY, **fields}, headers={"authorization": f"Bearer {key}"})


def test_reload(tmp_path):
    config, keys = tmp_path / "tandem.conf", tmp_path / "keys"
    keys.write_text("first\nsecond\n")
    config.write_text(f"api_key_file = {keys}\nlog_level = info\nworkers = 2\n")
    with Daemon("--config", config, "--watchers", 3, api_key="first") as d:
        assert ask(d, "first").status_code == ask(d, "second").status_code == 200 and ask(d, "third").status_code == 401
        s = d.connect()
        d.send_request(s, "/v1/completions", {**BODY, "max_tokens": 60, "stream": True}, "Authorization: Bearer second\r\n")
        head = s.recv(65536)
        assert b" 200 OK" in head

        # keys: one removed, one added, one kept; CORS; log level; options of the command line stay; options that need a restart are named
        keys.write_text("third name=carol\nfirst\n")
        config.write_text(f"api_key_file = {keys}\nlog_level = warn\nworkers = 3\nwatchers = 9\ncors_origin = https://a.example\n")
        reload_lines = d.log().count("\n")
        d.process.send_signal(signal.SIGHUP)
        d.eventually(lambda: "at a restart only: workers" in d.log(), what="the warning")
        assert ask(d, "first").status_code == ask(d, "third").status_code == 200 and ask(d, "second").status_code == 401
        r = d.post("/v1/completions", BODY, headers={"authorization": "Bearer first", "origin": "https://a.example"})
        assert r.headers["access-control-allow-origin"] == "https://a.example"
        while b"[DONE]" not in head:  # a running answer of a removed key continues to its end
            chunk = s.recv(65536)
            assert chunk
            head += chunk
        # level warn: the reload's info lines are no longer logged, and nothing has failed
        (warning,) = d.log().splitlines()[reload_lines:]
        assert "at a restart only: workers" in warning

        # nothing in a bad file takes effect
        for text, words in ((f"api_key_file = {keys}\nlog_level = info\nworkers = 0\n", "workers: 0 is outside"),
                            ("log_level = info\napi_key_file = /nowhere/keys\n", "/nowhere/keys"),
                            ("log_level = info\n", "whether keys are asked"),
                            (f"log_level = info\napi_key_file = {keys}\ntrusted_proxies = here\n", "'here'")):
            config.write_text(text)
            d.process.send_signal(signal.SIGHUP)
            d.eventually(lambda: words in d.log(), what=words)
            assert "SIGHUP: nothing is changed: " in d.log().splitlines()[-1]
            assert ask(d, "first").status_code == 200
        # nor in a half-written key file, although the part that exists would be valid
        config.write_text(f"api_key_file = {keys}\nlog_level = info\n")
        keys.write_text("third name=car")
        d.process.send_signal(signal.SIGHUP)
        d.eventually(lambda: "its last line has no newline" in d.log(), what="a refusal")
        assert f"SIGHUP: nothing is changed: {keys}: " in d.log().splitlines()[-1]
        assert ask(d, "first").status_code == ask(d, "third").status_code == 200
        keys.write_text("third name=carol\nfirst\n")
        d.process.send_signal(signal.SIGHUP)
        d.eventually(lambda: "keys are read again" in d.log(), what="a reload")
        assert "watchers" not in d.log().split("SIGHUP", 1)[1], "the command line's value is the same"


def test_a_reload_that_comes_too_late_ends_nothing(tmp_path):
    folder = folder_with_tokenizer(tmp_path)
    for _ in range(20):
        with Daemon("--load-format", "dummy", model=folder, kv_bytes=1 << 24) as d:
            d.process.send_signal(signal.SIGTERM)
            while d.process.poll() is None:
                d.process.send_signal(signal.SIGHUP)
            assert d.process.returncode == 0


def test_a_pipe_is_not_waited_for(tmp_path):
    """A key file, then the options file, is a pipe without a writer: nothing changes, and the daemon does not wait."""
    config, keys = tmp_path / "tandem.conf", tmp_path / "keys"
    keys.write_text("first\n")
    config.write_text(f"api_key_file = {keys}\n")
    with Daemon("--config", config, api_key="first") as d:
        for path in (keys, config):
            path.unlink()
            os.mkfifo(path)
            d.process.send_signal(signal.SIGHUP)
            d.eventually(lambda: f"nothing is changed: {path}: it is no regular file" in d.log(), what="a refusal")
            assert ask(d, "first").status_code == 200


def test_the_null_device_is_read_again(tmp_path):
    """/dev/null stands for no options file. A shell's pipe was consumed at the start."""
    with Daemon("--config", "/dev/null") as d:
        d.process.send_signal(signal.SIGHUP)
        d.eventually(lambda: "options and keys are read again" in d.log(), what="a reload")
    r, w = os.pipe()
    os.set_inheritable(r, True)
    os.write(w, b"log_requests = 1\n")
    os.close(w)
    with Daemon("--config", f"/dev/fd/{r}", pass_fds=[r]) as d:
        os.close(r)
        d.process.send_signal(signal.SIGHUP)
        d.eventually(lambda: f"nothing is changed: /dev/fd/{r}: it is no regular file" in d.log(), what="a refusal")
        assert d.get("/health").status_code == 200


def test_an_unchanged_file_may_lack_its_last_newline(tmp_path):
    config, keys = tmp_path / "tandem.conf", tmp_path / "keys"
    keys.write_text("first")
    config.write_text(f"api_key_file = {keys}\nlog_level = info\n")
    with Daemon("--config", config, api_key="first") as d:
        assert "its last line has no newline" in d.log()
        config.write_text(f"api_key_file = {keys}\nlog_level = info\ncors_origin = https://a.example\n")
        d.process.send_signal(signal.SIGHUP)
        d.eventually(lambda: "options and keys are read again" in d.log(), what="a reload")
        r = d.post("/v1/completions", BODY, headers={"authorization": "Bearer first", "origin": "https://a.example"})
        assert r.headers["access-control-allow-origin"] == "https://a.example"


def test_open_connections_follow(tmp_path, monkeypatch):
    config, keys = tmp_path / "tandem.conf", tmp_path / "credentials" / "keys"
    keys.parent.mkdir()
    keys.write_text("first\n")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(keys.parent))
    config.write_text(f"api_key_file = {keys}\ntrusted_proxies = 127.0.0.0/8\n")
    with Daemon("--config", config, api_key="first") as d, contextlib.closing(http.client.HTTPConnection("127.0.0.1", d.port, 60)) as kept:
        kept.connect()
        kept.auto_open = 0  # no second connection

        def send(size=0):
            """Sends a request on the one connection. Returns the status, and the client according to the log."""
            n = d.log().count("request id=")
            kept.request("POST", "/v1/completions", json.dumps({**BODY, "user": "x" * size}),
                         {"content-type": "application/json", "authorization": "Bearer first", "x-forwarded-for": "192.0.2.7"})
            r = kept.getresponse()
            r.read()
            d.eventually(lambda: d.log().count("request id=") > n, what="its line")
            return r.status, re.findall(r" client=(\S+)", d.log())[-1]

        def reload(text):
            n = d.log().count("keys are read again")
            config.write_text(f"api_key_file = {keys}\n{text}")
            d.process.send_signal(signal.SIGHUP)
            d.eventually(lambda: d.log().count("keys are read again") > n, what="a reload")
            return d.log()
        assert send(2000) == (200, "192.0.2.7")
        log = reload("trusted_proxies = 127.0.0.0/8, 10.0.0.1\n")
        assert "changed keys take a restart" in log and "share places after a restart only" not in log
        assert send() == (200, "192.0.2.7"), "the proxy is still one"
        keys.write_text("first\nsecond\n")
        assert "share places after a restart only" in reload("http_body_bytes = 1024\n")
        assert send() == (200, "127.0.0.1"), "it is a proxy no more"
        assert send(2000) == (413, "127.0.0.1")
