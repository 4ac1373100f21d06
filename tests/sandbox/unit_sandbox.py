#!/usr/bin/env python3
"""Starts tandemd under the restrictions of packaging/tandemd.service and its drop-in without systemd, and says of each setting whether it
was applied, whether a probe was refused by it, and whether the daemon serves under all of them.

usage: unit_sandbox.py [--daemon FILE] [--backend cpu|cuda] [--drop-in FILE]... [--set NAME=VALUE]... [--each] [--seconds N] [--out FILE]
       unit_sandbox.py --sets-from-systemd

  --daemon FILE        the daemon (default build/tandemd)
  --backend B          what serves; cuda takes packaging/tandemd-gpu.conf as its drop-in (default cpu, and none)
  --unit FILE          another unit
  --drop-in FILE       other drop-ins, in order
  --set NAME=VALUE     a setting behind all of them
  --each               also without each setting of the drop-ins in turn, to see which of them the daemon needs
  --seconds N          for the start (default 120)
  --out FILE           the report, also there
  --sets-from-systemd  writes syscalls.json: what this machine's systemd-analyze and libseccomp say

As root all of it can be applied on a recent kernel; others get what a user namespace gives. The daemon runs twice: with errors as
systemd sets them, and asking us instead, so that each refused call is named. Exit code 0: all was applied and holds; 1: something does not
hold; 2: something could not be applied, the rest holds."""
import argparse
import contextlib
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile

import confine
import service
import unit as units

ROOT = pathlib.Path(__file__).resolve().parents[2]
KNOWN = {"NoNewPrivileges", "SystemCallFilter", "SystemCallArchitectures", "MemoryDenyWriteExecute", "RestrictAddressFamilies", "RestrictNamespaces",
         "RestrictRealtime", "RestrictSUIDSGID", "LockPersonality", "CapabilityBoundingSet", "AmbientCapabilities", "DevicePolicy", "DeviceAllow",
         "PrivateDevices", "ProtectSystem", "ProtectHome", "ProtectProc", "ProtectKernelTunables", "ProtectControlGroups", "ProtectKernelModules",
         "ProtectKernelLogs", "ProtectClock", "ProtectHostname", "PrivateTmp", "PrivateUsers", "User", "Group", "LimitNOFILE", "LimitCORE", "UMask",
         "KeyringMode", "WorkingDirectory", "StateDirectory", "CacheDirectory", "LoadCredential"}


class Report:
    def __init__(self):
        self.lines, self.wrong, self.missing = [], [], []

    def say(self, line=""):
        self.lines.append(line)
        print(line, flush=True)

    def table(self, *rows):
        for i, row in enumerate(rows):
            self.say("| " + " | ".join(str(x).replace("|", "\\|").replace("\n", " ") for x in row) + " |")
            if i == 0:
                self.say("|" + "---|" * len(row))
        self.say()


class Machine:
    """Applies DeviceAllow with what this machine has: a cgroup with a program, or otherwise a /dev with the allowed nodes."""

    def __init__(self, unit):
        self.cgroup, self.hidden, self.why = None, [], ""
        policy = units.policy_of(unit)
        if policy is None:
            return
        resolved = units.resolve(policy)
        try:
            self.cgroup = confine.Cgroup(resolved)
        except OSError as e:
            self.why = f"a device program on a cgroup: {e.strerror or e}"
            if not units.on(unit, "PrivateDevices"):
                self.hidden = [p.removeprefix("/dev/") for p in nodes() if (n := node(p)) and units.allows(resolved, *n, "r")
                               and p not in dict(units.PSEUDO) and not p.startswith("/dev/pts/")]

    def close(self):
        if self.cgroup:
            self.cgroup.close()


def nodes():
    return [os.path.join(folder, name) for folder, _, names in os.walk("/dev") for name in names]


def node(path):
    """(kind, major, minor) or None."""
    import stat
    with contextlib.suppress(OSError):
        st = os.stat(path)
        if stat.S_ISCHR(st.st_mode) or stat.S_ISBLK(st.st_mode):
            return "c" if stat.S_ISCHR(st.st_mode) else "b", os.major(st.st_rdev), os.minor(st.st_rdev)
    return None


def value_of(unit, name):
    v = unit[name]
    return (" ".join(v) if isinstance(v, list) else v) or "(empty)"


def owner_of(unit):
    if os.geteuid() != 0 or "User" not in unit:
        return os.getuid(), os.getgid()
    return confine.user_of(unit)[:2]


def run(args, unit, sets, tell=False):
    """One daemon from start to stop."""
    machine, place = Machine(unit), service.Place(args.daemon, args.backend, owner_of(unit))
    try:
        s = service.Service(place, unit, sets, args.backend, machine.cgroup, machine.hidden, tell, args.seconds).run()
        s.log, s.why = s.text(), machine.why
        return s
    finally:
        machine.close()
        place.close()


