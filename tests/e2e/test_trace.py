"""--trace FILE: what host and device did in each step, as a Chrome trace."""
import os

import pytest
from harness import MODEL, Daemon, free_port, read_trace, run_daemon

USAGE = 64


def test_every_step_is_in_it(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text("an older trace " * 10000)
    with Daemon("--trace", path) as d:
        assert len(d.tokens("The capital of France is", max_tokens=12, ignore_eos=True)) == 12
        d.tokens("Once upon a time", max_tokens=5, ignore_eos=True)
        n_decodes = d.gauge("vllm:generation_tokens_total")
    steps = read_trace(path)
    assert list(steps) == list(range(1, len(steps) + 1)), "all of them, in order"
    assert len(steps) >= n_decodes == 17, "one request at a time: a step for each token"
    before = {"plan": 0, "publish": 0}  # when they ended in the previous step; two steps may be under way
    for step, events in steps.items():
        assert set(events) >= {"plan", "queue", "publish"}, step
        plan, queue, publish = (events[name] for name in ("plan", "queue", "publish"))
        assert all(e["dur"] >= 0 and e["ts"] > 0 for e in events.values())
        assert before["plan"] <= plan["ts"] <= queue["ts"] <= publish["ts"] and before["publish"] <= publish["ts"], step
        assert plan["ts"] + plan["dur"] <= queue["ts"] + 0.1 and queue["ts"] + queue["dur"] <= publish["ts"] + 0.1
        assert len({(e["args"]["decodes"], e["args"]["prefill_tokens"]) for e in events.values()}) == 1
        before = {name: events[name]["ts"] + events[name]["dur"] for name in before}
    args = [events["plan"]["args"] for events in steps.values()]
    assert sum(a["decodes"] for a in args) == 15 and {a["decodes"] for a in args} <= {0, 1}
    assert sum(a["prefill_tokens"] for a in args) == 5 + 4, "the prompts' tokens"


def test_it_ends_at_trace_steps(tmp_path):
    """With a warning, and a complete file immediately; the daemon continues to serve."""
    path = tmp_path / "trace.json"
    with Daemon("--trace", path, "--trace-steps", 3) as d:
        assert len(d.tokens("Once upon a time", max_tokens=8, ignore_eos=True)) == 8
        assert list(read_trace(path)) == [1, 2, 3]
        size = path.stat().st_size
        assert len(d.tokens("Once upon a time", max_tokens=8, ignore_eos=True)) == 8
        (warning,) = [line for line in d.log().splitlines() if "trace" in line]
        assert " warn " in warning and "trace_steps" in warning
    assert path.stat().st_size == size


def test_no_step_is_a_whole_file(tmp_path):
    path = tmp_path / "trace.json"
    with Daemon("--trace", path):
        pass
    assert read_trace(path) == {}


def test_a_start_that_serves_nothing_keeps_the_last_trace(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text("what was there before")
    code, text = run_daemon("--model", MODEL, "--listen", f"127.0.0.1:{free_port()}", "--kv-bytes", 1 << 28, "--trace", path, "--check")
    assert code == 0, text
    assert path.read_text() == "what was there before"


@pytest.mark.parametrize("where", ["no-such-folder/trace.json", "."])
def test_a_path_that_cannot_be_written(tmp_path, where):
    path = os.path.normpath(tmp_path / where)
    code, text = run_daemon("--model", MODEL, "--listen", f"127.0.0.1:{free_port()}", "--kv-bytes", 1 << 28, "--trace", path)
    errors = [line for line in text.splitlines() if " error " in line]
    assert code == USAGE and len(errors) == 1, (code, text)
    assert f"trace: {path}: " in errors[0] and ("No such file" in errors[0] or "Is a directory" in errors[0]), errors[0]


def test_a_full_disk_is_told(tmp_path):
    """The daemon continues to serve; a failed write is reported at the end."""
    if not os.access("/dev/full", os.W_OK):
        pytest.skip("no /dev/full here")
    with Daemon("--trace", "/dev/full") as d:
        assert len(d.tokens("Once upon a time", max_tokens=4, ignore_eos=True)) == 4
        d.stop()
        assert "the trace is not whole: No space left on device" in d.log()
