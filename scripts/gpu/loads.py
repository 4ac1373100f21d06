"""The papers' loads, through HTTP: open arrivals at several rates (POD-Attention, PAT), all requests at once, closed streams by the ratio
of prompt to answer, and the cost of chunks (SARATHI). They are compared with a peer's figures, the daemon's other policies, and
tandem-plan's predictions for the same load. Each cell has its own daemon, so that none finds another one's prompts."""
import json
import shutil
import statistics
import sys

import models
from core import NotRun, must
from daemon import Daemon
from machine import cores_busy
from serve import BUSY_MAX, all_done, load
from watch import Watcher, between_us, calibration_in, now_us, outside_us, shape_of, write_pace

OPEN = {"arxiv": 9400, "pod": 15400, "toolagent": 8620, "conversation": 2769, "chat": 2340}  # their prompts' mean, for probes
LEARN_RATE = {"arxiv": 1.5, "pod": 1, "toolagent": 3, "conversation": 20, "chat": 6}
CLOSED = ("offline", "pd", "chunks")
POLICIES = ("sarathi", "orca", "prefill-first", "decode-first")
DEFAULT = ("arxiv:1.5,arxiv:2,arxiv:2.5,arxiv:2.65,arxiv:2.8,arxiv:2:sarathi-1024,arxiv:2:prefill-first,pod:0.5,pod:1,pod:1.5,pod:1:sarathi-1024,"
           "toolagent:3,toolagent:6,conversation:20,conversation:40,offline,pd,chunks")
DEFAULT_QUICK = "toolagent:3,conversation:20,offline,pd,chunks"
SECONDS, QUICK_SECONDS, LEARN_SECONDS = 30, 1, 8
DRAIN_MAX_S = 30  # of the presets
PEER_OF = {"arxiv": "arxiv, budget 1024"}  # if there are several peers, the bars are those of the one that also keeps TBT low
HELD_TBT_P99_MS, HELD_TTFT_P50_MS = 60, 1000
HOW = ("as kept before", "with this run's step times", "at the pace of the run")
OFF_MAX = {"ttft p50": 10, "ttft p99": 20, "tbt p50": 10, "tbt p99": 20, "tok/s": 10}  # percent, of predictions
CONTEXT = 65536  # the peer's value; the longest request has 33,805 tokens
SMALL = {**models.TINY, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
         "max_position_embeddings": CONTEXT}  # long prompts on a CPU, for work on this file
# SARATHI, figure 9: 1K tokens a request, few rows, ratios around chunk / (rows - 1)
PD = {"rows": (6, 18), "ratios": (10, 20, 50), "tokens": 1024, "rounds": 6, "policies": ("", "sarathi-256", "sarathi-512", "orca")}
PD_QUICK = {"rows": (3,), "ratios": (4,), "tokens": 100, "rounds": 2, "policies": ("", "sarathi-16", "orca")}
# SARATHI, figure 13: the time of a prompt in chunks
CHUNKS = {"tokens": 4096, "sizes": (4096, 2048, 1024, 512, 256), "prompts": 6}
CHUNKS_QUICK = {"tokens": 128, "sizes": (128, 32), "prompts": 3}


class Cell:
    """NAME:RATE[:POLICY[-STEP_TOKENS]] of open arrivals, or the name of closed streams. A rate may be a share of what tandem-plan says is held: 95%."""

    def __init__(self, text):
        self.key = text
        name, *rest = text.split(":")
        self.name, self.rate, self.share, self.policy = name, None, None, ""
        if name in CLOSED:
            if rest:
                raise ValueError(f"{name} has no rate")
            return
        if name not in OPEN:
            raise ValueError(f"no load {name}; there are {', '.join([*OPEN, *CLOSED])}")
        if not rest or len(rest) > 2:
            raise ValueError(f"{text}: {name}:RATE or {name}:RATE:POLICY")
        try:
            self.rate = float(rest[0].removesuffix("%"))
        except ValueError:
            self.rate = 0
        if rest[0].endswith("%"):
            self.share = self.rate / 100
        if not 0 < self.rate < 1e4:
            raise ValueError(f"{text}: the rate is requests a second, above 0")
        self.policy = rest[1] if len(rest) > 1 else ""
        policy_options(self.policy)


