"""TRR files of GROMACS, read and written without MDAnalysis.

Frames are found through a stored index (`mdio.core.files.index`). Consecutive frames with the same
fields are read together; unwanted parts are skipped if they are large. Values
are those of MDAnalysis' TRRReader, with times in single precision. Frames may differ:

- Fields are NaN in frames that lack them, positions too.
- ``has_velocities`` and ``has_forces`` come from 64 frames, half of them the first ones, and the
  first of each size; if frames of one size differ, from all frames.

A frame is XDR, so all of it is big-endian: the magic number 1993, the string ``GMX_trn_file``, the
sizes in bytes of ten arrays, the number of atoms, the step, an unused number, and time and lambda
in the precision of the frame. Of the arrays, box, virial, pressure, positions, velocities and
forces follow in this order; as in GROMACS' xdrfile library (``xdrfile_trr.c``) and its manual
(https://manual.gromacs.org/current/reference-manual/file-formats.html#trr). What is written has
single precision and nm; values and arithmetic are those of MDAnalysis' writer, so the files are the
same to the byte.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.boxes import boxes_from_vectors, vectors_from_boxes
from mdio.core.errors import OutputError, SourceError
from mdio.core.files.fingerprint import read_head
from mdio.core.files.index import FrameIndex
from mdio.core.files.reading import OpenFile
from mdio.core.frames import FIELDS, AtomIndices, FrameBlock, TrajectoryInfo, field_runs
from mdio.core.kernels import swap_to_native
from mdio.core.units import NM_TO_ANGSTROM, PER_NM_TO_PER_ANGSTROM
from mdio.layouts.base import FormatFacts
from mdio.layouts.native.encoder import Bytes, Encoder, field_views, packed_fields
from mdio.layouts.native.file import (
    FrameMagic,
    PositionalFile,
    RecordField,
    RecordFields,
    ScannedLayout,
)
from mdio.layouts.tables import ChunkTable, FrameTable, frame_chunk_table

MAGIC = 1993
VERSION = b"GMX_trn_file"
START = struct.pack(">iii", MAGIC, len(VERSION) + 1, len(VERSION)) + VERSION
SIZES = struct.Struct(">11i")
"""ir, e, box, vir, pres, top, sym, x, v, f, and the number of atoms."""
FIXED_NBYTES = len(START) + SIZES.size
"""Bytes before the step: the same in all frames with the same fields."""


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """The header of a TRR frame."""

    n_atoms: int
    itemsize: int
    """Bytes of a number: 4 or 8."""
    box_nbytes: int
    skipped_nbytes: int
    """Bytes of virial and pressure, between the box and the positions."""
    present: tuple[str, ...]
    """Fields of a block that the frame has, in their order in the file."""

    @property
    def head_nbytes(self) -> int:
        """Bytes before the box."""
        return FIXED_NBYTES + 8 + 2 * self.itemsize

    @property
    def field_nbytes(self) -> int:
        return 3 * self.n_atoms * self.itemsize

    @property
    def nbytes(self) -> int:
        return self.fields_offset + len(self.present) * self.field_nbytes

    @property
    def fields_offset(self) -> int:
        return self.head_nbytes + self.box_nbytes + self.skipped_nbytes

    def field_offset(self, name: str) -> int:
        return self.fields_offset + self.present.index(name) * self.field_nbytes


@lru_cache(maxsize=8)  # making a dtype takes as long as a small read
def _head_dtype(header_nbytes: int, box_nbytes: int, itemsize: int) -> np.dtype[np.void]:
    """Return the dtype of everything before virial and pressure."""
    real_type = f">f{itemsize}"
    parts: list[tuple[str, int, Any]] = [
        ("fixed", 0, ("u1", (FIXED_NBYTES,))),
        ("step", FIXED_NBYTES, ">i4"),
        ("time", FIXED_NBYTES + 8, real_type),
    ]
    if box_nbytes:
        parts.append(("box", header_nbytes, (real_type, (3, 3))))
    names, offsets, formats = map(list, zip(*parts, strict=True))
    nbytes = header_nbytes + box_nbytes
    spec = {"names": names, "offsets": offsets, "formats": formats, "itemsize": nbytes}
    return np.dtype(spec)  # type: ignore[call-overload,no-any-return]


def parse_header(raw: bytes, path: Path, frame: int) -> FrameHeader:
    """Read a frame's header from its first `FIXED_NBYTES`; raises SourceError."""
    if len(raw) < FIXED_NBYTES:
        raise SourceError(
            f"{path}: frame {frame} is truncated: found {len(raw)} bytes of its header, expected "
            f"{FIXED_NBYTES}. Copy the file again, or cut off the last frame"
        )
    if not raw.startswith(START):
        raise SourceError(
            f"{path}: frame {frame} is damaged: begins with {raw[:8]!r}, expected {START[:8]!r}"
        )
    ir, e, box, vir, pres, top, sym, *fields, n_atoms = SIZES.unpack_from(raw, len(START))
    # As in GROMACS: from the box, or else from the first array.
    first_nbytes = next((nbytes for nbytes in fields if nbytes), 0)
    itemsize = box // 9 if box else first_nbytes // max(1, 3 * n_atoms)
    field_sizes = {0, 3 * n_atoms * itemsize}
    matrix_sizes = {0, 9 * itemsize}
    if (
        itemsize not in (4, 8)
        or n_atoms < 1
        or any((ir, e, top, sym))
        or not {box, vir, pres} <= matrix_sizes
        or not set(fields) <= field_sizes
    ):
        raise SourceError(
            f"{path}: frame {frame} is damaged: its header says {n_atoms} atoms and sizes of "
            f"{fields} bytes for positions, velocities and forces, {box} for the box, "
            f"{(vir, pres)} for virial and pressure, {(ir, e, top, sym)} for unused arrays"
        )
    present = tuple(name for name, nbytes in zip(FIELDS, fields, strict=True) if nbytes)
    return FrameHeader(n_atoms, itemsize, box, vir + pres, present)


