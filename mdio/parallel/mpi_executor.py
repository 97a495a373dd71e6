"""Work on the ranks of an MPI program: every rank makes the same calls and does its share.

Ranks do not ask for work, they know which items are theirs; results go to rank 0 as they are made.
What takes care here is failure. An MPI program in which one rank raises and the others wait hangs
until its time is up, so a rank that fails tells all others, every rank leaves at its next item, and
all raise the same error. Where some rank is too long at one item for that, the program is ended
from the failing rank, after the message is out.
"""

from __future__ import annotations

import itertools
import pickle
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, NoReturn, TypeVar

from mdio.core.errors import BlockError
from mdio.parallel.executors import Executor, item_error

__all__ = ["MPIExecutor"]

Item = TypeVar("Item")
Result = TypeVar("Result")

RESULT, STOP = 1, 2
"""Tags of messages."""
DONE = -1
"""In place of an item's number: this rank sends no more results."""
UNDER_WAY = 2
"""Results that a rank may have made and rank 0 not yet taken."""
LONGEST_NAP_S = 0.005
FORWARD_S = 0.5
"""Launchers drop what they have not yet read of a rank's messages when the program is ended."""


class _Nap:
    """Sleeps ever longer, so that waiting ranks leave the cores to those that work."""

    def __init__(self) -> None:
        self._seconds = 1e-5

    def take(self) -> None:
        time.sleep(self._seconds)
        self._seconds = min(2 * self._seconds, LONGEST_NAP_S)


class _Run:
    """What one rank knows of one call of `MPIExecutor.imap`."""

    def __init__(self, comm: Any, grace_s: float) -> None:
        self.comm = comm
        self.grace_s = grace_s
        self.sent: deque[Any] = deque()
        self.n_working: int = comm.size - 1
        """Other ranks that have not said DONE (known on rank 0)."""
        self.number = -1
        self.error: BaseException | None = None
        self.has_told = False
        self._deadline = float("inf")

    def stopped(self) -> bool:
        """Return whether this or another rank has told all to stop."""
        return self.has_told or bool(self.comm.iprobe(tag=STOP))

    def tell_stop(self) -> None:
        if not self.has_told:
            self.has_told = True
            self._deadline = time.monotonic() + self.grace_s
            for rank in range(self.comm.size):
                if rank != self.comm.rank:
                    self.sent.append(self.comm.isend(None, dest=rank, tag=STOP))

    def fail(self, number: int, error: BaseException) -> None:
        self.number, self.error = number, error
        self.tell_stop()

    def send(self, number: int, result: Any = None) -> None:
        """Send a result to rank 0; waits while it has not taken earlier ones."""
        self.wait_until(lambda: self._n_sent() < UNDER_WAY)
        self.sent.append(self.comm.issend((number, result), dest=0, tag=RESULT))

    def _n_sent(self) -> int:
        while self.sent and self.sent[0].Test():
            self.sent.popleft()
        return len(self.sent)

    def arrived(self) -> Iterator[tuple[int, Any]]:
        """Take what has come to rank 0, without waiting."""
        while (message := self.comm.improbe(tag=RESULT)) is not None:
            number, result = message.recv()
            if number == DONE:
                self.n_working -= 1
            else:
                yield number, result

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Wait; end the program if that takes too long after this rank has failed."""
        nap = _Nap()
        while not ready():
            if time.monotonic() > self._deadline:
                self._abort()
            nap.take()

    def _abort(self) -> NoReturn:
        _abort(self.comm, self.error or BlockError("rank 0 stopped, but others did not in time"))

    def settle(self) -> list[tuple[int, BaseException | None, bool]]:
        """End the run on all ranks together; return each rank's (number, error, has told)."""
        if self.comm.rank == 0:
            self.wait_until(self._drained)
        else:
            self.send(DONE)
        self.wait_until(lambda: self._n_sent() == 0)
        self.wait_until(self.comm.Ibarrier().Test)
        mine = (self.number, _picklable(self.error), self.has_told)
        outcomes: list[tuple[int, BaseException | None, bool]] = self.comm.allgather(mine)
        for rank, (_, _, told) in enumerate(outcomes):
            if told and rank != self.comm.rank:
                self.comm.recv(source=rank, tag=STOP)
        return outcomes

    def _drained(self) -> bool:
        for _ in self.arrived():
            pass
        return self.n_working == 0


def _picklable(error: BaseException | None) -> BaseException | None:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # whatever a foreign exception's pickling may raise
        return BlockError(" ".join(f"{type(error).__name__}: {error}".split()))
    return error


def _abort(comm: Any, error: BaseException) -> NoReturn:
    """Say what happened and end the whole program."""
    from mpi4py import MPI

    text = " ".join(str(error).split()) or type(error).__name__
    sys.stderr.write(f"mdio: {text} (rank {comm.rank} ends the program)\n")
    sys.stderr.flush()
    time.sleep(FORWARD_S)
    # On other communicators MPICH 4.0.2 ends this rank alone, and the others wait for ever.
    MPI.COMM_WORLD.Abort(1)
    raise error  # not reached: Abort does not return


