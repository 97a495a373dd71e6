"""DCD files (CHARMM, NAMD, LAMMPS, CP2K, X-PLOR), read without MDAnalysis, and written.

A DCD file is a run of Fortran records: length, bytes, length again. As the readers of VMD
(dcdplugin) and MDAnalysis (libdcd) have it, these are: 84 bytes that begin with ``CORD`` and hold
20 integers, a record with titles, one with the number of atoms, and with fixed atoms one with the
indices of the free ones. Frames are a record with the unit cell (where the header says so), and one
for all x, all y, all z and, in CHARMM files with a fourth dimension, all w.

All frames (after the first one, where atoms are fixed) have the same size, so that any run of them
is one read, and a narrow range of atoms is three small reads a frame. What comes back is what
MDAnalysis' DCDReader gives:

- The number of frames follows from the size of the file, not from the header, which programs that
  are killed leave at 0. Of a file that ends within a frame, the complete frames are read.
- ``time = (frame + istart / nsavc) * dt`` with ``dt = delta * nsavc``, from AKMA units to ps; from
  another unit where the titles name a program that writes it (`UNITS_OF_TIME`). A header with an
  `nsavc` of 0, which MDAnalysis cannot read, counts as 1.
- ``step`` is ``frame + 1``, as in MDAnalysis' ``ts.data["step"]`` of DCD files; the unit cell holds
  cosines, degrees or the symmetric matrix of CHARMM, told apart by the version of CHARMM and the
  time step in the header, then by its values. Angles that are not numbers, as HOOMD writes them in
  two dimensions, are right ones.

Besides what MDAnalysis reads: a fourth dimension, which is skipped; lengths of 8 bytes; and CHARMM
files of the other byte order have their own `delta`, which MDAnalysis 2.11 does not swap.

What is written is of CHARMM's flavour, little-endian, with unit cells; the values of fields
follow MDAnalysis: cells as ``A, cos(gamma), B, cos(beta), cos(alpha), C`` (NAMD since 2.5), time
steps in AKMA units.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.boxes import ROTATED_CELL, are_rotated, boxes_from_vectors
from mdio.core.errors import SourceError
from mdio.core.files.fingerprint import read_head
from mdio.core.files.reading import OpenFile
from mdio.core.frames import AtomIndices, Flaws, FrameBlock, LostBytes, TrajectoryInfo
from mdio.core.kernels import planar_to_xyz, xyz_to_planar
from mdio.core.units import AKMA_TO_PS, ATOMIC_TIME_TO_PS, FS_TO_PS
from mdio.core.words import number_text
from mdio.layouts.base import FormatFacts
from mdio.layouts.native.encoder import Bytes, Encoder, note_on_coarse_times
from mdio.layouts.native.file import (
    NO_ATOMS,
    NativeLayout,
    PositionalFile,
    RecordField,
    Rows,
    skips_gaps,
)
from mdio.layouts.tables import ChunkTable, FrameTable, Tables, frame_chunk_table

FIRST_RECORD_NBYTES = 84
VELOCITIES = b"VELD"
"""Begins a file of velocities, where one of positions has ``CORD``."""
CELL_NBYTES = 48
SIDES = ("before", "after")
"""Where a record has its length: before and after its bytes."""
TITLE_NBYTES = 80
MARKER_TYPES = ("<i4", ">i4", "<i8", ">i8")
"""Types of the lengths around records: 4 bytes, or 8 with some Fortran compilers."""


@dataclass(frozen=True, slots=True, eq=False)
class DCDHeader:
    """The header of a DCD file."""

    marker: np.dtype[np.int64]
    """Integer type of the lengths around records; its byte order is that of all numbers."""
    nbytes: int
    """Bytes of the header; the first frame begins there."""
    n_atoms: int
    free: NDArray[np.int64] | None
    """Atoms in the frames after the first, from 0; None if no atoms are fixed."""
    istart: int
    """Integration step of the first frame."""
    nsavc: int
    """Integration steps between frames."""
    delta_ps: float
    """Length of an integration step."""
    delta_of_any: str | None
    """That length and who writes it of any trajectory; None if it is known to mean something."""
    has_cell: bool
    n_dimensions: int
    """3, or 4 with CHARMM's fourth dimension."""
    has_matrices: bool
    """Whether cells are the symmetric matrices that newer versions of CHARMM write."""
    is_of_lammps: bool
    """Whether LAMMPS wrote it, whose unit of time is not known."""
    note_on_contents: str | None
    """What its numbers are, where the titles say that they are no positions in angstrom."""

    @property
    def order(self) -> str:
        return "<" if self.marker == self.marker.newbyteorder("<") else ">"

    @property
    def n_free(self) -> int:
        return self.n_atoms if self.free is None else self.free.size

    @property
    def cell_nbytes(self) -> int:
        return CELL_NBYTES + 2 * self.marker.itemsize if self.has_cell else 0

    def fields(self, frame: int) -> dict[str, RecordField]:
        """Return the fields of frame 0, or those of frame 1 and all later ones."""
        n_atoms = self.n_atoms if frame == 0 else self.n_free
        stride, size = self.frame_nbytes(n_atoms), self.marker.itemsize
        begin = self.frame_offset(frame) - frame * stride

        axes = begin + self.cell_nbytes
        numbers, record_nbytes = np.dtype(f"{self.order}f4"), self.record_nbytes(n_atoms)
        shape = (self.n_dimensions, n_atoms)
        fields = {
            "axes": RecordField(axes + size, stride, numbers, shape, (record_nbytes, 4)),
            "before": RecordField(axes, stride, self.marker, shape[:1], (record_nbytes,)),
            "after": RecordField(
                axes + record_nbytes - size, stride, self.marker, shape[:1], (record_nbytes,)
            ),
        }
        for number, name in enumerate("xyz"):
            fields[name] = RecordField(
                axes + size + number * record_nbytes, stride, numbers, (n_atoms,)
            )
        if self.has_cell:
            values = ("values", f"{self.order}f8", (6,))
            cell = np.dtype([("before", self.marker), values, ("after", self.marker)])
            fields["cell"] = RecordField(begin, stride, cell)
        return fields

    def record_nbytes(self, n_atoms: int) -> int:
        return 4 * n_atoms + 2 * self.marker.itemsize

    def frame_nbytes(self, n_atoms: int) -> int:
        return self.cell_nbytes + self.n_dimensions * self.record_nbytes(n_atoms)

    def frame_offset(self, frame: int) -> int:
        if frame == 0:
            return self.nbytes
        first = self.nbytes + self.frame_nbytes(self.n_atoms)
        return first + (frame - 1) * self.frame_nbytes(self.n_free)


