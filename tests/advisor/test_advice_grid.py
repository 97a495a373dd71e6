"""The bench that compares advice with the truth: what it asks, and what it makes of the answer."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from advise_cases import io_bound

from mdio.advisor.measurements import SCHEMA

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture
def grid(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    from advise import grid

    yield grid
    for name in [name for name in sys.modules if name.split(".")[0] in ("advise", "measuring")]:
        del sys.modules[name]


def record(run_s, **asked):
    measured = {"schema": SCHEMA, **asdict(io_bound(cold_rate=1e5))}
    one = {
        "convert_s": {"segments": [2.0], "zarr": [20.0]},
        "run_s": run_s,
        "advise_s": 1.0,
        "measurements": json.loads(json.dumps(measured)),
        "asked": asked,
    }
    return {"source": "xtc", "analysis": "rmsd", "workers": {"1": one}}


def test_regret_is_that_of_what_was_asked(grid):
    run_s = {"as-is": [10.0], "segments": [8.0], "zarr": [1.0]}
    one, three, thirty = grid.evaluate(record(run_s, cache="warm"))
    assert (one.advised, one.best, one.regret) == ("as-is", "as-is", 1.0)
    assert (three.advised, three.best) == ("zarr", "zarr")
    assert (thirty.advised, thirty.best) == ("zarr", "zarr")
    # Storage of 100 kB/s takes 10 s for a pass of any layout: converting never pays.
    assert {case.advised for case in grid.evaluate(record(run_s, cache="cold", nodes=4))} == {
        "as-is"
    }


def test_the_table_says_whether_the_limits_are_kept(grid, capsys):
    wrong = [record({"as-is": [10.0], "segments": [8.0], "zarr": [11.0]}, cache="warm")]
    assert not grid.report(wrong, never=1.3)
    assert "zarr: a pass 11 s, forecast 1 s" in capsys.readouterr().out
    assert grid.report([record({"as-is": [10.0], "segments": [8.0], "zarr": [1.0]}, cache="warm")])


def test_choices_of_others_are_scored(grid, tmp_path, monkeypatch, capsys):
    store, own = tmp_path / "cases.jsonl", tmp_path / "own.json"
    one = {**record({"as-is": [10.0], "segments": [8.0], "zarr": [1.0]}), "quick": False}
    store.write_text(json.dumps(one) + "\n")
    monkeypatch.setattr(sys, "argv", ["grid.py", "--list", "--store", str(store)])
    assert grid.main() == 0
    cases = json.loads(capsys.readouterr().out)
    assert list(cases) == [f"xtc, rmsd, 1 w, {n} passes" for n in (1, 3, 30)]
    assert set(map(tuple, cases.values())) == {("as-is", "segments", "zarr")}
    own.write_text(json.dumps(dict.fromkeys(cases, "as-is")))  # 10, 30, 300 of 10, 23, 50
    monkeypatch.setattr(sys, "argv", ["grid.py", "--score", str(own), "--store", str(store)])
    assert grid.main() == 0
    assert "within 10% of the best in 1 (33%), worst 6.00x, mean 2.768x" in capsys.readouterr().out


def test_the_advice_of_today_about_the_measured_cases(grid):
    """Decisions are pure: what was measured once tells whether a change of them is one for good."""
    records = list(grid.stored(grid.CASES).values())
    cases = [case for one in records for case in grid.evaluate(one)]
    assert len(cases) == 180
    assert sum(case.regret <= grid.WITHIN for case in cases) >= 0.9 * len(cases)
    paths = [one["workers"]["1"]["measurements"]["source"]["paths"] for one in records]
    assert not any(name.startswith("/") for names in paths for name in names)