def scan(path: Path) -> FrameIndex:
    """Find the frames of a TRR file by reading all their headers; the last may be truncated."""
    with PositionalFile(path) as file:
        if not file.nbytes:
            raise SourceError(f"{path}: the file is empty (0 bytes), so it holds no frames")
        offsets: list[int] = []
        offset, n_atoms, last_raw = 0, None, b""
        while offset < file.nbytes:
            raw, remaining_nbytes = file.read(offset, FIXED_NBYTES), file.nbytes - offset
            if offsets and remaining_nbytes < FIXED_NBYTES:
                break
            if raw != last_raw:
                header = checked_header(raw, path, len(offsets), n_atoms)
                n_atoms, nbytes, last_raw = header.n_atoms, header.nbytes, raw
            if offsets and remaining_nbytes < nbytes:
                break
            if remaining_nbytes < nbytes:
                raise SourceError(
                    f"{path}: frame 0 is truncated: found {remaining_nbytes} of its {nbytes} "
                    "bytes; 0 frames are whole. Copy the file again, or cut it to 0 bytes"
                )
            offsets.append(offset)
            offset += nbytes
        lost_nbytes = file.nbytes - offset
        return FrameIndex(np.array(offsets, np.int64), offset, n_atoms or 0, lost_nbytes)


def checked_header(raw: bytes, path: Path, frame: int, n_atoms: int | None) -> FrameHeader:
    """Return the header of a frame of `n_atoms`, or of any number; raises SourceError."""
    header = parse_header(raw, path, frame)
    if n_atoms not in (None, header.n_atoms):
        raise SourceError(
            f"{path}: frame {frame} has {header.n_atoms} atoms, the frames before have {n_atoms}; "
            "a trajectory has the same atoms throughout"
        )
    return header


def check_frames(data: NDArray[np.uint8], run: range, frames: FrameTable, n_atoms: int) -> None:
    """Compare the sizes in the headers of frames with their sizes in the file."""
    edges = frames.edges[run.start : run.stop + 1].tolist()
    checked: tuple[bytes, int] | None = None
    for number, (begin, end) in enumerate(pairwise(edges), frames.first + run.start):
        raw = data[begin - edges[0] : begin - edges[0] + FIXED_NBYTES].tobytes()
        if checked == (raw, end - begin):
            continue
        header = parse_header(raw, frames.path, number)
        if (header.n_atoms, header.nbytes) != (n_atoms, end - begin):
            raise SourceError(
                f"{frames.path}: frame {number} has {header.n_atoms} atoms in "
                f"{header.nbytes} bytes, expected {n_atoms} in {end - begin}: the file has "
                "changed while it was read, or is damaged"
            )
        checked = raw, end - begin


SCALES = {
    "positions": NM_TO_ANGSTROM,
    "velocities": NM_TO_ANGSTROM,
    "forces": PER_NM_TO_PER_ANGSTROM,
}
N_SAMPLED = 64
"""Frames that are read to find out which fields a file has."""


