"""The header of a TRR frame.

XDR, so all big-endian: the magic number 1993, the string ``GMX_trn_file``, the sizes in bytes of
ten parts, the number of atoms, step, an unused number, and time and lambda in the precision of the
frame. Of the parts, box, virial, pressure, positions, velocities and forces follow in this order;
facts as in GROMACS' xdrfile library (``xdrfile_trr.c``).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mdio.core.errors import SourceError
from mdio.core.files.index import FrameIndex
from mdio.core.files.reading import OpenFile
from mdio.core.frames import FIELDS
from mdio.layouts.native.file import FrameMarks
from mdio.layouts.native.fixed_records import PositionalFile

START = struct.pack(">iii", 1993, 13, 12) + b"GMX_trn_file"
SIZES = struct.Struct(">11i")
"""ir, e, box, vir, pres, top, sym, x, v, f, and the number of atoms."""
FIXED_NBYTES = len(START) + SIZES.size
"""What is the same in all frames that hold the same parts: all before the step."""
MAX_HEADER_NBYTES = FIXED_NBYTES + 8 + 16
"""With time and lambda in double precision."""


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """What a TRR frame holds."""

    n_atoms: int
    itemsize: int
    """Bytes of a number: 4 or 8."""
    box_nbytes: int
    """0 if there is no box."""
    skipped_nbytes: int
    """Virial and pressure, between the box and the positions."""
    present: tuple[str, ...]
    """Fields of a block that are there, in their order in the file."""

    @property
    def head_nbytes(self) -> int:
        """Bytes before the box."""
        return FIXED_NBYTES + 8 + 2 * self.itemsize

    @property
    def field_nbytes(self) -> int:
        """Bytes of positions, of velocities or of forces."""
        return 3 * self.n_atoms * self.itemsize

    @property
    def frame_nbytes(self) -> int:
        """Bytes of the whole frame."""
        head = self.head_nbytes + self.box_nbytes + self.skipped_nbytes
        return head + len(self.present) * self.field_nbytes

    def field_offset(self, name: str) -> int:
        """Where a field begins in the frame."""
        head = self.head_nbytes + self.box_nbytes + self.skipped_nbytes
        return head + self.present.index(name) * self.field_nbytes


def looks_like_trr(head: bytes) -> bool:
    """Return whether `head` (24 bytes) begins a TRR file."""
    return head == START


def parse_header(raw: bytes, path: Path, frame: int) -> FrameHeader:
    """Read a frame's header.

    `raw`: the first `FIXED_NBYTES` of the frame. `path`, `frame`: for messages.
    Raises SourceError: these are not the first bytes of a TRR frame.
    """
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
    itemsize = _itemsize(box, fields, n_atoms)
    whole = {0, 3 * n_atoms * itemsize}
    matrix = {0, 9 * itemsize}
    if (
        itemsize not in (4, 8)
        or n_atoms < 1
        or any((ir, e, top, sym))
        or not {box, vir, pres} <= matrix
        or not set(fields) <= whole
    ):
        raise SourceError(
            f"{path}: frame {frame} is damaged: its header says {n_atoms} atoms and sizes of "
            f"{fields} bytes for positions, velocities and forces, {box} for the box, "
            f"{(vir, pres)} for virial and pressure, {(ir, e, top, sym)} for what is never there"
        )
    present = tuple(name for name, nbytes in zip(FIELDS, fields, strict=True) if nbytes)
    return FrameHeader(n_atoms, itemsize, box, vir + pres, present)


def _itemsize(box_nbytes: int, fields: list[int], n_atoms: int) -> int:
    """Tell the precision as GROMACS does: by the box, else by the first array there is."""
    if box_nbytes:
        return box_nbytes // 9
    return next((nbytes // max(1, 3 * n_atoms) for nbytes in fields if nbytes), 0)


def scan(path: Path) -> FrameIndex:
    """Find the frames of a TRR file by reading all their headers; the last may be cut.

    Raises SourceError if one is damaged, or the first is truncated; the message names it.
    """
    with PositionalFile(path) as file:
        offsets: list[int] = []
        offset, header = 0, None
        while offset < file.nbytes:
            raw = file.read(offset, FIXED_NBYTES)
            if header is not None and len(raw) < FIXED_NBYTES:
                break
            header = header_of(raw, path, len(offsets), header.n_atoms if header else None)
            left = file.nbytes - offset
            if header.frame_nbytes > left and offsets:
                break
            if header.frame_nbytes > left:
                raise SourceError(
                    f"{path}: frame {len(offsets)} is truncated: found {left} of its "
                    f"{header.frame_nbytes} bytes; {len(offsets)} frames are whole. Copy the file "
                    f"again, or cut it to {offset} bytes"
                )
            offsets.append(offset)
            offset += header.frame_nbytes
        if header is None:
            raise SourceError(f"{path}: the file is empty (0 bytes), so it holds no frames")
        lost_nbytes = file.nbytes - offset
        return FrameIndex(np.array(offsets, np.int64), offset, header.n_atoms, lost_nbytes)


def marks_of(path: Path, n_atoms: int | None = None) -> FrameMarks:
    """Return how frames of a file are known, by its first."""

    def size_of(raw: bytes) -> int | None:
        try:
            return header_of(raw, path, 0, n_atoms).frame_nbytes
        except SourceError:
            return None

    with OpenFile(path) as file:
        head = file.peek(0, FIXED_NBYTES)
    n_atoms = header_of(head, path, 0, n_atoms).n_atoms
    return FrameMarks(n_atoms, [head[:24]], size_of, FIXED_NBYTES)  # as `looks_like_trr`


def header_of(raw: bytes, path: Path, frame: int, n_atoms: int | None) -> FrameHeader:
    """Return the header of a frame of `n_atoms`, or of any number; raises SourceError."""
    header = parse_header(raw, path, frame)
    if n_atoms not in (None, header.n_atoms):
        raise SourceError(
            f"{path}: frame {frame} has {header.n_atoms} atoms, the frames before have {n_atoms}; "
            "a trajectory has the same atoms throughout"
        )
    return header
