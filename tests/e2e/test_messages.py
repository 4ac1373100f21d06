"""Anthropic's /v1/messages and count_tokens: through the anthropic client if it is installed, and by raw requests."""
import json

import httpx
import pytest
from harness import MODEL_ID, Daemon
from test_tool_calls import SAYS, write_template

try:
    import anthropic
except ImportError:  # of tests/clients/share.txt, which scripts/test e2e installs: raw requests are left
    anthropic = None

TOOL = {"name": "get_weather", "description": "Weather of a city.", "input_schema": {
    "type": "object", "additionalProperties": False, "required": ["city"], "properties": {"city": {"enum": ["Oslo", "Bergen"]}}}}
ASK = [{"role": "user", "content": "How is the weather in Oslo?"}]
BILLING = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.9; cc_entrypoint=cli; cch=%s;"}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Daemon("--chat-template", write_template(tmp_path_factory.mktemp("template"), SAYS["hermes"])) as d:
        yield d


@pytest.fixture(scope="module")
def client(server):
    if not anthropic:
        pytest.skip("the anthropic client is not installed")
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)


def ask(client, **fields):
    extra = {"temperature": fields.pop("temperature", 1), **fields.pop("extra_body", {})}
    return client.messages.create(extra_body=extra, **{"model": MODEL_ID, "messages": ASK, "max_tokens": 60, **fields})


def test_text(client):
    m = ask(client, max_tokens=8, system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}])
    assert m.role == "assistant" and m.type == "message" and m.content[0].type == "text" and m.content[0].text
    assert m.stop_reason == "max_tokens" and m.usage.output_tokens == 8 and m.usage.input_tokens > 8
    n = client.messages.count_tokens(model=MODEL_ID, messages=ASK, system="Be brief.").input_tokens
    assert n == m.usage.input_tokens + m.usage.cache_read_input_tokens


def test_cached_tokens_are_apart(client):
    long = [{"role": "user", "content": "Oslo and its people. " * 30}]
    first, second = (ask(client, messages=long, max_tokens=2).usage for _ in range(2))
    assert second.cache_read_input_tokens > 0
    assert second.input_tokens + second.cache_read_input_tokens == first.input_tokens + first.cache_read_input_tokens


def test_the_billing_line_is_no_part_of_the_prompt(client, server):
    def count(*system):
        return client.messages.count_tokens(model=MODEL_ID, messages=ASK, system=list(system)).input_tokens
    rules = {"type": "text", "text": "Rules. " * 20}
    nonce = {**BILLING, "text": BILLING["text"] % "1f2e3"}
    assert count(nonce, rules) == count(rules)
    assert count({"type": "text", "text": nonce["text"] + "\nRules."}) == count({"type": "text", "text": "Rules."})
    assert count(nonce) == client.messages.count_tokens(model=MODEL_ID, messages=ASK).input_tokens
    with Daemon("--chat-template", server.options[1], "--drop-billing-line", "0") as d:
        kept = anthropic.Anthropic(base_url=d.url, api_key="none")
        assert kept.messages.count_tokens(model=MODEL_ID, messages=ASK, system=[nonce, rules]).input_tokens > count(rules)


def test_stop_sequences(client):
    m = ask(client, temperature=0, max_tokens=60)
    word = m.content[0].text.split()[2]
    m = ask(client, temperature=0, stop_sequences=["\x07", word])
    assert m.stop_reason == "stop_sequence" and m.stop_sequence == word and word not in m.content[0].text


