"""The page at / in Debian's chromium, with the real daemon and the real model behind it: the chat streams and stops, the steps
show, both come back after a restart, and what a model or a server says stays text.

TANDEM_CHROMIUM names the browser; TANDEM_SCREENSHOTS a folder for pictures of the page, which one looks at by hand."""
import http.server
import json
import os
import pathlib
import re
import sys
import threading
import time

import pytest
from playwright.sync_api import expect, sync_playwright

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))

from harness import MODEL_ID, SLOWNESS, Daemon  # noqa: E402

CHROMIUM = os.environ.get("TANDEM_CHROMIUM", "/usr/bin/chromium")
PICTURES = os.environ.get("TANDEM_SCREENSHOTS")
WAIT_MS = 20000 * SLOWNESS
EVIL = "<img src=x onerror=\"document.title='broken'\"><script>document.title='broken'</script>"
STORY = "Tell me a very long story\nabout a river."
expect.set_options(timeout=WAIT_MS)


@pytest.fixture(scope="session")
def browser():
    with sync_playwright() as p:
        # no sandbox: tests often run as root; the page comes from the daemon under test
        b = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield b
        b.close()


@pytest.fixture(scope="session")
def daemon():
    with Daemon() as d:
        yield d


@pytest.fixture
def open_page(browser):
    """open_page(daemon, **context options): a page whose console stayed empty, checked at the end but for words in `allowed`."""
    opened = []

    def make(daemon, allowed=(), **options):
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        page = context.new_page()
        page.complaints = []
        page.allowed = list(allowed)
        page.on("console", lambda m: page.complaints.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda e: page.complaints.append(str(e)))
        page.on("dialog", lambda d: page.complaints.append("a dialog: " + d.message))
        opened.append((context, page))
        page.goto(daemon.url + "/")
        return page

    yield make
    for context, page in opened:
        context.close()
        left = [c for c in page.complaints if not any(a in c for a in page.allowed)]
        assert not left, left


def ready(page):
    expect(page.locator("#state")).to_have_text("idle")
    return page


def say(page, text, max_tokens=24):
    page.fill("#max", str(max_tokens))
    page.fill("#temperature", "0")
    page.fill("#text", text)
    page.press("#text", "Enter")


def last_answer(page):
    return page.locator(".turn.assistant").last


def told_step(page):
    text = page.locator("#told b").inner_text()
    return int(text.removeprefix("Step ").replace(",", ""))


def test_chat_and_steps(daemon, open_page):
    page = ready(open_page(daemon))
    assert page.title() == f"{MODEL_ID} \u2013 tandem"
    expect(page.locator("#model")).to_contain_text(MODEL_ID)
    page.evaluate("""() => {
      window.lengths = [];
      new MutationObserver(() => {
        const t = document.querySelector('.turn.assistant');
        if (t) lengths.push(t.textContent.length);
      }).observe(document.querySelector('#log'), { subtree: true, childList: true, characterData: true });
    }""")
    say(page, STORY, 120)
    expect(page.locator(".turn.user")).to_have_text("You: " + STORY)
    expect(page.locator("#send")).to_have_text("Stop")
    expect(page.locator("#send")).to_have_text("Send")
    expect(last_answer(page).locator("small")).to_contain_text("tokens")
    assert len(set(page.evaluate("lengths"))) > 5, "the answer came in pieces"
    daemon.eventually(lambda: told_step(page) > 20, what="its steps")
    expect(page.locator("#cached")).not_to_have_text("0")
    ready(page)
    before = told_step(page)
    say(page, "And then?")  # the previous answer is sent too, and its pages are found
    expect(page.locator(".turn.assistant")).to_have_count(2)
    expect(last_answer(page).locator("small")).to_contain_text("prompt tokens from cache")
    daemon.eventually(lambda: told_step(page) > before, what="the next steps")
    page.click("#clear")
    expect(page.locator(".turn")).to_have_count(0)


