"""Puts a process under the restrictions of a unit without systemd: namespaces, mounts, a cgroup's device program, limits, user,
capabilities, seccomp, in systemd's order. Each step reports whether it was possible here."""
import contextlib
import ctypes
import grp
import json
import os
import pwd
import re
import resource
import socket
import stat
import struct

import filters
import unit as units
from unit import on

libc = filters.libc
RDONLY, NOSUID, NODEV, NOEXEC, REMOUNT, BIND, MOVE, REC, SLAVE = 1, 2, 4, 8, 32, 4096, 8192, 16384, 1 << 19
NEWNS, NEWUTS, NEWUSER = 0x00020000, 0x04000000, 0x10000000
MOUNT_SETATTR, RECURSIVE = 442, 0x8000
KEYCTL = {"x86_64": 250, "aarch64": 219}
BPF = {"x86_64": 321, "aarch64": 280}
PR_SET_NO_NEW_PRIVS, PR_CAPBSET_DROP, PR_CAP_AMBIENT, PR_SET_MDWE = 38, 24, 47, 65
SPARE_UID = 61184  # the first of systemd's range of dynamic users
# ProtectKernelTunables: read-only paths, and inaccessible ones.
TUNABLES = ["/proc/acpi", "/proc/apm", "/proc/asound", "/proc/bus", "/proc/fs", "/proc/irq", "/proc/latency_stats", "/proc/mtrr", "/proc/scsi",
            "/proc/sys", "/proc/sysrq-trigger", "/proc/timer_stats", "/sys"]
HIDDEN = ["/proc/kallsyms", "/proc/kcore"]
# Settings for the service manager itself, or done by this script when it starts the daemon.
MANAGER = {"Restart": "the manager's", "RestartSec": "the manager's", "RestartPreventExitStatus": "the manager's", "RemoveIPC": "the manager's, at the stop",
           "ExecStart": "this daemon, with an options file of its own", "ExecReload": "SIGHUP is sent", "KillMode": "SIGTERM to the daemon",
           "TimeoutStartSec": "a shorter one", "TimeoutStopSec": "as it is", "Type": "the notification is awaited", "NotifyAccess": "one process",
           "WatchdogSec": "its period is given, and its signs of life are counted", "ConfigurationDirectory": "the options file is read-only",
           "ProcSubset": "all: nothing is taken away", "IPAddressAllow": "any: nothing is taken away", "CacheDirectoryMode": "as it is",
           "SystemCallErrorNumber": "the filter's"}


def check(result):
    if result < 0:
        e = ctypes.get_errno()
        raise OSError(e, os.strerror(e))
    return result


def syscall(n, *args):
    return check(libc.syscall(ctypes.c_long(n), *args))


def mount(source, target, kind=None, flags=0, data=None):
    texts = [None if t is None else str(t).encode() for t in (source, target, kind)]
    check(libc.mount(*texts, ctypes.c_ulong(flags), data.encode() if data else None))


def read_only(path, yes=True, recursive=True):
    attributes = struct.pack("=4Q", 1 if yes else 0, 0 if yes else 1, 0, 0)
    syscall(MOUNT_SETATTR, ctypes.c_int(-100), str(path).encode(), ctypes.c_uint(RECURSIVE if recursive else 0), attributes,
            ctypes.c_size_t(len(attributes)))


def prctl(what, *args):
    return check(libc.prctl(ctypes.c_int(what), *(ctypes.c_ulong(x) for x in (*args, 0, 0, 0, 0)[:4])))


def user_of(unit):
    """Returns (uid, gid, remark) for User= and Group=."""
    try:
        user = pwd.getpwnam(unit["User"])
        return user.pw_uid, grp.getgrnam(unit.get("Group", unit["User"])).gr_gid, f"{unit['User']}, uid {user.pw_uid}"
    except KeyError:
        return SPARE_UID, SPARE_UID, f"uid {SPARE_UID}, for want of a user {unit['User']}"


# ---- devices: the program that systemd attaches to a unit's cgroup ----