def probe(args, unit, sets):
    """Runs probes in a process that is confined like the daemon. Returns ({setting: None or a violation}, messages)."""
    machine, place = Machine(unit), service.Place(args.daemon, args.backend, owner_of(unit))
    c = confine.Confined(unit, sets, str(place.path), [f"{place.path}/state", f"{place.path}/cache"], machine.cgroup, machine.hidden, False)
    outside = {f"/proc/self/ns/{n}": os.readlink(f"/proc/self/ns/{n}") for n in ("uts", "user")}
    log = tempfile.TemporaryFile()

    def ask():
        os.dup2(log.fileno(), 2)
        for setting, act in confine.probes(c, outside).items():
            try:
                found = act()
            except Exception as e:  # a broken probe proves nothing
                found = f"the probe broke: {type(e).__name__} {e}"
            c.say(probe=setting, found=found)
        os._exit(0)
    try:
        pid, said, _, channel = confine.start(c, owner_of(unit), ask)
        confine.rest_of(channel, said)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code != 0:
            said.append({"failed": f"the process with the probes ended with {code}"})
    finally:
        machine.close()
        place.close()
    return {m["probe"]: m["found"] for m in said if "probe" in m}, [m for m in said if "probe" not in m]


def say_settings(report, unit, said, found, why):
    done, missing = {}, {}
    for m in said:
        if "setting" in m:
            (done if "done" in m else missing).setdefault(m["setting"], []).append(m.get("done") or m["missing"])
    if why:
        missing.setdefault("DevicePolicy", []).append(why)
    for n in ("CacheDirectory", "StateDirectory"):
        if n in unit:
            done[n] = ["another folder, which it may write"]
    if "LoadCredential" in unit:
        done["LoadCredential"] = ["$CREDENTIALS_DIRECTORY with the daemon's key"]
    rows = [("setting", "value", "applied", "not applied", "a probe of it")]
    names = list(unit) + ([] if "DevicePolicy" in unit or units.policy_of(unit) is None else ["DevicePolicy"])
    for name in names:
        value = value_of(unit, name) if name in unit else "closed, as other settings imply"
        if name == "DeviceAllow":
            done[name], missing[name] = ["by DevicePolicy"], []
        if name in confine.MANAGER:
            rows.append((f"`{name}`", value, f"by the one who starts it: {confine.MANAGER[name]}", "", ""))
            continue
        if name not in KNOWN:
            report.wrong.append(f"{name}={value}: this script does not know the setting")
            rows.append((f"`{name}`", value, "", "not known", ""))
            continue
        if value in ("no", "default") or (value == "(empty)" and not name.endswith(("BoundingSet", "Capabilities"))):
            rows.append((f"`{name}`", value, "it is off", "", ""))
            continue
        shown = "" if name not in found else "refused, as wanted" if found[name] is None else f"**{found[name]}**"
        if found.get(name) and not missing.get(name):
            report.wrong.append(f"{name}={value}: {found[name]}")
        if missing.get(name):
            report.missing.append(f"{name}: {'; '.join(missing[name])}")
        elif not done.get(name):
            report.wrong.append(f"{name}={value}: nothing was applied")
        rows.append((f"`{name}`", value, "; ".join(done.get(name, [])), "; ".join(missing.get(name, [])), shown))
    report.table(*rows)


def say_run(report, what, s):
    report.say(f"## {what}")
    report.say()
    report.table(("step", "seen"), *s.seen.items(), *([("**broken**", s.failed)] if s.failed else []))
    for line in [x for x in s.log.splitlines() if " warn " in x or " error " in x][-10:]:
        report.say(f"    {line[:220]}")
    report.say()


def say_refused(report, s):
    report.say("Calls that were refused, by what, in this run: " + ("none." if not s.watch.refused else ""))
    report.say()
    if s.watch.refused:
        report.table(("call", "error", "by", "thread", "times"), *((call, error, setting, thread, n) for (setting, call, error, thread), n in s.watch.refused.most_common()))
    resolved = units.resolve(units.policy_of(s.unit) or [])
    rows = []
    for path, access in sorted(s.watch.opened.items()):
        n = node(path)
        if n is None:
            state = "not there"
        elif units.policy_of(s.unit) is None or units.allows(resolved, *n, access):
            state = "allowed"
        else:
            state = "**not allowed**"
        rows.append((path, access, f"{n[0]} {n[1]}:{n[2]}" if n else "", state))
    report.say("What it opened in /dev:" if rows else "It opened nothing in /dev.")
    report.say()
    if rows:
        report.table(("path", "how", "device", ""), *rows)


