"""Names in mdio's H5MD files, and reading and writing their bytes without HDF5.

HDF5 says where a contiguous dataset or a chunk begins; its bytes are then those of an array, and
any number of processes can read them, or write separate parts of them, without the library.

A flavour is a file in the units, and with the names, that another program reads:
``gromacs`` is what GROMACS 2026's reader takes (src/gromacs/fileio/h5md of its sources, at commit
b1a82ec1956e). It opens ``/particles/system`` (h5md.cpp, lines 507 to 512 and 570) and in it
``position``, ``velocity`` and ``force`` where there are any, each with ``value`` in float32 of
shape (F, N, 3), ``step`` in int64 and ``time`` in float64 of as many frames (518 to 540;
h5md_timedatablock.cpp, 74 to 99; h5md_datasetbase.cpp, 92 to 115). With positions there have to be
``box/edges/value`` of shape (F, 3, 3), whose row i belongs to row i of the positions (h5md.cpp, 528
to 531 and 762; h5md_particleblock.cpp, 115 to 122). The next frame has the smallest step not yet
read in any of them (709 to 732), so a field that some frames lack has steps of its own. Numbers
are in nm and ps (127 to 131), whichever units the file names. Any chunks and compression are read.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import (
    FOREIGN_ERRORS,
    CorruptLayoutError,
    OutputError,
    PlanError,
    one_line,
)
from mdio.core.files.locks import TEMPORARY
from mdio.core.files.reading import OpenFile
from mdio.core.files.writing import write_all
from mdio.core.frames import uninitialised_array
from mdio.core.kernels import crc32c
from mdio.layouts.chunked.own import UNITS
from mdio.layouts.foreign.hdf5 import check_heaps

ARRAYS = "mdio/arrays"
"""Below this, ``GROUP/ELEMENT`` has the tables of the chunks of ``/particles/GROUP/ELEMENT/value``:
``crc32c``; ``offset``, unless it is contiguous; ``nbytes`` if chunks are compressed, or else
`SPANS`."""

SPANS = "pieces"
"""Table (F, chunks along the atoms, P) uint32 for verifying parts of chunks: the crc32c of each
frame's row of a chunk, in P spans (`mdio.core.files.span_checksums`)."""

RUN_FRAMES = "run_frames"
"""Attribute of the tables of a contiguous array: frames in a run with one checksum."""

BOX_PATH = "mdio/box"
"""(F, 6) float32: boxes as they are in memory, from which the edges are computed."""

SOURCE_STEP = "mdio/step"
"""(F,) int64: the source's steps, if they do not increase as H5MD requires."""

MANIFEST = "mdio/manifest"

CREATOR = "mdio"
"""The creator's name in mdio's files."""

_FULL_DISK_REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the quota is used up",
    errno.EFBIG: "the file is larger than the limit that is set",
}

ROWS_AT_A_TIME = 1 << 16
"""Rows of a column that are read or written at a time."""

MAX_CACHED_NBYTES = 4 << 20
"""Columns up to this size stay in memory once one of their rows is read."""

READ_NBYTES = 4 << 20
"""Bytes read at a time for a checksum: a large request that fits a processor's cache."""


def manifest_text(file: h5py.File, path: Path) -> str:
    """Return the manifest of a file; raises one of `FOREIGN_ERRORS` if it has none."""
    dataset = file[MANIFEST]
    if h5py.check_string_dtype(dataset.dtype).length is None:  # mdio writes a fixed length
        check_heaps(path)
    text: str = dataset.asstr()[()]
    return text


def duplicate_descriptor(file: h5py.File) -> int:
    """Return a new descriptor of the file that HDF5 has open, even if it has been renamed.

    -1 for an object in a store, which is opened again.
    """
    if file.driver != "sec2":
        return -1
    fd = os.dup(file.id.get_vfd_handle())
    with suppress(OSError):  # otherwise it would keep HDF5's lock
        fcntl.flock(fd, fcntl.LOCK_UN)
    return fd


def checksum(file: OpenFile, offset: int, nbytes: int, crc: int = 0) -> int:
    """Return the crc32c of bytes of the file, continued from `crc`; raises CorruptLayoutError."""
    buffer = uninitialised_array((min(READ_NBYTES, nbytes),), np.uint8)
    for begin in range(0, nbytes, READ_NBYTES):
        view = buffer[: min(READ_NBYTES, nbytes - begin)]
        file.fill(offset + begin, view)
        crc = crc32c(view, crc)
    return crc


