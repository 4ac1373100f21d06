"""Libraries that need typed answers: LangChain, LlamaIndex, pydantic-ai, instructor, dspy."""
import asyncio

from common import ASK, MESSAGES, MODEL, City, Weather, check, weather

AGAIN = 'Say it again: {"city": "Oslo", "kind": "wet"}'
SHOWN = [{"role": "user", "content": AGAIN}, {"role": "assistant", "content": '{"city": "Oslo", "kind": "wet"}'}, {"role": "user", "content": AGAIN}]

# ---- LangChain ----


def langchain(d, **kw):
    from langchain_openai import ChatOpenAI
    return ChatOpenAI(**{"base_url": d.url + "/v1", "api_key": "none", "model": MODEL, "max_tokens": 80, "temperature": 0.3, **kw})


@check("langchain-openai", "invoke, stream, async, batch")
def langchain_text(d):
    model = langchain(d, max_tokens=8)
    assert model.invoke(ASK).content and "".join(c.content for c in model.stream(ASK))
    assert asyncio.run(model.ainvoke(ASK)).usage_metadata["output_tokens"] > 0 and len(model.batch([ASK, ASK])) == 2


@check("langchain-openai", "bind_tools: call, result, answer")
def langchain_bind_tools(d):
    from langchain_core.messages import HumanMessage, ToolMessage
    m = langchain(d).bind_tools([City], tool_choice="City", parallel_tool_calls=False).invoke(ASK)
    call, = m.tool_calls
    assert call["args"]["city"] in ("Oslo", "Bergen")
    assert langchain(d).invoke([HumanMessage(ASK), m, ToolMessage("rain", tool_call_id=call["id"])]).content


@check("langchain-openai", "bind_tools, streamed")
def langchain_stream_of_calls(d):
    model, whole = langchain(d).bind_tools([City], tool_choice="any", parallel_tool_calls=False), None
    for chunk in model.stream(ASK):
        whole = chunk if whole is None else whole + chunk
    assert whole.tool_calls[0]["args"]["city"] in ("Oslo", "Bergen")


def structured(d, method, ask=ASK, **kw):
    return langchain(d, **kw).with_structured_output(Weather, method=method).invoke(ask)


@check("langchain-openai", "with_structured_output, json_schema")
def langchain_json_schema(d):
    assert isinstance(structured(d, "json_schema"), Weather)


@check("langchain-openai", "with_structured_output, function_calling")
def langchain_function_calling(d):
    assert isinstance(structured(d, "function_calling"), Weather)


@check("langchain-openai", "with_structured_output, json_mode")
def langchain_json_mode(d):
    """The mode guarantees JSON but not the type, so the prompt shows the model an answer to repeat."""
    assert isinstance(structured(d, "json_mode", SHOWN, temperature=0), Weather)


@check("langchain-openai", "responses")
def langchain_responses(d):
    m = langchain(d, use_responses_api=True).invoke(ASK)
    assert m.text and m.usage_metadata["output_tokens"] > 0


# ---- LlamaIndex ----

def llama_index(d):
    from llama_index.llms.openai_like import OpenAILike
    return OpenAILike(model=MODEL, api_base=d.url + "/v1", api_key="none", is_chat_model=True, is_function_calling_model=True, max_tokens=80,
                      temperature=0.3, should_use_structured_outputs=True)


@check("llama-index-llms-openai-like", "complete, chat, streams")
def llama_index_text(d):
    from llama_index.core.llms import ChatMessage
    model = llama_index(d)
    ask = [ChatMessage(role="user", content=ASK)]
    assert model.complete(ASK).text and model.chat(ask).message.content
    assert list(model.stream_complete(ASK))[-1].text and list(model.stream_chat(ask))[-1].message.content


@check("llama-index-llms-openai-like", "as_structured_llm")
def llama_index_structured(d):
    assert isinstance(llama_index(d).as_structured_llm(Weather).complete(ASK).raw, Weather)


@check("llama-index-llms-openai-like", "structured_predict with a tool")
def llama_index_predict(d):
    from llama_index.core.prompts import PromptTemplate
    model = llama_index(d)
    model.should_use_structured_outputs = False
    got = model.structured_predict(Weather, PromptTemplate("{q}"), q=ASK, llm_kwargs={"tool_required": True, "allow_parallel_tool_calls": False})
    assert isinstance(got, Weather)


@check("llama-index-llms-openai-like", "chat_with_tools")
def llama_index_tools(d):
    from llama_index.core.tools import FunctionTool
    model = llama_index(d)
    r = model.chat_with_tools([FunctionTool.from_defaults(weather)], user_msg=ASK, tool_required=True, allow_parallel_tool_calls=False)
    assert model.get_tool_calls_from_response(r)[0].tool_kwargs["city"] in ("Oslo", "Bergen")


