"""tandem-plan as a user runs it: its table, its JSON in the format of tandem-bench serve, its picture, and what it refuses.
tests/unit/test_capacity_*.c test what it computes. scripts/bench-plan shows whether a daemon takes as long. This test shows, on any machine,
that a daemon does the same step by step: the simulated steps take as long as the daemon's did."""
import csv
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest
from harness import Daemon, run_daemon
from test_steps import TINY, Watcher

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PLAN = pathlib.Path(os.environ["TANDEM_BIN"]).parent / "tandem-plan"
pytestmark = pytest.mark.skipif(not PLAN.exists(), reason="built without tandem-plan")


def plan(*args, expect=0):
    p = subprocess.run([PLAN, *map(str, args)], capture_output=True, text=True, timeout=300)
    assert p.returncode == expect, p.stdout + p.stderr
    return p.stdout if expect == 0 else p.stderr


def test_rates_json_and_picture(tmp_path):
    args = ["--in", 500, "--out", 20, "--requests", 120, "--slo-tbt", 60, "--json", tmp_path / "p.json"]
    text = plan(*args)
    o = json.loads((tmp_path / "p.json").read_text())
    one, tp2, two = o["highest"]
    assert "A second GPU brings" in text and "held" in text
    assert one["inside"]["slo_held"] and one["tbt_ms"]["p99"] <= 60 and one["done"] == 120
    assert 1.3 < two["rate"] / one["rate"] < 3 and 1 < tp2["rate"] / one["rate"] < 3
    ttft = [r["ttft_ms"]["p50"] for r in o["runs"]]
    assert len(ttft) == 8 and all(r["output_tokens"] == 2400 for r in o["runs"]) and ttft[0] < ttft[-1]
    assert plan(*args) == text  # deterministic
    subprocess.run([sys.executable, ROOT / "scripts/bench_report.py", "--svg", tmp_path / "p.svg", tmp_path / "p.json"], check=True)
    assert (tmp_path / "p.svg").read_text().count("<polyline") == 7  # no prompt was cached, so that line is missing


def test_traces(tmp_path):
    good, bad = tmp_path / "good.jsonl", tmp_path / "bad.jsonl"
    lines = [json.dumps({"timestamp": 400 * i, "input_length": 1030, "output_length": 5, "hash_ids": [1, 2, 100 + i]}) for i in range(20)]
    good.write_text("\n".join(lines) + "\n")
    bad.write_text("\n".join([*lines[:6], lines[6].replace("1030", '"long"')]) + "\n")
    plan("--trace", good, "--rate", 2, "--no-search", "--json", tmp_path / "p.json")
    run = json.loads((tmp_path / "p.json").read_text())["runs"][0]
    assert run["done"] == 20 and run["inside"]["prefix_hit_share"] == pytest.approx(19 * 1024 / (20 * 1030), abs=1e-4)
    text = plan("--trace", bad, expect=64)
    assert f"{bad}:7: " in text and "input_length" in text


def test_what_cannot_be_kept_and_what_could():
    args = ["--in", 500, "--out", 20, "--requests", 60, "--no-second"]
    text = plan(*args, "--slo-tbt", 3, "--slo-ttft", 1)
    tbt, ttft = (float(re.search(rf"the least {k} p99[a-z ]* is ([0-9.]+) ms", text).group(1)) for k in ("TBT", "TTFT"))
    assert "no rate is held, however low" in plan(*args, "--slo-tbt", tbt * 0.95)
    text = plan(*args, "--slo-tbt", tbt * 1.05, "--slo-ttft", ttft * 1.05)
    assert re.search(r"^1 GPU .* held$", text, re.M) and "hit: share of prompt tokens" in text
    assert "60 of 60 requests are longer than the context" in plan(*args, "--kv-tokens", 160)


def test_closed_streams(tmp_path):
    args = ["--in", 500, "--out", 20, "--streams", "1,8", "--requests", 32]
    text = plan(*args, "--json", tmp_path / "p.json")
    one, eight = json.loads((tmp_path / "p.json").read_text())["runs"]
    assert (one["streams"], eight["streams"], one["done"], eight["done"]) == (1, 8, 32, 32)
    assert 2 < eight["output_tokens_per_s"] / one["output_tokens_per_s"] < 8
    assert one["inside"]["mean_decode_rows"] < 1 < eight["inside"]["mean_decode_rows"] < 8
    assert text.count("streams ") >= 2 and plan(*args) == text.replace(str(tmp_path), "")
    text = plan("--preset", "offline", "--json", tmp_path / "p.json")
    (offline,) = json.loads((tmp_path / "p.json").read_text())["runs"]
    assert offline["streams"] == offline["done"] == 512 and offline["output_tokens"] == 512000
    text = plan("--preset", "decode", "--json", tmp_path / "p.json")
    runs = {r["name"]: r for r in json.loads((tmp_path / "p.json").read_text())["runs"]}
    many = runs["decode 256@1024"]  # their prompts were computed before, by requests that do not count
    assert many["done"] == 256 and many["output_tokens"] == 256 * 256 and many["inside"]["prefix_hit_share"] > 0.98


