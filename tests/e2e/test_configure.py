"""Configuring the build on a machine that lacks something: a plain build works without tests, and each missing thing gets one line."""
import os
import pathlib
import re
import shutil
import subprocess

import pytest
from harness import ROOT, SLOWNESS

pytestmark = pytest.mark.skipif(not shutil.which("cmake"), reason="no cmake on this machine")


def configure(tmp_path, hidden, *options):
    """Runs cmake -S . -B build with some modules hidden from pkg-config. Returns (exit code, all output)."""
    shown = tmp_path / "pkgconfig"
    shown.mkdir()
    path = subprocess.run(["pkg-config", "--variable", "pc_path", "pkg-config"], capture_output=True, text=True, check=True).stdout
    for folder in path.strip().split(":"):
        for pc in pathlib.Path(folder).glob("*.pc"):
            if pc.stem not in hidden and not (shown / pc.name).exists():
                (shown / pc.name).symlink_to(pc)
    env = {k: v for k, v in os.environ.items() if not k.startswith("PKG_CONFIG")}
    r = subprocess.run(["cmake", "-S", ROOT, "-B", tmp_path / "build", "-DTD_CUDA=OFF", *options], env={**env, "PKG_CONFIG_LIBDIR": str(shown)},
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120 * SLOWNESS)
    return r.returncode, r.stdout


def missing(text):
    """Returns the lines of the only error."""
    assert len(re.findall("CMake Error", text)) == 1, text
    return re.findall(r"^ +(\S+): apt install (\S+)", text, re.M)


def test_a_tree_that_was_moved_is_built_anew(tmp_path):
    """With scripts/lib.sh, as quickstart and scripts/test build. A symbolic link to the same folder does not count as a move."""
    def build(tree):
        r = subprocess.run(["bash", "-euc", '. scripts/lib.sh; configure_and_build "$ROOT/build"'], cwd=tree, stdin=subprocess.DEVNULL,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60 * SLOWNESS)
        assert r.returncode == 0, r.stdout
        return "begun anew" in r.stdout

    tree, moved, linked = (tmp_path / name for name in ("tree", "moved", "linked"))
    (tree / "scripts").mkdir(parents=True)
    shutil.copy(ROOT / "scripts/lib.sh", tree / "scripts")
    (tree / "CMakeLists.txt").write_text("cmake_minimum_required(VERSION 3.25)\nproject(x LANGUAGES NONE)\n")
    assert not build(tree) and not build(tree)
    tree.rename(moved)
    linked.symlink_to(moved)
    assert build(moved) and not build(moved) and not build(linked)


def test_a_plain_build_needs_no_cmocka(tmp_path):
    code, text = configure(tmp_path, ["cmocka"])
    assert code == 0 and "CMake Error" not in text and "CMake Warning" not in text, text
    (line,) = [line for line in text.splitlines() if "cmocka" in line]
    assert line.startswith("-- Tests: left out") and "libcmocka-dev" in line
    assert not (tmp_path / "build/tests").exists() and (tmp_path / "build/server").exists()


def test_a_plain_build_needs_no_libcurl(tmp_path):
    code, text = configure(tmp_path, ["libcurl"])
    assert code == 0 and "CMake Error" not in text and "CMake Warning" not in text, text
    (line,) = [line for line in text.splitlines() if "libcurl" in line]
    assert line.startswith("-- tandem-pull: left out") and "libcurl4-openssl-dev" in line
    assert not (tmp_path / "build/pull").exists() and (tmp_path / "build/server").exists()


def test_a_tandem_pull_that_is_asked_for_needs_it(tmp_path):
    code, text = configure(tmp_path, ["libcurl"], "-DTD_PULL=ON")
    assert code != 0 and missing(text) == [("libcurl", "libcurl4-openssl-dev")]


def test_tests_that_are_asked_for_need_it(tmp_path):
    code, text = configure(tmp_path, ["cmocka"], "-DTD_TESTS=ON")
    assert code != 0 and missing(text) == [("cmocka", "libcmocka-dev")]


def test_all_that_is_missing_is_said_at_once(tmp_path):
    code, text = configure(tmp_path, ["libcjson", "libxxhash", "libutf8proc", "libuv", "cmocka"], "-DTD_TESTS=ON")
    assert code != 0 and missing(text) == [("libcjson", "libcjson-dev"), ("libutf8proc", "libutf8proc-dev"), ("libxxhash", "libxxhash-dev"),
                                           ("libuv", "libuv1-dev"), ("cmocka", "libcmocka-dev")]


def test_what_is_found_is_built(tmp_path):
    code, text = configure(tmp_path, [])
    assert code == 0 and "left out" not in text, text
    assert (tmp_path / "build/tests").exists()


def test_no_server_needs_no_libuv(tmp_path):
    code, text = configure(tmp_path, ["libuv", "libllhttp"], "-DTD_SERVER=OFF")
    assert code == 0 and not (tmp_path / "build/server").exists(), text
