"""Which frames a read takes from which row of chunks. Pure arithmetic."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Part", "parts_of"]


class Part(NamedTuple):
    """The wanted frames of one row of chunks."""

    number: int
    """Of the row, along the frames."""
    first: int
    last: int
    """Frames within the chunk."""
    rows: slice
    """Where they go."""
    whole: bool
    """Whether they are all that the row has."""


def parts_of(start: int, stop: int, chunk_frames: int, n_frames: int) -> list[Part]:
    """Return what frames ``start:stop`` take from each row of chunks."""
    parts = []
    for number in range(start // chunk_frames, (stop - 1) // chunk_frames + 1):
        begin, end = number * chunk_frames, min((number + 1) * chunk_frames, n_frames)
        first, last = max(start, begin), min(stop, end)
        rows = slice(first - start, last - start)
        whole = first == begin and last == end
        parts.append(Part(number, first - begin, last - begin, rows, whole))
    return parts
