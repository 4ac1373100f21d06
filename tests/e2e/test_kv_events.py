"""KV events, read with vLLM's own message types: a subscriber that follows them knows exactly the daemon's pages, and can tell what part of a
prompt is cached before it sends the prompt."""
import json
import os
import socket
import tempfile

import msgspec
import pytest
import zmq
from harness import MODEL, SLOWNESS, Daemon, run_daemon
from test_dummy import CONFIG

PAGE = 16


class Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list
    data_parallel_rank: int | None = None


class Event(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    pass


class BlockStored(Event):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[str, ...] | None] | None = None


class BlockRemoved(Event):
    block_hashes: list[int]
    medium: str | None


class AllBlocksCleared(Event):
    pass


class EventBatch(Batch):
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]


class Subscriber:
    """A router's view of one daemon: its pages by name, each with its parent, its tokens and its extra key."""

    def __init__(self, address, replay=None, topic=b"", **options):
        self.context = zmq.Context.instance()
        self.socket = self.context.socket(zmq.SUB)
        self.socket.setsockopt(zmq.SUBSCRIBE, topic)
        for name, value in options.items():
            self.socket.setsockopt(getattr(zmq, name), value)
        self.socket.connect(address)
        self.topic, self.replay = topic, replay
        self.pages, self.next, self.gaps, self.n_removed, self.n_cleared = {}, 0, 0, 0, 0

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.socket.close(0)

    def take(self, seq, payload):
        assert seq == self.next
        self.next += 1
        batch = msgspec.msgpack.decode(payload, type=EventBatch)
        assert batch.ts > 1.7e9 and batch.data_parallel_rank == 0 and batch.events
        for event in batch.events:
            getattr(self, type(event).__name__)(event)

    def BlockStored(self, e):
        assert e.block_size == PAGE and len(e.token_ids) == PAGE * len(e.block_hashes) and e.medium == "GPU"
        before = e.parent_block_hash
        for i, name in enumerate(e.block_hashes):
            assert name not in self.pages and (before is None or before in self.pages)
            keys = e.extra_keys[i] if e.extra_keys else None
            self.pages[name] = (before, tuple(e.token_ids[i * PAGE:(i + 1) * PAGE]), keys)
            before = name

    def BlockRemoved(self, e):
        for name in e.block_hashes:
            del self.pages[name]
            self.n_removed += 1

    def AllBlocksCleared(self, e):
        self.pages.clear()
        self.n_cleared += 1

    def read(self, ms=200):
        while self.socket.poll(ms):
            topic, seq, payload = self.socket.recv_multipart()
            seq = int.from_bytes(seq, "big")
            assert topic == self.topic
            if seq < self.next:  # already received with the replay
                continue
            if seq > self.next:
                self.gaps += 1
                self.ask()
            if seq == self.next:
                self.take(seq, payload)

    def ask(self):
        """Asks for missing messages as a REQ socket would; a real REQ socket would return only one answer."""
        s = self.context.socket(zmq.DEALER)
        s.setsockopt(zmq.LINGER, 0)
        s.connect(self.replay)
        s.send_multipart([b"", self.next.to_bytes(8, "big")])
        while s.poll(5000 * SLOWNESS):
            empty, seq, payload = s.recv_multipart()
            assert empty == b""
            if seq == b"\xff" * 8:
                assert payload == b""
                return s.close()
            if int.from_bytes(seq, "big") >= self.next:
                self.take(int.from_bytes(seq, "big"), payload)
        raise AssertionError("no answer to what was asked for")

    def cached(self, tokens):
        """How many of a prompt's tokens are cached according to this view; the last one is always computed."""
        children = {(before, tokens): name for name, (before, tokens, keys) in self.pages.items() if keys is None}
        n, at = 0, None
        while n + PAGE < len(tokens) and (at, tuple(tokens[n:n + PAGE])) in children:
            at, n = children[at, tuple(tokens[n:n + PAGE])], n + PAGE
        return n

    def until_equal(self, d):
        def equal():
            self.read(10)
            metrics = d.metrics()
            pages = {labels.split('state="')[1].split('"')[0]: v for (name, labels), v in metrics.items() if name == "tandem:pages"}
            return pages["owned"] == 0 and len(self.pages) == pages["cached"]
        d.eventually(equal, 20, "a subscriber that knows every page")


