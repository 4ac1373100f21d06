"""tandem-bench serve: against a test server whose answers and times are known, and against the daemon, whose counters must agree with the
report. The program is in the daemon's folder."""
import json
import pathlib
import resource
import subprocess
import time

import httpx
import pytest
from harness import DAEMON, SLOWNESS, free_port

BENCH = pathlib.Path(DAEMON).with_name("tandem-bench")
pytestmark = pytest.mark.skipif(not BENCH.exists(), reason=f"{BENCH} is not built")


def serve(url, tmp_path, *options, expect=0):
    out = tmp_path / "out.json"
    command = [BENCH, "serve", "--url", url, "--json", out, "--warm", 0, *options]
    r = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120 * SLOWNESS, stdin=subprocess.DEVNULL)
    assert r.returncode == expect, r.stdout + r.stderr
    return (json.loads(out.read_text())["runs"] if out.exists() else []), r.stdout + r.stderr


class Fake:
    def __init__(self, *options):
        self.port = free_port()
        self.command = [str(BENCH), "fake", "--port", str(self.port), *map(str, options)]

    def __enter__(self):
        self.p = subprocess.Popen(self.command, stderr=subprocess.DEVNULL)
        self.url = f"http://127.0.0.1:{self.port}"
        end = time.monotonic() + 20 * SLOWNESS
        while time.monotonic() < end:
            try:
                httpx.get(self.url + "/v1/models", timeout=5)
                return self
            except httpx.TransportError:
                time.sleep(0.02)
        raise AssertionError("fake did not start")

    def __exit__(self, *_):
        self.p.terminate()
        assert self.p.wait(20 * SLOWNESS) == 0


def test_counts_exactly_what_was_asked(daemon, tmp_path):
    before = daemon.metrics()
    runs, text = serve(daemon.url, tmp_path, "--streams", "1,6", "--requests", 12, "--input", "uniform:5:40", "--output", "uniform:3:9",
                       "--ignore-eos", "--tokens", tmp_path / "tokens.jsonl")
    asked = [json.loads(line) for line in (tmp_path / "tokens.jsonl").read_text().splitlines()]
    assert len(asked) == 24 and all(a["outcome"] == "done" for a in asked), text
    for r in runs:
        mine = [a for a in asked if a["run"] == r["name"]]
        assert r["done"] == 12 and r["errors"] == {} and r["shorter_than_asked"] == 0
        assert r["tokens_counted_by"] == "usage"
        assert r["output_tokens"] == r["output_tokens_asked"] == sum(a["out"] for a in mine)
        assert r["prompt_tokens"] == sum(a["in"] for a in mine)
    after = daemon.metrics()

    def grown(name):
        return sum(v for (n, _), v in after.items() if n == name) - sum(v for (n, _), v in before.items() if n == name)
    assert grown("vllm:generation_tokens_total") == sum(a["out"] for a in asked)
    assert grown("vllm:prompt_tokens_total") == sum(a["in"] for a in asked)
    for a in asked:  # every token has its time, in order
        assert a["token_s"] == sorted(a["token_s"]) and a["token_s"][0] >= a["sent_s"]


def test_token_ids_text_and_arrivals(daemon, tmp_path):
    runs, _ = serve(daemon.url, tmp_path, "--rate", "20", "--requests", 10, "--input", 8, "--output", 6, "--ignore-eos", "--token-ids", "--no-usage")
    assert runs[0]["tokens_counted_by"] == "token_ids" and runs[0]["output_tokens"] == 60
    runs, _ = serve(daemon.url + "/v1", tmp_path, "--streams", "2", "--text", "--input", 30, "--output", 4, "--ignore-eos")
    assert runs[0]["output_tokens"] == 8 and 50 <= runs[0]["prompt_tokens"] <= 80  # about one token a word


def test_shared_blocks_of_a_trace_hit(daemon, tmp_path):
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps({"timestamp": 1000 * SLOWNESS * i, "input_length": 520 + i, "output_length": 2, "hash_ids": [7, 100 + i]}) + "\n"
                             for i in range(3)))
    before = daemon.gauge("vllm:prefix_cache_hits_total")
    runs, _ = serve(daemon.url, tmp_path, "--trace", trace, "--ignore-eos", "--drain", 60 * SLOWNESS)
    assert runs[0]["done"] == 3 and runs[0]["prompt_tokens"] == 3 * 520 + 3
    assert daemon.gauge("vllm:prefix_cache_hits_total") - before == 2 * 512


def test_errors_by_kind(daemon, tmp_path):
    runs, text = serve(daemon.url, tmp_path, "--streams", "2", "--vocab", 10000000, "--input", 50, "--output", 4, expect=1)
    assert runs[0]["errors"] == {"http_4xx": 2} and "token ids" in text
    runs, text = serve(f"http://127.0.0.1:{free_port()}", tmp_path, "--streams", "2", "--model", "m", expect=1)
    assert runs[0]["errors"] == {"no_connection": 2}
    with Fake("--fail-every", 4, "--tbt", 5, "--ttft", 0) as f:
        runs, _ = serve(f.url, tmp_path, "--streams", "4", "--requests", 40, "--output", 5)
        assert runs[0]["done"] == 30 and runs[0]["errors"] == {"http_429": 10}


