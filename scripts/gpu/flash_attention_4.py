#!/usr/bin/env python3
"""Compiles FlashAttention-4's kernels for Hopper ahead, where the package flash-attn-4 is and no GPU need be, into one library that
attention_peers.py runs (FA4_SO) where neither the package nor its compiler is.

  python3.12 -m venv V && V/bin/pip install torch==2.11.0 einops cuda-bindings
  V/bin/pip install --no-deps flash-attn-4==4.0.0b36 quack-kernels==0.6.5 nvidia-cutlass-dsl{,-libs-base,-libs-core,-libs-cu13}==4.8.1 \
    apache-tvm-ffi==0.1.15.post2
  V/bin/python scripts/gpu/flash_attention_4.py DIR

DIR gets fa4.so and the runtime that it needs. One kernel for each size of heads, query heads a KV head and way to read pages; what the package
compiles for `flash_attn_varlen_func` with a page table is what is taken. Links with $CC or cc."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

HEAD_DIMS, GROUPS, PAGES = (64, 96, 128, 256), (1, 4, 8), (16, 128)
ROWS_MAX = 256  # for more sequences the package uses other kernels
TARGET = {"FLASH_ATTENTION_ARCH": "sm_90", "CUTE_DSL_ARCH": "sm_90a", "FLASH_ATTENTION_NUM_SMS": "132"}


def name_of(head_dim, group, page):
    """Returns a kernel's name in the library."""
    return f"fa4_{head_dim}_{group}_{page}"


def arguments(q, k, v, out, scale, starts, kv_len, table):
    """What such a kernel takes: the package passes the same. None: no log-sum-exp, cumulative key lengths, query lengths, window, sinks, sparsity."""
    return q, k, v, out, None, scale, starts, None, None, kv_len, table, None, None, None, None, (None, None), None, None


def compiled(torch, interface, head_dim, group, page):
    """Returns the kernel that the package compiles for such a call; its tensors have only shapes."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    kernels = interface._flash_attn_fwd.compile_cache.cache
    kernels.clear()
    with FakeTensorMode():
        q = torch.empty(256, group * 2, head_dim, device="cuda", dtype=torch.bfloat16)
        k, v = (torch.empty(64, page, 2, head_dim, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        starts, kv_len, table = (torch.empty(*s, device="cuda", dtype=torch.int32) for s in ((3,), (2,), (2, 32)))
        interface.flash_attn_varlen_func(q, k, v, cu_seqlens_q=starts, seqused_k=kv_len, page_table=table, max_seqlen_q=128,
                                         max_seqlen_k=32 * page, softmax_scale=head_dim ** -0.5, causal=True)
    (kernel,) = kernels.values()
    return kernel


def main(argv):
    if len(argv) != 1:
        sys.exit(__doc__)
    os.environ.update(TARGET)
    import torch
    import cutlass.cute as cute
    import tvm_ffi
    from flash_attn.cute import interface
    out = pathlib.Path(argv[0])
    out.mkdir(parents=True, exist_ok=True)
    (runtime,) = map(pathlib.Path, cute.runtime.find_runtime_libraries(enable_tvm_ffi=False))
    shutil.copy(runtime, out)
    with tempfile.TemporaryDirectory() as work:
        objects = []
        for shape in ((d, g, p) for d in HEAD_DIMS for g in GROUPS for p in PAGES):
            objects.append(f"{work}/{name_of(*shape)}.o")
            compiled(torch, interface, *shape).export_to_c(object_file_path=objects[-1], function_name=name_of(*shape))
        tvm = pathlib.Path(tvm_ffi.__file__).parent / "lib"
        subprocess.run([os.environ.get("CC", "cc"), "-shared", "-o", out / "fa4.so", *objects, out / runtime.name, f"-L{tvm}", "-ltvm_ffi",
                        "-Wl,-rpath,$ORIGIN", "-Wl,-z,defs"], check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
