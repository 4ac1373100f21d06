"""tandem-pull with a server that drops, stalls, lies, redirects and changes its files; and a daemon that finds the fetched model."""
import contextlib
import hashlib
import http.server
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import threading
import time

import pytest
from harness import DAEMON, MODEL, SLOWNESS, Daemon

PULL = pathlib.Path(DAEMON).parent / "tandem-pull"
pytestmark = pytest.mark.skipif(not PULL.exists(), reason="built without libcurl")
DATA = bytes((i * 7 + i // 251) % 256 for i in range(300_000))
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def sha256(data):
    return hashlib.sha256(data).hexdigest()


class Server(http.server.ThreadingHTTPServer):
    """files: path -> bytes. A test sets `misdeed(handler, path, first byte)`, which may answer itself (True), or return how many bytes
    are sent before the connection is cut (a number)."""
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.etags, self.misdeed, self.seen, self.ranges = {}, {}, None, [], True
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()

    def handle_error(self, request, client_address):
        pass  # connections are cut on purpose

    def add_repo(self, name, files, **wrong):
        """files: name -> (bytes, whether the hub tells a hash). wrong: name -> members of its entry that lie."""
        siblings = []
        for file, (data, hashed) in files.items():
            self.files[f"/{name}/resolve/{COMMIT}/{file}"] = data
            siblings.append({"rfilename": file, "size": len(data), **({"lfs": {"sha256": sha256(data), "size": len(data)}} if hashed else {}),
                             **wrong.get(file, {})})
        self.files[f"/api/models/{name}/revision/main"] = json.dumps({"id": name, "sha": COMMIT, "siblings": siblings}).encode()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_GET(self):
        path = self.path.split("?")[0]
        s = self.server
        first = int(m[1]) if (m := re.fullmatch(r"bytes=(\d+)-", self.headers.get("range", ""))) and s.ranges else 0
        s.seen.append((path, first, dict(self.headers)))
        cut = s.misdeed(self, path, first) if s.misdeed else None
        if cut is True:
            return
        data = s.files.get(path)
        if data is None:
            return self.answer(404, b"no such file")
        etag = s.etags.get(path, f'"{hashlib.md5(data).hexdigest()}"')
        if first and self.headers.get("if-range", etag) != etag:
            first = 0
        if first >= len(data) and first:
            return self.answer(416, b"", {"content-range": f"bytes */{len(data)}"})
        head = {"etag": etag} if etag else {}
        if first:
            head["content-range"] = f"bytes {first}-{len(data) - 1}/{len(data)}"
        self.answer(206 if first else 200, data[first:], head, cut)

    def answer(self, status, data, head={}, cut=None):
        self.send_response(status)
        for name, value in {"content-length": len(data), **head}.items():
            if value is not None:
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data[:cut])
        if cut is not None:
            self.wfile.flush()
            self.close_connection = True


@pytest.fixture
def server():
    with Server() as s:
        yield s


@pytest.fixture
def place(tmp_path):
    return tmp_path / "models"


def pull(place, *args, env=None, timeout=30):
    """(exit code, stdout, stderr)"""
    r = subprocess.run([PULL, *args], text=True, capture_output=True, timeout=timeout * SLOWNESS, stdin=subprocess.DEVNULL,
                       env={"PATH": "/usr/bin:/bin", "TANDEM_MODEL_DIR": str(place), **(env or {})})
    return r.returncode, r.stdout, r.stderr


def good(place, *args, **kw):
    code, out, err = pull(place, *args, **kw)
    assert code == 0, err
    return pathlib.Path(out.strip())


def refused(place, code, *args, words=(), **kw):
    got, out, err = pull(place, *args, **kw)
    assert got == code and out == "", (got, out, err)
    for w in words:
        assert w in err, (w, err)


def all_files(place):
    return sorted(str(p.relative_to(place)) for p in place.rglob("*") if p.is_file())


# ---- a URL ----

def test_a_url(server, place):
    server.files["/a/x.gguf"] = DATA
    path = good(place, server.url + "/a/x.gguf?download=true")
    assert path == place / "x.gguf" and path.read_bytes() == DATA and all_files(place) == ["x.gguf"]
    n = len(server.seen)
    assert good(place, server.url + "/a/x.gguf") == path and len(server.seen) == n  # exists already
    other = good(place, server.url + "/a/x.gguf", "--as", "mine/y.gguf", "--sha256", sha256(DATA).upper())
    assert other == place / "mine/y.gguf" and other.read_bytes() == DATA


def test_here_already_is_what_was_asked_for(server, place):
    server.files["/x.gguf"] = DATA
    path = good(place, server.url + "/x.gguf")
    assert good(place, server.url + "/x.gguf", "--sha256", sha256(DATA).upper()) == path
    refused(place, 65, server.url + "/x.gguf", "--sha256", sha256(b"other"), words=["here already", "SHA-256"])
    assert path.read_bytes() == DATA
    server.add_repo("org/m", FOLDER)
    hub = ("--hub", server.url)
    good(place, "org/m/model.safetensors", *hub)
    refused(place, 64, "org/m", *hub, words=["holds other files", "--as"])
    refused(place, 64, server.url + "/x.gguf", "--as", "org/m", words=["holds other files", "--as"])
    refused(place, 64, "org/m", *hub, "--as", "x.gguf", words=["another file", "--as"])
    refused(place, 64, "org/m", *hub, "--as", "n", "--sha256", sha256(DATA), words=["--sha256 is for URLs"])
    (place / "empty").mkdir()
    assert (good(place, "org/m", *hub, "--as", "empty") / "config.json").exists()
    assert good(place, "org/m", *hub, "--as", "empty") == place / "empty"


def test_another_hash_keeps_nothing(server, place):
    server.files["/x.gguf"] = DATA
    refused(place, 65, server.url + "/x.gguf", "--sha256", sha256(b"other"), words=["SHA-256", sha256(DATA)])
    assert all_files(place) == []


def test_redirects(server, place):
    """Also as hubs do it: the redirect has the hash, and another server the bytes."""
    server.files["/cdn/x.gguf"] = DATA

    def misdeed(handler, path, first):
        if path.startswith("/hub/"):
            handler.answer(302, b"", {"location": "/cdn/x.gguf", "x-linked-etag": f'"{sha256(DATA if "good" in path else b"")}"'})
            return True
        if path == "/loop.gguf":
            handler.answer(302, b"", {"location": "/loop.gguf"})
            return True
        if path == "/file.gguf":
            handler.answer(302, b"", {"location": "file:///etc/passwd"})
            return True
    server.misdeed = misdeed
    assert good(place, server.url + "/hub/good.gguf").read_bytes() == DATA
    refused(place, 65, server.url + "/hub/bad.gguf", words=["SHA-256"])
    refused(place, 69, server.url + "/loop.gguf", words=["redirects"])
    assert sum(path == "/loop.gguf" for path, *_ in server.seen) == 9
    refused(place, 69, server.url + "/file.gguf", words=["file"])
    assert [f for f in all_files(place) if not f.startswith(".")] == ["good.gguf"]


# ---- interrupted downloads ----

def test_a_server_that_drops_every_connection(server, place):
    """Each try delivers some bytes: the file is fetched to the end, and no byte twice."""
    server.files["/x.gguf"] = DATA
    server.misdeed = lambda handler, path, first: 75_000
    assert good(place, server.url + "/x.gguf").read_bytes() == DATA
    firsts = [first for _, first, _ in server.seen]
    assert firsts == list(range(0, len(DATA), 75_000)) and all("If-Range" in h for _, first, h in server.seen if first)


def test_a_server_that_drops_before_any_byte(server, place):
    server.files["/x.gguf"] = DATA
    server.misdeed = lambda handler, path, first: 0
    refused(place, 69, server.url + "/x.gguf", "--retries", "1", words=["given up"])
    assert len(server.seen) == 2 and all_files(place) == []


def test_a_server_that_stalls(server, place):
    server.files["/x.gguf"] = DATA
    stop = threading.Event()

    def misdeed(handler, path, first):
        if first == 0:
            handler.send_response(200)
            handler.send_header("content-length", str(len(DATA)))
            handler.send_header("etag", '"e"')
            handler.end_headers()
            handler.wfile.write(DATA[:1])  # libcurl averages over its last five seconds, so more bytes would delay its timeout
            handler.wfile.flush()
            stop.wait(30)
            return True
    server.etags["/x.gguf"] = '"e"'
    server.misdeed = misdeed
    try:
        assert good(place, server.url + "/x.gguf", "--stall-s", "1").read_bytes() == DATA
    finally:
        stop.set()
    assert [first for _, first, _ in server.seen] == [0, 1]


def test_a_run_that_was_killed_is_gone_on_with(server, place):
    server.files["/x.gguf"] = DATA
    begun = threading.Event()

    def misdeed(handler, path, first):
        if first == 0:
            handler.answer(200, DATA[:120_000], {"content-length": len(DATA), "etag": server.etags["/x.gguf"]})
            begun.set()
            time.sleep(20)
            return True
    server.etags["/x.gguf"] = '"one"'
    server.misdeed = misdeed
    p = subprocess.Popen([PULL, server.url + "/x.gguf"], env={"TANDEM_MODEL_DIR": str(place)}, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    assert begun.wait(10 * SLOWNESS)
    end = time.monotonic() + 10 * SLOWNESS
    while (place / ".x.gguf.part").stat().st_size < 120_000 and time.monotonic() < end:
        time.sleep(0.02)
    code, out, _ = pull(place, "--list")
    assert "x.gguf\t120 kB\tnot whole" in out
    refused(place, 69, server.url + "/x.gguf", words=["another tandem-pull"])  # the first one still runs
    p.send_signal(signal.SIGTERM)  # SIGINT is ignored in a shell's background job
    p.wait(10)
    assert not (place / "x.gguf").exists()
    server.seen.clear()
    assert good(place, server.url + "/x.gguf").read_bytes() == DATA
    assert [first for _, first, _ in server.seen] == [120_000] and all_files(place) == ["x.gguf"]


def test_a_file_that_changes_between_ranges(server, place):
    """The bytes of two files are never combined: the request has If-Range, and a server that ignores it is detected."""
    new = DATA[::-1]
    for looks in (True, False):
        server.files["/x.gguf"] = DATA
        server.etags["/x.gguf"] = '"old"'
        calls = []

        def misdeed(handler, path, first):
            calls.append(first)
            if len(calls) == 1:
                return 50_000
            server.files["/x.gguf"], server.etags["/x.gguf"] = new, '"new"'
            if first and not looks:
                handler.answer(206, new[first:], {"content-range": f"bytes {first}-{len(new) - 1}/{len(new)}", "etag": '"new"'})
                return True
        server.misdeed = misdeed
        assert good(place, server.url + "/x.gguf", "--as", f"{looks}.gguf").read_bytes() == new
        assert calls == ([0, 50_000] if looks else [0, 50_000, 0])


def test_a_server_without_ranges(server, place):
    server.files["/x.gguf"], server.ranges = DATA, False
    calls = []

    def misdeed(handler, path, first):
        calls.append(first)
        return 50_000 if len(calls) == 1 else None
    server.misdeed = misdeed
    assert good(place, server.url + "/x.gguf").read_bytes() == DATA and len(calls) == 2


def test_without_etag_and_hash_nothing_is_gone_on_with(server, place):
    server.files["/x.gguf"], server.etags["/x.gguf"] = DATA, ""
    server.misdeed = lambda handler, path, first: 50_000
    refused(place, 69, server.url + "/x.gguf", "--retries", "0")
    server.misdeed = None
    server.seen.clear()
    assert good(place, server.url + "/x.gguf").read_bytes() == DATA
    assert [first for _, first, _ in server.seen] == [0]


@pytest.mark.parametrize("status, words", [(404, ["not found"]), (401, ["HF_TOKEN"]), (403, ["gated"])])
def test_statuses_that_are_final(server, place, status, words):
    server.misdeed = lambda handler, path, first: handler.answer(status, b"no") or True
    refused(place, 69, server.url + "/x.gguf", words=[str(status), *words])
    assert len(server.seen) == 1


@pytest.mark.parametrize("status", [503, 429])
def test_a_busy_server_is_asked_again(server, place, status):
    server.files["/x.gguf"] = DATA
    server.misdeed = lambda handler, path, first: len(server.seen) == 1 and (handler.answer(status, b"busy", {"retry-after": "0"}) or True) or None
    assert good(place, server.url + "/x.gguf").read_bytes() == DATA and len(server.seen) == 2


def test_a_login_page_in_place_of_the_rest(server, place):
    """Refused, and the bytes already fetched are kept, both for a hub's file and for a URL."""
    server.add_repo("org/m", FOLDER)
    server.files["/x.gguf"] = DATA
    page = b"<html>log in</html>"
    for args, part in (("org/m/model.safetensors", "--hub", server.url), "org/m/.model.safetensors.part"), ((server.url + "/x.gguf",), ".x.gguf.part"):
        server.misdeed = lambda handler, path, first: None if path.startswith("/api") else 50_000
        refused(place, 69, *args, "--retries", "0")
        for head in {}, {"content-length": None, "connection": "close"}:
            server.misdeed = lambda handler, path, first: None if path.startswith("/api") else handler.answer(200, page, head, len(page)) or True
            refused(place, 69, *args, words=["something else", "are kept"])
            assert (place / part).read_bytes() == DATA[:50_000]
        server.misdeed = None
        server.seen.clear()
        assert good(place, *args).read_bytes() == DATA and server.seen[-1][1] == 50_000


def test_a_hash_that_an_earlier_run_learned(server, place):
    """Only the first redirect had the hash. A later run checks it too."""
    server.files["/cdn/x.gguf"] = DATA
    tells = [sha256(b"other")]

    def misdeed(handler, path, first):
        if path.startswith("/hub/"):
            handler.answer(302, b"", {"location": "/cdn/x.gguf", **({"x-linked-etag": tells.pop()} if tells else {})})
            return True
        return None if first else 50_000
    server.misdeed = misdeed
    refused(place, 69, server.url + "/hub/x.gguf", "--retries", "0")
    refused(place, 65, server.url + "/hub/x.gguf", words=["SHA-256", sha256(b"other")])
    assert all_files(place) == [] and server.seen[-1][1] == 50_000


def test_secrets_of_a_url(server, place):
    """Neither its password nor its signature appears in a message, or in a file that others can read."""
    server.files["/x.gguf"] = DATA
    url = server.url.replace("//", "//me:pa55word@") + "/x.gguf?signature=s1gned"
    for misdeed in (lambda handler, path, first: 50_000, lambda handler, path, first: handler.answer(503, b"") or True,
                    lambda handler, path, first: handler.answer(404, b"") or True):
        server.misdeed = misdeed
        code, out, err = pull(place, url, "--retries", "1" if server.seen else "0")
        assert code == 69 and "x.gguf: " in err and "pa55word" not in err + out and "s1gned" not in err + out
        assert (place / ".x.gguf.part.txt").stat().st_mode & 0o777 == 0o600
    code, out, err = pull(place, "http://me:pa55word@127.0.0.1:1/x.gguf?signature=s1gned", "--retries", "0")
    assert code == 69 and "pa55word" not in err and "s1gned" not in err


# ---- lies ----

@pytest.mark.parametrize("length, code, words", [(len(DATA) + 5, 69, ["given up"]), (1 << 60, 65, ["says"]), (1 << 43, 69, ["room"])])
def test_a_length_that_is_too_long(server, place, length, code, words):
    def misdeed(handler, path, first):
        if first:
            handler.answer(206, b"", {"content-range": f"bytes {first}-{length - 1}/{length}", "etag": '"e"', "content-length": length - first}, 0)
        else:
            handler.answer(200, DATA, {"content-length": length, "etag": '"e"'}, len(DATA))
        return True
    server.misdeed = misdeed
    refused(place, code, server.url + "/x.gguf", "--retries", "1", words=words)
    assert not (place / "x.gguf").exists()


def test_an_end_without_a_length(server, place):
    """The hub's size shows that it ended too early; without a hub the end of the body counts as the end."""
    server.add_repo("org/m", FOLDER)
    server.files["/x.gguf"] = DATA
    server.misdeed = lambda handler, path, first: None if path.startswith("/api") else (
        handler.answer(200, DATA[:70_000], {"content-length": None, "connection": "close"}, 70_000) or True)
    refused(place, 69, "org/m/model.safetensors", "--hub", server.url, "--retries", "1", words=["ended early"])
    assert good(place, server.url + "/x.gguf").read_bytes() == DATA[:70_000]


def test_compressed_bytes_are_not_the_files(server, place):
    server.misdeed = lambda handler, path, first: handler.answer(200, DATA, {"content-encoding": "gzip"}) or True
    refused(place, 65, server.url + "/x.gguf", words=["compressed"])
    assert all_files(place) == []


def test_a_full_disk(server, place):
    """The error names it, and the bytes received are kept. Here a limit on file size fails the write, as ENOSPC would."""
    server.files["/x.gguf"] = DATA
    r = subprocess.run(["sh", "-c", 'trap "" XFSZ; ulimit -f 200; exec "$@"', "sh", PULL, server.url + "/x.gguf"], text=True, capture_output=True,
                       env={"TANDEM_MODEL_DIR": str(place)}, timeout=30 * SLOWNESS)
    assert r.returncode == 69 and "File too large" in r.stderr and (place / ".x.gguf.part").stat().st_size > 0
    assert good(place, server.url + "/x.gguf").read_bytes() == DATA


# ---- a repository ----

FOLDER = {"config.json": (b'{"a": 1}', False), "tokenizer.json": (b"{}" * 100, True), "model.safetensors": (DATA, True),
          "README.md": (b"#", False), "pytorch_model.bin": (DATA, True), "onnx/model.onnx": (b"x", True), "consolidated.safetensors": (DATA, True),
          "tokenizer.model": (b"sp", True)}


def test_a_repository(server, place):
    server.add_repo("org/name-1B", FOLDER)
    args = ("org/name-1B", "--hub", server.url + "/")
    server.misdeed = lambda handler, path, first: 100_000 if path.endswith("model.safetensors") else None
    refused(place, 69, *args, "--retries", "0")
    assert not (place / "org/name-1B").exists() and (place / "org/.name-1B.part").is_dir()
    assert pull(place, "--list")[1].startswith("org/name-1B\t100 kB\tnot whole")
    server.misdeed = None
    server.seen.clear()
    assert good(place, *args) == place / "org/name-1B"
    assert all_files(place) == ["org/name-1B/" + f for f in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer.model")]
    assert (place / "org/name-1B/model.safetensors").read_bytes() == DATA
    fetched = {path.rsplit("/", 1)[1]: first for path, first, _ in server.seen if "/resolve/" in path}
    assert fetched == {"config.json": 0, "model.safetensors": 100_000, "tokenizer.model": 0}  # a complete file with a hash is not fetched again
    assert pull(place, "--list")[1] == "org/name-1B\t300 kB\n"


def test_one_file_of_a_repository(server, place):
    server.add_repo("org/gg", {"a.Q4.gguf": (DATA, True), "b.gguf": (DATA[:9], True), "README.md": (b"", False)})
    hub = {"TANDEM_HUB": server.url}
    refused(place, 64, "org/gg", words=["a.Q4.gguf", "b.gguf", "OWNER/REPO/FILE"], env=hub)
    refused(place, 64, "org/gg/c.gguf", words=["c.gguf", "a.Q4.gguf"], env=hub)
    assert good(place, "org/gg/a.Q4.gguf", env=hub) == place / "org/gg/a.Q4.gguf"


def test_a_file_in_parts(server, place):
    """--model takes the first part, so it is fetched after all others."""
    parts = [f"q/m-{i:05}-of-00003.gguf" for i in (1, 2, 3)]
    server.add_repo("org/big", {p: (DATA[i:], True) for i, p in enumerate(parts)} | {"q/n-00002-of-00003.gguf": (b"x", True), "q/m-00004-of-00004.gguf": (b"x", True)})
    hub = ("--hub", server.url)
    refused(place, 64, "org/big/" + parts[0], *hub, "--as", "x.gguf", words=["parts"])
    server.misdeed = lambda handler, path, first: 0 if "00003-of" in path else None
    refused(place, 69, "org/big/" + parts[0], *hub, "--retries", "0")
    assert [f for f in all_files(place) if "/." not in f] == ["org/big/" + parts[1]]
    server.misdeed = None
    assert good(place, "org/big/" + parts[0], *hub) == place / "org/big" / parts[0]
    assert all_files(place) == ["org/big/" + p for p in parts]
    assert [path[-15] for path, *_ in server.seen if path.endswith(".gguf")][-2:] == ["3", "1"]


def test_a_hub_that_lies(server, place):
    hub = ("--hub", server.url)
    server.add_repo("a/size", FOLDER, **{"model.safetensors": {"size": len(DATA) - 1}})
    refused(place, 65, "a/size", *hub, words=["model.safetensors", str(len(DATA))])
    server.add_repo("a/hash", FOLDER, **{"model.safetensors": {"lfs": {"sha256": sha256(b"")}}})
    refused(place, 65, "a/hash", *hub, words=["SHA-256", "nothing was kept"])
    server.add_repo("a/names", {**FOLDER, "../../escape.json": (b"{}", False), "/etc/x.json": (b"{}", False), ".hidden.json": (b"{}", False)})
    assert sorted(p.name for p in good(place, "a/names", *hub).iterdir()) == ["config.json", "model.safetensors", "tokenizer.json", "tokenizer.model"]
    for answer in (b"", b"[]", b"{}", b'{"sha": "../x", "siblings": []}', b'{"sha":"abc","siblings":7}', b"{" * 10_000, DATA,
                   json.dumps({"sha": COMMIT, "siblings": [{"rfilename": "config.json", "size": -5}]}).encode(),
                   json.dumps({"sha": COMMIT, "siblings": [{"rfilename": "model.safetensors", "lfs": {"sha256": "zz"}}]}).encode(),
                   json.dumps({"sha": COMMIT, "siblings": [{"rfilename": "x"}] * 5000}).encode()):
        server.files["/api/models/a/bad/revision/main"] = answer
        refused(place, 69, "a/bad", *hub)
    refused(place, 69, "a/none", *hub, words=["404"])
    server.files["/api/models/a/gguf/revision/main"] = json.dumps({"sha": COMMIT, "siblings": [
        {"rfilename": "evil name.gguf"}, {"rfilename": "good.gguf"}]}).encode()
    assert "evil" not in pull(place, "a/gguf", *hub)[2] and "good.gguf" in pull(place, "a/gguf", *hub)[2]
    server.files["/api/models/a/gguf/revision/main"] = json.dumps({"sha": COMMIT, "siblings": [{"rfilename": "model.safetensors", "lfs": {"sha256": "evil"}}]}).encode()
    assert "evil" not in pull(place, "a/gguf", *hub)[2]
    assert not list(place.parent.glob("*escape*"))


def test_the_token_goes_to_the_hub_alone(server, place):
    server.add_repo("org/m", FOLDER)
    with Server() as cdn:
        cdn.files["/cdn"] = DATA

        def misdeed(handler, path, first):
            if path.endswith("model.safetensors"):
                handler.answer(302, b"", {"location": cdn.url.replace("127.0.0.1", "localhost") + "/cdn"})
                return True
        server.misdeed = misdeed
        good(place, "org/m", "--hub", server.url, env={"HF_TOKEN": "hf_secret"})
        assert {h.get("Authorization") for _, _, h in server.seen} == {"Bearer hf_secret"}
        assert len(cdn.seen) == 1 and "Authorization" not in cdn.seen[0][2]
        server.misdeed = None
        server.files["/x.gguf"] = DATA
        server.seen.clear()
        good(place, server.url + "/x.gguf", env={"HF_TOKEN": "hf_secret"})  # a URL outside the hub
        assert "Authorization" not in server.seen[0][2]


# ---- names, --list, --remove ----

@pytest.mark.parametrize("args", [
    [], ["one"], ["../a/b"], ["a/../b"], ["/etc/passwd"], ["a/b", "c/d"], ["--frobnicate"], ["--remove"], ["--remove", "../x"], ["a/b", "--list"],
    ["http://127.0.0.1:1/.."], ["http://127.0.0.1:1/"], ["http://127.0.0.1:1/.x"], ["http://127.0.0.1:1/x", "--as", "../x"], ["ftp://127.0.0.1/x"],
    ["http://127.0.0.1:1/x", "--sha256", "12"], ["a/b", "--revision", "a/../b"], ["http://127.0.0.1:1/x", "--retries", "-1"],
    ["http://127.0.0.1:1/x", "--stall-s", "0"], ["http://127.0.0.1:1/%2e%2e"], ["--remove", "absent"], ["a/b", "--quiet=1"],
], ids=" ".join)
def test_bad_command_line(place, args):
    place.mkdir()
    refused(place, 64, *args)
    assert all_files(place) == []


def test_list_and_remove(server, place):
    server.add_repo("org/m", FOLDER)
    server.files["/x.gguf"] = DATA
    assert pull(place, "--list")[:2] == (0, "")
    good(place, "org/m", "--hub", server.url)
    good(place, server.url + "/x.gguf")
    outside = place.parent / "outside"
    outside.mkdir()
    (outside / "config.json").write_text("{}")
    (place / "org/link").symlink_to(outside)
    assert pull(place, "--list")[1].splitlines()[1:] == ["org/m\t300 kB", "x.gguf\t300 kB"]
    refused(place, 64, "--remove", "org", words=["no such model"])  # an owner is not a model
    for name in ("org/link", "org/m", "x"):
        assert pull(place, "--remove", name)[0] == 0
    assert all_files(place) == [] and not (place / "org").exists() and (outside / "config.json").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="not root")
def test_root_is_the_folders_owner(server):
    """Root follows no links that the owner made there, and the owner can read what root fetches."""
    server.files["/x.gguf"] = DATA
    owner = 54321
    with tempfile.TemporaryDirectory(dir="/tmp") as top:
        top = pathlib.Path(top)
        top.chmod(0o755)
        state, outside = top / "state", top / "outside"
        for folder in state, outside, outside / "m":
            folder.mkdir(mode=0o755)
        (outside / "m/config.json").write_text("{}")
        os.chown(state, owner, owner)
        (state / "link").symlink_to(outside)
        os.chown(state / "link", owner, owner, follow_symlinks=False)
        for place in state / "models", state / "link":  # the first is missing, the second is a link to root's files
            wanted = [PULL, server.url + "/x.gguf", "--dir", place]
            r = subprocess.run(wanted, text=True, capture_output=True, umask=0o077, timeout=30 * SLOWNESS)
            assert (r.returncode, r.stderr) == (0, "") or place.name == "link" and "Permission denied" in r.stderr, r
        assert (state / "models/x.gguf").stat().st_uid == (state / "models").stat().st_uid == owner
        refused(state, 69, server.url + "/x.gguf", "--as", "link/m/y", words=["Permission denied", f"as user {owner}"])
        refused(state, 69, "--remove", "link/m", words=["Permission denied"])
        assert all_files(outside) == ["m/config.json"]


def test_the_daemon_finds_it_by_name(server, place):
    server.add_repo("smol/lm", {"q.gguf": (pathlib.Path(MODEL).read_bytes(), True)})
    good(place, "smol/lm/q.gguf", "--hub", server.url, timeout=60)
    with contextlib.ExitStack() as stack:
        old = os.environ.get("TANDEM_MODEL_DIR")
        stack.callback(lambda: os.environ.pop("TANDEM_MODEL_DIR") if old is None else os.environ.update(TANDEM_MODEL_DIR=old))
        os.environ["TANDEM_MODEL_DIR"] = str(place)
        with Daemon(model="smol/lm") as d:
            assert d.get("/v1/models").json()["data"][0]["id"] == "q"
        r = subprocess.run([DAEMON, "--model", "smol/none"], text=True, capture_output=True, timeout=60 * SLOWNESS)
        assert r.returncode == 65 and "smol/none: No such file or directory, and tandem-pull" in r.stderr
