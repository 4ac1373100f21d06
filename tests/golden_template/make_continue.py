#!/usr/bin/env python3
"""Writes continue.json: the result of transformers' own continue_final_message for templates/*.jinja and final messages with all kinds of
ends. Needs transformers 4.57 (no torch). test_template_golden.c compares our rendering with it."""
import datetime
import json
import pathlib

from transformers.utils import chat_template_utils

NOW = 1735689600
HERE = pathlib.Path(__file__).resolve().parent
EXTRA = {  # templates that change the text, or the order of parts
    "strips": "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</>{% endfor %}",
    "strips the whole": "{% set t %}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% endset %}{{ t.strip() }}",
    "shows twice": "{% for m in messages %}[{{ m.content }}|{{ m.content }}]{% endfor %} ",
    "only the first": "{{ messages[0].content }}",
    "cuts": "{% for m in messages %}{{ m.content[:6] }};{% endfor %}",
    "behind a word": "{% for m in messages %}{{ m.content.split('</think>')[-1].lstrip() }}#{% endfor %}",
    "as JSON": "{{ messages | tojson }}",
    "text or parts": "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
                     "{{ p.text }}{% endfor %}{% endif %}!{% endfor %}",
}
TEXTS = ["end", "im", "", " ", "x\n\n", "  x  ", "\n", "<|im_end|>", "<|eot_id|>", "</s>", "a\u3000", "Sure, here", "e", "assistant",
         "<think>\na\n</think>\n\nb", "<think>\na", "0123456789", "\u00e4\u00f6\u00fc \u4f60\u597d ", "The answer is " * 300,
         [{"type": "text", "text": "end"}], [{"type": "text", "text": "a"}, {"type": "text", "text": "im "}], []]
TRUSTED = {"bos_token": "<s>", "eos_token": "</s>"}


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(NOW, datetime.timezone.utc)


def render(source, messages):
    try:
        texts, _ = chat_template_utils.render_jinja_template(
            conversations=[messages], chat_template=source, continue_final_message=True, add_generation_prompt=False, **TRUSTED)
        return None if "FINAL_MESSAGE_TAG" in texts[0] else texts[0]  # a message rendered twice: the reference leaves a tag in it
    except Exception:  # any failure of the reference is a refusal
        return None


def main():
    chat_template_utils.datetime = Clock
    sources = {p.name: None for p in sorted((HERE / "templates").glob("*.jinja"))} | EXTRA
    cases = []
    for name, source in sources.items():
        text = source if source is not None else (HERE / "templates" / name).read_bytes().decode()
        for content in TEXTS:
            messages = [{"role": "user", "content": "Say end."}, {"role": "assistant", "content": content}]
            cases.append({"name": name, "source": source, "input": {"messages": messages, "tools": None, "documents": None},
                          "expect": render(text, messages)})
    lines = ",\n".join(json.dumps(c, ensure_ascii=False, separators=(",", ":")) for c in cases)
    head = json.dumps({"now": NOW, "trusted": {**TRUSTED, "add_generation_prompt": False}})
    (HERE / "continue.json").write_text(head[:-1] + ', "cases": [\n' + lines + "\n]}\n", encoding="utf-8")
    print(len(cases), "cases,", sum(c["expect"] is not None for c in cases), "with text")


if __name__ == "__main__":
    main()