class TRRLayout(ScannedLayout):
    """A TRR file."""

    name = "trr"
    facts = FormatFacts(
        suffixes=(".trr",),
        options=frozenset({"salvage", "checksums"}),
        rounded_fields=("positions", "velocities", "forces"),
        can_copy_frames=True,
        reads_remote=True,
    )
    check_frames = staticmethod(check_frames)
    header_nbytes = FIXED_NBYTES

    _sizes: NDArray[np.int64]

    @classmethod
    def sniff(cls, path: Path) -> bool:
        return read_head(path)[:24] == START

    @classmethod
    def magic(cls, path: Path) -> FrameMagic:
        with OpenFile(path) as file:
            head = file.peek(0, FIXED_NBYTES)
        n_atoms = checked_header(head, path, 0, None).n_atoms

        def nbytes_from_header(raw: bytes) -> int | None:
            try:
                return checked_header(raw, path, 0, n_atoms).nbytes
            except SourceError:
                return None

        return FrameMagic(n_atoms, [START], nbytes_from_header, FIXED_NBYTES)

    def _open_frames(self) -> TrajectoryInfo:
        first = checked_header(self._file.read(0, FIXED_NBYTES), self.path, 0, None)
        self._find_frames(first.n_atoms, scan)
        self._sizes = self._index.frame_nbytes
        present, sparse = self._sample_fields()
        vectors = self._file.read(first.head_nbytes, first.box_nbytes)
        return self._read_properties(
            np.frombuffer(vectors, f">f{first.itemsize}").reshape(-1, 3, 3),
            has_velocities="velocities" in present,
            has_forces="forces" in present,
            sparse=tuple(sorted(sparse)),
        )

    def _parse_header(self, raw: bytes, frame: int) -> FrameHeader:
        return checked_header(raw, self.path, frame, self._index.n_atoms)

    def _position_table(self) -> ChunkTable | None:
        """Return the table of positions, if all frames have the same fields."""
        _ = self.info
        first = self._header(0)
        if "positions" not in first.present:
            return None
        headers = self._file.headers(self._index.offsets[1:].tolist(), FIXED_NBYTES)
        for frame, raw in enumerate(headers, 1):
            if self._parse_header(raw, frame) != first:
                return None
        planes = np.array([first.field_offset("positions")], np.int64)
        stored = {"dtype": f">f{first.itemsize}", "unit": "nm"}
        offsets, n_atoms = self._index.offsets, self._index.n_atoms
        return frame_chunk_table(self.path, offsets, planes, n_atoms, **stored)

    def _sample_fields(self) -> tuple[set[str], set[str]]:
        """Return the fields that any frame has, and those that some frames may lack."""
        first_of_size = np.unique(self._sizes, return_index=True)[1][:N_SAMPLED]
        frames = {*self._sample_frames(N_SAMPLED), *first_of_size.tolist()}
        if self._intact_frames is not None:
            frames &= set(self._intact_frames)
        shapes = {(header.nbytes, header.present) for header in self._headers(sorted(frames))}
        sizes = {nbytes for nbytes, _ in shapes}
        if len(sizes) < len(shapes):  # frames of one size have different fields
            headers = self._headers(self._readable_frames)
            shapes = {(header.nbytes, header.present) for header in headers}
        field_sets = [{*present} for _, present in shapes]
        present = set().union(*field_sets)
        if not present:
            raise SourceError(
                f"{self.path}: none of the first frames holds positions, velocities or forces"
            )
        return present, present - field_sets[0].intersection(*field_sets)

    def _read_into(
        self, start: int, stop: int, atoms: AtomIndices | None, block: FrameBlock
    ) -> None:
        sizes = self._sizes[start:stop]
        size_changes = np.flatnonzero(sizes[1:] != sizes[:-1]) + start + 1
        for first, end in pairwise([start, *size_changes.tolist(), stop]):
            while first < end:
                part = block.frames(slice(first - start, end - start))
                first += self._read_equal_frames(first, end, atoms, part)

    def _read_equal_frames(
        self, start: int, stop: int, atoms: AtomIndices | None, block: FrameBlock
    ) -> int:
        """Read frames of equal size up to the first with other fields; return their number."""
        begin, stride = int(self._index.offsets[start]), int(self._sizes[start])
        raw = self._file.read(begin, FIXED_NBYTES)
        header = checked_header(raw, self.path, start, self._index.n_atoms)
        changed = SourceError(
            f"{self.path}: frame {start} has {header.nbytes} bytes, but the next one "
            f"begins after {stride}: the file has changed since it was opened"
        )
        if header.nbytes != stride:
            raise changed
        begin -= start * stride
        real_type = np.dtype(f">f{header.itemsize}")
        head = _head_dtype(header.head_nbytes, header.box_nbytes, header.itemsize)
        fields = {"head": RecordField(begin, stride, head)}
        if atoms is None or atoms.size:
            low, high = 0, header.n_atoms
            if atoms is not None:
                low, high = int(atoms.min()), int(atoms.max()) + 1
                atoms = atoms - low
            for name in block.present():
                if name in header.present:
                    field = RecordField(
                        begin + header.field_offset(name), stride, real_type, (high, 3)
                    )
                    fields[name] = field.part(low, high)
        for first, last, arrays in self._file.records(start, stop, fields):
            headers = arrays.pop("head")
            differ = (headers["fixed"] != np.frombuffer(raw, np.uint8)).any(axis=1)
            n_alike = int(differ.argmax()) if differ.any() else last - first
            if first + n_alike == start:  # the first frame has changed since its header was read
                raise changed
            part = block.frames(slice(first - start, first - start + n_alike))
            if n_alike:
                headers = headers[:n_alike]
                part.step[...] = headers["step"]
                with np.errstate(over="ignore", invalid="ignore"):
                    part.time[...] = headers["time"].astype(np.float32)
                    part.box[...] = 0
                    if header.box_nbytes:
                        vectors = headers["box"].astype(np.float32)
                        part.box[...] = boxes_from_vectors(vectors, NM_TO_ANGSTROM)
            for name, out in part.present().items() if n_alike and part.n_atoms else ():
                if name not in arrays:
                    out[...] = np.nan
                    continue
                values = arrays[name][:n_alike]
                if real_type.itemsize == 8:
                    with np.errstate(over="ignore", invalid="ignore"):
                        values = values.astype(np.float32)
                swap_to_native(values, out, atoms, SCALES[name])
            if n_alike < last - first:
                return first - start + n_alike
        return stop - start


