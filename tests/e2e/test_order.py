"""The order of service: priority, deadlines, equal shares of keys, one prompt computed once. With the official client."""
import asyncio
import time

import httpx
import openai
import pytest
from harness import MODEL_ID, SLOWNESS, Daemon, read_all, read_until, status_of

LONG = {"model": MODEL_ID, "prompt": "Tell me a story.", "max_tokens": 4000, "temperature": 0}
ENDLESS = {"ignore_eos": True}


async def end_of(client, prompt, ends, name, max_tokens=2, **extra):
    await client.completions.create(model=MODEL_ID, prompt=prompt, max_tokens=max_tokens, temperature=0, extra_body=extra)
    ends.append(name)


def occupy(d, headers="", max_tokens=4000):
    """A decoding stream that takes the only running place, so that all other requests wait."""
    s = d.connect(60)
    d.send_request(s, "/v1/completions", {**LONG, **ENDLESS, "max_tokens": max_tokens, "stream": True}, headers=headers)
    read_until(s, b"data: ")
    return s


def waiting(d):
    return d.gauge("vllm:num_requests_waiting")


@pytest.fixture(scope="module")
def one_at_a_time():
    with Daemon("--running-requests", 1) as d:
        yield d


def test_a_lower_priority_value_is_served_first(one_at_a_time):
    d, ends = one_at_a_time, []
    blocker = occupy(d)

    async def main():
        async with d.aclient() as client:
            tasks = []
            for i, p in enumerate((0, 5, -1, 0, -7)):
                tasks.append(asyncio.create_task(end_of(client, f"Number {i} is", ends, p if p else f"0{i}", priority=p)))
                await asyncio.to_thread(d.eventually, lambda: waiting(d) > i, 60, "they are there", 0.005)
            blocker.close()
            await asyncio.gather(*tasks)
    asyncio.run(main())
    assert ends == [-7, -1, "00", "03", 5]
    d.until_idle()


@pytest.mark.hand_over
def test_a_deadline_cuts_or_refuses(one_at_a_time):
    d, client = one_at_a_time, one_at_a_time.client()
    missed = {k[1]: v for k, v in d.metrics().items() if k[0] == "tandem:deadlines_missed_total"}
    begin = time.monotonic()
    with pytest.raises(openai.APIStatusError) as e:  # while it is computed
        client.completions.create(**LONG, extra_body={**ENDLESS, "timeout_ms": int(400 * SLOWNESS)})
    took = time.monotonic() - begin
    assert e.value.status_code == 504 and e.value.body["code"] == "deadline_exceeded" and e.value.type == "timeout_error"
    assert 0.4 * SLOWNESS <= took < 10 * SLOWNESS, "the whole answer takes longer"
    blocker = occupy(d)
    for name in ("timeout_ms", "ttft_timeout_ms"):
        begin = time.monotonic()
        with pytest.raises(openai.APIStatusError) as e:  # before it has started
            client.completions.create(**LONG, extra_body={name: int(200 * SLOWNESS)})
        took = time.monotonic() - begin
        assert e.value.status_code == 408 and e.value.body["code"] == "deadline_unreachable", e.value
        assert "passed, or could not be met any more, before this request began" in e.value.message, e.value
        assert 0.2 * SLOWNESS <= took < 10 * SLOWNESS, "nothing else would end it"
    # the engine's gauges are a step behind the tokens that a client has
    d.eventually(lambda: waiting(d) == 0 and d.gauge("vllm:num_requests_running") == 1, what="nobody but the first")
    blocker.close()
    d.until_idle()
    after = {k[1]: v for k, v in d.metrics().items() if k[0] == "tandem:deadlines_missed_total"}
    assert sorted(after[k] - missed[k] for k in after) == [1, 2]
    # only a deadline for the first token, which is met; and a total deadline that is long enough
    r = client.completions.create(**{**LONG, "max_tokens": 30}, extra_body={**ENDLESS, "ttft_timeout_ms": 60000, "timeout_ms": 600000})
    assert r.choices[0].text


def test_official_clients_do_not_send_a_late_request_again(one_at_a_time):
    d = one_at_a_time

    def missed():
        return sum(v for (name, _), v in d.metrics().items() if name == "tandem:deadlines_missed_total")
    before, client = missed(), openai.OpenAI(base_url=d.url + "/v1", api_key="none")  # by default it would retry twice
    assert client.max_retries == 2
    with pytest.raises(openai.APIStatusError) as e:
        client.completions.create(**LONG, extra_body={**ENDLESS, "timeout_ms": int(300 * SLOWNESS)})
    assert e.value.status_code == 504 and missed() == before + 1
    blocker = occupy(d)
    with pytest.raises(openai.APIStatusError) as e:
        client.completions.create(**LONG, extra_body={"timeout_ms": int(200 * SLOWNESS)})
    assert e.value.status_code == 408 and missed() == before + 2
    blocker.close()
    d.until_idle()


