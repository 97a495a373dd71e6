"""DCD files of CHARMM, NAMD, LAMMPS and X-PLOR, read without MDAnalysis.

All frames (after the first one, where atoms are fixed) have the same size, so that any run of them
is one read, and a narrow range of atoms is three small reads a frame. What comes back is what
MDAnalysis' DCDReader gives:

- The number of frames follows from the size of the file, not from the header, which programs that
  are killed leave at 0. Of a file that ends within a frame, the whole ones before it are read.
- ``time = (frame + istart / nsavc) * dt`` with ``dt = delta * nsavc``, from AKMA units to ps; from
  femtoseconds where the titles name LAMMPS, which has units of its own. A header with an `nsavc` of
  0, which MDAnalysis cannot read, counts as 1.
- ``step`` is ``frame + 1``, as in MDAnalysis' ``ts.data["step"]`` of DCD files; the unit cell holds
  cosines, degrees or the symmetric matrix of CHARMM, told apart by the version of CHARMM in the
  header, then by its values.

Besides what MDAnalysis reads: a fourth dimension, which is skipped; lengths of 8 bytes; and CHARMM
files of the other byte order have their own `delta`, which MDAnalysis 2.11 does not swap.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from mdio.core.boxes import boxes_from_vectors
from mdio.core.errors import SourceError
from mdio.core.files.fingerprint import head_of
from mdio.core.frames import AtomIndices, Flaws, FrameBlock, LostBytes, TrajectoryInfo
from mdio.core.kernels import planar_to_xyz
from mdio.core.units import AKMA_TO_PS, FS_TO_PS
from mdio.layouts.base import FormatFacts, Timing
from mdio.layouts.native.dcd.header import (
    CELL_NBYTES,
    DCDHeader,
    bytes_of,
    looks_like_dcd,
    read_header,
)
from mdio.layouts.native.file import NativeLayout
from mdio.layouts.native.fixed_records import Rows, batches, spare_gaps
from mdio.layouts.tables import ChunkTable, Tables, in_frames

CELL_ORDER = (0, 2, 5, 4, 3, 1)
"""Where lengths and alpha, beta, gamma are in a cell's record: A, gamma, B, beta, alpha, C."""
MATRIX_ORDER = ((0, 1, 3), (1, 2, 4), (3, 4, 5))  # the rows of CHARMM's symmetric matrix


NEWEST_OF_OTHERS = 25
"""Other programs call themselves CHARMM 24, and write lengths and angles."""


def boxes_from_cells(cells: NDArray[np.float64], charmm_version: int = 0) -> NDArray[np.float32]:
    """Return the boxes that the unit-cell records of a DCD file mean.

    CHARMM writes the symmetric matrix of the cell; the version in the header tells, as chemfiles
    has it. Of older versions, and of other programs, the values do, as in MDAnalysis: three angles
    between -1 and 1 are cosines (NAMD after 2.5, VMD); a negative number, or an angle beyond 180,
    tells of the matrix; else degrees.

    `cells`, (F, 6) float64: as they lie in the file. `charmm_version`: what the header says.
    Returns (F, 6) float32: lengths in angstrom, angles in degrees; zeros where there is no cell.
    """
    lengths_angles = cells[:, CELL_ORDER]
    angles = lengths_angles[:, 3:]
    by_charmm = np.zeros(len(cells), bool)
    if charmm_version > NEWEST_OF_OTHERS:
        by_charmm = _are_matrices(cells[:, MATRIX_ORDER])
    cosines = (np.abs(angles) <= 1).all(axis=1) & ~by_charmm
    matrices = by_charmm | ~cosines & (
        (lengths_angles < 0).any(axis=1) | (angles > 180).any(axis=1)
    )
    angles[cosines] = 90.0 - np.arcsin(angles[cosines]) * 90.0 / (np.pi / 2)
    with np.errstate(over="ignore", invalid="ignore"):
        boxes = lengths_angles.astype(np.float32)
    if matrices.any():
        boxes[matrices] = boxes_from_vectors(cells[matrices][:, MATRIX_ORDER])
    boxes[(boxes[:, :3] == 0).all(axis=1)] = 0
    return boxes


