"""Executors: order, bounds, failures, killed workers, interrupts."""

import errno
import itertools
import multiprocessing
import os
import signal
import socket
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from mdio.core.errors import BlockError, MdioError, OutputError, PlanError, SourceError
from mdio.core.stalls import lost_storage_text
from mdio.parallel.executors import Executor, Processes, Serial, available_cores


def square(x):
    return x * x


class Stateful:
    """Counts its calls in one process; what it counted does not travel."""

    def __init__(self):
        self.calls = 0

    def __getstate__(self):
        return {"calls": 0}

    def __call__(self, item):
        self.calls += 1
        return os.getpid(), self.calls


def boom_at_five(x):
    if x == 5:
        raise ValueError("five is\nright out")
    return x


def damaged(x):
    raise SourceError("a.xtc: truncated")


def already_named(x):
    raise BlockError("frames 0:3: wrong shape")


class Unpicklable(Exception):
    def __init__(self, a, b):
        super().__init__(a)


def raise_unpicklable(x):
    raise Unpicklable("odd", 2)


def kill_self(x):
    if x == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.01)
    return x


def exit_hard(x):
    os._exit(7)


def exit_soft(x):
    sys.exit(3)


def state_of(pid):
    """Return what the process does: R runs or may run, S waits, Z has ended."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


class DiesWhileSending:
    """Gives a large result whose worker is killed before all of it is sent."""

    def __init__(self, go):
        self.go = go

    def __call__(self, x):
        if x == 1:
            while not self.go.exists():
                time.sleep(0.01)
            pid = os.getpid()
            if os.fork() == 0:
                n_waits = 0
                while n_waits < 5:  # until it waits for someone to read
                    time.sleep(0.02)
                    n_waits = n_waits + 1 if state_of(pid) == "S" else 0
                os.kill(pid, signal.SIGKILL)
                os._exit(0)
        return np.zeros(1 << 22)


def slow(x):
    time.sleep(60)


def big(n):
    return {"a": np.arange(n), "b": np.arange(n, dtype=np.float32).reshape(-1, 2)[:, ::-1], "n": n}


def unpicklable_result(x):
    return lambda: x


EXECUTORS = [Serial(), Processes(1), Processes(2), Processes(5)]
ids = [f"{e.name}{e.n_workers}" for e in EXECUTORS]


@pytest.fixture(autouse=True)
def no_workers_left():
    yield
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("executor", EXECUTORS, ids=ids)
class TestAll:
    def test_map_keeps_order(self, executor):
        assert executor.map(square, range(50)) == [x * x for x in range(50)]

    def test_imap_numbers_items(self, executor):
        got = list(executor.imap(square, iter([3, 1, 2])))
        assert sorted(got) == [(0, 9), (1, 1), (2, 4)]

    def test_no_items(self, executor):
        assert executor.map(square, []) == []

    def test_fewer_items_than_workers(self, executor):
        assert executor.map(square, [4]) == [16]

    def test_endless_generator_is_taken_as_needed(self, executor):
        taken = []

        def endless():
            for i in itertools.count():
                taken.append(i)
                yield i

        iterator = executor.imap(square, endless())
        for n_yielded in range(1, 20):
            next(iterator)
            assert len(taken) <= n_yielded + executor.n_workers + 2
        iterator.close()

    def test_arrays_survive(self, executor):
        for n, got in zip([0, 10, 300_000], executor.map(big, [0, 10, 300_000]), strict=True):
            want = big(n)
            assert got["n"] == n
            for key in "ab":
                assert got[key].dtype == want[key].dtype
                assert np.array_equal(got[key], want[key])
                assert got[key].flags.writeable

    def test_failure_names_item_and_cause(self, executor):
        with pytest.raises(
            BlockError, match=r"^item 5 failed: ValueError: five is right out$"
        ) as e:
            executor.map(boom_at_five, range(100), describe=lambda x: f"item {x}")
        assert isinstance(e.value.__cause__, ValueError)

    def test_errors_of_mdio_keep_their_class(self, executor):
        with pytest.raises(SourceError, match=r"^7: a.xtc: truncated$") as e:
            executor.map(damaged, [7])
        assert isinstance(e.value.__cause__, SourceError)

    def test_block_errors_stay_as_they_are(self, executor):
        with pytest.raises(BlockError) as e:
            executor.map(already_named, [7])
        assert str(e.value) == "frames 0:3: wrong shape"

    def test_failing_generator(self, executor):
        def items():
            yield 1
            yield 2
            raise OutputError("disk full")

        with pytest.raises(OutputError, match="disk full"):
            executor.map(square, items())

    def test_usable_again_after_failure(self, executor):
        with pytest.raises(MdioError):
            executor.map(boom_at_five, range(9))
        assert executor.map(square, [2]) == [4]

    def test_unpicklable_exception(self, executor):
        with pytest.raises(BlockError, match=r"^0 failed: Unpicklable: odd$"):
            executor.map(raise_unpicklable, [0])

    def test_context_manager_ends_workers(self, executor):
        with executor as same:
            assert isinstance(same, Executor)
            iterator = same.imap(square, itertools.count())
            next(iterator)
        assert multiprocessing.active_children() == []


def test_function_travels_once_and_keeps_its_state():
    seen = Processes(2).map(Stateful(), range(40))
    assert os.getpid() not in {pid for pid, _ in seen}
    for pid in {pid for pid, _ in seen}:
        calls = sorted(n for p, n in seen if p == pid)
        assert calls == list(range(1, len(calls) + 1))


def test_oldest_result_first():
    """No finished result waits while those of other workers are taken."""
    numbers = []
    for number, _ in Processes(3).imap(square, range(30)):
        numbers.append(number)
        workers = [child.pid for child in multiprocessing.active_children()]
        while any(state_of(pid) == "R" for pid in workers):
            time.sleep(0.001)
    assert sorted(numbers) == list(range(30))
    assert max(abs(at - number) for at, number in enumerate(numbers)) < 12


@pytest.mark.parametrize("n", [1, 2, 4])
def test_killed_worker_is_reported_at_once(n):
    start = time.monotonic()
    with pytest.raises(BlockError, match=r"frames 3: .*|frames 3 failed: .*SIGKILL.*memory"):
        Processes(n).map(kill_self, range(10_000), describe=lambda x: f"frames {x}")
    assert time.monotonic() - start < 20


def test_worker_killed_in_the_middle_of_a_result(tmp_path):
    iterator = Processes(2).imap(DiesWhileSending(tmp_path / "go"), range(2))
    next(iterator)
    workers = [child.pid for child in multiprocessing.active_children()]
    (tmp_path / "go").touch()
    while all(state_of(pid) != "Z" for pid in workers):
        time.sleep(0.01)
    with pytest.raises(BlockError, match="SIGKILL"):
        list(iterator)


@pytest.mark.parametrize(
    ("func", "says"), [(exit_hard, "exit code 7"), (exit_soft, "SystemExit: 3")]
)
def test_worker_that_leaves(func, says):
    with pytest.raises(BlockError, match=says):
        Processes(2).map(func, range(4))


def test_function_that_does_not_pickle():
    with pytest.raises(PlanError, match="top of a module"):
        Processes(2).map(lambda x: x, [1])


def test_result_that_does_not_pickle():
    told = "PicklingError" if sys.version_info >= (3, 14) else "AttributeError"
    with pytest.raises(
        BlockError, match=rf"^1 failed: TypeError: its result cannot be pickled: {told}"
    ):
        Processes(2).map(unpicklable_result, [1])


def test_number_of_workers():
    assert Processes().n_workers == available_cores() == len(os.sched_getaffinity(0))
    with pytest.raises(PlanError, match="0 worker"):
        Processes(0)


def test_failure_ends_long_work_at_once():
    start = time.monotonic()
    with pytest.raises(BlockError):
        Processes(2).map(sleep_or_fail, [60, -1])
    assert time.monotonic() - start < 20


def sleep_or_fail(seconds):
    time.sleep(seconds)


def test_lost_storage_names_the_machine():
    lost, full = OSError(errno.ENOTCONN, "gone"), OSError(errno.ENOSPC, "full")
    for cause, expected in ((lost, f" on {socket.gethostname()}"), (full, "")):
        error = BlockError("block 2")
        error.__cause__ = cause
        assert lost_storage_text(error) == expected
