"""The benches run, small, so that they do not rot; no peer needs to be installed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from MDAnalysisTests.datafiles import XTC

BENCH = Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(BENCH))

from peers.process import Case, NotMeasuredError, Peers  # noqa: E402
from peers.report import table  # noqa: E402
from peers.runner import Runner, evict  # noqa: E402
from peers.targets import TARGETS, judge  # noqa: E402


def record(table: str, case: str, seconds: list[float]) -> dict[str, object]:
    timed = {"seconds": seconds, "user_seconds": [s / 2 for s in seconds]}
    return {"table": table, "system": "s", "case": case, "n_frames": 10, **timed}


def test_peers_runs_all_tables(tmp_path):
    command = [sys.executable, str(BENCH / "peers/compare.py"), "--tiny", "--folder", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "OTHER RESULT" not in done.stdout
    records = [json.loads(line) for line in (tmp_path / "peers.jsonl").read_text().splitlines()]
    ours = [r for r in records if r["case"].startswith("mdio") and "seconds" in r]
    assert {r["table"] for r in ours} >= {"decode", "first", "iterate", "random", "rmsd", "convert"}
    assert all(min(r["wall_seconds"]) > 0 for r in ours)
    failed = {r["case"]: r["reason"] for r in records if "reason" in r}
    assert not any(case.startswith(("mdio", "MDAnalysis", "libmdaxdr")) for case in failed), failed
    assert {r["case"] for r in records if "nbytes" in r} >= {"XTC", "zarr --precision 0.01"}
    assert all("commit" in r["provenance"] and "MDAnalysis" in r["peers"] for r in records)
    assert (tmp_path / "peers.png").stat().st_size > 10_000


MAIN_JOB = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); import main_job;"
    "main_job.peak_memory_mib = lambda *_: 0.0; sys.exit(main_job.main())"
)


@pytest.mark.parametrize(
    "words",
    [
        [str(BENCH / "kernels.py"), "--repeats", "1", "--json"],
        [str(BENCH / "split.py"), "--tiles", "1", "--segments", "2", "--repeats", "1", "--folder"],
        [str(BENCH / "xtc_decode.py"), "--repeats", "1", "--json", XTC],
        [str(BENCH / "codecs.py"), "--repeats", "1", "--json", XTC],
        [str(BENCH / "demo.py"), "--tiles", "1", "--folder"],
        [
            str(BENCH / "stores/latencies.py"),
            "--copies",
            "1",
            "--repeats",
            "1",
            "--latencies-ms",
            "1",
            "--clients",
            "2",
            "--cases",
            "zarr, read",
            "zarr, obstore.get_ranges",
        ],
        ["-c", MAIN_JOB, str(BENCH), "--tiles", "1", "--repeats", "1", "--folder"],
        [
            *(str(BENCH / "sampling.py"), "--atoms", "3341", "--trajectories", "1"),
            *("--frames", "40", "--repeats", "1", "--folder"),
        ],
    ],
    ids=["kernels", "split", "xtc_decode", "codecs", "demo", "stores", "main_job", "sampling"],
)
def test_the_other_benches_run(words, tmp_path):
    if words[-1] == "--folder":
        words = [*words, str(tmp_path)]
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=120, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize(
    ("seconds", "verdict"), [([6.1, 5.9, 9.0], "reached"), ([6.1, 5.9, 5.0], "not reached")]
)
def test_a_target_is_judged_by_the_median_ratio(seconds, verdict):
    found = [record("decode", "libmdaxdr, XTC", seconds), record("decode", "mdio, XTC", [1, 1, 1])]
    verdicts = {one["case"]: one for one in judge(found)}
    assert verdicts["XTC, all atoms, beside libmdaxdr"]["verdict"] == verdict
    assert verdicts["XTC, all atoms, beside molly"]["verdict"] == "not measured"


def test_ratios_are_paired_repeat_by_repeat():
    slow, fast = [10.0, 40.0, 20.0], [1.0, 10.0, 1.0]
    found = [record("rmsd", "gmx rms, XTC", slow), record("rmsd", "mdio, XTC", fast)]
    (one,) = [v for v in judge(found) if "gmx" in v["case"]]
    assert one["ratio"] == 10.0
    assert (
        "| gmx rms, XTC | 2,000,000.0 | 1,000,000.0 to 4,000,000.0 | 500,000.0 | 10.00x | 10.00x |"
        in table("RMSD", "s", [record("rmsd", "mdio, XTC", fast), *found[:1]])
    )


def test_every_target_names_cases_that_are_measured(tmp_path):
    from peers.cases import TABLES
    from peers.systems import System

    top = tmp_path / "top.psf"
    system = System("s", 100, 10, tmp_path / "a.xtc", top, tmp_path, tmp_path)
    names = {table: {case.name for case in function(system)} for table, function in TABLES.items()}
    for target in TARGETS:
        if target.table in names:
            assert {target.slow, target.fast} <= names[target.table], target.title


def test_peers_that_are_missing_are_said_to_be(tmp_path, monkeypatch):
    from peers import process

    monkeypatch.setitem(process.PYTHONS, "peers.peer_small", tmp_path / "venv" / "bin" / "python")
    peers = Peers()
    with pytest.raises(NotMeasuredError, match="venv was not made"):
        peers.ask(Case("x", "peers.peer_small", "xtclib_read", {"path": "x"}))


def test_a_peer_that_crashes_is_started_anew(tmp_path, monkeypatch):
    from peers import process

    module = tmp_path / "peer_crash.py"
    module.write_text(
        "import os\n"
        "def versions(): return {}\n"
        "CASES = {'die': lambda path: (lambda: os._exit(3)), 'live': lambda path: (lambda: 2.0)}\n"
    )
    monkeypatch.setitem(process.PYTHONS, "peer_crash", Path(sys.executable))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    peers = Peers()
    with pytest.raises(NotMeasuredError, match="ended with 3"):
        peers.ask(Case("x", "peer_crash", "die", {"path": "x"}))
    assert peers.ask(Case("x", "peer_crash", "live", {"path": "x"}))["number"] == 2.0
    peers.close()


def test_what_is_opened_is_kept_until_it_is_wanted_cold(tmp_path, monkeypatch):
    source = tmp_path / "peer_counting.py"
    source.write_text(
        "opened = []\n"
        "def opening(path):\n"
        "    opened.append(path)\n"
        "    return lambda: len(opened)\n"
        "CASES = {'open': opening}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    runner = Runner("peer_counting")
    runner.cores = runner.cores[-1:]
    request = {"case": "open", "args": {"path": str(source)}}
    monkeypatch.setattr("os.sched_setaffinity", lambda *_: None)
    assert [runner.answer(request)["number"] for _ in range(2)] == [1.0, 1.0]
    assert runner.answer({**request, "cold": True})["number"] == 2.0


@pytest.mark.parametrize(("stays", "gone"), [(0, True), (2, True), (10**6, False)])
def test_evicting_tries_again_and_tells(tmp_path, monkeypatch, stays, gone):
    """Pages that are in use stay for a while, or for good."""
    (tmp_path / "cold").write_bytes(b"x")
    (tmp_path / "used").write_bytes(b"x")
    tried = {"cold": 0, "used": 0}

    def evicted(file):
        tried[file.name] += 1
        return file.name == "cold" or tried["used"] > stays

    monkeypatch.setattr("peers.runner.evicted", evicted)
    monkeypatch.setattr("peers.runner.EVICTIONS", 5)
    assert evict(tmp_path) is gone
    assert tried == {"cold": 1, "used": min(stays + 1, 5)}