def test_stop(daemon, open_page):
    page = ready(open_page(daemon))
    say(page, STORY, 2000)
    expect(page.locator(".turn.waiting")).to_contain_text("a", timeout=WAIT_MS)
    daemon.eventually(lambda: len(last_answer(page).inner_text()) > 20, what="some text")
    page.click("#send")
    expect(last_answer(page).locator("small")).to_contain_text("stopped")
    daemon.until_idle()
    ready(page)
    say(page, "Thank you.", 4)
    expect(page.locator(".turn.assistant small")).to_have_count(2)


def test_strip_by_pointer_keys_and_table(daemon, open_page):
    page = ready(open_page(daemon))
    say(page, "Hello", 3)
    expect(last_answer(page).locator("small")).to_be_visible()
    page.click("#burst")
    expect(page.locator("#state")).to_have_text("at work")
    begin = told_step(page)
    daemon.eventually(lambda: told_step(page) > begin + 6, 60, "some steps")
    page.click("#burst")
    expect(page.locator("#burst")).to_have_text("Run 8 prompts")
    page.click("#clear")
    say(page, "Hi", 3)  # the template's first words were in another prompt: a prefix hit
    expect(last_answer(page).locator("small")).to_be_visible()
    daemon.until_idle()
    ready(page)
    newest = told_step(page)
    inked = page.evaluate("""() => {
      const c = document.querySelector('#strip'), seen = {};
      const rgb = s => getComputedStyle(document.querySelector(s)).backgroundColor.match(/\\d+/g).slice(0, 3).join();
      const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
      for (let i = 0; i < d.length; i += 4) { const k = [d[i], d[i + 1], d[i + 2]].join(); seen[k] = (seen[k] || 0) + 1 }
      return Object.fromEntries(['.decode', '.prefill', '.hit', '.time'].map(s => [s, seen[rgb(s)] || 0]));
    }""")
    assert inked[".decode"] > 100 and inked[".prefill"] > 100 and inked[".hit"] > 0 and inked[".time"] > 0, inked
    box = page.locator("#strip").bounding_box()
    page.mouse.move(box["x"] + 36 + 12, box["y"] + 40)  # the third bar of five pixels
    third = told_step(page)
    assert third < newest
    page.mouse.move(box["x"] + 36 + 17, box["y"] + 40)
    expect(page.locator("#told b")).to_have_text(f"Step {third + 1:,}")
    page.mouse.move(0, 0)
    expect(page.locator("#told b")).to_have_text(f"Step {newest:,}")
    page.focus("#strip")
    for key, step in (("ArrowLeft", newest - 1), ("ArrowLeft", newest - 2), ("ArrowRight", newest - 1), ("End", newest)):
        page.keyboard.press(key)
        expect(page.locator("#told b")).to_have_text(f"Step {step:,}")
    expect(page.locator("#spoken")).to_contain_text(f"Step {newest:,}: ")
    page.keyboard.press("Escape")
    page.click("#tabled summary")
    rows = page.locator("#rows tr")
    expect(rows).to_have_count(min(24, newest))
    assert rows.first.locator("td").first.inner_text() == f"{newest:,}"
    assert page.locator("#tabled th").count() == rows.first.locator("td").count()
    page.click("#hold")
    expect(page.locator("#hold")).to_have_attribute("aria-pressed", "true")
    say(page, "Hi", 4)
    expect(page.locator(".turn.assistant small")).to_have_count(2)
    assert told_step(page) == newest, "held"
    page.click("#hold")
    daemon.eventually(lambda: told_step(page) > newest)
    ready(page)
    # not the state at the last step; the steps of that answer may not have arrived yet
    daemon.eventually(lambda: rows.first.locator("td").first.inner_text() == f"{told_step(page):,}")


def test_all_by_keyboard(daemon, open_page):
    page = ready(open_page(daemon))
    reached = []
    for _ in range(20):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
    for name in ("theme", "clear", "log", "text", "temperature", "max", "send", "burst", "hold", "zoom", "strip"):
        assert name in reached, (name, reached)
    unnamed = page.evaluate("""() => [...document.querySelectorAll('button, input, textarea, canvas, section')].filter(e =>
      !(e.labels?.length || e.getAttribute('aria-label') || e.getAttribute('aria-labelledby') || e.textContent.trim())).map(e => e.id)""")
    assert unnamed == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 820, 1280])
