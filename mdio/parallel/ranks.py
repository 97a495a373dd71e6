"""One rank's side of a call of the MPI executor: messages, waiting, and ending together."""

from __future__ import annotations

import fcntl
import math
import os
import sys
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import BlockError, MdioError, error_text
from mdio.core.files.locks import process_identity
from mdio.core.signals import LAUNCHER_READ_S
from mdio.parallel.gather import RowType
from mdio.parallel.pool import as_picklable
from mdio.parallel.sleeping import Backoff, allgather, any_of, duplicate

if TYPE_CHECKING:
    from mpi4py import MPI


RESULT, STOP = 1, 2
"""Tags of messages."""
DONE = -1
"""Instead of an item's number: this rank sends no more results."""
MAX_IN_FLIGHT = 2
"""Results that a rank may have sent without rank 0 having received them."""
SMALL_NBYTES = 1 << 20
"""With `dynamic` more results may be in flight, up to this many bytes in all."""


class ImapState:
    """The state of one call of `MPIExecutor.imap` on one rank.

    `comm`, `grace_s`: those of `MPIExecutor`. `small_nbytes`: any number of results may be in
    flight up to this many bytes. `waits_for_receipt`: whether a rank waits until rank 0 has what it
    sends: large messages move only while their sender calls MPI, not while it works on an item.
    """

    def __init__(
        self, comm: Any, grace_s: float, small_nbytes: int = 0, *, waits_for_receipt: bool = False
    ) -> None:
        self.comm = comm
        self.grace_s = grace_s
        self.small_nbytes = small_nbytes
        self.waits_for_receipt = waits_for_receipt
        self._in_flight: deque[Any] = deque()
        """Requests of messages that this rank has sent and that have not arrived yet."""
        self._sizes: deque[int] = deque()
        """Bytes of each of these messages."""
        self._n_sending: int = comm.size - 1
        """On rank 0: ranks that will send more."""
        self._receiving: list[Any] = []
        self.number = -1
        """Number of the item that failed here."""
        self.error: BaseException | None = None
        self.exit_error: BaseException | None = None
        """The error for which rank 0 leaves early, if it is not an item's."""
        self.sent_stop = False
        self._deadline = float("inf")

    def is_stopped(self) -> bool:
        """Return whether any rank has sent STOP."""
        return self.sent_stop or bool(self.comm.iprobe(tag=STOP))

    def send_stop(self) -> None:
        """Make all ranks stop at their next item; from now on they have `grace_s` to do so."""
        if not self.sent_stop:
            self.sent_stop = True
            self._deadline = time.monotonic() + self.grace_s
            for rank in range(self.comm.size):
                if rank != self.comm.rank:
                    self._in_flight.append(self.comm.isend(None, dest=rank, tag=STOP))
                    self._sizes.append(0)

    def fail(self, number: int, error: BaseException) -> None:
        """Record that item `number` failed here, and make all ranks stop."""
        self.number, self.error = number, error
        self.send_stop()

    def send(self, number: int, result: Any = None) -> None:
        """Send a result to rank 0; waits while too many earlier ones are in flight."""
        from mpi4py import MPI

        data = MPI.pickle.dumps((number, result))  # as `issend` does, with a known size
        self.wait_until(
            lambda: (
                self._n_in_flight() < MAX_IN_FLIGHT
                or sum(self._sizes) + len(data) <= self.small_nbytes
            )
        )
        self._in_flight.append(self.comm.Issend([data, MPI.BYTE], dest=0, tag=RESULT))
        self._sizes.append(len(data))
        if self.waits_for_receipt:
            self.wait_until(lambda: self._n_in_flight() == 0)

    def _n_in_flight(self) -> int:
        while self._in_flight and self._in_flight[0].Test():
            self._in_flight.popleft()
            self._sizes.popleft()
        return len(self._in_flight)

    def received_results(self) -> Iterator[tuple[int, Any]]:
        """Yield the results that have reached rank 0, without waiting."""
        # A large message moves only while its sender calls MPI: `recv` would wait for the sender's
        # next item to end.
        while len(self._receiving) < self.comm.size:
            message = self.comm.improbe(tag=RESULT)
            if message is None:
                break
            self._receiving.append(message.irecv())
        for request in tuple(self._receiving):
            is_complete, content = request.test()
            if is_complete:
                self._receiving.remove(request)
                number, result = content
                if number == DONE:
                    self._n_sending -= 1
                else:
                    yield number, result

    @property
    def n_awaited(self) -> int:
        """Ranks and messages that rank 0 still waits for."""
        return self._n_sending + len(self._receiving)

    def wait_until(self, is_ready: Callable[[], bool]) -> None:
        """Wait; end the program if waiting takes too long after this rank has failed."""
        Backoff().wait_until(is_ready, self._deadline, self._abort)

    def _abort(self) -> NoReturn:
        timeout = BlockError("rank 0 stopped, but others did not in time")
        abort(self.comm, self.error or self.exit_error or timeout)

    def finish(self) -> tuple[BaseException | None, bool, bool]:
        """End the run on all ranks together.

        Returns the error of the first item that failed, if any, whether it is this rank's, and
        whether any rank sent STOP.
        """
        if self.comm.rank == 0:
            self.wait_until(self._received_all)
        else:
            self.send(DONE)
        self.wait_until(lambda: self._n_in_flight() == 0)
        if not any_of(self.comm, self.error is not None or self.sent_stop, self.wait_until):
            return None, False, False
        error, is_own, sent_stop = _first_error(self.comm, self.number, self.error, self.sent_stop)
        for rank in range(self.comm.size):
            if sent_stop[rank] and rank != self.comm.rank:
                self.comm.recv(source=rank, tag=STOP)
        return error, is_own, any(sent_stop)

    def _received_all(self) -> bool:
        for _ in self.received_results():
            pass
        return self.n_awaited == 0


