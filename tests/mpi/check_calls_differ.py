"""Ranks that call different things on one executor are all told (run by test_under_mpi.py)."""

import sys
from pathlib import Path

from mpi4py import MPI

import mdio
from mdio.core.errors import PlanError

COMM = MPI.COMM_WORLD
DCD, OTHER, FOLDER = sys.argv[1], sys.argv[2], Path(sys.argv[3])


def check(says, call):
    try:
        call()
    except PlanError as error:
        assert says in str(error) and "make the same calls" in str(error), error
    else:
        raise AssertionError(f"rank {COMM.rank} was not told")


with mdio.MPIExecutor(COMM) as executor:
    mine = OTHER if COMM.rank else DCD
    check("analyze(", lambda: mdio.analyze(mine, kernel="rmsd", executor=executor))
    out = FOLDER / f"{COMM.rank > 0}.h5md"
    check("convert(", lambda: mdio.convert(DCD, out, executor=executor))
    if COMM.rank:
        check("rank 0 calls verify(", lambda: mdio.convert(DCD, out, executor=executor))
    else:
        check("convert(", lambda: mdio.verify(DCD, executor=executor))
    assert mdio.analyze(DCD, kernel="rmsd", executor=executor).n_frames == 98
assert not list(FOLDER.iterdir())
if COMM.rank == 0:
    print(f"checks passed on {COMM.size} ranks")
