"""Map-reduce on 1 to 4 ranks."""

import pytest
from suites.under_mpi import needs_mpi, run_checks

pytestmark = needs_mpi


@pytest.mark.parametrize("n_ranks", [1, 2, 3])
def test_checks(n_ranks, adk):
    run_checks(n_ranks, "check_mapreduce.py", adk["psf"], adk["dcd"].parent)