@contextmanager
def as_output_error(path: Path) -> Iterator[None]:
    """Turn errors of the system and of HDF5 while writing into OutputError."""
    try:
        yield
    except OutputError:
        raise
    except FOREIGN_ERRORS as error:
        number, text = getattr(error, "errno", None), one_line(error)
        reason = _FULL_DISK_REASONS.get(number) if number is not None else None
        if reason is None:  # HDF5 before 2.0 has errno in its text only, MPI-IO its description
            reasons = (
                known_reason
                for code, known_reason in _FULL_DISK_REASONS.items()
                if f"errno = {code}," in text or os.strerror(code) in text
            )
            reason = next(reasons, None)
        name = TEMPORARY.sub(r"\1", str(path))
        raise OutputError(
            f"{name}: cannot be written: {reason or text}; fix that and convert again"
        ) from error


@dataclass(slots=True)
class Column:
    """A contiguous dataset with a row for each frame, read and written without HDF5."""

    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    crc: int | None = None
    """Expected crc32c of all its bytes, if known."""
    name: str = ""
    _rows: NDArray[Any] | None = None
    _verified: bool = False

    @classmethod
    def of(cls, dataset: h5py.Dataset, crc: int | None = None, name: str = "") -> Column:
        """Return the column of `dataset`; raises ValueError if it is not contiguous."""
        offset = dataset.id.get_offset()
        if offset is None:
            raise ValueError(f"{dataset.name} is not stored contiguously")
        return cls(offset, dataset.dtype, dataset.shape, crc, name)

    @property
    def row_nbytes(self) -> int:
        return self.dtype.itemsize * int(np.prod(self.shape[1:], dtype=np.int64))

    @property
    def is_cached(self) -> bool:
        """Whether all rows stay in memory once one of them is read."""
        return self.row_nbytes * self.shape[0] <= MAX_CACHED_NBYTES

    def read(self, file: OpenFile, start: int, stop: int) -> NDArray[Any]:
        """Return rows ``start:stop``; raises CorruptLayoutError.

        The first call verifies the whole column.
        """
        rows = self._rows
        if rows is None:
            if not self.is_cached:
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

    def runs(self) -> Iterator[tuple[int, int]]:
        """Yield (start, stop) of the runs of rows that are read or written at a time."""
        for start in range(0, self.shape[0], ROWS_AT_A_TIME):
            yield start, min(start + ROWS_AT_A_TIME, self.shape[0])

    def checksum(self, file: OpenFile) -> int:
        """Return the crc32c of all rows as they are on disk."""
        return checksum(file, self.offset, self.row_nbytes * self.shape[0])

    def verify(self, file: OpenFile) -> None:
        self._compare(self.checksum(file))

    def _compare(self, crc: int) -> None:
        if self.crc is not None and crc != self.crc:
            raise CorruptLayoutError(
                f"{self.name}: crc32c {crc:08x} found, {self.crc:08x} expected; the file is "
                "damaged: convert the source again"
            )

    def write(self, fd: int, start: int, rows: NDArray[Any], path: Path) -> None:
        self._rows = None
        with as_output_error(path):
            rows = np.ascontiguousarray(rows, self.dtype)
            write_all(fd, self.offset + start * self.row_nbytes, rows)


@dataclass(frozen=True, slots=True)
class Flavour:
    """Units of stored numbers, and the name of the full system."""

    units: Mapping[str, str]
    factors: Mapping[str, float] = field(default_factory=dict)
    """By field, the factor from stored numbers to those in memory; 1 for fields without one."""
    system_name: str | None = None
    """Another name for the group of all atoms, which then always has box edges."""

    def to_stored_units(self, name: str, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return numbers of a field in the units in which they are stored.

        They are divided by what reading multiplies with, so that it gives the same numbers.
        """
        return values / np.float32(self.factors[name]) if name in self.factors else values


_FLAVOURS = MappingProxyType(
    {
        None: Flavour(UNITS),
        "gromacs": Flavour(
            {"positions": "nm", "velocities": "nm ps-1", "forces": "kJ mol-1 nm-1"},
            {"positions": 10.0, "velocities": 10.0, "forces": 0.1},
            "system",
        ),
    }
)


def get_flavour(name: str | None) -> Flavour:
    """Return a flavour by name; raises PlanError for an unknown one."""
    if name not in _FLAVOURS:
        names = ", ".join(key for key in _FLAVOURS if key)
        raise PlanError(f"--flavour {name}: there is no such flavour of h5md, only {names}")
    return _FLAVOURS[name]
