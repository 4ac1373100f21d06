#!/usr/bin/env python3
"""Times the attention of FlashAttention-3, FlashAttention-4 and FlashInfer on the cells that `tandem-bench attention --cells FILE` or
`tandem-bench hybrid --cells FILE` writes. Rows of the latter may have several tokens (q_len).

  attention_peers.py --cells cells.json --json peers.json [--max-seconds 120]

It runs under any Python that has torch and a peer. A missing peer is left out, and the reason is written. It looks for these:

- FlashAttention-3 as vLLM builds it (the package vllm, or the library that FA3_SO names), or the package flash_attn_interface.
- FlashAttention-4's kernels, compiled by flash_attention_4.py. FA4_SO names the library, which needs the package tvm_ffi.
- FlashInfer (the package flashinfer). It compiles kernels at first use, which takes minutes: run `--warm` before. Its POD compiles
  longest, so it is measured only if `--warm` has compiled it, on cells of chunks beside decodes.

Conditions are tandem's: bf16, pages of 16 with scattered ids, one launch a call. A figure is the median of replays of a CUDA graph
in which several copies of the cell's KV take turns, so that none is in the L2 cache. A peer under other conditions has them in its
name. `error` is the largest difference from the first peer's output, divided by the largest element of that."""
import argparse
import json
import math
import os
import pathlib
import statistics
import sys
import time

import flash_attention_4

PAGE = 16
ROTATE_BYTES, COPIES_MAX, REPLAYS = 200e6, 8, 9
POOL_BYTES = 40e9


