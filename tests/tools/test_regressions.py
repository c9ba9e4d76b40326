"""The speed of two commits: rates that fall and times that grow are slower, of the best turn."""

import importlib
import json
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "tools"
COLUMNS = ["result", "params"]


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    yield importlib.import_module("regressions")
    sys.modules.pop("regressions", None)


def turn(folder, rates, times):
    """asv's results of one turn: a rate with two parameters and a time of each commit."""
    (folder / "machine").mkdir(parents=True)
    (folder / "machine" / "machine.json").write_text("{}")
    units = {"rate": {"unit": "GB/s"}, "time": {"unit": "ms"}, "version": 2}
    (folder / "benchmarks.json").write_text(json.dumps(units))
    for commit in rates:
        held = {
            "commit_hash": commit,
            "result_columns": COLUMNS,
            "results": {
                "rate": [rates[commit], [["'Q4_0'", "'Q8_0'"]]],
                "time": [[times[commit]], []],
            },
        }
        (folder / "machine" / f"{commit}.json").write_text(json.dumps(held))


def test_a_rate_that_falls_and_a_time_that_grows_are_slower(tool, tmp_path, capsys):
    turn(tmp_path / "1", {"a": [10.0, 20.0], "b": [5.0, 20.0]}, {"a": 8.0, "b": 4.0})
    turn(tmp_path / "2", {"a": [9.0, None], "b": [8.0, 19.0]}, {"a": 8.5, "b": 6.0})
    turns = [tmp_path / "1", tmp_path / "2"]
    assert tool.compare(turns, "a", "b") == [
        (10 / 8, "rate('Q4_0') GB/s", 10.0, 8.0),
        (1.0, "rate('Q8_0') GB/s", 20.0, 20.0),
        (0.5, "time() ms", 8.0, 4.0),
    ]
    assert tool.main(str(tmp_path), "a", "b") == 1
    assert capsys.readouterr().out.endswith("3 compared, 1 slower by a tenth or more\n")
    assert tool.main(str(tmp_path), "a", "a") == 0


def test_two_commits_without_a_benchmark_in_common_are_refused(tool, tmp_path):
    turn(tmp_path / "1", {"a": [1.0, 1.0]}, {"a": 1.0})
    with pytest.raises(ValueError, match="nothing was measured of both a and b"):
        tool.compare([tmp_path / "1"], "a", "b")