def policy_options(policy):
    """The options for both the daemon and tandem-plan."""
    if not policy:
        return []
    name, dash, size = policy.rpartition("-")
    if not (dash and size.isdigit()):
        name, size = policy, ""
    if name not in POLICIES:
        raise ValueError(f"no policy {policy}; there are {', '.join(POLICIES)}, also with -STEP_TOKENS")
    return ["--policy", name, *(["--step-tokens", size] if size else [])]


def cells_of(text, quick=False):
    cells = [Cell(t) for t in (text or (DEFAULT_QUICK if quick else DEFAULT)).split(",")]
    if len({c.key for c in cells}) < len(cells):
        raise ValueError("a load is named twice")
    return cells


# ---- a daemon with step times of its device ----

class Lab:
    """Shared by cells: the model, a folder of kept step times, and the other times of requests and steps."""

    def __init__(self, ctx, cells):
        self.ctx, self.gpu, self.quick = ctx, ctx.backend == "cuda", ctx.quick
        self.seconds = ctx.seconds or (QUICK_SECONDS if self.quick else SECONDS)
        self.folder = ctx.work / "loads"
        self.model = models.describe(self.folder / "model", {**models.LLAMA3_8B, "max_position_embeddings": CONTEXT} if self.gpu else SMALL)
        self.cache = self.folder / "cache"
        self.options = ["--load-format", "dummy", "--cache-dir", self.cache]
        self.kept, self.front_us, self.host_us, self.shape = None, {}, 0.0, None
        known = self.folder / "known.json"
        have = json.loads(known.read_text()) if known.exists() else {"front_us": {}}
        wanted = {c.name for c in cells if c.rate}
        if known.exists() and wanted <= set(have["front_us"]):
            self.kept = calibration_in(self.cache)
        if self.kept:
            self.front_us, self.host_us, self.shape = have["front_us"], have["host_us"], have["shape"]
            return
        must(ctx.run("tandemd", "--calibrate", *(["--calibrate-ms", 300] if self.quick else []), "--model", self.model, "--backend", ctx.backend,
                     *(["--device", ctx.device] if self.gpu else []), *self.options), "tandemd --calibrate")
        self.kept = calibration_in(self.cache)
        self.learn(cells)
        known.write_text(json.dumps({"front_us": self.front_us, "host_us": self.host_us, "shape": self.shape}))

    def find_rates(self, cells):
        """Computes the rates given as shares of the highest rate."""
        highest = {}
        for c in cells:
            if not c.share:
                continue
            if c.name not in highest:
                highest[c.name] = self.plan(f"highest-{c.name}", self.kept, "--preset", c.name, "--no-second", "--slo-tbt", HELD_TBT_P99_MS, what="highest")["rate"]
            c.rate = float(f"{c.share * highest[c.name]:.3g}")
            if not c.rate > 0:
                raise NotRun(f"tandem-plan says that no rate of {c.name} is held")
        return highest

    def daemon(self, *options):
        return Daemon(self.ctx, *self.options, *options, model=self.model)

    def learn(self, cells):
        """Probes of an idle daemon, and a load, because a GPU is faster in short measurements than after minutes of work."""
        opens = sorted((c for c in cells if c.rate), key=lambda c: c.share is not None)  # a share is of what is learned here
        with self.daemon() as d:
            self.shape = shape_of(d.log())
            watcher = Watcher(d.port)
            for name in {c.name for c in opens}:
                begin = now_us()
                probe = load(self.ctx, d, f"probe-{name}", "--streams", 1, "--requests", 2 if self.quick else 8, "--input", OPEN[name], "--output", 4,
                             "--seed", 98, "--warm", 0)[0]
                self.front_us[name] = outside_us(probe["ttft_ms"]["p50"], watcher.since(begin, d.metrics()["tandem:steps_total"]))
            begin = now_us()
            if opens:
                load(self.ctx, d, "learn", "--preset", opens[0].name, "--rate", LEARN_RATE[opens[0].name] if opens[0].share else opens[0].rate, "--seconds", min(self.seconds, LEARN_SECONDS), "--seed", 98)
            else:
                load(self.ctx, d, "learn", "--streams", 8, "--requests", 32, "--input", 64 if self.quick else 1000, "--output", 64, "--seed", 98)
            self.host_us = between_us(watcher.since(begin, d.metrics()["tandem:steps_total"]))

    def plan(self, name, kept, *args, policy="", what="runs"):
        """Returns tandem-plan's prediction for a load, with step times that a daemon kept."""
        out = self.folder / f"plan-{name}.json"
        sizes = {"--kv-tokens": self.shape["kv_tokens"], "--context": self.shape["context"], "--running": self.shape["running"]}
        sizes |= {} if "-" in policy and policy[-1].isdigit() else {"--step-tokens": self.shape["step_tokens"]}
        must(self.ctx.run("tandem-plan", "--calibration", kept, *(x for pair in sizes.items() for x in pair), *policy_options(policy),
                          "--host-us", 0 if "learned_with_prompts" in kept.read_text() else self.host_us,  # what is learned has it
                          *([] if self.gpu else ["--not-ahead"]), *args, "--json", out, limit_s=120), "tandem-plan")
        return json.loads(out.read_text())[what][0]


