"""The GPU report judges kernels against their peers correctly (attention, chunks beside decodes, products), and names peers that are missing
or break."""
import json
import subprocess
import sys

import pytest
from harness import ROOT

sys.path.insert(0, str(ROOT / "scripts/gpu"))
import attention  # noqa: E402
import attention_peers  # noqa: E402
import core  # noqa: E402
import hybrid  # noqa: E402
import peers  # noqa: E402
import product_peers  # noqa: E402
import steps  # noqa: E402

GOALS = json.loads((ROOT / "scripts/gpu/peers.json").read_text())["goals"]


# ---- attention beside peers ----

def attention_cell(kind, name, ours, kv_len=(4096, 4096), shared=(0, 0), **us):
    return {"kind": kind, "name": name, "heads": 32, "kv_heads": 8, "floor_us": 1.0, "plan_us": {}, "us": {"always": ours, **us}, "short": {},
            "kv_len": list(kv_len), "shared": list(shared)}


def peer_cell(kind, name, **us):
    return {"kind": kind, "name": name, "heads": 32, "kv_heads": 8, "us": us}


def test_attention_stands_beside_the_best_peer():
    ours = {"cells": [attention_cell("decode", "1x16384", 20.0), attention_cell("tree", "t", 10.0, shared=(0, 512)),
                      attention_cell("tree", "u", 10.0, shared=(0, 512)), attention_cell("tree", "256_1024", 101.0)]}
    peers = {"cells": [peer_cell("decode", "1x16384", a=26.0, b=19.0), peer_cell("tree", "t", a=40.0, b=None), peer_cell("tree", "u", b=10.0),
                       peer_cell("tree", "256_1024", a=100.0)]}
    cells = attention.join(ours, peers)
    assert [(c["peer"], c["peer_us"]) for c in cells] == [("b", 19.0), ("a", 40.0), ("b", 10.0), ("a", 100.0)]
    s = core.Stage("attention", "")
    attention.tell(s, cells, "always", GOALS)
    assert [(b["what"].split()[0], b["ahead"]) for b in s.bars] == [("decode", False), ("tree", True), ("tree", True), ("tree", True), ("shared", False),
                                                                    ("decode", True)]
    assert s.bars[-2]["ours"] == pytest.approx(2.0)  # of 4 and 1; the tree without sharing does not count
    s = core.Stage("attention", "")
    attention.tell(s, attention.join(ours, {}), "always", GOALS)
    assert [b["what"] for b in s.bars] == ["decode 1x16384 32/8"] and len(s.body) > 0  # without peers, only goals are judged
    s = core.Stage("attention", "")
    attention.tell(s, attention.join(ours, {}), "always", None)
    assert s.bars == [] and len(s.body) > 0
    assert "*" not in "\n".join(s.body)
    cells[1]["us"]["pat"], cells[1]["short"] = 33.0, {"pat": 2}  # there was not enough room for partials, and the cell says so
    s = core.Stage("attention", "")
    attention.tell(s, cells, "always", None)
    assert any("| 33.0* |" in line or "| 33* |" in line for line in s.body) and any(line.startswith("*: ") and "pat in 1 of 4" in line for line in s.body)


def test_goals_of_attention():
    assert [attention.rows_sharing(shared, 256) for shared in ((0,), (0, 300, 256, 255, 256), (0, 0, 0))] == [1, 3, 1]
    of_64, of_63 = ((0, *(256,) * (n - 1)) for n in (64, 63))
    ours = {"cells": [attention_cell("tree", "a", 10.0, shared=of_64), attention_cell("tree", "b", 10.1, shared=of_64),
                      attention_cell("tree", "c", 99.0, shared=of_63), {**attention_cell("decode", "d", 204.0), "floor_us": 200.0},
                      {**attention_cell("decode", "e", 205.0), "floor_us": 200.0}]}
    s = core.Stage("attention", "")
    attention.tell_goals(s, attention.join(ours, {"cells": [peer_cell("tree", n, a=20.0) for n in "abc"]}), "always", GOALS)
    assert [(b["what"], b["ahead"]) for b in s.bars] == [("tree a 32/8, twice as fast", True), ("tree b 32/8, twice as fast", False),
                                                         ("decode d 32/8, rate", True), ("decode e 32/8, rate", False)]


