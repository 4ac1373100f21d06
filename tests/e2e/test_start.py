"""How the daemon starts, and how it refuses to: the exit codes of common/status.h, and messages that name the cause."""
import json
import os
import pathlib
import re
import shlex
import shutil
import socket
import struct
import subprocess
import sys

import pytest
from harness import DAEMON, MODEL, MODEL_ID, ROOT, SLOWNESS, Daemon, free_port, run_daemon

USAGE, BAD_MODEL, LISTEN = 64, 65, 66


def test_help_and_version():
    code, text = run_daemon("--help")
    assert code == 0 and "--model" in text and "--listen" in text
    code, text = run_daemon("--version")
    assert code == 0 and re.search(r"\d+\.\d+\.\d+", text)


def test_the_plain_command_needs_nothing_else():
    with Daemon(kv_bytes=None) as d:
        assert d.get("/v1/models").json()["data"][0]["id"] == MODEL_ID


def run_in_bash(line, folder):
    """Runs a line of bash in the folder; $tandemd is the daemon with a model and an address. Returns (exit code, all output)."""
    tandemd = shlex.join([DAEMON, "--model", MODEL, "--listen", f"unix:{folder}/s"])
    r = subprocess.run(["bash", "-c", f"tandemd={shlex.quote(tandemd)}\n{line}"], cwd=folder, stdin=subprocess.DEVNULL,
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=20 * SLOWNESS, text=True)
    return r.returncode, r.stdout


@pytest.mark.parametrize("args, words", [
    ([], ["--model"]), (["--model"], ["model"]), (["--frobnicate", "1"], ["frobnicate"]), (["stray"], ["stray"]),
    (["--threads", "x", "--model", "m"], ["threads", "'x'"]), (["--threads", "1.5", "--model", "m"], ["threads"]),
    (["--page-tokens", "17", "--model", "m"], ["page_tokens", "16, 32 or 64"]),
    (["--queue-requests", "0", "--model", "m"], ["queue_requests", "1..65536"]),
    (["--log-level", "loud", "--model", "m"], ["log_level", "loud"]), (["--backend", "tpu", "--model", "m"], ["backend", "tpu"]),
    (["--config", "/nowhere/tandem.conf"], ["/nowhere/tandem.conf", "No such file"]),
    (["--model", MODEL, "--listen", "nonsense"], ["listen", "nonsense"]),
    (["--model", MODEL, "--listen", "127.0.0.1:99999"], ["listen", "99999"]),
    (["--model", MODEL, "--listen", "8080", "--check"], ["listen", "8080"]),
    (["--model", MODEL, "--context-tokens", "100000"], ["context_tokens", "100000", "8192"]),
    (["--model", MODEL, "--api-key-file", "/nowhere/keys"], ["/nowhere/keys"]),
    (["--model", MODEL, "--allowed-hosts", "a, http://b"], ["allowed_hosts", "'http://b'"]),
    (["--model", MODEL, "--cors-origin", "chat.example.com", "--check"], ["cors_origin", "'chat.example.com'", "SCHEME://HOST"]),
    (["--model", MODEL, "--chat-template", "/nowhere/t.jinja"], ["/nowhere/t.jinja"]),
], ids=lambda v: "_".join(map(str, v))[:40] if isinstance(v, list) else None)
def test_bad_command_line(args, words):
    if "--listen" not in args:
        args = [*args, "--listen", f"127.0.0.1:{free_port()}"] if args and args != ["--model"] else args
    code, text = run_daemon(*args)
    assert code == USAGE, (code, text)
    for w in words:
        assert w in text, (w, text)


@pytest.mark.parametrize("content, line, words", [
    ("threads = 1\nfrobnicate = 2\n", 2, ["frobnicate"]), ("\n# c\nthreads = many\n", 3, ["threads", "many"]),
    ("threads = 1\n\nthreads = 2\n", 3, ["threads", "twice"]), ("[server]\nthreads = 1\n", 1, ["section"]),
    ("model\n", 1, []), ("queue_requests = 99999999\n", 1, ["queue_requests"]), ("threads = " + "1" * 5000 + "\n", 1, []),
    ("kv_bytes = -5\n", 1, ["kv_bytes"]),
])
def test_bad_options_file(tmp_path, content, line, words):
    path = tmp_path / "tandem.conf"
    path.write_text(content)
    code, text = run_daemon("--config", path, "--model", MODEL)
    assert code == USAGE, (code, text)
    assert f"{path}:{line}" in text, text
    for w in words:
        assert w in text, (w, text)


