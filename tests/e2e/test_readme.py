"""Everything that the Markdown names exists: programs and their options, scripts, files, tests. Outdated text fails here."""
import fnmatch
import functools
import pathlib
import re
import subprocess

import pytest
from harness import DAEMON, ROOT

BIN = pathlib.Path(DAEMON).parent
FOLDERS = [d for d in ROOT.iterdir() if d.is_dir() and not re.match(r"build|\.", d.name)]
FILES = [p for d in FOLDERS for p in d.rglob("*.*") if p.is_file()] + [p for p in ROOT.iterdir() if p.is_file()]
TEXTS = sorted(p.relative_to(ROOT) for p in FILES if p.suffix == ".md" and "reports" not in p.parts and "lab" not in p.parts and p.name != "CHANGELOG.md")  # history
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
PROGRAMS = {"tandemd", "tandem-bench", "tandem-plan", "tandem-pull"}
FILE = re.compile(r"[\w./*-]+\.(?:c|h|cu|cuh|inc|py|md|json|def|conf|service|ini)")
SOMEBODY_ELSES = {"--privileged", "--gpus", "--kernel-name", "--tool", "--build", "--install", "--create", "--now"}  # docker's, compute-sanitizer's, cmake's


def quoted(text):
    """Yields text in `quotes`, and the lines of ``` blocks ``` without comments; a line that ends in \\ continues."""
    blocks = re.findall(r"^ *```\w*\n(.*?)^ *```", text, re.M | re.S) + re.findall(r"(?:^ {4}\S.*\n)+", text, re.M)
    for block in blocks:
        for line in block.replace("\\\n", " ").splitlines():
            yield re.split(r"(?:^|\s)#\s|\s{3,}", line.strip())[0].strip()
    rest = re.sub(r"^ *```.*?^ *```", "", text, flags=re.M | re.S)
    yield from (" ".join(m.split()) for m in re.findall(r"`([^`]+)`", rest))


def usage(name, *command):
    return subprocess.run([BIN / name, *command, "--help"], capture_output=True, text=True, timeout=60).stdout


@functools.cache
def options_of(program):
    """program: its name in a README, one or two words."""
    name, *command = program.split()
    if sources(name):
        texts = [p.read_text() for p in sources(name)]
    elif name == "scripts/gpu-report":
        texts = [p.read_text() for p in (ROOT / "scripts/gpu").glob("*.py")] + [(ROOT / name).read_text()]
    elif name.startswith("scripts/"):
        texts = [(ROOT / name).read_text()]
    else:
        texts = [usage(name, *command)]
    return {o for t in texts for o in OPTION.findall(t)} | {"--help"}


def programs():
    yield "tandemd"
    yield from (p for p in ("tandem-plan", "tandem-pull") if (BIN / p).exists())
    if (BIN / "tandem-bench").exists():
        yield from ("tandem-bench " + c for c in re.findall(r"^  (\w+) ", usage("tandem-bench"), re.M))
    yield from ("scripts/" + p.name for p in (ROOT / "scripts").iterdir() if p.is_file() and p.suffix != ".txt")


def sources(name):
    """Returns the source files of a test program."""
    return () if name in PROGRAMS or not re.fullmatch(r"[a-z_]+(\.py)?", name) else anywhere(name if name.endswith(".py") else name + ".c")


def called(command):
    """Returns the program that a quoted text runs, and the rest; or None and the text."""
    words = [w for w in command.split() if not re.fullmatch(r"[A-Z_]+=.*|sudo|python3?", w)]
    if not words:
        return None, command
    name = words[0].removeprefix("./") if "scripts/" in words[0] else words[0].rsplit("/", 1)[-1]
    is_one = name in PROGRAMS or re.fullmatch(r"scripts/[\w.-]+", name) or (len(words) > 1 and sources(name))
    return (name, " ".join(words[1:])) if is_one else (None, command)


def exists(path, folder):
    """Whether it exists in the README's folder, in the root, or, for a bare name, anywhere."""
    return any(any(base.glob(path)) for base in (ROOT / folder, ROOT)) or ("/" not in path and bool(anywhere(path)))


@functools.cache
def anywhere(name):
    return [p for p in FILES if fnmatch.fnmatchcase(p.name, name)]


@pytest.mark.parametrize("readme", TEXTS, ids=str)
def test_what_it_names_is_there(readme):
    text, wrong = (ROOT / readme).read_text(), []
    known = {o for p in programs() for o in options_of(p)} | {o for p in ROOT.glob("tests/golden*/*.py") for o in OPTION.findall(p.read_text())}
    for span in (part for q in quoted(text) for part in re.split(r" (?:&&?|\||;) ", q)):
        name, rest = called(span)
        if name and name.startswith("scripts/") and not (ROOT / name).exists():
            wrong.append(f"{name}: no such script")
            continue
        if name in PROGRAMS and not (BIN / name).exists():
            name = None  # not built
        if name == "tandem-bench":
            command = rest.split()[0] if rest else ""
            if command and f"tandem-bench {command}" not in programs() and not command.startswith("-"):
                wrong.append(f"tandem-bench has no {command}")
                continue
            name += f" {command}" if command and not command.startswith("-") else ""
        theirs = options_of(name) if name and name != "tandem-bench" else known
        wrong += [f"{o} of `{span}`" for o in OPTION.findall(rest) if o not in theirs and o not in SOMEBODY_ELSES]
        if FILE.fullmatch(span) and not span.startswith("/") and not exists(span, readme.parent):
            wrong.append(f"no file {span}")
        if re.fullmatch(r"test_[a-z]\w+", span) and span != "test_ops" and not anywhere(span + ".c") and not anywhere(span + ".py"):
            wrong.append(f"no test {span}")
    wrong += [f"no file behind the link {t}" for t in re.findall(r"\]\((?!http)([^)#]+)", text) if not (ROOT / readme.parent / t).exists()]
    assert not wrong, "\n".join(wrong)


def test_the_api_page_names_every_served_field():
    table = re.search(r"td_field served\[\] = \{(.*?)^\};", (ROOT / "server/fields.c").read_text(), re.M | re.S).group(1)
    served = set(re.findall(r"^    (?:[A-Z]+\(|\{\")(\w+)", table, re.M))
    page = (ROOT / "docs/API.md").read_text().split("## Request fields")[1].split("\n## ")[0]
    named = {w for q in re.findall(r"`([^`]+)`", page) for w in q.split()}
    assert len(served) > 30 and served <= named, served - named
