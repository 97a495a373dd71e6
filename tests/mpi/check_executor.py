"""The MPI executor when all goes well (run by test_under_mpi.py, on some number of ranks)."""

import operator
import os
import time

import numpy as np
from mpi4py import MPI
from parallel.all_checks import run_all

from mdio.core.errors import BlockError, SourceError
from mdio.parallel.mpi_executor import MPIExecutor
from mdio.parallel.ranks import MAX_IN_FLIGHT

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.rank, COMM.size
NODE = os.uname().nodename


def check_map_on_all_ranks():
    with MPIExecutor(COMM) as executor:
        assert executor.n_workers == SIZE
        for n_items in (0, 1, SIZE - 1, SIZE, 3 * SIZE + 1, 50):
            assert executor.map(lambda n: n * n, range(n_items)) == [n * n for n in range(n_items)]


def check_who_does_what():
    with MPIExecutor(COMM) as executor:
        ranks = executor.map(lambda _: RANK, range(3 * SIZE))
    assert ranks == [n % SIZE for n in range(3 * SIZE)]


def check_only_rank_0_gets():
    with MPIExecutor(COMM, to_all=False) as executor:
        got = dict(executor.imap(lambda n: np.full(100_000, n), range(20)))
    if RANK == 0:
        assert sorted(got) == list(range(20))
        assert all((array == n).all() and len(array) == 100_000 for n, array in got.items())
    else:
        assert got == {}


def check_items_from_a_generator():
    with MPIExecutor(COMM) as executor:
        assert executor.map(len, (chr(97 + n) * n for n in range(9))) == list(range(9))


def check_results_come_while_work_goes_on():
    """Rank 0 sees its first result long before everybody is done."""
    with MPIExecutor(COMM, to_all=False) as executor:
        made_and_seen = [
            (made_at, time.monotonic()) for _, made_at in executor.imap(_slowly, range(10 * SIZE))
        ]
    if RANK == 0:  # (clocks are one node's)
        first = made_and_seen[0][1]
        assert sum(made_at > first for made_at, _ in made_and_seen) > 3 * SIZE


def _slowly(_):
    time.sleep(0.02)
    return time.monotonic()


def check_a_slow_consumer_does_not_get_a_pile():
    """Ranks wait for rank 0 when it has not taken their results (clocks are one node's)."""
    taken = []
    with MPIExecutor(COMM, to_all=False) as executor:
        for number, made_at in executor.imap(lambda _: time.monotonic(), range(40 * SIZE)):
            taken.append((number % SIZE, made_at, time.monotonic()))
            time.sleep(0.002)
    if RANK == 0:
        assert len(taken) == 40 * SIZE
    for rank in {rank for rank, _, _ in taken}:
        made = [made_at for maker, made_at, _ in taken if maker == rank]
        for n_taken, (_, _, taken_at) in enumerate(t for t in taken if t[0] == rank):
            ahead = sum(made_at < taken_at for made_at in made) - n_taken
            assert ahead <= MAX_IN_FLIGHT + 3, f"rank {rank} was {ahead} results ahead"


def check_own_pace_gives_every_item_once():
    """To all ranks of this node together, and the counter begins again with each call."""
    with MPIExecutor(COMM) as executor:
        for n_items in (0, 1, SIZE, 3 * SIZE + 1, 50):
            found = dict(executor.imap(lambda n: n * n, range(n_items), dynamic=True))
            assert found == {n: n * n for n in range(n_items)}


def check_a_slow_rank_is_given_less():
    """Rank 0 takes ten items' time for its first one: the others do the rest meanwhile."""

    def work(_):
        first, held_up[:] = not held_up, [True]
        time.sleep(0.2 if RANK == 0 and first else 0.002)
        return RANK, time.monotonic()

    held_up = []
    with MPIExecutor(COMM) as executor:
        done = executor.map(abs, range(3))  # and then as ever
        assert done == [0, 1, 2]
        found = [result for _, result in executor.imap(work, range(20 * SIZE), dynamic=True)]
    shares = [sum(rank == one for rank, _ in found) for one in range(SIZE)]
    assert sum(shares) == 20 * SIZE
    if SIZE > 1:
        # Small results do not wait until rank 0 has taken them.
        assert 1 <= shares[0] < 15 and max(shares[1:]) > 20, shares


def check_an_owner_that_leaves_the_work_to_others():
    for n_items in (0, 1, SIZE, 3 * SIZE + 1):
        with MPIExecutor(COMM) as executor:
            found = dict(
                executor.imap(
                    lambda n: (n, RANK), range(n_items), dynamic=True, owner_takes_items=False
                )
            )
        assert {number: item for number, (item, _) in found.items()} == {
            n: n for n in range(n_items)
        }
        assert SIZE == 1 or all(rank > 0 for _, rank in found.values())


