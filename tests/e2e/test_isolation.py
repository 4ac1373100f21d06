"""A request's tokens do not depend on other requests: many simultaneous streams, each equal to its run alone, with and without shared
prefixes, with preemption; and what remains after a client disconnects."""
import asyncio
import random
import time

import pytest
from harness import MODEL_ID, SLOWNESS, STREAMS, Daemon, read_trace, read_until

SYSTEM = "You are a helpful guide who knows every mountain, river and village of this country, and who never hurries. "
TOPICS = ["rivers", "bread", "the moon", "old clocks", "bees", "a lighthouse", "paper", "winter", "salt", "maps", "tea", "bridges"]


def make_requests(n):
    """A mix of greedy and seeded sampling, short and long prompts, shared and unshared prefixes, chat and text, all lengths."""
    rng = random.Random(1234)
    requests = []
    for i in range(n):
        sampling = [{"temperature": 0}, {"temperature": 0.7, "seed": i}, {"temperature": 1.0, "seed": 2**60 + i, "top_p": 0.9},
                    {"temperature": 1.3, "seed": i, "top_k": 40}, {"temperature": 0.9, "seed": i, "min_p": 0.05},
                    {"temperature": 0.8, "seed": i, "repetition_penalty": 1.3, "logit_bias": {"28": 3, "338": -100}},
                    {"temperature": 1.1, "seed": i, "presence_penalty": 0.5, "frequency_penalty": 0.7, "min_tokens": 5}][i % 7]
        topic = f"{TOPICS[i % len(TOPICS)]} and {TOPICS[(i * 5 + 1) % len(TOPICS)]}"
        if i % 3 == 0:
            prompt = SYSTEM * 2 + f"Tell me about {topic}."
        elif i % 3 == 1:
            prompt = f"{i}: {topic}" + " and so on," * rng.randrange(0, 30)
        else:
            prompt = [rng.randrange(300, 40000) for _ in range(rng.randrange(1, 150))]
        requests.append({"prompt": prompt, "max_tokens": rng.randrange(8, 28), **sampling})
    return requests


async def stream_tokens(client, request):
    fields = dict(request)
    extra = {"return_token_ids": True}
    for name in ("top_k", "min_p", "ignore_eos", "stop_token_ids", "repetition_penalty", "min_tokens"):
        if name in fields:
            extra[name] = fields.pop(name)
    stream = await client.completions.create(model=MODEL_ID, stream=True, extra_body=extra, **fields)
    ids, text, finish = [], "", None
    async for chunk in stream:
        c = chunk.choices[0]
        assert finish is None, "nothing comes after the finish"
        ids += c.model_extra.get("token_ids") or []
        text += c.text
        finish = c.finish_reason
    assert finish in ("stop", "length")
    return ids, text, finish


def run_together(daemon, requests):
    async def main():
        async with daemon.aclient() as client:
            return await asyncio.gather(*(stream_tokens(client, r) for r in requests))
    return asyncio.run(main())


def run_alone(daemon, requests):
    async def main():
        async with daemon.aclient() as client:
            return [await stream_tokens(client, r) for r in requests]
    return asyncio.run(main())


ROUNDED = ("--backend", "cpu", "--cpu-exact", 0)  # 8-bit activations, K and V as f16


@pytest.mark.share
@pytest.mark.hand_over
@pytest.mark.parametrize("options", [(), ROUNDED], ids=["as it is", "rounded"])
def test_concurrent_streams_equal_their_solo_runs(options):
    requests = make_requests(STREAMS)
    with Daemon(*options) as d:
        together = run_together(d, requests)
        d.until_idle()
        peak = d.gauge("vllm:generation_tokens_total")
        alone = run_alone(d, requests)  # these find prefixes in the cache
        assert peak == sum(len(ids) for ids, _, _ in together)
        assert d.gauge("vllm:prefix_cache_hits_total") > 0
    with Daemon(*options) as d:
        cold = run_alone(d, requests[::8])  # and these find none
    for i, (t, a) in enumerate(zip(together, alone)):
        assert t == a, f"request {i}: {requests[i]}"
    assert cold == together[::8]
    assert len({tuple(ids) for ids, _, _ in together}) > STREAMS * 0.9, "different prompts, different answers"


