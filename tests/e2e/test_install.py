"""The files that `cmake --install` installs, and that man pages and completion have every option of --help. scripts/package-test installs
the .deb in bare Debians and runs its unit."""
import configparser
import gzip
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
from harness import DAEMON, ROOT, SLOWNESS

BUILD = pathlib.Path(DAEMON).parent
PROGRAMS = [p for p in ("tandemd", "tandem-bench", "tandem-plan", "tandem-pull") if (BUILD / p).exists()]
pytestmark = pytest.mark.skipif(not shutil.which("cmake") or not (BUILD / "packaging/documents.stamp").exists(),
                                reason="no cmake, or a build without man pages")


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """(folder, prefix): all installed files are below the folder."""
    folder = tmp_path_factory.mktemp("root")
    subprocess.run(["cmake", "--install", BUILD, "--strip"], env={"PATH": "/usr/bin:/bin", "DESTDIR": str(folder)}, check=True,
                   capture_output=True, timeout=120 * SLOWNESS)
    return folder, re.search(r"^CMAKE_INSTALL_PREFIX:PATH=(.*)$", (BUILD / "CMakeCache.txt").read_text(), re.M)[1]


def inside(tree, path):
    return tree[0] / tree[1].lstrip("/") / path


def help_options(*words):
    text = subprocess.run([BUILD / words[0], *words[1:], "--help"], capture_output=True, text=True, timeout=60).stdout
    return re.findall(r"^  (--[a-z0-9-]+)", text, re.M)


def all_options(program):
    if program != "tandem-bench":
        return {(program,): help_options(program)}
    commands = re.findall(r"^  (\w+) ", subprocess.run([BUILD / program, "--help"], capture_output=True, text=True).stdout, re.M)
    assert len(commands) >= 5
    return {(program, c): help_options(program, c) for c in commands}


def test_every_file(tree):
    wanted = ["lib/systemd/system/tandemd.service", "lib/systemd/system/tandemd.socket", "lib/sysusers.d/tandem.conf", "lib/tmpfiles.d/tandem.conf",
              "share/doc/tandem/examples/alerts.yml", "share/doc/tandem/examples/grafana.json", "share/doc/tandem/examples/haproxy.cfg",
              "share/doc/tandem/copyright", "share/doc/tandem/changelog.gz", "share/man/man8/tandemd.8.gz", "share/man/man5/tandem.conf.5.gz",
              "share/man/man1/tandem-bench.1.gz", "share/man/man1/tandem-plan.1.gz"]
    wanted += [f"share/doc/tandem/examples/{name}" for name in ("alerts.yml", "grafana.json", "haproxy.cfg")]
    for program in PROGRAMS:
        wanted += [f"bin/{program}", f"share/bash-completion/completions/{program}", f"share/zsh/vendor-completions/_{program}",
                   f"share/fish/vendor_completions.d/{program}.fish"]
    assert [w for w in wanted if not inside(tree, w).is_file()] == []
    assert len(list(tree[0].rglob("tandem.conf"))) == 3  # sysusers, tmpfiles, and the options
    (credentials,) = tree[0].rglob("credentials")
    assert credentials.stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="not root")
def test_postinst_follows_no_link(tmp_path):
    """The service user owns the folder of models from the first install on. An upgrade never changes the owner of what a link there names."""
    state, outside, owner = tmp_path / "state", tmp_path / "outside", 54321
    (tmp_path / "systemd-sysusers").write_text("#!/bin/sh\n")
    (tmp_path / "systemd-sysusers").chmod(0o755)
    script = (ROOT / "packaging/debian/postinst").read_text()
    for here, there in {"/var/lib/tandem": str(state), "tandem:tandem": f"{owner}:{owner}", "/run/systemd": str(tmp_path / "none")}.items():
        assert here in script
        script = script.replace(here, there)

    def configure():
        subprocess.run(["sh", "-c", script, "postinst", "configure"], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, check=True, timeout=60)
    configure()
    assert {(p.stat().st_uid, p.stat().st_gid, p.stat().st_mode & 0o777) for p in (state, state / "models")} == {(owner, owner, 0o755)}
    outside.mkdir()
    for target in outside, tmp_path / "absent":
        (state / "models").unlink() if (state / "models").is_symlink() else (state / "models").rmdir()
        (state / "models").symlink_to(target)
        configure()
        assert outside.stat().st_uid == 0 and not (tmp_path / "absent").exists() and (state / "models").is_symlink()


def test_the_unit_starts_what_was_installed(tree):
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str
    unit.read(inside(tree, "lib/systemd/system/tandemd.service"))
    program, option, file = unit["Service"]["ExecStart"].split()
    assert (tree[0] / program.lstrip("/")).is_file() and option == "--config" and (tree[0] / file.lstrip("/")).is_file()
    folder = unit["Service"]["LoadCredential"].partition(":")[2]
    assert (tree[0] / folder.lstrip("/")).is_dir()
    assert (tree[0] / file.lstrip("/")).read_text().count("/run/credentials/tandemd.service/tandem_api-keys") == 1
    users = inside(tree, "lib/sysusers.d/tandem.conf").read_text()
    assert re.search(rf"^u {unit['Service']['User']} ", users, re.M)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze on this machine")