def test_options_file_works_and_the_command_line_wins(tmp_path):
    path = tmp_path / "tandem.conf"
    path.write_text(f"# tandem\nmodel = {MODEL}\nserved-model-name = from-file\nrunning_requests = 3\n")
    with Daemon("--config", path, "--served-model-name", "mine") as d:
        assert d.get("/v1/models").json()["data"][0]["id"] == "mine"
        assert d.post("/v1/completions", {"model": "mine", "prompt": "x", "max_tokens": 1}).status_code == 200


def test_check():
    code, text = run_daemon("--check", "--model", MODEL, "--kv-bytes", 1 << 28)
    assert code == 0, text


def test_a_chat_template_without_end(tmp_path):
    code, out = run_in_bash("yes | $tandemd --chat-template /dev/stdin", tmp_path)
    assert code == USAGE and re.search(r"/dev/stdin: unreadable, or larger than \d+ bytes", out), out


@pytest.mark.parametrize("option", ["--config", "--api-key-file", "--chat-template"])
def test_a_file_that_nobody_may_ever_write(tmp_path, option):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path, words in ((fifo, "it is a FIFO, whose writer may never come"), (tmp_path, "Is a directory"), ("/dev/zero", "it is no regular file")):
        code, text = run_daemon("--model", MODEL, "--listen", f"unix:{tmp_path}/s", option, path, timeout=20)
        assert code == USAGE and f"{path}: {words}" in text, text


def test_files_of_the_shell(tmp_path):
    """What a shell makes of `<(...)`, `|` and `<`; and /dev/null."""
    (tmp_path / "conf").write_text("served_model_name = mine\n")
    for given in ("--config <(echo served_model_name = mine)", "--config /dev/stdin < conf", "--config conf",
                  "--config /dev/null --served-model-name mine"):
        code, text = run_in_bash(f"$tandemd {given} --print-config | grep ^served_model_name", tmp_path)
        assert code == 0 and text.startswith("served_model_name = mine "), (given, text)
    code, text = run_in_bash("echo served_model_name = mine | $tandemd --config /dev/stdin --print-config | grep ^served_model_name", tmp_path)
    assert code == 0 and text.startswith("served_model_name = mine "), text
    for given, want in (("--api-key-file <(sleep 0.1; echo key)", 0), ("--api-key-file <(true)", USAGE), ("--api-key-file /dev/null", USAGE)):
        code, text = run_in_bash(f"$tandemd {given} --check-config", tmp_path)
        assert code == want and ("holds no key" in text) == (want == USAGE), (given, text)


def test_a_taken_address():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        address = f"127.0.0.1:{s.getsockname()[1]}"
        code, text = run_daemon("--model", MODEL, "--listen", address, "--kv-bytes", 1 << 28)
    assert code == LISTEN and address in text and "in use" in text


# ---- models that cannot be loaded ----

def refuse(path, *words):
    code, text = run_daemon("--model", path, "--listen", f"127.0.0.1:{free_port()}")
    assert code == BAD_MODEL, (code, text)
    for w in (pathlib.Path(path).name, *words):
        assert w in text, (w, text)
    assert "error" in text


def cut_model(path, n_bytes):
    """The first n_bytes, or all but the last -n_bytes."""
    if n_bytes is not None and n_bytes < 0:
        n_bytes += os.path.getsize(MODEL)
    with open(MODEL, "rb") as src, open(path, "wb") as dst:
        shutil.copyfileobj(src, dst) if n_bytes is None else dst.write(src.read(n_bytes))
    return path


@pytest.mark.share
@pytest.mark.parametrize("n_bytes", [0, 3, 4, 23, 24, 1000, 500_000, 1_700_000, 2_000_000, -12_000_000, -1])
def test_truncated_gguf(tmp_path, n_bytes):
    refuse(cut_model(tmp_path / "cut.gguf", n_bytes))