def test_fits(daemon, open_page, width, scheme):
    page = ready(open_page(daemon, viewport={"width": width, "height": 844}, color_scheme=scheme, device_scale_factor=2))
    say(page, "A" * 400 + " is a long word.", 8)
    expect(last_answer(page).locator("small")).to_be_visible()
    page.click("#tabled summary")
    expect(page.locator("#rows tr").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "a horizontal scroll bar"
    light = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert (sum(map(int, light[4:-1].split(","))) > 380) == (scheme == "light"), light
    page.click("#theme")  # automatic -> light -> dark
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    page.click("#theme")
    dark = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert sum(map(int, dark[4:-1].split(","))) < 200, dark
    page.click("#theme")
    assert page.evaluate("document.documentElement.dataset.theme") == "automatic"
    if PICTURES:
        page.screenshot(path=f"{PICTURES}/{width}-{scheme}.png", full_page=True)


def test_what_the_model_says_stays_text(daemon, open_page):
    page = open_page(daemon)
    answer = json.dumps({"choices": [{"index": 0, "delta": {"content": EVIL}}]})
    page.route("**/v1/chat/completions", lambda r: r.fulfill(status=200, content_type="text/event-stream", body=f"data: {answer}\n\ndata: [DONE]\n\n"))
    say(ready(page), EVIL)
    expect(last_answer(page)).to_contain_text(EVIL)
    expect(page.locator(".turn.user")).to_contain_text(EVIL)
    page.route("**/v1/chat/completions", lambda r: r.fulfill(status=400, content_type="application/json", json={"error": {"message": EVIL}}))
    page.allowed.append("400")
    say(page, "again")
    expect(page.locator(".turn.error")).to_contain_text(EVIL)
    assert page.locator("main img, main script").count() == 0 and "broken" not in page.title()


def answer_with(page, *deltas, **choice):
    """The next answers consist of these deltas, for any request; the requests' bodies are appended to page.asked."""
    events = [{"choices": [{"index": 0, "delta": d, **choice}]} for d in deltas]
    page.asked = []

    def reply(route):
        page.asked.append(route.request.post_data_json)
        route.fulfill(status=200, content_type="text/event-stream",
                      body="".join(f"data: {json.dumps(e)}\n\n" for e in events) + "data: [DONE]\n\n")
    page.unroute("**/v1/chat/completions")
    page.route("**/v1/chat/completions", reply)


MARKDOWN = """# A *title*

Some **bold `code`** text with [a page](https://example.org/a?b=1&c) and https://example.net/x.
- one
- two
  1. deeper
- [x](javascript:alert(1)) [y](data:text/html,x) [z](JaVaScRiPt:alert(1)) [w](//example.com)

| a | b |
|---|---|
| 1 | <b>2</b> |

> quoted

```html
<script>document.title = 'broken'</script>
```
<img src=x onerror="document.title='broken'">
"""


def test_markdown(daemon, open_page):
    page = ready(open_page(daemon))
    answer_with(page, *({"content": MARKDOWN[i:i + 7]} for i in range(0, len(MARKDOWN), 7)))
    say(page, "Hi")
    md = last_answer(page).locator(".md")
    expect(last_answer(page).locator("small")).to_have_count(1)
    assert md.locator("h3 em").inner_text() == "title" and md.locator("strong code").inner_text() == "code"
    assert md.locator("ul > li").count() == 3 and md.locator("ul > li > ol > li").inner_text() == "deeper"
    assert md.locator("td").all_inner_texts() == ["1", "<b>2</b>"] and md.locator("blockquote").inner_text() == "quoted"
    assert md.locator("pre code").text_content() == "<script>document.title = 'broken'</script>"
    assert md.locator("p").last.text_content() == "<img src=x onerror=\"document.title='broken'\">"
    links = md.locator("a").evaluate_all("all => all.map(a => [a.href, a.rel])")
    assert links == [[to, "noreferrer nofollow"] for to in ("https://example.org/a?b=1&c", "https://example.net/x")]
    assert md.locator("img, script, b").count() == 0 and "broken" not in page.title()


HOSTILE = ["[" * 60000, "`*" * 30000, "**" * 30000, "[a](" * 20000, "- " * 30000, "  " * 30000 + "- x", "#" * 60000, "|" * 60000,
           "\n".join(" " * i + "- x" for i in range(300)), "> " * 30000, "* * " * 20000, "https://" * 8000, "https://" + "." * 60000, "*a " * 20000, "*a" * 30000]


def test_hostile_markdown_takes_no_time(daemon, open_page):
    """Code that takes quadratic time would take minutes."""
    page = ready(open_page(daemon))
    for evil in HOSTILE:
        took = page.evaluate("""t => {
          const begin = performance.now();
          showMarkdown(document.createElement('div'), t);
          return performance.now() - begin;
        }""", evil)
        assert took < 1000 * SLOWNESS, evil[:40]


def test_log_probabilities_on_demand(daemon, open_page):
    page = ready(open_page(daemon))
    say(page, "Hi", 6)
    expect(last_answer(page).locator("small")).to_be_visible()
    assert last_answer(page).locator(".tokens").count() == 0
    page.check("#logprobs")
    say(page, "Hi again", 6)
    tokens = last_answer(page).locator(".tokens")
    expect(tokens.locator("summary")).to_have_text("Log-probabilities of 6 tokens")
    assert tokens.locator("span").count() == 0, "made when somebody looks"
    tokens.locator("summary").click()
    expect(tokens.locator("span")).to_have_count(6)
    assert "".join(tokens.locator("span").all_text_contents()) == last_answer(page).locator(".md").text_content()
    tokens.locator("span").first.click()
    expect(tokens.locator("p")).to_contain_text(re.compile(r"-?\d+\.\d{3}, [\d.]+ %\n.* %( \u00b7 .* %){4}$"))


def test_settings_are_remembered(daemon, open_page):
    page = ready(open_page(daemon))
    page.check("#logprobs")
    page.locator("summary", has_text="System prompt").click()
    page.fill("#system", "Be brief.")
    say(page, "Hi", 7)
    expect(last_answer(page).locator("small")).to_be_visible()
    page.reload()
    ready(page)
    assert page.input_value("#max") == "7" and page.input_value("#temperature") == "0" and page.is_checked("#logprobs")
    assert page.input_value("#system") == "Be brief." and page.locator(".turn").count() == 0
    page.evaluate("localStorage.setItem('tandem-settings', '{broken')")
    page.reload()
    ready(page)
    assert page.input_value("#max") == "256"


def test_calls_and_reasoning(daemon, open_page):
    page = ready(open_page(daemon))
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
    page.locator("summary", has_text="Tools").click()
    page.fill("#tools", json.dumps([tool]))
    answer_with(page, {"reasoning_content": "They want "}, {"reasoning_content": "weather."},
                {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "weather", "arguments": ""}}]},
                {"tool_calls": [{"index": 0, "function": {"arguments": '{"city": '}}]}, {"tool_calls": [{"index": 0, "function": {"arguments": '"<b>Oslo"}'}}]})
    say(page, "Oslo?")
    call = last_answer(page).locator(".call")
    expect(call.locator("b")).to_have_text("weather")
    assert json.loads(call.locator("pre").text_content()) == {"city": "<b>Oslo"}
    last_answer(page).locator(".thought summary").click()
    expect(last_answer(page).locator(".thought")).to_contain_text("They want weather.")
    assert page.asked[0]["tools"] == [tool]
    call.locator("input").fill("rain")
    answer_with(page, {"content": "It rains."})
    say(page, "And now?")
    expect(last_answer(page).locator(".md")).to_have_text("It rains.")
    assert [m["role"] for m in page.asked[0]["messages"]] == ["user", "assistant", "tool", "user"]
    assert page.asked[0]["messages"][1]["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city": "<b>Oslo"}'}
    assert page.asked[0]["messages"][2] == {"role": "tool", "tool_call_id": "call_1", "content": "rain"}
    page.fill("#tools", "[{")
    say(page, "x")
    expect(page.locator(".turn.error")).to_contain_text("Tools are no JSON")


