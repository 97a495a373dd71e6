"""Finding the frames of an XTC file in several parts of it at a time.

Where a file comes over a network, walking from header to header costs a round trip each, or the
bytes in between all the same. So every process reads a part of the file once, many requests at a
time, finds the first header in it, and follows the frames from there. The parts fit together if
each ends where the next begins; and what was read is in the memory of the machine that will want
it for the analysis.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mdio.core.files.in_flight import InFlight
from mdio.core.files.index import FrameIndex
from mdio.core.files.reading import OpenFile
from mdio.core.files.requests import ByteRange, is_local
from mdio.core.xtc.header import HEADER_NBYTES, MAGICS, parse_header

__all__ = ["Part", "comes_over_a_network", "joined", "scan_part"]

PIECE_NBYTES = 1 << 20

Part = tuple[NDArray[np.int64], int]
"""Where the frames begin that begin in a part of a file, and where the last of them ends."""


def comes_over_a_network(path: Path) -> bool:
    """Return whether a file lies elsewhere than on a disk of this machine."""
    with OpenFile(path) as file:
        return not is_local(file.fileno(), 0)


def scan_part(path: Path, n_atoms: int, part: int, n_parts: int) -> Part | None:
    """Find the frames that begin in one of `n_parts` equal parts of a file.

    Returns
    -------
    Part or None
        None if there is anything but frames; `mdio.core.xtc.codec.scan` can say what.

    Raises
    ------
    SourceError
        The file cannot be read.
    """
    with OpenFile(path) as file:
        begin, end = (file.nbytes * k // n_parts for k in (part, part + 1))
        ahead = InFlight()
        ahead.expect([ByteRange(file, begin, end - begin)])
        try:
            return _frames(file, n_atoms, begin, end)
        except ValueError:
            return None
        finally:
            ahead.stop()


def _frames(file: OpenFile, n_atoms: int, begin: int, end: int) -> Part:
    offsets: list[int] = []
    at = 0 if begin == 0 else -1
    edges = [begin, *range((begin // PIECE_NBYTES + 1) * PIECE_NBYTES, end, PIECE_NBYTES), end]
    for first, last in itertools.pairwise(edges):
        data = file.array(first, last - first).data
        if at < 0:
            at = _first_header(file, data, first, n_atoms)
        while 0 <= at < last:
            raw = bytes(data[at - first : at - first + HEADER_NBYTES])
            if len(raw) < HEADER_NBYTES:
                raw = file.peek(at, HEADER_NBYTES)
            offsets.append(at)
            at += parse_header(raw, len(offsets) - 1, at, n_atoms).nbytes
    return np.array(offsets, np.int64), at if at >= 0 else end


def _first_header(file: OpenFile, data: memoryview, first: int, n_atoms: int) -> int:
    """Return where the first frame begins in a piece of a file; -1 if none does.

    Coordinates may hold what looks like a header, but hardly one whose frame ends at another.
    """
    behind = file.peek(first + len(data), HEADER_NBYTES)
    raw = bytes(data) + behind
    starts = [struct.pack(">ii", magic, n_atoms) for magic in MAGICS]
    at = -1
    while True:
        found = [k for k in (raw.find(start, at + 1) for start in starts) if k >= 0]
        if not found or min(found) >= len(data):
            return -1
        at = min(found)
        try:
            end = first + at + parse_header(raw[at : at + HEADER_NBYTES], 0, first + at).nbytes
            if end < file.nbytes:
                parse_header(file.peek(end, HEADER_NBYTES), 1, end, n_atoms)
            if end <= file.nbytes:
                return first + at
        except ValueError:
            continue


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
