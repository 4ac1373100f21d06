#!/usr/bin/env python3
"""Writes tools.json: transformers' text for requests with tools, calls and reasoning, for tests/e2e/test_tools.py. Needs transformers (5.23, no
torch). A request is as a client sends it: arguments of calls are text. They are parsed here before transformers gets them, as its
documentation requires."""
import json
import pathlib

from transformers.utils.chat_template_utils import render_jinja_template

from conversations import BARE, CHATS

HERE = pathlib.Path(__file__).resolve().parent
DATE = "24 Nov 2026"  # the same whenever they are made and compared
STYLES = ("chatml", "headers_tools", "hermes_functions", "think_tools", "strict_tool_ids")
SPECIALS = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}  # the test model's
NUMBERS = {"type": "function", "function": {"name": "scale", "description": "keeps 1.0", "parameters": {
    "type": "object", "properties": {"x": {"type": "number", "default": 1.0, "minimum": 0.0, "maximum": 1e2}}}}}
MORE = [
    ("number_forms", [{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": [
        {"id": "abcdefgh1", "type": "function", "function": {"name": "scale", "arguments": {"x": 1.0, "n": 1, "e": 2.5e-7}}}]},
        {"role": "tool", "content": "2.0", "tool_call_id": "abcdefgh1", "name": "scale"}], {"tools": [NUMBERS]}),
    ("reasoning_name", [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "reasoning": "why"},
                        {"role": "user", "content": "r"}], {}),
    ("thinking_name", [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "thinking": "why"}], {}),
]


def combined():
    """Combines all styles into one template, because a daemon has only one."""
    parts = []
    for i, style in enumerate(STYLES):
        source = (HERE / "templates" / (style + ".jinja")).read_text(encoding="utf-8")
        parts.append("{%% %s style == '%s' -%%}\n%s" % ("elif" if i else "if", style, source))
    return "".join(parts) + "{%- endif %}"


def as_sent(messages):
    """Returns calls with arguments as text, as OpenAI's clients send them."""
    messages = json.loads(json.dumps(messages))
    for call in (c for m in messages for c in m.get("tool_calls") or []):
        if "arguments" in call["function"] and not isinstance(call["function"]["arguments"], str):
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
    return messages


def as_transformers_is_given(messages):
    for m in messages:
        m["content"] = "" if m.get("content") is None else m["content"]
        if not m.get("tool_calls"):
            m.pop("tool_calls", None)
        for call in m.get("tool_calls") or []:
            if isinstance(call["function"].get("arguments"), str):
                call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return messages


def main():
    source, cases = combined(), []
    for name, messages, extra in CHATS + MORE:
        tools = extra.get("tools")
        about = name.startswith(("tool", "number", "reasoning", "thinking_name", "developer"))
        if not about or (tools and BARE in tools) or not all(isinstance(m.get("content"), (str, type(None))) for m in messages):
            continue
        for style in STYLES:
            body = {"messages": as_sent(messages), "chat_template_kwargs": {"style": style, "date_string": DATE}}
            if tools is not None:
                body["tools"] = tools
            if any(m["role"] == "developer" for m in messages):
                continue  # these templates do not support the role, so it becomes system, which transformers does not do by itself
            try:
                given = as_transformers_is_given(as_sent(messages))
                text = render_jinja_template([given], tools=tools, chat_template=source, add_generation_prompt=True,
                                             style=style, date_string=DATE, **SPECIALS)[0][0]
                cases.append({"name": name, "body": body, "text": text})
            except Exception as e:  # a refusal; the template's own are told word for word
                cases.append({"name": name, "body": body, "error": str(e) if type(e).__name__ == "TemplateError" else None})
    lines = ",\n".join(json.dumps(c, ensure_ascii=False, separators=(",", ":")) for c in cases)
    (HERE / "tools.json").write_text('{"template":%s,\n"cases":[\n%s\n]}\n' % (json.dumps(source), lines), encoding="utf-8")
    print(len(cases), "cases,", sum("error" in c for c in cases), "refusals")


if __name__ == "__main__":
    main()
