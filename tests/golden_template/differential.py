#!/usr/bin/env python3
"""Renders templates x conversations with ours and with the live reference, and compares.

  differential.py CLI [--dir FOLDER_OF_JINJA ...] [--gguf FILE ...] [--programs N | --chats N] [--seed S] [--show N]
CLI is td_render_cli. Own templates (templates/*.jinja) are always used.
--chats: random conversations for each template instead of the listed ones."""
import argparse
import collections
import json
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from conversations import conversations  # noqa: E402
from random_chats import random_chats  # noqa: E402
from jinja_reference import Reference  # noqa: E402

NOW = 1735689600


class Ours:
    def __init__(self, cli):
        self.p = subprocess.Popen([cli], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def render(self, source, trusted, inputs):
        line = json.dumps({"template": source, "trusted": trusted, "input": inputs, "now": NOW}, ensure_ascii=False)
        self.p.stdin.write(line.encode() + b"\n")
        self.p.stdin.flush()
        answer = self.p.stdout.readline()
        if not answer:
            raise SystemExit(f"the program died on: {line[:2000]}")
        return json.loads(answer)


def gguf_template(path):
    import gguf
    reader = gguf.GGUFReader(path)
    field = reader.get_field("tokenizer.chat_template")
    return bytes(field.parts[field.data[0]]).decode()


def templates(args):
    for path in sorted((HERE / "templates").glob("*.jinja")):
        yield path.name, path.read_text(encoding="utf-8", newline="") if sys.version_info >= (3, 13) else path.read_bytes().decode()
    for folder in args.dir:
        for path in sorted(pathlib.Path(folder).glob("*.jinja")):
            yield path.name, path.read_bytes().decode()
    for path in args.gguf:
        yield pathlib.Path(path).name, gguf_template(path)


def compare(ours, ref, source, chat):
    """None if equal, else a description"""
    ok, text, stage = ref.render(source, {**chat["input"], **chat["trusted"]})
    got = ours.render(source, chat["trusted"], chat["input"])
    if ok and " at 0x" in text:  # a Python object's address cannot be compared
        text = got["text"]
    if ok == got["ok"] and (not ok or text == got["text"]):
        return None, ok
    return {"reference": (ok, stage, text), "ours": (got["ok"], got["stage"], got["text"] if got["ok"] else got["error"])}, ok


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("cli")
    ap.add_argument("--dir", action="append", default=[])
    ap.add_argument("--gguf", action="append", default=[])
    ap.add_argument("--programs", type=int, default=0)
    ap.add_argument("--chats", type=int, default=0)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--show", type=int, default=5)
    args = ap.parse_args()
    ours, ref = Ours(args.cli), Reference(NOW)
    counts, shown = collections.Counter(), 0
    if args.programs:
        from programs import programs
        work = programs(args.programs, args.seed)
    else:
        chats = list(random_chats(args.chats, args.seed)) if args.chats else list(conversations())
        work = ((f"{name} x {chat['name']}", source, chat) for name, source in templates(args) for chat in chats)
    for name, source, chat in work:
        difference, ok = compare(ours, ref, source, chat)
        counts["total"] += 1
        counts["equal" if difference is None else "different"] += 1
        counts["rendered" if ok else "refused"] += 1
        if difference and shown < args.show:
            shown += 1
            print(f"--- {name}")
            if args.programs:
                print("source:", repr(source))
            for who, what in difference.items():
                print(f"  {who}: {what!r:.1500}")
    print(f"{counts['equal']} of {counts['total']} equal "
          f"({counts['rendered']} rendered, {counts['refused']} refused by the reference)")
    return 1 if counts["different"] else 0


if __name__ == "__main__":
    sys.exit(main())