@pytest.mark.skipif(SLOWNESS > 1, reason="moments mean nothing in a build this slow")
def test_known_moments(tmp_path):
    with Fake("--tbt", 40, "--ttft", 100) as f:
        runs, _ = serve(f.url, tmp_path, "--streams", "20", "--output", 21, "--input", 100)
        r = runs[0]
        assert r["done"] == 20 and r["output_tokens"] == 420 and r["merged_tokens"] == 0
        assert 38 < r["tbt_ms"]["p50"] < 42 and 39 < r["tpot_ms"]["p50"] < 41, r
        assert 100 <= r["ttft_ms"]["p50"] < 150 and r["ttft_ms"]["min"] >= 99, r
        assert 480 < r["while_all_decode"]["output_tokens_per_s"] < 520, r
        runs, _ = serve(f.url, tmp_path, "--rate", "40", "--seconds", 2, "--output", 11, "--input", 10, "--drain", 5)
        assert runs[0]["done"] == runs[0]["sent"] > 50


def test_prompts_known_before(tmp_path):
    with Fake("--tbt", 1, "--ttft", 1) as f:
        runs, _ = serve(f.url, tmp_path, "--preset", "decode", "--token-ids", "--tokens", tmp_path / "t.jsonl")
    asked = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    for r in runs:
        n = int(r["name"].split()[1].split("@")[0])
        before = [a for a in asked if a["run"] == r["name"] and a["warm"]]
        counted = [a for a in asked if a["run"] == r["name"] and not a["warm"]]
        assert r["done"] == len(counted) == n and r["output_tokens"] == 256 * n and len(before) in (0, n)
        assert all(a["token_s"][-1] <= min(b["sent_s"] for b in counted) for a in before)
    assert sum(a["warm"] for a in asked) == 128 + 256 + 32 and not any(r["warm_failed"] for r in runs)
    with Fake("--tbt", 1, "--ttft", 1, "--fail-every", 3) as f:
        runs, text = serve(f.url, tmp_path, "--preset", "decode", "--token-ids")
    r = next(r for r in runs if r["name"] == "decode 128@1024")
    assert r["sent"] == 128 and 0 < r["warm_failed"] < 128 and f"{r['warm_failed']} of the requests before the counted ones failed" in text


def test_streams_that_fail_while_others_wait(tmp_path):
    """Descriptors for 60 connections only: a held stream's request fails while it is sent, and others must not be sent again."""
    def few_files():
        resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60))
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    with Fake("--tbt", 1, "--ttft", 200) as f:
        r = subprocess.run([BENCH, "serve", "--url", f.url, "--model", "m", "--warm", "0", "--preset", "decode", "--token-ids", "--tokens",
                            tmp_path / "t.jsonl"], capture_output=True, text=True, timeout=120 * SLOWNESS, stdin=subprocess.DEVNULL, preexec_fn=few_files)
        took = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    asked = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    failed = [a for a in asked if a["run"] == "decode 128@1024" and not a["warm"] and a["outcome"] == "no_connection"]
    assert r.returncode == 0 and 0 < len(failed) < 128 and took < 5 * SLOWNESS, (took, r.stdout + r.stderr)


def test_merged_events(tmp_path):
    with Fake("--tbt", 5, "--ttft", 0, "--merge", 4) as f:
        runs, text = serve(f.url, tmp_path, "--streams", "3", "--output", 10)
        assert runs[0]["output_tokens"] == 30 and runs[0]["token_events"] == 9 and runs[0]["merged_tokens"] == 21, text
        assert "no event of their own" in text


def test_what_is_unfinished_is_cut(tmp_path):
    with Fake("--tbt", 50, "--ttft", 0) as f:
        runs, _ = serve(f.url, tmp_path, "--rate", "30", "--seconds", 1, "--output", 500, "--drain", 0.5, expect=1)
        assert runs[0]["errors"]["unfinished"] == runs[0]["sent"] and runs[0]["done"] == 0 and runs[0]["output_tokens_per_s"] > 0


def test_bad_options():
    url = ["--url", "http://127.0.0.1:1"]
    for options, word in ((["--url", "https://x", "--streams", "1"], "https"), (["--streams", "1"], "--url"), (url, "--rate"),
                          ([*url, "--streams", "a"], "list of numbers"), (["--what"], "--what"), ([*url, "--preset", "x"], "preset"),
                          ([*url, "--streams", "1", "--input", "zipf:1"], "zipf"), ([*url, "--trace", "/nowhere"], "/nowhere"),
                          ([*url, "--streams", "1"], "refused")):
        r = subprocess.run([BENCH, "serve", *options], capture_output=True, text=True, timeout=30)
        assert r.returncode != 0 and word in r.stderr, (options, r.stderr)