def test_a_trace_is_its_held_out_seeds():
    steps = [(seed, step, 10.0 * seed + step) for seed in range(6) for step in (0, 2)]
    ours = {"cells": [attention_cell("trace", f"zipf B8 seed {seed} step {step}", us) for seed, step, us in steps]}
    peers = {"cells": [peer_cell("trace", f"zipf B8 seed {seed} step {step}", a=2 * us + 1, b=1.0) for seed, step, us in steps]}
    del peers["cells"][3]["us"]["b"]  # not measured on every step, so there is no mean
    mean, sd, theirs, name = attention.traces(attention.join(ours, peers), "always")["zipf B8"]
    assert mean == pytest.approx(31) and sd == pytest.approx(250 ** 0.5) and theirs == pytest.approx(63) and name == "a"


def test_peers_get_the_same_pages_and_tree():
    cell = {"kv_len": [100, 100, 70, 40, 20], "shared": [0, 64, 32, 32, 0]}
    rows, n = attention_peers.pages_of(cell)
    assert [len(r) for r in rows] == [7, 7, 5, 3, 2] and n == 7 + 3 + 3 + 1 + 2
    assert rows[1][:4] == rows[0][:4] and rows[1][4] not in rows[0] and rows[2][:2] == rows[3][:2] == rows[0][:2] and rows[4] == [14, 15]
    levels = attention_peers.levels_of(rows)
    covered = [[p for level in levels for first, end, pages in level if first <= r < end for p in pages] for r in range(len(rows))]
    assert covered == rows  # from the top, each row's pages in order
    assert [(first, end) for first, end, _ in levels[1]] == [(0, 4), (4, 5)] and levels[1][0][2] == rows[0][:2]


class Output:
    """As much of a tensor as the comparison needs."""

    def __init__(self, values):
        self.values = values

    def __sub__(self, other):
        return Output([a - b for a, b in zip(self.values, other.values)])

    def abs(self):
        return Output(map(abs, self.values))

    def max(self):
        return max(self.values)


def test_a_peer_that_breaks_does_not_end_the_rest(monkeypatch):
    class Pool:
        def __init__(self, torch, kv_heads, head_dim, n_pages):
            self.ids = range(n_pages)

    class Batch:
        def __init__(self, torch, cell, pool, copy):
            self.cell = cell

    class Torch:
        class cuda:
            @staticmethod
            def empty_cache():
                pass

    def no_trees(batch):
        if batch.cell["kind"] == "tree":
            raise ValueError("no trees here")
        return lambda: Output([-4.0, 2.5])

    monkeypatch.setattr(attention_peers, "Pool", Pool)
    monkeypatch.setattr(attention_peers, "Batch", Batch)
    monkeypatch.setattr(attention_peers, "graph_us", lambda torch, calls, hot_s: 10.0 * len(calls))
    monkeypatch.setattr(attention_peers, "outputs", lambda torch, batch, call: call())
    cells = [{**attention_cell(kind, kind, 0.0), "kv_heads": kv, "head_dim": 128} for kind in ("trace", "tree", "decode") for kv in (8, 4)]
    out = {"cells": [], "errors": {}}
    makers = {"all": lambda b: lambda: Output([-4.0, 2.0]), "some": no_trees, "none": lambda b: None}
    attention_peers.measure(Torch, cells, makers, float("inf"), 0, out)
    assert [c["kind"] for c in out["cells"]][-2:] == ["trace", "trace"] and len(out["cells"]) == 6  # traces last
    assert all(set(c["us"]) == ({"all"} if c["kind"] == "tree" else {"all", "some"}) for c in out["cells"])
    assert list(out["errors"]) == ["some"] and "no trees here" in out["errors"]["some"]
    assert all(c["error"] == ({"all": 0.0} if c["kind"] == "tree" else {"all": 0.0, "some": 0.125}) for c in out["cells"])
    out = {"cells": [], "errors": {}}
    attention_peers.measure(Torch, cells, makers, 0, 0, out)  # the time is up
    assert out["cells"] == []


