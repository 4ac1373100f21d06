#!/usr/bin/env python3
"""Makes man pages and shell completion from the programs' --help.

    documents.py --bin BUILD --out FOLDER   runs the programs in BUILD; writes man/ and completion/ in FOLDER

The programs make --help from their tables of options, so a new option appears everywhere. The prose around it is in this file; the exit
codes come from docs/OPERATING.md. The build runs this (packaging/CMakeLists.txt); tests/e2e/test_install.py checks it. Standard library only."""
import argparse
import gzip
import pathlib
import re
import subprocess
import sys
import typing

ROOT = pathlib.Path(__file__).resolve().parent.parent
OPTION = re.compile(r"^  (--?[a-z][a-z0-9-]*)(?: ([^\s]+))?(?:  +| $|$)(.*)$")
COMMAND = re.compile(r"^  ([a-z]+) +(\S.*)$")
RANGE = re.compile(r" \[(\d+), (\d+\.\.\d+)( [^\]]*)?\]$")
DEFAULT = re.compile(r" \(default ([^()]*)\)$")
CHOICES = re.compile(r"^((?:[a-z0-9-]+, )*[a-z0-9-]+,? or [a-z0-9-]+)(?=[ :;.(]|$)")


class Option(typing.NamedTuple):
    name: str  # "--listen"
    value: str  # "ADDR"; "" for a flag
    help: str

    @property
    def choices(self):
        """The allowed values, if help begins with a list of them: "auto, cpu or cuda"."""
        m = self.value and CHOICES.match(self.help)
        return re.split(r", or |, | or ", m[1]) if m else []

    @property
    def takes_file(self):
        return self.value in ("PATH", "FILE", "DIR")


class Help(typing.NamedTuple):
    name: str  # "tandem-bench serve"
    usage: str
    about: list  # lines between usage and the first option
    sections: list  # of (title, [Option])
    commands: list  # of (name, what)

    @property
    def options(self):
        return [o for _, options in self.sections for o in options]


def read_help(text, name):
    """Parses --help as the programs print it: prose, then lines that begin with two spaces, optionally below a "Title:"."""
    about, sections, commands, usage = [], [("", [])], [], ""
    for line in text.splitlines():
        option, command = OPTION.match(line), COMMAND.match(line)
        if option:
            sections[-1][1].append(Option(option[1], option[2] or "", option[3].strip()))
        elif command:
            commands.append((command[1], command[2]))
        elif line.startswith("usage: "):
            usage = line.removeprefix("usage: ")
        elif re.fullmatch(r"[A-Z][A-Za-z ,]*:", line):
            sections.append((line[:-1], []))
        elif usage and not commands and len(sections) == 1 and not sections[0][1]:
            about.append(line)
    if not usage:
        sys.exit(f"{name} --help prints no usage")
    return Help(name, usage, "\n".join(about).strip().splitlines(), [s for s in sections if s[1]], commands)


def told(args, program, *words):
    r = subprocess.run([*args.through, args.bin / program, *words], text=True, capture_output=True, timeout=60, check=True)
    return r.stdout


def ask(args, *words):
    h = read_help(told(args, *words, "--help"), " ".join(words))
    if h.options and "--help" not in [o.name for o in h.options]:
        h.sections[-1][1].append(Option("--help", "", "print this text, and exit"))
    return h


# ---- man pages ----

