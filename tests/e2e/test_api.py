"""The two completion routes through the official client: response format, usage, streams that equal whole answers, sync and async."""
import asyncio

import openai
import pytest
from harness import MODEL_ID

CHAT = [{"role": "user", "content": "Name the three primary colours."}]
PROMPT = "The capital of France is"


@pytest.mark.share
def test_chat(client):
    r = client.chat.completions.create(model=MODEL_ID, messages=CHAT, temperature=0, max_tokens=40)
    assert r.object == "chat.completion" and r.id.startswith("chatcmpl-") and r.model == MODEL_ID and r.created > 1.7e9
    (choice,) = r.choices
    assert choice.index == 0 and choice.finish_reason in ("stop", "length")
    assert choice.message.role == "assistant" and choice.message.content
    assert "<|im_" not in choice.message.content
    u = r.usage
    assert u.total_tokens == u.prompt_tokens + u.completion_tokens and 0 < u.completion_tokens <= 40
    assert u.prompt_tokens_details.cached_tokens >= 0


@pytest.mark.share
def test_completion(client):
    r = client.completions.create(model=MODEL_ID, prompt=PROMPT, temperature=0, max_tokens=8)
    assert r.object == "text_completion" and r.id.startswith("cmpl-") and r.model == MODEL_ID
    assert r.choices[0].text
    assert r.choices[0].finish_reason == "length" and r.usage.completion_tokens == 8
    assert r.usage.prompt_tokens == 5


def test_answers_have_sense(client):
    """Of the whole model; builds with sanitizers serve two of its layers."""
    chat = client.chat.completions.create(model=MODEL_ID, messages=CHAT, temperature=0, max_tokens=40)
    assert "red" in chat.choices[0].message.content.lower()
    assert "Paris" in client.completions.create(model=MODEL_ID, prompt=PROMPT, temperature=0, max_tokens=8).choices[0].text


@pytest.mark.parametrize("sampling", [{"temperature": 0}, pytest.param({"temperature": 0.9, "seed": 7}, marks=pytest.mark.share)], ids=["greedy", "seeded"])
def test_chat_stream_equals_answer(client, sampling):
    args = dict(model=MODEL_ID, messages=CHAT, max_tokens=48, **sampling)
    whole = client.chat.completions.create(**args)
    chunks = list(client.chat.completions.create(**args, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert len({c.id for c in chunks}) == 1 and {c.object for c in chunks} == {"chat.completion.chunk"}
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    finishes = [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason]
    assert finishes == [whole.choices[0].finish_reason]
    assert chunks[-1].choices == [] and all(c.usage is None for c in chunks[:-1])
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens


def test_completion_stream_equals_answer(client):
    args = dict(model=MODEL_ID, prompt=PROMPT, temperature=0, max_tokens=24)
    whole = client.completions.create(**args)
    chunks = list(client.completions.create(**args, stream=True))
    assert "".join(c.choices[0].text for c in chunks) == whole.choices[0].text
    assert chunks[-1].choices[0].finish_reason == "length" and {c.object for c in chunks} == {"text_completion"}
    assert len(chunks) > 8, "the text must come as it is made, not at the end"


def test_answer_follows_the_conversation(client):
    r = client.chat.completions.create(
        model=MODEL_ID, temperature=0, max_tokens=24,
        messages=[{"role": "system", "content": "You answer with one word."},
                  {"role": "user", "content": [{"type": "text", "text": "My name is "}, {"type": "text", "text": "Zelda."}]},
                  {"role": "assistant", "content": "Hello Zelda."}, {"role": "user", "content": "What is my name?"}])
    assert "zelda" in r.choices[0].message.content.lower()


def test_async(daemon):
    async def main():
        async with daemon.aclient() as c:
            whole, stream = await asyncio.gather(
                c.chat.completions.create(model=MODEL_ID, messages=CHAT, temperature=0, max_tokens=24),
                c.chat.completions.create(model=MODEL_ID, messages=CHAT, temperature=0, max_tokens=24, stream=True))
            text = "".join([k.choices[0].delta.content or "" async for k in stream])
            assert text == whole.choices[0].message.content
    asyncio.run(main())


def test_several_prompts_and_choices(client, daemon):
    prompts = [PROMPT, "Two plus two is", "Water boils at"]
    r = client.completions.create(model=MODEL_ID, prompt=prompts, temperature=0, max_tokens=6, n=2)
    assert [c.index for c in r.choices] == list(range(6))
    alone = [client.completions.create(model=MODEL_ID, prompt=p, temperature=0, max_tokens=6).choices[0].text for p in prompts]
    assert [c.text for c in r.choices] == [alone[0], alone[0], alone[1], alone[1], alone[2], alone[2]]
    assert r.usage.completion_tokens == 36


def test_n_stream_keeps_choices_apart(client):
    args = dict(model=MODEL_ID, messages=CHAT, temperature=1, seed=11, max_tokens=20, n=3)
    whole = client.chat.completions.create(**args)
    texts, ended = {}, set()
    for chunk in client.chat.completions.create(**args, stream=True):
        for c in chunk.choices:
            assert c.index not in ended
            texts[c.index] = texts.get(c.index, "") + (c.delta.content or "")
            if c.finish_reason:
                ended.add(c.index)
    assert texts == {c.index: c.message.content for c in whole.choices} and ended == {0, 1, 2}
    assert len(set(texts.values())) > 1, "choices of one seed must not all be the same draw"


def test_models(client):
    (m,) = client.models.list().data
    assert m.id == MODEL_ID and m.object == "model" and m.max_model_len == 8192
    assert client.models.retrieve(MODEL_ID).id == MODEL_ID
    with pytest.raises(openai.NotFoundError) as e:
        client.models.retrieve("gpt-4")
    assert e.value.code == "model_not_found"


def test_wrong_model(client):
    with pytest.raises(openai.NotFoundError) as e:
        client.chat.completions.create(model="gpt-4", messages=CHAT)
    assert e.value.code == "model_not_found" and e.value.param == "model"


def test_prefix_hit_changes_nothing_but_the_count(daemon):
    prompt = "A story that nobody has told before: " + " ".join(f"number {i}," for i in range(60))
    body = {"model": MODEL_ID, "prompt": prompt, "temperature": 0, "max_tokens": 12, "return_token_ids": True}
    first, second = (daemon.post("/v1/completions", body).json() for _ in range(2))
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    n = second["usage"]["prompt_tokens"]
    assert n - 17 <= cached < n and cached % 16 == 0
    assert first["choices"][0]["token_ids"] == second["choices"][0]["token_ids"]
    assert first["choices"][0]["text"] == second["choices"][0]["text"]
