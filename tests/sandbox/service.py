"""A daemon with a small model, started as a service manager would, and the requests and signals of a client and an operator."""
import contextlib
import http.client
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import stat
import struct
import subprocess
import tempfile
import threading
import time

import confine
import unit as units

KEY = "sk-sandbox-0123456789"
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
          "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512, "rms_norm_eps": 1e-5, "max_position_embeddings": 2048,
          "rope_theta": 10000.0, "tie_word_embeddings": False, "eos_token_id": 300}
TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
GPU_FIGURES = ["tandem:gpu_power_watts", "tandem:gpu_temperature_celsius", "tandem:gpu_sm_clock_hertz", "tandem:gpu_memory_clock_hertz"]


class Broken(Exception):
    """The daemon did not do what the step requires."""


def write_model(folder):
    """Makes an ordinary model folder: config.json, weights from a seed, a tokenizer of single bytes."""
    c, r, header, data = CONFIG, random.Random(29), {}, bytearray()
    small = bytes([0x3C] * 128 + [0xBC] * 128)  # high bytes of a bf16: about a hundredth, of both signs

    def add(name, *shape):
        n = shape[0] * (shape[1] if len(shape) > 1 else 1)
        raw = bytearray(2 * n)
        raw[::2], raw[1::2] = (r.randbytes(n), r.randbytes(n).translate(small)) if len(shape) > 1 else (b"\x80" * n, b"\x3f" * n)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [len(data), len(data) + 2 * n]}
        data.extend(raw)
    w, ffn, kv = c["hidden_size"], c["intermediate_size"], c["hidden_size"] // c["num_attention_heads"] * c["num_key_value_heads"]
    add("model.embed_tokens.weight", c["vocab_size"], w)
    add("lm_head.weight", c["vocab_size"], w)
    add("model.norm.weight", w)
    for i in range(c["num_hidden_layers"]):
        for name, *shape in (("input_layernorm", w), ("post_attention_layernorm", w), ("self_attn.q_proj", w, w), ("self_attn.k_proj", kv, w),
                             ("self_attn.v_proj", kv, w), ("self_attn.o_proj", w, w), ("mlp.gate_proj", ffn, w), ("mlp.up_proj", ffn, w),
                             ("mlp.down_proj", w, ffn)):
            add(f"model.layers.{i}.{name}.weight", *shape)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (folder / "config.json").write_text(json.dumps(c))
    letters = [chr(x) for x in [*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324)]]
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "added_tokens": [], "normalizer": None, "post_processor": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "vocab": {x: i for i, x in enumerate(letters)}, "merges": []}}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))


class Place:
    """A folder with all that the daemon needs, because homes are hidden from it, and its /tmp is a different one."""

    def __init__(self, daemon, backend, owner):
        self.path = pathlib.Path(tempfile.mkdtemp(prefix="tandem-sandbox-", dir=next(p for p in ("/var/tmp", "/tmp") if os.access(p, os.W_OK))))
        self.path.chmod(0o755)
        for name in ("bin", "lib", "state", "state/model", "cache", "credentials", "dev", "empty.d"):
            (self.path / name).mkdir(mode=0o755)
        (self.path / "empty").touch()
        for name in ("empty", "empty.d"):
            (self.path / name).chmod(0)
        shutil.copy(daemon, self.path / "bin/tandemd")
        self.libraries(daemon)
        write_model(self.path / "state/model")
        (self.path / "credentials/tandem_api-keys").write_text(KEY + "\n")
        self.log = self.path / "log"
        (self.path / "tandem.conf").write_text(f"""model = {self.path}/state/model
served_model_name = small
api_key_file = {self.path}/credentials/tandem_api-keys
cache_dir = {self.path}/cache
backend = {backend}
kv_bytes = {1 << 28}
running_requests = 8
""")
        for p in ("state", "cache", "credentials", "credentials/tandem_api-keys"):
            os.chown(self.path / p, *owner)
        (self.path / "credentials/tandem_api-keys").chmod(0o400)
        (self.path / "cache").chmod(0o700)

    def libraries(self, daemon):
        """Libraries in a user's folder (such as a toolkit in a checkout) are provided from here, because the service user may have no access there."""
        out = subprocess.run(["ldd", daemon], capture_output=True, text=True).stdout
        for name, path in re.findall(r"^\s*(\S+) => (/\S+)", out, re.M):
            if not path.startswith(("/usr/", "/lib", "/opt/")):
                shutil.copy(path, self.path / "lib" / name)

    def close(self):
        (self.path / "empty.d").chmod(0o700)
        shutil.rmtree(self.path)


