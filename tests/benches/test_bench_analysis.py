"""The bench of the analysis driver: it runs, and its tables say what was measured."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    return pytest.importorskip("analysis")


def test_it_runs_and_checks_itself(tmp_path):
    words = ["--tiles", "1", "--repeats", "1", "--only", "kernel,rmsd,dihedrals"]
    done = subprocess.run(
        [sys.executable, BENCH / "analysis.py", *words, "--folder", tmp_path],
        capture_output=True,
        text=True,
        check=True,
    )
    for title in ("214 atoms in memory", "C-alpha, 98 frames", "212 residues, 98 frames"):
        assert title in done.stdout
    lines = (tmp_path / "analysis.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    ours = [record for record in records if record["case"].startswith("mdio")]
    assert len(ours) == 8
    # What gmx needs without any frames is taken off, which may be all that it needs for 98.
    timed = [one["us_per_frame"] for one in records if not one["case"].startswith("gmx")]
    assert all(0 < one["min"] <= one["median"] for one in timed)
    assert all("provenance" in one for one in records)
    peer = "MDAnalysis Ramachandran on the XTC"
    by_case = {record["case"]: record for record in records}
    medians = [by_case[name]["us_per_frame"]["median"] for name in (peer, "mdio, h5md")]
    assert by_case["mdio, h5md"]["ratios"][peer] == pytest.approx(medians[0] / medians[1])


def test_a_peer_that_is_not_there(bench):
    target = bench.cases.Target("mdio", "gmx", 30)
    section = bench.cases.Section("RMSD", 10, {}, (target,))
    record = {"case": "mdio", "us_per_frame": {"median": 2.0, "min": 1.0}, "user_us_per_frame": 1}
    table = bench.table_of(section, [record])
    assert "| mdio | 2.00 | 1.00 | 1.00 | gmx: not measured |  | 30x |" in table


def test_tables_of_two_workers(bench):
    two = {
        "workload": "1-fold RMSD",
        "executor": "mpi",
        "one_s": [30.0, 31.0, 35.0],
        "two_s": [16.0, 17.0, 20.0],
        "efficiency": 31 / 17 / 2,
        "efficiency_of_least": 30 / 16 / 2,
    }
    assert "| 1-fold RMSD | mpi | 31.00 | 17.00 | 0.91 | 0.94 |" in bench.scaling_table([two], 30)
    runs = [{"run": "processes", "seconds": [0.1, 0.2, 0.4], "wanted_s": 1.5}]
    assert "| processes | 0.20 | 0.10 | below 1.5 |" in bench.overhead_table(runs)