def marker_type(head: bytes) -> str | None:
    """Return the type of the record lengths if `head` (12 bytes) begins a DCD file."""
    for marker in MARKER_TYPES:
        size = np.dtype(marker).itemsize
        if head[size : size + 4] in (b"CORD", VELOCITIES) and _integer(head[:size], marker) == 84:
            return marker
    return None


def _integer(raw: bytes, dtype: str) -> int:
    return int(np.frombuffer(raw, dtype)[0])


class _Records:
    """Reads Fortran records in order."""

    def __init__(self, file: PositionalFile, marker: str) -> None:
        self.file, self.marker = file, marker
        self.size = np.dtype(marker).itemsize
        self.offset = 0

    def next(self, name: str, nbytes: int | None = None) -> bytes:
        length = self._length()
        remaining_nbytes = self.file.nbytes - self.offset - 2 * self.size
        if (
            length is None
            or not 0 <= length <= remaining_nbytes
            or (nbytes is not None and length != nbytes)
        ):
            expected = str(nbytes)
            if nbytes in (None, length):
                expected = f"at most {max(remaining_nbytes, 0)}, since the file ends there"
            raise SourceError(
                f"{self.file.path}: the record of {name} at byte {self.offset} has a length of "
                f"{length}, expected {expected}: the header is truncated or damaged"
            )
        payload = self.file.read(self.offset + self.size, length)
        self.offset += self.size + length
        if self._length() != length:
            raise SourceError(
                f"{self.file.path}: the record of {name} does not end at byte {self.offset} as its "
                f"length of {length} says: the header is damaged"
            )
        self.offset += self.size
        return payload

    def titles(self) -> bytes:
        """Return the record of titles: their number, and 80 bytes of each.

        MDAnalysis 0.17.0 wrote 164 as its length for any number of titles; then the number of
        titles determines the end of the record.
        """
        begin, length = self.offset, self._length()
        count = self.file.read(begin + self.size, 4)
        if length is not None and len(count) == 4:
            nbytes = 4 + TITLE_NBYTES * _integer(count, f"{self.marker[0]}i4")
            end = begin + self.size + nbytes
            if 4 <= nbytes <= self.file.nbytes - end and length != nbytes:
                next_marker = self.file.read(end, self.size)
                marker_at_length = self.file.read(begin + self.size + max(length, 0), self.size)
                marker = self.file.read(begin, self.size)
                if next_marker == marker != marker_at_length:
                    self.offset = end + self.size
                    return self.file.read(begin + self.size, nbytes)
        return self.next("titles")

    def _length(self) -> int | None:
        raw = self.file.read(self.offset, self.size)
        return _integer(raw, self.marker) if len(raw) == self.size else None