def device_program(resolved):
    def insn(code, dst=0, src=0, off=0, imm=0):
        return struct.pack("=BBhi", code, dst | src << 4, off, imm)
    load, move, also, less, unequal, put, leave = 0x61, 0xBF, 0x57, 0x77, 0x55, 0xB7, 0x95
    out = [insn(load, 2, 1, 0), insn(move, 3, 2), insn(also, 2, imm=0xFFFF), insn(less, 3, imm=16), insn(load, 4, 1, 4), insn(load, 5, 1, 8)]
    for access, devices in resolved.values():
        bits = sum({"m": 1, "r": 2, "w": 4}[a] for a in access)
        for kind, major, minor in devices:
            tests = [(2, {"b": 1, "c": 2}[kind]), (4, major), *([(5, minor)] if minor is not None else [])]
            left = len(tests) + 5
            for register, value in tests:
                left -= 1
                out.append(insn(unequal, register, 0, left, value))
            # only the allowed access
            out += [insn(move, 1, 3), insn(also, 1, imm=~bits & 7), insn(unequal, 1, 0, 2, 0), insn(put, 0, imm=1), insn(leave)]
    return b"".join([*out, insn(put, 0, imm=0), insn(leave)])


class Cgroup:
    """A separate cgroup with the device program; `close` removes it."""

    def __init__(self, resolved):
        found = [line.split() for line in open("/proc/self/mountinfo") if " - cgroup2 " in line]
        if not found:
            raise OSError(0, "no cgroup2 is mounted")
        own = [line.strip().split("::")[1] for line in open("/proc/self/cgroup") if line.startswith("0::")]
        self.path = f"{found[0][4]}{own[0].rstrip('/')}/tandem-sandbox-{os.getpid()}"
        os.mkdir(self.path)
        try:
            self.attach(device_program(resolved))
        except OSError:
            self.close()
            raise

    def attach(self, code):
        code, licence, log = ctypes.create_string_buffer(code, len(code)), ctypes.create_string_buffer(b"GPL"), ctypes.create_string_buffer(65536)
        n = BPF[os.uname().machine]
        load = struct.pack("=IIQQIIQ", 15, len(code) // 8, ctypes.addressof(code), ctypes.addressof(licence), 1, len(log), ctypes.addressof(log)).ljust(128, b"\0")
        program = syscall(n, ctypes.c_int(5), load, ctypes.c_uint(len(load)))
        folder = os.open(self.path, os.O_RDONLY)
        attach = struct.pack("=IIII", folder, program, 6, 2).ljust(128, b"\0")
        try:
            syscall(n, ctypes.c_int(8), attach, ctypes.c_uint(len(attach)))
        finally:
            os.close(folder)
            os.close(program)

    def close(self):
        os.rmdir(self.path)


# ---- the process ----

class Confined:
    """A process to be started: the unit's settings, and the means of this machine. enter() is called in the child."""

    def __init__(self, unit, sets, work, writable, cgroup, hidden_devices, tell):
        self.unit, self.sets, self.work, self.writable = unit, sets, work, writable
        self.cgroup, self.hidden_devices = cgroup, hidden_devices
        self.filters, self.tell = filters.of(unit, sets), tell
        self.root = os.geteuid() == 0

    def say(self, **message):
        self.channel.send(json.dumps(message).encode())

    def step(self, setting, what, act):
        """Calls act; without the permission or the kernel's feature, the process continues without it."""
        try:
            act()
            self.say(setting=setting, done=what)
        except OSError as e:
            self.say(setting=setting, missing=f"{what}: {e.strerror or e}")

    def steps(self, setting, *pairs):
        if on(self.unit, setting):
            for what, act in pairs:
                self.step(setting, what, act)

    def enter(self, channel):
        self.channel, u = channel, self.unit
        self.limits()
        if u.get("KeyringMode") == "private":
            self.step("KeyringMode", "a session keyring of its own", lambda: syscall(KEYCTL[os.uname().machine], ctypes.c_int(1), None))
        if self.cgroup:
            self.step("DevicePolicy", "a device program on its cgroup",
                      lambda: open(f"{self.cgroup.path}/cgroup.procs", "w").write("0"))
        if self.namespaces():
            self.mounts()
        self.identity()
        if on(u, "MemoryDenyWriteExecute"):
            self.step("MemoryDenyWriteExecute", "prctl(PR_SET_MDWE)", lambda: prctl(PR_SET_MDWE, 1))
        self.steps("NoNewPrivileges", ("prctl", lambda: prctl(PR_SET_NO_NEW_PRIVS, 1)))
        if self.tell:
            self.say(listener=1)  # the parent fetches it, because the filter may refuse to send it
            filters.install(filters.telling(self.filters, self.sets.numbers), self.sets.numbers, True)
            with contextlib.suppress(OSError):  # it may refuse this too
                channel.recv(100)
        for f in self.filters:
            self.step(f.setting, "seccomp", (lambda: None) if self.tell else
                      lambda f=f: filters.install(filters.program(f, self.sets.numbers), self.sets.numbers))

    def limits(self):
        u = self.unit
        for setting, which in (("LimitNOFILE", resource.RLIMIT_NOFILE), ("LimitCORE", resource.RLIMIT_CORE)):
            if setting in u:
                self.step(setting, "setrlimit", lambda which=which, n=int(u[setting]): resource.setrlimit(which, (n, n)))
        self.step("UMask", "umask", lambda: os.umask(int(u.get("UMask", "0022"), 8)))
        self.step("WorkingDirectory", "chdir", lambda: os.chdir(u.get("WorkingDirectory", "/")))

    def namespaces(self):
        """Any user except root needs a user namespace to create others."""
        try:
            if not self.root:
                self.user_namespace()
                self.steps("PrivateUsers", ("a user namespace", lambda: None))
            check(libc.unshare(NEWNS))
            mount(None, "/", None, REC | SLAVE)
        except OSError as e:
            for setting in ("ProtectSystem", "ProtectHome", "ProtectProc", "PrivateTmp", "PrivateDevices", "ProtectKernelTunables", "ProtectKernelModules",
                            "ProtectKernelLogs", "ProtectControlGroups"):
                if self.unit.get(setting, "no") != "no":
                    self.say(setting=setting, missing=f"a mount namespace: {e.strerror}")
            self.steps("ProtectHostname", ("a UTS namespace", lambda: check(libc.unshare(NEWUTS))))
            return False
        self.steps("ProtectHostname", ("a UTS namespace", lambda: check(libc.unshare(NEWUTS))))
        return True

    def user_namespace(self):
        check(libc.unshare(NEWUSER))
        self.say(map=1)
        if self.channel.recv(100) != b"mapped":
            raise OSError(1, "the user namespace got no map")

    def mounts(self):
        u, work = self.unit, self.work
        kept = os.open(work, os.O_PATH)
        if u.get("ProtectSystem") == "strict":
            self.step("ProtectSystem", "all but /dev, /proc and /sys is read-only", self.system_read_only)
        if on(u, "PrivateDevices") or self.hidden_devices:
            self.step("PrivateDevices" if on(u, "PrivateDevices") else "DevicePolicy", "a /dev of its own", self.devices)
        if u.get("ProtectProc", "default") != "default":
            self.step("ProtectProc", "a /proc of its own", lambda: mount("proc", "/proc", "proc", NOSUID | NODEV | NOEXEC, f"hidepid={u['ProtectProc']}"))
        empty, folder = f"{work}/empty", f"{work}/empty.d"
        self.steps("ProtectKernelTunables", ("read-only: /proc/sys, /sys and others", lambda: [self.shut(p) for p in TUNABLES if os.path.exists(p)]),
                   ("not there: /proc/kcore and others", lambda: [mount(empty, p, None, BIND) for p in HIDDEN if os.path.exists(p)]))
        self.steps("ProtectControlGroups", ("/sys/fs/cgroup is read-only", lambda: self.shut("/sys/fs/cgroup")))
        self.steps("ProtectKernelModules", ("no /usr/lib/modules",
                                            lambda: [mount(folder, p, None, BIND) for p in ("/usr/lib/modules",) if os.path.isdir(p)]))
        self.steps("ProtectKernelLogs", ("no /dev/kmsg, no /proc/kmsg",
                                         lambda: [mount(empty, p, None, BIND) for p in ("/dev/kmsg", "/proc/kmsg") if os.path.exists(p)]))
        self.steps("ProtectHome", ("nobody's home", lambda: [mount(folder, p, None, BIND) for p in ("/home", "/root", "/run/user") if os.path.isdir(p)]))
        self.steps("PrivateTmp", ("/tmp and /var/tmp of its own", lambda: self.tmp(kept)))
        self.step("StateDirectory", "it may write there", lambda: [self.open_up(p) for p in self.writable])
        os.close(kept)

    def system_read_only(self):
        read_only("/")
        for place in "/dev", "/proc", "/sys":
            read_only(place, False)

    def shut(self, path):
        mount(path, path, None, BIND | REC)
        read_only(path)

    def open_up(self, path):
        mount(path, path, None, BIND)
        read_only(path, False, False)

    def tmp(self, kept):
        for place in "/tmp", "/var/tmp":
            mount("tmpfs", place, "tmpfs", NOSUID | NODEV, "mode=1777")
        os.makedirs(self.work, 0o755)
        mount(f"/proc/self/fd/{kept}", self.work, None, BIND | REC)

    def devices(self):
        new = f"{self.work}/dev"
        mount("tmpfs", new, "tmpfs", NOSUID | NOEXEC, "mode=0755")
        for path in ["null", "zero", "full", "random", "urandom", "tty", *self.hidden_devices]:
            if os.path.exists(f"/dev/{path}"):
                os.makedirs(os.path.dirname(f"{new}/{path}"), exist_ok=True)
                open(f"{new}/{path}", "w").close()
                mount(f"/dev/{path}", f"{new}/{path}", None, BIND)
        for place in "pts", "shm", "mqueue":
            if os.path.isdir(f"/dev/{place}"):
                os.mkdir(f"{new}/{place}")
                mount(f"/dev/{place}", f"{new}/{place}", None, BIND)
        os.symlink("pts/ptmx", f"{new}/ptmx")
        mount(new, "/dev", None, MOVE)
        read_only("/dev", True, False)

    def identity(self):
        u = self.unit
        uid, gid, remark = user_of(u) if "User" in u else (os.getuid(), os.getgid(), "")
        if not self.root:
            for setting in "User", "Group":
                self.say(setting=setting, missing="started by somebody who is not root: it stays the same")
            self.drop()
            if self.unit.get("CapabilityBoundingSet") == []:  # what the user namespace gave
                syscall(self.sets.numbers["capset"], struct.pack("=Ii", 0x20080522, 0), bytes(24))
            return
        os.setgroups([gid])
        if on(u, "PrivateUsers"):
            self.step("PrivateUsers", "a user namespace", self.user_namespace)
        self.drop()
        if "User" in u:
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
            self.say(setting="User", done=remark)
            self.say(setting="Group", done=f"gid {gid}")

    def drop(self):
        keep = " ".join(self.unit.get("CapabilityBoundingSet", ["all"]))
        last = int(open("/proc/sys/kernel/cap_last_cap").read())
        if keep:
            self.say(setting="CapabilityBoundingSet", missing=f"'{keep}' is not known to this script")
        else:
            self.step("CapabilityBoundingSet", "none is left", lambda: [prctl(PR_CAPBSET_DROP, cap) for cap in range(last + 1)])
        self.step("AmbientCapabilities", "none", lambda: prctl(PR_CAP_AMBIENT, 4))


def start(confined, ids, act):
    """Forks; the child enters and calls act(). Returns (pid, its messages, the listener or None)."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        try:
            here.close()
            os.setsid()
            confined.enter(there)
            act()
        except BaseException as e:  # report any error, and never let the child run the caller's code
            confined.say(failed=f"{type(e).__name__}: {e}")
        finally:
            os._exit(99)
    there.close()
    said, listener = [], None
    while True:
        data = here.recv(65536)
        if not data:
            break
        message = json.loads(data)
        if "listener" in message:
            listener = filters.fetch_listener(pid)
            here.send(b"taken")
            break  # from now on the child's calls may wait for our answers
        if "map" in message:
            write_maps(pid, ids)
            here.send(b"mapped")
        else:
            said.append(message)
    return pid, said, listener, here


def rest_of(here, said):
    """Reads the child's messages until the program begins."""
    while data := here.recv(65536):
        said.append(json.loads(data))
    here.close()


def write_maps(pid, ids):
    """As systemd does: root and the service's user keep their ids, all others become nobody."""
    for file, n in (("uid_map", ids[0]), ("gid_map", ids[1])):
        if os.geteuid() == 0:
            text = f"0 0 1\n{n} {n} 1\n" if n else "0 0 1\n"
        else:
            own = os.getuid() if file == "uid_map" else os.getgid()
            text = f"{own} {own} 1\n"
            if file == "gid_map":
                open(f"/proc/{pid}/setgroups", "w").write("deny")
        open(f"/proc/{pid}/{file}", "w").write(text)


# ---- probes: calls that must be refused inside ----

def refused(act, *errors):
    """Returns None if act() fails with one of these errors, otherwise its result."""
    try:
        got = act()
    except OSError as e:
        return None if e.errno in errors else f"failed with {os.strerror(e.errno)}"
    return f"went through ({got})" if got is not None else "went through"


def is_read_only(path):
    return None if not os.path.exists(path) or os.statvfs(path).f_flag & os.ST_RDONLY else f"{path} can be written"


def status_of(pid="self"):
    return dict(re.findall(r"^(\w+):\s*(.*)$", open(f"/proc/{pid}/status").read(), re.M))


def killed_by_a_foreign_call():
    """x32's getpid."""
    if os.uname().machine != "x86_64":
        return None
    pid = os.fork()
    if pid == 0:
        libc.syscall(ctypes.c_long(filters.X32 + 39))
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    return None if os.WIFSIGNALED(status) else "a call of another architecture went through"


def probes(confined, outside):
    """Returns {setting: function that returns None or a violation}, for the settings that are on."""
    import errno as e
    n, u, P, work = confined.sets.numbers, confined.unit, e.EPERM, confined.writable[0]
    buffer = ctypes.create_string_buffer(512)

    def call(name, *args):
        return lambda: syscall(n[name], *(ctypes.c_long(a) if isinstance(a, int) else a for a in args)) and None

    def first(*found):
        return next((f for f in found if f), None)

    def exec_memory():
        page = mapped()
        return first(refused(call("mmap", 0, 4096, 7, 0x22, -1, 0), P, e.EACCES), refused(call("mprotect", page, 4096, 5), P, e.EACCES))

    def mapped():
        libc.mmap.restype = ctypes.c_void_p
        return libc.mmap(None, ctypes.c_size_t(4096), 3, 0x22, -1, ctypes.c_long(0))

    def suid():
        path = f"{work}/probe"
        open(path, "w").close()
        try:
            return first(refused(lambda: os.chmod(path, 0o4755), P), refused(lambda: os.chmod(path, 0o2755), P))
        finally:
            os.unlink(path)

    def devices():
        resolved = units.resolve(units.policy_of(u))
        for path in (os.path.join(folder, name) for folder, _, names in os.walk("/dev") for name in names):
            st = os.lstat(path)
            kind = "c" if stat.S_ISCHR(st.st_mode) else "b" if stat.S_ISBLK(st.st_mode) else None
            if kind and not units.allows(resolved, kind, os.major(st.st_rdev), os.minor(st.st_rdev), "r"):
                found = refused(lambda path=path: os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK)), P, e.EACCES, e.ENOENT)
                if found:
                    return f"{path}: opening it {found}"
        return None

    def private_devices():
        more = set(os.listdir("/dev")) - {"null", "zero", "full", "random", "urandom", "tty", "pts", "shm", "mqueue", "ptmx"}
        return f"/dev has {' '.join(sorted(more)[:5])}" if more else None

    def same(path):
        return None if os.readlink(path) != outside[path] else f"{path} is that of the machine"

    def limit(which, setting):
        return None if resource.getrlimit(which)[0] == int(u[setting]) else f"it is {resource.getrlimit(which)[0]}"

    def identity():
        return f"uid {os.getuid()}, groups {os.getgroups()}" if 0 in (os.getuid(), os.getgid(), *os.getgroups()) else None

    def umask():
        mask = os.umask(0o77)
        return None if mask == int(u["UMask"], 8) else f"it is {mask:o}"

    def family(name):
        return refused(lambda: socket.socket(getattr(socket, name), socket.SOCK_RAW).close(), e.EAFNOSUPPORT)

    def nothing_in(*places):
        return next((f"{p} can be looked into" for p in places if os.path.isdir(p) and not refused_listing(p)), None)

    def refused_listing(path):
        try:
            return not os.listdir(path)
        except PermissionError:
            return True

    every = {
        "NoNewPrivileges": lambda: None if prctl(39) else "it is off",
        "SystemCallFilter": lambda: first(refused(call("setpriority", 0, 0, 19), P), refused(call("ptrace", 0, 0, 0, 0), P)),
        "SystemCallArchitectures": killed_by_a_foreign_call,
        "MemoryDenyWriteExecute": exec_memory,
        "RestrictAddressFamilies": lambda: first(family("AF_NETLINK"), family("AF_PACKET")),
        "RestrictNamespaces": lambda: first(refused(call("unshare", NEWUSER), P), refused(call("clone3", buffer, 88), e.ENOSYS)),
        "RestrictRealtime": lambda: refused(call("sched_setscheduler", 0, 1, struct.pack("i", 1)), P),
        "RestrictSUIDSGID": suid,
        "LockPersonality": lambda: refused(call("personality", 0x0040000), P),
        "CapabilityBoundingSet": lambda: None if int(status_of()["CapBnd"], 16) == int(status_of()["CapEff"], 16) == 0 else "some are left",
        "DevicePolicy": devices,
        "PrivateDevices": private_devices,
        "ProtectSystem": lambda: first(*map(is_read_only, ("/", "/usr", "/etc", "/var"))),
        "ProtectHome": lambda: nothing_in("/root", "/home", "/run/user"),
        "ProtectProc": lambda: "process 1 is seen" if os.path.exists("/proc/1") else None,
        "ProtectKernelTunables": lambda: first(*map(is_read_only, ("/proc/sys", "/sys"))),
        "ProtectControlGroups": lambda: is_read_only("/sys/fs/cgroup"),
        "ProtectKernelModules": lambda: first(refused(call("init_module", 0, 0, 0), P), nothing_in("/usr/lib/modules")),
        "ProtectKernelLogs": lambda: first(refused(call("syslog", 10, 0, 0), P), refused(lambda: os.close(os.open("/dev/kmsg", os.O_WRONLY)), P, e.EACCES, e.ENOENT)),
        "ProtectClock": lambda: refused(call("adjtimex", ctypes.create_string_buffer(512)), P),
        "ProtectHostname": lambda: first(same("/proc/self/ns/uts"), refused(call("sethostname", b"x", 1), P)),
        "PrivateTmp": lambda: next((f"/{p} has {os.listdir('/' + p)}" for p in ("tmp", "var/tmp") if len(os.listdir("/" + p)) > 1), None),
        "PrivateUsers": lambda: same("/proc/self/ns/user"),
        "User": identity,
        "LimitNOFILE": lambda: limit(resource.RLIMIT_NOFILE, "LimitNOFILE"),
        "LimitCORE": lambda: limit(resource.RLIMIT_CORE, "LimitCORE"),
        "UMask": umask,
    }
    active = {s for s in every if u.get(s, "no") not in ("no", "false", []) and (s != "CapabilityBoundingSet" or u.get(s) == [])}
    if u.get("CapabilityBoundingSet") == []:
        active.add("CapabilityBoundingSet")
    if units.policy_of(u) is not None:
        active.add("DevicePolicy")
    return {s: every[s] for s in every if s in active}
