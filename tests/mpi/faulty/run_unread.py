"""The command line as each rank runs it, but one rank cannot read one frame of h5md files.

``run_unread.py RANK FRAME WORDS...``: as where a disk has a bad block.
"""

import sys

from mpi4py import MPI

from mdio.cli.main import main
from mdio.core.errors import CorruptLayoutError
from mdio.layouts.h5md.mpio.reader import MPIOFile

RANK, FRAME = int(sys.argv[1]), int(sys.argv[2])


def read_into(self, start, stop, atoms, block, read=MPIOFile.read_into):
    """Read as ever, but for one frame."""
    if start <= FRAME < stop:
        raise CorruptLayoutError(f"{self.path}: frame {FRAME} is lost")
    read(self, start, stop, atoms, block)


if __name__ == "__main__":
    if MPI.COMM_WORLD.rank == RANK:
        MPIOFile.read_into = read_into
    sys.exit(main(sys.argv[3:]))
