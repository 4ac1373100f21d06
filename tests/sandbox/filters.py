"""Settings of a unit as seccomp programs: those that systemd 252 makes of each (src/shared/seccomp-util.c), from an assembler in this file.

A filter's rules are tried in order; the first that matches decides whether the call is allowed or which error it gets. Conditions look at an
argument's low 32 bits. The same rules are also evaluated in Python, to tell which setting refused a call."""
import collections
import contextlib
import ctypes
import dataclasses
import errno
import fcntl
import os
import select
import socket
import struct
import threading
import time

from unit import on

ALLOW, NOTIFY, KILL, ERRNO = 0x7FFF0000, 0x7FC00000, 0x80000000, 0x00050000
ARCHES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
X32 = 0x40000000
PIDFD_GETFD = 438
NAMESPACES = [0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000, 0x00020000]  # cgroup uts ipc user pid net mnt
SUID, SGID, O_CREAT = 0o4000, 0o2000, os.O_CREAT
O_TMPFILE = os.O_TMPFILE & ~os.O_DIRECTORY
libc = ctypes.CDLL(None, use_errno=True)


@dataclasses.dataclass
class Rule:
    call: str
    conditions: tuple = ()  # (argument, mask, value): fits if argument & mask == value
    error: int = errno.EPERM  # 0: allowed


@dataclasses.dataclass
class Filter:
    setting: str
    rules: list
    default: int = 0  # an error, or 0: allowed
    foreign: int = ALLOW  # calls of another architecture


def of(unit, sets):
    """Returns the filters of all settings that have one."""
    return [f for f in (make(unit, sets) for make in MAKERS) if f]


def memory(unit, sets):
    w_and_x = (2, 6, 6)
    return on(unit, "MemoryDenyWriteExecute") and Filter("MemoryDenyWriteExecute", [
        Rule("mmap", (w_and_x,)), Rule("mprotect", ((2, 4, 4),)), Rule("pkey_mprotect", ((2, 4, 4),)), Rule("shmat", ((2, 0o100000, 0o100000),))])


def families(unit, sets):
    lines = unit.get("RestrictAddressFamilies")
    if not lines:
        return None
    names = " ".join(lines).split()
    if names[0].startswith("~"):
        raise SystemExit("RestrictAddressFamilies=~: not known to this script")
    rules = [Rule("socket", ((0, 0xFFFFFFFF, int(getattr(socket, name))),), 0) for name in names]
    return Filter("RestrictAddressFamilies", [*rules, Rule("socket", (), errno.EAFNOSUPPORT)])


def namespaces(unit, sets):
    rules = [Rule(call, ((0, flag, flag),)) for call in ("unshare", "clone") for flag in NAMESPACES]
    return on(unit, "RestrictNamespaces") and Filter("RestrictNamespaces", [*rules, Rule("setns"), Rule("clone3", (), errno.ENOSYS)])


def realtime(unit, sets):
    other_batch_idle = [Rule("sched_setscheduler", ((1, 0xFFFFFFFF, policy),), 0) for policy in (0, 3, 5)]
    return on(unit, "RestrictRealtime") and Filter("RestrictRealtime", [*other_batch_idle, Rule("sched_setscheduler")])


def set_ids(unit, sets):
    rules = []
    for bit in SUID, SGID:
        for call, mode in (("chmod", 1), ("fchmod", 1), ("fchmodat", 2), ("fchmodat2", 2), ("mkdir", 1), ("mkdirat", 2), ("mknod", 1), ("mknodat", 2),
                           ("creat", 1)):
            rules.append(Rule(call, ((mode, bit, bit),)))
        for call, flags in (("open", 1), ("openat", 2)):
            for create in O_CREAT, O_TMPFILE:
                rules.append(Rule(call, ((flags, create, create), (flags + 1, bit, bit))))
    return on(unit, "RestrictSUIDSGID") and Filter("RestrictSUIDSGID", [*rules, Rule("openat2", (), errno.ENOSYS)])


