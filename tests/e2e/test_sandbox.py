"""The daemon works under all restrictions of its unit, without systemd (tests/sandbox), and this test detects a unit that is too strict."""
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
from harness import DAEMON, ROOT, SLOWNESS

SCRIPT = ROOT / "tests/sandbox/unit_sandbox.py"
UNIT, DROP_IN = ROOT / "packaging/tandemd.service", ROOT / "packaging/tandemd-gpu.conf"
sys.path.append(str(SCRIPT.parent))
pytestmark = pytest.mark.skipif(os.uname().machine not in ("x86_64", "aarch64") or re.search(b"__[at]san_init", pathlib.Path(DAEMON).read_bytes()) is not None,
                                reason="no numbers of system calls here, or a sanitizer, which asks for more than the unit gives")


def sandbox(*options, daemon=DAEMON):
    r = subprocess.run([sys.executable, SCRIPT, "--daemon", daemon, "--seconds", str(30 * SLOWNESS), *map(str, options)], capture_output=True, text=True,
                       timeout=300 * SLOWNESS)
    assert r.stderr == "", r.stderr
    return r.returncode, r.stdout


def in_short(text):
    return text.partition("## In short")[2]


def test_it_serves_under_its_unit():
    code, text = sandbox()
    assert code in (0, 2) and "All holds" in in_short(text), text
    assert "not known" not in text and text.count("| stop | exit code 0 |") == 2
    if code == 2:
        pytest.skip("not all could be applied here: " + in_short(text))


def test_it_serves_under_the_gpu_drop_in():
    code, text = sandbox("--drop-in", DROP_IN)
    assert code in (0, 2) and "All holds" in in_short(text), text


@pytest.mark.parametrize("call", ["futex", "epoll_wait", "sendmsg"])
def test_a_filter_without_what_the_daemon_needs(call):
    words = {"epoll_wait": "epoll_wait epoll_pwait epoll_pwait2", "sendmsg": "sendmsg sendto"}.get(call, call)
    code, text = sandbox("--set", f"SystemCallFilter=~{words}")
    assert code == 1 and "Not all holds" in in_short(text)
    assert re.search(rf"^\| ({words.replace(' ', '|')}) \| EPERM \| SystemCallFilter \|", text, re.M), text


WRITES_CODE = """
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
int main(int argc, char **argv)
{
  if (argc > 1 && argv[1][2] == 'v')
    return 0;
  if (mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED)
    _exit(71);
  execv(getenv("TANDEM_THE_DAEMON"), argv);
  _exit(72);
}
"""


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
def test_a_daemon_that_makes_code(tmp_path, monkeypatch):
    """The unit denies memory that is writable and executable. A drop-in may allow it; ours for GPUs does not."""
    (tmp_path / "w.c").write_text(WRITES_CODE)
    subprocess.run(["cc", "-o", tmp_path / "daemon", tmp_path / "w.c"], check=True)
    tmp_path.chmod(0o755)
    monkeypatch.setenv("TANDEM_THE_DAEMON", "/nonexistent")
    code, text = sandbox(daemon=tmp_path / "daemon")
    assert code == 1 and "ended with 71" in in_short(text)
    assert re.search(r"^\| mmap\(0x7\) \| EPERM \| MemoryDenyWriteExecute \|", text, re.M), text
    more = tmp_path / "more.conf"
    more.write_text("[Service]\nMemoryDenyWriteExecute=no\n")
    assert "ended with 71" in in_short(sandbox("--drop-in", DROP_IN, daemon=tmp_path / "daemon")[1])
    assert "ended with 72" in in_short(sandbox("--drop-in", DROP_IN, "--drop-in", more, daemon=tmp_path / "daemon")[1])


def test_a_setting_that_was_not_applied_is_told(tmp_path):
    more = tmp_path / "more.conf"
    more.write_text("[Service]\nProtectEverything=yes\n")
    code, text = sandbox("--drop-in", more)
    assert code == 1 and "ProtectEverything=yes: this script does not know the setting" in in_short(text)


def test_settings_are_merged_as_systemd_does(tmp_path):
    import unit as units
    more = tmp_path / "more.conf"
    more.write_text("[Unit]\nUser=nobody\n[Service]\n# no\nSystemCallFilter=~@aio \\\n  chmod\nDeviceAllow=\nDeviceAllow=/dev/null r\nUMask=0022\nMemoryDenyWriteExecute=no\n")
    u, sets = units.read([UNIT, DROP_IN, more]), units.Sets()
    assert (u["User"], u["UMask"], u["MemoryDenyWriteExecute"], u["DeviceAllow"]) == ("tandem", "0022", "no", ["/dev/null r"])
    allow, names = sets.filtered(u["SystemCallFilter"])
    assert allow and {"read", "execve", "futex"} <= names and not names & {"io_setup", "chmod", "setuid", "setpriority", "bpf"}
    assert sets.filtered(["~@clock", "adjtimex"])[1] == sets.members(["@clock"]) - {"adjtimex"}


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze on this machine")
def test_the_recorded_sets_are_systemds():
    import unit as units
    sets = units.Sets()
    version = subprocess.run(["systemd-analyze", "--version"], capture_output=True, text=True).stdout.split(" ", 1)[1].splitlines()[0]
    if version.split()[0] != sets.systemd.split()[0]:
        pytest.skip(f"systemd {version} is not the one that was recorded, {sets.systemd}")
    for name in ("@default", "@system-service", "@privileged", "@resources"):
        shown = subprocess.run(["systemd-analyze", "--no-pager", "syscall-filter", name], capture_output=True, text=True).stdout
        assert [line.strip() for line in shown.splitlines()[1:] if line.strip() and line.strip()[0] != "#"] == sets.sets[name]


def test_the_drop_in_opens_what_cuda_opens(monkeypatch):
    """Its lines name drivers as /proc/devices does. Only the number 195 is always the same."""
    import unit as units
    names = [("c", "mem", 1), ("c", "nvidia", 195), ("c", "nvidia-modeset", 195), ("c", "nvidiactl", 195), ("c", "nvidia-nvlink", 235), ("c", "nvidia-caps", 236),
             ("c", "nvidia-caps-imex-channels", 237), ("c", "nvidia-uvm", 510), ("b", "nvidia", 259), ("c", "rtc", 252), ("c", "pts", 136)]
    monkeypatch.setattr(units, "majors", lambda: names)
    closed, gpu = (units.resolve(units.policy_of(units.read(files))) for files in ([UNIT], [UNIT, DROP_IN]))
    nvidia0, nvidiactl, uvm, uvm_tools, caps = (195, 0), (195, 255), (510, 0), (510, 1), (236, 1)
    assert all(units.allows(gpu, "c", *device, "rw") for device in (nvidia0, nvidiactl, uvm, uvm_tools))
    assert units.allows(gpu, "c", *caps, "r") and not units.allows(gpu, "c", *caps, "rw")
    assert not any(units.allows(gpu, kind, *device, "r") for kind, device in (("b", (259, 0)), ("c", (235, 0)), ("c", (237, 0)), ("c", (1, 1)), ("c", (10, 229))))
    assert not any(units.allows(closed, "c", *device, "r") for device in (nvidia0, nvidiactl, uvm, caps)) and units.allows(closed, "c", 1, 3, "rw")
