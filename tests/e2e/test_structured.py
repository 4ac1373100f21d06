"""Structured output: response_format, structured_outputs and guided_*, through the openai client."""
import json
import re
from typing import Literal

import pytest
from harness import MODEL_ID, Daemon
from pydantic import BaseModel, Field

ASK = [{"role": "user", "content": "Tell me about the city of Oslo."}]


class Tag(BaseModel):
    word: Literal["coast", "hills"]


class City(BaseModel):
    """A schema as .parse() sends it: $defs, $ref, strict; bounded, so that the answer ends."""
    name: str = Field(max_length=6)
    people: int = Field(ge=1, le=9999999)
    tags: list[Tag] = Field(max_length=1)
    capital: bool


SCHEMA = {"type": "object", "additionalProperties": False, "required": ["name", "size", "kind"],
          "properties": {"name": {"type": "string", "maxLength": 6}, "size": {"type": "integer", "minimum": 1, "maximum": 99},
                         "kind": {"enum": ["city", "town"]}}}


def chat(client, **fields):
    extra = fields.pop("extra", {})
    kw = {"model": MODEL_ID, "messages": ASK, "max_tokens": 90, "temperature": 1, "seed": 5, **fields}
    return client.chat.completions.create(extra_body=extra, **kw)


def is_of_schema(text):
    v = json.loads(text)
    return (list(v) == ["name", "size", "kind"] and len(v["name"]) <= 6 and 1 <= v["size"] <= 99 and v["kind"] in ("city", "town"))


def json_schema(schema, **more):
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, **more}}


@pytest.mark.share
def test_parse(client):
    r = client.chat.completions.parse(model=MODEL_ID, messages=ASK, response_format=City, max_tokens=90, temperature=0.3, seed=1)
    assert r.choices[0].finish_reason == "stop" and isinstance(r.choices[0].message.parsed, City)


@pytest.mark.share
def test_each_choice_is_of_the_schema(client):
    r = chat(client, n=3, temperature=1.5, response_format=json_schema(SCHEMA, strict=True))
    assert [c.finish_reason for c in r.choices] == ["stop"] * 3
    assert all(is_of_schema(c.message.content) for c in r.choices)
    assert len({c.message.content for c in r.choices}) > 1


def test_stream_and_whole_agree(client):
    form = json_schema(SCHEMA)
    whole = chat(client, response_format=form).choices[0].message.content
    parts = [c.choices[0].delta.content or "" for c in chat(client, response_format=form, stream=True) if c.choices]
    assert "".join(parts) == whole and is_of_schema(whole)


def test_any_object(client):
    c = chat(client, response_format={"type": "json_object"}, temperature=0.5, max_tokens=20).choices[0]
    assert c.message.content.startswith("{")
    if c.finish_reason == "stop":
        assert isinstance(json.loads(c.message.content), dict)


WAYS = [
    ("json", SCHEMA, is_of_schema),
    ("json", json.dumps(SCHEMA), is_of_schema),
    ("regex", r"[A-Z][a-z]{2,5}-\d{3}", lambda t: re.fullmatch(r"[A-Z][a-z]{2,5}-\d{3}", t)),
    ("choice", ["Norway", "Sweden", "Norwegian fjords"], lambda t: t in ("Norway", "Sweden", "Norwegian fjords")),
    ("grammar", 'root ::= "yes" | "no" " "? [a-c]{2}', lambda t: re.fullmatch(r"yes|no ?[a-c]{2}", t)),
]


@pytest.mark.parametrize("way,value,fits,first", [(*w, i) for k, w in enumerate(WAYS) for i in (0, 1) if k > 1 or i == k])
def test_vllms_ways(client, way, value, fits, first):
    """Each field on each route; a schema is an object on one, and text on the other."""
    forms = [{"structured_outputs": {way: value}}, {f"guided_{way}": value}]
    c = chat(client, extra=forms[first]).choices[0]
    assert c.finish_reason == "stop" and fits(c.message.content)
    t = client.completions.create(model=MODEL_ID, prompt="Oslo is", max_tokens=90, temperature=1, seed=2, extra_body=forms[1 - first]).choices[0]
    assert t.finish_reason == "stop" and fits(t.text)


def test_values_that_mean_off(client):
    for extra in ({"guided_regex": ""}, {"guided_choice": []}, {"guided_json": None}, {"structured_outputs": {"json_object": False}},
                  {"structured_outputs": {"choice": None}}):
        assert chat(client, extra=extra, max_tokens=4).choices[0].finish_reason == "length"


