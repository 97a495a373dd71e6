"""Run mdio under an MPI that does not end (`run_endless.py COMMAND...`)."""

import sys
import time

from mpi4py import MPI

from mdio.cli import main as program
from mdio.cli.shared import ranks

ranks.ENDING_S = 1.0
MPI.Finalize = lambda: time.sleep(1000)
if __name__ == "__main__":
    sys.exit(program.main())