# ---- open arrivals ----

def figures(run):
    """The figures of a measured or simulated run, named as in the peers' data."""
    begun = run["sent"] - run["without_first_token"]
    ms = {f"{which} {p}": run[f"{which}_ms"][p] for which in ("ttft", "tbt") for p in ("p50", "p99")}
    return {**ms, "tbt max": run["tbt_ms"]["max"], "tpot mean": run["tpot_ms"]["mean"], "tok/s": run["output_tokens_per_s"],
            "sent": run["sent"], "cut": run["sent"] - run["done"], "no first": run["without_first_token"],
            **{f"stalled {ms}": run[f"requests_with_gap_over_{ms}ms"] / begun if begun else None for ms in (200, 500)}}


def measure_open(lab, cell):
    name = cell.key.replace(":", "-")
    before = shutil.copy(lab.kept, lab.folder / f"kept-{name}.txt")
    with lab.daemon(*policy_options(cell.policy)) as d:
        watcher = Watcher(d.port)
        load(lab.ctx, d, f"warm-{name}", "--streams", 4, "--requests", 8, "--input", 64, "--output", 8, "--seed", 99, "--warm", 0)
        begin = now_us()
        run = load(lab.ctx, d, name, "--preset", cell.name, "--rate", cell.rate, "--seconds", lab.seconds, "--warm", 0,
                   limit_s=lab.seconds + DRAIN_MAX_S + 300)[0]
        steps = watcher.since(begin, d.metrics()["tandem:steps_total"])
    return {"seconds": lab.seconds, "run": run, "predicted": predict(lab, cell, name, before, steps), "exit": d.code}


def predict(lab, cell, name, before, steps):
    """The predictions for the arrivals that were sent: {how: figures}."""
    (lab.folder / f"steps-{name}.json").write_text(json.dumps(steps))
    log, pace = lab.folder / f"plan-{name}.csv", lab.folder / f"pace-{name}"
    args = ("--preset", cell.name, "--rate", cell.rate, "--seconds", lab.seconds, "--no-search", "--front-us", lab.front_us[cell.name])
    told = [lab.plan(f"{name}-before", before, *args, "--log-steps", log, policy=cell.policy)]
    if not cell.policy:  # the daemon has recorded how much longer steps took in this run
        write_pace(steps, log, pace)
        told += [lab.plan(f"{name}-after", lab.kept, *args), lab.plan(f"{name}-paced", lab.kept, *args, "--pace", pace)]
    return dict(zip(HOW, map(figures, told)))