def abort(comm: Any, error: BaseException) -> NoReturn:
    """Print the error and end the whole program."""
    from mpi4py import MPI

    text, code = " ".join(str(error).split()) or type(error).__name__, 1
    if isinstance(error, Exception) and not isinstance(error, MdioError):  # of the user's program
        traceback.print_exception(error)
        text = error_text(error)
    if isinstance(error, KeyboardInterrupt):
        text, code = "interrupted", 130
    elif isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) and error.code else 1
        text = "ended by a signal" if code > 128 else f"ended with exit code {text}"
    if not isinstance(error, Exception):
        text = "; ".join((text, *getattr(error, "__notes__", ())))
    sys.stderr.write(f"mdio: {text} (rank {comm.rank} ends the program)\n")
    sys.stderr.flush()
    time.sleep(LAUNCHER_READ_S)
    # On other communicators MPICH 4.0.2 ends this rank alone, and the others wait for ever.
    MPI.COMM_WORLD.Abort(code)
    raise error  # not reached: Abort does not return


def _first_error(
    comm: Any, number: int, error: BaseException | None, flag: bool
) -> tuple[BaseException | None, bool, list[bool]]:
    """Return the error with the lowest number of any rank, the same on all (collective).

    Also whether it is this rank's own, and the `flag` of each rank, whatever the caller means by
    it. The error of another rank has its traceback, which is not pickled, as a note.
    """
    traceback_text = traceback.format_exception(error) if isinstance(error, Exception) else ()
    outcomes = allgather(comm, (number, as_picklable(error), "".join(traceback_text), flag))
    flags = [flag for *_, flag in outcomes]
    ranks = [rank for rank, (_, error, *_) in enumerate(outcomes) if error is not None]
    if not ranks:
        return None, False, flags
    rank = min(ranks, key=lambda rank: int(outcomes[rank][0]))
    first_number, first_error, text, _ = outcomes[rank]
    if error is not None and number == first_number:
        return error, True, flags
    if text:
        first_error.add_note(f"On rank {rank}:\n{text}")
    return first_error, False, flags


GRACE_S = 5.0
"""How long a rank that has failed waits for the others before it ends the program."""


class Agreement:
    """Lets ranks agree whether to continue (collective calls, in the same order on all ranks).

    `files_to_remove`: returns the files to remove before the program is ended, the output's own
    first, and a text for the message on those that are kept; both may be empty.
    """

    def __init__(
        self, comm: Any, files_to_remove: Callable[[], tuple[Sequence[Path], str]]
    ) -> None:
        self._comm = duplicate(comm)
        self._files_to_remove = files_to_remove

    def reach(
        self, error: BaseException | None = None, *, number: int = 0, must_end_program: bool = False
    ) -> None:
        """Return on all ranks if none has failed; otherwise raise the same error on all.

        `error`: that of this rank, if it has failed. `number`: of the failed item; of several
        errors, that with the lowest number is raised.
        `must_end_program`: it failed within a collective call, so that no rank can go on.
        """
        deadline = time.monotonic() + GRACE_S

        def wait(is_ready: Callable[[], bool]) -> None:
            on_timeout = None if error is None else partial(self._end_program, error, is_own=True)
            Backoff().wait_until(is_ready, deadline, on_timeout)

        if not any_of(self._comm, error is not None, wait):
            return
        first_error, is_own, must_end = _first_error(self._comm, number, error, must_end_program)
        assert first_error is not None
        if any(must_end):
            self._end_program(first_error, is_own)
        raise first_error

    def close(self) -> None:
        """Free the communicator (collective)."""
        self._comm.Free()

    def _end_program(self, error: BaseException, is_own: bool) -> NoReturn:
        """Remove unfinished files, print the error once, and end the whole program."""
        from mpi4py import MPI

        unfinished, advice = self._files_to_remove()
        reports = is_own and not unfinished
        for number, path in enumerate(unfinished):
            try:
                path.unlink()
                reports = reports or number == 0
            except OSError:  # another rank removed it, or it was never made
                continue
        if reports:
            abort(self._comm, BlockError(f"{error}; {advice}") if advice else error)
        time.sleep(4 * LAUNCHER_READ_S)  # until the rank that removed the first file has printed it
        sys.stderr.flush()
        MPI.COMM_WORLD.Abort(1)
        raise error  # not reached: Abort does not return


