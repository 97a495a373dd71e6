"""Rows that forked workers write straight to where the parent will have them.

Behind it is a file in memory that has no name (Linux' memfd): it goes with the last process that
holds it, whoever is killed, and unlike /dev/shm it has no size of its own that a container may have
set too small. Workers write to it (`os.pwrite`) rather than into a mapping: what they have just
computed is still in their cache, no page has to be zeroed and faulted in before, and a lack of
memory is an error instead of a signal. The parent maps the whole, once and without copying.
"""

from __future__ import annotations

import math
import mmap
import os
import pickle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.closing import Closing

SHARED_NBYTES = 1 << 20
"""Fewer bytes than these travel as quickly with the rest of a result."""

MAPPED_NBYTES = 64 << 20
"""Fewer bytes than these the parent copies: a mapping holds a file open as long as it is there, and
of files a process may have few."""

HEAD_NBYTES = mmap.ALLOCATIONGRANULARITY
"""Before the rows: what a row is. Rows begin at a page."""


class SharedRows(Closing):
    """An array whose first axis alone is known beforehand; the first rows that come say the rest.

    The parent makes it before it forks. Its workers `write` rows that it `accepts`, each its own;
    when they are done, the parent takes the array `whole`. Pickled, it serves forked workers only.

    `n_rows`: of the whole array.
    """

    def __init__(self, n_rows: int) -> None:
        self._n_rows = n_rows
        self._descriptor = os.memfd_create("mdio-rows")
        self._kind: tuple[tuple[int, ...], np.dtype[Any]] | None = None

    @staticmethod
    def available() -> bool:
        """Return whether this system has files without names."""
        return hasattr(os, "memfd_create")

    def accepts(self, row_shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
        """Return whether such rows are to be written here (workers).

        They are if all of them together are large, and if those that came first were alike.
        """
        nbytes = self._n_rows * math.prod(row_shape) * dtype.itemsize
        if nbytes < SHARED_NBYTES or dtype.hasobject:
            return False
        kind = (row_shape, dtype)
        if self._kind is None:
            self._kind = self._first_to_say(kind, nbytes)
        return self._kind == kind

    def _first_to_say(
        self, kind: tuple[tuple[int, ...], np.dtype[Any]], nbytes: int
    ) -> tuple[tuple[int, ...], np.dtype[Any]] | None:
        """Return what rows are: what another worker has said, or else `kind` from now on."""
        import fcntl

        pickled = pickle.dumps(kind)
        # Of this process alone, and gone with it: no worker can be killed and leave it locked.
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
        try:
            found = self._said()
            if found is not None:
                return found
            if len(pickled) > HEAD_NBYTES:
                return None
            try:
                os.ftruncate(self._descriptor, HEAD_NBYTES + nbytes)
                os.pwrite(self._descriptor, pickled, 0)
            except OSError:  # larger than this process may make files: rows travel otherwise
                os.ftruncate(self._descriptor, 0)
                return None
            return kind
        finally:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN)

    def _said(self) -> tuple[tuple[int, ...], np.dtype[Any]] | None:
        head = os.pread(self._descriptor, HEAD_NBYTES, 0)
        return pickle.loads(head) if head else None

    def write(self, start: int, rows: NDArray[Any]) -> None:
        """Write rows, of a kind that is accepted, from row `start` on.

        Raises MemoryError: there is no room for them.
        """
        content = np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data
        at = HEAD_NBYTES + start * (content.nbytes // max(1, len(rows)))
        try:
            while content:
                written = os.pwrite(self._descriptor, content, at)
                content, at = content[written:], at + written
        except OSError as error:
            raise MemoryError(
                f"no room in memory for the values of {self._n_rows} frames ({error.strerror})"
            ) from error

    def whole(self) -> NDArray[Any]:
        """Return the array; what is done to it is seen by no other process (parent).

        Raises ValueError: no worker has written to it.
        """
        row_shape, dtype = self._written()
        nbytes = self._n_rows * math.prod(row_shape) * dtype.itemsize
        if nbytes < MAPPED_NBYTES:
            return self.read(0, self._n_rows)
        memory = mmap.mmap(self._descriptor, HEAD_NBYTES + nbytes, access=mmap.ACCESS_COPY)
        rows = np.frombuffer(memory, np.uint8)[HEAD_NBYTES:].view(dtype)
        return rows.reshape((self._n_rows, *row_shape))

    def _written(self) -> tuple[tuple[int, ...], np.dtype[Any]]:
        kind = self._said()
        if kind is None:
            raise ValueError("no rows have been written")
        return kind

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return a copy of some rows.

        Raises ValueError: no worker has written to it.
        """
        row_shape, dtype = self._written()
        rows = np.empty((stop - start, *row_shape), dtype)
        content = rows.reshape(-1).view(np.uint8).data
        at = HEAD_NBYTES + start * (content.nbytes // max(1, len(rows)))
        while content:
            n_read = os.preadv(self._descriptor, [content], at)
            content, at = content[n_read:], at + n_read
        return rows

    def close(self) -> None:
        """Let go of it; arrays that have been taken stay."""
        os.close(self._descriptor)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kind": None}
