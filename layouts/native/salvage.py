"""Frames of files that are damaged between their ends: where the next one begins."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from mdio.core.files.in_flight import InFlight
from mdio.core.files.index import FrameIndex
from mdio.core.files.reading import OpenFile
from mdio.core.files.requests import ByteRange
from mdio.layouts.native.in_parts import FrameMarks

PIECE_NBYTES = 1 << 20
STORE_PIECE_NBYTES = 8 << 20
"""An object is looked at in pieces of this size, ..."""
MAX_STORE_PIECES = 4
"""... of which so many are kept."""

Peek = Callable[[int, int], bytes]
"""Gives up to so many bytes from a place on; fewer only at the end."""


def scan_around_damage(path: Path, marks: FrameMarks) -> tuple[FrameIndex, list[int]]:
    """Find the frames of a file whose frames have headers with their sizes.

    A frame counts if its header can be one and the next follows it, or the file ends. Where that
    is not so, the next such header is looked for; what lies before it is listed as a frame too,
    which cannot be read.

    `path`: the file. `marks`: how its frames are known.
    Returns `index` (FrameIndex). `whole` (list of int): numbers of the frames with a header.
    """
    offsets: list[int] = []
    whole: list[int] = []
    with OpenFile(path) as file, _peeking(file) as peek:
        size = file.nbytes

        def end_of(at: int) -> int | None:
            """Return where the frame that begins here ends; None if none does."""
            nbytes = marks.size_of(peek(at, marks.head_nbytes))
            return None if nbytes is None or at + nbytes > size else at + nbytes

        at = end = 0
        while at < size:
            stop = end_of(at)
            sound = stop is not None and (stop == size or end_of(stop) is not None)
            following = stop
            if not sound:
                following = _next(peek, size, marks.begins, at + 1, end_of)
                # A frame before damage is whole if what comes next does not begin within it.
                sound = stop is not None and (following is None or following >= stop)
                if sound and following != stop:
                    following = stop
            if sound:
                whole.append(len(offsets))
                end = stop or end
            if sound or following is not None:
                offsets.append(at)
            if following is None:
                break
            at = following
        lost_nbytes = size - end
    return FrameIndex(np.array(offsets, np.int64), end, marks.n_atoms, lost_nbytes), whole


@contextmanager
def _peeking(file: OpenFile) -> Iterator[Peek]:
    """Yield what gives bytes of a file, of an object in pieces that are asked for ahead."""
    if file.remote is None:
        yield file.peek
        return
    ahead, kept, newest = InFlight(), OrderedDict[int, bytes](), -1

    def piece(number: int) -> bytes:
        nonlocal newest
        if number in kept:
            return kept[number]
        begin = number * STORE_PIECE_NBYTES
        if number != newest + 1 or not kept:
            ahead.expect([ByteRange(file, begin, file.nbytes - begin)])
        newest = number
        kept[number] = file.peek(begin, STORE_PIECE_NBYTES)
        if len(kept) > MAX_STORE_PIECES:
            kept.popitem(last=False)
        return kept[number]

    def peek(at: int, nbytes: int) -> bytes:
        end = min(at + nbytes, file.nbytes)
        if end <= at:
            return b""
        first, last = at // STORE_PIECE_NBYTES, (end - 1) // STORE_PIECE_NBYTES
        if nbytes < PIECE_NBYTES and last > newest + 1 and first not in kept:
            return file.peek(at, nbytes)  # far away, where a damaged header leads
        found = b"".join(piece(number) for number in range(first, last + 1))
        at -= first * STORE_PIECE_NBYTES
        return found[at : at + nbytes]

    try:
        yield peek
    finally:
        ahead.stop()


def _next(
    peek: Peek,
    size: int,
    begins: Sequence[bytes],
    at: int,
    end_of: Callable[[int], int | None],
) -> int | None:
    """Return where the next frame begins, from `at` on; None if none does."""
    more = max(map(len, begins)) - 1
    while at < size:
        data = peek(at, PIECE_NBYTES + more)
        for place in sorted(_places(data, begins)):
            if end_of(at + place) is not None:
                return at + place
        at += PIECE_NBYTES
    return None


def _places(data: bytes, begins: Sequence[bytes]) -> Iterator[int]:
    for begin in begins:
        place = data.find(begin)
        while place >= 0:
            yield place
            place = data.find(begin, place + 1)