def measure_offline(lab, cell):
    size = ("--streams", 16, "--{in}", 64, "--{out}", 16) if lab.quick else ("--preset", "offline")
    before = shutil.copy(lab.kept, lab.folder / "kept-offline.txt")
    with lab.daemon() as d:
        run = load(lab.ctx, d, "offline", *(str(x).format(**{"in": "input", "out": "output"}) for x in size), limit_s=580)[0]
    told = [lab.plan(f"offline-{i}", kept, *(str(x).format(**{"in": "in", "out": "out"}) for x in size)) for i, kept in enumerate((before, lab.kept))]
    return {"run": run, "predicted": dict(zip(HOW, map(figures, told))), "exit": d.code}


# ---- closed streams ----

def measure_pd(lab, cell):
    """In and out tokens/s by policy, rows and ratio of prompt to answer; and of static chunks, what decodes take beside them."""
    what, got, beside, codes = PD_QUICK if lab.quick else PD, [], [], []
    tokens, most = what["tokens"], max(what["rows"])
    for policy in what["policies"]:
        options = policy_options(policy)
        if policy == "orca":  # a whole prompt in each step
            options += ["--context-tokens", tokens, "--step-tokens", tokens + most]
        if policy:  # the daemon's own policy is measured as calibrated
            options += ["--running-requests", most]
        with lab.daemon(*options) as d:
            watcher = Watcher(d.port)
            for rows in what["rows"]:
                begin = now_us()
                for i, ratio in enumerate(what["ratios"]):
                    out = max(1, round(tokens / (1 + ratio)))
                    run = load(lab.ctx, d, f"pd-{policy}-{rows}-{ratio}", "--streams", rows, "--requests", rows * what["rounds"], "--input", tokens - out,
                               "--output", out, "--seed", 200 + 10 * rows + i, "--warm", 0)[0]
                    got.append({"policy": policy, "rows": rows, "ratio": ratio, "run": run})
                if policy.startswith("sarathi"):
                    steps = watcher.since(begin, d.metrics()["tandem:steps_total"])
                    beside.append({"policy": policy, "rows": rows, **decodes_beside(steps, int(policy.rpartition("-")[2]))})
        codes.append(d.code)
    return {"runs": got, "beside": beside, "exit": max(codes)}


def decodes_beside(steps, step_tokens):
    """Milliseconds a decode's token takes in steps of decodes alone, and in full steps with prompts: what is left of these when each prompt token
    takes what it takes in full steps of prompts alone (SARATHI, table 2)."""
    def ms(s):
        return (s["end_us"] - s["begin_us"]) / 1e3
    full = [s for s in steps if s["prefill_tokens"] + s["decodes"] > 0.9 * step_tokens]
    token = [ms(s) / s["prefill_tokens"] for s in full if s["decodes"] == 0]
    most = max((s["decodes"] for s in steps), default=0)
    alone = [ms(s) / s["decodes"] for s in steps if not s["prefills"] and 2 * s["decodes"] > most]
    beside = [(ms(s) - s["prefill_tokens"] * statistics.median(token)) / s["decodes"] for s in full if token and s["prefills"] and 2 * s["decodes"] > most]
    return {"alone": statistics.median(alone) if alone else None, "beside": statistics.median(beside) if beside else None}


def measure_chunks(lab, cell):
    """The time of one prompt alone, by the length of its chunks."""
    what, got, codes = CHUNKS_QUICK if lab.quick else CHUNKS, [], []
    for size in what["sizes"]:
        with lab.daemon("--policy", "sarathi", "--step-tokens", size, "--running-requests", min(16, size)) as d:
            run = load(lab.ctx, d, f"chunks-{size}", "--streams", 1, "--requests", what["prompts"], "--input", what["tokens"], "--output", 1, "--seed", 98)[0]
            got.append({"chunk": size, "tokens": what["tokens"], "run": run})
        codes.append(d.code)
    return {"runs": got, "exit": max(codes)}