@pytest.mark.parametrize("options", [(), ROUNDED], ids=["as it is", "rounded"])
def test_preemption_changes_no_token(options):
    """KV memory for a fraction of the running requests: they are preempted, computed again, and give the same answers."""
    requests = [{"prompt": [1000 + 37 * i + j for j in range(40)], "max_tokens": 60, "temperature": [0, 0.8][i % 2], "seed": i,
                 "ignore_eos": True, "frequency_penalty": [0, 0, 0.6][i % 3]} for i in range(10)]
    with Daemon(*options) as d:
        alone = run_alone(d, requests)
        kv_bytes, pages = kv_size(d)
    page_bytes = kv_bytes // pages
    with Daemon(*options, "--kv-bytes", page_bytes * 24, "--context-tokens", 128) as d:
        assert run_together(d, requests) == alone
        assert d.gauge("vllm:num_preemptions_total") > 0
        d.until_idle()
        assert d.gauge("vllm:kv_cache_usage_perc") == 0


def kv_size(d):
    """Returns (bytes, pages) of the KV memory, from the option and the config metric."""
    import re
    (labels,) = [la for (n, la) in d.metrics() if n == "vllm:cache_config_info"]
    return 1 << 30, int(re.search(r'num_gpu_blocks="(\d+)"', labels).group(1))


def test_rounded_kv_takes_half_the_memory():
    sizes = []
    for exact in (1, 0):
        with Daemon("--backend", "cpu", "--cpu-exact", exact) as d:
            sizes.append(kv_size(d)[1])
            assert f"({sizes[-1]} pages of" in d.log()
    assert sizes[1] in (2 * sizes[0], 2 * sizes[0] + 1)


# ---- two steps under way, as with a GPU: TANDEM_PIPELINE=2 lets the CPU have them too ----

