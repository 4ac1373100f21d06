"""OpenAI's /v1/responses through the openai client: items, events, function tools, and the requests of agents."""
import json
import signal
from typing import Literal

import openai
import pytest
from harness import MODEL_ID, Daemon
from pydantic import BaseModel
from test_tool_calls import SAYS, write_template

TOOL = {"type": "function", "name": "get_weather", "description": "Weather of a city.", "strict": True, "parameters": {
    "type": "object", "additionalProperties": False, "required": ["city"], "properties": {"city": {"enum": ["Oslo", "Bergen"]}}}}
NAMED = {"type": "function", "name": "get_weather"}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Daemon("--chat-template", write_template(tmp_path_factory.mktemp("template"), SAYS["hermes"])) as d:
        yield d


@pytest.fixture(scope="module")
def client(server):
    return server.client()


def ask(client, **fields):
    return client.responses.create(**{"model": MODEL_ID, "input": "How is the weather in Oslo?", "max_output_tokens": 60,
                                      "temperature": 1, "store": False, **fields})


def test_text(client):
    r = ask(client, max_output_tokens=8, temperature=0, instructions="Be brief.")
    assert r.status == "incomplete" and r.incomplete_details.reason == "max_output_tokens" and r.object == "response"
    assert r.output_text and r.output[0].type == "message" and r.usage.output_tokens == 8 and r.store is False
    assert r.instructions == "Be brief." and r.usage.total_tokens == r.usage.input_tokens + 8
    chat = client.chat.completions.create(model=MODEL_ID, max_tokens=8, temperature=0, messages=[
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "How is the weather in Oslo?"}])
    assert chat.choices[0].message.content == r.output_text and chat.usage.prompt_tokens == r.usage.input_tokens


def test_a_turn_with_a_tool(client):
    r = ask(client, tools=[TOOL], tool_choice=NAMED, parallel_tool_calls=False)
    call, = r.output
    assert r.status == "completed" and call.type == "function_call" and call.name == "get_weather" and call.call_id != call.id
    assert json.loads(call.arguments)["city"] in ("Oslo", "Bergen") and r.tools[0].name == "get_weather"
    history = [{"role": "user", "content": [{"type": "input_text", "text": "How is the weather?"}]},
               *[item.model_dump() for item in r.output],
               {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}]
    r = ask(client, input=history, tools=[TOOL], tool_choice="none", max_output_tokens=5)
    assert r.output[0].type == "message"
    again = ask(client, input=history + [i.model_dump() for i in r.output] + [{"role": "user", "content": "So?"}], max_output_tokens=2)
    assert again.usage.input_tokens > r.usage.input_tokens


