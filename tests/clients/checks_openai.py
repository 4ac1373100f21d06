"""The official clients of OpenAI and Anthropic."""
import asyncio
import json

import harness
from common import ASK, CITY_SCHEMA, MESSAGES, MODEL, TOOL, Weather, check


def chat(d, **kw):
    return d.client().chat.completions.create(**{"model": MODEL, "messages": MESSAGES, "max_tokens": 60, "temperature": 0.3, **kw})


@check("openai", "chat, whole and streamed")
def openai_chat(d):
    whole = chat(d, temperature=0, max_tokens=12).choices[0].message.content
    chunks = list(chat(d, temperature=0, max_tokens=12, stream=True, stream_options={"include_usage": True}))
    assert whole and whole == "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert chunks[-1].usage.completion_tokens == 12


@check("openai", "async, eight at once")
def openai_async(d):
    async def run():
        client = d.aclient()
        return await asyncio.gather(*(client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=8) for _ in range(8)))
    assert all(r.choices[0].message.content for r in asyncio.run(run()))


@check("openai", "completions, n, stop, seed")
def openai_completions(d):
    r = d.client().completions.create(model=MODEL, prompt="One, two,", max_tokens=12, n=2, seed=3, stop=[" five"])
    assert len(r.choices) == 2 and all(" five" not in c.text for c in r.choices)


@check("openai", "log-probabilities, logit_bias, penalties")
def openai_logprobs(d):
    r = chat(d, logprobs=True, top_logprobs=3, presence_penalty=0.5, frequency_penalty=0.5, logit_bias={"504": -100}, max_tokens=6)
    told = r.choices[0].logprobs.content
    assert len(told) == 6 and all(len(t.top_logprobs) == 3 and t.logprob <= 0 for t in told)


@check("openai", ".parse of a type")
def openai_parse(d):
    r = d.client().chat.completions.parse(model=MODEL, messages=MESSAGES, max_tokens=60, response_format=Weather)
    assert isinstance(r.choices[0].message.parsed, Weather)


@check("openai", "json_object")
def openai_json_object(d):
    r = chat(d, response_format={"type": "json_object"}, temperature=0, max_tokens=120, messages=[{"role": "user", "content": "Answer {\"a\": 1}"}])
    assert r.choices[0].finish_reason == "length" or isinstance(json.loads(r.choices[0].message.content), dict)


@check("openai", "a tool from a type")
def openai_pydantic_function_tool(d):
    import openai
    tool = openai.pydantic_function_tool(Weather)
    r = d.client().chat.completions.parse(model=MODEL, messages=MESSAGES, max_tokens=80, tools=[tool], tool_choice="required", parallel_tool_calls=False)
    assert isinstance(r.choices[0].message.tool_calls[0].function.parsed_arguments, Weather)


