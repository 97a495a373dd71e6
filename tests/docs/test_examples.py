"""The examples in the docstrings of public names run."""

from pathlib import Path

import pytest
from docs.examples import failures
from suites.under_mpi import needs_mpi, run_under_mpi

import mdio

UNDER_MPI = ["MPIBackend", "MPIExecutor"]
NAMES = [name for name in mdio.__all__ if name not in (*UNDER_MPI, "__version__")]


@pytest.mark.parametrize("name", NAMES)
def test_examples_run(name, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    attempted, failed = failures(name)
    assert attempted > 0
    assert failed == 0, capfd.readouterr().out


@needs_mpi
def test_examples_run_on_ranks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = run_under_mpi(2, Path(__file__).with_name("examples.py"), *UNDER_MPI)
    assert code == 0, out + err
