"""Positional reads of records that lie at equal distances in a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.files.in_flight import ByteRange, asked
from mdio.core.files.piece_sums import PieceSums
from mdio.core.files.reading import OpenFile

BATCH_NBYTES = 4 * 2**20
"""Bytes read before they are decoded: stays in the cache of the processor."""
GAP_NBYTES = 16 * 1024
"""From this size on, a gap between wanted bytes is skipped; reading less is cheaper than a call."""


def spare_gaps(unwanted_nbytes: int, n_gaps: int) -> bool:
    """Return whether skipping so many bytes in so many gaps is cheaper than reading them."""
    return unwanted_nbytes >= n_gaps * GAP_NBYTES


def batches(start: int, stop: int, stride: int, nbytes: int) -> Iterator[tuple[int, int]]:
    """Yield (first, last) of consecutive pieces of ``start:stop`` that are read at one go.

    `stride` and `nbytes` are what `PositionalFile.rows` will be given.
    """
    row_nbytes = nbytes if spare_gaps(stride - nbytes, 1) else stride
    step = max(1, BATCH_NBYTES // max(1, row_nbytes))
    for first in range(start, stop, step):
        yield first, min(first + step, stop)


class Rows:
    """Equal byte ranges of consecutive records.

    `buffer`, (B,) uint8: holds them. `n_rows`: number of records R. `stride`: bytes between the
    beginnings of two of them in `buffer`.
    """

    def __init__(self, buffer: NDArray[np.uint8], n_rows: int, stride: int) -> None:
        self.buffer, self.n_rows, self.stride = buffer, n_rows, stride

    def view(
        self,
        offset: int,
        shape: tuple[int, ...],
        dtype: np.dtype[np.generic] | str,
        strides: tuple[int, ...] | None = None,
    ) -> NDArray[np.generic]:
        """Return what lies at `offset` of every record, as (R, *shape), without a copy.

        `strides` are those of one record's array; C-contiguous by default.
        """
        dtype = np.dtype(dtype)
        if strides is None:
            strides = np.empty(shape, np.dtype([("item", "V1")])).strides
            strides = tuple(s * dtype.itemsize for s in strides)
        return np.ndarray(
            (self.n_rows, *shape),
            dtype,
            buffer=self.buffer,
            offset=offset,
            strides=(self.stride, *strides),
        )

    def part(self, first: int, last: int) -> Rows:
        """Return records ``first:last`` of these, without a copy."""
        return Rows(self.buffer[first * self.stride :], last - first, self.stride)


class PositionalFile(OpenFile):
    """A file of records, opened for reading by position."""

    def read(self, offset: int, nbytes: int) -> bytes:
        """Return bytes from `offset` on: `nbytes`, or fewer at the end of the file."""
        return self.peek(offset, nbytes)

    def rows(self, offset: int, stride: int, n_rows: int, nbytes: int) -> Rows:
        """Read `nbytes` of each of `n_rows` records; gaps between them are skipped if large.

        `offset`: where the first wanted byte of the first record lies in the file. `stride`:
        distance between records in the file. `n_rows`, `nbytes`: how many records, and how much of
        each; ``nbytes <= stride``.
        Raises SourceError: the file ends before, or cannot be read.
        """
        if spare_gaps(stride - nbytes, 1):
            buffer = np.empty(n_rows * nbytes, np.uint8)
            for at, row in self._apart(offset, stride, buffer.reshape(n_rows, nbytes)):
                self.fill(at, row)
            return Rows(buffer, n_rows, nbytes)
        buffer = np.empty((n_rows - 1) * stride + nbytes, np.uint8)
        self.fill(offset, buffer)
        return Rows(buffer, n_rows, stride)

    def _apart(
        self, offset: int, stride: int, buffer: NDArray[np.uint8]
    ) -> Iterator[tuple[int, memoryview]]:
        """Yield where each row of `buffer` lies, and the row; those of an object are under way."""
        places = [offset + row * stride for row in range(len(buffer))]
        ahead = places if self.remote is not None and len(places) > 1 else []
        with asked(ByteRange(self, at, buffer.shape[1]) for at in ahead):
            yield from zip(places, (row.data for row in buffer), strict=True)


class CheckedFile(PositionalFile):
    """A file whose bytes are compared with their checksums whenever they are read.

    Reads are widened to whole pieces; of a large gap between wanted bytes, nothing is read.

    `path`: the file. `sums`: its checksums.
    """

    def __init__(self, path: Path, sums: PieceSums) -> None:
        super().__init__(path)
        self.sums = sums

    def read(self, offset: int, nbytes: int) -> bytes:
        """Return bytes from `offset` on; see the base class."""
        end = min(offset + nbytes, self.sums.nbytes)
        return bytes(self._checked(offset, end)) if offset < end else b""

    def rows(self, offset: int, stride: int, n_rows: int, nbytes: int) -> Rows:
        """Read `nbytes` of each of `n_rows` records; see the base class."""
        if spare_gaps(stride - nbytes, 1):
            first, last = self.sums.around(offset, offset + nbytes)
            buffer = np.empty((n_rows, last - first), np.uint8)  # frames are alike, and so pieces
            for at, row in self._apart(first, stride, buffer):
                self.fill(at, row)
                self.sums.check(self.path, at, row)
            return Rows(buffer.reshape(-1)[offset - first :], n_rows, last - first)
        return Rows(self._checked(offset, offset + (n_rows - 1) * stride + nbytes), n_rows, stride)

    def _checked(self, begin: int, end: int) -> NDArray[np.uint8]:
        first, last = self.sums.around(begin, end)
        buffer = np.empty(last - first, np.uint8)
        self.fill(first, buffer)
        self.sums.check(self.path, first, buffer.data)
        return buffer[begin - first : end - first]


def open_positional(path: Path, options: Mapping[str, Any]) -> PositionalFile:
    """Open a file for a layout with `options`: with checksums (``sums=``) where it has them."""
    sums = options.get("sums")
    return PositionalFile(path) if sums is None else CheckedFile(path, sums)
