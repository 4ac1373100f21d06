"""The conversations that templates render: {"name", "trusted", "input"}."""

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather at a place, \"now\" or later",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "City & country, e.g. Zürich"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": None},
                "days": {"type": ["integer", "null"], "minimum": 1, "maximum": 14},
                "where": {
                    "type": "object",
                    "properties": {
                        "lat": {"type": "number"},
                        "points": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
                    },
                    "additionalProperties": False,
                },
            },
            "required": ["city"],
        },
        "return": {"type": "string"},
    },
}
SEARCH = {"type": "function", "function": {"name": "search", "description": "", "parameters": {
    "type": "object", "properties": {"q": {"type": "string", "description": "a\nb"}}, "required": ["q"]}}}
BARE = {"name": "plain", "description": "no wrapper", "parameters": {"type": "object", "properties": {}}}
EMPTY = {"type": "function", "function": {"name": "noop", "description": "nothing", "parameters": {}}}


def call(name, arguments, id="call12345"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


S = lambda c: {"role": "system", "content": c}
U = lambda c: {"role": "user", "content": c}
A = lambda c, **k: {"role": "assistant", "content": c, **k}
T = lambda c, **k: {"role": "tool", "content": c, **k}

CHATS = [
    ("user", [U("Hello there")], {}),
    ("system", [S("Be brief."), U("Hi")], {}),
    ("turns", [U("one"), A("two"), U("three")], {}),
    ("turns_system", [S("  sys  "), U("one"), A("two"), U("three"), A("four"), U("five")], {}),
    ("ends_with_assistant", [U("q"), A("a partial")], {}),
    ("no_prompt", [U("q"), A("a")], {"add_generation_prompt": False}),
    ("unicode", [S("Ünï © 日本"), U("smile 😀 combining é"), A("Ω≈ç√"), U("\u2028line sep\u00a0nbsp")], {}),
    ("empty", [U("")], {}),
    ("empty_system", [S(""), U("x")], {}),
    ("null_content", [U("q"), A(None), U("more")], {}),
    ("null_user", [{"role": "user", "content": None}], {}),
    ("parts", [U([{"type": "text", "text": "part one"}, {"type": "text", "text": "part two"}])], {}),
    ("image", [U([{"type": "image"}, {"type": "text", "text": "what is it?"}])], {}),
    ("image_url", [U([{"type": "image_url", "image_url": {"url": "data:,x"}}, {"type": "text", "text": "see"}])], {}),
    ("alternation", [U("a"), U("b")], {}),
    ("assistant_first", [A("I begin"), U("ok")], {}),
    ("system_late", [U("a"), S("late"), U("b")], {}),
    ("odd_role", [{"role": "critic", "content": "no"}, U("x")], {}),
    ("developer", [{"role": "developer", "content": "rules"}, U("x")], {}),
    ("no_role", [{"content": "who am I"}], {}),
    ("no_content", [{"role": "user"}], {}),
    ("no_messages", [], {}),
    ("look_alikes", [S("<|im_start|>system"), U("<|im_end|>\n<|im_start|>assistant\n[INST] <s> {{ x }} {% if %}"),
                     A("<|eot_id|></s>[/INST]"), U("<tool_call>{}</tool_call>")], {}),
    ("newlines", [S("\n\nlead"), U("tail  \n\n"), A("\n  both \t\n"), U("a\r\nb")], {}),
    ("reasoning", [U("q"), A("<think>\nlong thought\n</think>\n\nanswer"), U("again"), A("plain"), U("last")], {}),
    ("reasoning_field", [U("q"), A("answer", reasoning_content="field thought"), U("next")], {}),
    ("thinking_off", [U("q")], {"enable_thinking": False}),
    ("thinking_on", [S("s"), U("q")], {"enable_thinking": True}),
    ("tools", [U("weather?")], {"tools": [WEATHER, SEARCH]}),
    ("tools_system", [S("You have tools."), U("weather?")], {"tools": [WEATHER]}),
    ("tools_bare", [U("x")], {"tools": [BARE]}),
    ("tools_empty_list", [U("x")], {"tools": []}),
    ("tools_noop", [U("x")], {"tools": [EMPTY]}),
    ("tool_call", [U("weather in Paris?"),
                   A("", tool_calls=[call("get_weather", {"city": "Paris", "days": 3, "deep": {"a": [1, 2.5, None, True]}})]),
                   T("{\"t\": 21}", name="get_weather", tool_call_id="call12345"), U("thanks")],
     {"tools": [WEATHER]}),
    ("tool_call_last", [U("weather?"), A(None, tool_calls=[call("search", {"q": "naïve \"q\""})]),
                        T("r1", name="search", tool_call_id="call12345")], {"tools": [SEARCH]}),
    ("tool_calls_two", [U("both"), A("let me see", tool_calls=[call("search", {"q": "a"}, "aaaaaaaa1"),
                                                               call("search", {"q": "b"}, "aaaaaaaa2")]),
                        T("ra", name="search", tool_call_id="aaaaaaaa1"), T("rb", name="search", tool_call_id="aaaaaaaa2"),
                        A("done"), U("ok")], {"tools": [SEARCH]}),
    ("tool_call_string_arguments", [U("x"), A("", tool_calls=[call("search", "{\"q\": \"str\"}")]), T("r")],
     {"tools": [SEARCH]}),
    ("tool_call_short_id", [U("x"), A("", tool_calls=[call("search", {}, "x")]), T("r", tool_call_id="x")], {}),
    ("tool_call_no_id", [U("x"), A("", tool_calls=[{"type": "function", "function": {"name": "f", "arguments": {}}}]),
                         T("r")], {"tools": [SEARCH]}),
    ("tool_result_json", [U("x"), A("", tool_calls=[call("search", {"q": 1})]), T({"k": [1, {"z": None}]}), U("y")],
     {"tools": [SEARCH]}),
    ("tool_result_parts", [U("x"), A(None, tool_calls=[call("search", {"q": 1})]),
                           T([{"type": "text", "text": "p1"}, {"type": "text", "text": "p2"}])], {}),
    ("tool_calls_empty", [U("x"), A("y", tool_calls=[]), U("z")], {}),
    ("builtin_tools", [S("s"), U("x")], {"builtin_tools": ["code_interpreter", "brave_search"]}),
    ("custom_tools", [U("x")], {"custom_tools": [WEATHER], "tools_in_user_message": False}),
    ("date_string", [U("x")], {"date_string": "01 Feb 2025"}),
    ("documents", [U("x")], {"documents": [{"title": "T1", "text": "body"}, {"title": "T2", "text": "b2"}]}),
    ("numbers", [U("x")], {"tools": [{"type": "function", "function": {"name": "n", "description": "d", "parameters": {
        "type": "object", "properties": {"a": {"type": "integer", "default": -7, "maximum": 9007199254740993},
                                         "b": {"type": "number", "default": 1e-07, "minimum": 12345678.9}}}}}]}),
    ("long", [m for i in range(20) for m in (U(f"question {i}"), A(f"answer {i}"))] + [U("end")], {}),
    ("extra_fields", [U("x") | {"name": "bob", "weight": 0, "flags": [True, False]}], {"custom": {"a": 1}}),
    ("string_message_list", [U("q"), A("r", prefix=True)], {"reasoning_effort": "high"}),
]

TRUSTED = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


def conversations():
    for name, messages, extra in CHATS:
        extra = {"add_generation_prompt": True, **extra}
        trusted = {**TRUSTED, "add_generation_prompt": extra.pop("add_generation_prompt")}
        yield {"name": name, "trusted": trusted, "input": {"messages": messages, **extra}}
