"""Agents and command-line tools: smolagents, openai-agents, litellm, llm."""
import asyncio
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import harness
from common import ASK, MESSAGES, MODEL, TOOL, City, Weather, check, weather

# ---- smolagents ----


def smolagents_model(d, **kw):
    import smolagents
    return smolagents.OpenAIModel(model_id=MODEL, api_base=d.url + "/v1", api_key="none", max_tokens=80, **kw)


@check("smolagents", "a tool, asked as ToolCallingAgent asks")
def smolagents_calls_a_tool(d):
    import smolagents
    m = smolagents_model(d).generate([smolagents.ChatMessage(role="user", content=[{"type": "text", "text": ASK}])],
                                     tools_to_call_from=[smolagents.tool(weather)])
    assert m.tool_calls[0].function.name == "weather"


@check("smolagents", "ToolCallingAgent, two steps")
def smolagents_agent(d):
    """A small model does not end by itself, so the check counts steps and requires a tool call in each."""
    import smolagents
    agent = smolagents.ToolCallingAgent(tools=[smolagents.tool(weather)], model=smolagents_model(d, temperature=0.3), max_steps=2, verbosity_level=0)
    agent.run(ASK)
    steps = [s for s in agent.memory.steps if isinstance(s, smolagents.ActionStep) and s.step_number <= 2]
    assert steps and all(s.tool_calls for s in steps), [str(s.error) for s in steps]


# ---- openai-agents ----

def agents_run(d, responses, stream=False):
    import agents
    import openai
    client = openai.AsyncOpenAI(base_url=d.url + "/v1", api_key="none", max_retries=0)
    kind = agents.OpenAIResponsesModel if responses else agents.OpenAIChatCompletionsModel
    agent = agents.Agent(name="a", instructions="Be brief.", model=kind(MODEL, client), tools=[agents.function_tool(weather)],
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


@check("openai-agents", "chat, a tool")
def agents_chat(d):
    agents_run(d, False)


@check("openai-agents", "responses, a tool")
def agents_responses(d):
    agents_run(d, True)


@check("openai-agents", "chat, streamed")
def agents_chat_stream(d):
    agents_run(d, False, True)


@check("openai-agents", "responses, streamed")
def agents_responses_stream(d):
    agents_run(d, True, True)


@check("openai-agents", "output_type")
def agents_output_type(d):
    import agents
    import openai
    client = openai.AsyncOpenAI(base_url=d.url + "/v1", api_key="none", max_retries=0)
    agent = agents.Agent(name="a", model=agents.OpenAIResponsesModel(MODEL, client), output_type=Weather,
                         model_settings=agents.ModelSettings(max_tokens=80, temperature=0.3))
    assert isinstance(asyncio.run(agents.Runner.run(agent, ASK)).final_output, Weather)


# ---- litellm ----

def litellm_ask(d, provider="openai", **kw):
    import litellm
    litellm.suppress_debug_info = True
    return litellm.completion(**{"model": f"{provider}/{MODEL}", "api_base": d.url + "/v1", "api_key": "none", "messages": MESSAGES, "max_tokens": 80,
                                 "temperature": 0.3, "num_retries": 0, **kw})


@check("litellm", "openai/ and hosted_vllm/, whole and streamed")
def litellm_text(d):
    for provider in ("openai", "hosted_vllm"):
        assert litellm_ask(d, provider, max_tokens=8).choices[0].message.content
        assert "".join(c.choices[0].delta.content or "" for c in litellm_ask(d, provider, max_tokens=8, stream=True))


@check("litellm", "tools")
def litellm_tools(d):
    call = litellm_ask(d, tools=[TOOL], tool_choice="required", parallel_tool_calls=False).choices[0].message.tool_calls[0]
    assert json.loads(call.function.arguments)["city"] in ("Oslo", "Bergen")


@check("litellm", "response_format of a type, penalties")
def litellm_typed(d):
    r = litellm_ask(d, response_format=City, presence_penalty=0.1, frequency_penalty=0.1)
    assert City.model_validate_json(r.choices[0].message.content)


@check("litellm", "too long a prompt is ContextWindowExceededError")
def litellm_too_long(d):
    import litellm
    try:
        litellm_ask(d, messages=[{"role": "user", "content": "word " * 20000}])
    except litellm.ContextWindowExceededError:
        return
    raise AssertionError("it was not refused so")


@check("litellm", "responses")
def litellm_responses(d):
    import litellm
    r = litellm.responses(model="openai/" + MODEL, input=ASK, api_base=d.url + "/v1", api_key="none", max_output_tokens=8)
    assert r.output[-1].content[0].text


@check("litellm", "anthropic/ by /v1/messages")
def litellm_anthropic(d):
    r = litellm_ask(d, "anthropic", api_base=d.url, tools=[TOOL], tool_choice="required", parallel_tool_calls=False)
    assert json.loads(r.choices[0].message.tool_calls[0].function.arguments)["city"] in ("Oslo", "Bergen")


# ---- llm ----

def llm_run(d, *args):
    with tempfile.TemporaryDirectory() as home:
        (pathlib.Path(home) / "extra-openai-models.yaml").write_text(
            f"- model_id: small\n  model_name: {MODEL}\n  api_base: {d.url}/v1\n  supports_schema: true\n  supports_tools: true\n")
        program = pathlib.Path(sys.executable).parent / "llm"
        r = subprocess.run([program, "-m", "small", "-o", "max_tokens", "80", "-o", "temperature", "0.3", *args], capture_output=True, text=True, timeout=120,
                           env={**os.environ, "LLM_USER_PATH": home}, stdin=subprocess.DEVNULL)
        assert r.returncode == 0, r.stdout + r.stderr
        return r.stdout, r.stderr


@check("llm", "prompt, streamed and not, -s")
def llm_prompt(d):
    assert llm_run(d, ASK)[0].strip() and llm_run(d, "--no-stream", "-s", "Be brief.", ASK)[0].strip()


@check("llm", "--schema")
def llm_schema(d):
    schema = json.dumps(City.model_json_schema())
    assert City.model_validate_json(llm_run(d, "--schema", schema, ASK)[0])


# llm cannot require a call: it sends `tools` without `tool_choice`, and has no option for it. A small model does not call by itself,
# so this template shows it three calls of the tool, and then the tool's result.
CALLS = ("{% if tools and messages[-1].role != 'tool' %}{% for ask in ['What is your version?', 'Which version is it?', 'The version, please.'] %}"
         "<|im_start|>user\n{{ ask }}<|im_end|>\n<|im_start|>assistant\n"
         "<tool_call>{\"name\": \"{{ tools[0].function.name }}\", \"arguments\": {}}</tool_call><|im_end|>\n{% endfor %}{% endif %}"
         "{% for m in messages %}<|im_start|>{{ 'user' if m.role == 'tool' else m.role }}\n{{ 'Say: ' if m.role == 'tool' }}{{ m.content or '' }}"
         "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function|tojson }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
         "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


@check("llm", "-T: call, result, answer")
def llm_tool(d):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "template.jinja"
        path.write_text(CALLS, encoding="utf-8")
        with harness.Daemon("--chat-template", path) as caller:
            for how in ([], ["--no-stream"]):
                said, told = llm_run(caller, "-T", "llm_version", "--td", *how, "-o", "temperature", "0", "Which version do you have?")
                assert "Tool call: llm_version({})" in told and said.strip(), (said, told)