def _are_matrices(matrices: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which symmetric matrices, (F, 3, 3), span a cell: all their minors are positive."""
    with np.errstate(all="ignore"):
        minors = [np.linalg.det(matrices[:, :size, :size]) for size in (1, 2, 3)]
    return np.asarray(np.all([minor > 0 for minor in minors], axis=0))


class DCDLayout(NativeLayout):
    """A DCD file."""

    name = "dcd"
    facts = FormatFacts(
        suffixes=(".dcd",),
        options=frozenset({"sums", "dt"}),
        counts_steps=True,
        is_copied=True,
        reads_remote=True,
    )

    _header: DCDHeader
    _first_frame: NDArray[np.float32]

    @classmethod
    def sniff(cls, path: Path) -> bool:
        """Return whether it begins with a record of 84 bytes and ``CORD``."""
        return looks_like_dcd(head_of(path)[:12]) is not None

    @property
    def header(self) -> DCDHeader:
        """What the header says; opens the file if need be."""
        _ = self.info
        return self._header

    def _open_frames(self) -> TrajectoryInfo:
        header = self._header = read_header(self._file)
        n_frames, lost = self._count_frames()
        with np.errstate(all="ignore"):
            times = self._times(np.array([0, n_frames - 1]))
        boxes = np.ones((1, 6), np.float32)
        with suppress(SourceError):  # reading this frame tells; the others may be whole
            self._read_boxes(0, 1, boxes)
        if header.free is not None:
            rows = self._frame_rows(0, 1)
            self._check_markers(rows, header.n_atoms, 0)
            self._first_frame = self._planes(rows, header.n_atoms).astype(np.float32)
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
            flaws=Flaws(lost, self._made_up()),
        )

    def tables(self) -> Tables:
        """Return where its frames, and x, y and z of each, lie; see `Layout.tables`."""
        frames = None  # copies would not have what was said of this file
        if "dt" not in self.options:
            frames = bytes_of(self.path, self.header, self.info.n_frames)
            frames = frames and replace(frames, sums=self.options.get("sums"))
        return Tables(frames, self._positions)

    def _positions(self) -> ChunkTable | None:
        header, n_frames = self.header, self.info.n_frames
        if header.free is not None:
            return None
        begins = header.nbytes + header.frame_nbytes(header.n_atoms) * np.arange(n_frames)
        planes = np.arange(3) * header.record_nbytes(header.n_atoms)
        planes += header.cell_nbytes + header.marker.itemsize
        return in_frames(self.path, begins, planes, header.n_atoms, dtype=f"{header.order}f4")

    def _span(self, start: int, stop: int) -> tuple[int, int]:
        return self._header.frame_offset(start), self._header.frame_offset(stop)

    def _count_frames(self) -> tuple[int, tuple[LostBytes, ...]]:
        """Return how many frames are whole, and what follows them."""
        header = self._header
        first_nbytes = header.frame_nbytes(header.n_atoms)
        beyond_first = self._file.nbytes - header.frame_offset(1)
        if beyond_first == -first_nbytes:
            raise SourceError(f"{self.path}: the file ends with its header and has no frames")
        if beyond_first < 0:
            raise SourceError(
                f"{self.path}: frame 0 is truncated: found {first_nbytes + beyond_first} of its "
                f"{first_nbytes} bytes, so no frame is whole. Copy the file again"
            )
        n_more, left = divmod(beyond_first, header.frame_nbytes(header.n_free))
        n_frames, at = n_more + 1, self._file.nbytes - left
        return n_frames, (LostBytes(str(self.path), n_frames, at, left),) if left else ()

    @property
    def _interval(self) -> int:
        return self._header.nsavc or 1

    @property
    def timing(self) -> Timing:
        """Times follow from steps, which are counted; see `Layout.timing`."""
        timing = super().timing  # opens it
        return timing._replace(step_ps=self._dt_ps / self._interval)

    @property
    def _dt_ps(self) -> float:
        asked = self.options.get("dt")
        if asked is not None:
            return float(asked)
        unit_ps = FS_TO_PS if self._header.is_of_lammps else AKMA_TO_PS
        return self._header.delta_akma * unit_ps * self._interval

    def _made_up(self) -> tuple[str, ...]:
        asked = self.options.get("dt")
        if asked is not None:
            return (f"frames are {asked:g} ps apart, as asked",)
        if self._header.is_of_lammps:
            return (
                "LAMMPS wrote it, and does not say in which unit times are: assumed to be fs (its "
                "units real); for others, --timestep sets the ps from frame to frame",
            )
        return ()

    def _times(self, frames: NDArray[np.int64]) -> NDArray[np.float64]:
        steps = frames + self._header.istart / self._interval
        return cast(NDArray[np.float64], steps * self._dt_ps)

    def _read_into(
        self, start: int, stop: int, atoms: AtomIndices | None, block: FrameBlock
    ) -> None:
        frames = np.arange(start, stop)
        block.step[...] = frames + 1
        with np.errstate(all="ignore"):  # the header's numbers may be anything
            block.time[...] = self._times(frames)
        header = self._header
        if atoms is not None and atoms.size == 0:
            self._read_boxes(start, stop, block.box)
        elif header.free is None:
            self._read_positions(start, stop, atoms, block)
        else:
            self._read_free(start, stop, atoms, block)

    def _read_positions(
        self, start: int, stop: int, atoms: AtomIndices | None, block: FrameBlock
    ) -> None:
        header = self._header
        low, high = (0, header.n_atoms) if atoms is None else (atoms.min(), atoms.max() + 1)
        unwanted = 4 * (header.n_atoms - (high - low)) * header.n_dimensions
        if spare_gaps(unwanted, header.n_dimensions + 1):
            self._read_boxes(start, stop, block.box)
            wanted = None if atoms is None else atoms - low
            self._read_range(start, stop, int(low), int(high), wanted, block.positions)
            return
        frame_nbytes = header.frame_nbytes(header.n_atoms)
        for first, last in batches(start, stop, frame_nbytes, frame_nbytes):
            rows = self._frame_rows(first, last)
            out = slice(first - start, last - start)
            self._boxes_into(rows, block.box[out], first)
            planes = self._planes(rows, header.n_atoms)
            self._check_markers(rows, header.n_atoms, first)
            planar_to_xyz(planes, block.positions[out], atoms)

    def _read_range(
        self,
        start: int,
        stop: int,
        low: int,
        high: int,
        atoms: AtomIndices | None,
        positions: NDArray[np.float32],
    ) -> None:
        """Read atoms ``low:high`` alone, and of these `atoms`."""
        header = self._header
        nbytes, stride = 4 * (high - low), header.frame_nbytes(header.n_atoms)
        for first, last in batches(start, stop, stride, nbytes):
            planes = np.empty((last - first, 3, high - low), f"{header.order}f4")
            for axis in range(3):
                offset = header.frame_offset(first) + header.cell_nbytes + 4 * low
                offset += axis * header.record_nbytes(header.n_atoms) + header.marker.itemsize
                rows = self._file.rows(offset, stride, last - first, nbytes)
                planes[:, axis] = rows.view(0, (high - low,), planes.dtype)
            planar_to_xyz(planes, positions[first - start : last - start], atoms)

    def _read_free(
        self, start: int, stop: int, atoms: AtomIndices | None, block: FrameBlock
    ) -> None:
        """Read frames of a file with fixed atoms: these are as in the first frame."""
        header = self._header
        wanted = np.arange(header.n_atoms) if atoms is None else atoms
        slot = np.full(header.n_atoms, -1, np.int64)
        slot[header.free] = np.arange(header.n_free)
        moving = np.flatnonzero(slot[wanted] >= 0)
        block.positions[...] = self._first_frame[0][:, wanted].T
        if start == 0:
            self._read_boxes(0, 1, block.box[:1])
        begin = max(start, 1)
        frame_nbytes = header.frame_nbytes(header.n_free)
        for first, last in batches(begin, stop, frame_nbytes, frame_nbytes):
            rows = self._frame_rows(first, last)
            out = slice(first - start, last - start)
            self._boxes_into(rows, block.box[out], first)
            self._check_markers(rows, header.n_free, first)
            planes = self._planes(rows, header.n_free)[:, :, slot[wanted[moving]]]
            block.positions[out, moving] = planes.transpose(0, 2, 1)

    def _frame_rows(self, first: int, last: int) -> Rows:
        header = self._header
        nbytes = header.frame_nbytes(header.n_atoms if first == 0 else header.n_free)
        return self._file.rows(header.frame_offset(first), nbytes, last - first, nbytes)

    def _planes(self, rows: Rows, n_atoms: int) -> NDArray[np.float32]:
        header = self._header
        offset = header.cell_nbytes + header.marker.itemsize
        strides = (header.record_nbytes(n_atoms), 4)
        planes = rows.view(offset, (3, n_atoms), f"{header.order}f4", strides)
        return cast(NDArray[np.float32], planes)

    def _check_markers(self, rows: Rows, n_atoms: int, first: int) -> None:
        header = self._header
        size, record = header.marker.itemsize, header.record_nbytes(n_atoms)
        for offset in (header.cell_nbytes, header.cell_nbytes + record - size):
            lengths = rows.view(offset, (header.n_dimensions,), header.marker, (record,))
            wrong = np.argwhere(lengths != 4 * n_atoms)
            if wrong.size:
                row, axis = wrong[0]
                raise SourceError(
                    f"{self.path}: frame {first + row} is damaged: the record of its "
                    f"{'xyzw'[axis]} has a length of {lengths[row, axis]} bytes, "
                    f"expected {4 * n_atoms}"
                )

    def _read_boxes(self, start: int, stop: int, boxes: NDArray[np.float32]) -> None:
        """Read only the unit cells."""
        header = self._header
        if not header.has_cell:
            boxes[...] = 0
            return
        if start == 0 and header.free is not None:  # the first frame is of another size
            rows = self._file.rows(header.nbytes, header.cell_nbytes, 1, header.cell_nbytes)
            self._boxes_into(rows, boxes[:1], 0)
            start, boxes = 1, boxes[1:]
        stride = header.frame_nbytes(header.n_free)
        for first, last in batches(start, stop, stride, header.cell_nbytes):
            offset = header.frame_offset(first)
            rows = self._file.rows(offset, stride, last - first, header.cell_nbytes)
            self._boxes_into(rows, boxes[first - start : last - start], first)

    def _boxes_into(self, rows: Rows, boxes: NDArray[np.float32], first: int) -> None:
        header = self._header
        if not header.has_cell:
            boxes[...] = 0
            return
        size = header.marker.itemsize
        for offset in (0, size + CELL_NBYTES):
            lengths = rows.view(offset, (), header.marker)
            if (wrong := np.flatnonzero(lengths != CELL_NBYTES)).size:
                raise SourceError(
                    f"{self.path}: frame {first + wrong[0]} is damaged: the record of its unit "
                    f"cell has a length of {lengths[wrong[0]]} bytes, expected {CELL_NBYTES}"
                )
        cells = rows.view(size, (6,), f"{header.order}f8").astype(float)
        boxes[...] = boxes_from_cells(cells, header.charmm_version)
