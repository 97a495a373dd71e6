"""Where things lie in our H5MD files, and plain reads and writes of their bytes.

HDF5 says where a contiguous dataset or a chunk begins; from there on the bytes are those of an
array, and any number of processes may read them, or write each its own, without the library.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import CorruptLayoutError, OutputError
from mdio.core.files.publish import TEMPORARY
from mdio.core.files.reading import OpenFile
from mdio.core.kernels import crc32c

__all__ = [
    "ARRAYS",
    "BOX",
    "CREATOR",
    "FOREIGN_ERRORS",
    "FULL_SYSTEM",
    "MANIFEST",
    "PIECES",
    "READ_NBYTES",
    "RUN_FRAMES",
    "SOURCE_STEP",
    "Column",
    "Handle",
    "bytes_of",
    "descriptor_of",
    "pread_at_once",
    "pread_checksum",
    "pread_exactly",
    "pwrite_all",
    "writing",
]

FULL_SYSTEM = "trajectory"
"""The particle group of all atoms; MDAnalysis looks for the number of atoms under this name."""

ARRAYS = "mdio/arrays"
"""Below this, in ``GROUP/ELEMENT``, are checksums and places of the chunks of
``/particles/GROUP/ELEMENT/value``: ``crc32c``, ``offset`` if there are chunks, and ``nbytes`` if
they are compressed. If they are not, there is `PIECES` too."""

PIECES = "pieces"
"""(F, chunks along the atoms, P) uint32 beside them: what is read of a part of a chunk is verified
with the crc32c of each frame's row of the chunk, in P pieces (`mdio.core.files.piece_sums`)."""

RUN_FRAMES = "run_frames"
"""Attribute beside the checksums of an array without chunks: frames that have one together."""

BOX = "mdio/box"
"""(F, 6) float32: the unit cells as they are in memory; the edges are made from them."""

SOURCE_STEP = "mdio/step"
"""(F,) int64: the source's steps, where they do not increase as H5MD wants it."""

MANIFEST = "mdio/manifest"

CREATOR = "mdio"
"""What our files give as the name of the program that made them."""

FOREIGN_ERRORS = (
    OSError,
    LookupError,
    RuntimeError,
    ValueError,
    TypeError,
    AttributeError,
    ArithmeticError,
)
"""What h5py raises for files that are damaged or not what they should be."""

_FULL = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the quota is used up",
    errno.EFBIG: "the file is larger than the limit that is set",
}

SLAB_ROWS = 1 << 16
"""Columns are gone through this many frames at a time."""

CACHED_NBYTES = 4 << 20
"""Columns up to this size stay in memory once one of their rows is read."""

READ_NBYTES = 4 << 20
"""A checksum is taken as often, while what was read is still in a processor's cache; file systems
should not be asked for less at a time."""


Handle = int | OpenFile
"""What is read from: a descriptor of a file that is being written, or a file that is read."""


def bytes_of(array: Any) -> memoryview:
    """Return the bytes of a C-contiguous buffer, which is not empty."""
    return memoryview(array).cast("B")


def descriptor_of(file: h5py.File, path: Path) -> int:
    """Return a descriptor of the very file that HDF5 has open, whatever its name is now."""
    if file.driver != "sec2":
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    fd = os.dup(file.id.get_vfd_handle())
    with suppress(OSError):  # HDF5's lock would stay with it
        fcntl.flock(fd, fcntl.LOCK_UN)
    return fd


def _read_some(fd: Handle, view: memoryview, offset: int) -> int:
    return os.preadv(fd, [view], offset) if isinstance(fd, int) else fd.read_some([view], offset)


def pread_exactly(fd: Handle, target: NDArray[Any], offset: int, what: str) -> None:
    """Fill a C-contiguous array from the file.

    Raises
    ------
    CorruptLayoutError
        The file ends before, or cannot be read; begins with `what`.
    """
    if not target.size:
        return
    view = bytes_of(target)
    done = 0
    while done < len(view):
        try:
            n_read = _read_some(fd, view[done:] if done else view, offset + done)
        except OSError as error:
            raise CorruptLayoutError(
                f"{what}: {len(view)} bytes at {offset} cannot be read ({error.strerror})"
            ) from error
        if n_read == 0:
            raise CorruptLayoutError(
                f"{what}: the file ends at byte {offset + done}, {offset + len(view)} expected; "
                "it is truncated: convert the source again"
            )
        done += n_read


def pread_at_once(fd: Handle, target: NDArray[Any], offset: int) -> bool:
    """Fill a C-contiguous array from the file with one call, and return whether that was possible.

    If not, `pread_exactly` either can or says why it cannot.
    """
    try:
        return _read_some(fd, bytes_of(target), offset) == target.nbytes
    except OSError:
        return False