def test_a_stream_that_is_cut_ends_with_an_error_event(one_at_a_time):
    d = one_at_a_time
    text, error = "", None
    try:
        for chunk in d.client().completions.create(**LONG, stream=True, extra_body={**ENDLESS, "timeout_ms": int(500 * SLOWNESS)}):
            text += chunk.choices[0].text
    except openai.APIError as e:
        error = e
    assert text and error is not None and error.body["code"] == "deadline_exceeded", (text, error)
    blocker = occupy(d)  # and a request that never started
    s = d.connect(60)
    d.send_request(s, "/v1/chat/completions", {"model": MODEL_ID, "messages": [{"role": "user", "content": "Hi"}], "stream": True,
                                               "ttft_timeout_ms": 100}, headers="Connection: close\r\n")
    raw = read_all(s)
    assert status_of(raw) == 200 and b"deadline_unreachable" in raw and b"[DONE]" not in raw
    blocker.close()
    d.until_idle()


def test_a_client_that_leaves_is_not_told_of_its_deadline(one_at_a_time):
    """Cancel and deadline at about the same time, in all orders, many times; nothing leaks."""
    d = one_at_a_time
    for i in range(12):
        with pytest.raises((httpx.TimeoutException, openai.APIStatusError, openai.APITimeoutError)):
            d.client(http_client=httpx.Client(timeout=0.05 + 0.01 * (i % 3))).completions.create(
                **LONG, extra_body={**ENDLESS, "timeout_ms": 50 + i})
    d.until_idle()
    assert [v for (name, labels), v in d.metrics().items() if name == "tandem:pages" and "owned" in str(labels)] == [0]


WORDS = "The river runs past the old mill and under the stone bridge, where the children fish in summer. "


def test_n_choices_compute_their_prompt_once(daemon):
    client, prompt = daemon.client(), "Choices. " + WORDS * 8
    n_prompt = len(daemon.post("/tokenize", {"model": MODEL_ID, "prompt": prompt}).json()["tokens"])
    before = daemon.gauge("tandem:prefill_tokens_total")
    r = client.completions.create(model=MODEL_ID, prompt=prompt, n=4, max_tokens=8, temperature=1, seed=3)
    computed = daemon.gauge("tandem:prefill_tokens_total") - before
    assert len(r.choices) == 4 and n_prompt > 100
    assert computed <= n_prompt + 3 * 16, "but for a page each: the last token is computed for its logits"
    one = [client.completions.create(model=MODEL_ID, prompt=prompt, max_tokens=8, temperature=1, seed=3 + i) for i in range(4)]
    assert [c.text for c in r.choices] == [o.choices[0].text for o in one]


def test_requests_that_come_together_compute_their_common_prompt_once(daemon):
    async def main():
        async with daemon.aclient() as client:
            return await asyncio.gather(*(client.completions.create(
                model=MODEL_ID, prompt="Together. " + WORDS * 8 + tail, max_tokens=8, temperature=0)
                for tail in ("", "", "Once", "It was", "And then the")))
    n_prompt = len(daemon.post("/tokenize", {"model": MODEL_ID, "prompt": "Together. " + WORDS * 8}).json()["tokens"])
    before, follows = daemon.gauge("tandem:prefill_tokens_total"), daemon.gauge("tandem:follows_total")
    answers = asyncio.run(main())
    computed = daemon.gauge("tandem:prefill_tokens_total") - before
    assert computed <= n_prompt + 5 * 24
    assert daemon.gauge("tandem:follows_total") > follows
    assert answers[0].choices[0].text == answers[1].choices[0].text


def test_a_cache_salt_is_a_cache_of_its_own(daemon):
    client, prompt = daemon.client(), "Salted. " + WORDS * 4

    def cached(**extra):
        r = client.completions.create(model=MODEL_ID, prompt=prompt, max_tokens=2, temperature=0, extra_body=extra)
        return r.usage.prompt_tokens_details.cached_tokens
    assert cached(cache_salt="a") == 0 and cached(cache_salt="a") > 50
    assert cached(cache_salt="b") == 0 and cached() == 0 and cached(cache_salt="a") > 50


def test_short_prompts_do_not_wait_for_a_long_one():
    with Daemon("--step-tokens", 64, "--policy", "sarathi") as d:
        ends = []

        async def main():
            async with d.aclient() as client:
                long = asyncio.create_task(end_of(client, WORDS * 50, ends, "long", max_tokens=1))
                await asyncio.to_thread(d.eventually, lambda: d.gauge("vllm:num_requests_running") != 0, 60, "they are there", 0.005)
                await asyncio.gather(*(end_of(client, f"Number {i} is", ends, i, max_tokens=3) for i in range(4)))
                await long
        asyncio.run(main())
        assert ends[-1] == "long" and len(ends) == 5, ends