def test_the_server_takes_what_the_page_sends(open_page, tmp_path):
    """Tools, calls, results: a template that supports them, a call that a strict tool constrains to its schema."""
    template = tmp_path / "template.jinja"
    template.write_text("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function|tojson }}"
                        "</tool_call>{% endfor %}<|im_end|>\n{% endfor %}{% if tools %}{{ tools|tojson }}<tool_call>{% endif %}<|im_start|>assistant\n")
    tool = {"type": "function", "function": {"name": "weather", "strict": True, "parameters": {
        "type": "object", "required": ["city"], "additionalProperties": False, "properties": {"city": {"enum": ["Oslo"]}}}}}
    with Daemon("--chat-template", template) as d:
        page = ready(open_page(d))
        page.locator("summary", has_text="Tools").click()
        page.fill("#tools", json.dumps([tool]))
        page.evaluate("() => { const asked = requestOf; requestOf = m => ({ ...asked(m), ...(m.some(x => x.role === 'tool') ? {} : { tool_choice: 'required', parallel_tool_calls: false }) }) }")
        say(page, "Oslo?", 60)
        expect(last_answer(page).locator(".call b")).to_have_text("weather")
        assert json.loads(last_answer(page).locator(".call pre").text_content()) == {"city": "Oslo"}
        last_answer(page).locator(".call input").fill("rain")
        page.click("#send")  # the result alone
        expect(page.locator(".turn.assistant")).to_have_count(2)
        expect(last_answer(page).locator("small")).to_contain_text("token")
        assert page.locator(".turn.error").count() == 0


