"""What a layout is told of the reads to come, so that their bytes are asked for beforehand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from mdio.core.files.in_flight import InFlight
from mdio.core.files.requests import ByteRange

__all__ = ["AtomIndices", "Expecting"]

Runs = Iterable[tuple[int, int]]
AtomIndices = NDArray[np.int64]


class Expecting:
    """The part of a layout that asks for bytes before they are read."""

    _ahead: InFlight | None = None

    def byte_ranges(
        self,
        start: int,  # noqa: ARG002
        stop: int,  # noqa: ARG002
        atoms: AtomIndices | None,  # noqa: ARG002
    ) -> Iterator[ByteRange]:
        """Yield the bytes that reading frames ``start:stop`` of `atoms` takes, in its order.

        Called of an open layout. Small tables may be left out, and all may where nothing is gained.
        Raises SourceError or CorruptLayoutError as reading does.
        """
        yield from ()

    def expect(self, runs: Runs, atoms: AtomIndices | None = None) -> None:
        """Say what will be read next; what was said before is forgotten.

        Parameters
        ----------
        runs
            First frame, and one beyond the last, of the reads to come, in their order. Looked at
            as reading goes on, so that there may be many.
        atoms
            As those reads have them.
        """
        if self._ahead is None:
            self._ahead = InFlight()
        self._ahead.expect(
            wanted for start, stop in runs for wanted in self.byte_ranges(start, stop, atoms)
        )

    def expect_nothing(self) -> None:
        """Let go of what was asked for and not read."""
        if self._ahead is not None:
            self._ahead.stop()
