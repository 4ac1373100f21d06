"""The part of the reliability plan that CI runs: the quick rows of scripts/release-check, each as in a release, but smaller."""
import importlib.machinery
import importlib.util
import json
import pathlib
import re

import pytest
from harness import DAEMON, ROOT

LOADER = importlib.machinery.SourceFileLoader("release_check", str(ROOT / "scripts/release-check"))
SPEC = importlib.util.spec_from_loader("release_check", LOADER)
release_check = importlib.util.module_from_spec(SPEC)
LOADER.exec_module(release_check)
QUICK = [r for r in release_check.ROWS if r.quick]


@pytest.mark.parametrize("row", QUICK, ids=[r.command.removesuffix(".py") for r in QUICK])
def test_a_row(row):
    """A row that needs a program that is not installed (nginx, haproxy) is skipped, and says so."""
    out = release_check.run(row, row.quick, pathlib.Path(DAEMON).parent)
    if out.get("not_run") or ("is not installed: not run" in out["note"] and not out["n_failures"]):
        pytest.skip(out["note"])
    assert out["state"] in ("pass", "pass in part") and out["reached"] >= row.quick, json.dumps(out, indent=1)


def test_the_table(tmp_path, monkeypatch, capsys):
    """A row that fails, one that is not run and one that reaches a part are distinguished, also by the exit code."""
    outs = {"2": {"reached": 300000, "n_failures": 0, "note": "x", "state": "pass in part", "seconds": 2},
            "3": {"state": "not run", "note": "nginx is not installed"},
            "4": {"reached": 7, "n_failures": 1, "failures": ["a | 500"], "state": "FAIL"}}
    monkeypatch.setattr(release_check, "run", lambda row, amount, build: outs[row.number])
    monkeypatch.setattr("sys.argv", ["release-check", "--rows", "2,3,4,1", "--quick"])
    with pytest.raises(SystemExit) as e:
        release_check.main()
    table = capsys.readouterr().out
    assert e.value.code == 1 and "4 rows, 1 failed" in table
    assert "| 3x10^5 of 10^6 mutations | pass in part | x | 2 s |" in table
    assert re.search(r"\| 3 \|.*\|  \| not run \| nginx is not installed \|", table)
    assert re.search(r"\| 4 \|.*\| FAIL \| a / 500 \|", table)
    assert re.search(r"\| 1 \|.*\| not run \|", table), "no share for CI"


def test_a_program_that_dies_is_a_failure(tmp_path):
    out = release_check.run(release_check.ROWS[3], 1, tmp_path)  # a folder without a daemon
    assert out["state"] == "FAIL" and "no result" in out["failures"][0]