Item = TypeVar("Item")
COUNTER_NBYTES = 8


class WorkQueue:
    """A counter that the ranks of a node share, from which each takes its next item (collective).

    Attributes: `is_usable`: whether the counter works on all nodes. It does not if ranks of one
    node have different temporary folders, or files there cannot be locked; then each rank takes
    every n-th item.

    `comm`: an mpi4py intracommunicator.
    """

    def __init__(self, comm: Any) -> None:
        self._rank, self._size = comm.rank, comm.size
        # Processes of one running kernel can lock a file together.
        boot = process_identity(os.getpid())["boot"]
        nodes = allgather(comm, (os.uname().nodename, boot))
        self._ranks = [rank for rank, node in enumerate(nodes) if node == nodes[comm.rank]]
        is_first, name = comm.rank == self._ranks[0], ""
        if is_first:
            with suppress(OSError):
                descriptor, name = tempfile.mkstemp(prefix="mdio-ranks-")
                os.close(descriptor)
        name = allgather(comm, name)[self._ranks[0]]
        # Opened by each rank: a lock belongs to an open file, not to a process.
        self._descriptor = self._open(name) if name else -1
        self.is_usable = all(allgather(comm, self._descriptor >= 0))
        if name and is_first:
            Path(name).unlink()
        self._n_calls = 0

    def _open(self, name: str) -> int:
        """Return a descriptor of the counter's file; -1 where it cannot be opened, or locked."""
        try:
            descriptor = os.open(name, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return -1
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        except OSError:
            os.close(descriptor)
            return -1
        return descriptor

    def items(self, items: Iterable[Item]) -> Iterator[tuple[int, Item]]:
        """Return this rank's items with their numbers; only if the queue `is_usable`.

        Each call has its own counter, 0 at first, so that no rank has to wait for another.
        """
        self._n_calls += 1
        return self._items_of_rank(
            (pair for pair in enumerate(items) if pair[0] % self._size in self._ranks),
            COUNTER_NBYTES * self._n_calls,
        )

    def _items_of_rank(
        self, items_of_node: Iterator[tuple[int, Item]], offset: int
    ) -> Iterator[tuple[int, Item]]:
        index, n_passed = self._ranks.index(self._rank), 0
        while (pair := next(islice(items_of_node, index - n_passed, None), None)) is not None:
            yield pair
            n_passed, index = index + 1, len(self._ranks) + self._take_count(offset)

    def _take_count(self, offset: int) -> int:
        """Return the counter at a byte of the file, and increment it."""
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        try:
            count = int.from_bytes(os.pread(self._descriptor, COUNTER_NBYTES, offset), "little")
            os.pwrite(self._descriptor, (count + 1).to_bytes(COUNTER_NBYTES, "little"), offset)
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        return count

    def close(self) -> None:
        """Close the counter."""
        if self._descriptor >= 0:
            os.close(self._descriptor)


PIECE_NBYTES = 1 << 30
"""Bytes from one rank to another in one call: some MPIs fail beyond 2 GiB."""


def exchange_rows(rows: NDArray[Any], counts: Sequence[int], comm: MPI.Intracomm) -> NDArray[Any]:
    """Send rows to all ranks and return the rows received (collective; Alltoallv).

    `rows`, (n, ...): C-contiguous, those for rank 0 first; of one kind on all ranks. `counts`: rows
    for each rank. Returns them in order of rank, and of sending.
    """
    row = RowType(rows.shape[1:], rows.dtype)
    incoming_counts = np.empty(comm.size, np.int64)
    Backoff().wait_until(comm.Ialltoall(np.array(counts, np.int64), incoming_counts).Test)
    out = row.empty(int(incoming_counts.sum()))
    max_rows = max(1, PIECE_NBYTES // max(1, row.nbytes))
    n_pieces = max(allgather(comm, math.ceil(max(counts) / max_rows)))
    for piece in range(n_pieces if row.nbytes else 0):
        outgoing, received = (
            [*row.message(array)[:1], *_piece(n_rows, piece * max_rows, max_rows), row.datatype]
            for array, n_rows in ((rows, counts), (out, incoming_counts.tolist()))
        )
        Backoff().wait_until(comm.Ialltoallv(outgoing, received).Test)
    row.free()
    return out


def _piece(counts: Sequence[int], n_sent: int, max_rows: int) -> tuple[list[int], list[int]]:
    """Return how many rows of each rank are sent next, and where they begin.

    `counts`: rows of each rank in all. `n_sent`: how many of each have been sent.
    """
    first_rows = np.cumsum([0, *counts])[:-1].tolist()
    next_counts = [min(max_rows, max(0, count - n_sent)) for count in counts]
    starts = [first + min(n_sent, count) for first, count in zip(first_rows, counts, strict=True)]
    return next_counts, starts
