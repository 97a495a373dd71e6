"""Collective calls in which waiting ranks sleep.

MPI's own calls keep a core busy while they wait. Where ranks share cores, as on a laptop, or on a
node with a file system's client, they take that time from the ranks that they wait for.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_SLEEP_S = 0.002
ROOT = 0
"""The rank that broadcasts and gathers values of all ranks."""
SIZE_NBYTES, BODY_NBYTES = 8, 1016
"""Bytes of the first message: of the object's size, and of the object itself if it fits. Each
exchange waits for the last rank, so small objects travel together with their size."""

Wait = Callable[[Callable[[], bool]], None]
"""Waits until the function that it gets returns True."""


class Backoff:
    """Sleeps for longer and longer, so that waiting ranks leave the cores to working ones."""

    def __init__(self) -> None:
        self._seconds = 1e-5

    def sleep(self) -> None:
        """Sleep."""
        time.sleep(self._seconds)
        self._seconds = min(2 * self._seconds, MAX_SLEEP_S)

    def wait_until(
        self,
        ready: Callable[[], bool],
        deadline: float = math.inf,
        on_timeout: Callable[[], Any] | None = None,
    ) -> None:
        """Sleep until `ready` returns True; past `deadline` (monotonic) call `on_timeout`, too."""
        while not ready():
            if on_timeout is not None and time.monotonic() > deadline:
                on_timeout()
            self.sleep()


def duplicate(comm: Any) -> Any:
    """Return a communicator of the same ranks, whose messages are its own."""
    duplicated, request = comm.Idup()
    Backoff().wait_until(request.Test)
    return duplicated


def bcast(comm: Any, value: Any) -> Any:
    """Return on all ranks the object that rank 0 gives; on rank 0 the same object, not a copy."""
    from mpi4py import MPI

    is_root = comm.rank == ROOT
    data = MPI.pickle.dumps(value) if is_root else b""
    slot = _first_message(data)
    Backoff().wait_until(comm.Ibcast(slot, root=ROOT).Test)
    nbytes = _nbytes(slot)
    message = slot[SIZE_NBYTES : SIZE_NBYTES + nbytes]
    if nbytes > BODY_NBYTES:
        message = np.frombuffer(data, np.uint8) if is_root else np.empty(nbytes, np.uint8)
        Backoff().wait_until(comm.Ibcast([message, MPI.BYTE], root=ROOT).Test)
    return value if is_root else MPI.pickle.loads(message)


def allgather(comm: Any, value: Any) -> list[Any]:
    """Return on all ranks the objects of all ranks, in order of rank."""
    from mpi4py import MPI

    data = MPI.pickle.dumps(value)
    slots = np.empty((comm.size, SIZE_NBYTES + BODY_NBYTES), np.uint8)
    Backoff().wait_until(comm.Iallgather(_first_message(data), slots).Test)
    counts = [_nbytes(slot) for slot in slots]
    if max(counts) <= BODY_NBYTES:
        parts = [slot[SIZE_NBYTES : SIZE_NBYTES + n] for slot, n in zip(slots, counts, strict=True)]
    else:
        all_data = np.empty(sum(counts), np.uint8)
        Backoff().wait_until(comm.Iallgatherv([data, MPI.BYTE], [all_data, counts, MPI.BYTE]).Test)
        parts = np.split(all_data, np.cumsum(counts)[:-1])
    return [MPI.pickle.loads(part) for part in parts]


def _first_message(data: bytes) -> NDArray[np.uint8]:
    """Return the first message: the number of bytes, and the bytes themselves if they are few."""
    slot = np.zeros(SIZE_NBYTES + BODY_NBYTES, np.uint8)
    slot[:SIZE_NBYTES].view(np.int64)[0] = len(data)
    if len(data) <= BODY_NBYTES:
        slot[SIZE_NBYTES : SIZE_NBYTES + len(data)] = np.frombuffer(data, np.uint8)
    return slot


def _nbytes(slot: NDArray[np.uint8]) -> int:
    return int(slot[:SIZE_NBYTES].view(np.int64)[0])


def any_of(comm: Any, is_true: bool, wait: Wait | None = None) -> bool:
    """Return whether `is_true` holds on any rank; sleeps meanwhile, or calls `wait`."""
    any_true = np.zeros(1, np.int32)
    request = comm.Iallreduce(np.array([is_true], np.int32), any_true)
    (wait or Backoff().wait_until)(request.Test)
    return bool(any_true[0])