def read_header(file: PositionalFile) -> DCDHeader:
    """Read the header of an opened DCD file; raises SourceError."""
    head = file.read(0, 12)
    marker = marker_type(head)
    if marker is None:
        raise SourceError(
            f"{file.path}: begins with {head!r}, expected a length of 84 and CORD: no DCD file"
        )
    if VELOCITIES in head:
        raise SourceError(
            f"{file.path}: begins with VELD: its frames are velocities (CHARMM and GENESIS write "
            "them so), and a trajectory needs positions, which begin with CORD; give that file"
        )
    records = _Records(file, marker)
    first = records.next("control numbers", FIRST_RECORD_NBYTES)
    order = marker[0]
    control = np.frombuffer(first, f"{order}i4").astype(np.int64)
    # The last number is the version of CHARMM; X-PLOR, which has a float64 step, leaves it 0.
    is_charmm = bool(control[20])
    delta = np.frombuffer(first, f"{order}f4" if is_charmm else f"{order}f8", 1, offset=40)
    titles = records.titles()
    unit_ps = next((unit for mark, unit in UNITS_OF_TIME.items() if mark in titles), None)
    delta_of_any = DELTAS_OF_ANY.get(float(delta[0])) if unit_ps is None else None
    if TINKER_HP in titles:
        delta_of_any = "the number of a step, which Tinker-HP writes"
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
        delta_ps=float(delta[0]) * (AKMA_TO_PS if unit_ps is None else unit_ps),
        delta_of_any=delta_of_any,
        has_cell=is_charmm and bool(control[11]),
        n_dimensions=4 if is_charmm and control[12] == 1 else 3,
        has_matrices=control[20] > MAX_VERSION_OF_OTHERS and delta[0] != IMITATORS_DELTA,
        is_of_lammps=b"LAMMPS" in titles,
        note_on_contents=next(
            (note for mark, note in NOTES_BY_TITLE.items() if re.search(mark, titles)), None
        ),
    )


INT32_MAX = (1 << 31) - 1


def _part_header(
    raw: bytes, offset: int, order: str, istart: int, step_stride: int, start: int, stop: int
) -> bytes:
    """Return the header of a file of frames ``start:stop``, with their number and first step.

    `raw`: header of the whole file. `offset`: of these two numbers in it. `order`: byte order.
    """
    numbers = struct.pack(f"{order}2i", stop - start, istart + step_stride * start)
    return raw[:offset] + numbers + raw[offset + len(numbers) :]


def _check_lengths(
    path: Path, arrays: Mapping[str, NDArray[Any]], n_atoms: int, first: int
) -> None:
    """Compare the lengths around records, of frames from number `first` on."""
    expected = [(arrays["cell"][side], CELL_NBYTES) for side in SIDES if "cell" in arrays]
    expected += [(arrays[side], 4 * n_atoms) for side in SIDES if side in arrays]
    for lengths, nbytes in expected:  # (F,), or (F, D) of all axes
        if np.count_nonzero(lengths != nbytes):
            row, *axis = index = tuple(np.argwhere(lengths != nbytes)[0])
            raise SourceError(
                f"{path}: frame {first + row} is damaged: the record of its "
                f"{'xyzw'[axis[0]] if axis else 'unit cell'} has a length of {lengths[index]} "
                f"bytes, expected {nbytes}; copy the file from its source again"
            )


