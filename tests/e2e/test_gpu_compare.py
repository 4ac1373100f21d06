"""scripts/gpu-compare: when it calls a build slower, and that it runs two builds in turns (here the same one twice, on the CPU)."""
import importlib.machinery
import importlib.util
import pathlib

import pytest
from harness import DAEMON, ROOT

loader = importlib.machinery.SourceFileLoader("gpu_compare", str(ROOT / "scripts/gpu-compare"))
compare = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_compare", loader))
loader.exec_module(compare)

BIN = pathlib.Path(DAEMON).parent


@pytest.mark.parametrize("a, b, verdict", [
    ([10.0, 10.0, 10.0], [10.09, 10.09, 10.09], "same"),  # within 1 %
    ([10.0, 10.0, 10.0], [10.2, 10.2, 10.0], "SLOWER"),
    ([10.0, 10.0, 10.4], [10.3, 10.3, 10.3], "same"),  # within A's own spread
    ([10.0, 10.0, 10.4], [10.5, 10.5, 10.5], "SLOWER"),
    ([10.0, 10.0, 10.0], [9.8, 9.8, 9.8], "faster"),
])
def test_judge(a, b, verdict):
    assert [r[-1] for r in compare.judge({"cell": a}, {"cell": b})] == [verdict]


def test_a_cell_that_only_one_build_has():
    with pytest.raises(ValueError, match="only one build measured cell"):
        compare.judge({"cell": [1.0]}, {})


def test_two_builds_in_turns(monkeypatch, capsys, tmp_path):
    if not (BIN / "tandem-bench").exists():
        pytest.skip("tandem-bench is not built")
    monkeypatch.setattr(compare, "GROUPS", {"": ["--batches", "1,2", "--contexts", "32", "--prompts", "32", "--chunks", "0"]})
    monkeypatch.setattr(compare, "ALLOWED", 100)  # not a test of speed
    same = tmp_path / "other"
    same.symlink_to(BIN)
    shape = ["--shape", "tiny", "--backend", "cpu", "--runs", "2", "--max-seconds", "1"]
    assert compare.main([str(BIN), str(same), "--rounds", "1", "--json", str(tmp_path / "o.json"), "--", *shape]) == 0
    out = capsys.readouterr().out
    assert "decode 1@32" in out and "prefill" in out and "3 cells, 0 slower" in out