def test_steps_of_no_prompts(tmp_path):
    """In each list separately, 0 leaves that kind of step out."""
    out = tmp_path / "steps.json"
    lists = {"--batches": "2", "--prompts": "16", "--chunks": "16"}
    kinds = {"--batches": {"prefill", "hybrid"}, "--prompts": {"decode", "hybrid"}, "--chunks": {"decode", "prefill"}}
    for none, left in kinds.items():
        words = sum(([name, "0" if name == none else n] for name, n in lists.items()), [])
        r = subprocess.run([BENCH, "steps", "--shape", "tiny", "--backend", "cpu", "--contexts", "32", *words, "--runs", "1", "--max-seconds", "0.01", "--json", out],
                           capture_output=True, text=True, timeout=120 * SLOWNESS, stdin=subprocess.DEVNULL)
        assert r.returncode == 0, r.stdout + r.stderr
        assert {x["kind"] for x in json.loads(out.read_text())["steps"]} == left, none


def test_steps_whole_and_without(tmp_path):
    """They take turns and give one figure each; the whole step comes first."""
    out = tmp_path / "steps.json"
    r = subprocess.run([BENCH, "steps", "--shape", "tiny", "--backend", "cpu", "--batches", "2", "--contexts", "32", "--prompts", "16", "--chunks", "16", "--without",
                        "linear,attention", "--runs", "8", "--max-seconds", "0.1", "--json", out], capture_output=True, text=True, timeout=120 * SLOWNESS,
                       stdin=subprocess.DEVNULL)
    assert r.returncode == 0, r.stdout + r.stderr
    figures = json.loads(out.read_text())["steps"]
    assert [(x["kind"], x.get("without")) for x in figures] == [(k, w) for k in ("decode", "prefill", "hybrid") for w in (None, "linear,attention")]
    assert all(x["runs"] >= 4 and x["alone_ms_p50"] > 0 for x in figures)
    r = subprocess.run([BENCH, "steps", "--shape", "tiny", "--backend", "cpu", "--batches", "2", "--contexts", "32", "--without", "nothing"], capture_output=True,
                       text=True, timeout=120 * SLOWNESS, stdin=subprocess.DEVNULL)
    assert r.returncode != 0 and "'nothing'" in r.stderr


def test_attention_on_the_cpu(tmp_path):
    """Really runs a few small cells, with the same code that measures on a GPU."""
    out = tmp_path / "attention.json"
    r = subprocess.run([BENCH, "attention", "--backend", "cpu", "--only", "trace", "--max-keys", "8300", "--trace-steps", "1", "--policies", "none",
                        "--rounds", "1", "--max-seconds", "0.001", "--gb-s", "10", "--json", out], capture_output=True, text=True,
                       timeout=120 * SLOWNESS, stdin=subprocess.DEVNULL)
    assert r.returncode == 0, r.stdout + r.stderr
    o = json.loads(out.read_text())
    assert o["backend"] == "cpu" and o["cells"] and all(c["kind"] == "trace" and sum(c["kv_len"]) <= 8300 for c in o["cells"])
    assert all(c["us"]["none"] > 0 and list(c["us"]) == ["none"] for c in o["cells"])
    assert "none" in o["traces"][0] and "auto" not in o["traces"][0]
    r = subprocess.run([BENCH, "attention", "--heads", "nonsense"], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    assert r.returncode != 0 and "not like 32/8" in r.stderr


def test_no_policy_of_attention_lacks_partials(tmp_path):
    """In every cell that a report measures, a policy's sharing and splits fit into the buffers, so that its column really shows the policy."""
    out = tmp_path / "attention.json"
    r = subprocess.run([BENCH, "attention", "--fake", "--trace-steps", "8", "--json", out], capture_output=True, text=True, timeout=240 * SLOWNESS,
                       stdin=subprocess.DEVNULL)
    assert r.returncode == 0 and "*:" not in r.stdout, r.stdout + r.stderr
    cells = json.loads(out.read_text())["cells"]
    assert len(cells) > 100 and all(set(c["us"]) == {"auto", "none", "always", "tiles", "pat", "persistentkv", "flashdecode"} for c in cells)
    assert [(c["name"], c["short"]) for c in cells if c["short"]] == []


def test_attention_of_other_heads(tmp_path):
    out = tmp_path / "attention.json"
    for dim in (64, 96, 128, 256):
        r = subprocess.run([BENCH, "attention", "--fake", "--only", "decode", "--heads", "32/8", "--head-dim", str(dim), "--max-keys", "20000",
                            "--json", out], capture_output=True, text=True, timeout=120 * SLOWNESS, stdin=subprocess.DEVNULL)
        assert r.returncode == 0 and f"head dim {dim}" in r.stdout, r.stdout + r.stderr
        cells = json.loads(out.read_text())["cells"]
        assert cells and all(c["head_dim"] == dim and "auto" in c["us"] for c in cells)
        assert all(("always" in c["us"]) == (dim != 256) for c in cells)
    for options, word in ((["--head-dim", "80"], "64, 96, 128 or 256"), (["--head-dim", "256", "--policies", "none"], "no plans"), (["--policies", "unified"], "no 'unified'")):
        r = subprocess.run([BENCH, "attention", "--fake", *options], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
        assert r.returncode != 0 and word in r.stderr
