"""The bench of map-reduce runs, small."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from MDAnalysisTests.datafiles import GRO, XTC

SCRIPT = Path(__file__).parents[2] / "bench/paper/himach.py"


@pytest.mark.parametrize(
    ("bench", "words", "checked"),
    [
        ("residence", (), lambda row: row["largest_difference"] < 1e-12),
        ("workers", ("--seconds", "0.01"), lambda row: row["same"]),
        ("shuffle", ("--pairs", "50000", "--keys", "99"), lambda row: row["n_keys"] == 99),
        ("forecast", (), lambda row: row["gain_512"] > 2),
        ("pictures", (), None),
    ],
)
def test_it_runs(bench, words, checked, tmp_path):
    command = [sys.executable, "-W", "ignore", SCRIPT, bench, "--top", GRO, "--traj", XTC]
    command += ["--repeats", "1", "--folder", tmp_path, *words]
    done = subprocess.run(
        [*map(str, command)], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    if checked is None:
        for name in ("residence", "permeation"):
            assert (tmp_path / f"bench-output/{name}.png").stat().st_size > 10_000
        return
    lines = (tmp_path / "bench-output/himach.jsonl").read_text().splitlines()
    assert all(checked(json.loads(line)) for line in lines) and lines
