"""The command line as each rank runs it, but all ranks get a signal where Python loses exceptions.

``run_swallowed.py PIECE SIGNAL WORDS...``: once rank 0 has stored so many pieces, in a callback of
a weak reference: libraries such as h5py have these, and what a handler raises there is lost.
"""

import os
import signal
import sys
import weakref

from mpi4py import MPI

from mdio.cli.main import main
from mdio.converters.strategies.conversion import Conversion


class Held:
    """What ends where a signal comes."""


if __name__ == "__main__":
    piece, number = int(sys.argv[1]), signal.Signals[f"SIG{sys.argv[2]}"]
    others = MPI.COMM_WORLD.allgather(os.getpid())
    others.remove(os.getpid())
    note, count = Conversion._record, 0

    def end_all(_):
        for pid in [*others, os.getpid()]:
            os.kill(pid, number)

    def noted(*arguments):
        global count
        note(*arguments)
        count += 1
        if count == piece:
            held = Held()
            keeper = weakref.ref(held, end_all)
            del held
            assert keeper() is None

    Conversion._record = noted
    sys.argv[1:] = sys.argv[3:]
    main()