def test_tools(client):
    m = ask(client, tools=[TOOL], tool_choice={"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True})
    use, = m.content
    assert m.stop_reason == "tool_use" and use.type == "tool_use" and use.name == "get_weather"
    assert use.input in ({"city": "Oslo"}, {"city": "Bergen"})
    history = ASK + [{"role": "assistant", "content": m.content}, {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": "rain"}]},
        {"type": "text", "text": "And?"}]}]
    assert ask(client, messages=history, tools=[TOOL], tool_choice={"type": "none"}, max_tokens=5).content[0].type == "text"
    m = ask(client, tools=[TOOL], tool_choice={"type": "any", "disable_parallel_tool_use": True})
    assert m.content[-1].type == "tool_use"


def test_input_with_what_json_escapes(server):
    """U+0000 in a call's input: the model sees the same object as on other routes."""
    value = {"city": "a\0b", "n": [1.5, None]}
    use = {"type": "tool_use", "id": "c1", "name": "get_weather", "input": value}
    n = server.post("/v1/messages/count_tokens", {"messages": ASK + [{"role": "assistant", "content": [use]}]}).json()["input_tokens"]
    call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": json.dumps(value)}}
    same = server.post("/tokenize", {"messages": ASK + [{"role": "assistant", "content": "", "tool_calls": [call]}]}).json()["count"]
    assert n == same


def test_a_call_with_what_json_escapes(server):
    """The model writes U+0000: its call is returned nevertheless."""
    tool = {"name": "f", "input_schema": {"type": "object", "additionalProperties": False, "required": ["x"],
                                          "properties": {"x": {"type": "string", "pattern": "^\\u0000{2}$"}}}}
    r = server.post("/v1/messages", {"messages": ASK, "max_tokens": 100, "tools": [tool],
                                     "tool_choice": {"type": "tool", "name": "f"}}).json()
    assert r["stop_reason"] == "tool_use", r
    assert [block.get("input") for block in r["content"]] == [{"x": "\0\0"}]


def test_stream(client):
    """The client joins the events and checks their order."""
    with client.messages.stream(model=MODEL_ID, messages=ASK, max_tokens=60, tools=[TOOL],
                                tool_choice={"type": "any", "disable_parallel_tool_use": True}) as s:
        kinds = [e.type for e in s]
        m = s.get_final_message()
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop" and "input_json" in kinds
    assert m.stop_reason == "tool_use" and m.content[-1].input["city"] in ("Oslo", "Bergen") and m.usage.output_tokens > 5
    with client.messages.stream(model=MODEL_ID, messages=ASK, max_tokens=12, extra_body={"temperature": 0}) as s:
        text = "".join(s.text_stream)
        assert s.get_final_message().content[0].text == text
    assert text == ask(client, max_tokens=12, temperature=0).content[0].text


def test_an_answer_that_is_begun(client):
    m = ask(client, messages=ASK + [{"role": "assistant", "content": "In Oslo it"}], max_tokens=4)
    assert m.content[0].text


def test_formats(client):
    schema = {"type": "object", "additionalProperties": False, "required": ["n"], "properties": {"n": {"enum": [1, 2]}}}
    m = ask(client, extra_body={"output_config": {"format": {"type": "json_schema", "schema": schema}}})
    assert json.loads(m.content[-1].text)["n"] in (1, 2)


# What Claude Code sends, as published: blocks with cache_control, thinking, metadata, betas in the query.
AGENT = {"model": MODEL_ID, "max_tokens": 16, "stream": True, "temperature": 1, "metadata": {"user_id": "user_0_account__session_0"},
         "system": [{**BILLING, "text": BILLING["text"] % "00000"}, {"type": "text", "text": "You are an agent.",
                                                                      "cache_control": {"type": "ephemeral"}}],
         "messages": [{"role": "user", "content": [{"type": "text", "text": "<system-reminder>x</system-reminder>"},
                                                   {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral", "ttl": "1h"}}]}],
         "tools": [{**TOOL, "cache_control": {"type": "ephemeral"}}], "thinking": {"type": "disabled"},
         "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}}


def test_an_agents_request(server):
    r = server.post("/v1/messages?beta=true", AGENT, headers={"anthropic-version": "2023-06-01", "x-api-key": "k",
                                                              "anthropic-beta": "claude-code-20250219"})
    assert r.status_code == 200 and "x-tandem-ignored" not in r.headers, r.text
    events = [block.split("\n") for block in r.text.strip().split("\n\n") if not block.startswith(":")]
    for name, data in events:
        assert name.removeprefix("event: ") == json.loads(data.removeprefix("data: "))["type"]
    assert events[0][0] == "event: message_start" and events[-1][0] == "event: message_stop"


BAD = [
    ({"messages": []}, "messages"),
    ({"max_tokens": None}, "max_tokens"),
    ({"system": 5}, "system"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}]}, "content[0].type"),
    ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f"}]}]}, "input"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice"),
    ({"mcp_servers": [{}]}, "mcp_servers"),
    ({"temprature": 1}, "temprature"),
    ({"thinking": {"type": "much"}}, "thinking"),
    ({"output_config": {"effort": "much"}}, "output_config.effort"),
]


@pytest.mark.parametrize("fields,says", BAD)
def test_bad_requests_have_anthropics_shape(server, fields, says):
    r = server.post("/v1/messages", {"model": MODEL_ID, "max_tokens": 4, "messages": ASK, **fields})
    e = r.json()
    assert r.status_code == 400 and e["type"] == "error" and e["error"]["type"] == "invalid_request_error", e
    assert says in e["error"]["message"], e


def test_refusals_before_the_route_have_anthropics_shape(server):
    """An unknown route, and bodies that are too large: by their declared length, and by the bytes received."""
    body = json.dumps({"model": MODEL_ID, "max_tokens": 4, "messages": [{"role": "user", "content": "x" * (8 << 20)}]})
    r = server.post("/v1/messages/batches", {"requests": []})
    assert r.status_code == 404 and r.json()["error"] == {"type": "not_found_error", "message": "no such route: /v1/messages/batches"}
    for content in (body.encode(), (body[i:i + 65536].encode() for i in range(0, len(body), 65536))):
        r = httpx.post(server.url + "/v1/messages", content=content, headers={"content-type": "application/json"}, timeout=60)
        assert r.status_code == 413 and r.json() == {"type": "error", "error": {
            "type": "request_too_large", "message": "the body is larger than 8388608 bytes (http_body_bytes)"}}, r.text


def test_errors_of_the_client(client):
    with pytest.raises(anthropic.NotFoundError):
        ask(client, model="other")
