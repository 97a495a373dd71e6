"""Which chunks of an array hold which frames and atoms, and how many of their bytes are read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mdio.core.files.piece_sums import widened

AtomIndices = NDArray[np.int64]

NARROW_SHARE = 4
"""Only the bytes of the wanted atoms are read if they are at most this part of a frame ..."""
NARROW_FRAME_NBYTES = 64 << 10
"""... and frames are at least this large: below, reading all costs less than the calls it saves."""


class Rows(NamedTuple):
    """The wanted frames of one row of chunks."""

    i: int
    """Of the row, along the frames."""
    first: int
    last: int
    """Frames within the chunk."""
    target: slice
    """Where they go."""
    whole: bool
    """Whether they are all that the row has."""


class Columns(NamedTuple):
    """The wanted atoms of one column of chunks."""

    j: int
    atoms: AtomIndices | None
    """Within the chunk; None = all that it has."""
    n_atoms: int
    """How many the column has."""
    target: slice | AtomIndices
    """Where they go."""
    span: tuple[int, int] | None
    """The bytes of each frame that are read; None for all."""


class ChunkGrid:
    """The chunks of an array of coordinates, (F, A, 3) float32.

    `what`: what messages call it. `shape`, `chunk`: frames and atoms, of all and of a chunk.
    `plain`: whether chunks lie as they are in memory. `in_pieces`: whether what is read of a
    frame's row of a chunk is widened to whole pieces (`mdio.core.files.piece_sums`).
    """

    def __init__(
        self,
        what: str,
        shape: tuple[int, ...],
        chunk: tuple[int, ...],
        *,
        plain: bool,
        in_pieces: bool,
    ) -> None:
        self.what = what
        self.n_frames, self.n_atoms = shape[:2]
        self.chunk_frames, self.chunk_atoms = chunk[:2]
        self.grid = (-(-self.n_frames // self.chunk_frames), -(-self.n_atoms // self.chunk_atoms))
        self.row_nbytes = 12 * self.chunk_atoms
        self.plain, self.in_pieces = plain, plain and in_pieces
        self._all = [
            self._column(j, None, slice(j * self.chunk_atoms, (j + 1) * self.chunk_atoms))
            for j in range(self.grid[1])
        ]
        self._last: tuple[AtomIndices, list[Columns]] | None = None

    def name_of(self, i: int, j: int) -> str:
        """Return what messages call a chunk."""
        first, atom = i * self.chunk_frames, j * self.chunk_atoms
        name = f"{self.what}, frames {first} to {min(first + self.chunk_frames, self.n_frames) - 1}"
        if self.grid[1] > 1:
            name += f", atoms {atom} to {min(atom + self.chunk_atoms, self.n_atoms) - 1}"
        return name

    def rows(self, start: int, stop: int) -> Iterator[Rows]:
        """Yield what frames ``start:stop`` take from each row of chunks."""
        size = self.chunk_frames
        for i in range(start // size, (stop - 1) // size + 1):
            begin, end = i * size, min((i + 1) * size, self.n_frames)
            first, last = max(start, begin), min(stop, end)
            target = slice(first - start, last - start)
            yield Rows(i, first - begin, last - begin, target, last - first == end - begin)

    def columns(self, atoms: AtomIndices | None) -> list[Columns]:
        """Sort a selection by chunk; the answer for the last selection is kept."""
        if atoms is None:
            return self._all
        if self.grid[1] == 1:
            return [self._column(0, atoms, slice(None))]
        if self._last is not None and np.array_equal(self._last[0], atoms):
            return self._last[1]
        owner = atoms // self.chunk_atoms
        columns = []
        for j in np.flatnonzero(np.bincount(owner)).tolist():
            at = np.flatnonzero(owner == j)
            target: slice | AtomIndices = at
            if at[-1] - at[0] + 1 == at.size:
                target = slice(int(at[0]), int(at[-1]) + 1)
            columns.append(self._column(j, atoms[at] - j * self.chunk_atoms, target))
        self._last = (atoms.copy(), columns)
        return columns

    def _column(self, j: int, atoms: AtomIndices | None, target: slice | AtomIndices) -> Columns:
        n_atoms = min(self.chunk_atoms, self.n_atoms - j * self.chunk_atoms)
        span = None
        if self.plain and self.row_nbytes >= NARROW_FRAME_NBYTES:
            begin, end = 0, 12 * n_atoms
            if atoms is not None:
                begin, end = 12 * int(atoms.min()), 12 * int(atoms.max()) + 12
            if self.in_pieces:
                begin, end = widened(begin, end, self.row_nbytes)
            if (end - begin) * NARROW_SHARE <= self.row_nbytes:
                span = begin, end
        return Columns(j, atoms, n_atoms, target, span)


def cut(
    rows: NDArray[np.float32], atoms: AtomIndices | None, n_atoms: int, begin: int
) -> tuple[NDArray[np.float32], AtomIndices | None]:
    """Return the numbers of the wanted atoms in rows from number `begin` on, and these atoms."""
    low, high = (0, n_atoms) if atoms is None else (int(atoms.min()), int(atoms.max()) + 1)
    source = rows[:, 3 * low - begin : 3 * high - begin].reshape(len(rows), -1, 3)
    return source, None if atoms is None else atoms - low