def _check_frames(
    header: DCDHeader, data: NDArray[np.uint8], run: range, frames: FrameTable, n_atoms: int
) -> None:
    rows = Rows(data, len(run), header.frame_nbytes(n_atoms))
    fields = {name: field for name, field in header.fields(0).items() if name in ("cell", *SIDES)}
    arrays = {name: rows.view(field, field.begin - header.nbytes) for name, field in fields.items()}
    _check_lengths(frames.path, arrays, n_atoms, frames.first + run.start)


BOX_FROM_CELL = (0, 2, 5, 4, 3, 1)
"""Indices of lengths and alpha, beta, gamma in a record: A, gamma, B, beta, alpha, C."""
MATRIX_ORDER = ((0, 1, 3), (1, 2, 4), (3, 4, 5))  # the rows of CHARMM's symmetric matrix


MAX_VERSION_OF_OTHERS = 25
"""Most other programs write version 24 of CHARMM, X-PLOR 0, and lengths and angles."""
IMITATORS_DELTA = np.float32(0.001)
"""Step in the headers of programs that write newer versions, and lengths and angles: cpptraj (35),
LOOS (27), MODYLAS (36). CHARMM's own is in AKMA units, 0.02 for one of 1 fs."""


UNITS_OF_TIME = {
    b"LAMMPS": FS_TO_PS,
    b"DCD file created by CP2K": FS_TO_PS,
    b"DCD trajectory written by CPMD": ATOMIC_TIME_TO_PS,
    b"Created by https://sire.openbiosim.org": 1.0,
}
"""Units of steps that are not AKMA's, in ps, by what the titles of their programs hold."""
TINKER_HP = b"Created by Tinker-HP"
NAMES_OF_NAMD = {"vel": "velocities, in units of 20.455 angstrom/ps", "force": "forces"}
NOTES_BY_TITLE = {
    rb"Created by HOOMD": "HOOMD wrote it, which has no units: lengths are taken to be in angstrom",
    **{
        rb"FILENAME=\S*\.%sdcd\b" % name.encode(): (
            f"it holds {contents}, as the name in its titles says and NAMD names files; they are "
            "read as if they were positions"
        )
        for name, contents in NAMES_OF_NAMD.items()
    },
}
"""Notes on what files hold, by patterns of their titles."""


DELTAS_OF_ANY = {
    0.0: "0, which Tinker, HOOMD and chemfiles write",
    1.0: "1 AKMA unit, which VMD, catdcd and mdtraj write",
    float(IMITATORS_DELTA): "0.001, which cpptraj, LOOS and MODYLAS write",
}
"""Steps that programs write whatever the length of an integration step was."""


def boxes_from_cells(cells: NDArray[np.float64], has_matrices: bool = False) -> NDArray[np.float32]:
    """Return the boxes (F, 6) that unit-cell records mean; zeros where there is no cell.

    Newer versions of CHARMM write the symmetric matrix of the cell; like chemfiles, this recognises
    them by the version in the header, if no other program is known to write that header. For older
    ones and other programs the values decide, as in MDAnalysis: three angles between -1 and 1 are
    cosines (NAMD after 2.5, VMD); with a negative number or an angle beyond 180 it is the matrix;
    else they are degrees. Beside a length of 0, angles that are not numbers are right ones.
    """
    if len(cells) == 1 and not has_matrices:
        a, gamma, b, beta, alpha, c = cells[0].tolist()
        if alpha == beta == gamma == 0:  # cosines
            alpha = beta = gamma = 90.0
        are_degrees = all(1 < angle <= 180 for angle in (alpha, beta, gamma))
        if are_degrees and all(0 < length < 1e30 for length in (a, b, c)):
            # The same numbers in less time, of which single frames took a third.
            return np.array([[a, b, c, alpha, beta, gamma]], np.float32)
    lengths_angles = cells[:, BOX_FROM_CELL]
    angles = lengths_angles[:, 3:]
    has_matrix = are_matrices(cells, has_matrices)
    is_absent = np.isnan(angles) & (lengths_angles[:, :3] == 0).any(axis=1, keepdims=True)
    has_cosines = ((np.abs(angles) <= 1) | is_absent).all(axis=1) & ~has_matrix
    angles[has_cosines] = 90.0 - np.arcsin(angles[has_cosines]) * 90.0 / (np.pi / 2)
    angles[is_absent] = 90
    with np.errstate(over="ignore", invalid="ignore"):
        boxes = lengths_angles.astype(np.float32)
    if has_matrix.any():
        boxes[has_matrix] = boxes_from_vectors(cells[has_matrix][:, MATRIX_ORDER])
    boxes[(boxes[:, :3] == 0).all(axis=1)] = 0
    return boxes