def say_devices(report, unit, backend):
    """Each line of DeviceAllow names something on this machine, and /dev has it."""
    resolved = units.resolve([tuple((line + " rwm").split()[:2]) for line in unit.get("DeviceAllow", [])])
    if not resolved:
        return
    rows = [("DeviceAllow", "how", "devices", "in /dev")]
    for spec, (access, found) in resolved.items():
        here = [p for p in nodes() if (n := node(p)) and any((n[0], n[1]) == (k, a) and i in (None, n[2]) for k, a, i in found)]
        rows.append((spec, access, ", ".join(f"{k} {a}:{'*' if i is None else i}" for k, a, i in found) or "none", " ".join(here)))
        if backend == "cuda" and not found and "caps" not in spec:  # caps exist if MIG is used
            report.wrong.append(f"DeviceAllow={spec}: no device of this machine has that name in /proc/devices")
    report.table(*rows)
    report.say("In /proc/devices: " + (", ".join(f"{name} {k} {major}" for k, name, major in units.majors() if "nvidia" in name) or "nothing of NVIDIA") + ".")
    report.say()


def without_each(report, args, files, sets):
    """The drop-ins without one setting at a time, so that the unit's own value applies."""
    report.say("## Without each setting of the drop-in")
    report.say()
    rows = [("left out", "what happens", "the daemon needs it")]
    for file in files[1:]:
        lines = pathlib.Path(file).read_text().splitlines()
        for i, line in enumerate(lines):
            if "=" not in line or line.startswith(("#", "[", ";")):
                continue
            if line.split("=")[0] in confine.MANAGER:
                continue
            with tempfile.NamedTemporaryFile("w", suffix=".conf") as f:
                f.write("\n".join(lines[:i] + lines[i + 1:]))
                f.flush()
                s = run(args, units.read([f.name if x == file else x for x in files], args.set), sets)
            rows.append((f"`{line}`", s.failed or "all steps hold", "yes" if s.failed else "no"))
    report.table(*rows)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--daemon", default=str(ROOT / "build/tandemd"))
    p.add_argument("--backend", choices=("cpu", "cuda"), default="cpu")
    p.add_argument("--unit", default=str(ROOT / "packaging/tandemd.service"))
    p.add_argument("--drop-in", action="append")
    p.add_argument("--set", action="append", default=[])
    p.add_argument("--each", action="store_true")
    p.add_argument("--seconds", type=float, default=120)
    p.add_argument("--out")
    p.add_argument("--sets-from-systemd", action="store_true")
    args = p.parse_args()
    if args.sets_from_systemd:
        return units.record_sets()
    if args.drop_in is None:
        args.drop_in = [str(ROOT / "packaging/tandemd-gpu.conf")] if args.backend == "cuda" else []
    files, sets, report = [args.unit, *args.drop_in], units.Sets(), Report()
    unit = units.read(files, args.set)
    report.say("# tandemd in its unit's sandbox")
    report.say()
    version = subprocess.run([args.daemon, "--version"], capture_output=True, text=True).stdout.split("\n")[0]
    report.say(f"{version}, backend {args.backend}, kernel {platform.release()} {platform.machine()}, uid {os.getuid()}; sets of systemd {sets.systemd}; "
               f"{', '.join(os.path.basename(f) for f in files)}{''.join(' ' + x for x in args.set)}")
    report.say()
    say_devices(report, unit, args.backend)
    found, said = probe(args, unit, sets)
    s = run(args, unit, sets)
    report.wrong += [m["failed"] for m in said if "failed" in m]
    report.say("## Settings")
    report.say()
    say_settings(report, unit, said, found, s.why)
    say_run(report, "The daemon", s)
    if s.failed:
        report.wrong.append(s.failed)
    told = run(args, unit, sets, tell=True)
    say_run(report, "Again, with refused calls named", told)
    if told.watch:
        say_refused(report, told)
    if bool(told.failed) != bool(s.failed):
        report.wrong.append(f"the two runs differ: {told.failed or s.failed}")
    if args.each:
        without_each(report, args, files, sets)
    report.say("## In short")
    report.say()
    for x in report.wrong:
        report.say(f"- does not hold: {x}")
    for x in report.missing:
        report.say(f"- not applied here: {x}")
    report.say(f"{'All' if not report.wrong else 'Not all'} holds; {len(report.missing)} settings could not be applied whole.")
    if args.out:
        pathlib.Path(args.out).write_text("\n".join(report.lines) + "\n")
    sys.exit(1 if report.wrong else 2 if report.missing else 0)


if __name__ == "__main__":
    main()
