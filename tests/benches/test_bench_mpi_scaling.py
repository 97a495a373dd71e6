"""``bench/mpi/scaling.py``: its control, its tables, and one job of it on real ranks."""

import importlib
import json
import subprocess
import sys

import pytest
from suites.under_mpi import MPI, ROOT, needs_mpi


def bench(name):
    sys.path.insert(0, str(ROOT / "bench"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(ROOT / "bench"))


@pytest.mark.parametrize("n_processes", [1, 3])
def test_the_control_writes_and_removes(tmp_path, n_processes, monkeypatch):
    found = bench("mpi.control").control(tmp_path, n_processes, 30_000_000, sync=True)
    assert found["write_s"] > 0 and found["user_s"] + found["sys_s"] > 0
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mpi-scaling-control-0").touch()
    with pytest.raises(OSError, match="could not write"):
        bench("mpi.control").control(tmp_path, n_processes, 1000, sync=False)


def record(job, way, n, seconds, copies=1):
    own = {"user_s": 1.0, "sys_s": 0.5, "nbytes": 2e9, "copies": copies}
    return {"job": job, "way": way, "n": n, "write_s": seconds, **own}


def test_tables():
    tables = bench("mpi.summary")
    records = [
        record("h5md", "alone", 1, 29.0),
        record("h5md", "mpi", 1, 30.0),
        record("h5md", "mpi", 1, 35.0),
        record("h5md", "mpi", 2, 16.0),
        record("h5md", "mpi", 4, 20.0),
        record("h5md", "control", 1, 10.0),
        record("h5md", "control", 2, 9.0),
        record("h5md, gzip:1, collective", "mpi", 2, 30.0, copies=2),
        record("zarr, gzip:1", "mpi", 2, 10.0),
        {"job": "zarr, gzip:1", "way": "mpi", "n": 1, "failed": "exit code 1: no"},
    ]
    rows = [line.strip("| ").split(" | ") for line in tables.table(records, (1, 2, 4))]
    assert rows[2][:6] == ["h5md", "2.00", "29.0", "30.0", "16.0", "20.0"]
    assert rows[2][7:10] == ["1.88", "1.11", "0.80"]
    said = "\n".join(tables.answers(records))
    assert "at least 1.8 times | 1.88 (30 s on one rank; only writing: 1.11)" in said
    assert "four ranks against two, time | at most 1.15 | 1.25" in said
    assert "against no MPI, time | 0.9 to 1.1 | 1.03" in said
    assert "2 ranks | at most 2 | 1.50" in said  # a frame: half as many in the second


@needs_mpi
def test_one_job(adk, tmp_path):
    words = ["--quick", "--jobs", "zarr, prec", "--folder", str(tmp_path), "--most-nbytes", "2M"]
    done = subprocess.run(
        [MPI[1], str(ROOT / "bench/mpi/scaling.py"), str(adk["xtc"]), *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "never more than 24" in done.stdout
    lines = (tmp_path / "mpi_scaling.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert [(one["way"], one["n"]) for one in records] == [
        ("mpi", 1),
        ("mpi", 2),
        ("control", 1),
        ("control", 2),
    ]
    for one in records:
        assert one["write_s"] > 0 and one["nbytes"] <= 2 << 20
        assert one["provenance"]["cores"] and one["copies"] >= 1
    assert all(one["user_s"] > 0.1 for one in records[:2])  # with what the ranks used
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"mpi_scaling.jsonl", "mpi_scaling.md"}
    assert "at least 1.8 times" in (tmp_path / "mpi_scaling.md").read_text()


@needs_mpi
def test_a_run_that_takes_too_long_is_ended(adk, tmp_path):
    program = f"""
import sys
sys.path.insert(0, {str(ROOT / "bench")!r})
from pathlib import Path
from mpi.jobs import jobs, run
from dataclasses import replace
job = replace(jobs(3341, None, True)[0], copies=300)
found = run(job, "mpi", 2, {str(adk["xtc"])!r}, Path({str(tmp_path)!r}), None, 1.0)
print(found)
"""
    done = subprocess.run(
        [MPI[1], "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert "failed" in done.stdout and "ended after 1 s" in done.stdout, done.stdout + done.stderr
