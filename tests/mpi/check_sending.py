"""Results on their way to rank 0 (run by test_under_mpi.py, with ranks as on different nodes)."""

import shutil
import tempfile
import time
from pathlib import Path

from mpi4py import MPI
from parallel.all_checks import run_all

from mdio.parallel.mpi_executor import MPIExecutor

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.rank, COMM.size


def check_what_is_sent_arrives_before_more_is_begun():
    """However large: MPI gets on with large messages only while their sender calls it."""
    taken = Path(COMM.bcast(tempfile.mkdtemp() if RANK == 0 else None))

    def work(n):
        before = n - (SIZE - 1)
        until = time.monotonic() + 30
        while SIZE > 1 and before >= 0 and not (taken / str(before)).exists():
            assert time.monotonic() < until, f"the result of item {before} is not with rank 0"
            time.sleep(0.001)
        return bytes(20_000_000)

    with MPIExecutor(COMM, to_all=False) as executor:
        for number, _ in executor.imap(work, range(3 * SIZE), owner_works=False):
            (taken / str(number)).touch()
    if RANK == 0:
        shutil.rmtree(taken)


if __name__ == "__main__":
    run_all(globals(), COMM)