HEAD_DTYPE = np.dtype(
    [
        ("start", f"S{len(START)}"),
        ("sizes", ">i4", 10),
        ("n_atoms", ">i4"),
        ("step", ">i4"),
        ("nre", ">i4"),
        ("time", ">f4"),
        ("lambda", ">f4"),
        ("box", ">f4", (3, 3)),
    ]
)
"""What stands before the vectors of a frame in single precision."""


@dataclass(frozen=True)
class TRREncoder(Encoder):
    """TRR: positions, velocities, forces, box (always, zeros if there is none), time, step.

    A frame that lacks a field has size 0 for it in its header, and is shorter.
    """

    keeps_partly_periodic_boxes = False

    @property
    def frame_nbytes(self) -> int | None:
        return None if self.sparse else self._record_fields["head"].stride

    @property
    def _record_fields(self) -> RecordFields:
        xyz = (self.n_atoms, 3)
        return packed_fields(
            [("head", HEAD_DTYPE, ()), *((name, ">f4", xyz) for name in self.fields)]
        )

    def encode(self, block: FrameBlock, out: Bytes | None = None) -> Bytes:
        if self.sparse:
            return np.concatenate(
                [
                    replace(self, fields=fields, sparse=()).encode(block.frames(slice(*run)))
                    for run, fields in field_runs(block, self.fields)
                ]
            )
        limits = np.iinfo(np.int32)
        if block.step.min() < limits.min or block.step.max() > limits.max:
            raise OutputError(
                f"trr holds steps up to {limits.max}, but step {block.step.max()} was to be "
                "written; write h5md or zarr"
            )
        fields = self._record_fields
        if out is None:
            out = np.empty(block.n_frames * fields["head"].stride, np.uint8)
        values = field_views(out, fields)
        rows = values["head"]
        rows["start"] = START
        rows["sizes"] = 0
        rows["sizes"][:, 2] = 36
        for number, name in enumerate(FIELDS):
            rows["sizes"][:, 7 + number] = 12 * self.n_atoms if name in self.fields else 0
        rows["n_atoms"] = self.n_atoms
        rows["nre"] = 0
        rows["lambda"] = 0
        rows["step"] = block.step
        rows["time"] = block.time
        box = block.box.copy()
        box[:, :3] /= np.float32(NM_TO_ANGSTROM)
        rows["box"] = vectors_from_boxes(box)
        for name in self.fields:
            # Divided by what reading multiplies with, so that it gives the same numbers again.
            np.divide(getattr(block, name), np.float32(SCALES[name]), out=values[name])
        return out

    def nbytes_from_header(self, head: bytes) -> int:
        return parse_header(head[:FIXED_NBYTES], Path("frame"), 0).nbytes
