"""Frames of files that are damaged between their ends: where the next one begins."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path

import numpy as np

from mdio.core.files.index import FrameIndex
from mdio.layouts.native.in_parts import FrameMarks

__all__ = ["scan_around_damage"]


def scan_around_damage(path: Path, marks: FrameMarks) -> tuple[FrameIndex, list[int]]:
    """Find the frames of a file whose frames have headers with their sizes.

    A frame counts if its header can be one and the next follows it, or the file ends. Where that
    is not so, the next such header is looked for; what lies before it is listed as a frame too,
    which cannot be read.

    Parameters
    ----------
    path
        The file.
    marks
        How its frames are known.

    Returns
    -------
    index : FrameIndex
    whole : list of int
        Numbers of the frames with a header.
    """
    offsets: list[int] = []
    whole: list[int] = []
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:

        def end_of(at: int) -> int | None:
            """Return where the frame that begins here ends; None if none does."""
            size = marks.size_of(data[at : at + marks.head_nbytes])
            return None if size is None or at + size > len(data) else at + size

        at = end = 0
        while at < len(data):
            stop = end_of(at)
            sound = stop is not None and (stop == len(data) or end_of(stop) is not None)
            following = stop
            if not sound:
                found = (_next(data, begin, at + 1, end_of) for begin in marks.begins)
                following = min((one for one in found if one is not None), default=None)
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
        lost_nbytes = len(data) - end
    return FrameIndex(np.array(offsets, np.int64), end, marks.n_atoms, lost_nbytes), whole


def _next(
    data: mmap.mmap, begin: bytes, at: int, end_of: Callable[[int], int | None]
) -> int | None:
    while (at := data.find(begin, at)) >= 0:
        if end_of(at) is not None:
            return at
        at += 1
    return None
