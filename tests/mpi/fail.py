"""Ways to fail on some rank; test_under_mpi.py looks at how the program ends."""

import sys
import time

from mpi4py import MPI

from mdio.core.errors import MdioError
from mdio.parallel.executors import results_of
from mdio.parallel.mpi_executor import MPIExecutor

COMM = MPI.COMM_WORLD


def last_rank_fails(n):
    if n == COMM.size - 1:
        raise ValueError("bad dihedral")
    time.sleep(0.01)


def last_rank_fails_others_take_long(n):
    if n == COMM.size - 1:
        raise ValueError("bad dihedral")
    time.sleep(600)


def others_take_long(n):
    COMM.Barrier()  # rank 0 goes on when all are at their first item
    if n != 0:
        time.sleep(600)


def main(way):
    try:
        with MPIExecutor(COMM, grace_s=1.0) as executor:
            if way == "outside" and COMM.rank == COMM.size - 1:
                raise MdioError("no topology on this node")
            if way == "exit" and COMM.rank == COMM.size - 1:
                executor.map(sys.exit, range(COMM.size))
            if way == "signal":
                for _ in results_of(executor, others_take_long, range(1000)):
                    ended = SystemExit(143)  # as a signal's handler raises it, wherever rank 0 is
                    ended.add_note("9 frames are kept")
                    raise ended
            if way == "stuck":
                try:
                    executor.map(last_rank_fails, range(COMM.size))
                finally:
                    if COMM.rank == 0:  # as when storage that it cleans up does not answer
                        time.sleep(600)
            work = last_rank_fails_others_take_long if way == "long" else last_rank_fails
            executor.map(work, range(1000), describe=lambda n: f"block {n}")
    except MdioError as error:
        if COMM.rank == 0:
            print(error, file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1])