def test_a_trace_at_its_own_rate(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps({"timestamp": 250 * i, "input_length": 40, "output_length": 3}) + "\n" for i in range(9)))
    text = plan("--trace", path, "--no-search", "--log-steps", tmp_path / "s.csv")
    assert "recorded at 4 requests/s" in text and re.search(r"^4/s +4\.000 ", text, re.M)
    steps = list(csv.DictReader((tmp_path / "s.csv").open()))
    assert [int(s["end_us"]) - int(s["step_us"]) for s in steps if s["prefills"] == "1"] == [250000 * i for i in range(9)]
    assert "one --rate" in plan("--trace", path, "--log-steps", tmp_path / "s.csv", expect=64)
    path.write_text(path.read_text().split("\n")[0] + "\n")
    assert "all 1 requests at once are held" in plan("--trace", path)


@pytest.mark.parametrize("args, says", [
    (["--policy", "best"], "decode-first"), (["--tbt-slo-ms", -1], "it can be 0"), (["--model", "gpt-5"], "llama3-8b"),
    (["--tp", 3], "--tp is 1 or 2"), (["--rate", "2,x"], "not a list"), (["--calibration", __file__], "kv-tokens"),
    (["--calibration", __file__, "--kv-tokens", 1000], "no step times"), (["--preset", "decode", "--compare"], "closed streams"),
    (["--streams", 4, "--rate", 2], "closed streams"), (["--streams", "0"], "whole numbers"), (["--streams", 4, "--preset", "chat"], "give one"), (["--what"], "--what")])
def test_refusals(args, says):
    assert says in plan(*args, expect=64)


@pytest.mark.parametrize("name", ["step-tokens", "running", "context", "page-tokens", "queue-requests", "queue-tokens", "kv-tokens", "replicas",
                                  "requests", "seed"])
def test_half_of_what_is_counted_is_refused(name):
    for v in (0.5, 2.5):
        assert f"--{name} is {v}" in plan(f"--{name}", v, expect=64)


# ---- the daemon and the simulator, step by step ----

BLOCK = 512  # tokens of a trace's block
PAGES = 150  # too few for four of the longer requests
SAME = ["decodes", "prefills", "prefill_tokens", "running", "waiting", "free", "cached", "owned"]


def block_tokens(block, n):
    """The tokens of a trace's block. Blocks with different numbers differ in every page."""
    return [(block >> 3 * (i % 8) & 7) * 50 + (i * i + block) % 47 + 3 for i in range(n)]


def burst(b):
    """Six simultaneous requests: the length of their answers, and their blocks and lengths. Some share blocks, also with earlier bursts. Requests that
    wait for another's blocks are last, so that none overtakes, because otherwise microseconds would decide the order."""
    shared = [[1, 2], [4 + b], [], [1], [1, 2], [1, 2, 3]]
    n_private = [70, 20, 33 + 40 * b, 511, 300, 128]
    return 120 + 50 * b, [([*s, 1000 + 10 * b + i], BLOCK * len(s) + n) for i, (s, n) in enumerate(zip(shared, n_private))]


def send(d, n_out, requests):
    prompts = [sum((block_tokens(k, min(BLOCK, n - BLOCK * i)) for i, k in enumerate(blocks)), []) for blocks, n in requests]
    r = d.post("/v1/completions", {"prompt": prompts, "max_tokens": n_out, "ignore_eos": True, "temperature": 0})
    assert r.status_code == 200, r.text


def arrivals(steps, n):
    """Before which of a burst's steps its requests arrived; None if the first of them ended before the last arrived."""
    at, inside = [], 0
    for k, s in enumerate(steps):
        now = s["running"] + s["waiting"]
        if now < inside:
            return None
        at += [k] * (now - inside)
        if len(at) == n:
            return at
        inside = now
    return None


def run_bursts(d, watcher, n_bursts=3):
    """Returns the trace that the daemon saw, on a clock that stops while it is idle, and its steps."""
    lines, clock_us, seen = [], 0, 0
    for b in range(n_bursts):
        n_out, requests = burst(b)
        send(d, n_out, requests)
        d.until_idle()
        total = d.gauge("tandem:steps_total")
        d.eventually(lambda: watcher.steps and watcher.steps[-1]["step"] == total, what="the last step")
        steps = watcher.steps[seen:]
        at = arrivals(steps, len(requests))
        if at is None:
            return None, None
        begins = [clock_us + sum(s["step_us"] for s in steps[:k]) for k in range(len(steps) + 1)]
        for (blocks, n), k in zip(requests, at):
            due_us = begins[0] if k == 0 else (begins[k - 1] + begins[k]) / 2  # during the previous step
            lines.append({"timestamp": due_us / 1e3, "input_length": n, "output_length": n_out, "hash_ids": blocks})
        clock_us, seen = begins[-1] + 1000, len(watcher.steps)
    return lines, watcher.steps