def test_a_key_that_floods_leaves_others_their_share(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("greedy\nmodest\n")
    with Daemon("--api-key-file", keys, "--running-requests", 1, api_key="greedy") as d:
        def key_waiting():
            return httpx.get(d.url + "/metrics", headers={"authorization": "Bearer greedy"}, timeout=60).text

        def n_waiting():
            return int(float(next(l for l in key_waiting().splitlines() if l.startswith("vllm:num_requests_waiting{")).split()[-1]))

        ends = []

        async def main():
            async with d.aclient() as greedy, d.aclient(api_key="modest") as modest:
                blocker = await asyncio.to_thread(occupy, d, "Authorization: Bearer greedy\r\n")
                tasks = [asyncio.create_task(end_of(greedy, f"Number {i} is", ends, f"g{i}", max_tokens=8, **ENDLESS)) for i in range(12)]
                await asyncio.to_thread(d.eventually, lambda: n_waiting() >= 12, 60, "they are there", 0.005)
                tasks += [asyncio.create_task(end_of(modest, f"A word {i}", ends, f"m{i}", max_tokens=8, **ENDLESS)) for i in range(3)]
                await asyncio.to_thread(d.eventually, lambda: n_waiting() >= 15, 60, "they are there", 0.005)
                blocker.close()
                await asyncio.gather(*tasks)
        asyncio.run(main())
        turns = [i for i, e in enumerate(ends) if e.startswith("m")]
        assert len(turns) == 3 and turns[2] < 9, "turn by turn, whoever came first"
        assert turns[2] - turns[0] > 2, "the modest key has its share and no more"


def test_a_key_gets_places_from_one_whose_answers_are_long(tmp_path):
    """Three long answers run when another key comes with two requests: the first takes the place that is kept, the second one of the three's,
    long before they end; and whoever gave way answers on as if nothing had been."""
    keys = tmp_path / "keys"
    keys.write_text("greedy\nmodest\n")
    with Daemon("--api-key-file", keys, "--running-requests", 4, api_key="greedy") as d:
        def metric(name):
            text = httpx.get(d.url + "/metrics", headers={"authorization": "Bearer greedy"}, timeout=60).text
            return float(next(line for line in text.splitlines() if line.startswith(name + "{")).split()[-1])

        times = {}

        async def stream(client, name, prompt, n):
            tokens = []
            s = await client.completions.create(model=MODEL_ID, prompt=prompt, max_tokens=n, stream=True, temperature=0,
                                                extra_body={**ENDLESS, "return_token_ids": True})
            async for chunk in s:
                tokens += chunk.choices[0].token_ids if chunk.choices else []
                times.setdefault(name, []).append(time.monotonic())
            return tokens

        async def main():
            async with d.aclient() as greedy, d.aclient(api_key="modest") as modest:
                long = [asyncio.create_task(stream(greedy, f"g{i}", "Once upon a time", 72)) for i in range(4)]
                await asyncio.to_thread(d.eventually, lambda: metric("vllm:num_requests_running") >= 3, 60, "they are there", 0.005)
                await asyncio.gather(*(stream(modest, f"m{i}", f"Number {i} is", 24) for i in range(2)))
                assert not any(t.done() for t in long), "all of the greedy key's go on"
                return await asyncio.to_thread(metric, "tandem:fair_preemptions_total"), await asyncio.gather(*long)
        taken, answers = asyncio.run(main())
        assert taken == 1 and times["m1"][0] < times["m0"][-1] and times["m0"][0] < times["m1"][-1], "both ran at once"
        assert len(answers[0]) == 72 and all(a == answers[0] for a in answers), "one of them was computed in two parts"


def test_a_key_that_waits_for_its_own_memory_holds_up_nobody(tmp_path):
    """Its long answer holds half of the memory, and its next prompt waits for that to end: another key's requests, whose prompts cost more
    than the answer does meanwhile, do not wait with it."""
    keys = tmp_path / "keys"
    keys.write_text("greedy\nmodest\n")
    kv_bytes = 1536 * 30 * 3 * 128 * 4  # of 1536 tokens: layers, KV heads, K and V of 64, floats
    with Daemon("--api-key-file", keys, "--kv-bytes", kv_bytes, api_key="greedy") as d:
        def count(what):
            text = httpx.get(d.url + "/metrics", headers={"authorization": "Bearer greedy"}, timeout=60).text
            return float(next(line for line in text.splitlines() if line.startswith(f"vllm:num_requests_{what}{{")).split()[-1])

        def prompt(i, n):
            return [(7919 * i + 31 * k) % 40000 + 100 for k in range(n)]

        async def main():
            async with d.aclient() as greedy, d.aclient(api_key="modest") as modest:
                ends = []
                first = asyncio.create_task(end_of(greedy, prompt(1, 700), ends, "first", max_tokens=700, **ENDLESS))
                await asyncio.to_thread(d.eventually, lambda: count("running") != 0, 60, "they are there", 0.005)
                second = asyncio.create_task(end_of(greedy, prompt(2, 900), ends, "second", max_tokens=2, **ENDLESS))
                await asyncio.to_thread(d.eventually, lambda: count("waiting") != 0, 60, "they are there", 0.005)
                for i in range(8):
                    await end_of(modest, prompt(3 + i, 200), ends, i, max_tokens=8, **ENDLESS)
                assert ends == list(range(8)), "none waited for the other key's"
                await asyncio.gather(first, second)
                return ends
        assert asyncio.run(main())[8:] == ["first", "second"]