def ways_to_end(requests, answers):
    """The same requests, each also ended early in one of three ways: by a stop string, a stop token, its length."""
    out = list(requests)
    for i, (request, (ids, text, _)) in enumerate(zip(requests, answers)):
        middle = text[len(text) // 2:][:5]
        if i % 3 == 0 and len(middle) == 5 and "\ufffd" not in middle:
            out.append({**request, "stop": middle})
        elif i % 3 == 1:
            out.append({**request, "stop_token_ids": [ids[len(ids) // 2]]})
        else:
            out.append({**request, "max_tokens": 1 + i % 4})
    return out


async def leave_midway(client, request, n_chunks):
    """The tokens received until the client disconnected."""
    stream = await client.completions.create(model=MODEL_ID, stream=True, extra_body={"return_token_ids": True, "ignore_eos": True},
                                             **request)
    ids = []
    async for chunk in stream:
        ids += chunk.choices[0].model_extra.get("token_ids") or []
        n_chunks -= 1
        if n_chunks == 0:
            break
    await stream.close()
    return ids


def run_with_leavers(daemon, requests, leaver, n_leavers):
    """Returns the answers to requests, and the tokens that each leaving client saw of leaver, in order of how long it stayed."""
    async def main():
        async with daemon.aclient() as client:
            both = await asyncio.gather(*(stream_tokens(client, r) for r in requests),
                                        *(leave_midway(client, leaver, 1 + 2 * i) for i in range(n_leavers)))
            return both[:len(requests)], both[len(requests):]
    return asyncio.run(main())


def steps_ahead(trace):
    """How many steps were planned before the previous step's outcome was known."""
    steps = read_trace(trace)
    return sum(step - 1 in steps and steps[step]["plan"]["ts"] < steps[step - 1]["publish"]["ts"] for step in steps)


@pytest.mark.hand_over
def test_two_steps_under_way_change_no_answer(monkeypatch, tmp_path):
    """For every kind of end: length, stop string, stop token, or because the client disconnects."""
    leaver = {"prompt": SYSTEM + "Tell me a very long story.", "max_tokens": 400, "temperature": 0}
    n_leavers = min(6, STREAMS // 2)
    with Daemon("--backend", "cpu", "--trace", tmp_path / "one.json") as d:
        requests = make_requests(min(STREAMS, 9))
        requests = ways_to_end(requests, run_together(d, requests))
        expect = run_together(d, requests)
        story = run_alone(d, [{**leaver, "max_tokens": 2 * n_leavers + 16, "ignore_eos": True}])[0][0]
    assert steps_ahead(tmp_path / "one.json") == 0
    assert {finish for _, _, finish in expect} == {"stop", "length"}
    monkeypatch.setenv("TANDEM_PIPELINE", "2")
    with Daemon("--backend", "cpu", "--trace", tmp_path / "two.json") as d:
        got, parts = run_with_leavers(d, requests, leaver, n_leavers)
        d.until_idle()
        assert d.gauge("vllm:kv_cache_usage_perc") == 0, "the pages have come back"
        assert run_together(d, requests[:3]) == expect[:3], "with what the others left in the cache"
    for i, (g, e) in enumerate(zip(got, expect, strict=True)):
        assert g == e, f"request {i}: {requests[i]}"
    for ids in parts:
        assert ids and ids[:len(story)] == story[:len(ids)]
    assert steps_ahead(tmp_path / "two.json") > 10


def test_two_steps_under_way_and_preemption(monkeypatch, tmp_path):
    requests = [{"prompt": [1000 + 37 * i + j for j in range(40)], "max_tokens": 44 - i, "temperature": [0, 0.8][i % 2], "seed": i,
                 "ignore_eos": True} for i in range(5)]
    with Daemon("--backend", "cpu") as d:
        expect = run_together(d, requests)
        kv_bytes, pages = kv_size(d)
    monkeypatch.setenv("TANDEM_PIPELINE", "2")
    with Daemon("--backend", "cpu", "--kv-bytes", kv_bytes // pages * 14, "--context-tokens", 128,
                "--trace", tmp_path / "two.json") as d:
        assert run_together(d, requests) == expect
        assert d.gauge("vllm:num_preemptions_total") > 0
        d.until_idle()
        assert d.gauge("vllm:kv_cache_usage_perc") == 0
    assert steps_ahead(tmp_path / "two.json") > 10


@pytest.mark.share
@pytest.mark.hand_over
def test_a_closed_connection_cancels(daemon):
    daemon.until_idle()
    body = {"model": MODEL_ID, "prompt": "Tell me a very long story.", "max_tokens": 4000, "ignore_eos": True, "stream": True}
    sockets = []
    for _ in range(4):
        s = daemon.connect(60)
        daemon.send_request(s, "/v1/completions", body)
        sockets.append(s)
    for s in sockets:
        read_until(s, b"data: ")
    daemon.eventually(lambda: daemon.gauge("vllm:num_requests_running") == 4, 10, "all four are running")
    assert daemon.gauge("vllm:kv_cache_usage_perc") > 0
    for s in sockets:
        s.close()
    daemon.until_idle(10)  # the answers would take longer
    assert daemon.gauge("vllm:kv_cache_usage_perc") == 0, "the pages have come back"


@pytest.mark.hand_over
def test_disconnects_in_every_state(daemon):
    """Clients that disconnect at random moments: before the body is complete, while queued, in prefill, in decode."""
    rng = random.Random(5)
    body = {"model": MODEL_ID, "prompt": [500 + i for i in range(300)], "max_tokens": 200, "ignore_eos": True, "stream": True}
    import json
    raw = json.dumps(body).encode()
    request = (f"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nContent-Length: {len(raw)}\r\n\r\n").encode() + raw
    for _ in range(60):
        s = daemon.connect()
        s.sendall(request[:rng.choice([10, 80, len(request) - 5, len(request), len(request)])])
        time.sleep(rng.choice([0, 0.002, 0.02, 0.1]))
        s.close()
    daemon.until_idle(10)
    assert daemon.gauge("vllm:kv_cache_usage_perc") == 0
    assert daemon.tokens("The capital of France is", max_tokens=4)


def test_non_stream_request_of_a_gone_client_is_cancelled(daemon):
    daemon.until_idle()
    s = daemon.connect()
    daemon.send_request(s, "/v1/completions", {"model": MODEL_ID, "prompt": "x", "max_tokens": 4000, "ignore_eos": True})
    daemon.eventually(lambda: daemon.gauge("vllm:num_requests_running") == 1, what="running")
    s.close()
    daemon.until_idle(10)