def roff(text):
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga").replace("^", "\\(ha").replace("~", "\\(ti")
    return "\\&" + text if text.startswith(".") else text


def paragraphs(lines):
    return "\n.PP\n".join(roff(" ".join(p.split())) for p in re.split(r"\n\s*\n", "\n".join(lines)) if p.strip())


def tagged(tag, text):
    return f".TP\n{tag}\n{roff(text)}"


def man_options(options):
    return "\n".join(tagged(f"\\fB{roff(o.name)}\\fR" + (f" \\fI{roff(o.value)}\\fR" if o.value else ""), o.help or "(see above)")
                     for o in options)


def man_sections(h):
    return "\n".join((f".SS {roff(title)}\n" if title else "") + man_options(options) for title, options in h.sections)


def man_page(name, section, version, what, parts):
    """parts: (heading, roff) pairs; pairs without text are left out."""
    head = f'.\\" Made by packaging/documents.py\n.TH {roff(name).upper()} {section} "" "tandem {version}" "tandem"\n'
    parts = [("NAME", f"{roff(name)} \\- {roff(what)}"), *parts]
    return head + "\n".join(f".SH {title}\n{text}" for title, text in parts if text) + "\n"


def exit_codes():
    """The table in docs/OPERATING.md."""
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", (ROOT / "docs/OPERATING.md").read_text(), re.M)
    if len(rows) < 5:
        sys.exit("docs/OPERATING.md has no table of exit codes")
    return "\n".join(tagged(f"\\fB{code}\\fR", re.sub(r"`", "", text)) for code, text in rows)


def plain(markdown):
    return re.sub(r"`|\[([^\]]*)\]\([^)]*\)", lambda m: m[1] or "", " ".join(markdown.split()))


def bullets(page):
    return [plain(b) for b in re.findall(r"^- ((?:.+\n)(?:  .+\n)*)", (ROOT / page).read_text(), re.M)]


def signals():
    """The bullets of docs/OPERATING.md that begin with a signal's name."""
    found = [m for b in bullets("docs/OPERATING.md") if (m := re.match(r"(SIG[A-Z]+(?: and SIG[A-Z]+)*) (.*)", b))]
    if not found:
        sys.exit("docs/OPERATING.md says nothing about signals")
    return "\n".join(tagged(f"\\fB{m[1]}\\fR", m[2]) for m in found)


def see_also(*pages):
    return ",\n".join(f".BR {roff(name)} ({section})".replace("(", " (", 1).replace("  ", " ") for name, section in pages)


ENVIRONMENT = "\n".join([
    tagged("\\fBNOTIFY_SOCKET\\fR, \\fBWATCHDOG_USEC\\fR, \\fBLISTEN_FDS\\fR", "set by systemd: readiness, watchdog and the listening socket"),
    tagged("\\fBTANDEM_\\fR\\fIOPTION\\fR", "any option, in capitals, such as TANDEM_LISTEN=127.0.0.1:8080; TANDEM_CONFIG names the options file"),
    tagged("\\fBTANDEM_MODEL_DIR\\fR", "the only folder in which a --model that is not a path is looked for; see tandem-pull(1)"),
    tagged("\\fBCACHE_DIRECTORY\\fR, \\fBXDG_CACHE_HOME\\fR, \\fBHOME\\fR", "places of --cache-dir auto, the first that is set")])
FILES = "\n".join([
    tagged("\\fI/etc/tandem/tandem.conf\\fR", "options of the systemd service"),
    tagged("\\fI/etc/tandem/credentials/api-keys\\fR", "API keys, one per line; systemd passes them to the service"),
    tagged("\\fI/var/lib/tandem/models\\fR", "models that tandem-pull fetched for the service"),
    tagged("\\fI/var/cache/tandem\\fR", "measurements of the device")])


def daemon_pages(h, version):
    limits = "\n".join(conf_entry(o) for o in h.options if o.value and o.name != "--config")
    yield "tandemd.8", man_page("tandemd", 8, version, "LLM serving daemon", [
        ("SYNOPSIS", roff(h.usage)),
        ("DESCRIPTION", roff("tandemd loads the weights of a model and serves it over HTTP, in the form of the OpenAI API, on a CPU or an NVIDIA GPU. "
                             "A page with a chat is at /.") + "\n.PP\n" + paragraphs(h.about)),
        ("OPTIONS", man_sections(h)), ("SIGNALS", signals()), ("EXIT STATUS", exit_codes()), ("ENVIRONMENT", ENVIRONMENT), ("FILES", FILES),
        ("SEE ALSO", see_also(("tandem.conf", 5), ("tandem-pull", 1), ("tandem-bench", 1), ("tandem-plan", 1), ("systemd.service", 5)))])
    yield "tandem.conf.5", man_page("tandem.conf", 5, version, "options file of tandemd", [
        ("DESCRIPTION", roff("A line is `name = value`. Names are those of the command line without the leading dashes. An unknown or "
                             "repeated name and a bad value are errors; the message names the line. The environment and the command line win over the file.") + "\n.PP\n.B tandemd \\-\\-config\n.I FILE\n.B \\-\\-check\n" +
         roff("checks a file and the model that it names.") + "".join("\n.PP\n" + roff(b) for b in bullets("docs/OPTIONS.md") if "tandem.conf" not in b)),
        ("OPTIONS", limits), ("FILES", FILES), ("SEE ALSO", see_also(("tandemd", 8)))])


def conf_entry(o):
    text, bounds, default = o.help, RANGE.search(o.help), DEFAULT.search(o.help)
    if bounds:
        text = f"{text[:bounds.start()]}. Default {bounds[1]}, range {bounds[2]}{bounds[3] or ''}."
    elif default:
        text = f"{text[:default.start()]}. Default: {default[1]}."
    return tagged(f"\\fB{roff(o.name[2:].replace('-', '_'))}\\fR = \\fI{roff(o.value)}\\fR", text)


def tool_page(h, commands, version, what):
    """The page of a program with options, or with commands that have options."""
    name = roff(h.name)
    parts = [("SYNOPSIS", roff(h.usage)),
             ("DESCRIPTION", paragraphs(h.about) if not h.commands else "\n".join(tagged(f"\\fB{roff(n)}\\fR", w) for n, w in h.commands)),
             ("OPTIONS", man_sections(h))]
    parts += [(f"{name} {roff(c.name.split()[1])}".upper(), roff(c.usage) + "\n.PP\n" + paragraphs(c.about) + "\n" + man_sections(c)) for c in commands]
    return man_page(h.name, 1, version, what, [*parts, ("SEE ALSO", see_also(("tandemd", 8)))])


# ---- completion ----

def shell_name(program):
    return "_" + program.replace("-", "_")


def bash(program, h, commands):
    """A case for each option with a value. It completes to the choices, to files, or to nothing."""
    def cases(options, indent):
        for o in options:
            if o.value:
                reply = (f'COMPREPLY=($(compgen -W "{" ".join(o.choices)}" -- "$cur"))' if o.choices else
                         'COMPREPLY=($(compgen -f -- "$cur")); compopt -o filenames 2>/dev/null' if o.takes_file else "COMPREPLY=()")
                yield f"{indent}{o.name}) {reply}; return ;;"

    def words(options):
        return " ".join(o.name for o in options)
    f, out = shell_name(program), [f"# bash completion of {program}; made by packaging/documents.py"]
    out += [f"{f}()", "{", '  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} options']
    if commands:
        names = " ".join(n for n, _ in h.commands)
        out += ['  if [ "$COMP_CWORD" -eq 1 ]; then', f'    COMPREPLY=($(compgen -W "{names} --help" -- "$cur")); return', "  fi", "  case ${COMP_WORDS[1]} in"]
        for c in commands:
            out += [f"    {c.name.split()[1]})", "      case $prev in", *cases(c.options, "        "), "      esac",
                    f'      options="{words(c.options)}" ;;']
        out += ["  esac"]
    else:
        out += ["  case $prev in", *cases(h.options, "    "), "  esac", f'  options="{words(h.options)}"']
    out += ['  COMPREPLY=($(compgen -W "$options" -- "$cur"))', "}", f"complete -F {f} {program}"]
    return "\n".join(out) + "\n"


def zsh(program, h, commands):
    def quote(text):
        return re.sub(r"([\[\]:\\])", r"\\\1", text).replace("'", "'\\''")

    def spec(o):
        action = f":{o.value}:({' '.join(o.choices)})" if o.choices else f":{o.value}:_files" if o.takes_file else f":{quote(o.value)}: " if o.value else ""
        return f"    '{o.name}{'=' if o.value else ''}[{quote(o.help)}]{action}'"

    def arguments(options, indent="  "):
        return indent + "_arguments -S \\\n" + " \\\n".join([spec(o) for o in options] or ["    '--help[print the usage]'"])
    out = [f"#compdef {program}", "# made by packaging/documents.py"]
    if not commands:
        return "\n".join([*out, arguments(h.options, "")]) + "\n"
    out += ["if (( CURRENT == 2 )); then", "  local -a commands", "  commands=("] + [f"    '{n}:{quote(w)}'" for n, w in h.commands]
    out += ["  )", "  _describe command commands", "  return", "fi", "local command=$words[2]", "shift words", "(( CURRENT-- ))", "case $command in"]
    for c in commands:
        out += [f"{c.name.split()[1]})", arguments(c.options), "  ;;"]
    return "\n".join([*out, "esac"]) + "\n"


def fish(program, h, commands):
    def quote(text):
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

    def line(o, condition):
        value = (f" -x -a {quote(' '.join(o.choices))}" if o.choices else " -r -F" if o.takes_file else " -x") if o.value else ""
        return f"complete -c {program}{condition} -l {o.name.lstrip('-')}{value} -d {quote(o.help)}"
    out = ["# made by packaging/documents.py", f"complete -c {program} -f"]
    if not commands:
        return "\n".join(out + [line(o, "") for o in h.options]) + "\n"
    out += [f"complete -c {program} -n __fish_use_subcommand -a {n} -d {quote(w)}" for n, w in h.commands]
    for c in commands:
        out += [line(o, f" -n '__fish_seen_subcommand_from {c.name.split()[1]}'") for o in c.options]
    return "\n".join(out) + "\n"


# ---- all of them ----

WHAT = {"tandem-bench": "measure tandem, its parts and OpenAI-compatible servers",
        "tandem-plan": "predict how many requests per second a device can serve", "tandem-pull": "fetch a model for tandemd"}


def write(path, text, zipped=False):
    path.parent.mkdir(parents=True, exist_ok=True)
    data = text.encode()
    path.write_bytes(gzip.compress(data, 9, mtime=0) if zipped else data)  # mtime=0: every build makes the same bytes


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bin", type=pathlib.Path, required=True, help="folder of the programs")
    p.add_argument("--through", type=str.split, default=[], metavar="COMMAND", help="what runs programs of another kind of machine")
    p.add_argument("--out", type=pathlib.Path, required=True, help="folder for man/ and completion/")
    args = p.parse_args()
    version = told(args, "tandemd", "--version").split()[-1]
    for program in ("tandemd", *WHAT):
        if not (args.bin / program).exists():
            continue
        h = ask(args, program)
        commands = [ask(args, program, name) for name, _ in h.commands]
        if len(h.options) + sum(len(c.options) for c in commands) < 3:
            sys.exit(f"{program} --help lists no options")
        pages = daemon_pages(h, version) if program == "tandemd" else [(f"{program}.1", tool_page(h, commands, version, WHAT[program]))]
        for name, text in pages:
            write(args.out / "man" / f"{name}.gz", text, zipped=True)
        write(args.out / "completion/bash" / program, bash(program, h, commands))
        write(args.out / "completion/zsh" / f"_{program}", zsh(program, h, commands))
        write(args.out / "completion/fish" / f"{program}.fish", fish(program, h, commands))
    write(args.out / "man/changelog.gz", (ROOT / "CHANGELOG.md").read_text(), zipped=True)


if __name__ == "__main__":
    main()