def pages_of(cell):
    """Returns rows' pages as numbers from 0 on: pages shared with the neighbour have the same number."""
    rows, after = [], 0
    for kv_len, shared in zip(cell["kv_len"], cell["shared"]):
        n, n_shared = -(-kv_len // PAGE), (shared // PAGE if rows else 0)
        rows.append(rows[-1][:n_shared] + list(range(after, after + n - n_shared)) if n_shared else list(range(after, after + n)))
        after += n - n_shared
    return rows, after


def levels_of(rows):
    """The same as a tree, level by level: [[(first row, end row, pages)]], for kernels that need it; every level covers all rows."""
    def node(first, end, begin):
        stop = min(len(rows[r]) for r in range(first, end))
        same = begin
        while same < stop and all(rows[r][same] == rows[first][same] for r in (first, end - 1)):
            same += 1
        return same
    levels, open_nodes = [], [(0, len(rows), 0)]
    while open_nodes:
        level, after = [], []
        for first, end, begin in open_nodes:
            same = node(first, end, begin) if end - first > 1 else len(rows[first])
            level.append((first, end, rows[first][begin:same]))
            r = first
            while r < end and any(len(rows[i]) > same for i in range(first, end)):
                k = r + 1
                while k < end and len(rows[r]) > same and len(rows[k]) > same and rows[k][same] == rows[r][same]:
                    k += 1
                after.append((r, k, same))
                r = k
        levels.append(level)
        open_nodes = after
    return levels


class Pool:
    """Pages of K and V with scattered ids, filled with random numbers."""

    def __init__(self, torch, kv_heads, head_dim, n_pages):
        self.k = torch.empty(n_pages, PAGE, kv_heads, head_dim, device="cuda", dtype=torch.bfloat16)
        self.v = torch.empty_like(self.k)
        for t in (self.k, self.v):
            for part in t.view(-1).split(1 << 28):
                part.normal_()
        self.ids = torch.randperm(n_pages, device="cuda").to(torch.int32)


class Batch:
    """One copy of a cell on separate pages."""

    def __init__(self, torch, cell, pool, copy):
        rows, n = pages_of(cell)
        ids = pool.ids[copy * n:(copy + 1) * n]
        at = [torch.tensor(r, device="cuda", dtype=torch.long) for r in rows]
        self.torch, self.cell, self.pool = torch, cell, pool
        self.pages = [ids[a] for a in at]
        self.n, self.kv_len = len(rows), torch.tensor(cell["kv_len"], device="cuda", dtype=torch.int32)
        self.q_len = cell.get("q_len") or [1] * self.n
        self.q = torch.randn(sum(self.q_len), cell["heads"], cell["head_dim"], device="cuda", dtype=torch.bfloat16)
        self.out = torch.empty_like(self.q)
        self.levels = [[(first, end, ids[torch.tensor(p, device="cuda", dtype=torch.long)]) for first, end, p in level]
                       for level in levels_of(rows)] if any(cell["shared"]) else None

    @property
    def has_chunks(self):
        return max(self.q_len) > 1

    def table(self):
        t = self.torch.zeros(self.n, max(len(p) for p in self.pages), device="cuda", dtype=self.torch.int32)
        for i, p in enumerate(self.pages):
            t[i, :len(p)] = p
        return t

    def in_pages_of(self, page):
        """Copies keys and values of this batch into larger pages on scattered ids, and returns their table."""
        torch, n = self.torch, page // PAGE
        padded = [torch.cat([p, p[-1:].expand(-len(p) % n)]).long() for p in self.pages]
        order = torch.randperm(sum(len(p) for p in padded) // n, device="cuda")
        at = torch.empty_like(order)
        at[order] = torch.arange(len(order), device="cuda")
        ids = torch.cat(padded).view(-1, n)[order].flatten()
        table = torch.zeros(self.n, max(len(p) for p in padded) // n, device="cuda", dtype=torch.int32)
        for i, row in enumerate(at.to(torch.int32).split([len(p) // n for p in padded])):
            table[i, :len(row)] = row
        return *(t[ids].view(-1, page, *t.shape[2:]) for t in (self.pool.k, self.pool.v)), table

    def ints(self, values):
        return self.torch.tensor(values, device="cuda", dtype=self.torch.int32)

    def sums(self, counts):
        out = [0]
        for c in counts:
            out.append(out[-1] + c)
        return self.ints(out)


# ---- FlashAttention-3 ----

def fa3_of_vllm(torch):
    """vLLM's build registers torch operators; the package or the bare library, whichever is there."""
    if os.environ.get("FA3_SO"):
        torch.ops.load_library(os.environ["FA3_SO"])
    else:
        import vllm.vllm_flash_attn._vllm_fa3_C  # noqa: F401
    ops = torch.ops._vllm_fa3_C

    def make(b):
        c, table, starts = b.cell, b.table(), b.sums(b.q_len)
        longest, most = max(c["kv_len"]), max(b.q_len)
        plan = ops.get_scheduler_metadata(b.n, most, longest, c["heads"], c["kv_heads"], c["head_dim"], c["head_dim"], torch.bfloat16, b.kv_len,
                                          starts, None, None, None, None, PAGE, 0, True, -1, -1, False, 0, None, 0)
        return lambda: ops.fwd(b.q, b.pool.k, b.pool.v, None, None, None, b.out, starts, None, None, None, b.kv_len, most, longest, table, None,
                               None, None, None, None, None, None, None, c["head_dim"] ** -0.5, True, -1, -1, 0.0, True, plan, 0, None, 0,
                               None, 1, 0, None)
    return make


def fa3_package(torch):
    from flash_attn_interface import flash_attn_with_kvcache

    def make(b):
        if b.has_chunks:
            return None
        table, q = b.table(), b.q.unsqueeze(1)
        return lambda: flash_attn_with_kvcache(q, b.pool.k, b.pool.v, cache_seqlens=b.kv_len, page_table=table, causal=True)
    return make


def fa3(torch):
    why = []
    for load in (fa3_of_vllm, fa3_package):
        try:
            return load(torch)
        except Exception as e:  # whatever an import can fail with
            why.append(f"{type(e).__name__}: {e}")
    raise ImportError("; ".join(why))


# ---- FlashAttention-4 ----

def fa4(page):
    """For chunks, and for the decodes beside them. Its pages of 128 are loaded by TMA."""
    def load(torch):
        library = os.environ.get("FA4_SO")
        if not library:
            raise ImportError("FA4_SO names no library that flash_attention_4.py compiled")
        import tvm_ffi
        kernels = tvm_ffi.load_module(library)

        def make(b):
            c = b.cell
            if "q_len" not in c or b.n > flash_attention_4.ROWS_MAX:
                return None
            kernel = getattr(kernels, flash_attention_4.name_of(c["head_dim"], c["heads"] // c["kv_heads"], page))
            k, v, table = (b.pool.k, b.pool.v, b.table()) if page == PAGE else b.in_pages_of(page)
            args = flash_attention_4.arguments(b.q, k, v, b.out, c["head_dim"] ** -0.5, b.sums(b.q_len), b.kv_len, table)
            return lambda: kernel(*args)
        return make
    return load


# ---- FlashInfer ----

def flashinfer_decode(tensor_cores):
    def load(torch):
        import flashinfer

        def make(b):
            if b.has_chunks:
                return None
            c = b.cell
            work = torch.zeros(256 << 20, device="cuda", dtype=torch.uint8)
            w = flashinfer.BatchDecodeWithPagedKVCacheWrapper(work, "NHD", use_tensor_cores=tensor_cores)
            w.plan(b.sums([len(p) for p in b.pages]), torch.cat(b.pages).contiguous(), b.ints([(n - 1) % PAGE + 1 for n in c["kv_len"]]),
                   c["heads"], c["kv_heads"], c["head_dim"], PAGE, q_data_type=torch.bfloat16, kv_data_type=torch.bfloat16)
            return lambda: w.run(b.q, (b.pool.k, b.pool.v), out=b.out)
        return make
    return load


def flashinfer_cascade(torch):
    import flashinfer

    def make(b):
        if b.has_chunks or not b.levels or len(b.levels) < 2 or any(not len(p) for level in b.levels for _, _, p in level):
            return None  # nothing is shared, or not in levels
        c = b.cell
        work = torch.zeros(256 << 20, device="cuda", dtype=torch.uint8)
        w = flashinfer.MultiLevelCascadeAttentionWrapper(len(b.levels), work, "NHD")
        starts = [b.ints([level[0][0]] + [end for _, end, _ in level]) for level in b.levels]
        sizes = [b.sums([len(p) for _, _, p in level]) for level in b.levels]
        pages = [torch.cat([p for _, _, p in level]).contiguous() for level in b.levels]
        lasts = [b.ints([(c["kv_len"][first] - 1) % PAGE + 1 if i + 1 == len(b.levels) else PAGE for first, _, _ in level])
                 for i, level in enumerate(b.levels)]
        w.plan(starts, sizes, pages, lasts, c["heads"], c["kv_heads"], c["head_dim"], PAGE, causal=False, q_data_type=torch.bfloat16,
               kv_data_type=torch.bfloat16)
        return lambda: w.run(b.q, (b.pool.k, b.pool.v))
    return make


def flashinfer_prefill(torch):
    import flashinfer

    def make(b):
        if not b.has_chunks:
            return None
        c = b.cell
        work = torch.zeros(256 << 20, device="cuda", dtype=torch.uint8)
        w = flashinfer.BatchPrefillWithPagedKVCacheWrapper(work, "NHD", backend="fa3")
        w.plan(b.sums(b.q_len), b.sums([len(p) for p in b.pages]), torch.cat(b.pages).contiguous(),
               b.ints([(n - 1) % PAGE + 1 for n in c["kv_len"]]), c["heads"], c["kv_heads"], c["head_dim"], PAGE, causal=True,
               q_data_type=torch.bfloat16, kv_data_type=torch.bfloat16)
        return lambda: w.run(b.q, (b.pool.k, b.pool.v), out=b.out)
    return make


def pod_is_compiled():
    """Whether FlashInfer's cache has the kernel: the library is in a folder with the kernel's name."""
    from flashinfer.jit import env
    return any(pathlib.Path(env.FLASHINFER_JIT_DIR).glob("*pod*/*.so"))


def flashinfer_pod(torch):
    import flashinfer
    if not (WARMING or pod_is_compiled()):
        raise ImportError("it is not compiled: run --warm with cells of chunks beside decodes, which takes minutes")

    def make(b):
        if not b.has_chunks or min(b.q_len) > 1:
            return None
        c = b.cell
        work = torch.zeros(256 << 20, device="cuda", dtype=torch.uint8)
        w = flashinfer.BatchPODWithPagedKVCacheWrapper(work, "NHD")
        chunks, decodes = ([i for i, n in enumerate(b.q_len) if (n > 1) == chunk] for chunk in (True, False))
        plans = [(b.sums([b.q_len[i] for i in part]), b.sums([len(b.pages[i]) for i in part]), torch.cat([b.pages[i] for i in part]).contiguous(),
                  b.ints([(c["kv_len"][i] - 1) % PAGE + 1 for i in part])) for part in (chunks, decodes)]
        w.plan(*plans[0], *plans[1], c["heads"], c["kv_heads"], c["head_dim"], PAGE, q_data_type=torch.bfloat16, kv_data_type=torch.bfloat16)
        n = len(decodes)  # which stand first
        q_decodes, q_chunks = b.q[:n].contiguous(), b.q[n:].contiguous()
        return lambda: w.run(q_chunks, (b.pool.k, b.pool.v), q_decodes, (b.pool.k, b.pool.v), causal_p=True)
    return make


def parts_of(cell):
    """A hybrid cell's chunk, and its decodes, by themselves: one after the other they give the time of a serial pair."""
    parts = [[i for i, n in enumerate(cell["q_len"]) if (n > 1) == chunk] for chunk in (True, False)]
    return [{**cell, **{k: [cell[k][i] for i in part] for k in ("q_len", "kv_len", "shared")}} for part in parts]


PEERS = {"FlashAttention-3": fa3, "FlashAttention-4": fa4(PAGE), "FlashAttention-4, pages of 128": fa4(128), "FlashInfer prefill": flashinfer_prefill,
         "FlashInfer": flashinfer_decode(False), "FlashInfer tensor cores": flashinfer_decode(True), "FlashInfer cascade": flashinfer_cascade,
         "FlashInfer POD": flashinfer_pod}
WARMING = False


# ---- measuring ----

def graph_us(torch, calls, warm_s=0):
    """Microseconds a call, of a graph with all of them in turn, after replays that take warm_s."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for call in calls:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times, until = [], time.monotonic() + warm_s
    while time.monotonic() < until:
        graph.replay()
        torch.cuda.synchronize()
    for i in range(REPLAYS + 2):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / len(calls))
    return statistics.median(times[2:])


def outputs(torch, batch, call):
    """Of one call, a copy: what it returned, where that is one tensor or POD's two, chunks before decodes; else the batch's own."""
    batch.out.fill_(math.nan)
    told = call()
    torch.cuda.synchronize()
    if isinstance(told, tuple) and all(t.shape[1:] == batch.out.shape[1:] for t in told):
        return torch.cat(told[::-1])
    return (told if isinstance(told, torch.Tensor) else batch.out).reshape(batch.out.shape).clone()


def cell_bytes(cell):
    return pages_of(cell)[1] * PAGE * cell["kv_heads"] * cell["head_dim"] * 4


def shape_of(cell):
    return cell["kv_heads"], cell["head_dim"]


def copies_of(cell):
    return max(1, min(COPIES_MAX, math.ceil(ROTATE_BYTES / cell_bytes(cell))))


def measure(torch, cells, makers, end, hot_s, out):
    """Cell by cell, so that if time runs out, the last cells are missing for all peers, and not all cells of one peer."""
    groups = {}  # traces last, because there are most of them
    for c in sorted(cells, key=lambda c: c["kind"] == "trace"):
        groups.setdefault((c["kind"] == "trace", *shape_of(c)), []).append(c)
    for (_, *shape), mine in groups.items():
        page_bytes = PAGE * shape[0] * shape[1] * 4
        need = max((copies_of(c) * pages_of(c)[1] for c in mine if cell_bytes(c) <= POOL_BYTES), default=0)
        pool = Pool(torch, *shape, min(int(POOL_BYTES / page_bytes), 2 * need)) if need else None
        for cell in mine:
            if time.monotonic() > end or not pool or copies_of(cell) * pages_of(cell)[1] > len(pool.ids):
                continue
            batches = [Batch(torch, cell, pool, i) for i in range(copies_of(cell))]
            figures, error, first = {}, {}, None
            for name, make in makers.items():
                try:
                    calls = [make(b) for b in batches]
                    if not all(calls):
                        continue
                    figures[name] = graph_us(torch, calls, hot_s)
                    out_now = outputs(torch, batches[0], calls[0])
                    first = out_now if first is None else first
                    error[name] = float((out_now - first).abs().max() / first.abs().max())
                    if cell["kind"] in ("hybrid", "sharing"):
                        pair = [make(Batch(torch, part, pool, 0)) for part in parts_of(cell)]
                        figures[name + ", a pair"] = graph_us(torch, pair, hot_s) * 2 if all(pair) else None
                except Exception as e:  # a cell that a peer cannot compute must not end the rest
                    out["errors"].setdefault(name, f"{cell['name']}: {type(e).__name__}: {str(e)[:200]}")
            out["cells"].append({k: cell[k] for k in ("kind", "name", "heads", "kv_heads")} | {"us": {k: v for k, v in figures.items() if v},
                                                                                               "error": error})
        del pool
        torch.cuda.empty_cache()


def write(path, out):
    """Writes the measurements, and on stderr what was not measured."""
    with open(path, "w") as f:
        json.dump(out, f, indent=1)
    for name, why in {**out["left_out"], **out["errors"]}.items():
        print(f"{name}: {why}", file=sys.stderr)


def main(argv):
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--cells", required=True)
    ap.add_argument("--json", required=True)
    ap.add_argument("--max-seconds", type=float, default=120)
    ap.add_argument("--hot-seconds", type=float, default=0, help="of replays before a figure is taken")
    ap.add_argument("--peers", help=f"comma-separated: {', '.join(PEERS)}")
    ap.add_argument("--warm", action="store_true", help="only one small cell: compiles what is compiled at first use")
    a = ap.parse_args(argv)
    global WARMING
    WARMING = a.warm
    out = {"left_out": {}, "errors": {}, "cells": [], "versions": {}}
    makers = {}
    try:
        import torch
        if not torch.cuda.is_available():
            raise ImportError("torch sees no GPU")
    except ImportError as e:
        out["left_out"] = {name: str(e) for name in PEERS}
        torch = None
    with open(a.cells) as f:
        cells = json.load(f)
    hybrid = any(len(set(c.get("q_len", [1]))) > 1 for c in cells)
    for name, load in PEERS.items() if torch else ():
        if a.peers and name not in a.peers.split(",") or load is flashinfer_pod and not hybrid:
            continue
        try:
            makers[name] = load(torch)
        except Exception as e:
            out["left_out"][name] = f"{type(e).__name__}: {str(e)[:300]}"
    if makers:
        if a.warm:
            cells = [{"kind": "tree", "name": "warm", "heads": 32, "kv_heads": 8, "head_dim": d, "kv_len": [96] * 4, "shared": [0, 64, 64, 64]}
                     for d in sorted({c["head_dim"] for c in cells})]
            cells += [{**c, "kind": "hybrid", "shared": [0] * 4, "q_len": [1, 1, 1, 40]} for c in cells if hybrid]
        out["versions"] = {m: sys.modules[m].__version__ for m in ("torch", "vllm", "flashinfer") if hasattr(sys.modules.get(m), "__version__")}
        measure(torch, cells, makers, time.monotonic() + a.max_seconds, a.hot_seconds, out)
    write(a.json, out)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
