"""Decode attention by policy, compared with FlashAttention-3 and FlashInfer in the same run on the same cells: batches of one length,
PAT's trees of shared prefixes, PersistentKV's traces."""
import json
import math
import statistics

from core import must, number
from peers import check_agree, peers_here

SHARED_TOKENS, SHARED_ROWS = 256, 64  # trees of which so many rows have so many first tokens in common must be twice as fast as the best peer
FLOOR_TB_S = 4.55
GOALS_HEAD_DIM = 128  # for which goals were set
BIG_US = 200  # a floor from which a batch is held to a rate
POLICIES = ("auto", "none", "always", "pat", "persistentkv", "flashdecode")


def key_of(cell):
    return cell["kind"], cell["name"], cell["heads"], cell["kv_heads"]


def join(ours, peers):
    """Returns each cell with its figures and the best peer's: {..., "peer": name or None, "peer_us": us or None}."""
    theirs = {key_of(c): {k: v for k, v in c["us"].items() if v} for c in peers.get("cells", ())}
    out = []
    for c in ours["cells"]:
        figures = theirs.get(key_of(c), {})
        best = min(figures, key=figures.get, default=None)
        out.append({**{k: c[k] for k in ("kind", "name", "heads", "kv_heads", "floor_us", "us", "plan_us", "short")}, "peers": figures, "peer": best,
                    "peer_us": figures.get(best), "sharing": any(c["shared"]), "rows": len(c["kv_len"]),
                    "rows_sharing": rows_sharing(c["shared"], SHARED_TOKENS)})
    return out


def rows_sharing(shared, tokens):
    """Returns the largest number of rows with at least that many common first tokens; shared: those of each row with the one before."""
    most = run = 1
    for n in shared[1:]:
        run = run + 1 if n >= tokens else 1
        most = max(most, run)
    return most


def trace_key(cell):
    """A trace's step: its trace and seed."""
    name, _, rest = cell["name"].partition(" seed ")
    return name, int(rest.split()[0])


def traces(cells, policy, calibration_seed=0):
    """{trace: (mean us, sd, best peer's mean or None, its name)} over the held-out seeds: of the mean of a seed's steps. A peer counts where
    it was measured on every step."""
    by = {}
    for c in cells:
        if c["kind"] == "trace" and c["us"].get(policy) and trace_key(c)[1] != calibration_seed:
            by.setdefault(trace_key(c)[0], {}).setdefault(trace_key(c)[1], []).append(c)
    out = {}
    for trace, seeds in by.items():
        means = [statistics.fmean(c["us"][policy] for c in steps) for steps in seeds.values()]
        steps = [c for s in seeds.values() for c in s]
        names = set.intersection(*(set(c["peers"]) for c in steps))
        peers = {n: statistics.fmean(statistics.fmean(c["peers"][n] for c in s) for s in seeds.values()) for n in names}
        best = min(peers, key=peers.get, default=None)
        out[trace] = (statistics.fmean(means), statistics.stdev(means) if len(means) > 1 else 0.0, peers.get(best), best)
    return out


def geometric_mean(values):
    return math.exp(statistics.fmean(map(math.log, values))) if values else None


def tell_goals(s, cells, policy, goals):
    """Bars set for this backend, in addition to those of the peers."""
    for c in cells:
        us, name = c["us"].get(policy), f"{c['name']} {c['heads']}/{c['kv_heads']}"
        if us and c["kind"] == "decode" and name in goals["decode attention, us"]:
            s.bar(f"decode {name}", us, goals["decode attention, us"][name], "us", source="goal")
        if us and c["kind"] == "decode" and c["floor_us"] >= BIG_US:
            s.bar(f"decode {name}, rate", FLOOR_TB_S * c["floor_us"] / us, goals["decode attention of large batches, TB/s"],
                  "TB/s", less_is_better=False, source="goal")
        if us and c["peer_us"] and c["kind"] == "tree" and c["rows_sharing"] >= SHARED_ROWS:
            s.bar(f"tree {name}, twice as fast", us, c["peer_us"] / 2, "us", source=f"half of {c['peer']}'s; no kernel is below {number(c['floor_us'])}")


def figure(cell, policy):
    """us, with a mark if there was not enough room for the partials that the policy wanted."""
    us = cell["us"].get(policy)
    return f"{number(us)}*" if us and cell["short"].get(policy) else us


