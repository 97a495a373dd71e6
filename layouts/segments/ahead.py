"""Segments in a store that are opened next: their beginnings are asked for many at a time."""

from __future__ import annotations

from collections.abc import Callable, Container
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mdio.core.blocks import Spans
from mdio.core.files.remote.objects import forget, look_ahead

AHEAD = 24


class ComingSegments:
    """What is asked for of segments before they are opened.

    `edges` ((n + 1,) int64): first frame of each, and the number of frames. `place`: gives the path
    of one by its number. `opened`: numbers of those that are open.
    """

    def __init__(
        self, edges: NDArray[np.int64], place: Callable[[int], Path], opened: Container[int]
    ) -> None:
        self._edges, self._place, self._opened = edges, place, opened
        self._runs: tuple[range, ...] = ()
        self._asked: set[int] = set()

    def expect(self, runs: Spans) -> None:
        """Ask for the segments that runs of frames lie in, for no others any more."""
        self._runs = tuple(
            range(
                int(self._edges.searchsorted(start, side="right")) - 1,
                int(self._edges.searchsorted(stop)),
            )
            for start, stop in runs
        )
        for number in {n for n in self._asked if not any(n in run for run in self._runs)}:
            forget(self._place(number))
            self._asked.discard(number)
        if self._runs:
            self.begin(self._runs[0].start)

    def begin(self, number: int) -> None:
        """Ask for a segment that is opened now, and for those that follow it."""
        coming: dict[int, None] = {}
        for run in self._runs:
            following = range(number, run.stop) if not coming and number in run else run
            if coming or number in run:
                coming |= dict.fromkeys(following[:AHEAD])
        new = [n for n in [*coming][:AHEAD] if n not in self._opened and n not in self._asked]
        look_ahead([self._place(n) for n in new], 0)
        self._asked.update(new)

    def end(self, number: int) -> None:
        """Note that a segment has been opened."""
        self._asked.discard(number)
