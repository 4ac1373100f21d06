"""The seeds of the fuzz targets: what tests/fuzz/make_seeds.py writes equals the tree, and it deletes nothing."""
import pathlib
import shutil
import subprocess
import sys

FUZZ = pathlib.Path(__file__).resolve().parents[1] / "fuzz"


def files_of(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts}


def make(copy):
    subprocess.run([sys.executable, str(copy / "make_seeds.py")], check=True, capture_output=True, timeout=60)


def test_seeds_are_as_they_are_made(tmp_path):
    copy = shutil.copytree(FUZZ, tmp_path / "fuzz")
    make(copy)
    before, after = files_of(FUZZ), files_of(copy)
    assert sorted(before) == sorted(after)
    assert [name for name in before if before[name] != after[name]] == []


def test_stale_seeds_go_and_found_ones_stay(tmp_path):
    copy = shutil.copytree(FUZZ, tmp_path / "fuzz")
    for name in ("json/stale", "json/found-x", "schemas/x"):
        (copy / "seeds" / name).write_bytes(b"1")
    make(copy)
    assert [(copy / "seeds" / name).exists() for name in ("json/stale", "json/found-x", "schemas/x")] == [False, True, True]
