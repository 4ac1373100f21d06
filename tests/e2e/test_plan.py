"""tandem-plan as a user runs it: its table, its JSON in the form of tandem-bench serve, its picture, and what it refuses. What it
computes is in tests/unit/test_capacity_*.c; whether a daemon does the same is scripts/bench-plan's to show, for that takes a quiet machine."""
import json
import os
import pathlib
import subprocess
import sys

import pytest

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
    assert plan(*args) == text  # the same again
    subprocess.run([sys.executable, ROOT / "scripts/bench_report.py", "--svg", tmp_path / "p.svg", tmp_path / "p.json"], check=True)
    assert (tmp_path / "p.svg").read_text().count("<polyline") == 5


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


@pytest.mark.parametrize("args, says", [
    (["--policy", "best"], "decode-first"), (["--tbt-target", 1], "the smallest that can is"), (["--model", "gpt-5"], "llama3-8b"),
    (["--tp", 3], "--tp is 1 or 2"), (["--rate", "2,x"], "not a list"), (["--calibration", __file__], "kv-tokens"),
    (["--calibration", __file__, "--kv-tokens", 1000], "no step times"), (["--preset", "decode"], "closed streams"), (["--what"], "--what")])
def test_refusals(args, says):
    assert says in plan(*args, expect=64)


@pytest.mark.parametrize("name", ["step-tokens", "running", "context", "page-tokens", "queue-requests", "queue-tokens", "kv-tokens", "replicas",
                                  "requests", "seed"])
def test_half_of_what_is_counted_is_refused(name):
    for v in (0.5, 2.5):
        assert f"--{name} is {v}" in plan(f"--{name}", v, expect=64)
