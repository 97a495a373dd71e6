"""Results on their way to rank 0 (run by test_under_mpi.py, with ranks as on different nodes)."""

import shutil
import tempfile
import time
from pathlib import Path

from mpi4py import MPI
from parallel.all_checks import run_all

from mdio.parallel.mpi_executor import MPIExecutor
from mdio.parallel.ranks import RESULT

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
        for number, _ in executor.imap(work, range(3 * SIZE), owner_takes_items=False):
            (taken / str(number)).touch()
    if RANK == 0:
        shutil.rmtree(taken)


def check_rank_0_goes_on_while_a_result_is_on_its_way():
    """It comes once its sender calls MPI again, which may take as long as an item."""
    told = Path(COMM.bcast(tempfile.mkdtemp() if RANK == 0 else None))

    def wait_for(name):
        until = time.monotonic() + 30
        while not (told / name).exists():
            assert time.monotonic() < until, f"nobody has said: {name}"
            time.sleep(0.001)

    def work(n):
        if SIZE > 1 and n == 0:
            wait_for("rank 1 has sent a result")
            until = time.monotonic() + 1
            while time.monotonic() < until and not executor.comm.iprobe(tag=RESULT):
                time.sleep(0.001)  # as a rule it is announced at once
        if n == SIZE:
            (told / "rank 0 went on").touch()
        if SIZE > 1 and n == SIZE + 1:
            (told / "rank 1 has sent a result").touch()
            wait_for("rank 0 went on")
        return bytes(200_000)

    with MPIExecutor(COMM, to_all=False) as executor:
        executor.map(lambda _: bytes(200_000), range(3 * SIZE))  # then they are connected
        results = dict(executor.imap(work, range(3 * SIZE)))
    assert RANK != 0 or sorted(results) == list(range(3 * SIZE))
    if RANK == 0:
        shutil.rmtree(told)


if __name__ == "__main__":
    run_all(globals(), COMM)