def pread_checksum(
    fd: Handle, target: NDArray[Any], offset: int, what: str, *, crc: int = 0
) -> int:
    """Fill a C-contiguous array from the file, and return the crc32c of its bytes, after `crc`.

    Raises
    ------
    CorruptLayoutError
        As `pread_exactly`.
    """
    flat = target.reshape(-1).view(np.uint8)
    for begin in range(0, flat.size, READ_NBYTES):
        piece = flat[begin : begin + READ_NBYTES]
        pread_exactly(fd, piece, offset + begin, what)
        crc = crc32c(piece, crc)
    return crc


def pwrite_all(fd: int, data: Any, offset: int, path: Path) -> None:
    """Write a C-contiguous buffer into the file.

    Raises
    ------
    OutputError
        The disk is full, or it cannot be written for another reason.
    """
    view = bytes_of(data)
    done = 0
    with writing(path):
        while done < len(view):
            done += os.pwrite(fd, view[done:], offset + done)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the operating system and HDF5 raise while writing into OutputError."""
    try:
        yield
    except OutputError:
        raise
    except FOREIGN_ERRORS as error:
        number, text = getattr(error, "errno", None), " ".join(str(error).split())
        reason = _FULL.get(number) if number is not None else None
        if reason is None:  # HDF5 before 2.0 has the number in its text only, MPI-IO its meaning
            reason = next(
                (t for n, t in _FULL.items() if f"errno = {n}," in text or os.strerror(n) in text),
                None,
            )
        name = TEMPORARY.sub(r"\1", str(path))
        raise OutputError(
            f"{name}: cannot be written: {reason or text}; mend that and convert again"
        ) from error


@dataclass(slots=True)
class Column:
    """A contiguous dataset with one row a frame, reached without HDF5."""

    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    crc: int | None = None
    """crc32c of all its bytes, where it is known."""
    _rows: NDArray[Any] | None = None
    _verified: bool = False

    @classmethod
    def of(cls, dataset: h5py.Dataset, crc: int | None = None) -> Column:
        """Return where `dataset` lies; raises ValueError if it is not in one piece."""
        offset = dataset.id.get_offset()
        if offset is None:
            raise ValueError(f"{dataset.name} is not stored in one piece")
        return cls(offset, dataset.dtype, dataset.shape, crc)

    @property
    def row_nbytes(self) -> int:
        """Bytes of one row."""
        return self.dtype.itemsize * int(np.prod(self.shape[1:], dtype=np.int64))

    def read(self, fd: Handle, start: int, stop: int, what: str) -> NDArray[Any]:
        """Return rows ``start:stop``; raises CorruptLayoutError.

        All is verified when some of it is first read.
        """
        rows = self._rows
        if rows is None:
            if self.row_nbytes * self.shape[0] > CACHED_NBYTES:
                if self.crc is not None and not self._verified:
                    self.verify(fd, what)
                    self._verified = True
                return self._read(fd, start, stop, what)
            rows = self._read(fd, 0, self.shape[0], what)
            if self.crc is not None:
                self._compare(crc32c(rows), what)
            self._rows = rows
        return rows[start:stop]

    def _read(self, fd: Handle, start: int, stop: int, what: str) -> NDArray[Any]:
        rows = np.empty((stop - start, *self.shape[1:]), self.dtype)
        pread_exactly(fd, rows, self.offset + start * self.row_nbytes, what)
        return rows

    def slabs(self) -> Iterator[tuple[int, int]]:
        """Yield (start, stop) of runs of rows that are read or written at a time."""
        for start in range(0, self.shape[0], SLAB_ROWS):
            yield start, min(start + SLAB_ROWS, self.shape[0])

    def checksum(self, fd: Handle, what: str) -> int:
        """Return the crc32c of all rows as they are on disk."""
        crc = 0
        for start, stop in self.slabs():
            crc = crc32c(self._read(fd, start, stop, what), crc)
        return crc

    def verify(self, fd: Handle, what: str) -> None:
        """Read all rows and check them; raises CorruptLayoutError."""
        self._compare(self.checksum(fd, what), what)

    def _compare(self, crc: int, what: str) -> None:
        if self.crc is not None and crc != self.crc:
            raise CorruptLayoutError(
                f"{what}: crc32c {crc:08x} found, {self.crc:08x} expected; the file is damaged: "
                "convert the source again"
            )

    def write(self, fd: int, start: int, rows: NDArray[Any], path: Path) -> None:
        """Write rows from `start` on; raises OutputError."""
        data = np.ascontiguousarray(rows, self.dtype)
        self._rows = None
        pwrite_all(fd, data, self.offset + start * self.row_nbytes, path)
