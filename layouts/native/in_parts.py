"""Finding the frames of an XTC or TRR file in several parts of it at a time.

Where a file comes over a network, walking from header to header costs a round trip each, or the
bytes in between all the same. So every process reads a part of the file once, many requests at a
time, finds the first header in it, and follows the frames from there. The parts fit together if
each ends where the next begins; and what was read is in the memory of the machine that will want
it for the analysis.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mdio.core.files.in_flight import asked
from mdio.core.files.index import FrameIndex
from mdio.core.files.reading import OpenFile
from mdio.core.files.remote.paths import RemotePath
from mdio.core.files.requests import ByteRange
from mdio.layouts.striping.networks import is_network
from mdio.layouts.striping.stripes import file_system_type

PIECE_NBYTES = 1 << 20

Part = tuple[NDArray[np.int64], int]
"""Where the frames begin that begin in a part of a file, and where the last of them ends."""


@dataclass(frozen=True, slots=True)
class FrameMarks:
    """How the frames of a file are known, whose headers tell how long they are."""

    n_atoms: int
    begins: Sequence[bytes]
    """Bytes with which frames begin."""
    size_of: Callable[[bytes], int | None]
    """Bytes of the frame whose header this is; None if it is none."""
    head_nbytes: int
    """Bytes of a header that `size_of` needs."""


def comes_over_a_network(path: Path) -> bool:
    """Return whether a file lies elsewhere than on a disk of this machine."""
    return isinstance(path, RemotePath) or is_network(file_system_type(path))


def scan_fast(path: Path, marks: FrameMarks, scan: Callable[[Path], FrameIndex]) -> FrameIndex:
    """Find the frames of a whole file; over a network, by reading it with many requests at a time.

    `scan` walks from header to header, and says what is wrong.
    """
    if comes_over_a_network(path):
        found = joined([scan_part(path, marks, 0, 1)], marks.n_atoms, path.stat().st_size)
        if found is not None:
            return found
    return scan(path)


def extended(path: Path, marks: FrameMarks, former: FrameIndex) -> FrameIndex | None:
    """Add the frames behind those of `former`, of a file that was written on.

    None if something else follows, or the beginning of a header: a scan can say what.
    """
    offsets, at = [], former.nbytes
    with OpenFile(path) as file:
        while at < file.nbytes:
            raw = file.peek(at, marks.head_nbytes)
            nbytes = marks.size_of(raw) if len(raw) == marks.head_nbytes else None
            if nbytes is None:
                return None
            if at + nbytes > file.nbytes:
                break
            offsets.append(at)
            at += nbytes
        every = np.append(former.offsets, np.array(offsets, np.int64))
        return FrameIndex(every, at, former.n_atoms, file.nbytes - at)


def scan_part(path: Path, marks: FrameMarks, part: int, n_parts: int) -> Part | None:
    """Find the frames that begin in one of `n_parts` equal parts of a file.

    Returns Part or None: None if there is anything but frames; a walk over the file can say what.
    Raises SourceError: the file cannot be read.
    """
    with OpenFile(path) as file:
        begin, end = (file.nbytes * k // n_parts for k in (part, part + 1))
        with asked([ByteRange(file, begin, end - begin)]):
            return _frames(file, marks, begin, end)


def _frames(file: OpenFile, marks: FrameMarks, begin: int, end: int) -> Part | None:
    offsets: list[int] = []
    at = 0 if begin == 0 else -1
    edges = [begin, *range((begin // PIECE_NBYTES + 1) * PIECE_NBYTES, end, PIECE_NBYTES), end]
    for first, last in itertools.pairwise(edges):
        data = file.array(first, last - first).data
        if at < 0:
            at = _first_header(file, data, first, marks)
        while 0 <= at < last:
            raw = bytes(data[at - first : at - first + marks.head_nbytes])
            if len(raw) < marks.head_nbytes:
                raw = file.peek(at, marks.head_nbytes)
            nbytes = marks.size_of(raw)
            if nbytes is None:
                return None
            offsets.append(at)
            at += nbytes
    return np.array(offsets, np.int64), at if at >= 0 else end


def _first_header(file: OpenFile, data: memoryview, first: int, marks: FrameMarks) -> int:
    """Return where the first frame begins in a piece of a file; -1 if none does.

    Coordinates may hold what looks like a header, but hardly one whose frame ends at another.
    """
    raw = bytes(data) + file.peek(first + len(data), marks.head_nbytes)
    at = -1
    while True:
        found = [k for k in (raw.find(begin, at + 1) for begin in marks.begins) if k >= 0]
        if not found or min(found) >= len(data):
            return -1
        at = min(found)
        nbytes = marks.size_of(raw[at : at + marks.head_nbytes])
        end = first + at + (nbytes or file.nbytes)
        if end == file.nbytes and nbytes:
            return first + at
        if end < file.nbytes and marks.size_of(file.peek(end, marks.head_nbytes)) is not None:
            return first + at


def joined(parts: Sequence[Part | None], n_atoms: int, nbytes: int) -> FrameIndex | None:
    """Return the index of a file that was found in parts; None if they do not fit together."""
    at = 0
    offsets = []
    for part in parts:
        if part is None:
            return None
        starts, end = part
        if starts.size:
            if starts[0] != at:
                return None
            offsets.append(starts)
            at = end
    return FrameIndex(np.concatenate(offsets), nbytes, n_atoms) if at == nbytes else None