def are_matrices(cells: NDArray[np.float64], has_matrices: bool) -> NDArray[np.bool_]:
    """Return which cells, (F, 6), are symmetric matrices; see `boxes_from_cells`."""
    lengths_angles = cells[:, BOX_FROM_CELL]
    angles = lengths_angles[:, 3:]
    is_charmm_matrix = np.zeros(len(cells), bool)
    if has_matrices:
        vectors = cells[:, MATRIX_ORDER]  # which span a cell if all their minors are positive
        with np.errstate(all="ignore"):
            minors = [np.linalg.det(vectors[:, :size, :size]) > 0 for size in (1, 2, 3)]
        is_charmm_matrix = np.all(minors, axis=0) & (angles != 90).any(axis=1)
    has_cosines = (np.abs(angles) <= 1).all(axis=1)
    are_no_lengths = (lengths_angles < 0).any(axis=1) | (angles > 180).any(axis=1)
    return np.asarray(is_charmm_matrix | ~has_cosines & are_no_lengths)


class DCDLayout(NativeLayout):
    """A DCD file."""

    name = "dcd"
    facts = FormatFacts(
        suffixes=(".dcd",),
        options=frozenset({"checksums", "dt"}),
        step_is_frame_number=True,
        can_copy_frames=True,
        reads_remote=True,
    )

    _header: DCDHeader
    _fields: tuple[dict[str, RecordField], dict[str, RecordField]]
    """Fields of the first frame, and of the others."""
    _first_frame: NDArray[np.float32]

    @classmethod
    def sniff(cls, path: Path) -> bool:
        return marker_type(read_head(path)[:12]) is not None

    @property
    def header(self) -> DCDHeader:
        _ = self.info
        return self._header

    def _open_frames(self) -> TrajectoryInfo:
        header = self._header = read_header(self._file)
        self._fields = header.fields(0), header.fields(1)
        self._step_ps = self._dt_ps / self._interval
        n_frames, loss = self._count_frames()
        with np.errstate(all="ignore"):
            times = self._times(np.array([0, n_frames - 1]))
        boxes = np.zeros((1, 6), np.float32)
        notes = self._made_up()
        with suppress(SourceError):  # reading this frame raises it; others may be undamaged
            cells = self._first_cells()
            if cells.any():
                boxes = boxes_from_cells(cells, header.has_matrices)
                matrices = cells[are_matrices(cells, header.has_matrices)][:, MATRIX_ORDER]
                notes += (ROTATED_CELL,) if are_rotated(matrices) else ()
        if header.free is not None:
            self._first_frame = np.empty((1, header.n_atoms, 3), np.float32)
            self._read_records(0, 1, None, self._first_frame, np.empty((1, 6), np.float32))
        return TrajectoryInfo(
            layout=self.name,
            path=str(self.path),
            n_frames=n_frames,
            n_atoms=header.n_atoms,
            dt_ps=self._dt_ps,
            time_first_ps=float(times[0]),
            time_last_ps=float(times[1]),
            has_box=bool(boxes.any()),
            nbytes=self._file.nbytes,
            flaws=Flaws(loss, notes),
        )

    def tables(self) -> Tables:
        header, n_frames = self.header, self.info.n_frames
        step_stride = self._interval
        beyond_32_bits = abs(header.istart + step_stride * n_frames) > INT32_MAX
        if "dt" in self.options or header.free is not None or beyond_32_bits:
            # Copies would lose the time step that the user gave, or the fixed atoms.
            return Tables(None, self._position_table)
        with OpenFile(self.path) as file:
            raw = file.peek(0, header.nbytes)
        offset = header.marker.itemsize + 4
        header_for = partial(_part_header, raw, offset, header.order, header.istart, step_stride)
        edges = header.nbytes + header.frame_nbytes(header.n_atoms) * np.arange(n_frames + 1)
        check, checksums = partial(_check_frames, header), self.options.get("checksums")
        frames = FrameTable(
            self.path, edges, header_for, checksums=checksums, check=check, byte_order=header.order
        )
        return Tables(frames, self._position_table)

    def _position_table(self) -> ChunkTable | None:
        header, n_frames = self.header, self.info.n_frames
        if header.free is not None:
            return None
        begins = header.nbytes + header.frame_nbytes(header.n_atoms) * np.arange(n_frames)
        planes = np.arange(3) * header.record_nbytes(header.n_atoms)
        planes += header.cell_nbytes + header.marker.itemsize
        return frame_chunk_table(
            self.path, begins, planes, header.n_atoms, dtype=f"{header.order}f4"
        )

    def _byte_bounds(self, start: int, stop: int) -> tuple[int, int]:
        return self._header.frame_offset(start), self._header.frame_offset(stop)

    def _count_frames(self) -> tuple[int, tuple[LostBytes, ...]]:
        header = self._header
        first_nbytes = header.frame_nbytes(header.n_atoms)
        n_after_first = self._file.nbytes - header.frame_offset(1)
        if n_after_first == -first_nbytes:
            raise SourceError(f"{self.path}: the file ends with its header and has no frames")
        if n_after_first < 0:
            raise SourceError(
                f"{self.path}: frame 0 is truncated: found {first_nbytes + n_after_first} of its "
                f"{first_nbytes} bytes, so no frame is whole. Copy the file again"
            )
        n_later, lost_nbytes = divmod(n_after_first, header.frame_nbytes(header.n_free))
        n_frames, begin = n_later + 1, self._file.nbytes - lost_nbytes
        return n_frames, (
            LostBytes(str(self.path), n_frames, begin, lost_nbytes),
        ) if lost_nbytes else ()

    @property
    def _interval(self) -> int:
        return self._header.nsavc or 1

    @property
    def _dt_ps(self) -> float:
        dt_ps = self.options.get("dt")
        if dt_ps is not None:
            return float(dt_ps)
        return self._header.delta_ps * self._interval

    def _first_cells(self) -> NDArray[np.float64]:
        """Return the unit cell of the first frame as it is stored, (1, 6); (0, 6) without one."""
        if not self._header.has_cell:
            return np.empty((0, 6))
        arrays = self._file.fields(0, 1, {"cell": self._fields[0]["cell"]})
        _check_lengths(self.path, arrays, self._header.n_atoms, 0)
        return np.asarray(arrays["cell"]["values"].astype(float))

    def _made_up(self) -> tuple[str, ...]:
        note = self._header.note_on_contents
        return (*self._notes_on_times(), *([] if note is None else [note]))

    def _notes_on_times(self) -> tuple[str, ...]:
        dt_ps = self.options.get("dt")
        if dt_ps is not None:
            return (f"frames are {dt_ps:g} ps apart, as asked",)
        if self._header.delta_of_any is not None:
            return (
                f"the header gives the time step as {self._header.delta_of_any} whatever it was: "
                f"frames are {self._dt_ps:.3g} ps apart without --timestep",
            )
        if self._header.is_of_lammps:
            return (
                "LAMMPS wrote it, and does not say in which units: assumed to be angstrom and fs "
                "(its units real); for other times, --timestep sets the ps from frame to frame",
            )
        return ()

    def _times(self, frames: NDArray[np.int64]) -> NDArray[np.float64]:
        steps: NDArray[np.float64] = frames + self._header.istart / np.float64(self._interval)
        return steps * np.float64(self._dt_ps)

    def _read_into(
        self, start: int, stop: int, atoms: AtomIndices | None, block: FrameBlock
    ) -> None:
        frames = np.arange(start, stop)
        block.step[...] = frames + 1
        with np.errstate(all="ignore"):  # numbers in the header may be NaN or huge
            block.time[...] = self._times(frames)
        if self._header.free is None:
            self._read_records(start, stop, atoms, block.positions, block.box)
            return
        row_of_atom = np.full(self._header.n_atoms, -1, np.int64)
        row_of_atom[self._header.free] = np.arange(self._header.n_free)
        row_of_atom = row_of_atom if atoms is None else row_of_atom[atoms]
        free_rows = np.flatnonzero(row_of_atom >= 0)
        block.positions[...] = self._first_frame if atoms is None else self._first_frame[:, atoms]
        if start == 0:
            self._read_records(0, 1, NO_ATOMS, np.empty((1, 0, 3), np.float32), block.box[:1])
        begin = max(start, 1)
        positions = np.empty((stop - begin, free_rows.size, 3), np.float32)
        self._read_records(
            begin, stop, row_of_atom[free_rows], positions, block.box[begin - start :]
        )
        block.positions[begin - start :, free_rows] = positions

    def _read_records(
        self,
        start: int,
        stop: int,
        atoms: AtomIndices | None,
        positions: NDArray[np.float32],
        boxes: NDArray[np.float32],
    ) -> None:
        """Fill positions of `atoms`, indices into the atoms of these frames, and unit cells.

        With fixed atoms, the first frame is read alone.
        """
        header, all_fields = self._header, self._fields[bool(start)]
        fields = {name: field for name, field in all_fields.items() if name not in ("x", "y", "z")}
        low, high = 0, (n_atoms := all_fields["x"].shape[0])
        if atoms is not None:
            low, high = (int(atoms.min()), int(atoms.max()) + 1) if atoms.size else (0, 0)
        unwanted_nbytes = 4 * (n_atoms - (high - low)) * header.n_dimensions
        if low == high or skips_gaps(unwanted_nbytes, header.n_dimensions + 1):
            fields = {"cell": all_fields["cell"]} if header.has_cell else {}
            fields |= {name: all_fields[name].part(low, high) for name in "xyz" if low < high}
            atoms = None if atoms is None else atoms - low
        boxes[...] = 0
        for first, end, arrays in self._file.records(start, stop, fields) if fields else ():
            _check_lengths(self.path, arrays, n_atoms, first)
            rows = slice(first - start, end - start)
            if "cell" in arrays:
                cells = arrays["cell"]["values"].astype(float)
                boxes[rows] = boxes_from_cells(cells, header.has_matrices)
            if "axes" in arrays:
                planar_to_xyz(arrays["axes"][:, :3], positions[rows], atoms)
            elif low < high:
                planes = np.stack([arrays[name] for name in "xyz"], axis=1)
                planar_to_xyz(planes, positions[rows], atoms)


