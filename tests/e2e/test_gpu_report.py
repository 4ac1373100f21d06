"""scripts/gpu-report without a GPU: it says so and passes nothing. Its stages run on the CPU backend as far as possible there, and its own
judgements are right."""
import json
import pathlib
import re
import struct
import subprocess
import sys
import time

import pytest
from harness import DAEMON, ROOT, SLOWNESS

sys.path.insert(0, str(ROOT / "scripts/gpu"))
import attention  # noqa: E402
import attention_peers  # noqa: E402
import core  # noqa: E402
import daemon  # noqa: E402
import invariant  # noqa: E402
import loads  # noqa: E402
import machine  # noqa: E402
import models  # noqa: E402
import ops  # noqa: E402
import parity  # noqa: E402
import report  # noqa: E402
import serve  # noqa: E402
import steps  # noqa: E402

GOALS = json.loads((ROOT / "scripts/gpu/peers.json").read_text())["goals"]

BIN = pathlib.Path(DAEMON).parent
FAILED, NOT_RUN = 1, 2


def run(tmp_path, *options):
    out = tmp_path / "report.md"
    r = subprocess.run([ROOT / "scripts/gpu-report", "--bin", BIN, "--out", out, "--work", tmp_path / "work", *options], text=True, timeout=300 * SLOWNESS,
                       capture_output=True, stdin=subprocess.DEVNULL, env={"CUDA_VISIBLE_DEVICES": "", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
    return r, out.read_text() if out.exists() else "", json.loads(out.with_suffix(".json").read_text()) if out.exists() else None


def test_without_a_gpu_nothing_passes(tmp_path):
    r, text, o = run(tmp_path)
    assert r.returncode == NOT_RUN, r.stdout + r.stderr
    assert [s["verdict"] for s in o["stages"]] == ["not run"] * len(report.STAGES), text
    assert o["totals"]["passed"] == o["totals"]["failed"] == 0 and "no GPU" in o["stages"][0]["not_run"][0]["why"]
    assert r.stdout.splitlines()[-1].startswith("0 checks passed, 0 failed;")


def test_stages_on_the_cpu(tmp_path):
    if not (BIN / "tests/gpu/write_model").exists() or not (BIN / "tandem-bench").exists():
        pytest.skip("write_model or tandem-bench is not built")
    r, text, o = run(tmp_path, "--backend", "cpu", "--quick", "--stages", "ops,fault,nan,loading,serve")
    assert r.returncode == NOT_RUN, r.stdout + r.stderr  # the bars are figures of a GPU
    assert o["totals"]["failed"] == 0 and o["totals"]["passed"] == 12
    assert [s["name"] for s in o["stages"]] == ["ops", "fault", "nan", "loading", "serve"]
    assert "no GPU measured" in text.splitlines()[0]


def test_a_report_in_parts(tmp_path):
    first, _, one = run(tmp_path, "--backend", "cpu", "--quick", "--stages", "fault", "--commit", "abc")
    (tmp_path / "report.json").rename(tmp_path / "first.json")
    add = ("--backend", "cpu", "--quick", "--stages", "machine,memory", "--add", tmp_path / "first.json")
    r, text, both = run(tmp_path, *add, "--commit", "abc")
    assert first.returncode == 0 and r.returncode == NOT_RUN, r.stdout + r.stderr
    assert [s["name"] for s in both["stages"]] == ["machine", "fault", "memory"] and both["stages"][1] == one["stages"][0]
    assert both["totals"]["passed"] == one["totals"]["passed"] > 0 and "device fault in step 300" in text
    r, _, _ = run(tmp_path, *add, "--commit", "def")
    assert r.returncode == 1 and "commit is abc there and def here" in r.stderr


def test_a_part_from_another_host_is_told(tmp_path):
    """In every report that the part is added to, and for that stage alone."""
    run(tmp_path, "--backend", "cpu", "--quick", "--stages", "fault", "--commit", "abc")
    one = json.loads((tmp_path / "report.json").read_text())
    (tmp_path / "first.json").write_text(json.dumps({**one, "machine": {**one["machine"], "cpu": "another CPU, 3 cores"}}))
    for stage, added in (("machine", "first.json"), ("memory", "second.json")):
        _, text, o = run(tmp_path, "--backend", "cpu", "--quick", "--stages", stage, "--commit", "abc", "--add", tmp_path / added)
        assert "\nOn another CPU, 3 cores: fault.\n" in text and o["machine"]["cpu"] == one["machine"]["cpu"], text
        (tmp_path / "report.json").rename(tmp_path / "second.json")


RANDOM_FINE = 0, "random_plans cuda: 6000 passed, 0 failed; 3000 plans of 9 rows\n"


class ManyParts:
    """A context whose test_ops and random_plans are replaced by a function."""
    backend, quick = "cuda", False

    def __init__(self, test_ops, random=RANDOM_FINE):
        self.test_ops, self.random = test_ops, random

    def need_backend(self):
        pass

    def run(self, name, backend, amount, part=None, limit_s=0, env=None):
        return core.Outcome(*(self.random if name == "random_plans" else self.test_ops(part)), 1.0, False)


def ops_checks(test_ops):
    s = core.Stage("ops", "")
    ops.stage_ops(ManyParts(test_ops), s)
    return s.checks[0]


def test_ops_in_parts():
    def fine(part):
        return 0, f"test_ops cuda: {0 if part == 'times' else 5} passed, 0 failed\n"
    assert ops_checks(fine)["ok"] and f"{5 * len(ops.PARTS)} passed, 0 failed" in ops_checks(fine)["detail"]
    for part in ops.PARTS:
        for bad, told in (((1, "FAIL linear\ntest_ops cuda: 4 passed, 1 failed\n"), "FAIL linear"), ((-9, "products: 3 passed\n"), f"{part}: exit code -9"),
                          ((0, "test_ops cuda: 0 passed, 0 failed\n"), f"{part}: nothing was tested")):
            check = ops_checks(lambda p, part=part, bad=bad: bad if p == part else fine(p))
            assert not check["ok"] and told in check["detail"]


def test_random_plans():
    def check(outcome):
        s = core.Stage("ops", "")
        ops.stage_ops(ManyParts(lambda part: (0, "test_ops cuda: 1 passed, 0 failed\n"), outcome), s)
        told = [c for c in s.checks if "random batches" in c["what"]]
        assert len(told) == 2 and told[0]["ok"] == told[1]["ok"] and told[0]["detail"] == told[1]["detail"]
        return told[0]
    assert check(RANDOM_FINE)["ok"] and "3000 plans of 9 rows" in check(RANDOM_FINE)["detail"]
    for bad, told in (((1, "FAIL plan 7 heads\n" + RANDOM_FINE[1]), "FAIL plan 7"), ((0, "FAIL plan 7 heads\n" + RANDOM_FINE[1]), "FAIL plan 7"), ((-9, ""), "exit code -9"),
                      ((1, RANDOM_FINE[1]), "6000 passed"), ((0, RANDOM_FINE[1].replace("; 3000 plans", "; 2000 plans")), "2000 plans"),
                      ((0, RANDOM_FINE[1].replace("0 failed", "1 failed")), "exit code 0")):
        assert not check(bad)["ok"] and told in check(bad)["detail"]
    for code, summary, timed_out, ok in ((0, "", False, False), (99, "========= ERROR SUMMARY: 1 error\n", False, False), (0, "========= ERROR SUMMARY: 0 errors\n", False, True),
                                         (1, "========= ERROR SUMMARY: 0 errors\n", False, False), (0, "========= ERROR SUMMARY: 0 errors\n", True, False)):
        s = core.Stage("sanitizers", "")
        ops.check_random_under(s, "memcheck", ["hybrid"], core.Outcome(code, RANDOM_FINE[1] + summary, 1.0, timed_out))
        assert bool(s.checks[0]["ok"]) == ok


def test_racecheck_of_the_mix_has_the_memory_to_itself(monkeypatch):
    running, done, beside = set(), [], []

    def job(what):
        running.add(what)
        time.sleep(0.1)
        if what == ("mix", "racecheck"):
            beside.extend(running - {what})
        running.remove(what)
        done.append(what)
        return (what,)
    monkeypatch.setattr(ops, "sanitizer", lambda: "sanitizer")
    monkeypatch.setattr(ops.models, "tiny_on_disk", lambda ctx: None)
    monkeypatch.setattr(ops, "run_ops", lambda ctx, tool, path, words, n: job(("ops", tool, *words)))
    monkeypatch.setattr(ops, "run_mix", lambda ctx, tool, path: job(("mix", tool)))
    monkeypatch.setattr(ops, "run_random", lambda ctx, tool, path, n, words: job(("random", tool, *words)))
    monkeypatch.setattr(ops, "check_random_under", lambda s, tool, words, r: s.check(r == (("random", tool, *words),), f"random {tool}", ""))
    monkeypatch.setattr(ops, "check_ops", lambda s, tool, words, r: s.check(r == (("ops", tool, *words),), tool, ""))
    monkeypatch.setattr(ops, "check_mix", lambda s, tool, what: s.check(what == ("mix", tool), f"mix {tool}", ""))

    class Gpu:
        def need_gpu(self):
            pass
    s = core.Stage("sanitizers", "")
    ops.stage_sanitizers(Gpu(), s)
    assert not beside and done[-1] == ("mix", "racecheck") and {w[1] for w in done if w[0] == "mix"} == set(ops.TOOLS)
    assert len(s.checks) == len(done) == len(set(done)) and all(c["ok"] for c in s.checks)


def test_without_peers_each_is_left_out_by_name(tmp_path):
    r, text, o = run(tmp_path, "--backend", "cpu", "--quick", "--stages", "attention")
    assert o["totals"]["failed"] == 0 and o["totals"]["passed"] == 1 and o["stages"][0]["bars"] == [], text  # times that plans predict do not count as figures
    assert [x["what"].split(" beside")[0] for x in o["stages"][0]["not_run"]] == list(attention_peers.PEERS)
    cells = o["stages"][0]["data"]["attention"]
    assert {c["kind"] for c in cells} == {"decode", "tree", "trace"} and all(c["us"]["always"] >= c["floor_us"] for c in cells)
    assert "bimodal B8" in text and "1,1024_2048,32" in text


def test_bad_stage(tmp_path):
    r, _, o = run(tmp_path, "--stages", "machine,nonsense")
    assert r.returncode == 2 and o is None and "no stage nonsense" in r.stderr


# ---- what it judges by itself ----

def parity_case(relative=0.03, rounded=0.03, agrees=64, **differs):
    def side(x):
        return {"max_diff": 4 * x, "relative": x, "worst_relative": x, "not_finite": 0, "agrees": agrees, "max_diff_there": 4 * x}
    return {"positions": 64, "spread": 4.0, "cpu_agrees": 64, "got": side(relative), "rounded": side(rounded), **differs}


def verdict(cases):
    s = core.Stage("parity", "")
    parity.tell(s, "model", True, parity.judge(30, cases), len(cases), len(cases))
    return [c["what"].split()[0] for c in s.checks if not c["ok"]]


def test_which_gpu_nvidia_smi_is_asked_for(monkeypatch):
    for visible, device, asked in [(None, 1, "1"), ("", 1, "1"), ("3", 0, "3"), ("2,GPU-ab", 1, "GPU-ab"), ("2", 1, "1")]:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert machine.smi_id(device) == asked


def test_how_busy_the_host_is():
    before = "cpu  9 9 9 9 9 0 0 0 0 0\ncpu0 100 0 50 1000 10 0 0 0 0 0\ncpu1 0 0 0 0 0 0 0 0 0 0\ncpu10 7 0 0 0 0 0 0 0 0 0\nintr 5"
    after = "cpu  9 9 9 9 9 0 0 0 0 0\ncpu0 130 0 60 1050 20 0 0 0 0 0\ncpu1 100 0 0 0 0 0 0 0 0 0\ncpu10 907 0 0 0 0 0 0 0 0 0\nintr 6"
    assert machine.busy_share(before, after, {0}) == pytest.approx(0.4)
    assert machine.busy_share(before, after, {0, 1}) == pytest.approx(0.7)
    assert machine.busy_share(before, before, {0}) == 1  # no time has passed
    assert 0 <= machine.cores_busy(0.05) <= 1


def test_parity_of_the_cpu_with_itself(tmp_path):
    """The program: the same backend twice gives the same logits, and rounding moves them."""
    if not (BIN / "tests/gpu/parity").exists():
        pytest.skip("parity is not built")
    model, cases = models.describe(tmp_path / "tiny", models.TINY), tmp_path / "cases.jsonl"
    subprocess.run([BIN / "tests/gpu/write_model", model], check=True, capture_output=True)
    cases.write_text("".join(json.dumps({"ids": list(range(i, i + 24)), "n_prompt": 16}) + "\n" for i in (1, 50)))
    r = subprocess.run([BIN / "tests/gpu/parity", model, cases, "cpu"], capture_output=True, text=True)
    head, *seen = map(json.loads, r.stdout.splitlines())
    assert r.returncode == 0 and head["layers"] == models.TINY["num_hidden_layers"] and len(seen) == 2, r.stderr
    assert all(c["got"]["max_diff"] == 0 < c["rounded"]["max_diff"] and c["got"]["not_finite"] == 0 for c in seen)


def test_parity_finds_what_bf16_does_not_explain():
    good = [parity_case() for _ in range(10)]
    assert verdict(good) == []
    assert verdict(good + [parity_case(differs_at=3, cpu_margin=0.1, got_margin=0.01)]) == []
    assert verdict(good + [parity_case(differs_at=3, cpu_margin=0.9, got_margin=0.01)]) == ["every"]   # 4 x 0.12 is explained
    assert verdict(good + [parity_case(differs_at=3, cpu_margin=-0.1, got_margin=0.01)]) == ["every"]  # not the token that the CPU chose
    assert verdict(good + [parity_case(differs_at=3, cpu_margin=float("nan"), got_margin=0.01)]) == ["every"]
    assert verdict([parity_case(relative=0.07) for _ in range(10)]) == ["error", "the"]
    assert verdict([parity_case(relative=0.3, rounded=0.3) for _ in range(10)]) == ["the"]             # the cap
    assert verdict([parity_case(agrees=50) for _ in range(10)]) == ["tokens"]
    assert parity.first_difference([1, 2, 3], [1, 2, 4]) == 2 and parity.first_difference([1], [1]) is None
    assert parity.make_cases([[9]], [[1, 2]], [[1, 3]]) == [{"ids": [9, 1, 2], "n_prompt": 1, "differs_at": 1, "other": 3}]


def test_verdicts_and_exit_codes():
    def broken(_, s):
        s.check(True, "one")
        raise RuntimeError("gone")

    def left_out(_, s):
        raise core.NotRun("no reason")
    stages = [core.run_stage(None, "a", "A", broken), core.run_stage(None, "b", "B", left_out), core.run_stage(None, "c", "C", lambda _, s: None)]
    assert [s.verdict() for s in stages] == ["FAILED", "not run", "FAILED"]
    assert report.exit_code(report.totals(stages)) == FAILED and report.exit_code(report.totals(stages[1:2])) == NOT_RUN
    s = core.Stage("d", "D")
    s.bar("slow", 10.0, 5.0, "ms")
    s.bar("rate", 10.0, 5.0, "/s", less_is_better=False)
    assert [b["ahead"] for b in s.bars] == [False, True] and report.exit_code(report.totals([s])) == 0
    assert "**behind**" in "\n".join(report.section(s))


def test_the_first_page_says_what_failed_is_behind_and_was_not_run():
    s, ctx = core.Stage("kernels", "every op"), type("C", (), {"machine": {"cpu": "a CPU", "date": "2026-01-02T", "commit": "abc"}})
    s.check(False, "it | runs", "no")
    for i in range(30):
        s.bar(f"op {i}", float(i), 9.5, "us")
    s.not_run("a part", "no room")
    text = report.markdown(ctx, [s], report.totals([s]), "scripts/gpu-report")
    first, rest = text.split("\n## kernels", 1)
    assert "**Failed: 1**" in first and "| kernels | it \\| runs | no |" in first
    assert "**Behind their bars: 20**" in first and "| kernels | op 10 | 10 us | 9.5 | 0.95x |  |" in first and "| op 9 |" not in first
    assert "**Not run: 1**" in first and "| kernels | a part | no room |" in first
    assert "<details><summary>30 figures beside their bars, 20 behind</summary>\n\n| |" in rest.replace("|  |", "| |") and rest.count("| op ") == 30


def test_decode_runs_need_a_time_in_which_all_decode():
    def judged(**changes):
        s = core.Stage("x", "x")
        run = {"name": "decode 256@1024", "prompt_tokens": 262144, "cached_prompt_tokens": 258048, "while_all_decode": {"tbt_ms": {"p50": 16.0}}, **changes}
        serve.judge_decode(s, [{k: v for k, v in run.items() if v is not None}], {"name": "peer", "time between tokens p50, ms": {"256@1024": 18.0}})
        return s
    s = judged()
    assert s.checks[0]["ok"] and s.bars[0]["ahead"] and "256 streams at 1024" in str(s.bars[0])
    assert not judged(while_all_decode=None).checks[0]["ok"] and not judged(while_all_decode=None).bars
    assert not judged(cached_prompt_tokens=1000).checks[0]["ok"]
    assert judged(prompt_tokens=16384, cached_prompt_tokens=0).checks[0]["ok"]


def test_sanitizers_words():
    def judged(code, text):
        s = core.Stage("x", "x")
        ops.judge(s, "x", code, text, 1)
        return s.checks[0]["ok"]
    assert judged(0, "========= ERROR SUMMARY: 0 errors") and judged(0, "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)")
    assert not judged(0, "") and not judged(99, "========= ERROR SUMMARY: 0 errors") and not judged(0, "========= ERROR SUMMARY: 10 errors")
    s = core.Stage("x", "x")
    ops.judge(s, "synccheck", 99, "step 3\n========= Barrier error detected. Divergent thread(s) in block.\n=========     at void first_kernel<(int)64>(args)+0x1230\n"
              "=========     by thread (0,0,0) in block (1,0,0)\n========= \n=========     at nvjet_sm90_tst+0x40\n========= ERROR SUMMARY: 2 errors", 1)
    assert "in first_kernel (1), nvjet_sm90_tst (1)" in s.checks[0]["detail"] and "Divergent thread(s)" in "\n".join(s.body), s.checks
    s = core.Stage("x", "x")
    lost = "========= Internal Sanitizer Error: The Sanitizer encountered an error while launching %s and didn't track the launch. Errors might go undetected.\n"
    ops.judge(s, "synccheck", 99, lost % "_Z3one" + 2 * (lost % "_Z3two") + "========= ERROR SUMMARY: 3 errors", 1)
    assert not s.checks[0]["ok"] and "3 launches left unchecked, most of _Z3two" in s.checks[0]["detail"], s.checks
    assert not judged(0, "========= RACECHECK SUMMARY: 0 hazards displayed\n========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)")
    race = "========= Error: Race reported between Write access at %s+0x1230\n=========     and Read access at %s+0x40 [8 hazards]\n========= \n"
    library, ours = race % ("nvjet_sm90_tst", "nvjet_sm90_tst"), race % ("void our_kernel<(unsigned int)2>(args)", "void our_kernel<(unsigned int)2>(args)")
    assert judged(99, library + "========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)")
    assert not judged(99, race % ("nvjet_sm90_tst", "our_kernel") + "========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)")
    s = core.Stage("x", "x")
    ops.judge(s, "racecheck", 99, library + ours + "========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)", 1)
    assert not s.checks[0]["ok"] and "in our_kernel (1), 1 of them in cuBLAS's nvjet_sm90_tst" in s.checks[0]["detail"], s.checks
    assert "between Write access at void our_kernel" in "\n".join(s.body) and "and Read access at void our_kernel" in "\n".join(s.body), s.body


def test_no_section_of_the_ops_is_left_out():
    source = (ROOT / "tests/gpu/test_ops.c").read_text()

    def words(table):
        return re.findall(r'"(\w+)"', re.search(table + r"\] = \{(.*?)\}", source, re.S)[1])

    sections, policies = words(r"sections\[N_SECTIONS"), words(r"names\[N_POLICIES")
    for tool, runs in ops.SECTIONS.items():
        assert sorted([*sum(runs, []), "times"]) == sorted(sections), tool  # times are measured without a tool
    assert sorted([*ops.PARTS, "times", "plans"]) == sorted([*sections, *policies])  # plans are split by policy


def test_trace_and_products(tmp_path):
    def event(name, step, ts, dur, decodes=256, prefill=0):
        return {"ph": "X", "name": name, "ts": ts, "dur": dur, "args": {"step": step, "decodes": decodes, "prefill_tokens": prefill}}
    path = tmp_path / "t.json"
    path.write_text(json.dumps([{"ph": "M"}, event("step", 1, 0, 90), event("step", 2, 100, 90), event("step", 3, 200, 90), event("plan", 2, 0, 5),
                                event("step", 4, 300, 90, decodes=7), event("step", 9, 900, 90)]))
    host, device = steps.read_trace(path, 256)
    assert len(device) == 4 and host == {2: {"plan": 5}} and steps.idle_share(device) == pytest.approx(0.1)
    assert steps.idle_share(device[:1]) is None
    figures = [{"op": m, "size": "64 x 1->1", "us": 10.0} for m in steps.LINEARS] + [{"op": "lm_head", "size": "64 x 1->1", "us": 80.0}]
    assert steps.linears_ms(figures, 64) == pytest.approx(32 * 0.04 + 0.08) and steps.linears_ms(figures, 16) is None


def test_prompt_shares():
    def op(name, us, size="64 x 1->1"):
        return {"op": name, "size": size, "us": us, "floor_us": 9.0}
    figures = [op(m, 10.0) for m in steps.LINEARS] + [op(g, 2.0, "64") for g in steps.GLUE] + [op("attention", 12.0, "64@64")]
    assert steps.prompt_shares(figures, 64) == pytest.approx((0.9, 8 / 60)) and steps.prompt_shares(figures, 16) == (None, None)
    figures += [op("glu", 14.0), op("glu by two", 99.0)]
    assert steps.prompt_shares(figures, 64) == pytest.approx((36 / 44, 6 / 62))


def test_parts_of_steps():
    def decodes(ms):
        return [{"kind": "decode", "batch": b, "context": c, "alone_ms_p50": v} for (b, c), both in ms.items() for v in both]
    glue = decodes({(64, 1024): (7.0, 6.3), (256, 1024): (10.0, 9.8)})
    attention = decodes({(64, 2048): (99.0, 1.0), (64, 4096): (12.0, 12.0 - 0.32), (256, 2048): (20.0, 20.0 - 0.64)})
    s = core.Stage("steps", "")
    steps.tell_parts(s, glue, attention, {(64, 4096): 9.9, (256, 2048): 10.0}, GOALS)
    assert [(round(b["ours"], 3), b["ahead"]) for b in s.bars] == [(0.1, False), (0.02, True), (0.99, True), (0.5, False)]


def test_parts_of_a_hybrid_step():
    """Each kind of op is compared with the whole steps of its own run; the time that no kind accounts for is the rest."""
    def run(whole, without):
        def step(ms, chunk, **more):
            return {"kind": "hybrid", "batch": 16, "chunk": chunk, "alone_ms_p50": ms, **more}
        return [{"kind": "decode", "chunk": 0, "alone_ms_p50": 1}, *(x for c in (496, 512) for x in (step(whole, c), step(without, c, without="op")))]

    s = core.Stage("steps", "")
    steps.tell_hybrid_parts(s, {"linears": run(10, 4), "attention": run(12, 10), "all other ops": run(11, 10)})
    assert s.body[-1] == "| 512 tokens beside 16 decodes at 1024 | 11 | 6 | 2 | 1 | 2 |"


def test_options_and_poison(tmp_path):
    assert invariant.option_words("  --batch-invariant NAME   on or off") == ["--batch-invariant", "on"]
    assert invariant.option_words("  --batch-invariant N   [0, 0..1]") == ["--batch-invariant", "1"]
    assert invariant.option_words("  --batch-invariant          as the daemon's") == ["--batch-invariant"]
    assert invariant.option_words("  --batches N,...") == []
    header = json.dumps({"model.embed_tokens.weight": {"dtype": "BF16", "shape": [3, 2], "data_offsets": [4, 16]}}).encode()
    (tmp_path / "a").mkdir()
    (tmp_path / "a/model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(16))
    models.poison_token(tmp_path / "a", tmp_path / "b", 1)
    data = (tmp_path / "b/model.safetensors").read_bytes()[8 + len(header):]
    assert data == bytes(8) + b"\xc0\x7f" * 2 + bytes(4)
    with pytest.raises(ValueError):
        models.poison_token(tmp_path / "a", tmp_path / "c", 3)


# ---- daemons of stages ----

def test_a_daemon_that_ended_meanwhile_is_told_and_not_the_refused_connection(tmp_path):
    class Started:
        backend, device = "cpu", 0

        def program(self, name):
            return tmp_path / name

        def log(self, name):
            return tmp_path / f"{name}.log"
    def program(name, text):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
        return tmp_path / name

    def started(prefix=()):
        return daemon.Daemon(Started(), model="none", start_only=True, prefix=prefix)
    program("tandemd", "sleep 0.6; echo 'now error it broke'; exit 70")
    tool = program("tool", 'sh -c "$*"; code=$?; sleep 3; exit $code')  # the tool prints more after its program has ended
    for prefix in ((), (tool,)):
        with pytest.raises(RuntimeError, match="tandemd ended with 70: now error it broke"), started(prefix) as d:
            time.sleep(0.2)  # until the tool has started it
            d.get("/ready")
    with pytest.raises(ZeroDivisionError), started() as d:
        d.process.wait()
        assert 1 / 0
    program("tandemd", "exec sleep 60")
    with pytest.raises(ConnectionRefusedError), started() as d:  # the process exists, but its port is closed
        d.get("/ready")


def test_no_two_daemons_get_one_port(monkeypatch):
    ports = iter([40001, 40001, 40001, 40002])

    class Socket:
        def __enter__(self):
            return self

        def __exit__(self, *what):
            pass

        def bind(self, at):
            pass

        def getsockname(self):
            return "127.0.0.1", next(ports)
    monkeypatch.setattr(daemon.socket, "socket", Socket)
    monkeypatch.setattr(daemon, "given_ports", set())
    assert [daemon.free_port(), daemon.free_port()] == [40001, 40002]


# ---- loads ----

def test_loads_on_the_cpu_in_parts(tmp_path):
    if not all((BIN / p).exists() for p in ("tandem-bench", "tandem-plan")):
        pytest.skip("tandem-bench or tandem-plan is not built")
    quick = ("--backend", "cpu", "--quick", "--stages", "loads", "--seconds", "1", "--commit", "abc")
    r, text, o = run(tmp_path, *quick, "--loads", "conversation:8,conversation:4:sarathi-512,offline,pd,chunks")
    assert r.returncode == NOT_RUN and o["totals"]["failed"] == 0 and o["totals"]["passed"] == 10, r.stdout + r.stderr  # the bars are figures of a GPU
    cells = o["stages"][0]["data"]["cells"]
    assert list(cells) == ["conversation:8", "conversation:4:sarathi-512", "offline", "pd", "chunks"] and cells["conversation:8"]["run"]["done"] > 0
    assert cells["conversation:8"]["predicted"].keys() == set(loads.HOW) and len(cells["pd"]["runs"]) == len(loads.PD_QUICK["policies"])
    assert len(cells["pd"]["beside"]) == 1 and "speed-up" in text
    sent = [p["sent"] for p in (loads.figures(cells["conversation:8"]["run"]), cells["conversation:8"]["predicted"][loads.HOW[0]])]
    assert sent[0] == sent[1] > 0  # the load that was sent is the one that was simulated
    (tmp_path / "report.json").rename(tmp_path / "first.json")
    (tmp_path / "report-conversation.svg").unlink()
    r, text, o = run(tmp_path, *quick, "--loads", "conversation:4", "--add", tmp_path / "first.json")
    assert r.returncode == NOT_RUN and o["stages"][0]["data"]["cells"].keys() == {*cells, "conversation:4"}, r.stdout + r.stderr
    assert "](report-conversation.svg)" in text and "tandem, sarathi-512" in (tmp_path / "report-conversation.svg").read_text()
    assert "ready in" in (tmp_path / "work/logs/01-tandemd.log").read_text()  # times that the folder already has are not measured again


@pytest.mark.parametrize("cells,said", [("arxiv", "arxiv:RATE"), ("arxiv:0", "above 0"), ("arxiv:x", "above 0"), ("pd:2", "has no rate"), ("none:1", "no load none"),
                                        ("arxiv:0%", "above 0"), ("arxiv:1:fastest", "no policy fastest"), ("arxiv:1:fastest-64", "no policy fastest"), ("pd,pd", "named twice")])
def test_bad_loads(tmp_path, cells, said):
    r, _, o = run(tmp_path, "--stages", "loads", "--loads", cells)
    assert r.returncode == 2 and o is None and said in r.stderr


def test_rates_that_are_shares_of_what_is_held():
    class Planned:
        kept, asked = None, []

        def plan(self, name, *args, what):
            self.asked.append(name)
            return {"rate": {"highest-arxiv": 2.5, "highest-chat": 0}[name]}
    lab, cells = Planned(), [loads.Cell(t) for t in ("arxiv:50%", "arxiv:2.3", "arxiv:105%")]
    assert loads.Lab.find_rates(lab, cells) == {"arxiv": 2.5} and [c.rate for c in cells] == [1.25, 2.3, 2.62] and lab.asked == ["highest-arxiv"]
    with pytest.raises(core.NotRun, match="no rate of chat"):
        loads.Lab.find_rates(lab, [loads.Cell("chat:95%")])


def test_what_decodes_take_beside_chunks():
    def step(decodes, prompts, ms, prefills=1):
        return {"decodes": decodes, "prefill_tokens": prompts, "prefills": prefills if prompts else 0, "begin_us": 0, "end_us": 1e3 * ms}
    steps = [step(0, 512, 12.8), step(0, 500, 12.5), step(4, 0, 4.0), step(1, 0, 3.9), step(4, 508, 13.1), step(4, 100, 99.0), step(1, 511, 50.0)]
    told = loads.decodes_beside(steps, 512)
    assert told["alone"] == pytest.approx(1.0) and told["beside"] == pytest.approx((13.1 - 508 * 0.025) / 4)
    assert loads.decodes_beside(steps[:4], 512)["beside"] is None and loads.decodes_beside([], 512) == {"alone": None, "beside": None}


def load_cell(key, ttft_ms, tbt_ms, tpot_ms=5.0, predicted=1.0, tokens_per_s=500.0):
    c = loads.Cell(key)
    ms = {"p50": ttft_ms, "p99": 2 * ttft_ms, "mean": ttft_ms, "max": 3 * ttft_ms}
    r = {"rate": c.rate or 0, "streams": 0, "sent": 100, "done": 99, "without_first_token": 0, "requests_per_s": 1.0, "output_tokens_per_s": tokens_per_s,
         "ttft_ms": ms, "tbt_ms": {"p50": tbt_ms / 2, "p99": tbt_ms, "max": 2 * tbt_ms}, "tpot_ms": {"mean": tpot_ms},
         "requests_with_gap_over_200ms": 25, "requests_with_gap_over_500ms": 0}
    told = {k: v * predicted if isinstance(v, float) else v for k, v in loads.figures(r).items()}
    return {"key": key, "name": c.name, "rate": c.rate, "policy": c.policy, "seconds": 20, "run": r, "predicted": {loads.HOW[0]: told}}


class Gpu:
    backend, quick, root = "cuda", False, ROOT

    def __init__(self, out):
        self.out = out

    def peers(self):
        return core.Context.peers(self)


def test_loads_beside_their_bars(tmp_path):
    cells = [load_cell("arxiv:2", 900.0, 50.0, predicted=1.15), load_cell("arxiv:2.65", 1000.0, 60.0), load_cell("arxiv:2.8", 1001.0, 60.0), load_cell("arxiv:2:orca", 1.0, 300.0),
             load_cell("conversation:40", 50.0, 20.0, tpot_ms=14.5), load_cell("offline", 9.0, 9.0, tokens_per_s=10000.0)]
    s = core.Stage("loads", "")
    loads.tell(Gpu(tmp_path / "report.md"), s, {c["key"]: c for c in cells})
    bars = {(b["what"], b["source"].split(",")[0]): b for b in s.bars}
    held = "arXiv-like requests/s held at 60 ms between tokens (p99) and 1 s to the first (p50)"
    assert bars[held, "vLLM 0.26.0"]["ours"] == 2.65 and bars[held, "vLLM 0.26.0"]["bar"] == 2 and bars[held, "goal"]["ahead"]
    assert bars["arxiv:2, ttft p50", "vLLM 0.26.0"]["bar"] == pytest.approx(954.176) and bars["arxiv:2, ttft p50", "vLLM 0.26.0"]["ahead"]
    assert ("arxiv:2.65, ttft p50", "vLLM 0.26.0") not in bars  # it was not run at that rate
    assert not bars["conversation:40, tpot mean", "goal"]["ahead"] and bars["conversation:40, tpot mean", "vLLM 0.26.0"]["ahead"]
    assert bars["offline, tok/s", "vLLM 0.26.0"]["ahead"] and not bars["offline, tok/s", "goal"]["ahead"]
    off = {w: b["ahead"] for (w, _), b in bars.items() if w.startswith("arxiv:2,") and "predicted" in w}
    assert off == {"arxiv:2, ttft p50, predicted: off by": False, "arxiv:2, ttft p99, predicted: off by": True, "arxiv:2, tbt p50, predicted: off by": False,
                   "arxiv:2, tbt p99, predicted: off by": True, "arxiv:2, tok/s, predicted: off by": False}
    assert not any("orca" in w for w, _ in bars)  # figures of other policies are shown but not judged
    text = "\n".join(s.body)
    assert "| tandem | 2.65 | 20 | 99 | 1 | 1,000 |" in text and "| vLLM 0.26.0, budget 1024 | 2 | 90 |" in text and "25.0 %" in text
    picture = (tmp_path / "report-arxiv.svg").read_text()
    assert all(name in picture for name in ("tandem, orca", "tandem-plan", "budget 1024"))


def test_loads_of_two_builds_in_turns(tmp_path):
    told = tmp_path / "told.json"
    command = [ROOT / "scripts/loads-compare", BIN, BIN, "--backend", "cpu", "--loads", "conversation:3", "--seconds", "1", "--rounds", "2", "--json", told, "--steps"]
    r = subprocess.run(command, capture_output=True, text=True, timeout=120 * SLOWNESS)
    assert r.returncode == 0, r.stdout + r.stderr
    got = json.loads(told.read_text())
    assert [(g["load"], g["build"], len(g["runs"])) for g in got] == [("conversation:3", "a", 2), ("conversation:3", "b", 2)]
    assert all(run["done"] == run["sent"] > 0 for g in got for run in g["runs"])
    steps = (tmp_path / "told-conversation-3-b1.jsonl").read_text().splitlines()
    assert steps and {"prefill_tokens", "step_us"} <= json.loads(steps[0]).keys()
    (tmp_path / "none").mkdir()
    r = subprocess.run([*command[:1], tmp_path / "none", BIN, *command[3:]], capture_output=True, text=True, timeout=60)
    assert r.returncode != 0 and "tandemd" in r.stderr