def persona(unit, sets):
    now = libc.personality(ctypes.c_ulong(0xFFFFFFFF))
    rules = [Rule("personality", ((0, 0xFFFFFFFF, value),), 0) for value in (now, 0xFFFFFFFF)]
    return on(unit, "LockPersonality") and Filter("LockPersonality", [*rules, Rule("personality")])


def architectures(unit, sets):
    lines = unit.get("SystemCallArchitectures")
    if lines and lines != ["native"]:
        raise SystemExit(f"SystemCallArchitectures={' '.join(lines)}: not known to this script")
    return Filter("SystemCallArchitectures", [], foreign=KILL) if lines else None


def calls(unit, sets):
    allow, names = sets.filtered(unit.get("SystemCallFilter", []))
    error = getattr(errno, unit.get("SystemCallErrorNumber", "EPERM"))
    rules = [Rule(name, (), 0 if allow else error) for name in sorted(names)]
    return None if allow is None else Filter("SystemCallFilter", rules, error if allow else 0)


def whole(setting, *words):
    """A setting that denies whole calls, in addition to its other effects."""
    return lambda unit, sets: on(unit, setting) and Filter(setting, [Rule(name) for name in sorted(sets.members(words))])


MAKERS = [memory, families, namespaces, realtime, set_ids, persona, whole("ProtectClock", "@clock"), whole("ProtectKernelModules", "@module"),
          whole("ProtectKernelLogs", "syslog"), whole("ProtectKernelTunables", "_sysctl"), whole("ProtectHostname", "sethostname", "setdomainname"),
          whole("PrivateDevices", "@raw-io"), architectures, calls]


# ---- the assembler ----

def op(code, k=0, yes=0, no=0):
    return code, yes, no, k & 0xFFFFFFFF


LOAD, AND, EQUAL, AT_LEAST, JUMP, RETURN = 0x20, 0x54, 0x15, 0x35, 0x05, 0x06


def foreign(action):
    """Refuses calls of another architecture; those of x32 have this architecture's name and a bit in the number."""
    machine = os.uname().machine
    code = [op(LOAD, 4), op(EQUAL, ARCHES[machine], 1, 0), op(RETURN, action)]
    return code + ([op(LOAD, 0), op(AT_LEAST, X32, 0, 1), op(RETURN, action)] if machine == "x86_64" else [])


def segment(f, numbers, refuse):
    """Assembles one filter: an allowed call reaches its end. refuse(error) is the returned value for others."""
    blocks = []
    for r in f.rules:
        if r.call not in numbers:
            continue  # not of this architecture: systemd leaves it out too
        tests = [x for arg, mask, value in r.conditions for x in (op(LOAD, 16 + 8 * arg), op(AND, mask), value)]
        body, total = [], len(tests) + 1
        for i, x in enumerate(tests):
            body.append(op(EQUAL, x, 0, total - i - 1) if isinstance(x, int) else x)
        blocks.append([op(LOAD, 0), op(EQUAL, numbers[r.call], 0, total), *body, refuse(r.error) if r.error else None])
    end = sum(map(len, blocks)) + (1 if f.default else 0)
    code = []
    for block in blocks:
        for x in block:
            code.append(op(JUMP, end - len(code) - 1) if x is None else x)
    return code + ([refuse(f.default)] if f.default else [])


def program(f, numbers):
    """Returns the program that systemd installs for the setting."""
    return [*foreign(f.foreign), *segment(f, numbers, lambda error: op(RETURN, ERRNO | error)), op(RETURN, ALLOW)]


def telling(filters, numbers):
    """All filters as one, which notifies us instead of refusing, and also about every open."""
    code = foreign(max((f.foreign for f in filters), default=ALLOW))
    for f in filters:
        code += segment(f, numbers, lambda error: op(RETURN, NOTIFY))
    opens = Filter("", [Rule(name) for name in ("open", "openat")])
    return [*code, *segment(opens, numbers, lambda error: op(RETURN, NOTIFY)), op(RETURN, ALLOW)]