# ---- what is told ----

HEAD = ["", "req/s", "s", "done", "cut", "TTFT p50", "p99 ms", "TBT p50", "p99", "max ms", "> 200 ms", "> 500 ms", "TPOT ms", "out tok/s"]


def row(who, rate, seconds, f):
    def percent(v):
        return None if v is None else f"{100 * v:.1f} %"
    cut = f"{f['cut']}, {f['no first']} without a token" if f.get("no first") else f["cut"]
    return [who, rate, seconds, f["sent"] - f["cut"], cut, f["ttft p50"], f["ttft p99"], f["tbt p50"], f["tbt p99"], f["tbt max"],
            percent(f["stalled 200"]), percent(f["stalled 500"]), f["tpot mean"], f["tok/s"]]


def peers_of(name, peer):
    """Returns [(who, {rate: figures})] of a load: a peer may have been run in several ways."""
    return [(f"{peer['name']}{key[len(name):]}", rates) for key, rates in peer["loads"].items() if key.split(",")[0] == name]


def tell_open(s, name, cells, peer):
    rows = [row(f"tandem{', ' + c['policy'] if c['policy'] else ''}", c["rate"], c["seconds"], figures(c["run"]))
            for c in sorted(cells, key=lambda c: (c["policy"], c["rate"]))]
    asked = {c["rate"] for c in cells}
    for who, rates in peers_of(name, peer):
        rows += [row(who, float(r), f["seconds"], f) for r, f in rates.items() if float(r) in asked or len(asked) > 1]
    s.text(f"**{name}**: requests of which one token came more than 200, 500 ms after the one before it; TPOT is the mean over requests of the mean gap.")
    s.table(HEAD, rows)


def tell_predicted(s, cells):
    rows = []
    for c in cells:
        measured = figures(c["run"])
        for how, told in c["predicted"].items():
            for what, allowed in OFF_MAX.items():
                x, y = measured[what], told[what]
                off = 100 * (y / x - 1) if x and y is not None else None
                over = off is None or abs(off) > allowed
                rows.append([c["key"], how, what, x, y, "-" if off is None else f"{off:+.1f} %", f"{allowed} %" + (" **over**" if over else "")])
    s.text("What `tandem-plan` says of the same arrivals: with the step times that daemons before this one kept, which is a prediction; with what this "
           "run itself taught, in the median; and with each step as much longer than calibrated as the daemon's own step at that moment, where what is "
           "left to differ is the simulator's.")
    s.table(["load", "step times", "", "measured", "predicted", "off by", "allowed"], rows, f"{len(rows)} predictions beside what was measured")


def tell_pd(s, runs, beside):
    policies = list(dict.fromkeys(r["policy"] for r in runs))
    by = {(r["rows"], r["ratio"], r["policy"]): r["run"]["in_and_out_tokens_per_s"] for r in runs}
    rows = []
    for rows_, ratio in dict.fromkeys((r["rows"], r["ratio"]) for r in runs):
        rates = [by[(rows_, ratio, p)] for p in policies]
        rows.append([rows_, ratio, *rates, f"{rates[0] / max(rates[1:]):.2f}x", f"{rates[0] / rates[-1]:.2f}x"])
    s.text("**P:D** (SARATHI, figure 9): closed streams; prompt and answer tokens a second, by policy.")
    s.table(["streams", "P:D", *(p or "tandem" for p in policies), "of the best other", f"of {policies[-1]}"], rows)
    if not beside:
        return
    s.text("**Decodes beside chunks** (SARATHI, table 2): ms a token of a decode in steps without prompts, and in full steps, less what the prompt tokens "
           "take by themselves.")
    s.table(["policy", "streams", "alone", "beside a chunk", "speed-up"],
            [[b["policy"], b["rows"], b["alone"], b["beside"], f"{b['alone'] / b['beside']:.1f}x" if b["alone"] and b["beside"] and b["beside"] > 0 else "-"] for b in beside])


