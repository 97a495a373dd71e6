"""The header of a DCD file (CHARMM, NAMD, LAMMPS, X-PLOR), and what follows from it.

A DCD file is a run of Fortran records: length, bytes, length again. The facts are those of the
readers of VMD (dcdplugin) and MDAnalysis (libdcd): 84 bytes that begin with ``CORD`` and hold 20
integers, a record with titles, one with the number of atoms, and with fixed atoms one with the
numbers of the free ones. Frames are a record with the unit cell (where the header says so), and
one for all x, all y, all z and, in CHARMM files with a fourth dimension, all w.

DCD frames as bytes that can be copied: the header counts them and dates the first one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import SourceError
from mdio.core.files.reading import OpenFile
from mdio.layouts.native.fixed_records import PositionalFile
from mdio.layouts.tables import FrameTable

FIRST_RECORD_NBYTES = 84
CELL_NBYTES = 48
"""Six float64."""
TITLE_NBYTES = 80
MARKER_TYPES = ("<i4", ">i4", "<i8", ">i8")
"""Lengths of records are of 4 bytes; of 8 with some Fortran compilers."""


@dataclass(frozen=True, slots=True, eq=False)
class DCDHeader:
    """What the header of a DCD file says."""

    marker: np.dtype[np.int64]
    """Integer type of the lengths around records; its byte order is that of all numbers."""
    nbytes: int
    """Where the first frame begins."""
    n_atoms: int
    free: NDArray[np.int64] | None
    """Atoms that frames after the first one hold, counted from 0; None if there are no fixed."""
    istart: int
    """Integration step of the first frame."""
    nsavc: int
    """Integration steps between frames."""
    delta_akma: float
    """Length of an integration step in AKMA units of time."""
    has_cell: bool
    n_dimensions: int
    """3, or 4 with CHARMM's fourth dimension."""
    charmm_version: int
    """Of the CHARMM that wrote it; other programs write 24, X-PLOR 0."""
    is_of_lammps: bool
    """Whether LAMMPS wrote it, whose `delta_akma` is in a unit of its own."""

    @property
    def order(self) -> str:
        """Byte order of all numbers, ``<`` or ``>``."""
        return "<" if self.marker == self.marker.newbyteorder("<") else ">"

    @property
    def n_free(self) -> int:
        """Atoms in each frame after the first."""
        return self.n_atoms if self.free is None else self.free.size

    @property
    def cell_nbytes(self) -> int:
        """Bytes of the unit cell's record."""
        return CELL_NBYTES + 2 * self.marker.itemsize if self.has_cell else 0

    def record_nbytes(self, n_atoms: int) -> int:
        """Bytes of the record of one dimension of `n_atoms`."""
        return 4 * n_atoms + 2 * self.marker.itemsize

    def frame_nbytes(self, n_atoms: int) -> int:
        """Bytes of a frame that holds `n_atoms`."""
        return self.cell_nbytes + self.n_dimensions * self.record_nbytes(n_atoms)

    def frame_offset(self, frame: int) -> int:
        """Where a frame begins in the file."""
        if frame == 0:
            return self.nbytes
        first = self.nbytes + self.frame_nbytes(self.n_atoms)
        return first + (frame - 1) * self.frame_nbytes(self.n_free)


def looks_like_dcd(head: bytes) -> str | None:
    """Return the type of the record lengths if `head` (12 bytes) begins a DCD file."""
    for marker in MARKER_TYPES:
        size = np.dtype(marker).itemsize
        if head[size : size + 4] == b"CORD" and _integer(head[:size], marker) == 84:
            return marker
    return None


def _integer(raw: bytes, dtype: str) -> int:
    return int(np.frombuffer(raw, dtype)[0])


class _Records:
    """Reads one Fortran record after the other."""

    def __init__(self, file: PositionalFile, marker: str) -> None:
        self.file, self.marker = file, marker
        self.size = np.dtype(marker).itemsize
        self.offset = 0

    def next(self, what: str, nbytes: int | None = None) -> bytes:
        found = self._length()
        room = self.file.nbytes - self.offset - 2 * self.size
        if found is None or not 0 <= found <= room or (nbytes is not None and found != nbytes):
            wanted = f"at most {max(room, 0)}" if nbytes is None else str(nbytes)
            raise SourceError(
                f"{self.file.path}: the record of {what} at byte {self.offset} has a length of "
                f"{found}, expected {wanted}: the header is truncated or damaged"
            )
        payload = self.file.read(self.offset + self.size, found)
        self.offset += self.size + found
        if self._length() != found:
            raise SourceError(
                f"{self.file.path}: the record of {what} does not end at byte {self.offset} as its "
                f"length of {found} says: the header is damaged"
            )
        self.offset += self.size
        return payload

    def titles(self) -> bytes:
        """Return the record of titles: how many there are, and 80 bytes of each.

        MDAnalysis 0.17.0 wrote 164 as its length whatever the number of titles was; then that says
        where the record ends.
        """
        begin, length = self.offset, self._length()
        count = self.file.read(begin + self.size, 4)
        if length is not None and len(count) == 4:
            nbytes = 4 + TITLE_NBYTES * _integer(count, f"{self.marker[0]}i4")
            end = begin + self.size + nbytes
            if 4 <= nbytes <= self.file.nbytes - end and length != nbytes:
                behind = self.file.read(end, self.size)
                at_its_end = self.file.read(begin + self.size + max(length, 0), self.size)
                mark = self.file.read(begin, self.size)
                if behind == mark != at_its_end:
                    self.offset = end + self.size
                    return self.file.read(begin + self.size, nbytes)
        return self.next("titles")

    def _length(self) -> int | None:
        raw = self.file.read(self.offset, self.size)
        return _integer(raw, self.marker) if len(raw) == self.size else None


