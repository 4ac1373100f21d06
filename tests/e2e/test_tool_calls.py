"""Tool calls through the openai client: in each format, constrained to it, streamed and whole; reasoning separate from content."""
import json
import pathlib
import re

import openai
import pytest
from harness import MODEL_ID, Daemon

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather of a city.", "parameters": {
        "type": "object", "additionalProperties": False, "required": ["city", "days"], "properties": {
            "city": {"type": "string", "enum": ["Oslo", "Bergen"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9},
            "windy": {"type": "boolean"}}}}}
TIME = {"type": "function", "function": {"name": "get_time", "parameters": {
    "type": "object", "additionalProperties": False, "required": ["zone"], "properties": {"zone": {"type": "string", "enum": ["CET", "UTC"]}}}}}
ASK = [{"role": "user", "content": "How is the weather in Oslo?"}]
CHAT = ("{%% if tools %%}<|im_start|>system\nTools: {{ tools|tojson }} %s<|im_end|>\n{%% endif %%}{%% for m in messages %%}"
        "<|im_start|>{{ m.role }}\n{{ m.content or '' }}{%% for c in m.tool_calls or [] %%}({{ c.id }} {{ c.function.name }} "
        "{{ c.function.arguments|tojson }}){%% endfor %%}<|im_end|>\n{%% endfor %%}{%% if add_generation_prompt %%}"
        "<|im_start|>assistant\n%s{%% endif %%}")
# The mark in a template by which the format of calls is recognised.
SAYS = {"hermes": "<tool_call></tool_call>", "llama": "<|python_tag|>", "pythonic": "[func_name1(params_name1=params_value1)]",
        "mistral": "[TOOL_CALLS][ARGS]", "qwen3-coder": "<tool_call><function=f>"}


def write_template(folder, says, begin=""):
    path = folder / "template.jinja"
    path.write_text(CHAT % (says, begin), encoding="utf-8")
    return path


@pytest.fixture(scope="module", params=SAYS)
def formats(request, tmp_path_factory):
    path = write_template(tmp_path_factory.mktemp("template"), SAYS[request.param])
    with Daemon("--chat-template", path) as d:
        assert f"tool calls: {request.param};" in d.log()
        yield d.client()


@pytest.fixture(scope="module")
def hermes(tmp_path_factory):
    with Daemon("--chat-template", write_template(tmp_path_factory.mktemp("template"), SAYS["hermes"])) as d:
        yield d


@pytest.fixture(scope="module")
def thinker(tmp_path_factory):
    """Its prompts contain the opening mark of reasoning."""
    path = write_template(tmp_path_factory.mktemp("template"), SAYS["hermes"] + "</think>", "<think>\n")
    with Daemon("--chat-template", path) as d:
        assert "reasoning: <think>" in d.log()
        yield d


def ask(client, **fields):
    kw = {"model": MODEL_ID, "messages": ASK, "tools": [WEATHER, TIME], "max_tokens": 120, "temperature": 1, "seed": 3, **fields}
    return client.chat.completions.create(**kw)


def check_call(call):
    """Checks arguments against the tool's schema."""
    args = json.loads(call.function.arguments)
    if call.function.name == "get_time":
        assert args in ({"zone": "CET"}, {"zone": "UTC"})
        return
    assert call.function.name == "get_weather"
    assert args["city"] in ("Oslo", "Bergen") and 1 <= args["days"] <= 9 and isinstance(args.get("windy", True), bool)
    assert set(args) <= {"city", "days", "windy"}


class Collected:
    """Joins a stream's deltas, and checks OpenAI's order."""

    def __init__(self, stream):
        self.content, self.reasoning, self.calls, self.finish = "", "", [], None
        for chunk in stream:
            if not chunk.choices:
                continue
            assert self.finish is None
            choice = chunk.choices[0]
            self.finish = choice.finish_reason
            self.content += choice.delta.content or ""
            self.reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            for c in choice.delta.tool_calls or []:
                self.add(c)

    def add(self, c):
        if c.index == len(self.calls):
            assert c.id and c.type == "function" and c.function.name and c.function.arguments == ""
            self.calls.append(c)
        else:
            assert c.index == len(self.calls) - 1 and not c.id and not c.function.name
            self.calls[-1].function.arguments += c.function.arguments


NAMED = {"type": "function", "function": {"name": "get_weather"}}


def test_a_call_that_is_demanded(formats):
    """Whatever a small model would prefer to say, the answer has calls that follow the schema, in the model's own format."""
    for choice in ("required", NAMED):
        one = {} if choice is NAMED else {"parallel_tool_calls": False}  # a named function is called only once anyway
        c = ask(formats, tool_choice=choice, seed=7, **one).choices[0]
        assert c.finish_reason == "tool_calls" and c.message.content is None, c
        call, = c.message.tool_calls
        check_call(call)
        assert call.type == "function" and call.id
        assert choice == "required" or call.function.name == "get_weather"