def tell_chunks(s, runs):
    whole = runs[0]["run"]["ttft_ms"]["p50"]
    s.text(f"**Chunks** (SARATHI, figure 13): a prompt of {runs[0]['tokens']} tokens alone, in chunks of so many.")
    s.table(["chunk", "TTFT p50 ms", "of the whole prompt's"], [[r["chunk"], r["run"]["ttft_ms"]["p50"], f"{r['run']['ttft_ms']['p50'] / whole:.2f}x"] for r in runs])


def is_held(f):
    return f["tbt p99"] is not None and f["tbt p99"] <= HELD_TBT_P99_MS and f["ttft p50"] <= HELD_TTFT_P50_MS and not f.get("no first")


def judge(s, cells, ctx):
    peer, goals = ctx.peers()["vllm"], ctx.peers()["goals"]
    for c in cells:
        f, rate = figures(c["run"]), f"{c['rate']:g}" if c["rate"] else ""
        theirs = {} if c["name"] not in OPEN else peer["loads"].get(PEER_OF.get(c["name"], c["name"]), {}).get(rate, {})
        if c["name"] == "offline":
            theirs = {"tok/s": peer["512 requests of 1000 in, 1000 out, output tokens/s"]}
        aims = goals["loads"].get(c["name"], {})
        for source, of in ((peer["name"], theirs), (goals["name"], aims if c["name"] == "offline" else aims.get(rate, {}))):
            for what in ("ttft p50", "ttft p99", "tbt p99", "tpot mean", "tok/s"):
                if what in of and (what != "tok/s" or c["name"] == "offline"):  # tokens/s of open arrivals are those of the arrivals
                    over = f", {of['seconds']:g} s" if "seconds" in of else ""
                    s.bar(f"{c['key']}, {what}", f[what], of[what], "tok/s" if what == "tok/s" else "ms", what != "tok/s", source + over)
        for what, allowed in OFF_MAX.items():
            told = c["predicted"].get(HOW[0], {}).get(what)
            if told is not None and f[what]:
                s.bar(f"{c['key']}, {what}, predicted: off by", abs(100 * (told / f[what] - 1)), allowed, "%", source="goal")
    arxiv = {c["rate"]: figures(c["run"]) for c in cells if c["name"] == "arxiv"}
    if len(arxiv) > 1:
        held = max((r for r, f in arxiv.items() if is_held(f)), default=0.0)
        what = "arXiv-like requests/s held at 60 ms between tokens (p99) and 1 s to the first (p50)"
        theirs = {float(r): f for r, f in peer["loads"][PEER_OF["arxiv"]].items()}
        s.bar(what, held, max(r for r, f in theirs.items() if is_held(f)), "requests/s", False, f"{peer['name']}, budget 1024, of {', '.join(f'{r:g}' for r in theirs)}")
        s.bar(what, held, goals["arxiv requests/s held at 60 ms between tokens (p99) and 1 s to the first (p50)"], "requests/s", False, goals["name"])


def as_run(rate, f):
    """A peer's figures in the picture's format."""
    return {"rate": rate, "streams": 0, "ttft_ms": {"p50": f["ttft p50"], "p99": f["ttft p99"]}, "tbt_ms": {"p50": f["tbt p50"], "p99": f["tbt p99"]},
            "output_tokens_per_s": f["tok/s"]}