def test_not_a_model(tmp_path):
    text = tmp_path / "notes.gguf"
    text.write_text("these are my notes, not a model\n" * 100)
    refuse(text, "GGUF")
    refuse(tmp_path / "missing.gguf", "No such file")
    refuse(tmp_path / "missing-folder/")
    empty = tmp_path / "empty"
    empty.mkdir()
    refuse(empty, "config.json")
    (empty / "config.json").write_text("{")
    refuse(empty, "config.json")
    (empty / "config.json").write_text(json.dumps({"architectures": ["MambaForCausalLM"], "model_type": "mamba"}))
    refuse(empty, "model.safetensors")
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    header += b" " * (-len(header) % 8)
    (empty / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    refuse(empty, "mamba")


def patched(tmp_path, at, new):
    path = cut_model(tmp_path / "patched.gguf", None)
    with open(path, "r+b") as f:
        f.seek(at)
        f.write(new)
    return path


@pytest.mark.parametrize("at, new, words", [
    (0, b"GGUX", ["GGUF"]), (4, struct.pack("<I", 1), ["version"]), (4, struct.pack(">I", 3), ["version"]),
    (8, struct.pack("<Q", 2**60), []), (8, struct.pack("<Q", 2**64 - 1), []), (16, struct.pack("<Q", 2**60), []),
    (24, struct.pack("<Q", 2**63), []), (24, struct.pack("<Q", 2**64 - 1), []),
], ids=lambda v: str(v)[:24])
def test_lying_gguf_header(tmp_path, at, new, words):
    refuse(patched(tmp_path, at, new), *words)


def test_lying_tensor_table(tmp_path):
    """A tensor with a wrong shape, type or offset is named."""
    head = open(MODEL, "rb").read(4_000_000)
    name = b"blk.7.ffn_up.weight"
    at = head.index(name) + len(name)
    n_dims, = struct.unpack_from("<I", head, at)
    assert n_dims == 2
    dims, kind, offset = at + 4, at + 20, at + 24
    for where, new in ((dims, struct.pack("<Q", 577)), (dims, struct.pack("<Q", 2**62)), (dims + 8, struct.pack("<Q", 0)),
                       (kind, struct.pack("<I", 99)), (offset, struct.pack("<Q", 2**63 + 32)), (offset, struct.pack("<Q", 98_362_400)),
                       (at, struct.pack("<I", 200))):
        refuse(patched(tmp_path, where, new), name.decode())


def test_a_renamed_tensor_is_missed(tmp_path):
    head = open(MODEL, "rb").read(4_000_000)
    at = head.index(b"blk.7.ffn_up.weight")
    refuse(patched(tmp_path, at, b"blk.7.ffn_uq.weight"), "blk.7.ffn_u")


def test_an_architecture_that_is_not_served(tmp_path):
    head = open(MODEL, "rb").read(100_000)
    at = head.index(b"general.architecture") + len("general.architecture") + 4 + 8
    assert head[at:at + 5] == b"llama"
    refuse(patched(tmp_path, at, b"mamba"), "mamba")


# ---- docs/OPTIONS.md, packaging/tandem.conf ----

def test_the_options_page_says_what_help_says():
    """Every option with its meaning, default and range."""
    _, text = run_daemon("--help")
    options = set(re.findall(r"^  (--[a-z0-9-]+)", text, re.M))
    listed = re.findall(r"^\| `(--[a-z0-9-]+)", (ROOT / "docs/OPTIONS.md").read_text(), re.M)
    assert len(options) > 20 and set(listed) == options and len(listed) == len(options)
    table = subprocess.run([sys.executable, ROOT / "scripts/options_table.py", "--check"], input=text, text=True, capture_output=True)
    assert table.returncode == 0, table.stderr


def test_the_packaged_options_file_tells_the_defaults():
    """Each `# name = value` is an option. Its value, if it is a number, is the default. The options that the file sets exist too."""
    _, text = run_daemon("--help")
    options = {name.replace("-", "_") for name in re.findall(r"^  --([a-z0-9-]+)", text, re.M)}
    defaults = {name.replace("-", "_"): value for name, value in re.findall(r"^  --([a-z0-9-]+) N .*\[(\d+), ", text, re.M)}
    assert len(defaults) > 20
    lines = re.findall(r"^(# )?([a-z_]+) = (.*)$", (ROOT / "packaging/tandem.conf").read_text(), re.M)
    commented = {name: value for mark, name, value in lines if mark}
    assert {name for _, name, _ in lines} <= options and len(lines) == len({name for _, name, _ in lines})
    told = {name: value for name, value in commented.items() if name in defaults}
    assert len(told) >= 4 and told == {name: defaults[name] for name in told}
    assert f"(default {dict((n, v) for m, n, v in lines if not m)['listen']})" in text
