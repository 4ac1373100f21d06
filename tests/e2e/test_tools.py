"""Tools, calls, results and reasoning of chats: the text that the template renders, compared with transformers (tools.json)."""
import json
import pathlib
import sys

import pytest
import reference
from harness import MODEL_ID, Daemon

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "golden"))
import tiny_models  # noqa: E402
GOLDEN = json.loads((HERE.parent / "golden_template" / "tools.json").read_text(encoding="utf-8"))
DEVELOPER = ("{% for m in messages %}{% if m.role == 'developer' %}<dev>{% endif %}{{ m.role }}: {{ m.content }}\n"
             "{% endfor %}")


@pytest.fixture(scope="module")
def tool_daemon(tmp_path_factory):
    path = tmp_path_factory.mktemp("template") / "all.jinja"
    path.write_text(GOLDEN["template"], encoding="utf-8")
    with Daemon("--chat-template", path) as d:
        yield d


def tokenize(daemon, body):
    return daemon.post("/tokenize", {"model": MODEL_ID, **body})


def test_requests_with_tools_are_rendered_as_transformers_does(tool_daemon):
    tokenizer, n = reference.tokenizer(), 0
    for case in GOLDEN["cases"]:
        r = tokenize(tool_daemon, case["body"])
        if "text" in case:
            assert r.status_code == 200, (case["name"], r.text)
            assert r.json()["tokens"] == tokenizer.encode(case["text"]).ids, (case["name"], case["body"])
            n += 1
        else:
            assert r.status_code == 400, (case["name"], r.text)
            assert case["error"] is None or case["error"] in r.json()["error"]["message"], r.text
    assert n > 60


def test_chats_have_the_same_prompt(tool_daemon):
    n = 0
    for case in [c for c in GOLDEN["cases"] if "tools" in c["body"] and "text" in c][::30]:
        body = {"model": MODEL_ID, "max_tokens": 1, **case["body"]}
        r, t = tool_daemon.post("/v1/chat/completions", body), tokenize(tool_daemon, case["body"])
        assert r.status_code == 200 and r.json()["usage"]["prompt_tokens"] == t.json()["count"], r.text
        none = tokenize(tool_daemon, {**case["body"], "tool_choice": "none"})
        without = tokenize(tool_daemon, {k: v for k, v in case["body"].items() if k != "tools"})
        assert none.json() == without.json()
        n += 1
    assert n > 0


def test_a_template_refuses_in_its_own_words(tool_daemon):
    """The same message from /tokenize and from chat, a 400 about the messages."""
    body = {"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
            "chat_template_kwargs": {"style": "strict_tool_ids"}}
    for post in (lambda: tokenize(tool_daemon, body),
                 lambda: tool_daemon.post("/v1/chat/completions", {"model": MODEL_ID, "max_tokens": 1, **body})):
        r = post()
        assert r.status_code == 400, r.text
        e = r.json()["error"]
        assert e["param"] == "messages" and "conversation roles must alternate user/assistant" in e["message"], e


def test_bad_tools_and_calls(tool_daemon):
    user = [{"role": "user", "content": "x"}]
    for extra, param in (({"tools": {}}, "tools"), ({"tools": [1]}, "tools[0].function.name"),
                         ({"tools": [{"type": "web_search"}]}, "tools[0].type"), ({"tools": [{"type": 1, "function": {"name": "f"}}]}, "tools[0].type"),
                         ({"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]},
                          "messages[0].tool_calls[0].function.name")):
        r = tokenize(tool_daemon, {"messages": user, "chat_template_kwargs": {"style": "chatml"}, **extra})
        assert r.status_code == 400 and r.json()["error"]["param"] == param, r.text


def test_the_developer_role(tool_daemon, tmp_path):
    """A template that mentions the role gets it; any other gets a system message."""
    chat = lambda role: {"messages": [{"role": role, "content": "rules"}, {"role": "user", "content": "x"}]}
    style = {"chat_template_kwargs": {"style": "chatml"}}
    assert tokenize(tool_daemon, {**chat("developer"), **style}).json() == tokenize(tool_daemon, {**chat("system"), **style}).json()
    path = tmp_path / "developer.jinja"
    path.write_text(DEVELOPER, encoding="utf-8")
    with Daemon("--chat-template", path) as d:
        got = tokenize(d, chat("developer")).json()["tokens"]
    assert got == reference.tokenizer().encode("<dev>developer: rules\nuser: x\n").ids


# ---- files of a model's folder ----

@pytest.fixture(scope="module")
def folder_daemon(tmp_path_factory):
    """A tiny model with named templates and a repetition penalty of its own."""
    out = tmp_path_factory.mktemp("models")
    dtype, n_files, config = tiny_models.FOLDERS["llama2"]
    tiny_models.write_folder(str(out), "llama2", dtype, n_files, config)
    folder = out / "llama2"
    for name, changes in (("tokenizer_config.json", {"chat_template": [
            {"name": "rag", "template": "rag"}, {"name": "tool_use", "template": "with{{ tools|length }} tools"},
            {"name": "default", "template": "plain {{ messages[0].content }}"}]}),
            ("generation_config.json", {"repetition_penalty": 1.5, "temperature": 0})):
        path = folder / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with Daemon(model=folder) as d:
        yield d


def test_named_templates(folder_daemon):
    """Chosen as in transformers: tool_use if a request has tools, even an empty list."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    for extra, text in (({}, "plain Hi"), ({"tools": None}, "plain Hi"), ({"tools": [tool, tool]}, "with2 tools"),
                        ({"tools": []}, "with0 tools")):
        r = folder_daemon.post("/tokenize", {"messages": [{"role": "user", "content": "Hi"}], **extra})
        assert r.status_code == 200, r.text
        back = folder_daemon.post("/detokenize", {"tokens": r.json()["tokens"]})
        assert back.json()["prompt"] == text


def test_templates_in_files_of_their_own(tmp_path):
    """chat_template.jinja has precedence over the configuration; the template for tools is in a folder next to it."""
    dtype, n_files, config = tiny_models.FOLDERS["llama2"]
    tiny_models.write_folder(str(tmp_path), "llama2", dtype, n_files, config)
    folder = tmp_path / "llama2"
    (folder / "chat_template.jinja").write_text("file {{ messages[0].content }}")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("file with{{ tools|length }} tools")
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    with Daemon(model=folder) as d:
        for extra, text in ({}, "file Hi"), ({"tools": [tool]}, "file with1 tools"):
            r = d.post("/tokenize", {"messages": [{"role": "user", "content": "Hi"}], **extra})
            assert r.status_code == 200, r.text
            assert d.post("/detokenize", {"tokens": r.json()["tokens"]}).json()["prompt"] == text


def test_the_models_repetition_penalty(folder_daemon):
    def answer(**extra):
        r = folder_daemon.post("/v1/completions", {"prompt": [5, 6, 7], "max_tokens": 40, "ignore_eos": True,
                                                   "return_token_ids": True, **extra})
        assert r.status_code == 200, r.text
        return r.json()["choices"][0]["token_ids"]
    assert answer() == answer(repetition_penalty=1.5) != answer(repetition_penalty=1)