def draw(ctx, s, name, cells, peer):
    """A chart over the rates, with a line for each policy, the prediction and the peers."""
    sys.path.insert(0, str(ctx.root / "scripts"))
    import bench_report
    lines = []
    for policy in dict.fromkeys(c["policy"] for c in cells):
        lines.append((f"tandem{', ' + policy if policy else ''}", [c["run"] for c in cells if c["policy"] == policy]))
    told = [as_run(c["rate"], c["predicted"][HOW[0]]) for c in cells if not c["policy"]]
    lines.append(("tandem-plan", told))
    lines += [(who, [as_run(float(r), f) for r, f in rates.items()]) for who, rates in peers_of(name, peer)]
    path = ctx.out.with_name(f"{ctx.out.stem}-{name}.svg")
    path.parent.mkdir(parents=True, exist_ok=True)
    bench_report.draw(path, lines)
    s.text(f"![{name}: time to first token, time between tokens, tokens/s over requests/s]({path.name})")


def tell(ctx, s, got):
    """got: {key: cell}, from this run and those to which it was added."""
    gpu, peer = ctx.backend == "cuda" and not ctx.quick, ctx.peers()["vllm"]
    cells = list(got.values())
    opens = [c for c in cells if c["name"] in OPEN]
    for name in dict.fromkeys(c["name"] for c in opens):
        mine = [c for c in opens if c["name"] == name]
        tell_open(s, name, mine, peer if gpu else {"loads": {}})
        if len({c["rate"] for c in mine}) > 1:
            draw(ctx, s, name, mine, peer if gpu else {"loads": {}})
    offline = [c for c in cells if c["name"] == "offline"]
    if offline:
        f = figures(offline[0]["run"])
        s.text(f"**offline**: {f['sent']} requests at once, {f['tok/s']:.0f} output tokens/s.")
    if opens or offline:
        tell_predicted(s, opens + offline)
    for c in cells:
        if c["name"] == "pd":
            tell_pd(s, c["runs"], c["beside"])
        elif c["name"] == "chunks":
            tell_chunks(s, c["runs"])
    if gpu:
        judge(s, [c for c in opens + offline if not c["policy"]], ctx)
        s.text("Arrivals and lengths are the peer's own to the last request; where a window is shorter, they are the first ones, and a queue that grows has "
               f"less time to show. The bars: {peer['provenance']}.")
    else:
        s.not_run("the bars", "the runs were short (--quick)" if ctx.backend == "cuda" else "the backend is not a GPU's")


def check(s, c):
    runs = [r["run"] for r in c["runs"]] if "runs" in c else [c["run"]]
    if c["name"] not in OPEN:
        all_done(s, runs)
    else:
        r = runs[0]
        failed = {k: n for k, n in r["errors"].items() if k != "unfinished"}
        s.check(r["sent"] > 0 and not failed and not r["shorter_than_asked"], f"{c['key']}: no request failed", failed or f"{r['sent']} sent, {r['done']} done")
        late = r["generator"]["sent_late_ms_p99"]
        if r["generator"]["share_of_a_core"] > 0.7 or late > 5:
            s.text(f"The load generator was itself near its limit in {c['key']}.")
    s.check(c["exit"] == 0, f"{c['key']}: the daemon ends with 0 afterwards", c["exit"])


def stage(ctx, s):
    ctx.need_backend()
    cells = cells_of(ctx.loads, ctx.quick)
    if ctx.backend == "cuda":
        busy = cores_busy()
        s.check(busy <= BUSY_MAX, "the host has its cores for the daemon", f"{100 * busy:.0f} % busy before")
    got = {}
    for data in ctx.before.get("loads", []):
        got |= data["cells"]
    lab = Lab(ctx, cells)
    s.data.update(front_us=lab.front_us, host_us=lab.host_us, highest=lab.find_rates(cells))
    measure = {"offline": measure_offline, "pd": measure_pd, "chunks": measure_chunks}
    for cell in cells:
        with s.part(cell.key):
            c = {"key": cell.key, "name": cell.name, "rate": cell.rate, "policy": cell.policy, **measure.get(cell.name, measure_open)(lab, cell)}
            got[cell.key] = c
            (lab.folder / "cells.json").write_text(json.dumps(got))  # what was measured stays if the rest does not come
            check(s, c)
    s.data["cells"] = got
    if not got:
        raise NotRun("no load was measured")
    tell(ctx, s, got)
