"""One call of the MPI executor as one rank sees it: messages, waiting, and ending together."""

from __future__ import annotations

import fcntl
import math
import os
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import BlockError
from mdio.parallel.gather import RowType
from mdio.parallel.pool import picklable
from mdio.parallel.sleeping import Nap, any_of

if TYPE_CHECKING:
    from mpi4py import MPI


RESULT, STOP = 1, 2
"""Tags of messages."""
DONE = -1
"""In place of an item's number: this rank sends no more results."""
UNDER_WAY = 2
"""Results that a rank may have made and rank 0 not yet taken."""
SMALL_NBYTES = 1 << 20
"""More may be under way where ranks go at their own pace, if all have no more bytes than this."""
FORWARD_S = 0.5
"""Launchers drop what they have not yet read of a rank's messages when the program is ended."""


class RankRun:
    """The state of one call of `MPIExecutor.imap` on one rank.

    `comm`, `grace_s`: as `MPIExecutor` has them. `small_nbytes`: results with together no more
    bytes may be under way, however many they are. `waits`: whether a rank waits until rank 0 has
    taken what it sends. Large messages only get on while their sender calls MPI: where rank 0 does
    nothing but take them, they would lie still while the sender works at its next item.
    """

    def __init__(
        self, comm: Any, grace_s: float, small_nbytes: int = 0, *, waits: bool = False
    ) -> None:
        self.comm = comm
        self.grace_s = grace_s
        self.small_nbytes = small_nbytes
        self.waits = waits
        self.sent: deque[Any] = deque()
        self.sizes: deque[int] = deque()
        """Bytes of each message of `sent`."""
        self._n_left: int = comm.size - 1
        self._coming: list[Any] = []
        self.number = -1
        self.error: BaseException | None = None
        self.why: BaseException | None = None
        """For what rank 0 leaves before the end, where that is not an item's error."""
        self.has_told = False
        self._deadline = float("inf")

    def stopped(self) -> bool:
        """Return whether this or another rank has sent STOP to all."""
        return self.has_told or bool(self.comm.iprobe(tag=STOP))

    def tell_stop(self) -> None:
        """Make all ranks stop at their next item; from now on they have `grace_s` to do so."""
        if not self.has_told:
            self.has_told = True
            self._deadline = time.monotonic() + self.grace_s
            for rank in range(self.comm.size):
                if rank != self.comm.rank:
                    self.sent.append(self.comm.isend(None, dest=rank, tag=STOP))
                    self.sizes.append(0)

    def fail(self, number: int, error: BaseException) -> None:
        """Note that item `number` failed here, and make all ranks stop."""
        self.number, self.error = number, error
        self.tell_stop()

    def send(self, number: int, result: Any = None) -> None:
        """Send a result to rank 0; waits while it has not taken earlier ones."""
        from mpi4py import MPI

        data = MPI.pickle.dumps((number, result))  # what `issend` would do, but its size is known
        self.wait_until(
            lambda: self._n_sent() < UNDER_WAY or sum(self.sizes) + len(data) <= self.small_nbytes
        )
        self.sent.append(self.comm.Issend([data, MPI.BYTE], dest=0, tag=RESULT))
        self.sizes.append(len(data))
        if self.waits:
            self.wait_until(lambda: self._n_sent() == 0)

    def _n_sent(self) -> int:
        while self.sent and self.sent[0].Test():
            self.sent.popleft()
            self.sizes.popleft()
        return len(self.sent)

    def arrived(self) -> Iterator[tuple[int, Any]]:
        """Take what has come to rank 0, without waiting."""
        # Over a network a large one comes only while its sender, too, is in MPI: `recv` would wait
        # until that has done its next item.
        while len(self._coming) < self.comm.size:
            message = self.comm.improbe(tag=RESULT)
            if message is None:
                break
            self._coming.append(message.irecv())
        for request in tuple(self._coming):
            is_there, content = request.test()
            if is_there:
                self._coming.remove(request)
                number, result = content
                if number == DONE:
                    self._n_left -= 1
                else:
                    yield number, result

    @property
    def n_working(self) -> int:
        """0 once all other ranks have said DONE, and all they said has come (known on rank 0)."""
        return self._n_left + len(self._coming)

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Wait; end the program if that takes too long after this rank has failed."""
        Nap().until(ready, self._deadline, self._abort)

    def _abort(self) -> NoReturn:
        late = BlockError("rank 0 stopped, but others did not in time")
        abort(self.comm, self.error or self.why or late)

    def settle(self) -> list[tuple[int, BaseException | None, bool]]:
        """End the run on all ranks together; return each rank's (number, error, has sent STOP).

        Nothing is returned where no rank has failed or sent STOP.
        """
        if self.comm.rank == 0:
            self.wait_until(self._drained)
        else:
            self.send(DONE)
        self.wait_until(lambda: self._n_sent() == 0)
        if not any_of(self.comm, self.error is not None or self.has_told, self.wait_until):
            return []
        outcome = (self.number, picklable(self.error), self.has_told)
        outcomes: list[tuple[int, BaseException | None, bool]] = self.comm.allgather(outcome)
        for rank, (_, _, has_told) in enumerate(outcomes):
            if has_told and rank != self.comm.rank:
                self.comm.recv(source=rank, tag=STOP)
        return outcomes

    def _drained(self) -> bool:
        for _ in self.arrived():
            pass
        return self.n_working == 0


def abort(comm: Any, error: BaseException) -> NoReturn:
    """Say what happened and end the whole program."""
    from mpi4py import MPI

    text, code = " ".join(str(error).split()) or type(error).__name__, 1
    if isinstance(error, KeyboardInterrupt):
        text, code = "interrupted", 130
    elif isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) and error.code else 1
        text = "ended by a signal" if code > 128 else f"ended with exit code {text}"
    if not isinstance(error, Exception):
        text = "; ".join((text, *getattr(error, "__notes__", ())))
    sys.stderr.write(f"mdio: {text} (rank {comm.rank} ends the program)\n")
    sys.stderr.flush()
    time.sleep(FORWARD_S)
    # On other communicators MPICH 4.0.2 ends this rank alone, and the others wait for ever.
    MPI.COMM_WORLD.Abort(code)
    raise error  # not reached: Abort does not return


class Agreement:
    """Lets ranks agree to go on (collective calls, in the same order on all ranks).

    `comm`: an mpi4py intracommunicator; it is duplicated, so that a rank that is elsewhere when
    another one asks cannot answer by mistake. `unfinished`: returns the files to remove before the
    program is ended, the output's own first; there may be none. `grace_s`: how long a rank that has
    failed waits for the others before it ends the program.
    """

    def __init__(
        self, comm: Any, unfinished: Callable[[], Sequence[Path]], grace_s: float = 5.0
    ) -> None:
        self._comm = comm.Dup()
        self._unfinished = unfinished
        self._grace_s = grace_s

    def reach(
        self,
        error: BaseException | None = None,
        *,
        number: int = 0,
        broken: bool = False,
    ) -> None:
        """Return on all ranks if none has failed; otherwise raise the same error on all.

        `error`: what has failed here. `number`: of several errors, that with the lowest number is
        raised. `broken`: whether it has failed within a collective call, so that the program has to
        end.
        """
        deadline = time.monotonic() + self._grace_s

        def wait(ready: Callable[[], bool]) -> None:
            late = None if error is None else partial(self._end, error, is_ours=True)
            Nap().until(ready, deadline, late)

        if not any_of(self._comm, error is not None, wait):
            return
        outcomes = self._comm.allgather((number, picklable(error), broken))
        first_number, first, _ = min(
            (outcome for outcome in outcomes if outcome[1] is not None), key=lambda one: one[0]
        )
        is_ours = error is not None and number == first_number
        if any(outcome[2] for outcome in outcomes):
            self._end(first, is_ours)
        raise error if error is not None and is_ours else first

    def close(self) -> None:
        """Free the communicator (collective)."""
        self._comm.Free()

    def _end(self, error: BaseException, is_ours: bool) -> NoReturn:
        """Remove what is unfinished, say why, once, and end the whole program."""
        from mpi4py import MPI

        unfinished = self._unfinished()
        speaks = is_ours and not unfinished
        for number, path in enumerate(unfinished):
            try:
                path.unlink()
                speaks = speaks or number == 0
            except OSError:  # another rank was first, or it was never made
                continue
        if speaks:
            abort(self._comm, error)
        time.sleep(4 * FORWARD_S)  # until the rank that was first has spoken
        sys.stderr.flush()
        MPI.COMM_WORLD.Abort(1)
        raise error  # not reached: Abort does not return


Item = TypeVar("Item")
COUNTER_NBYTES = 8


class WorkQueue:
    """The counter that the ranks of a node share; they make, use and close it together.

    Where they cannot, since their temporary folders are not one or its files know no locks,
    nothing `counts`, and each is to have every n-th item.

    `comm`: an mpi4py intracommunicator.
    """

    def __init__(self, comm: Any) -> None:
        from mpi4py import MPI

        self._rank, self._size = comm.rank, comm.size
        self._node = comm.Split_type(MPI.COMM_TYPE_SHARED)
        self._ranks: list[int] = sorted(self._node.allgather(comm.rank))
        self._descriptor = self._open() if self._node.size > 1 else -1
        self.counts = all(self._node.allgather(self._descriptor >= 0))

    def _open(self) -> int:
        """Return the descriptor of the counter, which has no name afterwards; -1 without one."""
        descriptor, name = -1, ""
        if self._node.rank == 0:
            try:
                descriptor, name = tempfile.mkstemp(prefix="mdio-ranks-")
            except OSError:
                name = ""
        name = self._node.bcast(name)
        try:
            if name and self._node.rank != 0:
                # Its own opening of the file: locks are of those.
                descriptor = os.open(name, os.O_RDWR | os.O_CLOEXEC)
            if name:
                fcntl.flock(descriptor, fcntl.LOCK_SH)
                fcntl.flock(descriptor, fcntl.LOCK_UN)
        except OSError:
            if descriptor >= 0:
                os.close(descriptor)
            descriptor = -1
        self._node.Barrier()
        if name and self._node.rank == 0:
            Path(name).unlink()
        return descriptor

    def items(
        self, items: Iterable[Item], wait_until: Callable[[Callable[[], bool]], None]
    ) -> Iterator[tuple[int, Item]]:
        """Return the items that come to this rank, with their numbers, where something `counts`.

        `items`: the same on all ranks; may be endless. `wait_until`: how to wait until a function
        returns True.
        """
        if self._node.rank == 0:
            os.pwrite(self._descriptor, len(self._ranks).to_bytes(COUNTER_NBYTES, "little"), 0)
        wait_until(self._node.Ibarrier().Test)
        return self._drawn(pair for pair in enumerate(items) if pair[0] % self._size in self._ranks)

    def _drawn(self, share: Iterator[tuple[int, Item]]) -> Iterator[tuple[int, Item]]:
        drawn, n_seen = self._ranks.index(self._rank), 0
        while (pair := next(islice(share, drawn - n_seen, None), None)) is not None:
            yield pair
            n_seen, drawn = drawn + 1, self._draw()

    def _draw(self) -> int:
        """Return the counter, and count on."""
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        try:
            drawn = int.from_bytes(os.pread(self._descriptor, COUNTER_NBYTES, 0), "little")
            os.pwrite(self._descriptor, (drawn + 1).to_bytes(COUNTER_NBYTES, "little"), 0)
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        return drawn

    def close(self) -> None:
        """Let go of the counter."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._node.Free()