def test_stream(client):
    for fields in ({"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False, "seed": None},
                   {"max_output_tokens": 12, "temperature": 0}):
        fields.pop("seed", 0)
        events = list(ask(client, stream=True, **fields))
        kinds = [e.type for e in events]
        assert [e.sequence_number for e in events] == list(range(len(events)))
        assert kinds[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
        assert all((e.response.status, e.response.output, e.response.usage) == ("in_progress", [], None) for e in events[:2])
        final = events[-1].response
        assert kinds[-1] == "response." + final.status
        done = [e.item for e in events if e.type == "response.output_item.done"]
        assert [d.id for d in done] == [o.id for o in final.output]
        if fields.get("tools"):
            text = "".join(e.delta for e in events if e.type == "response.function_call_arguments.delta")
            assert text == final.output[0].arguments == done[0].arguments and json.loads(text)["city"] in ("Oslo", "Bergen")
        else:
            assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == final.output_text
            assert final.output_text == ask(client, **fields).output_text and final.usage.output_tokens == 12


LOGPROBS = {"include": ["message.output_text.logprobs"], "temperature": 0, "max_output_tokens": 12}


def shown(tokens):
    return [(t.token, t.logprob, t.bytes, [(o.token, o.logprob, o.bytes) for o in t.top_logprobs]) for t in tokens]


@pytest.mark.parametrize("n", [0, 3, 20])
def test_logprobs(client, n):
    """Equal to those of a chat, whole and streamed; in a stream they are in the deltas."""
    r = ask(client, top_logprobs=n, **LOGPROBS)
    chat = client.chat.completions.create(model=MODEL_ID, max_tokens=12, temperature=0, logprobs=True, top_logprobs=n, messages=[
        {"role": "user", "content": "How is the weather in Oslo?"}])
    told = r.output[0].content[0].logprobs
    assert shown(told) == shown(chat.choices[0].logprobs.content) and len(told) == 12 and all(len(t.top_logprobs) == n for t in told)
    assert b"".join(bytes(t.bytes) for t in told).decode() == r.output_text and r.top_logprobs == n
    streamed = []
    for e in ask(client, top_logprobs=n, stream=True, **LOGPROBS):
        if e.type == "response.output_text.delta":
            assert "".join(t.token for t in e.logprobs) == e.delta
            streamed += e.logprobs
        elif e.type == "response.output_text.done":
            assert e.logprobs == []
    assert shown(streamed) == shown(told)
    assert ask(client, **{**LOGPROBS, "include": []}).output[0].content[0].logprobs == []


def test_logprobs_of_content_only(client):
    """Tokens of a call do not belong to the text; a whole answer and a stream agree."""
    tag = {"type": "structural_tag", "format": {"type": "const_string", "value":
           'So: <tool_call>{"name": "get_weather", "arguments": {"city": "Oslo"}}</tool_call>'}}
    fields = {**LOGPROBS, "max_output_tokens": 60, "tools": [TOOL], "extra_body": {"structured_outputs": {"structural_tag": tag}}}
    r = ask(client, **fields)
    assert [o.type for o in r.output] == ["message", "function_call"], r.output
    said = r.output[0].content[0]
    assert "".join(t.token for t in said.logprobs).strip() == said.text.strip() == "So:"
    streamed = [t for e in ask(client, stream=True, **fields) if e.type == "response.output_text.delta" for t in e.logprobs]
    assert shown(streamed) == shown(said.logprobs)


def test_what_it_repeats(server):
    """Text repeated from a request is valid JSON, also with U+0000."""
    r = server.post("/v1/responses", {"input": "Hi", "max_output_tokens": 1, "instructions": "a\0b", "metadata": {"k": ["\0", "é"]}})
    body = r.json()
    assert r.status_code == 200 and body["instructions"] == "a\0b" and body["metadata"] == {"k": ["\0", "é"]}


def test_an_error_has_its_number(tmp_path):
    """In a stream that fails, its number follows those of the events before it."""
    with Daemon("--chat-template", write_template(tmp_path, SAYS["hermes"]), "--drain-timeout-ms", "0") as d:
        events = ask(d.client(), stream=True, max_output_tokens=4000, temperature=2)
        numbers = [next(events).sequence_number for _ in range(5)]
        d.process.send_signal(signal.SIGTERM)
        rest = list(events)
        numbers += [event.sequence_number for event in rest]
        assert rest[-1].type == "error" and rest[-1].code == "shutting_down" and numbers == list(range(len(numbers)))


class Weather(BaseModel):
    kind: Literal["dry", "wet"]


def test_parse(client):
    r = client.responses.parse(model=MODEL_ID, input="Oslo?", text_format=Weather, max_output_tokens=40, temperature=0)
    assert r.output_parsed.kind in ("dry", "wet")
    with client.responses.stream(model=MODEL_ID, input="Oslo?", text_format=Weather, max_output_tokens=40, temperature=0) as s:
        for _ in s:
            pass
        assert s.get_final_response().output_parsed.kind in ("dry", "wet")


# What Codex sends, as published: tools that are not functions, reasoning, include.
def test_what_is_repeated_has_a_bound(server):
    """Three events of a stream repeat the request, and stay in memory if the client does not read: 64 KiB of the request each, not 8 MB."""
    schema = {"type": "object", "properties": {"a": {"type": "string", "description": "d" * 1000000}}, "required": ["a"], "additionalProperties": False}
    body = {"model": MODEL_ID, "input": "hi", "max_output_tokens": 4, "metadata": {"k": "v"}, "user": "u" * 500, "stream": True,
            "text": {"format": {"type": "json_schema", "name": "x", "schema": schema}}}
    r = server.post("/v1/responses", body)
    assert r.status_code == 200 and len(r.content) < 3 * 65536, len(r.content)
    events = [json.loads(b.split("\n")[1].removeprefix("data: ")) for b in r.text.strip().split("\n\n") if not b.startswith(":")]
    for e in events[0], events[1], events[-1]:
        assert e["response"]["text"] == {"format": {"type": "text"}} and e["response"]["metadata"] == {"k": "v"} and e["response"]["user"] == "u" * 500
    schema["properties"]["a"]["description"] = "d" * 60000
    again = server.post("/v1/responses", {**body, "stream": False}).json()
    assert again["text"] == body["text"]


AGENT = {"model": MODEL_ID, "instructions": "You are an agent.", "stream": True, "store": False, "tool_choice": "auto",
         "parallel_tool_calls": False, "reasoning": {"effort": "medium", "summary": "auto"}, "include": ["reasoning.encrypted_content"],
         "prompt_cache_key": "0199", "max_output_tokens": 8, "text": {"verbosity": "low"},
         "tools": [{**TOOL, "strict": False}, {"type": "custom", "name": "apply_patch", "description": "x",
                                               "format": {"type": "grammar", "syntax": "lark", "definition": "start: x"}},
                   {"type": "web_search"}],
         "input": [{"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "<permissions>"}]},
                   {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
                   {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAA", "content": None},
                   {"type": "function_call", "name": "shell", "arguments": "{\"command\":[\"ls\"]}", "call_id": "call_1"},
                   {"type": "function_call_output", "call_id": "call_1", "output": "a b"}]}


def test_an_agents_request(server):
    r = server.post("/v1/responses", AGENT, headers={"accept": "text/event-stream", "originator": "codex_cli_rs"})
    assert r.status_code == 200 and r.headers["x-tandem-ignored"] == "tools.type", r.text
    events = [json.loads(b.split("\n")[1].removeprefix("data: ")) for b in r.text.strip().split("\n\n") if not b.startswith(":")]
    assert events[0]["type"] == "response.created" and events[-1]["type"] in ("response.incomplete", "response.completed")
    assert events[-1]["response"]["usage"]["output_tokens"] > 0


BAD = [
    ({"input": None}, "input"),
    ({"input": []}, "input"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content"),
    ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id"),
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"background": True}, "background"),
    ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ({"tools": [TOOL], "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
    ({"instructions": 5}, "instructions"),
    ({"include": ["message.output_text.logprobs", 5]}, "include"),
    ({"include": ["message.output_text.logprobs"], "top_logprobs": 21}, "top_logprobs"),
    ({"include": ["message.output_text.logprobs"], "top_logprobs": "2"}, "top_logprobs"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"reasoning": {"effort": "much"}}, "reasoning.effort"),
    ({"reasoning": {"effort": 5}}, "reasoning.effort"),
    ({"max_tokens": 5}, "max_tokens"),
]


@pytest.mark.parametrize("fields,param", BAD)
def test_bad_requests(server, fields, param):
    r = server.post("/v1/responses", {"model": MODEL_ID, "max_output_tokens": 2, "input": "x", **fields})
    if param == "max_tokens":  # a field of another route
        assert r.headers.get("x-tandem-ignored") == param or r.status_code == 400, r.text
        return
    e = r.json()["error"]
    assert r.status_code == 400 and e["param"] == param, e


def test_errors_of_the_client(client):
    with pytest.raises(openai.NotFoundError):
        ask(client, model="other")
