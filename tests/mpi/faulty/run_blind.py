"""The command line as each rank runs it, but one rank cannot open a file.

``run_blind.py RANK FILE WORDS...``: as where a folder is not mounted on one node.
"""

import builtins
import errno
import os
import sys

from mpi4py import MPI

from mdio.cli.main import main


def blind(function, path):
    """Return `function`, which opens files, but as if `path` were not there."""

    def open_other(file, *args, **kwargs):
        if not isinstance(file, int) and os.fspath(file) == path:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return function(file, *args, **kwargs)

    return open_other


if __name__ == "__main__":
    if int(sys.argv[1]) == MPI.COMM_WORLD.rank:
        os.open = blind(os.open, sys.argv[2])
        builtins.open = blind(builtins.open, sys.argv[2])
        import io

        io.open = builtins.open
    sys.exit(main(sys.argv[3:]))