def check_large_results_wait_at_any_pace():
    taken = []
    with MPIExecutor(COMM, to_all=False) as executor:
        for _, (rank, made_at, _) in executor.imap(_large, range(12 * SIZE), dynamic=True):
            taken.append((rank, made_at, time.monotonic()))
            time.sleep(0.005)
    for rank in {rank for rank, _, _ in taken}:
        made = [made_at for maker, made_at, _ in taken if maker == rank]
        for n_taken, (_, _, taken_at) in enumerate(t for t in taken if t[0] == rank):
            ahead = sum(made_at < taken_at for made_at in made) - n_taken
            assert ahead <= MAX_IN_FLIGHT + 3, f"rank {rank} was {ahead} results ahead"


def _large(_):
    return RANK, time.monotonic(), bytes(600_000)


def check_a_failure_is_everybodys():
    for culprit in {0, SIZE - 1}:

        def work(n, culprit=culprit):
            if n == SIZE + culprit:
                raise ValueError("no such\nangle")
            return n

        with MPIExecutor(COMM) as executor:
            try:
                executor.map(work, range(100), describe=lambda n: f"block {n}")
            except BlockError as error:
                block = f"block {SIZE + culprit} (rank {culprit} on {NODE})"
                assert str(error) == f"{block} failed: ValueError: no such angle"
                if culprit == RANK:
                    assert isinstance(error.__cause__, ValueError)
            else:
                raise AssertionError("nobody raised")
            # and the executor can be used again
            assert executor.map(abs, [-1, -2, -3]) == [1, 2, 3]


def check_an_error_of_mdio_keeps_its_class():
    def work(n):
        if n == SIZE - 1:
            raise SourceError("a.xtc: truncated")
        return n

    with MPIExecutor(COMM, to_all=False) as executor:
        try:
            list(executor.imap(work, range(100)))
        except SourceError as error:
            assert "a.xtc: truncated" in str(error)
        else:
            raise AssertionError("nobody raised")


def check_all_fail_at_once():
    def work(n):
        time.sleep(0.05)  # until all have begun: then the error of the first item counts
        raise KeyError(n)

    with MPIExecutor(COMM) as executor:
        try:
            executor.map(work, range(5 * SIZE))
        except BlockError as error:
            assert str(error) == f"0 (rank 0 on {NODE}) failed: KeyError: 0"


def check_an_error_that_cannot_be_pickled():
    class Odd(Exception):
        def __reduce__(self):
            raise TypeError("not me")

    def work(n):
        if n == SIZE - 1:
            raise BlockError(Odd("deep"))
        return n

    with MPIExecutor(COMM) as executor:
        try:
            executor.map(work, range(100))
        except BlockError as error:
            assert "deep" in str(error)
        else:
            raise AssertionError("nobody raised")


def check_rank_0_stops_early():
    with MPIExecutor(COMM, to_all=False) as executor:
        iterator = executor.imap(lambda n: n, range(1000))
        if RANK == 0:
            assert next(iterator) == (0, 0)
            iterator.close()
        else:
            try:
                list(iterator)
            except BlockError as error:
                assert "rank 0 stopped" in str(error)
            else:
                raise AssertionError("rank 0's stop went unnoticed")
        COMM.Barrier()


def check_the_consumer_fails_on_rank_0():
    """As when the disk is full: the error is rank 0's, and the others end with it."""
    try:
        with MPIExecutor(COMM, to_all=False) as executor:
            for _ in executor.imap(lambda n: n, range(1000)):
                raise OSError("disk full")
    except OSError as error:
        assert (RANK, str(error)) == (0, "disk full")
    except BlockError as error:
        assert RANK != 0
        assert "rank 0 stopped" in str(error)
    else:
        raise AssertionError("nobody raised")


def check_messages_of_the_caller_stay_apart():
    """The executor has a communicator of its own."""
    request = COMM.isend("mine", dest=(RANK + 1) % SIZE, tag=1)
    with MPIExecutor(COMM) as executor:
        assert executor.map(operator.neg, range(10)) == [-n for n in range(10)]
    assert COMM.recv(source=(RANK - 1) % SIZE, tag=1) == "mine"
    request.wait()


def check_many_executors():
    for _ in range(100 if SIZE < 3 else 5):
        with MPIExecutor(COMM) as executor:
            executor.map(abs, range(SIZE))


if __name__ == "__main__":
    run_all(globals(), COMM)
