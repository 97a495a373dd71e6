"""Positional reads of records that lie at equal distances in a file.

Files are read with pread, never memory-mapped: a file that is cut while it is read then gives an
error and not a signal, and a forked process shares no file position with its parent.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import SourceError
from mdio.core.files.piece_sums import PieceSums

__all__ = ["CheckedFile", "PositionalFile", "Rows", "batches", "open_positional", "spare_gaps"]

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

    Parameters
    ----------
    buffer : (B,) uint8
        Holds them.
    n_rows
        Number of records R.
    stride
        Bytes between the beginnings of two of them in `buffer`.
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


class PositionalFile:
    """A file opened for reading by position.

    Parameters
    ----------
    path
        The file.

    Raises
    ------
    SourceError
        It cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = -1
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self.nbytes = os.fstat(self._descriptor).st_size
        except OSError as error:
            self.close()
            raise SourceError(f"{path}: cannot be opened ({error.strerror})") from error

    def close(self) -> None:
        """Close the file; harmless if it is closed."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    __del__ = close

    def read(self, offset: int, nbytes: int) -> bytes:
        """Return bytes from `offset` on: `nbytes`, or fewer at the end of the file."""
        try:
            return os.pread(self._descriptor, nbytes, offset)
        except OSError as error:
            raise SourceError(
                f"{self.path}: bytes at {offset} cannot be read ({error.strerror})"
            ) from error

    def rows(self, offset: int, stride: int, n_rows: int, nbytes: int) -> Rows:
        """Read `nbytes` of each of `n_rows` records; gaps between them are skipped if large.

        Parameters
        ----------
        offset
            Where the first wanted byte of the first record lies in the file.
        stride
            Distance between records in the file.
        n_rows, nbytes
            How many records, and how much of each; ``nbytes <= stride``.

        Raises
        ------
        SourceError
            The file ends before, or cannot be read.
        """
        if spare_gaps(stride - nbytes, 1):
            buffer = np.empty(n_rows * nbytes, np.uint8)
            view = buffer.data
            for row in range(n_rows):
                self._fill(view[row * nbytes : (row + 1) * nbytes], offset + row * stride)
            return Rows(buffer, n_rows, nbytes)
        buffer = np.empty((n_rows - 1) * stride + nbytes, np.uint8)
        self._fill(buffer.data, offset)
        return Rows(buffer, n_rows, stride)

    def _fill(self, view: memoryview, offset: int) -> None:
        while view.nbytes:
            try:
                n_read = os.preadv(self._descriptor, [view], offset)
            except OSError as error:
                raise SourceError(
                    f"{self.path}: bytes at {offset} cannot be read ({error.strerror})"
                ) from error
            if n_read == 0:
                raise SourceError(
                    f"{self.path}: {view.nbytes} bytes from {offset} on are missing: the file was "
                    f"{self.nbytes} bytes long when it was opened and has been cut since"
                )
            view, offset = view[n_read:], offset + n_read


class CheckedFile(PositionalFile):
    """A file whose bytes are compared with their checksums whenever they are read.

    Reads are widened to whole pieces; of a large gap between wanted bytes, nothing is read.

    Parameters
    ----------
    path
        The file.
    sums
        Its checksums.
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
            buffer = np.empty(n_rows * (last - first), np.uint8)  # frames are alike, and so pieces
            view = buffer.data
            for row in range(n_rows):
                part = view[row * (last - first) : (row + 1) * (last - first)]
                self._fill(part, first + row * stride)
                self.sums.check(self.path, first + row * stride, part)
            return Rows(buffer[offset - first :], n_rows, last - first)
        return Rows(self._checked(offset, offset + (n_rows - 1) * stride + nbytes), n_rows, stride)

    def _checked(self, begin: int, end: int) -> NDArray[np.uint8]:
        first, last = self.sums.around(begin, end)
        buffer = np.empty(last - first, np.uint8)
        view = buffer.data
        self._fill(view, first)
        self.sums.check(self.path, first, view)
        return buffer[begin - first : end - first]


def open_positional(path: Path, options: Mapping[str, Any]) -> PositionalFile:
    """Open a file for a layout with `options`: with checksums (``sums=``) where it has them."""
    sums = options.get("sums")
    return PositionalFile(path) if sums is None else CheckedFile(path, sums)