def test_the_units_exposure(tree):
    r = subprocess.run(["systemd-analyze", "security", "--offline=true", "--no-pager", inside(tree, "lib/systemd/system/tandemd.service")],
                       capture_output=True, text=True, timeout=60 * SLOWNESS)
    (score,) = re.findall(r"Overall exposure level for tandemd.service: ([\d.]+)", r.stdout)
    assert float(score) <= 1.3


@pytest.mark.parametrize("program", PROGRAMS)
def test_pages_and_completion_say_every_option(tree, program):
    page = gzip.decompress(next(inside(tree, "share/man").rglob(f"{program}.[18].gz")).read_bytes()).decode()
    bash = inside(tree, f"share/bash-completion/completions/{program}").read_text()
    zsh = inside(tree, f"share/zsh/vendor-completions/_{program}").read_text()
    fish = inside(tree, f"share/fish/vendor_completions.d/{program}.fish").read_text()
    for options in all_options(program).values():
        for option in options:
            name = option[2:]
            assert f"\\fB{option}\\fR".replace("-", "\\-") in page, option
            assert re.search(rf"(?<![\w-]){option}(?![\w-])", bash), option
            assert re.search(rf"'{option}=?\[", zsh), option
            assert re.search(rf" -l {name} ", fish), option


def test_the_options_file_has_a_page_with_its_names(tree):
    page = gzip.decompress(inside(tree, "share/man/man5/tandem.conf.5.gz").read_bytes()).decode()
    conf = (ROOT / "packaging/tandem.conf").read_text()
    names = re.findall(r"^(?:# )?([a-z_]+) = ", conf, re.M)
    assert len(names) > 8
    for name in names:
        assert f"\\fB{name}\\fR = " in page
    queue, = re.findall(r"\\fBqueue_requests\\fR = \\fIN\\fR\n(.*)", page)
    assert "Default 1024, range 1..65536" in queue


def test_exit_codes_are_operating_mds(tree):
    page = gzip.decompress(inside(tree, "share/man/man8/tandemd.8.gz").read_bytes()).decode()
    assert re.findall(r"^\.TP\n\\fB(\d+)\\fR", page, re.M) == ["0", "64", "65", "66", "67", "69", "70"]
    assert re.search(r"^\\fBSIGTERM and SIGINT\\fR\n.*drain", page, re.M)


def complete(tree, line):
    """What bash offers after `line`."""
    words = line.split(" ")
    script = f"""compopt() {{ :; }}
. '{inside(tree, "share/bash-completion/completions/" + words[0])}'
COMP_WORDS=({" ".join(f"'{w}'" for w in words)}) COMP_CWORD={len(words) - 1}
_{words[0].replace("-", "_")}; printf '%s\\n' "${{COMPREPLY[@]}}\""""
    r = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, text=True, timeout=30, cwd=tree[0])
    assert r.returncode == 0 and r.stderr == "", r.stderr
    return r.stdout.split()


def test_bash_completes(tree):
    assert complete(tree, "tandemd --backend ") == ["auto", "cpu", "cuda"]
    assert complete(tree, "tandemd --log-level w") == ["warn"]
    assert "--queue-requests" in complete(tree, "tandemd --queue-r")
    assert complete(tree, "tandemd --queue-requests ") == []
    assert len(complete(tree, "tandemd --config ")) > 0  # files
    if "tandem-bench" in PROGRAMS:
        assert complete(tree, "tandem-bench ker") == ["kernels"]
        assert "--rounds" in complete(tree, "tandem-bench kernels --r") and "--rate" in complete(tree, "tandem-bench serve --ra")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_can_read_their_completion(tree, shell):
    if not shutil.which(shell):
        pytest.skip(f"no {shell} on this machine")
    folder = {"bash": "share/bash-completion/completions", "zsh": "share/zsh/vendor-completions", "fish": "share/fish/vendor_completions.d"}[shell]
    files = list(inside(tree, folder).iterdir())
    assert len(files) == len(PROGRAMS)
    for file in files:
        r = subprocess.run([shell, "-n", file], capture_output=True, text=True, timeout=30)
        assert r.returncode == 0 and r.stderr == "", r.stderr


@pytest.mark.skipif(not shutil.which("man"), reason="no man on this machine")
def test_man_reads_its_pages(tree):
    for page in inside(tree, "share/man").rglob("*.gz"):
        r = subprocess.run(["man", "--warnings", "-E", "UTF-8", "-l", page], capture_output=True, text=True, timeout=60, env={"PATH": "/usr/bin:/bin", "MANWIDTH": "100"})
        assert r.returncode == 0 and r.stderr == "" and "SEE ALSO" in r.stdout, (page.name, r.stderr)


def test_help_that_lists_nothing_is_an_error(tmp_path):
    for text in ("", "usage: tandemd\\n"):
        program = tmp_path / "tandemd"
        program.write_text(f"#!/bin/sh\nprintf '{text}'\n[ \"$1\" != --version ] || echo 'tandemd 0.0.1'\n")
        program.chmod(0o755)
        r = subprocess.run([sys.executable, ROOT / "packaging/documents.py", "--bin", tmp_path, "--out", tmp_path / "out"], capture_output=True, text=True)
        assert r.returncode != 0 and "--help" in r.stderr