class MPIExecutor(Executor):
    """Runs items on the ranks of a communicator (SPMD: all ranks make the same calls).

    A context manager. With it, an error that only some ranks meet outside of `imap` ends all of
    them too.

    Parameters
    ----------
    comm
        An mpi4py intracommunicator; it is duplicated, so messages never mix with the caller's.
    to_all
        Whether all ranks get all results, or only rank 0 does (then `imap` yields nothing on the
        others, and results need not fit in memory together).
    contiguous
        Give each rank neighbouring items, not every n-th; `items` must end then.
    grace_s
        How long ranks may take to leave after one has failed, before the program is ended.
    """

    name = "mpi"

    def __init__(
        self, comm: Any, *, to_all: bool = True, contiguous: bool = False, grace_s: float = 5.0
    ) -> None:
        self._comm, self._exit_comm = comm.Dup(), comm.Dup()
        self._to_all = to_all
        self._contiguous = contiguous
        self._grace_s = grace_s
        self._active: Iterator[Any] | None = None

    @property
    def n_workers(self) -> int:
        """Number of ranks."""
        return int(self._comm.size)

    @property
    def rank(self) -> int:
        """Number of this rank."""
        return int(self._comm.rank)

    @property
    def comm(self) -> Any:
        """The executor's own communicator: free for collective calls outside of `imap`."""
        return self._comm

    @property
    def to_all(self) -> bool:
        """Whether all ranks get all results."""
        return self._to_all

    @property
    def is_owner(self) -> bool:
        """Whether this is rank 0."""
        return bool(self._comm.rank == 0)

    def from_owner(self, make: Callable[[], Result]) -> Result:
        """Return on every rank what `make` returns on rank 0, or raise what it raises there."""
        outcome: tuple[Result | None, BaseException | None] = (None, None)
        error: Exception | None = None
        if self.is_owner:
            try:
                outcome = (make(), None)
            except Exception as caught:
                error = caught
                outcome = (None, _picklable(caught))
        result, failure = self._comm.bcast(outcome)
        if failure is not None:
            raise error or failure
        return result  # type: ignore[no-any-return]

    def imap(
        self,
        func: Callable[[Item], Result],
        items: Iterable[Item],
        *,
        describe: Callable[[Item], str] = str,
    ) -> Iterator[tuple[int, Result]]:
        """Yield results as they arrive, on rank 0; see `Executor.imap` and `to_all`.

        Every rank must go through the iterator. `items` must be the same on all. When an item
        fails, or the iterator is closed on rank 0 before its end, all ranks raise; the message is
        that of the first item that failed, on every rank.
        """
        self._active = iterator = self._imap(func, items, describe)
        return iterator

    def _share(self, items: Iterable[Item]) -> Iterator[tuple[int, Item]]:
        numbered = enumerate(items)
        rank, size = self._comm.rank, self._comm.size
        if not self._contiguous:
            return itertools.islice(numbered, rank, None, size)
        pairs = list(numbered)
        return iter(pairs[len(pairs) * rank // size : len(pairs) * (rank + 1) // size])

    def _imap(
        self,
        func: Callable[[Item], Result],
        items: Iterable[Item],
        describe: Callable[[Item], str],
    ) -> Iterator[tuple[int, Result]]:
        run = _Run(self._comm, self._grace_s)
        kept: list[tuple[int, Result]] = []
        try:
            for number, result in self._results(run, func, items, describe):
                if self._to_all:
                    kept.append((number, result))
                yield number, result
        except GeneratorExit:
            run.tell_stop()
            run.settle()
            raise
        outcomes = run.settle()
        self._raise_first(run, outcomes)
        if self._to_all:
            every = self._comm.bcast(kept if self._comm.rank == 0 else None)
            if self._comm.rank != 0:
                yield from every

    def _results(
        self,
        run: _Run,
        func: Callable[[Item], Result],
        items: Iterable[Item],
        describe: Callable[[Item], str],
    ) -> Iterator[tuple[int, Result]]:
        """Do this rank's share; yield all ranks' results on rank 0, nothing elsewhere."""
        is_root = self._comm.rank == 0
        for number, item in self._share(items):
            if run.stopped():
                return
            try:
                result = func(item)
            except Exception as cause:
                error = item_error(describe(item), cause)
                if error is not cause:
                    error.__cause__ = cause
                run.fail(number, error)
                return
            except BaseException as cause:
                _abort(self._comm, cause)
            if is_root:
                yield number, result
                yield from run.arrived()
            else:
                run.send(number, result)
        nap = _Nap()
        while is_root and run.n_working > 0 and not run.stopped():
            for number, other in run.arrived():
                yield number, other
                nap = _Nap()
            nap.take()

    @staticmethod
    def _raise_first(run: _Run, outcomes: list[tuple[int, BaseException | None, bool]]) -> None:
        failed = [(number, error) for number, error, _ in outcomes if error is not None]
        if failed:
            number, first = min(failed, key=lambda pair: pair[0])
            raise run.error if number == run.number and run.error is not None else first
        if any(told for _, _, told in outcomes):
            raise BlockError("rank 0 stopped before the work was done; its message says why")

    def close(self) -> None:
        """End the work of an iterator that was left unfinished (all ranks)."""
        active, self._active = self._active, None
        if active is not None:
            active.close()  # type: ignore[attr-defined]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Wait for the other ranks; if this one leaves by an error and they do not, end them."""
        self.close()
        barrier, nap = self._exit_comm.Ibarrier(), _Nap()
        deadline = time.monotonic() + self._grace_s
        while not barrier.Test():
            if error is not None and time.monotonic() > deadline:
                _abort(self._exit_comm, error)
            nap.take()
        self._comm.Free()
        self._exit_comm.Free()