CELL_FROM_BOX = [0, 5, 1, 4, 3, 2]
TITLE = b"written by mdio"

HEADER = struct.Struct("<i4s9if10i2i")
"""Marker, CORD, frames, istart, nsavc, 6 unused, delta, cell flag, 8 unused, version, marker (84);
then marker and number of titles of the next record."""


@dataclass(frozen=True)
class DCDEncoder(Encoder):
    """DCD: positions and cells, and only times that are equally spaced.

    The time of a frame is not stored: readers compute it from the number of the first step, the
    steps between frames and the time step, in single precision. Where times are not equally
    spaced (see `note_on_lost_times`), they run evenly from the first to the last, or by 1 ps if the
    last is not after the first; from 0 if the first is not a number.
    """

    keeps_steps = False  # its header may have them, but other programs write anything there

    @property
    def header_nbytes(self) -> int:
        return 92 + (4 + 4 + TITLE_NBYTES + 4) + 12

    @property
    def frame_nbytes(self) -> int:
        return 56 + 3 * (4 * self.n_atoms + 8)

    def header(self, time: NDArray[np.float64], step: NDArray[np.int64]) -> bytes:
        istart, nsavc, dt_ps = _header_times(time, step)
        first = HEADER.pack(
            84, b"CORD", len(time), istart, nsavc, *[0] * 6,
            dt_ps / AKMA_TO_PS / nsavc, 1, *[0] * 8, 24, 84, 4 + TITLE_NBYTES,
        )  # fmt: skip
        title = struct.pack(f"<i{TITLE_NBYTES}si", 1, TITLE, 4 + TITLE_NBYTES)
        return first + title + struct.pack("<3i", 4, self.n_atoms, 4)

    def encode(self, block: FrameBlock, out: Bytes | None = None) -> Bytes:
        n_frames, n_atoms = block.n_frames, self.n_atoms
        if out is None:
            out = np.empty(n_frames * self.frame_nbytes, np.uint8)
        words = out.view("<i4").reshape(n_frames, -1)
        words[:, [0, 13]] = 48
        words[:, 1:13] = _cells(block.box).view("<i4")
        planes = words[:, 14:].reshape(n_frames, 3, n_atoms + 2)
        planes[:, :, [0, -1]] = 4 * n_atoms
        xyz_to_planar(block.positions, planes[:, :, 1:-1].view("<f4"))
        return out

    def note_on_lost_times(self, time: NDArray[np.float64]) -> str | None:
        """Return a sentence if these times are not equally spaced, with the first that differs."""
        # As `_header_times` stores them.
        even_times = _first_time(time) + _mean_dt(time) * np.arange(len(time))
        # Times may come from a format in single precision, and go into one.
        tolerance = min(4e-7 * np.abs(even_times).max() + 1e-6 * _mean_dt(time), _mean_dt(time) / 4)
        differs = ~(np.abs(time - even_times) <= tolerance)  # NaN too
        if not differs.any():
            istart, nsavc, dt_ps = _header_times(time, np.empty(0, np.int64))
            stored_dt = float(np.float32(dt_ps / AKMA_TO_PS / nsavc)) * AKMA_TO_PS * nsavc
            frames = np.arange(len(time), dtype=np.float64)
            return note_on_coarse_times(time, (frames + istart / nsavc) * stored_dt)
        first = int(np.argmax(differs))
        ascends = 0 < time[-1] - _first_time(time) < np.inf and np.isfinite(time[0])
        advice = "they do not grow, so they cannot be evened out and are counted again"
        if ascends:
            advice = "they are evened out"
        return (
            f"dcd cannot hold times that are not equally spaced: {advice}; the file says "
            f"{number_text(even_times[0])} to {number_text(even_times[-1])} ps, every "
            f"{number_text(_mean_dt(time))} ps. Frame {first} is the first to differ, at "
            f"{number_text(even_times[first])} ps instead of {number_text(time[first])} ps; h5md, "
            "zarr, trr and ncdf hold any times"
        )