@check("openai", "tools: call, result, answer")
def openai_tools(d):
    m = chat(d, tools=[TOOL], tool_choice="required", parallel_tool_calls=False).choices[0].message
    call = m.tool_calls[0]
    assert json.loads(call.function.arguments)["city"] in ("Oslo", "Bergen")
    history = [*MESSAGES, m, {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
    assert chat(d, messages=history, tools=[TOOL], tool_choice="none").choices[0].message.content


@check("openai", "tools, streamed")
def openai_tools_stream(d):
    with d.client().chat.completions.stream(model=MODEL, messages=MESSAGES, max_tokens=80, tools=[TOOL], tool_choice="required", parallel_tool_calls=False) as s:
        kinds = {e.type for e in s}
        m = s.get_final_completion().choices[0].message
    assert "tool_calls.function.arguments.delta" in kinds and m.tool_calls[0].function.name == "weather"


@check("openai", "responses: text, streamed")
def openai_responses(d):
    r = d.client().responses.create(model=MODEL, input=ASK, max_output_tokens=12)
    assert r.output_text and r.usage.output_tokens == 12
    events = [e.type for e in d.client().responses.create(model=MODEL, input=ASK, max_output_tokens=12, stream=True)]
    assert events[0] == "response.created" and "response.output_text.delta" in events


@check("openai", "responses: .parse, tools")
def openai_responses_typed(d):
    r = d.client().responses.parse(model=MODEL, input=ASK, max_output_tokens=60, text_format=Weather, temperature=0.3)
    assert isinstance(r.output_parsed, Weather)
    tool = {"type": "function", "name": "weather", "parameters": CITY_SCHEMA, "strict": True}
    r = d.client().responses.create(model=MODEL, input=ASK, max_output_tokens=60, tools=[tool], tool_choice="required",
                                    parallel_tool_calls=False)
    assert r.output[-1].type == "function_call"


@check("openai", "responses: log-probabilities, reasoning effort")
def openai_responses_logprobs(d):
    kw = {"model": MODEL, "input": ASK, "max_output_tokens": 8, "temperature": 0, "include": ["message.output_text.logprobs"], "top_logprobs": 2,
          "reasoning": {"effort": "low"}}
    text = d.client().responses.create(**kw).output[0].content[0]
    assert "".join(t.token for t in text.logprobs) == text.text and all(len(t.top_logprobs) == 2 for t in text.logprobs)
    streamed = [t.token for e in d.client().responses.create(stream=True, **kw) if e.type == "response.output_text.delta" for t in e.logprobs]
    assert streamed == [t.token for t in text.logprobs]


@check("openai", "embeddings")
def openai_embeddings(d):
    with harness.Daemon("--pooling", "mean") as e:
        r = e.client().embeddings.create(model=MODEL, input=["Oslo", "Bergen"])
    assert len(r.data) == 2 and len(r.data[0].embedding) == len(r.data[1].embedding) > 100


# ---- anthropic ----

def anthropic_client(d):
    import anthropic
    return anthropic.Anthropic(base_url=d.url, api_key="none", max_retries=0)


ANTHROPIC_TOOL = {"name": "weather", "input_schema": CITY_SCHEMA}


@check("anthropic", "messages, whole and streamed")
def anthropic_messages(d):
    client = anthropic_client(d)
    m = client.messages.create(model=MODEL, max_tokens=12, messages=MESSAGES, system="Be brief.", stop_sequences=["zzz"])
    assert m.content[0].text and m.usage.output_tokens > 0
    with client.messages.stream(model=MODEL, max_tokens=12, messages=MESSAGES) as s:
        assert "".join(s.text_stream)


@check("anthropic", "count_tokens")
def anthropic_count_tokens(d):
    client = anthropic_client(d)
    n = client.messages.count_tokens(model=MODEL, messages=MESSAGES).input_tokens
    usage = client.messages.create(model=MODEL, max_tokens=1, messages=MESSAGES).usage
    assert n == usage.input_tokens + usage.cache_read_input_tokens


@check("anthropic", "tools: call, result, answer")
def anthropic_tools(d):
    client = anthropic_client(d)
    m = client.messages.create(model=MODEL, max_tokens=80, messages=MESSAGES, tools=[ANTHROPIC_TOOL], tool_choice={"type": "any", "disable_parallel_tool_use": True})
    use = m.content[-1]
    assert m.stop_reason == "tool_use" and use.input["city"] in ("Oslo", "Bergen")
    history = [*MESSAGES, {"role": "assistant", "content": m.content},
               {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "rain"}]}]
    assert client.messages.create(model=MODEL, max_tokens=8, messages=history, tools=[ANTHROPIC_TOOL], tool_choice={"type": "none"}).content


@check("anthropic", "tools, streamed")
def anthropic_messages_with_a_tool(d):
    with anthropic_client(d).messages.stream(model=MODEL, max_tokens=80, messages=MESSAGES, tools=[ANTHROPIC_TOOL],
                                             tool_choice={"type": "any", "disable_parallel_tool_use": True}) as s:
        m = s.get_final_message()
    assert m.stop_reason == "tool_use" and m.content[-1].input["city"] in ("Oslo", "Bergen")


@check("anthropic", ".parse of a type")
def anthropic_parse(d):
    m = anthropic_client(d).messages.parse(model=MODEL, max_tokens=60, messages=MESSAGES, output_format=Weather)
    assert isinstance(m.parsed_output, Weather)