def test_a_models_name_stays_text(open_page):
    with Daemon("--served-model-name", EVIL) as d:
        page = ready(open_page(d))
        expect(page.locator("#model b")).to_have_text(EVIL)
        assert page.locator("header img, header script").count() == 0 and page.title() == EVIL + " \u2013 tandem"
        say(page, "Hi", 2)
        expect(last_answer(page).locator("small")).to_contain_text("2 tokens")


def test_errors_are_told(daemon, open_page):
    page = ready(open_page(daemon, allowed=["400"]))
    say(page, "word " * 9000)
    expect(page.locator(".turn.error")).to_contain_text("context")
    assert page.input_value("#text").startswith("word "), "the question is not lost"


def test_key(open_page, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("sk-one\n")
    with Daemon("--api-key-file", keys) as d:
        page = open_page(d, allowed=["401"])
        expect(page.locator("#keys")).to_be_visible()
        page.fill("#key", "wrong")
        page.press("#key", "Enter")
        expect(page.locator("#keybad")).to_have_text("That key is not valid.")
        page.fill("#key", "sk-one")
        page.press("#key", "Enter")
        ready(page)
        expect(page.locator("#keys")).to_be_hidden()
        say(page, "Hi", 3)
        expect(last_answer(page).locator("small")).to_contain_text("tokens")
        page.reload()  # the tab remembers it
        ready(page)
        assert "sk-one" not in page.evaluate("JSON.stringify(localStorage)")


def test_several_keys(open_page, tmp_path):
    """The steps then have no tokens and pages; the page says so instead of showing numbers."""
    keys = tmp_path / "keys"
    keys.write_text("sk-one\nsk-two\n")
    with Daemon("--api-key-file", keys) as d:
        page = open_page(d, allowed=["401"])
        page.fill("#key", "sk-one")
        page.press("#key", "Enter")
        say(ready(page), STORY, 30)
        expect(last_answer(page).locator("small")).to_contain_text("tokens")
        d.eventually(lambda: told_step(page) > 20, what="its steps")
        page.click("#tabled summary")
        expect(page.locator("#rows tr").first).to_be_visible()
        expect(page.locator("#filled")).to_have_text("prompts")
        expect(page.locator("#kv")).to_be_hidden()
        expect(page.locator("#inrate")).to_contain_text("\u2013")
        for part in ("#live", "#told", "#rows"):
            assert not re.search("NaN|undefined", page.locator(part).inner_text()), part
        inked = page.evaluate("""() => {
          const c = document.querySelector('#strip'), d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
          const blue = getComputedStyle(document.querySelector('.decode')).backgroundColor.match(/\\d+/g).slice(0, 3).join();
          let n = 0;
          for (let i = 0; i < d.length; i += 4) n += [d[i], d[i + 1], d[i + 2]].join() === blue;
          return n;
        }""")
        assert inked > 100, "the strip is drawn"


@pytest.fixture
def elsewhere():
    """An empty page of another origin."""
    class Empty(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>elsewhere</title><link rel=icon href='data:,'>")

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Empty) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


POST = """async ([url, options]) => { // bytes have no type of their own: then fetch sends none
  const bytes = new TextEncoder().encode(JSON.stringify({ prompt: 'Hi', max_tokens: 8, ignore_eos: true }));
  try {
    const r = await fetch(url + '/v1/completions', { method: 'POST', body: bytes, ...options });
    return { type: r.type, status: r.status, id: r.headers.get('x-request-id'), text: await r.text() };
  } catch (e) { return { type: e.name } }
}"""


def test_a_page_of_another_origin(open_page, elsewhere):
    json_type = {"headers": {"content-type": "application/json", "x-stainless-os": "a client's own header"}}
    with Daemon() as d:
        page = open_page(d, allowed=["CORS", "ERR_FAILED", "403"])
        page.goto(elsewhere)
        before = d.gauge("vllm:generation_tokens_total")
        assert page.evaluate(POST, [d.url, {"mode": "no-cors"}])["type"] == "opaque", "it was sent, and cannot be read"
        assert page.evaluate(POST, [d.url, {}])["type"] == "TypeError"
        assert page.evaluate(POST, [d.url, json_type])["type"] == "TypeError"
        d.until_idle()
        assert d.gauge("vllm:generation_tokens_total") == before, "no token was made for it"
    with Daemon("--cors-origin", elsewhere) as d:
        page = open_page(d)
        page.goto(elsewhere)
        r = page.evaluate(POST, [d.url, json_type])
        assert r["type"] == "cors" and r["status"] == 200 and r["id"] and json.loads(r["text"])["choices"]


def test_comes_back_after_a_restart(open_page):
    with Daemon() as first:
        page = open_page(first, allowed=["ERR_", "503"])
        say(ready(page), STORY, 30)
        expect(last_answer(page).locator("small")).to_be_visible()
        before = told_step(ready(page))
        assert before > 20
        port = first.port
        assert first.stop() == 0
        expect(page.locator("#state")).to_contain_text("trying again")
        say(page, "Is anybody there?")
        expect(page.locator(".turn.error")).to_have_text("Error: The server cannot be reached.")
    with Daemon("--listen", f"127.0.0.1:{port}", "--served-model-name", "another", wait=False):
        ready(page)
        expect(page.locator("#model b")).to_have_text("another")
        say(page, "Hi", 3)
        expect(page.locator(".turn.assistant small")).to_have_count(2)
        begin = time.monotonic()
        while told_step(page) >= before:  # its own steps, not those of the previous process
            assert time.monotonic() - begin < 10 * SLOWNESS
            time.sleep(0.05)


def test_rests_while_hidden(daemon, open_page):
    page = ready(open_page(daemon))
    daemon.eventually(lambda: daemon.gauge("tandem:watchers") == 1)
    hide = "Object.defineProperty(document, 'hidden', {{ value: {}, configurable: true }}); document.dispatchEvent(new Event('visibilitychange'))"
    page.evaluate(hide.format("true"))
    daemon.eventually(lambda: daemon.gauge("tandem:watchers") == 0, what="that nobody watches")
    page.evaluate(hide.format("false"))
    daemon.eventually(lambda: daemon.gauge("tandem:watchers") == 1, what="that it watches again")
    ready(page)