def _cells(box: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return cells (F, 6) in the order of DCD, in the arithmetic of MDAnalysis' writer."""
    cells = np.take(box, CELL_FROM_BOX, axis=1)
    angles = [1, 3, 4]
    cells[:, angles] = np.sin(np.deg2rad(np.float32(90.0) - cells[:, angles]))
    cells[~box.any(axis=1)] = 0  # cosines of right angles: of angles of 0, chemfiles opens no file
    return np.ascontiguousarray(cells, "<f8")


def _mean_dt(time: NDArray[np.float64]) -> float:
    """Return the mean time between frames; 1 ps if there is none, as MDAnalysis has it."""
    with np.errstate(invalid="ignore"):
        duration = time[-1] - time[0]
    return float(duration) / (len(time) - 1) if 0 < duration < np.inf else 1.0


def _first_time(time: NDArray[np.float64]) -> float:
    """Return the first time; 0 if it is not a number."""
    return float(time[0]) if np.isfinite(time[0]) else 0.0


def _header_times(time: NDArray[np.float64], step: NDArray[np.int64]) -> tuple[int, int, float]:
    """Choose (istart, nsavc, dt) so that ``(frame + istart / nsavc) * dt`` are the times of frames.

    The source's own steps are kept where they agree with its times; otherwise the ratio of
    the first time to dt is written as a simple fraction, exact to 1e-6.
    """
    dt_ps = _mean_dt(time)
    offset = _first_time(time) / dt_ps
    tolerance = 1e-6 * max(1.0, abs(offset))
    if len(step) > 1:
        stride = int(step[1] - step[0])
        is_even = bool((np.diff(step) == stride).all())
        is_stored = is_even and 0 < stride <= INT32_MAX and abs(int(step[0])) <= INT32_MAX
        if is_stored and abs(int(step[0]) / stride - offset) <= tolerance:
            return int(step[0]), stride, dt_ps
    for max_denominator in (1000, 10_000, 100_000, 1_000_000):
        ratio = Fraction(offset).limit_denominator(max_denominator)
        if abs(float(ratio) - offset) <= tolerance:
            break
    if abs(ratio.numerator) > INT32_MAX:
        ratio = Fraction(max(-INT32_MAX, min(INT32_MAX, round(offset))))
    return ratio.numerator, ratio.denominator, dt_ps