# ---- pydantic-ai ----

def pydantic_ai_agent(d, responses=False, **kw):
    import pydantic_ai
    from pydantic_ai.models import openai as models
    from pydantic_ai.providers.openai import OpenAIProvider
    kind = models.OpenAIResponsesModel if responses else models.OpenAIChatModel
    model = kind(MODEL, provider=OpenAIProvider(base_url=d.url + "/v1", api_key="none"))
    return pydantic_ai.Agent(model, model_settings={"max_tokens": 80, "temperature": 0.3, "parallel_tool_calls": False}, **kw)


@check("pydantic-ai-slim", "text")
def pydantic_ai_text(d):
    assert pydantic_ai_agent(d, instructions="Be brief.").run_sync(ASK).output


@check("pydantic-ai-slim", "output_type by a tool")
def pydantic_ai_tool_output(d):
    assert isinstance(pydantic_ai_agent(d, output_type=Weather).run_sync(ASK).output, Weather)


@check("pydantic-ai-slim", "NativeOutput")
def pydantic_ai_native_output(d):
    from pydantic_ai import NativeOutput
    assert isinstance(pydantic_ai_agent(d, output_type=NativeOutput(Weather)).run_sync(ASK).output, Weather)


@check("pydantic-ai-slim", "PromptedOutput")
def pydantic_ai_prompted_output(d):
    """It asks for JSON and puts the schema only into the prompt, so the prompt shows the model an answer to repeat."""
    from pydantic_ai import PromptedOutput, messages
    history = [messages.ModelRequest(parts=[messages.UserPromptPart(AGAIN)]), messages.ModelResponse(parts=[messages.TextPart(SHOWN[1]["content"])])]
    agent = pydantic_ai_agent(d, output_type=PromptedOutput(Weather, template="Answer in JSON."))
    assert isinstance(agent.run_sync(AGAIN, message_history=history, model_settings={"temperature": 0}).output, Weather)


@check("pydantic-ai-slim", "responses, output_type")
def pydantic_ai_responses(d):
    assert isinstance(pydantic_ai_agent(d, responses=True, output_type=Weather).run_sync(ASK).output, Weather)


@check("pydantic-ai-slim", "streamed output_type")
def pydantic_ai_stream(d):
    async def run():
        async with pydantic_ai_agent(d, output_type=Weather).run_stream(ASK) as r:
            return await r.get_output()
    assert isinstance(asyncio.run(run()), Weather)


# ---- instructor ----

def instructor_mode(d, mode, ask=MESSAGES, **kw):
    import instructor
    client = instructor.from_openai(d.client(), mode=getattr(instructor.Mode, mode))
    w = client.chat.completions.create(model=MODEL, messages=ask, **{"max_tokens": 80, "temperature": 0.3, **kw}, response_model=Weather, max_retries=0)
    assert isinstance(w, Weather)


@check("instructor", "TOOLS")
def instructor_tools(d):
    instructor_mode(d, "TOOLS")


@check("instructor", "TOOLS_STRICT")
def instructor_tools_strict(d):
    instructor_mode(d, "TOOLS_STRICT")


@check("instructor", "JSON_SCHEMA")
def instructor_json_schema(d):
    instructor_mode(d, "JSON_SCHEMA")


@check("instructor", "JSON")
def instructor_json(d):
    """The type is in the prompt only."""
    instructor_mode(d, "JSON", SHOWN, temperature=0)


@check("instructor", "RESPONSES_TOOLS")
def instructor_responses(d):
    instructor_mode(d, "RESPONSES_TOOLS", max_tokens=80)


# ---- dspy ----

def dspy_model(d, **kw):
    import dspy
    return dspy.LM("openai/" + MODEL, api_base=d.url + "/v1", api_key="none", max_tokens=120, cache=False, num_retries=0, **kw)


@check("dspy", "LM")
def dspy_lm(d):
    assert dspy_model(d)(ASK)[0]


@check("dspy", "Predict with a type, JSONAdapter")
def dspy_predict(d):
    import dspy
    from typing import Literal

    class Question(dspy.Signature):
        """The weather."""
        question: str = dspy.InputField()
        kind: Literal["dry", "wet"] = dspy.OutputField()
    with dspy.context(lm=dspy_model(d, temperature=0.3), adapter=dspy.JSONAdapter()):
        assert dspy.Predict(Question)(question=ASK).kind in ("dry", "wet")
