"""Map-reduce on 1 to 4 ranks."""

import pytest
from suites.under_mpi import CHECKS, needs_mpi, run_under_mpi

pytestmark = needs_mpi


@pytest.mark.parametrize("n_ranks", [1, 2, 3, 4])
def test_checks(n_ranks, adk):
    words = "-m", "mpi4py", CHECKS / "check_mapreduce.py", adk["psf"], adk["dcd"].parent
    code, out, err = run_under_mpi(n_ranks, *words)
    assert code == 0, out + err
    assert f"checks passed on {n_ranks} ranks" in out