def tell_short(s, cells):
    short = [(p, sum(bool(c["short"].get(p)) for c in cells)) for p in POLICIES]
    if any(n for _, n in short):
        s.text("*: partials did not suffice for what the policy wanted, so rows read by themselves or whole instead: "
               + ", ".join(f"{p} in {n} of {len(cells)} cells" for p, n in short if n))


def tell(s, cells, policy, goals):
    """Tables, and bars against the best peer. goals: None if they were not set for such cells, or nothing was measured."""
    for kind in ("decode", "tree"):
        mine = [c for c in cells if c["kind"] == kind]
        if mine:
            s.text(f"### {kind}: us of one layer")
            s.table(["", "heads", "floor", *POLICIES, "best peer", "", "plan us"],
                    [[c["name"], f"{c['heads']}/{c['kv_heads']}", c["floor_us"], *(figure(c, p) for p in POLICIES), c["peer_us"],
                      c["peer"] or "-", c["plan_us"].get(policy)] for c in mine])
    tell_short(s, cells)
    by_trace = {p: traces(cells, p) for p in POLICIES}
    if any(by_trace.values()):
        s.text("### traces: us of a step, mean and sd over the held-out seeds")
        names = list(dict.fromkeys(n for t in by_trace.values() for n in t))
        peer = {n: next((by_trace[p][n][2:] for p in POLICIES if n in by_trace[p] and by_trace[p][n][2]), (None, None)) for n in names}
        s.table(["", *POLICIES, "best peer", ""],
                [[n, *(f"{by_trace[p][n][0]:.1f} ± {by_trace[p][n][1]:.1f}" if n in by_trace[p] else None for p in POLICIES), *peer[n]] for n in names])
    for c in cells:
        if c["kind"] != "trace" and c["peer_us"] and c["us"].get(policy):
            slack = 1.0 if c["sharing"] else 1.02
            s.bar(f"{c['kind']} {c['name']} {c['heads']}/{c['kv_heads']}", c["us"][policy], c["peer_us"] * slack, "us", source=c["peer"])
    for n, (mean, _, theirs, name) in by_trace[policy].items():
        if theirs:
            s.bar(f"trace {n}, 1.15 times as fast", mean, theirs / 1.15, "us", source=name)
    ratios = [c["peer_us"] / c["us"][policy] for c in cells if c["kind"] == "tree" and c["sharing"] and c["peer_us"] and c["us"].get(policy)]
    if ratios:
        s.bar("shared trees beside the best peer, geometric mean", geometric_mean(ratios), 2.5, "times", less_is_better=False, source="goal")
    if goals:
        tell_goals(s, cells, policy, goals)


def stage(ctx, s):
    """On a CPU: the times that plans predict, so that everything except the device runs."""
    gpu = ctx.backend == "cuda"
    if gpu:
        ctx.need_gpu()
    policy = "always" if ctx.head_dim <= 128 else "auto"  # the op alone, without other costs of sharing in a step; larger heads have no plans
    what = ["--head-dim", ctx.head_dim, "--trace-steps", 3 if ctx.quick else 8, *(["--heads", "32/8"] if ctx.quick else [])]
    s.text(f"Heads of {ctx.head_dim} elements.")
    cells_file, out = ctx.work / "attention-cells.json", ctx.work / "attention.json"
    must(ctx.run("tandem-bench", "attention", *what, "--cells", cells_file, limit_s=60), "tandem-bench attention --cells")
    how = ["--backend", "cuda", "--device", ctx.device, "--rounds", 7, "--max-seconds", 0.3] if gpu else ["--fake"]
    must(ctx.run("tandem-bench", "attention", *what, *how, "--json", out, limit_s=480), "tandem-bench attention")
    ours = json.loads(out.read_text())
    peers = peers_here(ctx, s, "attention_peers", ["--cells", cells_file, "--max-seconds", 60 if ctx.quick else 150], 420)
    check_agree(s, peers.get("cells", ()))
    cells = join(ours, peers)
    s.data.update(attention=cells, peers=peers.get("versions", {}))
    measured = sum(bool(c["us"].get(policy)) for c in cells)
    s.check(measured > 0.9 * len(cells), f"every cell was {'measured' if gpu else 'planned'} by the {policy} policy",
            f"{measured} of {len(cells)}")
    tell(s, cells, policy, ctx.peers()["goals"] if gpu and ctx.head_dim == GOALS_HEAD_DIM else None)