def install(code, numbers, listen=False):
    """Returns the file from which notifications are read, with `listen`."""
    raw = b"".join(struct.pack("=HBBI", *x) for x in code)
    buffer = ctypes.create_string_buffer(raw, len(raw))
    prog = struct.pack("@HP", len(code), ctypes.addressof(buffer))
    prog = ctypes.create_string_buffer(prog, len(prog))
    n = ctypes.c_long(numbers["seccomp"])
    for flags in ((1 << 3 | 1 << 5, 1 << 3) if listen else (0,)):  # a listener, whose waiting callers only a fatal signal wakes
        got = libc.syscall(n, ctypes.c_uint(1), ctypes.c_uint(flags), prog)
        if got >= 0 or ctypes.get_errno() != errno.EINVAL:
            break
    if got < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return got


# ---- asked in Python ----

def verdict(filters, call, args):
    """Returns (setting, error) of the first filter that refuses."""
    for f in filters:
        error = f.default
        for r in f.rules:
            if r.call == call and all(args[arg] & mask == value for arg, mask, value in r.conditions):
                error = r.error
                break
        if error:
            return f.setting, error
    return None, 0


RECEIVE, SEND, VALID = 0xC0502100, 0xC0182101, 0x40082102
CONTINUE = 1
SHOWN = {"mmap": 2, "mprotect": 2, "pkey_mprotect": 2, "socket": 0, "clone": 0, "unshare": 0, "prctl": 0, "ioctl": 1, "sched_setscheduler": 1}


class Watch(threading.Thread):
    """Answers notifications: refuses as the unit would, and records refused calls and opened devices."""

    def __init__(self, listener, filters, sets):
        super().__init__(daemon=True)
        self.listener, self.filters, self.sets = listener, filters, sets
        self.refused = collections.Counter()  # (setting, call, error, thread)
        self.opened = {}  # path in /dev: how, as "rw"

    def run(self):
        poll = select.poll()
        poll.register(self.listener, select.POLLIN)
        while all(not event & (select.POLLHUP | select.POLLERR) for _, event in poll.poll()):
            notice = bytearray(80)
            try:
                fcntl.ioctl(self.listener, RECEIVE, notice)
                fcntl.ioctl(self.listener, SEND, bytearray(self.answer(notice)))
            except OSError as e:
                if e.errno not in (errno.ENOENT, errno.EINTR):  # who asked is gone
                    raise
        os.close(self.listener)

    def answer(self, notice):
        serial, pid, _, nr, _, _, *args = struct.unpack("=QIIiIQ6Q", notice)
        call = self.sets.names.get(nr, str(nr))
        setting, error = verdict(self.filters, call, args)
        if error:
            shown = f"{call}({args[SHOWN[call]]:#x})" if call in SHOWN else call
            self.refused[setting, shown, errno.errorcode[error], self.thread(pid)] += 1
            return struct.pack("=QqiI", serial, 0, -error, 0)
        if call in ("open", "openat"):
            at = call == "openat"
            path = self.text(pid, args[at])
            if path.startswith("/dev/"):
                self.opened[path] = "".join(sorted(set(self.opened.get(path, "")) | set(("r", "w", "rw", "")[args[1 + at] & 3])))
        return struct.pack("=QqiI", serial, 0, 0, CONTINUE)

    @staticmethod
    def thread(pid):
        try:
            with open(f"/proc/{pid}/comm") as f:
                return f.read().strip()
        except OSError:
            return "?"

    @staticmethod
    def text(pid, address):
        try:
            with open(f"/proc/{pid}/mem", "rb", 0) as f:
                f.seek(address)
                return os.read(f.fileno(), 4096 - address % 4096).split(b"\0")[0].decode("utf-8", "replace")
        except (OSError, OverflowError, ValueError):
            return ""


def fetch_listener(pid):
    """Returns the file from which notifications of process `pid` are read, once it has one."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):
                if os.readlink(f"/proc/{pid}/fd/{fd}") == "anon_inode:seccomp notify":
                    process = os.pidfd_open(pid)
                    got = libc.syscall(ctypes.c_long(PIDFD_GETFD), ctypes.c_int(process), ctypes.c_int(int(fd)), ctypes.c_uint(0))
                    os.close(process)
                    if got < 0:
                        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
                    return got
        time.sleep(0.01)
    raise OSError(errno.ESRCH, "the process has installed no filter")