def test_stream_and_whole_agree(formats):
    whole = ask(formats, tool_choice="required", seed=11, parallel_tool_calls=False).choices[0]
    streamed = Collected(ask(formats, tool_choice="required", seed=11, parallel_tool_calls=False, stream=True))
    assert streamed.finish == whole.finish_reason == "tool_calls" and streamed.content == ""
    assert [(c.function.name, c.function.arguments) for c in streamed.calls] == [
        (c.function.name, c.function.arguments) for c in whole.message.tool_calls]
    for c in streamed.calls:
        check_call(c)


def test_several_calls(formats):
    """Any number of calls; their ids differ."""
    c = ask(formats, tool_choice="required", max_tokens=200, seed=5, temperature=1.3).choices[0]
    calls = c.message.tool_calls
    for call in calls[:-1] if c.finish_reason == "length" else calls:
        check_call(call)
    assert len({call.id for call in calls}) == len(calls) >= 1


def test_text_without_calls_stays_text(hermes):
    client = hermes.client()
    c = ask(client, max_tokens=30, temperature=0).choices[0]
    plain = client.chat.completions.create(model=MODEL_ID, messages=ASK, max_tokens=30, temperature=0)
    assert c.message.tool_calls is None and c.message.content and plain.choices[0].message.content
    none = ask(client, max_tokens=30, temperature=0, tool_choice="none").choices[0]
    assert none.message.content == plain.choices[0].message.content, "without tools the prompt has none"


def test_what_is_written_without_a_mask_of_calls_is_read(hermes):
    """If a grammar of the request produces the text of a call, it is returned as a call, also in a stream."""
    text = '<tool_call>{"name": "other", "arguments": {"a": "</tool_call>"}}</tool_call> and text'
    extra = {"structured_outputs": {"choice": [text]}}
    for stream in (False, True):
        r = ask(hermes.client(), tools=openai.NOT_GIVEN, extra_body=extra, stream=stream)
        got = Collected(r) if stream else r.choices[0].message
        assert got.content == text, "no tools, no calls"


def test_strict_tools_hold_behind_the_mark(hermes):
    """auto and strict: free text, but a call that has begun follows the schema."""
    strict = json.loads(json.dumps(WEATHER))
    strict["function"]["strict"] = True
    for seed in range(2):
        r = ask(hermes.client(), tools=[strict], seed=seed, temperature=1.5, max_tokens=40)
        for call in r.choices[0].message.tool_calls or []:
            if r.choices[0].finish_reason != "length":
                check_call(call)


def test_allowed_tools(hermes):
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [
        {"type": "function", "function": {"name": "get_time"}}]}}
    c = ask(hermes.client(), tool_choice=allowed).choices[0]
    assert {call.function.name for call in c.message.tool_calls} == {"get_time"}


def test_a_schema_that_cannot_be_held(hermes):
    """With a keyword that is not served, a tool that is not strict gets any object; a strict one is refused."""
    odd = {"type": "function", "function": {"name": "f", "parameters": {
        "type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}}}
    c = ask(hermes.client(), tools=[odd], tool_choice="required", max_tokens=200, temperature=0.3).choices[0]
    assert c.message.tool_calls[0].function.name == "f"
    odd["function"]["strict"] = True
    with pytest.raises(openai.BadRequestError, match="uniqueItems"):
        ask(hermes.client(), tools=[odd], tool_choice="required")


@pytest.mark.parametrize("says", ["pythonic", "qwen3-coder"])
def test_long_definitions_are_not_repeated(says, tmp_path):
    """In formats that write arguments one by one, each argument has its own schema, which may refer to all definitions."""
    template = write_template(tmp_path, SAYS[says])
    template.write_text(template.read_text().replace("{{ tools|tojson }}", "{{ tools[0].function.name }}"))
    n_properties, n_bytes = 300, 1 << 20
    tool = {"type": "function", "function": {"name": "f", "parameters": {
        "type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(n_properties)},
        "$defs": {"long": {"type": "string", "description": "x" * n_bytes}}}}}
    with Daemon("--chat-template", template) as d:
        body = {"messages": ASK, "tools": [tool], "tool_choice": "required", "max_tokens": 4}
        for _ in range(2):
            r = d.post("/v1/chat/completions", body)
            assert r.status_code == 200, r.text
        peak = int(re.search(r"VmHWM:\s+(\d+) kB", pathlib.Path(f"/proc/{d.process.pid}/status").read_text())[1]) << 10
        assert peak < (256 << 20) + 64 * n_bytes, f"{peak >> 20} MiB"


def test_history(hermes):
    """A complete turn: a call, its result by id, and an answer."""
    client = hermes.client()
    call = ask(client, tool_choice=NAMED, parallel_tool_calls=False).choices[0].message
    messages = ASK + [call.model_dump(), {"role": "tool", "tool_call_id": call.tool_calls[0].id, "content": "rain"}]
    assert messages[1]["content"] is None
    c = ask(client, messages=messages, max_tokens=8).choices[0]
    assert c.finish_reason in ("stop", "length") and c.message.content


def test_calls_or_content_of_a_schema(hermes):
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["dry", "wet"]}}}
    for seed in range(2):
        c = ask(hermes.client(), response_format=form, seed=seed).choices[0]
        if c.message.tool_calls:
            check_call(c.message.tool_calls[0])
        else:
            assert json.loads(c.message.content) in ("dry", "wet")


