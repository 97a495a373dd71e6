"""Ranks open what rank 0 has opened, and no other output (run by test_replaced.py)."""

import sys

from mpi4py import MPI

import mdio
from mdio.core.errors import CorruptLayoutError

COMM = MPI.COMM_WORLD
OUT, OTHER = sys.argv[1:]

layout = mdio.open(OUT)
if COMM.rank == 0:
    assert layout.info.n_frames == 98
    mdio.convert(OTHER, OUT, storage=mdio.Storage(chunk_frames=10), force=True)
COMM.Barrier()
with mdio.MPIExecutor(COMM) as executor:
    try:
        mdio.analyze(layout, kernel=mdio.RMSD(), executor=executor)
    except CorruptLayoutError as error:
        assert "was replaced while it was open" in str(error), error
    else:
        raise AssertionError("frames of two outputs were mixed")
if COMM.rank == 0:
    print(f"checks passed on {COMM.size} ranks")
