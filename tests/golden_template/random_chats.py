"""Random conversations as clients send them: roles, parts, tools, calls, results, reasoning; deterministic per seed. Mostly well formed, so that
templates render them; the rest has typical mistakes of clients."""
import random

from conversations import BARE, EMPTY, SEARCH, TRUSTED, WEATHER

WORDS = ["", " ", "Hello", "weather in Zürich?", "日本語 テスト", "a\nb\n", "  padded  ", "\r\n", "😀", "{{ x }}", "{% if %}", "</s>", "it's \"q\"",
         "<think>", "</think>", "<think>\nhm\n</think>\n\nso", "<tool_call>", "back\\slash", "\u2028", "\u00a0", "<|im_end|>", "1", "-0.5", "null",
         "True", "é", "&<>'", "\t", "[INST]", "{\"a\": 1}", "%s %d {}", "__class__"]
KEYS = ["city", "q", "n", "a b", "ü", "type", "items", "keys", "name", "", "x-y", "get"]


class Gen:
    def __init__(self, r):
        self.r = r

    def maybe(self, p):
        return self.r.random() < p

    def text(self):
        return "".join(self.r.choice(WORDS) for _ in range(self.r.choice([1, 1, 1, 2, 4])))

    def value(self, depth=0):
        kinds = [lambda: self.text(), lambda: self.r.randint(-3, 10**self.r.choice([1, 5, 17])), lambda: None, lambda: self.maybe(0.5),
                 lambda: self.r.choice([0.0, -0.0, 1.0, 1.5, 1e16, 1e-7, 123456.75, -2e30, 0.1])]
        if depth < 3:
            kinds += [lambda: [self.value(depth + 1) for _ in range(self.r.randrange(4))],
                      lambda: {k: self.value(depth + 1) for k in self.r.sample(KEYS, self.r.randrange(4))}]
        return self.r.choice(kinds)()

    def schema(self, depth=0):
        kind = self.r.choice(["string", "integer", "number", "boolean", "array", "object", ["string", "null"]] if depth < 3 else ["string", "number"])
        s = {"type": kind}
        if self.maybe(0.6):
            s["description"] = self.text()
        if self.maybe(0.2):
            s["enum"] = [self.value(2) for _ in range(self.r.randrange(1, 4))]
        if self.maybe(0.2):
            s["default"] = self.value(2)
        if self.maybe(0.1):
            s["nullable"] = self.maybe(0.5)
        if self.maybe(0.1):
            s["anyOf"] = [self.schema(depth + 1), self.schema(depth + 1)]
        if kind == "array" and self.maybe(0.9):
            s["items"] = self.schema(depth + 1)
        if kind == "object":
            names = self.r.sample(KEYS, self.r.randrange(4))
            s["properties"] = {k: self.schema(depth + 1) for k in names}
            if self.maybe(0.6):
                s["required"] = self.r.sample(names, self.r.randrange(len(names) + 1))
        return s

    def tool(self):
        if self.maybe(0.3):
            return self.r.choice([WEATHER, SEARCH, EMPTY, BARE])
        names = self.r.sample(KEYS, self.r.randrange(4))
        f = {"name": self.r.choice(["f", "get_weather", "search", "python", "a.b"]), "description": self.text(),
             "parameters": {"type": "object", "properties": {k: self.schema() for k in names}}}
        if self.maybe(0.7):
            f["parameters"]["required"] = names[:1]
        for key in ("description", "parameters"):
            if self.maybe(0.1):
                del f[key]
        if self.maybe(0.1):
            f["return"] = self.schema(2)
        if self.maybe(0.1):
            f["strict"] = self.maybe(0.5)
        return {"type": "function", "function": f}

    def content(self):
        if self.maybe(0.8):
            return self.text()
        return self.r.choice([None, [], [{"type": "text", "text": self.text()} for _ in range(self.r.randrange(1, 4))],
                              [{"type": "image"}, {"type": "text", "text": self.text()}]])

    def call(self, i):
        arguments = {k: self.value() for k in self.r.sample(KEYS, self.r.randrange(4))}
        c = {"id": "call%05d" % i, "type": "function", "function": {"name": self.r.choice(["f", "search", "get_weather"]), "arguments": arguments}}
        if self.maybe(0.1):
            c["function"]["arguments"] = self.text()
        if self.maybe(0.05):
            del c["id"]
        if self.maybe(0.05):
            c = c["function"]
        return c

    def turn(self, messages):
        messages.append({"role": "user", "content": self.content()})
        for _ in range(self.r.choice([0, 0, 0, 1, 1, 2])):
            calls = [self.call(len(messages) * 10 + i) for i in range(self.r.choice([1, 1, 2, 3]))]
            m = {"role": "assistant", "content": self.r.choice(["", None, self.text()]), "tool_calls": calls}
            if self.maybe(0.3):
                m[self.r.choice(["reasoning_content", "reasoning", "thinking"])] = self.text()
            messages.append(m)
            for c in calls:
                t = {"role": "tool", "content": self.content() if self.maybe(0.8) else self.value(), "tool_call_id": c.get("id")}
                if self.maybe(0.7):
                    t["name"] = c.get("function", c)["name"]
                messages.append(t)
        m = {"role": "assistant", "content": self.content()}
        if self.maybe(0.3):
            m["reasoning_content"] = self.r.choice([self.text(), "", None])
        messages.append(m)

    def chat(self):
        messages = []
        if self.maybe(0.5):
            messages.append({"role": self.r.choice(["system", "system", "developer"]), "content": self.content()})
        for _ in range(self.r.choice([1, 1, 2, 3])):
            self.turn(messages)
        if self.maybe(0.7) and messages[-1]["role"] == "assistant":
            messages.pop()
        if self.maybe(0.1):
            self.r.shuffle(messages)
        inputs = {"messages": messages}
        if self.maybe(0.5):
            inputs["tools"] = [self.tool() for _ in range(self.r.randrange(4))]
        for key, values in (("enable_thinking", [True, False]), ("documents", [[{"title": self.text(), "text": self.text()}], []]),
                            ("reasoning_effort", ["low", "high"]), ("thinking", [True, False]), ("tools_in_user_message", [True, False]),
                            ("date_string", ["01 Feb 2025"]), ("custom", [self.value()]), ("controls", [{"length": "short"}])):
            if self.maybe(0.15):
                inputs[key] = self.r.choice(values)
        return {"trusted": {**TRUSTED, "add_generation_prompt": self.maybe(0.7)}, "input": inputs}


def random_chats(n, seed):
    g = Gen(random.Random(seed))
    for i in range(n):
        yield {"name": "random %d of seed %d" % (i, seed), **g.chat()}
