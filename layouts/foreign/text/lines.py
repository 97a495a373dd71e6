"""The lines of a file, read forwards, with the place of each."""

from __future__ import annotations

from itertools import islice
from typing import BinaryIO

MOST_LINE_NBYTES = 1 << 20
"""A line of more bytes is not text."""


class Lines:
    """Lines of an open file from its beginning on."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._again: bytes | None = None
        self.offset = 0
        """Where the next line begins."""
        self.number = 1
        """Of the next line, as editors count."""

    def peek(self) -> bytes:
        """Return the next line without taking it; empty at the end of the file."""
        if self._again is None:
            self._again = self._file.readline(MOST_LINE_NBYTES)
        return self._again

    def next(self) -> bytes:
        """Return the next line; empty at the end of the file."""
        line = self.peek()
        self._again = None
        self.offset += len(line)
        self.number += bool(line)
        return line

    def take(self, count: int) -> list[bytes]:
        """Return the next `count` lines; fewer at the end of the file."""
        return [line for _ in range(count) if (line := self.next())]

    def skip(self, count: int) -> int:
        """Go over lines; return how many there were, fewer than asked at the end of the file."""
        n_skipped = nbytes = 0
        if count and self._again is not None:
            n_skipped += bool(self.next())
        for line in islice(self._file, count - n_skipped):
            nbytes += len(line)
            n_skipped += 1
        self.offset += nbytes
        self.number += n_skipped
        return n_skipped
