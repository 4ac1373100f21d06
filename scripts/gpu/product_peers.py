#!/usr/bin/env python3
"""Times the linears of Llama-3-8B in bf16 by cuBLAS, as torch calls it. Those of a step are counted as stage `kernels` counts tandem's.

  product_peers.py --json peers.json [--rows 1,16,64,256,2048]

It runs under any Python that has torch. Without torch cuBLAS is left out, and the reason is written. torch has two ways to the
library, cublas and cublaslt. Where it lets one choose, both are timed, and the reader decides.

Timing is that of tandem-bench kernels. A CUDA graph holds as many calls as fill some milliseconds, over copies of weights that
together exceed the L2 cache, with one x. A figure is the median of replays, after 0.2 s of others, because a GPU at its power limit is
slower than at first. cuBLAS does less than tandem here: o and down do not add to the residual stream, and logits stay bf16."""
import argparse
import math
import sys

from attention_peers import graph_us, write
from steps import HEAD_ROWS_MAX, linears_ms

PRODUCTS = {"qkv": (4096, 6144), "o": (4096, 4096), "gate_up": (4096, 28672), "down": (14336, 4096), "lm_head": (4096, 128256)}
CACHE_BYTES, FILL_US, WARM_S = 128e6, 4000, 0.2


def copies_of(cols, rows):
    """None finds what it read the last time: all others come between, and they are larger than the cache."""
    return math.ceil(CACHE_BYTES / (2 * cols * rows)) + 1


class Product:
    """Copies of one matrix, filled with random numbers."""

    def __init__(self, torch, cols, rows):
        self.torch, self.cols = torch, cols
        self.weights = [self.random(rows) for _ in range(copies_of(cols, rows))]

    def random(self, n):
        return self.torch.randn(n, self.cols, device="cuda", dtype=self.torch.bfloat16)

    def activations(self, n):
        """Bits as bench/kernels.c has them, signs and mantissas random: a GPU at its power limit computes some numbers faster than others."""
        bits = self.torch.randint(0, 1 << 16, (n, self.cols), device="cuda", dtype=self.torch.int32) & 0x80ff | 0x3e00
        return bits.to(self.torch.int16).view(self.torch.bfloat16)

    def calls(self, n):
        """One for each copy, with n rows of input; what it writes stays until its next call, so that no two share it."""
        linear, x, out = self.torch.nn.functional.linear, self.activations(n), [None] * len(self.weights)

        def call(i):
            out[i] = linear(x, self.weights[i])
        return [lambda i=i: call(i) for i in range(len(out))]


def ways_of(torch):
    """{name: how to choose it}"""
    prefer = getattr(torch.backends.cuda, "preferred_blas_library", None)
    return {w: lambda w=w: prefer(w) for w in ("cublas", "cublaslt")} if prefer else {"torch's choice": lambda: None}


def measure(torch, rows, out):
    ways = ways_of(torch)
    ops = {w: [] for w in ways}
    for op, (cols, width) in PRODUCTS.items():
        product = Product(torch, cols, width)
        for n in rows:
            if op == "lm_head" and n > HEAD_ROWS_MAX:
                continue
            calls = product.calls(n)
            for way, choose in ways.items():
                try:
                    choose()
                    once_us = graph_us(torch, calls) * len(calls)
                    us = graph_us(torch, calls * max(1, int(FILL_US / once_us)), WARM_S)
                    ops[way].append({"op": op, "size": f"{n} x {cols}->{width}", "us": us})
                except Exception as e:  # if one library call is missing for a GEMM, the other must still be measured
                    out["errors"].setdefault(way, f"{op} of {n} rows: {type(e).__name__}: {str(e)[:200]}")
            del calls
        del product
        torch.cuda.empty_cache()
    out["ops"] = ops
    out["linears, ms"] = {str(n): {w: ms for w in ways if (ms := linears_ms(ops[w], n))} for n in rows}


def main(argv):
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--json", required=True)
    ap.add_argument("--rows", default="1,16,64,256,2048")
    a = ap.parse_args(argv)
    out = {"left_out": {}, "errors": {}, "ops": {}, "linears, ms": {}, "versions": {}}
    try:
        import torch
        if not torch.cuda.is_available():
            raise ImportError("torch sees no GPU")
        out["versions"] = {"torch": torch.__version__, "cuda": torch.version.cuda}
        measure(torch, [int(n) for n in a.rows.split(",")], out)
    except ImportError as e:
        out["left_out"]["cuBLAS"] = str(e)
    write(a.json, out)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