def environment(place, unit):
    inherited = os.environ.get("LD_LIBRARY_PATH", "")
    libraries = ":".join(x for x in (str(place.path / "lib"), inherited) if x)
    keep = {k: v for k, v in os.environ.items() if k.startswith(("CUDA_", "NVIDIA_", "TANDEM_"))}
    return {**keep, "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "LD_LIBRARY_PATH": libraries,
            "STATE_DIRECTORY": f"{place.path}/state", "CACHE_DIRECTORY": f"{place.path}/cache", "CREDENTIALS_DIRECTORY": f"{place.path}/credentials",
            "NOTIFY_SOCKET": f"{place.path}/notify", "WATCHDOG_USEC": str(int(unit.get("WatchdogSec", "20s").rstrip("s")) * 1000000 // 20)}


class Manager(threading.Thread):
    """Plays the service manager's end of sd_notify."""

    def __init__(self, path):
        super().__init__(daemon=True)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        self.socket.bind(str(path))
        os.chmod(path, 0o777)
        self.socket.settimeout(0.2)
        self.told, self.stop = [], False

    def run(self):
        while not self.stop:
            with contextlib.suppress(TimeoutError):
                self.told += self.socket.recv(4096).decode().splitlines()
        self.socket.close()


class Service:
    """A confined daemon. Steps run in order, and the result of each is stored."""

    def __init__(self, place, unit, sets, backend, cgroup, hidden, tell, seconds):
        self.place, self.unit, self.backend, self.seconds = place, unit, backend, seconds
        self.confined = confine.Confined(unit, sets, str(place.path), [f"{place.path}/state", f"{place.path}/cache"], cgroup, hidden, tell)
        self.sets, self.seen, self.watch, self.failed, self.pid = sets, {}, None, "", None

    def start(self):
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        self.port = listener.getsockname()[1]
        self.manager = Manager(self.place.path / "notify")
        log = os.open(self.place.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        env, program = environment(self.place, self.unit), f"{self.place.path}/bin/tandemd"

        def execute():
            os.dup2(null, 0)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.dup2(listener.fileno(), 3)
            os.set_inheritable(3, True)
            os.execve(program, [program, "--config", f"{self.place.path}/tandem.conf"], {**env, "LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())})
        uid, gid, _ = confine.user_of(self.unit) if "User" in self.unit else (os.getuid(), os.getgid(), "")
        self.pid, self.said, asked, channel = confine.start(self.confined, (uid, gid), execute)
        if asked is not None:
            import filters
            self.watch = filters.Watch(asked, self.confined.filters, self.sets)
            self.watch.start()
        confine.rest_of(channel, self.said)
        self.manager.start()
        for fd in (log, null):
            os.close(fd)
        listener.close()
        if failed := [m["failed"] for m in self.said if "failed" in m]:
            raise Broken(f"the daemon could not be started: {failed[0]}")

    def text(self):
        return self.place.log.read_text("utf-8", "replace") if self.place.log.exists() else ""

    def ended(self):
        """Returns the exit code, -N for a signal, None while it runs."""
        if self.pid is None:
            return self.code
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid == 0:
            return None
        self.pid, self.code = None, os.waitstatus_to_exitcode(status)
        return self.code

    def until(self, check, what, seconds=60):
        end = time.monotonic() + seconds
        while not (value := check()):
            if (code := self.ended()) is not None:
                last = [x for x in self.text().splitlines() if " error " in x] or self.text().splitlines()
                raise Broken(f"{what}: the daemon ended with {code}; {last[-1][:300] if last else 'it wrote nothing'}")
            if time.monotonic() > end:
                raise Broken(f"{what}: not within {seconds} s")
            time.sleep(0.05)
        return value

    def ask(self, path, body=None, key=KEY):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(c):
            headers = {"authorization": f"Bearer {key}", **({"content-type": "application/json"} if body else {})}
            try:
                c.request("POST" if body else "GET", path, json.dumps(body) if body else None, headers)
                r = c.getresponse()
                return r.status, r.read().decode()
            except OSError as e:
                raise Broken(f"{path}: {e}") from None

    # ---- steps: each returns what it observed ----

    def ready(self):
        self.until(lambda: "READY=1" in self.manager.told, "notified as ready", self.seconds)
        status, _ = self.ask("/ready")
        return self.wanted(status == 200, f"/ready says {status}", "notified, /ready says 200")

    def completion(self):
        status, text = self.ask("/v1/completions", {"model": "small", "prompt": "hello", "max_tokens": 24, "temperature": 0, "ignore_eos": True})
        n = json.loads(text).get("usage", {}).get("completion_tokens") if status == 200 else 0
        return self.wanted(n == 24, f"{status} {text[:200]}", "24 tokens")

    def refused(self):
        status, _ = self.ask("/v1/models", key="another")
        return self.wanted(status == 401, f"another key is answered with {status}", "another key: 401")

    def chat(self):
        status, text = self.ask("/v1/chat/completions", {"model": "small", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 24, "stream": True,
                                                         "ignore_eos": True, "temperature": 1, "seed": 1, "stream_options": {"include_usage": True}})
        events = re.findall(r"^data: (.*)$", text, re.M)
        good = status == 200 and events and events[-1] == "[DONE]" and json.loads(events[-2])["usage"]["completion_tokens"] == 24
        return self.wanted(good, f"{status} {text[-200:]}", f"{len(events)} events, 24 tokens")

    def reload(self):
        os.kill(self.pid, signal.SIGHUP)
        self.until(lambda: "SIGHUP: options and keys are read again" in self.text(), "the reload")
        return "options and keys are read again"

    def metrics(self):
        status, text = self.ask("/metrics")
        values = {n: float(v) for n, v in re.findall(r"^([\w:]+)(?:\{[^}]*\})? (\S+)$", text, re.M)}
        if status != 200 or not values.get("vllm:generation_tokens_total", 0) >= 48:
            raise Broken(f"/metrics: {status}, {values.get('vllm:generation_tokens_total')} tokens")
        if self.backend != "cuda":
            return f"{len(values)} names"
        if missing := [n for n in GPU_FIGURES if not values.get(n, 0) > 0]:
            raise Broken(f"/metrics has no figure of {' '.join(missing)}")
        return ", ".join(f"{n.removeprefix('tandem:gpu_')} {values[n]:g}" for n in GPU_FIGURES)

    def alive(self):
        n = self.manager.told.count("WATCHDOG=1")
        self.until(lambda: self.manager.told.count("WATCHDOG=1") > n + 1, "signs of life to the watchdog")
        return "WATCHDOG=1 comes"

    def kernel_says(self):
        """Checks each thread of the running daemon."""
        tasks = os.listdir(f"/proc/{self.pid}/task")
        for task in tasks:
            s = confine.status_of(f"{self.pid}/task/{task}")
            filters_on = 2 if self.confined.filters else 0
            wanted = {"NoNewPrivs": int(units.on(self.unit, "NoNewPrivileges")), "Seccomp": filters_on}
            wrong = [f"{name} {s[name]}" for name, want in wanted.items() if int(s[name]) != want]
            if self.unit.get("CapabilityBoundingSet") == []:
                wrong += [f"{name} {s[name]}" for name in ("CapBnd", "CapEff", "CapPrm") if int(s[name], 16)]
            if wrong:
                raise Broken(f"thread {s['Name']}: {', '.join(wrong)}")
        s = confine.status_of(self.pid)
        return f"{len(tasks)} threads, uid {s['Uid'].split()[0]}, Seccomp {s['Seccomp']} with {s.get('Seccomp_filters', '?')} filters, CapBnd {int(s['CapBnd'], 16)}"

    def devices(self):
        """Returns the device nodes that it has open or mapped: {path: (kind, major, minor, access)}."""
        held = {}
        for fd in os.listdir(f"/proc/{self.pid}/fd"):
            with contextlib.suppress(FileNotFoundError):
                st, path = os.stat(f"/proc/{self.pid}/fd/{fd}"), os.readlink(f"/proc/{self.pid}/fd/{fd}")
                flags = int(re.search(r"^flags:\s*(\d+)", pathlib.Path(f"/proc/{self.pid}/fdinfo/{fd}").read_text(), re.M)[1], 8)
                self.hold(held, path, st, ("r", "w", "rw", "r")[flags & 3])
        for line in pathlib.Path(f"/proc/{self.pid}/maps").read_text().splitlines():
            if (path := line.split(" ", 5)[-1].strip()).startswith("/dev/") and not path.startswith("/dev/shm/"):
                with contextlib.suppress(OSError):
                    self.hold(held, path, os.stat(f"/proc/{self.pid}/root{path}"), "r")
        policy = units.policy_of(self.unit)
        resolved = units.resolve(policy) if policy is not None else None
        wrong = [p for p, (kind, major, minor, access) in held.items() if resolved is not None and not units.allows(resolved, kind, major, minor, access)]
        if wrong:
            raise Broken(f"it holds {' '.join(wrong)}, which DeviceAllow does not have")
        self.held = held
        return ", ".join(f"{p} {access}" for p, (*_, access) in sorted(held.items())) or "none"

    @staticmethod
    def hold(held, path, st, access):
        if stat.S_ISCHR(st.st_mode) or stat.S_ISBLK(st.st_mode):
            old = held.get(path, ("", 0, 0, ""))[3]
            held[path] = ("c" if stat.S_ISCHR(st.st_mode) else "b", os.major(st.st_rdev), os.minor(st.st_rdev), "".join(sorted(set(old + access))))

    def executable(self):
        """Returns mappings that are both writable and executable."""
        found = [line.split(" ", 5) for line in pathlib.Path(f"/proc/{self.pid}/maps").read_text().splitlines() if re.search(r" .wx", line)]
        if found and units.on(self.unit, "MemoryDenyWriteExecute"):
            raise Broken(f"{len(found)} mappings are writable and executable")
        return f"{len(found)} mappings" if found else "none"

    def stop(self):
        os.kill(self.pid, signal.SIGTERM)
        end = time.monotonic() + 60
        while (code := self.ended()) is None:
            if time.monotonic() > end:
                raise Broken("it did not stop within 60 s")
            time.sleep(0.02)
        return self.wanted(code == 0, f"it ended with {code}", "exit code 0")

    @staticmethod
    def wanted(good, bad, words):
        if not good:
            raise Broken(bad)
        return words

    STEPS = [("ready", ready), ("completion", completion), ("keys", refused), ("streamed chat", chat), ("SIGHUP", reload), ("completion again", completion),
             ("/metrics", metrics), ("watchdog", alive), ("kernel", kernel_says), ("devices", devices), ("writable and executable", executable), ("stop", stop)]

    def run(self):
        """Runs all steps; self.failed has the failures."""
        try:
            self.start()
            for name, step in self.STEPS:
                try:
                    self.seen[name] = step(self)
                except Broken as e:
                    self.failed = f"{name}: {e}"
                    break
        except Broken as e:
            self.failed = str(e)
        finally:
            if self.pid is not None and self.ended() is None:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
            self.manager.stop = True
            if self.manager.is_alive():
                self.manager.join()
            if self.watch:
                self.watch.join(10)
        return self
