"""Work on the ranks of an MPI program: every rank makes the same calls and does its share.

Ranks do not ask each other for work: each knows its items, or takes them from a counter that the
ranks of a node share (`mdio.parallel.ranks`); results go to rank 0 as they are made. Most of the
code is about failure: an MPI program in which one rank raises and the others wait would hang. So a
rank that fails notifies all others, every rank leaves at its next item, and all raise the same
error. If a rank takes too long at one item, the failing rank prints its message and ends all ranks.
"""

from __future__ import annotations

import itertools
import os
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from os import PathLike
from typing import Any, Self, TypeVar, cast

import numpy as np

from mdio.core.errors import BlockError, PlanError
from mdio.core.signals import LAUNCHER_READ_S, raise_received_signal
from mdio.parallel.executors import Executor, item_error, with_prefetch
from mdio.parallel.pool import as_picklable
from mdio.parallel.ranks import GRACE_S, SMALL_NBYTES, ImapState, WorkQueue, abort
from mdio.parallel.sleeping import Backoff, allgather, bcast, duplicate

Item = TypeVar("Item")
Result = TypeVar("Result")

SIGNAL_GRACE_S = 2.0
"""How long a rank that a signal ends waits for the others."""


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
    grace_s
        How long ranks may take to leave after one has failed, before the program is ended.

    Examples
    --------
    Every rank of ``mpiexec -n 2 python program.py`` runs this:

    >>> import mdio
    >>> from MDAnalysisTests.datafiles import DCD, PSF
    >>> from mpi4py import MPI
    >>> with mdio.MPIExecutor(MPI.COMM_WORLD) as executor:
    ...     result = mdio.analyze(DCD, top=PSF, kernel=mdio.RMSD("name CA"), executor=executor)
    >>> result.n_frames
    98
    """

    name = "mpi"
    allows_buffer_reuse = True
    ranks = property(lambda self: self)

    def __init__(self, comm: Any, *, to_all: bool = True, grace_s: float = GRACE_S) -> None:
        self._comm, self._exit_comm = duplicate(comm), duplicate(comm)
        self.to_all = to_all
        """Whether all ranks get all results."""
        self._grace_s = grace_s
        self._active_results: Iterator[Any] | None = None
        self._queue: WorkQueue | None = None
        self._is_entered = False
        self._exit_error: BaseException | None = None
        """The error by which this rank leaves."""
        self._remote_error: BaseException | None = None
        """The error of another rank that was raised here, too."""

    @property
    def n_workers(self) -> int:
        """Number of ranks."""
        return int(self._comm.size)

    @property
    def rank(self) -> int:
        """Number of this rank."""
        return int(self._comm.rank)

    @property
    def place_text(self) -> str:
        """`` (rank 2 on node7)``, for messages."""
        return f" (rank {self.rank} on {os.uname().nodename})"

    @property
    def comm(self) -> Any:
        """The executor's own communicator: free for collective calls outside of `imap`."""
        return self._comm

    @property
    def is_owner(self) -> bool:
        """Whether this is rank 0."""
        return bool(self._comm.rank == 0)

    def agree(self, function: str, *paths: Any) -> None:
        """Check that all ranks call `function` on the same paths; raises PlanError."""
        path_arguments = (path for path in paths if isinstance(path, str | PathLike))
        call = f"{function}({', '.join(map(str, path_arguments))})"
        own_sum, sums = np.array([zlib.crc32(call.encode())]), np.empty(self._comm.size, np.int64)
        Backoff().wait_until(self._comm.Iallgather(own_sum, sums).Test)
        if (sums != sums[0]).any():
            calls = allgather(self._comm, call)
            differing_rank = next(rank for rank, call in enumerate(calls) if call != calls[0])
            raise PlanError(
                f"rank 0 calls {calls[0]}, and rank {differing_rank} {calls[differing_rank]}: all "
                "ranks of an MPIExecutor make the same calls in the same order; for work of their "
                "own, give them executors of their own"
            )

    def from_owner(self, make: Callable[[], Result]) -> Result:
        """Return on every rank the result of `make` on rank 0, or raise its error."""
        outcome: tuple[Result | None, BaseException | None] = (None, None)
        error: Exception | None = None
        if self.is_owner:
            try:
                outcome = (make(), None)
            except Exception as caught:
                error = caught
                outcome = (None, as_picklable(caught))
        result, failure = bcast(self._comm, outcome)
        if failure is not None:
            raise error or failure
        return cast(Result, result)

    def imap(
        self,
        func: Callable[[Item], Result],
        items: Iterable[Item],
        *,
        describe: Callable[[Item], str] = str,
        dynamic: bool = False,
        has_own_items: bool = False,
        owner_takes_items: bool = True,
        to_all: bool | None = None,
    ) -> Iterator[tuple[int, Result]]:
        """Yield results as they arrive, on rank 0; see `Executor.imap` and `to_all`.

        Every rank must exhaust the iterator. `items` must be the same on all. When an item
        fails, or the iterator is closed on rank 0 before its end, all ranks raise; the message is
        that of the first item that failed, on every rank.

        With `dynamic` each rank of a node takes the node's next item when it is free, and small
        results do not wait while rank 0 works on an item.

        With `has_own_items` each rank passes its own items, tuples that begin with a unique number,
        which identifies the result.

        Without `owner_takes_items` rank 0, unless it is the only rank, leaves all items to the
        others and only receives results.

        `to_all`: whether all ranks get all results; by default as the executor does.
        """
        dynamic = dynamic and owner_takes_items
        to_all = self.to_all if to_all is None else to_all
        small_nbytes = SMALL_NBYTES if dynamic else 0
        state = ImapState(
            self._comm, self._grace_s, small_nbytes, waits_for_receipt=not owner_takes_items
        )
        share: Iterator[tuple[int, Item]]
        if has_own_items:
            share = ((cast(Any, item)[0], item) for item in items)
        else:
            share = self._share(func, items, dynamic, owner_takes_items)
        results = self._results(state, func, share, describe)
        self._active_results = self._agreed_results(state, results, to_all=to_all)
        return self._active_results

    def _share(
        self,
        func: Callable[[Item], Result],
        items: Iterable[Item],
        dynamic: bool,
        owner_takes_items: bool,
    ) -> Iterator[tuple[int, Item]]:
        """Return the items that this rank works on, with their numbers."""
        if dynamic and self._comm.size > 1:
            if self._queue is None:
                self._queue = WorkQueue(self._comm)
            if self._queue.is_usable:
                return self._queue.items(items)
        numbered = enumerate(items)
        rank, size = self._comm.rank, self._comm.size
        if size > 1 and not owner_takes_items:
            share = itertools.islice(numbered, max(rank - 1, 0), None, size - 1)
            return with_prefetch(func, share if rank > 0 else ())
        return with_prefetch(func, itertools.islice(numbered, rank, None, size))

    def _agreed_results(
        self, state: ImapState, results: Iterator[tuple[int, Result]], *, to_all: bool
    ) -> Iterator[tuple[int, Result]]:
        """Yield results; in the end, raise the same error on all ranks if any of them failed."""
        sent_results: list[tuple[int, Result]] = []
        try:
            for number, result in results:
                if to_all:
                    sent_results.append((number, result))
                yield number, result
        except GeneratorExit:
            state.exit_error, state.grace_s = self._exit_error, self._grace_s
            state.send_stop()
            state.finish()
            raise
        error, is_own, is_stopped = state.finish()
        if error is not None:
            self._remote_error = self._remote_error if is_own else error
            raise error
        if is_stopped:
            raise BlockError("rank 0 stopped before the work was done; its message says why")
        if to_all:
            all_results = bcast(self._comm, sent_results if self._comm.rank == 0 else None)
            if self._comm.rank != 0:
                yield from all_results

    def _results(
        self,
        state: ImapState,
        func: Callable[[Item], Result],
        share: Iterable[tuple[int, Item]],
        describe: Callable[[Item], str],
    ) -> Iterator[tuple[int, Result]]:
        """Do this rank's share; yield all ranks' results on rank 0, nothing elsewhere."""
        is_root = self._comm.rank == 0
        for number, item in share:
            if state.is_stopped():
                return
            try:
                raise_received_signal()
                result = func(item)
            except Exception as cause:
                state.fail(number, item_error(f"{describe(item)}{self.place_text}", cause))
                return
            except BaseException as cause:
                if is_root and self._is_entered:
                    raise  # `__exit__` ends the others, after resumable work is reported
                abort(self._comm, cause)
            if is_root:
                yield number, result
                yield from state.received_results()
            else:
                state.send(number, result)
        backoff = Backoff()
        while is_root and state.n_awaited > 0 and not state.is_stopped():
            for number_and_result in state.received_results():
                yield number_and_result
                backoff = Backoff()
            raise_received_signal()
            backoff.sleep()

    def close(self) -> None:
        """End the work of an iterator that was left unfinished (all ranks)."""
        results, self._active_results = self._active_results, None
        if results is not None:
            results.close()  # type: ignore[attr-defined]

    def __enter__(self) -> Self:
        self._is_entered = True
        return self

    def __exit__(self, *failure: Any) -> None:
        """Wait for the other ranks; if this one leaves by an error and they do not, end them."""
        self._exit_error = failure[1]
        if isinstance(self._exit_error, SystemExit | KeyboardInterrupt):  # little time may be left
            self._grace_s = min(SIGNAL_GRACE_S, self._grace_s)
        self.close()
        deadline = time.monotonic() + self._grace_s
        if self._remote_error is not None:  # the failed rank reports first, else another
            deadline += 2 * LAUNCHER_READ_S * (1 + self.rank)
        on_timeout = (
            None if self._exit_error is None else partial(abort, self._exit_comm, self._exit_error)
        )
        Backoff().wait_until(self._exit_comm.Ibarrier().Test, deadline, on_timeout)
        if self._queue is not None:
            self._queue.close()
            self._queue = None
        self._comm.Free()
        self._exit_comm.Free()
