"""A work queue of ranks: the next item goes to whichever is free, without asking another.

Of all items each node has a share, as many as its ranks would have if every rank took every n-th.
Each rank begins with the one that would then be its first; the next is found by a counter in a
small file of the node's temporary folder. So a rank that the system or the storage holds up for a
while takes fewer, and the others do not wait for it in the end. (MPI-3's `MPI_Fetch_and_op` would
be the tool, but within a node MPICH 4.0 answers it only when the rank that holds the counter comes
to call MPI itself.)
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

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
        drawn, seen = self._ranks.index(self._rank), 0
        while (found := next(islice(share, drawn - seen, None), None)) is not None:
            yield found
            seen, drawn = drawn + 1, self._draw()

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
