"""Every command on every layout, by ranks (run by tests/parallel/test_every_command.py)."""

import sys
from pathlib import Path

from mpi4py import MPI
from suites.every_command import LAYOUTS, commands

COMM = MPI.COMM_WORLD


def is_first():
    COMM.Barrier()
    return COMM.rank == 0


for name in LAYOUTS:
    commands(Path(sys.argv[1]), name, ["--executor", "mpi"], is_first=is_first)
if COMM.rank == 0:
    print(f"all commands: checks passed on {COMM.size} ranks")
