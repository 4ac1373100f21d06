"""Reads a systemd unit and its drop-ins, merged as systemd merges them (systemd.unit(5), systemd.exec(5)), and the members of systemd's sets
of system calls, which are in syscalls.json."""
import ctypes
import fnmatch
import json
import os
import pathlib
import re
import stat
import subprocess

SETS = pathlib.Path(__file__).resolve().parent / "syscalls.json"
# Settings whose values accumulate; an empty one starts again. For all others the last one counts.
LISTS = {"AmbientCapabilities", "CacheDirectory", "CapabilityBoundingSet", "ConfigurationDirectory", "DeviceAllow", "IPAddressAllow", "LoadCredential",
         "RestartPreventExitStatus", "RestrictAddressFamilies", "StateDirectory", "SystemCallArchitectures", "SystemCallFilter"}
# The standard pseudo devices that DevicePolicy=closed allows.
PSEUDO = [("/dev/null", "rwm"), ("/dev/zero", "rwm"), ("/dev/full", "rwm"), ("/dev/random", "rwm"), ("/dev/urandom", "rwm"), ("/dev/tty", "rwm"),
          ("/dev/ptmx", "rwm"), ("char-pts", "rw")]


def settings_of(text, where):
    """Yields (name, value) of the section [Service], in order."""
    section = None
    for line in re.sub(r"\\\n", " ", text).splitlines():
        line = line.strip()
        if not line or line[0] in "#;":
            continue
        if line[0] == "[":
            section = line.strip("[]")
        elif section == "Service":
            name, equals, value = line.partition("=")
            if not equals:
                raise SystemExit(f"{where}: '{line}' is no setting")
            yield name.strip(), value.strip()


def read(files, last=()):
    """Returns the effective settings: a list of lines if values accumulate, otherwise a text. `last` are NAME=VALUE after all files."""
    unit = {}
    for where, text in [*((f, pathlib.Path(f).read_text()) for f in files), ("--set", "[Service]\n" + "\n".join(last))]:
        for name, value in settings_of(text, where):
            if name not in LISTS:
                unit[name] = value
            elif value:
                unit.setdefault(name, []).append(value)
            else:
                unit[name] = []
    return unit


def on(unit, name):
    return unit.get(name, "no") in ("yes", "true", "1", "on")


# ---- sets of system calls ----

class Sets:
    def __init__(self, file=SETS):
        d = json.loads(file.read_text())
        self.systemd, self.sets, numbers = d["systemd"], d["sets"], d["numbers"]
        machine = os.uname().machine
        if machine not in numbers:
            raise SystemExit(f"{file} has no numbers of system calls for {machine}: it knows {', '.join(numbers)}")
        self.numbers = numbers[machine]
        self.names = {n: name for name, n in self.numbers.items()}

    def members(self, words):
        out = set()
        for word in words:
            if word[0] != "@":
                out.add(word)
            elif word in self.sets:
                out |= self.members(self.sets[word])
            else:
                raise SystemExit(f"{word}: systemd {self.systemd} has no such set")
        return out

    def filtered(self, lines):
        """(whether the names are those that are allowed, names) of SystemCallFilter's lines."""
        allow, names = None, set()
        for line in lines:
            invert, words = line[0] == "~", line.lstrip("~").split()
            if allow is None:
                allow = not invert
                names = self.members(["@default"]) if allow else set()
            members = self.members(words)
            names = names | members if invert != allow else names - members
        return allow, names


def record_sets(file=SETS):
    """Writes what this machine's systemd means by its sets, and the calls' numbers as libseccomp has them: systemd uses it too, and
    leaves out what it does not know."""
    version = subprocess.run(["systemd-analyze", "--version"], check=True, capture_output=True, text=True).stdout.splitlines()[0].split(" ", 1)[1]
    names = subprocess.run(["systemd-analyze", "--no-pager", "syscall-filter"], check=True, capture_output=True, text=True).stdout
    sets, current = {}, None
    for line in names.splitlines():
        if line.startswith("@"):
            current = sets.setdefault(line.strip(), [])
        elif not line.startswith(" "):
            current = None
        elif current is not None and line.strip()[0] != "#":
            current.append(line.strip())
    sets.pop("@known", None)
    lib = ctypes.CDLL("libseccomp.so.2")
    every = sorted({name for members in sets.values() for name in members if name[0] != "@"} | {"seccomp", "syslog", "fchmodat2"})  # and those that filters.py names
    numbers = {}
    for machine, arch in (("x86_64", 0xC000003E), ("aarch64", 0xC00000B7)):
        found = {name: lib.seccomp_syscall_resolve_name_arch(ctypes.c_uint32(arch), name.encode()) for name in every}
        numbers[machine] = {name: n for name, n in found.items() if n >= 0}
    file.write_text(json.dumps({"systemd": version, "sets": sets, "numbers": numbers}, indent=0) + "\n")
    print(f"{file}: {len(sets)} sets of systemd {version}, {len(numbers['x86_64'])} numbers")


# ---- devices ----

def policy_of(unit):
    """Returns the effective lines of DeviceAllow, including those implied by other settings, or None if every device is open."""
    allowed = [tuple((line + " rwm").split()[:2]) for line in unit.get("DeviceAllow", [])]
    if on(unit, "ProtectClock"):
        allowed.append(("char-rtc", "r"))
    policy = unit.get("DevicePolicy", "auto")
    if on(unit, "PrivateDevices") or policy == "closed" or (policy == "auto" and unit.get("DeviceAllow")):
        return PSEUDO + allowed
    return allowed if policy == "strict" else None


def majors():
    """Yields (kind, name, major) of /proc/devices."""
    out, kind = [], "c"
    for line in pathlib.Path("/proc/devices").read_text().splitlines():
        if line.startswith("Block"):
            kind = "b"
        elif m := re.match(r"\s*(\d+) (\S+)", line):
            out.append((kind, m[2], int(m[1])))
    return out


def resolve(allowed):
    """({line: [(kind, major, minor or None)]}, access of each line) on this machine."""
    out = {}
    for spec, access in allowed:
        if spec.startswith("/"):
            try:
                st = os.stat(spec)
            except OSError:
                out[spec] = (access, [])
                continue
            kind = "c" if stat.S_ISCHR(st.st_mode) else "b"
            out[spec] = (access, [(kind, os.major(st.st_rdev), os.minor(st.st_rdev))])
        else:
            kind, _, glob = spec.partition("-")
            found = sorted({(k, major, None) for k, name, major in majors() if k == kind[0] and fnmatch.fnmatchcase(name, glob)})
            out[spec] = (access, found)
    return out


def allows(resolved, kind, major, minor, access):
    return any(set(access) <= set(given) and (kind, major) == (k, a) and i in (None, minor)
               for given, found in resolved.values() for k, a, i in found)
