"""Streams whose answers must follow a JSON schema, compared with the same streams without one, in turns on one daemon."""
import json
import os
import pathlib
import shutil
import statistics

import models
from core import NotRun
from daemon import Daemon
from serve import all_done, load

STREAMS, OUTPUT = 256, 256
ALLOWED = 1.02  # of the time between tokens without a schema
VOCABULARY = "llama3.json"
# Strings, numbers, choices and nesting, which cannot end before the last requested token.
SCHEMA = {"type": "array", "minItems": 100000, "items": {
    "type": "object", "required": ["name", "count", "kind", "tags", "place"], "additionalProperties": False,
    "properties": {"name": {"type": "string", "minLength": 1, "maxLength": 60}, "count": {"type": "integer"},
                   "kind": {"enum": ["open", "closed", "unknown"]}, "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 4},
                   "place": {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "number"}}, "required": ["x", "y"]}}}}


def served(ctx):
    """Llama 3's shape and its vocabulary, whose masks are the longest of all stages."""
    if ctx.backend != "cuda":
        return models.tiny_on_disk(ctx), []
    source = pathlib.Path(os.environ.get("TANDEM_TEST_TOKENIZERS", "/nonexistent")) / VOCABULARY
    if not source.exists():
        raise NotRun("TANDEM_TEST_TOKENIZERS names no folder that has " + VOCABULARY)
    folder = models.describe(ctx.work / "constrained", models.LLAMA3_8B)
    shutil.copy(source, folder / "tokenizer.json")
    return folder, ["--load-format", "dummy"]


def between_ms(run):
    return run.get("while_all_decode", run)["tbt_ms"]["mean"]


def stage(ctx, s):
    ctx.need_backend()
    model, options = served(ctx)
    small = ctx.quick or ctx.backend != "cuda"
    n, output, rounds = (16, 48, 1) if small else (STREAMS, OUTPUT, 2)
    extra = '"response_format":' + json.dumps({"type": "json_schema", "json_schema": {"name": "list", "schema": SCHEMA}})
    kinds = {"free": [], "constrained": ["--extra", extra]}
    runs = {kind: [] for kind in kinds}
    with Daemon(ctx, *options, model=model) as d:
        def once(kind):
            return load(ctx, d, f"{kind}-{len(runs[kind])}", "--streams", n, "--input", 64, "--output", output, "--temperature", 1,
                        *kinds[kind], ignore_eos=kind == "free")[0]  # the schema determines when the answer may end
        for kind in kinds:  # so that everything compiled at first use is ready
            once(kind)
        for _ in range(rounds):
            for kind in ("free", "constrained", "constrained", "free"):
                runs[kind].append(once(kind))
    all_done(s, [r for kind in kinds for r in runs[kind]])
    tokens = [r["output_tokens"] for kind in kinds for r in runs[kind]]
    s.check(d.code == 0 and set(tokens) == {n * output}, "every answer had all of its tokens, so no schema ended one", f"{tokens}, exit code {d.code}")
    ms = {kind: statistics.median(map(between_ms, runs[kind])) for kind in kinds}
    s.table(["answers", "between tokens, ms: mean of each run", "p50", "p99", "tokens/s"],
            [[kind, ", ".join(f"{between_ms(r):.2f}" for r in runs[kind]), *(statistics.median(r["tbt_ms"][q] for r in runs[kind]) for q in ("p50", "p99")),
              statistics.median(r["output_tokens_per_s"] for r in runs[kind])] for kind in kinds])
    s.data["ms"] = ms
    s.bar(f"{n} streams in a JSON schema, beside free ones", ms["constrained"] / ms["free"], ALLOWED, "x", source="goal")