def test_peers_that_differ_are_a_failed_check():
    cells = [{**peer_cell("hybrid", n, a=1.0, b=1.0), "error": {"a": 0.0, "b": e}} for n, e in (("x", 0.004), ("y", 0.02))]
    s = core.Stage("hybrid", "")
    peers.check_agree(s, [])
    peers.check_agree(s, cells)
    for wrong in (0.021, float("nan")):
        peers.check_agree(s, [*cells, {**peer_cell("hybrid", "z"), "error": {"b": wrong}}])
    assert [c["ok"] for c in s.checks] == [True, False, False] and "2.0e-02" in s.checks[0]["detail"] and "b by nan on z 32/8" in s.checks[2]["detail"]


# ---- chunks beside decodes ----

def policy_cell(**hot_us):
    return {"kind": "hybrid", "name": "1024@12288 + 80x12288", "heads": 32, "kv_heads": 8, "flop": 2.5e11, "decode_bytes": 4.0e9,
            "cuts": [{"cut": p.replace("_", " "), "us": us, "hot_us": us, "error": 1e-3} for p, us in hot_us.items()]}


def test_cells_stand_beside_each_flash_attention_and_the_best_peer():
    class Unseen:
        def during(self, begin_s, end_s):
            return None, None

    cell = policy_cell(auto=1000.0, serial=1225.0)
    cell["cuts"][0].update(hot_begin_s=0, hot_end_s=1)
    theirs = {"FlashAttention-3": 1400.0, "FlashAttention-3, a pair": 1290.0, "FlashAttention-4": 1800.0, "FlashAttention-4, pages of 128": 1270.0}
    for figures, told in ((theirs, "| 1,290 | 1,270 | 1,270 | FlashAttention-4, pages of 128 |"), ({"FlashInfer POD": 1500.0}, "| - | - | 1,500 | FlashInfer POD |")):
        s = core.Stage("hybrid", "")
        hybrid.tell(s, [cell], {"cells": [{**peer_cell("hybrid", cell["name"], **figures), "error": {}}]}, Unseen())
        assert told in s.body[-1]
        assert [b["what"].split(", ")[-1] for b in s.bars] == ["beside our serial", "beside the best peer"] and all(b["ahead"] for b in s.bars)


def test_policies_are_told_beside_one_after_the_other_and_drawn(tmp_path):
    cell = policy_cell(auto=1000.0, serial=1225.0, halves=2450.0, proportional=1400.0, streams=1225.0)
    s = core.Stage("hybrid", "")
    hybrid.tell_policies(s, [cell])
    assert s.checks[0]["ok"] and "halves" in "".join(s.body) and "| 1.23 | 0.5 |" in "".join(s.body)
    cell["cuts"][2]["error"] = 0.5
    hybrid.tell_policies(s, [cell])
    assert not s.checks[1]["ok"]
    told, drawn = tmp_path / "hybrid.json", tmp_path / "h.svg"

    def draw():
        return subprocess.run([ROOT / "scripts/draw_hybrid.py", told, drawn], capture_output=True, text=True)
    told.write_text(json.dumps([cell, {**cell, "kind": "chunk"}]))
    draw()
    svg = drawn.read_text()
    assert all(x in svg for x in (">0.82<", ">2.00<", ">1.14<", ">1K@12K + 80x12K<", ">32/8, 1,225 us<")) and svg.count("<rect") == 1 + 3 * 4 + 1
    s = core.Stage("hybrid", "")
    s.text("### us of one layer\n\n| 1024@12288 + 80x12288 | 32/8 | 879.1 | 1,000 |")
    hybrid.tell_policies(s, [cell])
    told = tmp_path / "report.md"
    told.write_text("\n\n".join(s.body) + "\n\n## another stage\n")
    draw()
    of_report = drawn.read_text()
    assert of_report.replace(">1.15<", ">1.14<") == svg  # except for rounding to the table's three digits
    told.write_text("")
    assert draw().returncode == 1
    told.write_text(json.dumps([policy_cell(auto=1.0)]))
    told = told.rename(tmp_path / "short.json")
    r = draw()
    assert r.returncode == 1 and "serial" in r.stderr


