"""Options: which source wins, what --print-config shows, what --check-config and --check examine, and the errors for options that do not
exist. tests/unit/test_config_options.c has the syntax of lines and values."""
import os
import re
import resource
import subprocess

import pytest
from harness import DAEMON, MODEL, ROOT, SLOWNESS, Daemon, run_daemon

USAGE = 64


def printed(*args, env=None):
    """--print-config: ({name: (value, where it comes from)}, the text)."""
    code, text = run_daemon("--print-config", *args, env=env)
    assert code == 0, text
    return {n: (v.strip(), w) for n, v, w in re.findall(r"^(?:# )?([a-z_]+) =(.*) # (.*)$", text, re.M)}, text


def file_of(tmp_path, text):
    path = tmp_path / "tandem.conf"
    path.write_text(text)
    return path


def test_command_line_then_environment_then_file_then_defaults(tmp_path):
    path = file_of(tmp_path, "\nthreads = 1\nworkers = 3\nworker_queue = 5\n")
    env = {"TANDEM_WORKERS": "4", "TANDEM_THREADS": "2", "TANDEM_LISTEN": "127.0.0.1:81", "TANDEM_BACKEND": ""}
    values, text = printed("--threads", 3, "--config", path, env=env)
    assert values["threads"] == ("3", "command line")
    assert values["workers"] == ("4", "TANDEM_WORKERS")
    assert values["listen"] == ("127.0.0.1:81", "TANDEM_LISTEN")
    assert values["worker_queue"] == ("5", "file, line 4")
    assert values["connections"] == ("4096", "default")
    assert values["backend"] == ("auto", "default"), "an empty variable is as good as none"
    assert str(path) in text


def test_the_environment_may_name_the_file(tmp_path):
    path, other = file_of(tmp_path, "workers = 3\n"), tmp_path / "other.conf"
    other.write_text("threads = 7\n")
    assert printed(env={"TANDEM_CONFIG": str(path)})[0]["workers"] == ("3", "file, line 1")
    values, _ = printed("--config", other, env={"TANDEM_CONFIG": str(path)})
    assert values["workers"] == ("2", "default") and values["threads"] == ("7", "file, line 1")


def test_what_is_printed_is_read_back(tmp_path):
    odd = "/a b # c/it's \"new\"; x"
    first, text = printed("--model", odd, "--kv-bytes", "8g", "--temperature", "0.1", "--log-level", "debug", "--cache-dir", "")
    assert first["kv_bytes"] == ("8G", "command line") and first["temperature"] == ("0.1", "command line")
    assert first["top_p"] == ("", "default: as the model says") and first["cache_dir"] == ("", "command line")
    second, _ = printed("--config", file_of(tmp_path, text))
    assert {n: v for n, (v, _) in second.items()} == {n: v for n, (v, _) in first.items()}
    assert second["kv_bytes"][1].startswith("file, line ")
    options = {n.replace("-", "_") for n in re.findall(r"^  --([a-z0-9-]+) \S", run_daemon("--help")[1], re.M)}
    assert set(first) == options - {"config"} and len(first) > 40


def test_a_daemon_by_its_environment(monkeypatch):
    monkeypatch.setenv("TANDEM_SERVED_MODEL_NAME", "mine")
    monkeypatch.setenv("TANDEM_WORKRS", "4")
    with Daemon() as d:
        assert d.get("/v1/models").json()["data"][0]["id"] == "mine"
        (line,) = [line for line in d.log().splitlines() if "TANDEM_WORKRS" in line]
        assert " warn " in line and "TANDEM_WORKERS" in line


def test_a_model_of_several_names():
    with Daemon("--served-model-name", "first", "--served-model-name", "second, org/third") as d:
        models = d.get("/v1/models").json()["data"]
        assert [m["id"] for m in models] == ["first", "second", "org/third"] and {m["root"] for m in models} == {"first"}
        for name in ("first", "second", "org/third"):
            r = d.post("/v1/completions", {"model": name, "prompt": "x", "max_tokens": 1})
            assert r.status_code == 200 and r.json()["model"] == "first", r.text
        for path in ("second", "org/third", "org%2Fthird"):
            assert d.get("/v1/models/" + path).json()["id"] == path.replace("%2F", "/")
        for name in ("second,", "second, org/third", "fourth", ""):
            assert d.post("/v1/completions", {"model": name, "prompt": "x", "max_tokens": 1}).status_code == 404, name
            assert not name or d.get("/v1/models/" + name).status_code == 404
        assert 'model_name="first"' in d.get("/metrics").text


def test_a_bad_variable():
    code, text = run_daemon("--print-config", env={"TANDEM_THREADS": "many"})
    assert code == USAGE and "TANDEM_THREADS: threads: 'many'" in text


