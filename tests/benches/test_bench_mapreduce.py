"""The benches of map-reduce and of caches run, small."""

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


def test_the_bench_of_caches_says_what_is_reached(tmp_path):
    script = SCRIPT.with_name("zazen.py")
    command = [sys.executable, "-W", "ignore", script, "-o", tmp_path, "--quick"]
    done = subprocess.run(
        [*map(str, command), "--only", "assign,off"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "second pass, from the shared storage: 0 bytes (must 0 bytes)" in done.stdout
    rows = [json.loads(line) for line in (tmp_path / "zazen.jsonl").read_text().splitlines()]
    assert {row["what"] for row in rows} == {"one rank", "off"}
    assert not (tmp_path / "source.dcd").exists()