# ---- products beside cuBLAS ----

def product_ops(rows, us=10.0, head_us=80.0):
    return [{"op": m, "size": f"{rows} x 1->1", "us": us, "floor_us": us, "share": 1.0} for m in steps.LINEARS] + \
        [{"op": "lm_head", "size": f"{rows} x 1->1", "us": head_us, "floor_us": head_us, "share": 1.0}]


CONSTANTS = {"cublas": {"name": "cuBLAS", "linears, ms": {"1": 1.5, "64": 1.0, "256": 1.5}}, "goals": {"linears beside cuBLAS": 1.05}}


def test_linears_stand_beside_this_runs_cublas():
    def bars(here):
        s = core.Stage("kernels", "")
        steps.tell_linears(s, product_ops(1) + product_ops(64), CONSTANTS, here)  # 1.36 ms each, 256 rows not measured
        return [(b["bar"], b["ahead"], b["source"]) for b in s.bars]
    elsewhere = [(1.5, True, "cuBLAS 1.5 on another machine"), (pytest.approx(1.05), False, "cuBLAS 1 on another machine and 5%"),
                 (pytest.approx(1.575), False, "cuBLAS 1.5 on another machine and 5%")]
    assert bars({}) == bars({"linears, ms": {"64": {}}}) == elsewhere
    assert bars({"linears, ms": {"1": {"cublas": 1.3}, "64": {"cublas": 1.4, "cublaslt": 1.3}}}) == [
        (1.3, False, "cuBLAS 1.3 in this run (cublas)"), (pytest.approx(1.365), True, "cuBLAS 1.3 in this run (cublaslt) and 5%"), elsewhere[2]]


class Measured:
    """A context in which tandem-bench has already written its figures."""
    backend, quick, device = "cuda", True, 0

    def __init__(self, work):
        self.work = work

    def need_gpu(self):
        pass

    def run(self, name, what, *args, limit_s):
        args[args.index("--json") + 1].write_text(json.dumps({"ops": [o for n in steps.ROWS for o in product_ops(n)] + [{"op": "x", "size": "1"}]}))
        return core.Outcome(0, "", 1.0, False)

    def log(self, name):
        return self.work / f"{name}.log"

    def peers(self):
        return core.Context.peers(self)


def test_each_row_count_to_eight_has_its_share(tmp_path, monkeypatch):
    monkeypatch.setattr(steps, "peers_here", lambda *_: {})
    s = core.Stage("kernels", "")
    steps.stage_kernels(Measured(tmp_path), s)
    shares = [b["what"].split() for b in s.bars if "share of the memory's bandwidth" in b["what"]]
    assert sorted((w[0], int(w[1])) for w in shares) == sorted((op, n) for op in (*steps.LINEARS, "lm_head") for n in range(1, 9)), shares


def test_kernels_with_and_without_torch(tmp_path, monkeypatch):
    def judged(python):
        path = tmp_path / "python"
        path.write_text(f"#!/bin/sh\n{python}\n")
        path.chmod(0o755)
        monkeypatch.setenv(peers.PYTHON, str(path))
        s = core.Stage("kernels", "")
        steps.stage_kernels(Measured(tmp_path), s)
        return [b["source"] for b in s.bars if b["what"].startswith("all linears")], [x["what"] + ": " + x["why"] for x in s.left_out]

    def writes(**o):
        o = {"left_out": {}, "errors": {}, "linears, ms": {}, **o}
        return f"[ \"$2 $3 $4\" = '--rows 1,16,64,256,2048 --json' ] && echo '{json.dumps(o)}' > \"$5\""
    told, left_out = judged(writes(**{"linears, ms": {"16": {"cublas": 4.0, "cublaslt": 4.25}}, "errors": {"cublaslt": "o of 1 rows"}}))
    assert told[:2] == ["cuBLAS 4.1 on another machine", "cuBLAS 4 in this run (cublas) and 5%"] and left_out == ["cublaslt beside it: o of 1 rows"]
    told, left_out = judged(writes(left_out={"cuBLAS": "no torch"}))
    assert len(told) == 5 and all("on another machine" in t for t in told) and left_out == ["cuBLAS beside it: no torch"]
    (tmp_path / "product_peers.json").unlink()
    told, left_out = judged("echo broken; exit 3")
    assert "on another machine" in told[0] and "ended with 3: broken" in left_out[0]
    monkeypatch.setattr(peers, "run", lambda *_: (_ for _ in ()).throw(FileNotFoundError("no such Python")))
    assert judged("")[1] == ["product_peers: no such Python"]