PIECE_NBYTES = 1 << 30
"""From one rank to another in one call: some MPIs fail beyond 2 GiB."""


def exchange_rows(rows: NDArray[Any], counts: Sequence[int], comm: MPI.Intracomm) -> NDArray[Any]:
    """Send rows to all ranks and return what comes from them (collective; Alltoallv).

    `rows`, (n, ...): C-contiguous, those for rank 0 first; of one dtype and shape of a row on all
    ranks. `counts`: how many of them go to each rank. `comm` (mpi4py.MPI.Intracomm): the ranks.
    Returns (m, ...) array: in order of rank, of each as it sent them.
    """
    row = RowType(rows.shape[1:], rows.dtype)
    incoming = comm.alltoall(list(counts))
    out = row.empty(sum(incoming))
    most = max(1, PIECE_NBYTES // max(1, row.nbytes))
    n_pieces = max(comm.allgather(math.ceil(max(counts) / most)))
    for piece in range(n_pieces if row.nbytes else 0):
        sent, received = (
            [*row.message(array)[:1], *_piece(numbers, piece * most, most), row.datatype]
            for array, numbers in ((rows, counts), (out, incoming))
        )
        comm.Alltoallv(sent, received)
    row.free()
    return out


def _piece(counts: Sequence[int], done: int, most: int) -> tuple[list[int], list[int]]:
    """Return how many rows of each rank come next, and where they begin."""
    firsts = np.cumsum([0, *counts])[:-1].tolist()
    left = [min(most, max(0, count - done)) for count in counts]
    starts = [first + min(done, count) for first, count in zip(firsts, counts, strict=True)]
    return left, starts
