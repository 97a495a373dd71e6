"""Run mdio under an MPI that does not end (`run_endless.py COMMAND...`)."""

import ctypes
import os
import sys
from types import SimpleNamespace

from mdio.cli import main as ending
from mdio.cli import main as program

ending._hydra_descriptor = lambda MPI: None  # as under another launcher
ending.MAX_FINALIZE_S = 1.0
hangs = ctypes.CDLL(None).sleep  # without the interpreter's lock, as MPI's own function
library = ctypes.CDLL
leave = os._exit


def leave_announced(code):
    """End as another launcher allows: Hydra, which is there, ends all once one left unannounced."""
    ending._send_command(
        int(os.environ["PMI_FD"]), b"finalize", b"finalize_ack", ending.MAX_ANSWER_S
    )
    leave(code)


def load(path, *args, **options):
    if "mpi4py" in str(path):
        return SimpleNamespace(MPI_Finalize=lambda: hangs(1000))
    return library(path, *args, **options)


ctypes.CDLL = load
os._exit = leave_announced
if __name__ == "__main__":
    sys.exit(program.main())
