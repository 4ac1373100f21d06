"""The models that the papers measured, in their published shapes, with made-up weights: whether they load and serve, and how long that
takes. If TANDEM_TEST_TOKENIZERS names a folder that tests/golden_text/fetch_tokenizers.py made, each model has its published
vocabulary. Yi's is in no package. Baichuan's stands for it, which has the same kind and size."""
import os
import pathlib
import random
import re
import shutil
import time

import models
from daemon import Daemon, together

# model: (config.json, tokenizer of the folder, what it is, longest prompt that is timed)
PAPERS = {
    "Llama-2-7B": (models.LLAMA2_7B, "llama-2.model", "its own", 3900),
    "LLaMA-13B": (models.LLAMA1_13B, "llama-2.model", "its own", 1900),
    "LLaMA-33B": (models.LLAMA1_33B, "llama-2.model", "its own", 1900),
    "Yi-6B-200K": (models.YI_6B_200K, "baichuan.model", "a substitute: Baichuan's", 190000),
    "Llama-3-8B": (models.LLAMA3_8B, "llama3.json", "its own", 8000),
    "Qwen3-8B": (models.QWEN3_8B, "qwen2.json", "Qwen2's, without the later added tokens", 32000),
}
TEXT = "Once upon a time, in a small village by the sea, there lived an old clockmaker. "


def folder_for(ctx, name, config, tokenizer):
    """A folder as it is published, but for weights. On a CPU one layer stands for all. True if it has a tokenizer."""
    folder = ctx.work / "papers" / name
    shutil.rmtree(folder, ignore_errors=True)
    models.describe(folder, config, **({} if ctx.backend == "cuda" else {"num_hidden_layers": 1}))
    source = pathlib.Path(os.environ.get("TANDEM_TEST_TOKENIZERS", "/nonexistent")) / tokenizer
    if source.exists():
        shutil.copy(source, folder / ("tokenizer" + source.suffix))
    return folder, source.exists()


def timed(d, prompt, n):
    """Returns (seconds to the first token, ms between tokens) of one answer alone."""
    a = d.stream({"prompt": prompt, "max_tokens": n, "ignore_eos": True, "temperature": 0})
    end = time.monotonic()
    if a.status != 200 or len(a.ids) != n:
        raise RuntimeError(f"{len(a.ids)} of {n} tokens came: status {a.status}, {a.error}")
    return a.first - a.sent, 1e3 * (end - a.first) / (n - 1)


def serve_one(ctx, s, name):
    config, tokenizer, whose, longest = PAPERS[name]
    gpu = ctx.backend == "cuda"
    folder, has_tokenizer = folder_for(ctx, name, config, tokenizer)
    rng = random.Random(1)
    ids = lambda n: [rng.randrange(300, config["vocab_size"] - 300) for _ in range(n)]
    options = ["--load-format", "dummy"] + ([] if gpu else ["--kv-bytes", 1 << 28, "--context-tokens", 2048])
    with Daemon(ctx, *options, model=folder, ready_s=900) as d:
        short, tbt = timed(d, ids(64), 65 if gpu else 5)
        n_long = longest if gpu and not ctx.quick else 128
        first, _ = timed(d, ids(n_long), 2)
        prompts = [ids(40 + 10 * i) for i in range(8 if gpu else 3)]
        alone = [d.complete(p, 6, ignore_eos=True) for p in prompts]
        beside = together([lambda p=p: d.complete(p, 6, ignore_eos=True) for p in prompts])
        if has_tokenizer:
            _, o = d.post("/tokenize", {"prompt": TEXT * 4})
            status, answer = d.post("/v1/completions", {"prompt": TEXT * 4, "max_tokens": 4})
            s.check(status == 200 and answer["usage"]["prompt_tokens"] == o["count"], f"{name}: text is served",
                    f"{o['count']} tokens, tokenizer {whose}")
        else:
            s.not_run(f"{name}: text", "TANDEM_TEST_TOKENIZERS names no folder that has " + tokenizer)
    log = d.log()
    same = sum(a == b for a, b in zip(alone, beside))
    s.check(d.code == 0, f"{name}: loads, serves and ends with 0", d.code)
    if not gpu:
        s.check(same == len(alone), f"{name}: answers are the same alone and beside others", f"{same} of {len(alone)}")
    plan, parameters = re.search(r"memory: (.*)", log), re.search(r"([\d.]+) M parameters", log)
    return [name, float(parameters[1]) if parameters else None, d.ready_after_s, 1e3 * short, tbt, n_long, first, plan[1] if plan else ""]


def stage(ctx, s):
    ctx.need_backend()
    if ctx.backend != "cuda":
        s.text("On a CPU one layer stands for all, and contexts are cut to 2,048 tokens.")
    rows = []
    for name in PAPERS:
        with s.part(name):
            rows.append(serve_one(ctx, s, name))
    s.table(["model", "M parameters", "ready, s", "first token of 64, ms", "between tokens, ms", "long prompt", "its first token, s", "memory"], rows)
    s.data["rows"] = rows
