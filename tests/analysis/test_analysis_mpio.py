"""``mdio analyze --executor mpi --mpio`` and ``--collective``: frames through parallel HDF5."""

import json
import time

import numpy as np
import pytest
from suites.native_files import write_trr
from suites.under_mpi import CHECKS, needs_mpi, run_under_mpi

import mdio
from mdio.cli.main import main

CLI = ("-m", "mdio.cli.main")
BOTH = pytest.mark.parametrize("how", ["--mpio", "--collective"])


@pytest.fixture(scope="module")
def folder(adk, tmp_path_factory):
    folder = tmp_path_factory.mktemp("mpio")
    ca = {"ca": np.arange(7, 3000, 15)}
    mdio.convert(adk["dcd"], folder / "plain.h5md", chunk_frames=5)
    mdio.convert(adk["dcd"], folder / "gzip.h5md", chunk_frames=7, compression="gzip:1", groups=ca)
    write_trr(folder / "speeds.trr", ["xv"] * 40)
    mdio.convert(folder / "speeds.trr", folder / "speeds.h5md", chunk_frames=3)
    return folder


@needs_mpi
@pytest.mark.parametrize("n_ranks", [1, 2, 3, 4])
def test_equal_to_serial(folder, n_ranks):
    code, out, err = run_under_mpi(
        n_ranks, "-m", "mpi4py", CHECKS / "check_analysis_mpio.py", folder
    )
    assert code == 0, out + err
    assert f"analyses as serial on {n_ranks} ranks" in out


@needs_mpi
@BOTH
def test_command_line(folder, tmp_path, how):
    out = tmp_path / "o.npz"
    words = ("analyze", "rmsd", folder / "plain.h5md", "--executor", "mpi", how, "-o", out)
    code, printed, err = run_under_mpi(2, *CLI, *words, "--json")
    assert (code, err) == (0, "")
    assert json.loads(printed)["workers"] == 2
    want = mdio.analyze(folder / "plain.h5md", kernel=mdio.RMSD())
    assert np.array_equal(np.load(out)["values"], want.values)


def run_and_fail(n_ranks, *words):
    begun = time.monotonic()
    code, out, err = run_under_mpi(n_ranks, *words)
    assert (code, out) == (1, ""), err
    assert time.monotonic() - begun < 60
    return err


@needs_mpi
@BOTH
def test_a_kernel_that_fails_on_one_rank(folder, how, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(CHECKS))
    words = ("analyze", "mpi_kernels:fails_late", folder / "plain.h5md", "--executor", "mpi", how)
    err = run_and_fail(3, *CLI, *words)
    assert err.count("no such angle") == err.count("\n") == 1, err
    assert "block 1 (frames " in err


@needs_mpi
@BOTH
def test_a_file_that_one_rank_cannot_open(folder, how):
    path = folder / "plain.h5md"
    words = ("analyze", "rmsd", path, "--executor", "mpi", how)
    err = run_and_fail(3, CHECKS / "faulty/run_blind.py", 1, path, *words)
    assert err.count("cannot be opened") == err.count("\n") == 1, err


@needs_mpi
@BOTH
def test_a_read_that_fails_on_one_rank(folder, how):
    """Before or within a collective read: the others may wait in it, and the program is ended."""
    path = folder / "plain.h5md"
    words = ("analyze", "rmsd", path, "--executor", "mpi", how)
    err = run_and_fail(3, CHECKS / "faulty/run_unread.py", 1, 50, *words)
    assert err.count("plain.h5md: frame 50 is lost") == 1, err
    assert "Traceback" not in err


@needs_mpi
def test_what_cannot_be_read(adk, folder):
    for name, words, message in (
        (adk["dcd"], (), "one h5md file that mdio wrote, and this is dcd"),
        (folder / "plain.h5md", (folder / "plain.h5md",), "this is chain"),
    ):
        words = ("analyze", "rmsd", name, *words, "--executor", "mpi", "--collective")
        code, out, err = run_under_mpi(2, *CLI, *words)
        assert (code, out, err.count("\n")) == (2, "", 1), err
        assert message in err and "leave --collective out" in err


def test_without_mpi(folder, capsys):
    for how in ("--mpio", "--collective"):
        assert main(["analyze", "rmsd", str(folder / "plain.h5md"), "-w", "2", how]) == 2
        assert "add --executor mpi" in capsys.readouterr().err
    with pytest.raises(mdio.core.errors.PlanError, match="executor mpi"):
        mdio.analyze(folder / "plain.h5md", kernel=mdio.RMSD(), mpio="collective")
    with pytest.raises(mdio.core.errors.PlanError, match="independent, collective"):
        mdio.analyze(folder / "plain.h5md", kernel=mdio.RMSD(), mpio="both")
