"""The command line as each rank runs it, but one rank may write no file beyond some bytes.

``run_limited.py RANK NBYTES WORDS...``: what a full disk is to that rank alone.
"""

import resource
import sys

from mpi4py import MPI

from mdio.cli.main import main

if __name__ == "__main__":
    sys.dont_write_bytecode = True  # else Python keeps what the limit cut, and later ranks read it
    rank, nbytes = int(sys.argv[1]), int(sys.argv[2])
    if rank == MPI.COMM_WORLD.rank:
        resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, nbytes))
    sys.exit(main(sys.argv[3:]))