def check_words_of_a_cpu(calibration):
    """It prints nothing about GPUs if the calibration is not of a GPU."""
    # on one CPU, 40 requests were done in 1.5 ms, before two replicas were overloaded
    args = ["--calibration", calibration, "--kv-tokens", 20000, "--context", 2048, "--in", 50, "--out", 5, "--requests", 2000]
    text = plan(*args, "--slo-ttft", 100000)
    assert re.search(r"^1 CPU .* held$", text, re.M) and re.search(r"^2 replicas ", text, re.M) and "A second CPU brings" in text, text
    assert "GPU" not in text and "TP2" not in text
    assert "is of a CPU" in plan(*args, "--tp", 2, expect=64)


@pytest.mark.parametrize("policy", ["tandem", "sarathi"])
def test_every_step_is_the_daemons(tmp_path, policy):
    """Prefixes shared and computed by others meanwhile, chunks by calibrated times, evictions and preemption: all that the daemon did, the
    simulator does, where the same requests come before the same steps and these take as long."""
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny/config.json").write_text(json.dumps(TINY))
    options = ["--load-format", "dummy", "--cache-dir", tmp_path / "cache", "--policy", policy, "--slack-percent", 0,
               "--running-requests", 4, "--step-tokens", 192, "--context-tokens", 2048, "--queue-requests", 64]
    memory = ["--kv-bytes", PAGES * 16 * 2 * 2 * 32 * 4]
    assert run_daemon("--calibrate", "--calibrate-ms", 1500, "--model", tmp_path / "tiny", *memory, *options)[0] == 0
    for _ in range(4):  # repeat if the client was so slow that a burst's first request ended before its last arrived
        with Daemon(*options, *memory, model=tmp_path / "tiny") as d, Watcher(d) as w:
            lines, steps = run_bursts(d, w)
            log = d.log()
        if lines:
            break
    else:
        pytest.fail("no burst came whole")
    pages, page_tokens = map(int, re.search(r"\((\d+) pages of (\d+) tokens\)", log).groups())
    calibration = next(p for p in (tmp_path / "cache").rglob("*") if p.is_file() and p.read_bytes().startswith(b"tandem-steps"))
    (tmp_path / "trace.jsonl").write_text("".join(json.dumps(o) + "\n" for o in lines))
    (tmp_path / "us").write_text("".join(f"{s['step_us']}\n" for s in steps))
    # the calibration with which the daemon began, since it writes the bursts' times at its end
    plan("--trace", tmp_path / "trace.jsonl", "--no-search", "--step-times", tmp_path / "us", "--log-steps", tmp_path / "steps.csv", "--not-ahead",
         "--calibration", calibration, "--correction", "1,1", "--kv-tokens", pages * page_tokens, "--policy", policy, "--slack-percent", 0, "--running", 4,
         "--step-tokens", 192, "--context", 2048, "--queue-requests", 64, "--json", tmp_path / "p.json")
    check_words_of_a_cpu(calibration)
    predicted = list(csv.DictReader((tmp_path / "steps.csv").open()))
    assert [s["step"] for s in steps] == list(range(1, len(steps) + 1))
    for s, p in zip(steps, predicted):
        assert {k: s[k] for k in SAME} == {k: int(p[k]) for k in SAME}, f"step {s['step']}"
    assert len(predicted) == len(steps) > 200
    run = json.loads((tmp_path / "p.json").read_text())["runs"][0]
    inside, n_preemptions = run["inside"], sum(s["preemptions"] for s in steps)
    gaps_us = sorted(us for s in steps for us in [s["step_us"]] * s["decodes"])  # each decode had a token in the step before
    assert run["output_tokens"] == sum(o["output_length"] for o in lines)
    assert 0 <= run["output_tokens"] - len(gaps_us) - len(lines) <= n_preemptions  # a decode that was preempted continued as a prompt
    for name, q in (("p50", 0.5), ("p99", 0.99)):  # these lack the times between tokens of preempted requests
        low, high = (gaps_us[int((q + d) * len(gaps_us))] for d in (-0.005, 0.005))
        assert 0.99 * low <= run["tbt_ms"][name] * 1e3 <= 1.01 * high, name
    assert inside["preemptions"] == n_preemptions and inside["evicted_pages"] > 0, "memory was short"
    assert sum(s["hit_tokens"] for s in steps) > 0 and any(s["decodes"] and s["prefills"] for s in steps)
