#!/usr/bin/env python3
"""Writes dtype/<NAME>.bin: random blocks of every quantised type, and the values to which the gguf package widens them.

File: u32 block bytes, u32 block elements, u32 n_blocks, the blocks, then n_blocks * elements float32.
Run: python make_dtype_vectors.py (needs numpy and gguf)"""
import os
import struct

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as T
from gguf.quants import dequantize

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "dtype")
# Offsets of the float16 scales in a block; the rest may be any bits.
SCALES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q4_K": [0, 2], "Q5_K": [0, 2],
          "Q6_K": [208], "F16": [0], "BF16": []}
rng = np.random.default_rng(20240)
os.makedirs(HERE, exist_ok=True)
for name, offsets in SCALES.items():
    kind = T[name]
    elements, size = GGML_QUANT_SIZES[kind]
    n = 8 if elements > 1 else 64
    blocks = rng.integers(0, 256, (n, size), dtype=np.uint8)
    for i in range(n):
        for at in offsets:
            value = np.float16(rng.normal() * [1, 1e-3, 3e-6][i % 3])  # the last ones subnormal
            blocks[i, at:at + 2] = np.frombuffer(value.tobytes(), np.uint8)
    if name == "BF16":
        blocks = (rng.normal(size=n).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        blocks = blocks.reshape(n, 2)
    if name == "F16":
        wide = blocks.view(np.float16).astype(np.float32)
    else:
        wide = dequantize(blocks.reshape(1, -1), kind).astype(np.float32)
    with open(os.path.join(HERE, name + ".bin"), "wb") as f:
        f.write(struct.pack("<III", size, elements, n) + blocks.tobytes() + wide.tobytes())
    print(name, n, "blocks", os.path.getsize(os.path.join(HERE, name + ".bin")), "bytes")
