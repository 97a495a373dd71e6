"""Which frames a read takes from which row of chunks. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Part", "parts_of"]


@dataclass(frozen=True, slots=True)
class Part:
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


def parts_of(start: int, stop: int, chunk_frames: int, n_frames: int) -> Iterator[Part]:
    """Yield what frames ``start:stop`` take from each row of chunks."""
    for number in range(start // chunk_frames, (stop - 1) // chunk_frames + 1):
        begin, end = number * chunk_frames, min((number + 1) * chunk_frames, n_frames)
        first, last = max(start, begin), min(stop, end)
        yield Part(
            number,
            first - begin,
            last - begin,
            slice(first - start, last - start),
            (first, last) == (begin, end),
        )