@pytest.fixture
def place():
    with tempfile.TemporaryDirectory(prefix="tandem-kv-") as folder:  # ipc:// allows at most 107 characters
        yield folder


@pytest.fixture
def tiny(tmp_path):
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


def start(place, *options, model=MODEL, name="a", **more):
    return Daemon("--kv-events", f"ipc://{place}/{name}", "--kv-events-replay", f"ipc://{place}/{name}r", *options, model=model, **more)


def subscriber(place, name="a", **options):
    return Subscriber(f"ipc://{place}/{name}", f"ipc://{place}/{name}r", **options)


def ask(d, prompt, n=2, **fields):
    r = d.post("/v1/completions", {"prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True, **fields})
    assert r.status_code == 200, r.text
    return r.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


def dummy(place, tiny, *options, **more):
    return start(place, "--load-format", "dummy", *options, model=tiny, **more)


@pytest.mark.share
def test_the_set_of_pages_is_the_daemons(place, tiny):
    """Prompts that share parts, more than fit: pages come and go, and each prefix hit is what the subscriber predicted."""
    with dummy(place, tiny, kv_bytes=1 << 19) as d, subscriber(place) as s:
        for i in range(24):
            prompt = [i % 3 + 10] * (40 + i % 3 * 16) + [i % 7 + 20] * 50 + [i + 100] * (i % 5 * 16)
            s.until_equal(d)
            expected = s.cached(prompt)
            assert ask(d, prompt, 1 + i % 40) == expected
        s.until_equal(d)
        assert s.n_removed > 20 and len(s.pages) > 20 and s.n_cleared == 1 and s.gaps <= 1
        told = {labels.split('event="')[1].split('"')[0]: v for (n, labels), v in d.metrics().items() if n == "tandem:kv_events_pages_total"}
        assert told["stored"] - told["removed"] == len(s.pages) and told["removed"] == s.n_removed
        assert d.gauge("tandem:kv_events_messages_total") == s.next


def test_names_are_the_same_in_every_process(place, tiny):
    """A router compares daemons by these names. A salt changes a prefix's name; a daemon's only key does not."""
    keys, key = tiny.parent / "keys", "sk-0123456789abcdef"
    keys.write_text(f"{key} name=alice\n")
    prompt, plain = list(range(10, 60)), []
    for name, options in (("a", []), ("b", []), ("c", ["--api-key-file", keys])):
        with dummy(place, tiny, *options, name=name, api_key=key) as d, subscriber(place, name) as s:
            for salt in ({}, {"cache_salt": "s"}):
                r = d.post("/v1/completions", {"prompt": prompt, "max_tokens": 1, **salt}, headers={"x-api-key": key})
                assert r.status_code == 200, r.text
            d.eventually(lambda s=s: s.read(50) or len(s.pages) == 6, 20, "three pages, twice")
            assert s.cached(prompt) == 48
            first = {page[2]: name for name, page in s.pages.items() if page[0] is None}
            assert len(first) == 2 and None in first  # the salted one has an extra key on its first page, as in vLLM
            plain.append([n for n, p in s.pages.items() if first[None] in (n, p[0], s.pages.get(p[0], [0])[0])])
            assert len(plain[-1]) == 3
    assert plain[0] == plain[1]


def test_who_missed_some_sees_it_and_asks(place, tiny):
    """One subscriber connects late, one does not read. Both end up with the daemon's pages, and nothing waits for them."""
    with dummy(place, tiny, "--running-requests", 1, kv_bytes=1 << 20) as d, subscriber(place, RCVHWM=1, RCVBUF=4096) as slow:
        slow.read(500)
        for i in range(20):  # at least one message per prompt
            r = d.post("/v1/completions", {"prompt": [[k % 500 + 3, i + 3] * 9 for k in range(256)], "max_tokens": 1})
            assert r.status_code == 200, r.text
        late = subscriber(place)
        ask(d, [7] * 40)
        late.until_equal(d)
        slow.until_equal(d)
        assert late.pages == slow.pages and late.next == slow.next and late.gaps > 0
        assert slow.gaps > 0 and slow.n_cleared == 1  # it lost some messages


def test_strangers_at_the_replay_socket(place, tiny):
    """Malformed replay requests get no answer, and have no effect."""
    with dummy(place, tiny) as d, subscriber(place) as s:
        ask(d, [9] * 40)
        for kind, message in ((zmq.DEALER, [b""]), (zmq.DEALER, [b"", b"short"]), (zmq.DEALER, [b"x", b"\0" * 8]), (zmq.REQ, [b"\0" * 7]),
                              (zmq.DEALER, [b"", b"\0" * 8, b"more"]), (zmq.DEALER, [b"a"] * 500), (zmq.REQ, [b"\0" * 4096])):
            stranger = zmq.Context.instance().socket(kind)
            stranger.setsockopt(zmq.LINGER, 0)
            stranger.connect(s.replay)
            stranger.send_multipart(message)
            assert not stranger.poll(200)
            stranger.close()
        future = zmq.Context.instance().socket(zmq.REQ)
        future.connect(s.replay)
        future.send(b"\xff" * 8)
        assert future.poll(5000) and future.recv_multipart() == [b"\xff" * 8, b""]
        future.close()
        raw = socket.socket(socket.AF_UNIX)
        raw.connect(s.replay.removeprefix("ipc://"))
        raw.send(os.urandom(4096))
        s.until_equal(d)
        raw.close()
        assert len(s.pages) == 2


def test_topic_and_end(place, tiny):
    """A topic is a filter; the last events are sent before the daemon ends."""
    with dummy(place, tiny, "--kv-events-topic", "kv@a@tiny") as d, subscriber(place, topic=b"kv@a@tiny") as s:
        other = subscriber(place, topic=b"kv@b")
        s.read(300)
        ask(d, [4] * 40)
        s.until_equal(d)
        ask(d, [5] * 70)
        d.stop()
        s.read(1000)
        assert len(s.pages) == 6
        assert not other.socket.poll(100)


def test_what_is_no_endpoint_is_refused():
    for option, value, words in (("--kv-events", "5557", "neither"), ("--kv-events", "http://x", "neither"), ("--kv-events", "tcp://*:x", "kv_events"),
                                 ("--kv-events-replay", "tcp://*:5558", "without kv_events"), ("--kv-events-topic", "t", "without kv_events")):
        code, text = run_daemon("--model", MODEL, option, value)
        assert code == 64 and words in text, text
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, text = run_daemon("--model", MODEL, "--listen", "127.0.0.1:0", "--kv-events", f"@tcp://127.0.0.1:{taken.getsockname()[1]}")
        assert code == 66 and "in use" in text, text
    assert run_daemon("--model", MODEL, "--check-config", "--kv-events", "tcp://*:5557")[0] == 0


def test_who_binds_and_who_connects(place, tiny):
    """Endpoints are read as in vLLM: without a host they are bound, with a host they are connected, with '@' always bound. A replay socket is always bound."""
    folder, n = place, [0]

    def line(option, endpoint):
        n[0] += 1
        more = ["--kv-events", f"ipc://{folder}/ends{n[0]}"] if option == "kv_events_replay" else []
        with Daemon(*more, "--load-format", "dummy", "--" + option.replace("_", "-"), endpoint, model=tiny) as d:
            return next(text.split(": ", 1)[1] for text in d.log().splitlines() if f" {option}: " in text)

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    for endpoint, does in ((f"tcp://127.0.0.1:{port}", "connecting to"), (f"@tcp://127.0.0.1:{port}", "bound to"), (f"tcp://*:{port}", "bound to"),
                           (f"tcp://[::]:{port}", "bound to"), (f"ipc://{folder}/a", "bound to"), (f"@ipc://{folder}/b", "bound to")):
        assert line("kv_events", endpoint) == f"{does} {endpoint.removeprefix('@')}"
    assert line("kv_events_replay", f"tcp://127.0.0.1:{port}") == f"bound to tcp://127.0.0.1:{port}"
