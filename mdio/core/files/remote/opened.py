"""Objects of stores that are open, read by ranges of bytes."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mdio.core.files.remote import objects
from mdio.core.files.remote.objects import HEAD_NBYTES

TAIL_NBYTES = 32 << 10
"""Bytes at the end of an object that come together."""


class RemoteObject:
    """One object, as it was when it was opened; for any number of threads.

    `path`: its URL. `last_nbytes`: bytes at its end that are wanted first: they come with the
    request that opens it. Of others the last bytes come together once any of them are wanted:
    formats look there several times.
    Raises OSError: it is not there, or the store does not give it.
    """

    def __init__(self, path: Path, last_nbytes: int = 0) -> None:
        found = objects.look(path, {"suffix": last_nbytes} if last_nbytes else (0, HEAD_NBYTES))
        if found is None:
            raise FileNotFoundError(2, "no such object", str(path))
        self.path, self.state = path, found.state
        self._begin, self._data = found.begin, found.data
        self._end = objects.known_end(path, self.state)
        self._front, self._last_nbytes = 0, last_nbytes
        """So many of these bytes have been read, from front to back; what lies behind them."""

    @property
    def status(self) -> os.stat_result:
        """Size, time and identity, as of a file."""
        return self.state.status(stat.S_IFREG)

    def held(self, offset: int, nbytes: int) -> memoryview | None:
        """Return bytes that came when it was opened; None if they did not, or were let go."""
        data, at = memoryview(self._data), offset - self._begin
        if at < 0 or at + nbytes > len(data):
            end = self._end
            at = offset - end.begin
            here = at >= 0 and at + nbytes <= len(end.data)
            return memoryview(end.data)[at : at + nbytes] if here else None
        if at <= self._front:
            self._front = max(self._front, at + nbytes)
            if objects.LARGE_NBYTES < len(data) <= self._front + self._last_nbytes:
                self._data = b""
        return data[at : at + nbytes]

    def get(self, offset: int, nbytes: int) -> memoryview:
        """Return bytes of it, with one request where need be: fewer only at the end.

        Raises OSError: they cannot be had, or the object is another one than was opened.
        """
        size = self.state.nbytes
        nbytes = max(0, min(nbytes, size - offset))
        if (here := self.held(offset, nbytes)) is not None or not nbytes:
            return memoryview(b"") if here is None else here
        begin, end = offset, offset + nbytes
        at_end = offset >= size - TAIL_NBYTES and not self._last_nbytes
        if at_end:
            self._end = objects.known_end(self.path, self.state)  # others may have read it since
            if (here := self.held(offset, nbytes)) is not None:
                return here
            begin, end = max(0, size - TAIL_NBYTES), size
        found = objects.get_of(self.path, (begin, end), self.state)
        if found.state != self.state:
            objects.forget(self.path)
            raise OSError(
                5,
                f"it was replaced while it was open: {self.state.nbytes} bytes with ETag "
                f"{self.state.tag} were opened, {found.state.nbytes} with {found.state.tag} "
                "are there now; open it again",
                str(self.path),
            )
        if at_end:
            self._end = found
            objects.keep_end(self.path, found)
        return memoryview(found.data)[offset - begin : offset - begin + nbytes]

    def read_into(self, buffers: Sequence[Any], offset: int) -> int:
        """Fill `buffers`, and return how many bytes came; 0 at the end; raises as `get` does."""
        views = [memoryview(buffer).cast("B") for buffer in buffers]
        data, at = self.get(offset, sum(map(len, views))), 0
        for view in views:
            part = data[at : at + len(view)]
            view[: len(part)] = part
            at += len(part)
        return at
