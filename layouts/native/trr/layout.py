"""TRR files of GROMACS, read without MDAnalysis.

Frames are found through a stored index (`mdio.core.files.index`). Consecutive frames that hold the
same parts are read at one go, and of these only what is wanted where that spares enough. What comes
back is what MDAnalysis' TRRReader gives, times in single precision. Frames need not be alike:

- A frame without positions is an error when it is read (box, time and step can be had of it).
- ``has_velocities`` and ``has_forces`` tell of the first 64 frames and the first of any size; in
  frames that lack them, they are NaN.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from mdio.core.boxes import boxes_from_vectors
from mdio.core.errors import SourceError
from mdio.core.files.fingerprint import head_of
from mdio.core.files.in_flight import ByteRange, asked
from mdio.core.frames import FrameBlock, TrajectoryInfo
from mdio.core.kernels import swap_to_native
from mdio.core.units import NM_TO_ANGSTROM, PER_NM_TO_PER_ANGSTROM
from mdio.layouts.base import AtomIndices
from mdio.layouts.native.file import FrameMarks, IndexedLayout
from mdio.layouts.native.fixed_records import Rows, batches, spare_gaps, whole_frames
from mdio.layouts.native.trr.header import (
    FIXED_NBYTES,
    MAX_HEADER_NBYTES,
    FrameHeader,
    header_of,
    looks_like_trr,
    marks_of,
    parse_header,
    scan,
)
from mdio.layouts.places import FrameBytes, PlacedPositions, in_frames

__all__ = ["TRRLayout", "scan"]


def check_frames(data: NDArray[np.uint8], run: range, frames: FrameBytes, n_atoms: int) -> None:
    """Compare the lengths that frames give with those that they have.

    Raises SourceError: a frame is damaged; the message names it.
    """
    edges = frames.edges[run.start : run.stop + 1].tolist()
    known: tuple[bytes, int] | None = None
    for number, (begin, end) in enumerate(pairwise(edges), frames.first + run.start):
        raw = data[begin - edges[0] : begin - edges[0] + FIXED_NBYTES].tobytes()
        if known == (raw, end - begin):
            continue
        header = parse_header(raw, frames.path, number)
        if (header.n_atoms, header.frame_nbytes) != (n_atoms, end - begin):
            raise SourceError(
                f"{frames.path}: frame {number} has {header.n_atoms} atoms in "
                f"{header.frame_nbytes} bytes, expected {n_atoms} in {end - begin}: the file has "
                "changed while it was read, or is damaged"
            )
        known = raw, end - begin


SCALES = {
    "positions": NM_TO_ANGSTROM,
    "velocities": NM_TO_ANGSTROM,
    "forces": PER_NM_TO_PER_ANGSTROM,
}
N_SAMPLED = 64  # frames that are looked at to know which fields a file has


class TRRLayout(IndexedLayout):
    """A TRR file."""

    name = "trr"
    suffixes: ClassVar[tuple[str, ...]] = (".trr",)
    rounds = ("positions", "velocities", "forces")
    known_options = frozenset({"salvage", "sums"})
    check_frames = staticmethod(check_frames)

    _sizes: NDArray[np.int64]

    @classmethod
    def sniff(cls, path: Path) -> bool:
        """Return whether it begins with the magic number and name of TRR."""
        return looks_like_trr(head_of(path)[:24])

    @classmethod
    def marks(cls, path: Path) -> FrameMarks:
        """Return how frames of a file are known, by its first."""
        return marks_of(path)

    def _open_frames(self) -> TrajectoryInfo:
        first = header_of(self._file.read(0, FIXED_NBYTES), self.path, 0, None)
        self._find_frames(first.n_atoms, scan)
        last = self._index.n_frames - 1
        if self._index.frame_nbytes[last] != self._frame_header(last).frame_nbytes:
            # MDAnalysis leaves out what comes after the first damaged frame: see for ourselves.
            self._index = scan(self.path)
        self._sizes = self._index.frame_nbytes
        present = self._sample_fields()
        return self._describe(
            has_velocities="velocities" in present,
            has_forces="forces" in present,
            sparse=tuple(sorted(present)) if (self._sizes != self._sizes[0]).any() else (),
        )

    def _frame_header(self, frame: int) -> FrameHeader:
        raw = self._file.read(int(self._index.offsets[frame]), FIXED_NBYTES)
        return header_of(raw, self.path, frame, self._index.n_atoms)

    def _headers(self, frames: Sequence[int]) -> Iterator[FrameHeader]:
        """Yield the headers of frames that ascend; those of an object are asked for ahead."""
        begins = self._index.offsets[list(frames)].tolist() if self._file.remote else []
        with asked(ByteRange(self._file, begin, FIXED_NBYTES) for begin in begins):
            yield from map(self._frame_header, frames)

    def placed(self) -> PlacedPositions | None:
        """Return where positions lie, if all frames hold the same parts; see `Layout.placed`."""
        _ = self.info
        n_frames = self._index.n_frames
        first = self._frame_header(0)
        if "positions" not in first.present or any(
            header != first for header in self._headers(range(1, n_frames))
        ):
            return None
        planes = np.array([first.field_offset("positions")], np.int64)
        how = {"dtype": f">f{first.itemsize}", "unit": "nm"}
        return in_frames(self.path, self._index.offsets, planes, self._index.n_atoms, **how)

    def _sample_fields(self) -> set[str]:
        first_of_size = np.unique(self._sizes, return_index=True)[1][:N_SAMPLED]
        frames = {*range(min(N_SAMPLED, self._index.n_frames)), *first_of_size.tolist()}
        if self._whole is not None:
            frames &= set(self._whole)
        present = {name for header in self._headers(sorted(frames)) for name in header.present}
        if not present:
            raise SourceError(
                f"{self.path}: none of the first frames holds positions, velocities or forces"
            )
        return present

    def _runs(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield (first, last) of consecutive frames of equal size."""
        sizes = self._sizes[start:stop]
        differ = np.flatnonzero(sizes[1:] != sizes[:-1]) + start + 1
        yield from itertools.pairwise([start, *differ.tolist(), stop])

    def byte_ranges(self, start: int, stop: int, atoms: AtomIndices | None) -> Iterator[ByteRange]:
        """Return where the frames lie; see `Layout.byte_ranges`."""
        _ = self.info
        begin = int(self._index.offsets[start])
        end = int(self._index.offsets[stop - 1] + self._sizes[stop - 1])
        return whole_frames(self._file, begin, end, stop - start, atoms)

    def _read_into(
        self, start: int, stop: int, atoms: AtomIndices | None, block: FrameBlock
    ) -> None:
        for first, last in self._runs(start, stop):
            self._read_run(first, last, atoms, block.frames(slice(first - start, last - start)))

    def _read_run(
        self, start: int, stop: int, atoms: AtomIndices | None, block: FrameBlock
    ) -> None:
        """Read frames of equal size."""
        header = self._frame_header(start)
        low, high = 0, header.n_atoms
        if atoms is not None:
            low, high = (int(atoms.min()), int(atoms.max()) + 1) if atoms.size else (0, 0)
            atoms = atoms - low
        stride = int(self._sizes[start])
        head_nbytes = min(stride, MAX_HEADER_NBYTES + header.box_nbytes)
        n_fields = sum(name in header.present for name in block.present()) if high > low else 0
        wanted = head_nbytes + n_fields * 3 * (high - low) * header.itemsize
        whole = n_fields > 0 and not spare_gaps(stride - wanted, n_fields + 1)
        nbytes = stride if whole else head_nbytes
        for first, last in batches(start, stop, stride, nbytes):
            rows = self._file.rows(int(self._index.offsets[first]), stride, last - first, nbytes)
            for begin, end in _alike(rows):
                part = block.frames(slice(first + begin - start, first + end - start))
                header = self._decode_heads(rows.part(begin, end), first + begin, stride, part)
                if high > low:
                    self._decode_fields(
                        rows.part(begin, end) if whole else None,
                        header,
                        first + begin,
                        (low, high),
                        atoms,
                        part,
                    )

    def _decode_heads(self, rows: Rows, first: int, stride: int, block: FrameBlock) -> FrameHeader:
        """Fill step, time and box of frames that hold the same parts."""
        raw = rows.view(0, (FIXED_NBYTES,), "u1")[0].tobytes()
        header = header_of(raw, self.path, first, self._index.n_atoms)
        if header.frame_nbytes != stride:
            raise SourceError(
                f"{self.path}: frame {first} has {header.frame_nbytes} bytes, but the next one "
                f"begins after {stride}: the file has changed since it was opened"
            )
        block.step[...] = rows.view(FIXED_NBYTES, (), ">i4")
        real = f">f{header.itemsize}"
        with np.errstate(over="ignore", invalid="ignore"):
            block.time[...] = rows.view(FIXED_NBYTES + 8, (), real).astype(np.float32)
            if header.box_nbytes:
                vectors = rows.view(header.head_nbytes, (3, 3), real).astype(np.float32)
                block.box[...] = boxes_from_vectors(vectors, NM_TO_ANGSTROM)
            else:
                block.box[...] = 0
        return header

    def _decode_fields(
        self,
        rows: Rows | None,
        header: FrameHeader,
        first: int,
        span: tuple[int, int],
        atoms: AtomIndices | None,
        block: FrameBlock,
    ) -> None:
        """Fill the fields from whole frames, or from their atoms in `span`, read alone."""
        shape = (span[1] - span[0], 3)
        atom_nbytes = 3 * header.itemsize
        for name, out in block.present().items():
            if name not in header.present:
                out[...] = np.nan
                continue
            offset = header.field_offset(name) + span[0] * atom_nbytes
            if rows is not None:
                values = rows.view(offset, shape, f">f{header.itemsize}")
            else:
                offset += int(self._index.offsets[first])
                values = self._file.rows(
                    offset, header.frame_nbytes, block.n_frames, shape[0] * atom_nbytes
                ).view(0, shape, f">f{header.itemsize}")
            with np.errstate(over="ignore", invalid="ignore"):
                single = values.astype(np.float32) if header.itemsize == 8 else values
            swap_to_native(cast(NDArray[np.float32], single), out, atoms, SCALES[name])


def _alike(rows: Rows) -> Iterator[tuple[int, int]]:
    """Yield (first, last) of consecutive frames whose headers say the same."""
    heads = rows.view(0, (FIXED_NBYTES,), "u1")
    differ = np.flatnonzero((heads[1:] != heads[:-1]).any(axis=1)) + 1
    yield from itertools.pairwise([0, *differ.tolist(), rows.n_rows])
