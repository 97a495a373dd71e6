"""Ensembles under MPI: few trajectories by all ranks, many by one rank each."""

import pytest
from suites.under_mpi import needs_mpi, run_checks

import mdio


@needs_mpi
@pytest.mark.parametrize("n_ranks", [1, 3])
def test_ranks_make_ensembles(tmp_path, adk, n_ranks):
    for number in range(7):
        mdio.convert(adk["xtc"], tmp_path / f"r{number}.xtc", start=number, stop=3 * number + 4)
    run_checks(n_ranks, "check_ensembles.py", tmp_path)
