#!/usr/bin/env python3
"""Checks what can be checked mechanically in the tree's Markdown. Only the standard library.

    lint_prose.py [FILE...]     checks these files, or all *.md of the repository
    lint_prose.py --wrap FILE...   re-wraps the prose of these files, then checks them

- Links lead to existing files and headings.
- Paths in `code` exist: relative to the file's folder or to the root; a bare file name may be anywhere.
- Prose lines have at most 120 characters (except tables, code, and lines with a long link).
- Words that docs/GLOSSARY.md excludes (column "not", without a remark in brackets) do not appear outside code.
tests/e2e/test_readme.py checks commands, options and tests that they name."""
import fnmatch
import pathlib
import re
import subprocess
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent
WIDTH = 120

# History: reports are what a program printed on that day, and rows of the lab notes are never changed.
HISTORY = ("tests/gpu/reports/*", "docs/lab/2*")
# Files in which an excluded word is a term of the field, with another meaning.
ALLOWED = {
    "docs/GLOSSARY.md": {"*"},  # it lists these words
    "models/tokenizer/README.md": {"piece", "span"},  # pieces of a pre-tokeniser; spans of trusted text
    "engine/README.md": {"piece"},  # in one piece
    "scheduler/README.md": {"piece"},  # likewise
}
PATH = re.compile(r"(?:\.\./)*[\w.*-]+(?:/[\w.*-]+)*/?")
EXTENSIONS = r"\.(c|h|cu|cuh|inc|def|py|sh|md|txt|json|html|conf|service|socket|cmake|svg|ini|jinja|jsonl)$"


def tracked():
    out = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, text=True, capture_output=True, check=True)
    return [p for p in out.stdout.splitlines() if (ROOT / p).is_file()]


FILES = tracked()
FOLDERS = {str(p) for f in FILES for p in pathlib.PurePath(f).parents}
NAMES = {pathlib.PurePath(f).name for f in FILES}


def forbidden():
    """Returns the words of the glossary's last column that have no remark."""
    words = []
    for line in (ROOT / "docs/GLOSSARY.md").read_text().splitlines():
        cells = [c.strip() for c in line.strip("|").split("|")] if line.startswith("|") else []
        if len(cells) == 3 and cells[2] not in ("", "not", "---"):
            words += [w.strip() for w in re.sub(r"[^,]*\([^)]*\)", "", cells[2]).split(",") if w.strip()]
    if len(words) < 10:
        sys.exit("docs/GLOSSARY.md: no words in the column `not`")
    return words


def exists(path, folder):
    path = path.rstrip("/")
    for base in (folder, pathlib.PurePath(".")):
        whole = re.sub(r"[^/]+/\.\./", "", str(base / path)).removeprefix("./")
        if whole in FILES or whole in FOLDERS or ("*" in whole and fnmatch.filter(FILES, whole)):
            return True
    return "/" not in path and bool(fnmatch.filter(NAMES, path))


def headings(path):
    text = re.sub(r"^```.*?^```", "", (ROOT / path).read_text(), flags=re.M | re.S)
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in re.findall(r"^#+ (.*)$", text, re.M)}


def is_path(span):
    """Whether a `span` is a path in the tree: it has a known extension, or begins with a top-level folder."""
    if not PATH.fullmatch(span) or "//" in span or "..." in span:
        return False
    first = span.split("/", 1)[0]
    return bool(re.search(EXTENSIONS, span)) or ("/" in span and first in FOLDERS)


def lint(path, words):
    folder, text = pathlib.PurePath(path).parent, (ROOT / path).read_text()
    history = any(fnmatch.fnmatch(path, p) for p in HISTORY)
    allowed = ALLOWED.get(path, set())
    in_code = False
    for n, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
            continue
        if in_code or line.startswith("    "):
            continue
        for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", line):
            file, _, anchor = target.partition("#")
            at = path if not file else str(pathlib.PurePath(*[p for p in (folder / file).parts]))
            if file and not exists(file, folder):
                yield n, f"no file behind the link {target}"
            elif anchor and not any(anchor in headings(p) for p in (at, re.sub(r"[^/]+/\.\./", "", at)) if (ROOT / p).is_file()):
                yield n, f"no heading behind the link {target}"
        if history:
            continue
        for span in re.findall(r"`([^`]+)`", line):
            if is_path(span) and not exists(span, folder):
                yield n, f"no file {span}"
        if len(line) > WIDTH and not line.startswith("|") and not re.search(r"\]\([^)]{40,}\)", line):
            yield n, f"{len(line)} characters"
        prose = re.sub(r"`[^`]*`|\]\([^)]*\)|https?:\S+", " ", line)
        for word in words:
            if word not in allowed and "*" not in allowed and re.search(rf"\b{re.escape(word)}s?\b", prose, re.I):
                yield n, f"'{word}': docs/GLOSSARY.md has another word"


def wrapped(paragraph):
    indent, bullet = re.match(r"(\s*)((?:[-*]|\d+\.) )?", paragraph[0]).groups(default="")
    text = " ".join(line.strip() for line in paragraph)[len(bullet):]
    lines = textwrap.wrap(text, WIDTH - 2, initial_indent=indent + bullet, subsequent_indent=indent + " " * len(bullet),
                          break_long_words=False, break_on_hyphens=False)
    for i in range(len(lines) - 1, 0, -1):  # no line may begin like a list item or a heading
        if re.match(r"\s*([-*+>#|]|\d+[.)])( |$)", lines[i]):
            lines[i - 1], word = lines[i - 1].rsplit(" ", 1)
            lines[i] = re.sub(r"(?=\S)", word + " ", lines[i], count=1)
    return lines


def wrap(path):
    """Wraps paragraphs and list items. Code, tables, headings, pictures and text between <!-- marks --> stay as they are."""
    out, paragraph, in_code, in_marks = [], [], False, False
    for line in [*(ROOT / path).read_text().splitlines(), ""]:
        fence = line.lstrip().startswith("```")
        in_marks = (in_marks or line.startswith("<!-- ")) and not line.startswith("<!-- /")
        if in_code or in_marks or fence or not line.strip() or re.match(r"[|#<]|!\[|    ", line) and not (
                paragraph and line.startswith("    ")):
            out += (wrapped(paragraph) if paragraph else []) + [line]
            paragraph, in_code = [], in_code != fence
            continue
        if paragraph and re.match(r"\s*([-*]|\d+\.) ", line):
            out += wrapped(paragraph)
            paragraph = []
        paragraph.append(line)
    (ROOT / path).write_text("\n".join(out))


def main():
    words, bad, files = forbidden(), 0, sys.argv[1:]
    if files[:1] == ["--wrap"]:
        files.pop(0)
        for path in files:
            wrap(path)
    for path in files or [f for f in FILES if f.endswith(".md")]:
        for n, what in lint(path, words):
            print(f"  {path}:{n}: {what}", file=sys.stderr)
            bad += 1
    print(f"  prose: {bad} faults; {len(words)} words given up")
    sys.exit(bool(bad))


main()
