"""One call of the MPI executor as one rank sees it: messages, waiting, and ending together."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from mdio.core.errors import BlockError
from mdio.parallel.pool import picklable
from mdio.parallel.sleeping import Nap, any_of

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


class Run:
    """What one rank knows of one call of `MPIExecutor.imap`.

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
        """Return whether this or another rank has told all to stop."""
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
            is_there, found = request.test()
            if is_there:
                self._coming.remove(request)
                number, result = found
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
        nap = Nap()
        while not ready():
            if time.monotonic() > self._deadline:
                self._abort()
            nap.take()

    def _abort(self) -> NoReturn:
        late = BlockError("rank 0 stopped, but others did not in time")
        abort(self.comm, self.error or self.why or late)

    def settle(self) -> list[tuple[int, BaseException | None, bool]]:
        """End the run on all ranks together; return each rank's (number, error, has told).

        Nothing is returned where no rank has anything to tell.
        """
        if self.comm.rank == 0:
            self.wait_until(self._drained)
        else:
            self.send(DONE)
        self.wait_until(lambda: self._n_sent() == 0)
        if not any_of(self.comm, self.error is not None or self.has_told, self.wait_until):
            return []
        mine = (self.number, picklable(self.error), self.has_told)
        outcomes: list[tuple[int, BaseException | None, bool]] = self.comm.allgather(mine)
        for rank, (_, _, told) in enumerate(outcomes):
            if told and rank != self.comm.rank:
                self.comm.recv(source=rank, tag=STOP)
        return outcomes

    def _drained(self) -> bool:
        for _ in self.arrived():
            pass
        return self.n_working == 0


def abort(comm: Any, error: BaseException) -> NoReturn:
    """Say what happened and end the whole program."""
    from mpi4py import MPI

    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, SystemExit):
        text = "; ".join((f"ended with exit code {text}", *getattr(error, "__notes__", ())))
    sys.stderr.write(f"mdio: {text} (rank {comm.rank} ends the program)\n")
    sys.stderr.flush()
    time.sleep(FORWARD_S)
    # On other communicators MPICH 4.0.2 ends this rank alone, and the others wait for ever.
    MPI.COMM_WORLD.Abort(1)
    raise error  # not reached: Abort does not return
