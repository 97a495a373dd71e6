"""The block driver, its command line and MDAnalysis' analyses under MPI (launches tests/mpi)."""

import json
import os
import re
import subprocess
import sys
import time

import MDAnalysis as mda
import numpy as np
import pytest
from MDAnalysis.analysis import gnm, rms
from MDAnalysis.analysis.base import AnalysisFromFunction
from MDAnalysis.analysis.dihedrals import Ramachandran
from MDAnalysisTests.datafiles import DCD, PSF
from suites.small_adk import small_adk
from suites.under_mpi import CHECKS, needs_mpi, run_checks, run_under_mpi

import mdio

CA = "protein and name CA"


@pytest.fixture(scope="module")
def folder(tmp_path_factory, adk):
    """ADK as DCD; as 14 and as 7 segments; as Zarr."""
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "adk.dcd").write_bytes(adk["dcd"].read_bytes())
    mdio.split(folder / "adk.dcd", folder / "adk.segments", 14)
    short = folder / "short.dcd"
    u = mda.Universe(PSF, DCD)
    with mda.Writer(str(short), len(u.atoms)) as writer:
        for _ in u.trajectory[:49]:
            writer.write(u.atoms)
    mdio.split(short, folder / "more.segments", 7)
    mdio.convert(folder / "adk.dcd", folder / "adk.zarr", storage=mdio.Storage(chunk_frames=7))
    return folder


def command_line(n_ranks, *words, timeout_s=60):
    return run_under_mpi(n_ranks, "-m", "mdio.cli.main", *words, timeout_s=timeout_s)


@needs_mpi
@pytest.mark.parametrize(("n_ranks", "n_others"), [(4, 3), (2, 0), (7, 0)])
def test_driver(folder, n_ranks, n_others):
    """Of 4 ranks, then of the first 3 of them and of the last one alone; of 2; some of it of 7."""
    run_checks(n_ranks, "check_analysis.py", PSF, folder, n_others)


def expected_of_mdanalysis():
    sys.path.insert(0, str(CHECKS))
    try:
        from backend_function import centre
    finally:
        sys.path.remove(str(CHECKS))
    u = small_adk()
    # With one worker, multiprocessing would send two parts at a time, which share one object.
    frames = {"stop": 40, "step": 3, "n_parts": 5, "backend": "multiprocessing", "n_workers": 2}
    analyses = {
        "rmsd": rms.RMSD(u.select_atoms(CA)),
        "ramachandran": Ramachandran(u.select_atoms("resid 10:60")),
        "function": AnalysisFromFunction(centre, u.trajectory, u.select_atoms("name CA")),
        "gnm": gnm.GNMAnalysis(u, select="name CA and resid 1:40"),
    }
    return {
        name: {key: np.asarray(value) for key, value in analysis.run(**frames).results.items()}
        for name, analysis in analyses.items()
    }


@needs_mpi
@pytest.mark.filterwarnings("default")
def test_backend(tmp_path):
    wanted = tmp_path / "wanted.npz"
    np.savez(wanted, **expected_of_mdanalysis())
    run_checks(3, "check_backend.py", wanted, CHECKS.parent)  # 3 ranks, then 2 and 1


@needs_mpi
@pytest.mark.parametrize("gather", ["blocking", "nonblocking", "one-sided"])
def test_command_line(folder, tmp_path, gather):
    """Rank 0 alone speaks and writes; options without effect are accepted, and named."""
    out, timings = tmp_path / "o.npz", tmp_path / "t.json"
    words = ["analyze", "rmsd", folder / "adk.segments", "-s", PSF, "--select", CA]
    words += ["--executor", "mpi", "--gather", gather, "-w", "9", "-o", out, "--timings", timings]
    code, printed, err = command_line(2, *words, "--json")
    assert (code, err) == (0, "mdio analyze: -w 9 is ignored: mpi has 2 workers\n")
    found = json.loads(printed)
    assert (found["n_frames"], found["workers"], found["gather"]) == (98, 2, gather)
    want = mdio.analyze(folder / "adk.dcd", top=PSF, kernel=mdio.RMSD(select=CA))
    assert np.array_equal(np.load(out)["values"], want.values)
    assert [rank["rank"] for rank in json.loads(timings.read_text())["ranks"]] == [0, 1]


@needs_mpi
def test_a_failing_block_ends_all_ranks_with_one_line(folder, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(CHECKS))
    begun = time.monotonic()
    code, out, err = command_line(
        3, "analyze", "mpi_kernels:fails_late", folder / "adk.dcd", "--executor", "mpi", "--json"
    )
    assert time.monotonic() - begun < 60
    assert code == 1
    assert out == ""
    assert err.count("no such angle") == err.count("\n") == 1, err
    assert "block 1 (frames 33:65) failed: ZeroDivisionError" in err
    assert err.endswith("; --debug shows the line\n")
    words = ("mpi_kernels:fails_late", folder / "adk.dcd", "--mpi", "--debug")
    _, _, err = command_line(3, "analyze", *words)
    assert "On rank 1:\n" in err and err.count('mpi_kernels.py", line') == 1, err


@needs_mpi
def test_a_killed_rank_ends_all_ranks(folder, tmp_path, monkeypatch):
    """What is said of it, the launcher says."""
    monkeypatch.setenv("PYTHONPATH", str(CHECKS))
    words = ["analyze", "mpi_kernels:killed_late", folder / "adk.dcd"]
    begun = time.monotonic()
    code, _, err = command_line(3, *words, "--executor", "mpi", "-o", tmp_path / "o.npz")
    assert time.monotonic() - begun < 60
    assert code != 0
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []
    # Worker processes have a parent that outlives them.
    program = [sys.executable, "-m", "mdio.cli.main", *words, "-w", "3"]
    done = subprocess.run([*map(str, program)], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
    assert "block 1 (frames 33:65) failed: its worker process was killed by SIGKILL" in done.stderr


@needs_mpi
def test_a_corrupt_chunk_ends_all_ranks_with_one_line(folder, tmp_path):
    damaged = tmp_path / "damaged.zarr"
    subprocess.run(["cp", "-r", folder / "adk.zarr", damaged], check=True)
    chunks = [p for p in damaged.rglob("*") if p.is_file() and "position/value/c" in str(p)]
    largest = max(chunks, key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) * 3 // 4] ^= 0xFF
    largest.write_bytes(content)
    code, out, err = command_line(3, "analyze", "rmsd", damaged, "--executor", "mpi")
    assert code == 1
    assert out == ""
    assert err.count("\n") == 1, err
    place = rf"\(rank 1 on {re.escape(os.uname().nodename)}\)"
    assert re.search(
        rf"block 1 \(frames 35:63\) {place}: .*damaged\.zarr.*\(.*frames 42 to 48\)$", err
    )


@needs_mpi
def test_wrong_options_end_all_ranks_with_one_line(folder):
    code, out, err = command_line(
        3, "analyze", "rmsd", folder / "adk.dcd", "--select", "name CA", "--executor", "mpi"
    )
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1, err
    assert "topology" in err


def test_without_mpi4py(monkeypatch, capsys):
    from mdio.cli.main import main

    monkeypatch.setitem(sys.modules, "mpi4py", None)
    assert main(["analyze", "rmsd", DCD, "--executor", "mpi"]) == 1
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert "make mpi" in printed and 'pip install "mdio-layouts[mpi]"' in printed