def test_cublas_is_timed_both_ways(monkeypatch):
    class Product:
        def __init__(self, torch, cols, width):
            self.us = width / 1024

        def calls(self, n):
            return [(self.us, n)] * 2

    class Torch:
        class cuda:
            @staticmethod
            def empty_cache():
                pass

        class backends:
            class cuda:
                @staticmethod
                def preferred_blas_library(way):
                    chosen.append(way)

    def graph_us(torch, calls, warm_s=0):
        us, n = calls[0]
        if chosen[-1:] == ["cublas"] and n == 16 and us == 28:
            raise RuntimeError("no gate_up")
        seen.append((len(calls), warm_s))
        return us if chosen[-1:] != ["cublaslt"] else 2 * us
    chosen, seen = [], []
    monkeypatch.setattr(product_peers, "Product", Product)
    monkeypatch.setattr(product_peers, "graph_us", graph_us)
    out = {"errors": {}}
    product_peers.measure(Torch, [1, 16, 2048], out)
    layers_ms, head_ms = 32 * (6 + 4 + 28 + 4) / 1000, 128256 / 1024 / 1000
    assert out["linears, ms"] == {"1": {"cublas": pytest.approx(layers_ms + head_ms), "cublaslt": pytest.approx(2 * (layers_ms + head_ms))},
                                  "16": {"cublaslt": pytest.approx(2 * (layers_ms + head_ms))},
                                  "2048": {"cublas": pytest.approx(layers_ms), "cublaslt": pytest.approx(2 * layers_ms)}}
    assert out["errors"] == {"cublas": "gate_up of 16 rows: RuntimeError: no gate_up"}
    assert [o["size"] for o in out["ops"]["cublas"] if o["op"] == "lm_head"] == ["1 x 4096->128256", "16 x 4096->128256"]  # a prompt's lm_head has one row
    assert seen[:2] == [(2, 0), (2 * int(4000 / 12), 0.2)]  # once over all copies, then as often as fits the time, as warm as tandem's
    chosen.clear()
    del Torch.backends.cuda.preferred_blas_library  # a torch without that choice
    product_peers.measure(Torch, [1], out)
    assert list(out["linears, ms"]["1"]) == ["torch's choice"] and not chosen


def test_cublas_finds_nothing_in_the_cache(monkeypatch):
    monkeypatch.setattr(product_peers.Product, "activations", product_peers.Product.random)  # torch makes the real bits
    for cols, rows in product_peers.PRODUCTS.values():
        assert (product_peers.copies_of(cols, rows) - 1) * 2 * cols * rows >= 2 * 60e6

    class Torch:
        bfloat16 = None

        @staticmethod
        def randn(*shape, device, dtype):
            made.append(shape)
            return len(made)

        class nn:
            class functional:
                @staticmethod
                def linear(x, weight):
                    done.append((x, weight))
    made, done = [], []
    for call in product_peers.Product(Torch, 4096, 6144).calls(16):
        call()
    assert made == [(6144, 4096)] * 4 + [(16, 4096)] and done == [(5, 1), (5, 2), (5, 3), (5, 4)]  # one input, as in tandem-bench


def test_without_torch_cublas_is_left_out_by_name(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert product_peers.main(["--json", str(tmp_path / "o.json")]) == 0
    o = json.loads((tmp_path / "o.json").read_text())
    assert list(o["left_out"]) == ["cuBLAS"] and o["linears, ms"] == {}