BAD = [
    ({"response_format": json_schema({"type": "array", "uniqueItems": True})}, "response_format", "'uniqueItems' at '/'"),
    ({"response_format": json_schema({"properties": {"a": {"$ref": "#/nowhere"}}})}, "response_format", "'$ref' at '/properties/a'"),
    ({"response_format": json_schema({"type": "stringy"})}, "response_format", "'type'"),
    ({"response_format": json_schema({"allOf": [{"type": "string"}, {"type": "null"}]})}, "response_format", "no text fits"),
    ({"response_format": json_schema({"not": {"multipleOf": 0.5}})}, "response_format", "'not' at '/'"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "schema"),
    ({"response_format": {"type": "json_object", "json_schema": {}}}, "response_format.json_schema", "only"),
    ({"response_format": {"type": "structural_tag"}}, "response_format", "'format'"),
    ({"response_format": {"type": "xml"}}, "response_format", "types"),
    ({"guided_regex": "(?=a)b"}, "guided_regex", "look-around"),
    ({"guided_regex": "(a"}, "guided_regex", "')'"),
    ({"guided_grammar": "root ::= root \"a\" | \"b\""}, "guided_grammar", "begins with itself"),
    ({"guided_grammar": "root ::= other"}, "guided_grammar", "'other'"),
    ({"guided_json": "{"}, "guided_json", "JSON"),
    ({"guided_choice": ["a", 1]}, "guided_choice", "strings"),
    ({"guided_choice": ["a"], "guided_regex": "b"}, "guided_choice", "together"),
    ({"structured_outputs": {"regx": "a"}}, "structured_outputs.regx", "'regex'"),
    ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag", "JSON"),
    ({"guided_choice": ["a"], "min_tokens": 3}, "min_tokens", "together"),
    ({"guided_choice": ["a"], "ignore_eos": True}, "ignore_eos", "together"),
]


@pytest.mark.parametrize("fields,param,says", BAD)
def test_what_cannot_be_done_is_named(daemon, fields, param, says):
    r = daemon.post("/v1/chat/completions", {"messages": ASK, "max_tokens": 4, **fields})
    e = r.json()["error"]
    assert r.status_code == 400 and e["param"] == param and says in e["message"], e


def test_a_grammar_that_takes_too_much_ends_with_an_error(daemon):
    """It never looks like a complete answer, and the daemon continues."""
    rules = " | ".join(f'"{chr(97 + i % 26)}" root "{i}"' for i in range(10000))
    body = {"prompt": "Oslo is", "max_tokens": 200, "temperature": 1, "seed": 2, "guided_grammar": f'root ::= "Z" | {rules}'}
    r = daemon.post("/v1/completions", body)
    assert r.status_code == 400 and r.json()["error"]["code"] == "grammar_stuck" and r.json()["error"]["param"] == "guided_grammar"
    text = daemon.post("/v1/completions", {**body, "stream": True}).text
    assert '"code":"grammar_stuck"' in text and '"finish_reason":"stop"' not in text and "[DONE]" not in text


def test_prefix_hits_and_log_probabilities(client):
    long = [{"role": "user", "content": "Oslo and its people. " * 6}]
    for _ in range(2):
        r = chat(client, messages=long, response_format=json_schema(SCHEMA), logprobs=True)
        assert is_of_schema(r.choices[0].message.content)
        assert "".join(t.token for t in r.choices[0].logprobs.content) == r.choices[0].message.content
    assert r.usage.prompt_tokens_details.cached_tokens > 0


def test_preempted_requests_stay_in_their_grammar():
    """So few pages that requests are preempted and computed again."""
    with Daemon("--queue-requests", "16", kv_bytes=8 << 20) as d:
        long = [{"role": "user", "content": "Oslo and its people. " * 6}]
        schema = {"type": "array", "items": SCHEMA, "minItems": 1, "maxItems": 2}
        r = chat(d.client(), messages=long, n=4, response_format=json_schema(schema), max_tokens=45, temperature=1.2)
        assert d.gauge("vllm:num_preemptions_total") > 0
        for c in r.choices:
            assert c.finish_reason == "length" or all(is_of_schema(json.dumps(v)) for v in json.loads(c.message.content))
        assert any(c.finish_reason == "stop" for c in r.choices)
