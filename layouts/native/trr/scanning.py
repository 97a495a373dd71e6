"""Finding the frames of TRR files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mdio.core.errors import SourceError
from mdio.core.files.index import FrameIndex
from mdio.core.files.reading import OpenFile
from mdio.layouts.native.fixed_records import PositionalFile
from mdio.layouts.native.in_parts import FrameMarks
from mdio.layouts.native.trr.header import FIXED_NBYTES, FrameHeader, parse_header


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