BAD = [
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name", "letters"),
    ({"tools": [{"type": "custom", "function": {"name": "a"}}]}, "tools[0].type", "'function'"),
    ({"tools": [TIME, TIME]}, "tools", "differ"),
    ({"tools": [{"function": {"name": "a", "parameters": []}}]}, "tools[0].function.parameters", "object"),
    ({"tools": [{"function": {"name": "a", "strict": 1}}]}, "tools[0].function.strict", "true or false"),
    ({"tools": [TIME], "tool_choice": "must"}, "tool_choice", "required"),
    ({"tools": [TIME], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice", "'g'"),
    ({"tools": [TIME], "tool_choice": {"type": "function"}}, "tool_choice.function.name", "required"),
    ({"tool_choice": "required"}, "tool_choice", "with 'tools'"),
    ({"tools": [TIME], "tool_choice": "required", "min_tokens": 3}, "min_tokens", "together"),
    ({"tools": [TIME], "tool_choice": "required", "ignore_eos": True}, "ignore_eos", "together"),
    ({"tools": [{"function": {"name": f"f{i}"}} for i in range(1025)]}, "tools", "at most"),
]


@pytest.mark.parametrize("fields,param,says", BAD)
def test_bad_tools(hermes, fields, param, says):
    r = hermes.post("/v1/chat/completions", {"messages": ASK, "max_tokens": 4, **fields})
    e = r.json()["error"]
    assert r.status_code == 400 and e["param"] == param and says in e["message"], e


def test_a_template_that_knows_no_tools(daemon):
    body = {"messages": ASK, "max_tokens": 4, "tools": [TIME]}
    e = daemon.post("/v1/chat/completions", body).json()["error"]
    assert e["param"] == "tools" and "--tool-format" in e["message"], e
    assert daemon.post("/v1/chat/completions", {**body, "tool_choice": "none"}).status_code == 200


# ---- reasoning ----

def test_reasoning_is_told_apart(thinker):
    """The prompt has the opening mark: everything is reasoning until the closing mark, which the grammar of a required call contains."""
    client = thinker.client()
    c = ask(client, tools=openai.NOT_GIVEN, max_tokens=12).choices[0]
    assert c.finish_reason == "length" and c.message.content is None
    assert c.message.reasoning_content and c.message.reasoning == c.message.reasoning_content
    form = {"structured_outputs": {"regex": "[a-z]{3}"}}
    for stream in (False, True):
        r = ask(client, tools=openai.NOT_GIVEN, max_tokens=60, extra_body=form, stream=stream, temperature=1.2, seed=8)
        got = Collected(r) if stream else r.choices[0]
        finish = got.finish if stream else got.finish_reason
        content = got.content if stream else got.message.content
        assert finish == "length" or (len(content) == 3 and content.islower()), got


def test_reasoning_that_is_not_wanted_is_left_out(thinker):
    """vLLM's include_reasoning; tokens of reasoning are counted in any case."""
    for stream in (False, True):
        got = ask(thinker.client(), tools=openai.NOT_GIVEN, max_tokens=12, stream=stream, extra_body={"include_reasoning": False})
        if stream:
            assert Collected(got).reasoning == ""
        else:
            assert "reasoning" not in str(got.choices[0].message.model_dump(exclude_none=True)) and got.usage.completion_tokens == 12


def test_a_structural_tag(client):
    """vLLM's: free text, and numbers between marks."""
    tag = {"type": "structural_tag", "format": {"type": "sequence", "elements": [
        {"type": "const_string", "value": "At "}, {"type": "tag", "begin": "<n>", "end": "</n>", "content": {
            "type": "json_schema", "json_schema": {"type": "integer", "minimum": 10, "maximum": 99}}}]}}
    for fields in ({"structured_outputs": {"structural_tag": tag}}, {"structured_outputs": {"structural_tag": json.dumps(tag)}},
                   {"response_format": tag}):
        c = client.chat.completions.create(model=MODEL_ID, messages=ASK, max_tokens=20, extra_body=fields).choices[0]
        assert c.message.content.startswith("At <n>") and c.message.content.endswith("</n>") and c.finish_reason == "stop"
    old = {"type": "structural_tag", "triggers": ["<n"], "structures": [
        {"begin": "<n>", "schema": {"type": "integer"}, "end": "</n>"}]}
    r = client.chat.completions.create(model=MODEL_ID, messages=ASK, max_tokens=20, extra_body={"response_format": old})
    assert r.choices[0].message.content
