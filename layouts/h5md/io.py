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

from mdio.core.errors import FOREIGN_ERRORS, CorruptLayoutError, OutputError
from mdio.core.files.reading import OpenFile
from mdio.core.files.turns import TEMPORARY
from mdio.core.files.writing import write_all
from mdio.core.kernels import crc32c
from mdio.layouts.foreign.hdf5 import check_heaps

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
"""Creator that our files name."""

_FULL = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the quota is used up",
    errno.EFBIG: "the file is larger than the limit that is set",
}

SLAB_ROWS = 1 << 16
"""Columns are read and written this many frames at a time."""

CACHED_NBYTES = 4 << 20
"""Columns up to this size stay in memory once one of their rows is read."""

READ_NBYTES = 4 << 20
"""Bytes read between two steps of a checksum: still in a processor's cache, yet a large request."""


def manifest_text(file: h5py.File, path: Path) -> str:
    """Return the manifest of a file; raises one of `FOREIGN_ERRORS` if it has none."""
    dataset = file[MANIFEST]
    if h5py.check_string_dtype(dataset.dtype).length is None:  # not as we write it
        check_heaps(path)
    text: str = dataset.asstr()[()]
    return text


def duplicate_descriptor(file: h5py.File) -> int:
    """Return a descriptor of the very file that HDF5 has open, whatever its name is now.

    -1 for an object in a store, which is opened again.
    """
    if file.driver != "sec2":
        return -1
    fd = os.dup(file.id.get_vfd_handle())
    with suppress(OSError):  # HDF5's lock would stay with it
        fcntl.flock(fd, fcntl.LOCK_UN)
    return fd


def checksum(file: OpenFile, offset: int, nbytes: int, crc: int = 0) -> int:
    """Return the crc32c of bytes of the file, after `crc`; raises CorruptLayoutError."""
    buffer = np.empty(min(READ_NBYTES, nbytes), np.uint8)
    for begin in range(0, nbytes, READ_NBYTES):
        view = buffer[: min(READ_NBYTES, nbytes - begin)]
        file.fill(offset + begin, view)
        crc = crc32c(view, crc)
    return crc


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
        if reason is None:  # HDF5 before 2.0 puts the number in its text only, MPI-IO its message
            reason = next(
                (t for n, t in _FULL.items() if f"errno = {n}," in text or os.strerror(n) in text),
                None,
            )
        name = TEMPORARY.sub(r"\1", str(path))
        raise OutputError(
            f"{name}: cannot be written: {reason or text}; fix that and convert again"
        ) from error


@dataclass(slots=True)
class Column:
    """A contiguous dataset with one row a frame, reached without HDF5."""

    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    crc: int | None = None
    """crc32c of all its bytes, where it is known."""
    what: str = ""
    """Name in messages."""
    _rows: NDArray[Any] | None = None
    _verified: bool = False

    @classmethod
    def of(cls, dataset: h5py.Dataset, crc: int | None = None, what: str = "") -> Column:
        """Return where `dataset` lies; raises ValueError if it is not contiguous."""
        offset = dataset.id.get_offset()
        if offset is None:
            raise ValueError(f"{dataset.name} is not stored contiguously")
        return cls(offset, dataset.dtype, dataset.shape, crc, what)

    @property
    def row_nbytes(self) -> int:
        """Bytes of one row."""
        return self.dtype.itemsize * int(np.prod(self.shape[1:], dtype=np.int64))

    @property
    def is_kept(self) -> bool:
        """Whether all rows stay in memory once one of them is read."""
        return self.row_nbytes * self.shape[0] <= CACHED_NBYTES

    def read(self, file: OpenFile, start: int, stop: int) -> NDArray[Any]:
        """Return rows ``start:stop``; raises CorruptLayoutError.

        All is verified when some of it is first read.
        """
        rows = self._rows
        if rows is None:
            if not self.is_kept:
                if self.crc is not None and not self._verified:
                    self.verify(file)
                    self._verified = True
                return self._read(file, start, stop)
            rows = self._read(file, 0, self.shape[0])
            if self.crc is not None:
                self._compare(crc32c(rows))
            self._rows = rows
        return rows[start:stop]

    def _read(self, file: OpenFile, start: int, stop: int) -> NDArray[Any]:
        rows = np.empty((stop - start, *self.shape[1:]), self.dtype)
        file.fill(self.offset + start * self.row_nbytes, rows)
        return rows

    def slabs(self) -> Iterator[tuple[int, int]]:
        """Yield (start, stop) of runs of rows that are read or written at a time."""
        for start in range(0, self.shape[0], SLAB_ROWS):
            yield start, min(start + SLAB_ROWS, self.shape[0])

    def checksum(self, file: OpenFile) -> int:
        """Return the crc32c of all rows as they are on disk."""
        return checksum(file, self.offset, self.row_nbytes * self.shape[0])

    def verify(self, file: OpenFile) -> None:
        """Read all rows and check them; raises CorruptLayoutError."""
        self._compare(self.checksum(file))

    def _compare(self, crc: int) -> None:
        if self.crc is not None and crc != self.crc:
            raise CorruptLayoutError(
                f"{self.what}: crc32c {crc:08x} found, {self.crc:08x} expected; the file is "
                "damaged: convert the source again"
            )

    def write(self, fd: int, start: int, rows: NDArray[Any], path: Path) -> None:
        """Write rows from `start` on; raises OutputError."""
        self._rows = None
        with writing(path):
            rows = np.ascontiguousarray(rows, self.dtype)
            write_all(fd, self.offset + start * self.row_nbytes, rows)