def read_header(file: PositionalFile) -> DCDHeader:
    """Read the header of an opened DCD file.

    Raises SourceError: it is not that of a DCD file, or damaged.
    """
    head = file.read(0, 12)
    marker = looks_like_dcd(head)
    if marker is None:
        raise SourceError(
            f"{file.path}: begins with {head!r}, expected a length of 84 and CORD: no DCD file"
        )
    records = _Records(file, marker)
    first = records.next("control numbers", FIRST_RECORD_NBYTES)
    order = marker[0]
    control = np.frombuffer(first, f"{order}i4").astype(np.int64)
    # The last number is the version of CHARMM; X-PLOR, which has a float64 step, leaves it 0.
    is_charmm = bool(control[20])
    delta = np.frombuffer(first, f"{order}f4" if is_charmm else f"{order}f8", 1, offset=40)
    titles = records.titles()
    n_atoms = _integer(records.next("the number of atoms", 4), f"{order}i4")
    n_fixed = int(control[9])
    if n_atoms < 1 or not 0 <= n_fixed <= n_atoms:
        raise SourceError(
            f"{file.path}: the header says {n_atoms} atoms, {n_fixed} of them fixed; "
            "expected at least one, and no more fixed ones than there are"
        )
    free = None
    if n_fixed:
        raw = records.next("free atoms", 4 * (n_atoms - n_fixed))
        free = np.frombuffer(raw, f"{order}i4").astype(np.int64) - 1
        if free.size and not 0 <= free.min() <= free.max() < n_atoms:
            raise SourceError(
                f"{file.path}: the list of free atoms has numbers outside 1 to {n_atoms}"
            )
    return DCDHeader(
        marker=np.dtype(marker),
        nbytes=records.offset,
        n_atoms=n_atoms,
        free=free,
        istart=int(control[2]),
        nsavc=int(control[3]),
        delta_akma=float(delta[0]),
        has_cell=is_charmm and bool(control[11]),
        n_dimensions=4 if is_charmm and control[12] == 1 else 3,
        charmm_version=int(control[20]),
        is_of_lammps=b"LAMMPS" in titles,
    )


INT32_MAX = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class _Header:
    """The header of a DCD file: it counts the frames and says when the first one was."""

    raw: bytes
    at: int
    order: str
    istart: int
    stride: int

    def __call__(self, start: int, stop: int) -> bytes:
        numbers = struct.pack(f"{self.order}2i", stop - start, self.istart + self.stride * start)
        return self.raw[: self.at] + numbers + self.raw[self.at + len(numbers) :]


@dataclass(frozen=True, slots=True)
class _Check:
    """Compares the lengths of records with what they should be."""

    markers: tuple[tuple[int, bytes], ...]
    """What every frame has to hold, and at which of its bytes, to be readable."""

    def __call__(
        self, data: NDArray[np.uint8], run: range, frames: FrameTable, _n_atoms: int
    ) -> None:
        stride = int(frames.edges[1] - frames.edges[0])
        rows = data[: len(run) * stride].reshape(len(run), stride)
        for offset, marker in self.markers:
            found = rows[:, offset : offset + len(marker)]
            wrong = (found != np.frombuffer(marker, np.uint8)).any(axis=1)
            if wrong.any():
                row = run.start + int(np.argmax(wrong))
                raise SourceError(
                    f"{frames.path}: frame {frames.first + row} is damaged: the length of a record "
                    f"of it, at byte {int(frames.edges[row]) + offset}, is not what it should be; "
                    "copy the file from where it came from again"
                )


def bytes_of(path: Path, header: DCDHeader, n_frames: int) -> FrameTable | None:
    """Return where frames lie; None if copies would not make valid files.

    That is so with fixed atoms (only the first frame has them) or with steps beyond 32 bits.
    """
    stride = max(header.nsavc, 1)
    if header.free is not None or header.istart + stride * n_frames > INT32_MAX:
        return None
    with OpenFile(path) as file:
        raw = file.peek(0, header.nbytes)
    own = _Header(raw, header.marker.itemsize + 4, header.order, header.istart, stride)
    numbers = np.arange(n_frames + 1, dtype=np.int64)
    edges = header.nbytes + header.frame_nbytes(header.n_atoms) * numbers
    check = _Check(tuple(_markers(header)))
    return FrameTable(path, edges, own, check=check, byte_order=header.order)


def _markers(header: DCDHeader) -> Iterator[tuple[int, bytes]]:
    """Yield the lengths that stand before and behind each record of a frame."""
    at, size = 0, header.marker.itemsize
    lengths = [CELL_NBYTES] * header.has_cell + [4 * header.n_atoms] * header.n_dimensions
    for nbytes in lengths:
        marker = np.array(nbytes, header.marker).tobytes()
        yield at, marker
        yield at + size + nbytes, marker
        at += nbytes + 2 * size
