"""Calls in which waiting ranks sleep (run by test_under_mpi.py, on some number of ranks)."""

import os
import resource
import time
from types import SimpleNamespace

from mpi4py import MPI
from parallel.all_checks import run_all

from mdio.parallel import sleeping
from mdio.parallel.sleeping import allgather, any_of, bcast

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.rank, COMM.size
SIZES = (0, 1, sleeping.BODY_NBYTES - 100, sleeping.BODY_NBYTES, 3_000_000)
"""Bytes, more and less than what comes with its size."""


class NeverBlocking:
    """The communicator without calls that wait, whose requests can only be asked."""

    rank, size = RANK, SIZE

    def __getattr__(self, name):
        assert name.startswith("I"), name
        begin = getattr(COMM, name)
        return lambda *words, **options: SimpleNamespace(Test=begin(*words, **options).Test)


def check_all_get_what_rank_0_gives():
    for nbytes in SIZES:
        given = {"bytes": bytes(nbytes), "n": nbytes} if RANK == 0 else None
        got = bcast(NeverBlocking(), given)
        assert got == {"bytes": bytes(nbytes), "n": nbytes}
        assert RANK != 0 or got is given


def check_all_get_what_each_gives():
    for nbytes in SIZES:
        for large in {0, SIZE - 1, None}:  # one is larger than the others, or none
            given = [bytes([n % 256]) * (nbytes if large in (n, None) else 3) for n in range(SIZE)]
            assert allgather(NeverBlocking(), given[RANK]) == given


def check_any_rank_can_say_so():
    assert not any_of(COMM, False)
    for rank in range(SIZE):
        assert any_of(COMM, rank == RANK)


def check_who_waits_sleeps():
    """Half a second, of which MPI's own calls take all that a core has."""
    assert "patient" not in os.environ.get("LD_PRELOAD", "")  # or MPI's calls would sleep, too
    calls = (lambda: bcast(COMM, 1), lambda: allgather(COMM, 1), lambda: any_of(COMM, False))
    for call in calls:
        COMM.Barrier()
        before = resource.getrusage(resource.RUSAGE_SELF)
        if RANK == 0:
            time.sleep(0.5)
        call()
        after = resource.getrusage(resource.RUSAGE_SELF)
        spent_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        assert spent_s < 0.25, spent_s


if __name__ == "__main__":
    run_all(globals(), COMM)