def test_other_variables_are_no_options():
    code, text = run_daemon("--check-config", "--model", "m", env={"TANDEM_FAULT": "x", "TANDEM_PORT": "tcp://10.0.0.1:80", "TANDEM_SHARE": "always"})
    assert code == 0 and "TANDEM_" not in text, text


# ---- --check-config, --check ----

def test_check_config_looks_at_options_only(tmp_path):
    code, text = run_daemon("--check-config", "--model", tmp_path / "no-such-model", "--backend", "cuda", "--device", 63)
    assert code == 0 and " error " not in text, text


@pytest.mark.parametrize("content, words", [
    ("listen = 8080\n", ["listen", "'8080'"]), ("cors_origin = example.com\n", ["cors_origin"]), ("allowed_hosts = http://a\n", ["allowed_hosts"]),
    ("trusted_proxies = here\n", ["trusted_proxies"]), ("api_key_file = /nowhere/keys\n", ["/nowhere/keys"]), ("workers = 0\n", [":1: workers", "1..16"]),
    ("bckend = cpu\n", [":1: ", "did you mean backend?"]),
])
def test_check_config_refuses(tmp_path, content, words):
    code, text = run_daemon("--check-config", "--model", "m", "--config", file_of(tmp_path, content))
    assert code == USAGE, text
    for w in words:
        assert w in text, text


def test_check_config_wants_a_model():
    code, text = run_daemon("--check-config")
    assert code == USAGE and "--model" in text


def test_the_packaged_file_is_good():
    code, text = run_daemon("--check-config", "--config", ROOT / "packaging/tandem.conf")
    assert code == 0, text


def test_check_measures_nothing_and_keeps_nothing(tmp_path):
    code, text = run_daemon("--check", "--model", MODEL, "--cache-dir", tmp_path, "--tbt-slo-ms", 1)
    assert code == 0 and "are good" in text, text
    assert "step times: built in" in text and not list(tmp_path.iterdir()), text
    assert "memory: weights" in text


@pytest.mark.skipif(SLOWNESS != 1, reason="sanitizers take address space of their own")
def test_check_takes_no_memory_for_kv():
    def bounded():
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    r = subprocess.run([DAEMON, "--check", "--model", MODEL, "--kv-bytes", "64G", "--threads", "1"], preexec_fn=bounded, text=True, timeout=60,
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, "MALLOC_ARENA_MAX": "1"})
    assert r.returncode == 0 and "KV 6553" in r.stdout, r.stdout


def test_check_refuses_a_bad_model(tmp_path):
    code, text = run_daemon("--check", "--model", tmp_path / "none.gguf")
    assert code == 65 and "No such file" in text


# ---- options that are not there ----

@pytest.mark.parametrize("args, words", [
    (["--bckend", "cpu"], ["unknown option '--bckend'", "did you mean --backend?"]), (["--chekc"], ["did you mean --check?"]),
    (["--Model=x"], ["did you mean --model?"]), (["-m", "x"], ["'-m'", "--model"]), (["--host", "0.0.0.0"], ["--listen", "HOST:PORT"]),
    (["--port=80"], ["--listen", "HOST:PORT"]), (["--max-model-len", "32k"], ["--context-tokens"]), (["--tensor-parallel-size", "2"], ["one GPU"]),
    (["--gpu-memory-utilization", "0.9"], ["--gpu-memory-percent", "percent"]), (["--max-num-seqs", "8"], ["--running-requests"]),
    (["--ctx-size", "1"], ["--context-tokens", "each request"]), (["-c", "1"], ["--context-tokens"]), (["--n-gpu-layers", "1"], ["--backend"]),
    (["-ngl", "1"], ["--backend"]), (["--parallel", "1"], ["--running-requests"]), (["-np", "1"], ["--running-requests"]),
    (["--api-key", "x"], ["--api-key-file"]), (["--enable-prefix-caching"], ["always"]), (["model.gguf"], ["'model.gguf'", "--model"]),
    (["--check=1"], ["--check takes no value"]), (["--max-tokens", "1"], ["field of requests"]),
])
def test_what_is_meant_is_said(args, words):
    code, text = run_daemon(*args)
    assert code == USAGE, text
    for w in words:
        assert w in text, text


@pytest.mark.parametrize("short, long", [("-h", "--help"), ("-V", "--version")])
def test_short_forms(short, long):
    code, text = run_daemon(short)
    assert code == 0 and (code, text) == run_daemon(long)


def test_help_has_groups():
    text = run_daemon("--help")[1]
    groups = re.findall(r"^([A-Z][^\n]*):$", text, re.M)
    assert len(groups) >= 8 and "Model" in groups and "Memory" in groups
