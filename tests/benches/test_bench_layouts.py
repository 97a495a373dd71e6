"""``bench/layouts.py``: every way to write and read, on a tiny trajectory."""

import json
import sys
from pathlib import Path

import pytest
from suites.under_mpi import ROOT, needs_mpi, run_under_mpi

import mdio
from mdio.core.errors import PlanError
from mdio.parallel.executors import Processes, Serial

sys.path.insert(0, str(ROOT / "bench"))
from measuring import run_bench

import layouts
from layouts import Case, cases, summarise

SCRIPT = ROOT / "bench/layouts.py"


def main(words):
    return run_bench(layouts.__doc__, layouts.setup, layouts.run, words)


def test_runs_and_saves(adk, tmp_path, capsys):
    target, out = tmp_path / "target", tmp_path / "out"
    target.mkdir()
    words = [str(adk["xtc"]), "--folder", str(target), "-o", str(out)]
    words += ["--layouts", "h5md,split", "-w", "2", "--repeats", "2", "--chunk-frames", "10"]
    assert main([*words, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["case"], row["n_workers"]) for row in rows] == [
        ("h5md 10 frames (workers)", 2),
        ("split (workers)", 2),
    ]
    for row in rows:
        for what in ("write_s", "read_cold_s", "read_warm_s"):
            median, least, most = row[what]
            assert 0 < least <= median <= most
    lines = [json.loads(line) for line in (out / "layouts.jsonl").read_text().splitlines()]
    assert [line["repeat"] for line in lines] == [0, 0, 1, 1]
    assert all(line["provenance"]["cores"] for line in lines)
    assert "<svg" in (out / "layouts.html").read_text()
    assert list(target.iterdir()) == []


def test_cases_that_make_no_sense_are_left_out():
    found = cases(
        ["h5md", "zarr", "split"],
        ["workers", "mpio", "collective"],
        [1],
        compressions=[None, "gzip:1"],
    )
    assert {(one.layout, one.way, one.compression) for one in found} == {
        ("h5md", "workers", None),
        ("h5md", "workers", "gzip:1"),
        ("h5md", "mpio", None),
        ("h5md", "collective", None),
        ("h5md", "collective", "gzip:1"),
        ("zarr", "workers", None),
        ("zarr", "workers", "gzip:1"),
        ("split", "workers", None),
    }
    assert len(found) == 8
    with pytest.raises(PlanError):
        cases(["zarr"], ["collective"], [1])


def test_commands():
    case = Case("segments:dcd", "mpi", 3, stripe_nbytes=1 << 20, stripe_count=4)
    words = case.words("a.xtc", Path("out"))
    assert words[:5] == ["convert", "a.xtc", "out", "--to", "segments"]
    assert words[words.index("--segments") + 1] == "3"
    assert words[words.index("--container") + 1] == "dcd"
    assert words[words.index("--stripe-count") + 1] == "4"
    assert "--mpi" in words and "-w" not in words
    assert "--collective" in Case("h5md", "collective", 2).words("a.xtc", Path("out"))


@pytest.mark.parametrize("executor", [Serial(), Processes(2)])
def test_reading_reads_every_frame_once(adk, executor):
    with executor:
        found = layouts.read_all(adk["xtc"], executor)
    assert found["n_frames"] == 98
    assert found["nbytes"] == 98 * 3341 * 12
    assert found["read_s"] > 0


@needs_mpi
def test_reading_on_ranks(adk):
    words = (SCRIPT, adk["xtc"], "--read", "--mpi")
    code, out, err = run_under_mpi(3, *words)
    assert code == 0, err
    assert json.loads(out)["n_frames"] == 98


def test_medians_and_spread():
    runs = [
        {"case": "a", "n_workers": 1, "nbytes": 8, "write_s": s, "cache_dropped": s < 3}
        for s in (3.0, 1.0, 2.0)
    ]
    (row,) = summarise(runs)
    assert row["write_s"] == (2.0, 1.0, 3.0)
    assert row["read_cold_s"] is None and not row["cache_dropped"]


def test_a_command_that_fails_says_why(tmp_path, capsys):
    words = [str(tmp_path / "none.xtc"), "--folder", str(tmp_path)]
    assert main([*words, "-o", str(tmp_path / "out"), "-w", "1", "--quiet"]) == 1
    assert "none.xtc: no such file" in capsys.readouterr().err
    assert main([words[0], "--folder", str(tmp_path / "nowhere")]) == 2


@needs_mpi
@pytest.mark.parametrize("n_ranks", [1, 3])
def test_ranks_read_each_a_share(adk, tmp_path, n_ranks):
    out = tmp_path / "a.h5md"
    mdio.convert(adk["xtc"], out, storage=mdio.Storage(chunk_frames=40))
    words = (SCRIPT, out, "--read", "--mpi")
    code, text, err = run_under_mpi(n_ranks, *words)
    assert code == 0, err
    found = json.loads(text)
    assert (found["n_frames"], found["nbytes"]) == (98, 98 * 3341 * 12)
    assert found["read_s"] > 0
