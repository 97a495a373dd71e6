"""Advice for ranks, which ask the storage all at once (run by test_advise_under_mpi.py)."""

import platform
import sys
from pathlib import Path

from mpi4py import MPI
from parallel.all_checks import run_all
from suites.quick_advice import QUICK

import mdio
from mdio.advisor.probes import SHARED_STORAGE_READERS
from mdio.core.errors import SourceError
from mdio.parallel.mpi_executor import MPIExecutor

COMM = MPI.COMM_WORLD
SOURCE, TOP, TARGET = map(Path, sys.argv[1:4])


def check_advice_is_for_the_ranks_and_their_nodes():
    real = platform.node
    platform.node = lambda: f"node{COMM.rank % 2}"
    try:
        with MPIExecutor(COMM, to_all=False) as executor:
            advice = mdio.advise(
                SOURCE, top=TOP, select="name CA", target=TARGET, limits=QUICK, executor=executor
            )
    finally:
        platform.node = real
    assert advice.passes == 1
    if COMM.size == 1:
        return
    assert advice.ranks_asked == COMM.size >= advice.ranks == advice.recommended.ranks
    together = [
        b for b in advice.measurements.bandwidths if b.readers == COMM.size * SHARED_STORAGE_READERS
    ]
    assert len(together) == 1 and together[0].nbytes_per_s > 0
    assert advice.commands[-1].startswith("mpiexec -n"), advice.commands


def check_commands_are_for_the_ranks_of_one_node():
    with MPIExecutor(COMM, to_all=False) as executor:
        advice = mdio.advise(
            SOURCE, top=TOP, select="name CA", target=TARGET, limits=QUICK, executor=executor
        )
    for command in advice.commands:
        assert command.startswith("mpiexec -n") and " --mpi" in command, advice.commands


def check_a_source_that_is_nowhere():
    try:
        with MPIExecutor(COMM, to_all=False) as executor:
            mdio.advise(TARGET / "nix.xtc", target=TARGET, limits=QUICK, executor=executor)
    except SourceError as error:
        assert "nix.xtc" in str(error)
    else:
        raise AssertionError("no error")


if __name__ == "__main__":
    run_all(globals(), COMM)
