"""Advice for the ranks of mpiexec."""

import pytest
from suites.under_mpi import needs_mpi, run_checks, run_under_mpi

pytestmark = needs_mpi


@pytest.mark.parametrize("n_ranks", [1, 3])
def test_checks(n_ranks, adk, tmp_path):
    run_checks(n_ranks, "check_advise.py", adk["xtc"], adk["psf"], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_one_message_from_all_ranks(tmp_path):
    words = ["-m", "mdio.cli.main", "advise", tmp_path / "nix.xtc", "--mpi"]
    code, out, err = run_under_mpi(2, *words)
    assert (code, out) == (1, "")
    assert err.count("\n") == 1 and f"{tmp_path / 'nix.xtc'}: No such file" in err
