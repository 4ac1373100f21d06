#!/usr/bin/env python3
"""Other people's clients, unchanged, with tools and typed answers: a line a check, works or fails. A daemon with a small real
model is started; what is demanded of it is held by grammars, so each answer has the form that the client wants.

    clients.py DAEMON

scripts/clients runs it in an environment for each set of clients that go together. A client that is not installed is left
out. Exit code 1 where a check fails."""
import asyncio
import os
import pathlib
import sys
import tempfile
import traceback
from typing import Literal

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "e2e"))
os.environ["OPENAI_API_KEY"] = "none"
os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"
import harness  # noqa: E402
from pydantic import BaseModel, ConfigDict  # noqa: E402

# A template that shows tools, calls and results; calls as Hermes writes them.
TEMPLATE = ("{% if tools %}<|im_start|>system\nTools: {{ tools|tojson }} <tool_call></tool_call><|im_end|>\n{% endif %}"
            "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}{% for c in m.tool_calls or [] %}<tool_call>"
            "{{ c.function|tojson }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
ASK = "How is the weather in Oslo?"
CHECKS = []


class Weather(BaseModel):
    """The weather of a city. No other members, or a small model goes on with them until it is cut."""
    model_config = ConfigDict(extra="forbid")
    city: Literal["Oslo", "Bergen"]
    kind: Literal["dry", "wet"]


class City(BaseModel):
    """The weather of a city."""
    model_config = ConfigDict(extra="forbid")
    city: Literal["Oslo", "Bergen"]


def check(f):
    CHECKS.append(f)
    return f


def weather(city: Literal["Oslo", "Bergen"]) -> str:
    """Weather of a city.

    Args:
        city: the city
    """
    return f"rain in {city}"


# ---- openai ----

@check
def openai_parse(d):
    r = d.client().chat.completions.parse(model=harness.MODEL_ID, messages=[{"role": "user", "content": ASK}], max_tokens=60,
                                          response_format=Weather)
    assert isinstance(r.choices[0].message.parsed, Weather)


@check
def openai_pydantic_function_tool(d):
    import openai
    tool = openai.pydantic_function_tool(Weather)
    r = d.client().chat.completions.parse(model=harness.MODEL_ID, messages=[{"role": "user", "content": ASK}], max_tokens=80,
                                          tools=[tool], tool_choice="required", parallel_tool_calls=False)
    assert isinstance(r.choices[0].message.tool_calls[0].function.parsed_arguments, Weather)


# ---- LangChain ----

def langchain(d, **kw):
    from langchain_openai import ChatOpenAI
    return ChatOpenAI(base_url=d.url + "/v1", api_key="none", model=harness.MODEL_ID, max_tokens=80, temperature=0.3, **kw)


@check
def langchain_bind_tools(d):
    from langchain_core.messages import HumanMessage, ToolMessage
    model = langchain(d).bind_tools([City], tool_choice="City", parallel_tool_calls=False)
    m = model.invoke(ASK)
    call, = m.tool_calls
    assert call["args"]["city"] in ("Oslo", "Bergen")
    assert langchain(d).invoke([HumanMessage(ASK), m, ToolMessage("rain", tool_call_id=call["id"])]).content


@check
def langchain_stream_of_calls(d):
    model, whole = langchain(d).bind_tools([City], tool_choice="any", parallel_tool_calls=False), None
    for chunk in model.stream(ASK):
        whole = chunk if whole is None else whole + chunk
    assert whole.tool_calls[0]["args"]["city"] in ("Oslo", "Bergen")


@check
def langchain_with_structured_output(d):
    for method in ("json_schema", "function_calling"):
        assert isinstance(langchain(d).with_structured_output(Weather, method=method).invoke(ASK), Weather), method


@check
def langchain_responses(d):
    m = langchain(d, use_responses_api=True).invoke(ASK)
    assert m.text and m.usage_metadata["output_tokens"] > 0


# ---- pydantic-ai ----

def pydantic_ai_agent(d, responses=False, **kw):
    import pydantic_ai
    from pydantic_ai.models import openai as models
    from pydantic_ai.providers.openai import OpenAIProvider
    kind = models.OpenAIResponsesModel if responses else models.OpenAIChatModel
    model = kind(harness.MODEL_ID, provider=OpenAIProvider(base_url=d.url + "/v1", api_key="none"))
    return pydantic_ai.Agent(model, model_settings={"max_tokens": 80, "temperature": 0.3, "parallel_tool_calls": False}, **kw)


@check
def pydantic_ai_tool_output(d):
    assert isinstance(pydantic_ai_agent(d, output_type=Weather).run_sync(ASK).output, Weather)


@check
def pydantic_ai_native_output(d):
    from pydantic_ai import NativeOutput
    assert isinstance(pydantic_ai_agent(d, output_type=NativeOutput(Weather)).run_sync(ASK).output, Weather)


@check
def pydantic_ai_responses(d):
    assert isinstance(pydantic_ai_agent(d, responses=True, output_type=Weather).run_sync(ASK).output, Weather)


@check
def pydantic_ai_stream(d):
    async def run():
        async with pydantic_ai_agent(d, output_type=Weather).run_stream(ASK) as r:
            return await r.get_output()
    assert isinstance(asyncio.run(run()), Weather)


# ---- instructor ----

def instructor_mode(d, mode):
    import instructor
    client = instructor.from_openai(d.client(), mode=getattr(instructor.Mode, mode))
    w = client.chat.completions.create(model=harness.MODEL_ID, messages=[{"role": "user", "content": ASK}], max_tokens=80,
                                       response_model=Weather, max_retries=0)
    assert isinstance(w, Weather)


@check
def instructor_tools(d):
    instructor_mode(d, "TOOLS")


@check
def instructor_tools_strict(d):
    instructor_mode(d, "TOOLS_STRICT")


@check
def instructor_json_schema(d):
    instructor_mode(d, "JSON_SCHEMA")


# ---- smolagents ----

@check
def smolagents_calls_a_tool(d):
    """The model is asked as ToolCallingAgent asks it."""
    import smolagents
    model = smolagents.OpenAIModel(model_id=harness.MODEL_ID, api_base=d.url + "/v1", api_key="none", max_tokens=80)
    m = model.generate([smolagents.ChatMessage(role="user", content=[{"type": "text", "text": ASK}])],
                       tools_to_call_from=[smolagents.tool(weather)])
    assert m.tool_calls[0].function.name == "weather"


# ---- openai-agents ----

def agents_run(d, responses, stream=False):
    import agents
    import openai
    client = openai.AsyncOpenAI(base_url=d.url + "/v1", api_key="none", max_retries=0)
    kind = agents.OpenAIResponsesModel if responses else agents.OpenAIChatCompletionsModel
    agent = agents.Agent(name="a", instructions="Be brief.", model=kind(harness.MODEL_ID, client), tools=[agents.function_tool(weather)],
                         model_settings=agents.ModelSettings(tool_choice="required", max_tokens=80, parallel_tool_calls=False),
                         tool_use_behavior="stop_on_first_tool")

    async def run():
        if not stream:
            return (await agents.Runner.run(agent, ASK)).final_output
        r = agents.Runner.run_streamed(agent, ASK)
        async for _ in r.stream_events():
            pass
        return r.final_output
    assert asyncio.run(run()) in ("rain in Oslo", "rain in Bergen")


@check
def agents_chat(d):
    agents_run(d, False)


@check
def agents_responses(d):
    agents_run(d, True)


@check
def agents_responses_stream(d):
    agents_run(d, True, True)


@check
def agents_chat_stream(d):
    agents_run(d, False, True)


# ---- anthropic ----

@check
def anthropic_messages_with_a_tool(d):
    import anthropic
    client = anthropic.Anthropic(base_url=d.url, api_key="none", max_retries=0)
    tool = {"name": "weather", "input_schema": {"type": "object", "required": ["city"], "additionalProperties": False,
                                                "properties": {"city": {"enum": ["Oslo", "Bergen"]}}}}
    with client.messages.stream(model=harness.MODEL_ID, max_tokens=80, messages=[{"role": "user", "content": ASK}], tools=[tool],
                                tool_choice={"type": "any", "disable_parallel_tool_use": True}) as s:
        m = s.get_final_message()
    assert m.stop_reason == "tool_use" and m.content[-1].input["city"] in ("Oslo", "Bergen")


def main():
    harness.DAEMON = sys.argv[1]
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "template.jinja"
        path.write_text(TEMPLATE, encoding="utf-8")
        with harness.Daemon("--chat-template", path) as d:
            for f in CHECKS:
                try:
                    f(d)
                    results[f.__name__] = "works"
                except ModuleNotFoundError as e:
                    results[f.__name__] = f"left out: no {e.name}"
                    continue
                except Exception as e:
                    results[f.__name__] = "FAILS"
                    traceback.print_exc()
                    print(f"{f.__name__}: {e}", file=sys.stderr)
                print(f"  {f.__name__:36} {results[f.__name__]}", flush=True)
    return 1 if "FAILS" in results.values() else 0


if __name__ == "__main__":
    sys.exit(main())
