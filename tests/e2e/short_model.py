#!/usr/bin/env python3
"""Writes the first layers of a GGUF model to another file: the same vocabulary, template and types, for daemons that are too slow
for all layers (sanitizers). What it says has no sense.

    tests/e2e/short_model.py MODEL.gguf LAYERS OUT.gguf"""
import os
import re
import struct
import sys

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
STRING, ARRAY, U32 = 8, 9, 4


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def number(self, code):
        (value,) = struct.unpack_from("<" + code, self.data, self.at)
        self.at += struct.calcsize("<" + code)
        return value

    def string(self):
        n = self.number("Q")
        self.at += n
        return self.data[self.at - n:self.at].decode()

    def skip(self, kind):
        if kind == STRING:
            self.string()
        elif kind == ARRAY:
            inner, n = self.number("I"), self.number("Q")
            if inner in SIZES:
                self.at += n * SIZES[inner]
            else:
                for _ in range(n):
                    self.skip(inner)
        else:
            self.at += SIZES[kind]


def shorten(data, n_layers):
    r = Reader(data)
    assert data[:4] == b"GGUF"
    r.at = 8
    n_tensors, n_values, alignment = r.number("Q"), r.number("Q"), 32
    begin = r.at
    head = bytearray(data[:8])
    values = bytearray()
    for _ in range(n_values):
        name = r.string()
        kind = r.number("I")
        at = r.at
        r.skip(kind)
        if name == "general.alignment":
            (alignment,) = struct.unpack_from("<I", data, at)
        value = struct.pack("<I", n_layers) if name.endswith(".block_count") and kind == U32 else data[at:r.at]
        values += data[begin:at] + value
        begin = r.at
    tensors = []
    for _ in range(n_tensors):
        begin = r.at
        name = r.string()
        n_sizes = r.number("I")
        r.at += 8 * n_sizes + 4  # and the type
        tensors.append((name, data[begin:r.at], r.number("Q")))
    base = (r.at + alignment - 1) // alignment * alignment
    ends = {a: b for a, b in zip(sorted(t[2] for t in tensors), sorted(t[2] for t in tensors)[1:] + [len(data) - base])}
    kept, infos, body = 0, bytearray(), bytearray()
    for name, info, offset in tensors:
        layer = re.match(r"blk\.(\d+)\.", name)
        if layer and int(layer[1]) >= n_layers:
            continue
        body += bytes(-len(body) % alignment)
        infos += info + struct.pack("<Q", len(body))
        body += data[base + offset:base + ends[offset]]
        kept += 1
    head += struct.pack("<QQ", kept, n_values) + values + infos
    return head + bytes(-len(head) % alignment) + body


if __name__ == "__main__":
    source, n_layers, out = sys.argv[1:]
    os.makedirs(os.path.dirname(out), exist_ok=True)
    with open(source, "rb") as f:
        short = shorten(f.read(), int(n_layers))
    with open(out + ".new", "wb") as f:
        f.write(short)
    os.replace(out + ".new", out)
