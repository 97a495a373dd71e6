"""Where the chunks of an array of our H5MD files lie, and what of them is read for a selection."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mdio.core.files.piece_sums import widened
from mdio.core.files.reading import OpenFile
from mdio.core.files.requests import ByteRange
from mdio.layouts.h5md.io import Column

__all__ = ["AtomIndices", "Part", "PlacedChunks"]

AtomIndices = NDArray[np.int64]

NARROW_SHARE = 4
"""Only the bytes of the wanted atoms are read if they lie within this part of a frame ..."""

NARROW_FRAME_NBYTES = 64 << 10
"""... and frames are at least this large: below, reading all costs less than the calls it saves."""


@dataclass(frozen=True, slots=True)
class Part:
    """What a selection of atoms takes from one chunk along the atoms."""

    j: int
    atoms: AtomIndices | None
    """Within the chunk; None = all that it has."""
    target: slice | AtomIndices
    """Where they belong in the output."""


class PlacedChunks:
    """The chunks of one ``/particles/GROUP/ELEMENT/value``.

    Parameters
    ----------
    what
        File and array, for messages.
    shape
        (F, A, 3).
    chunk
        Frames and atoms in a chunk.
    offset, nbytes, crcs : (frame chunks, atom chunks)
        Place, stored bytes and checksum of each chunk.
    deflated, shuffled
        The filters that each went through.
    pieces
        Checksums of parts of chunks, if there are any; see `mdio.layouts.h5md.io.PIECES`.
    trusted
        Whether reads compare no checksums.
    """

    def __init__(
        self,
        what: str,
        shape: tuple[int, ...],
        chunk: tuple[int, int],
        offset: NDArray[np.int64],
        nbytes: NDArray[np.int64],
        crcs: NDArray[np.uint32],
        *,
        deflated: bool,
        shuffled: bool,
        pieces: Column | None = None,
        trusted: bool = False,
    ) -> None:
        self.what = what
        self.n_frames, self.n_atoms = shape[:2]
        self.chunk_frames, self.chunk_atoms = chunk
        self._offset, self._nbytes, self.crcs = offset, nbytes, crcs
        self.deflated, self._shuffled = deflated, shuffled
        self.pieces = pieces
        self._trusted = trusted
        self._scratch: NDArray[np.float32] | None = None
        self._held: tuple[int, int] | None = None
        # Frames of all atoms then lie one after the other, as they do in memory.
        self._in_rows = not deflated and self.chunk_atoms == self.n_atoms
        self._all_parts = [
            Part(j, None, slice(j * self.chunk_atoms, self._end_of(j))) for j in range(self.grid[1])
        ]
        self._parts: tuple[AtomIndices, list[Part]] | None = None

    @property
    def grid(self) -> tuple[int, int]:
        """Number of chunks along frames and atoms."""
        return self.crcs.shape[0], self.crcs.shape[1]

    @property
    def places(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Offsets and stored bytes of all chunks."""
        return self._offset, self._nbytes

    def byte_ranges(
        self, file: OpenFile, start: int, stop: int, atoms: AtomIndices | None
    ) -> Iterator[ByteRange]:
        """Yield what `read` reads of chunks."""
        parts = self._all_parts if atoms is None else self._parts_of(atoms)
        row_nbytes = 12 * self.chunk_atoms
        for i in range(start // self.chunk_frames, -(-stop // self.chunk_frames)):
            at = i * self.chunk_frames
            lo, hi = max(start - at, 0), min(stop - at, self.chunk_frames)
            whole = hi - lo == min(self.chunk_frames, self.n_frames - at)
            for part in parts:
                offset, nbytes = int(self._offset[i, part.j]), int(self._nbytes[i, part.j])
                first, last, narrow = self._span(part)
                if self.deflated or (whole and not narrow):
                    yield ByteRange(file, offset, nbytes)
                elif narrow:
                    begin, end = self._widened(first, last)
                    for k in range(lo, hi):
                        yield ByteRange(file, offset + k * row_nbytes + begin, end - begin)
                else:
                    yield ByteRange(file, offset + lo * row_nbytes, (hi - lo) * row_nbytes)

    def name_of(self, i: int, j: int) -> str:
        """Return what messages call a chunk."""
        first, atom = i * self.chunk_frames, j * self.chunk_atoms
        frames = f"frames {first} to {min(first + self.chunk_frames, self.n_frames) - 1}"
        if self.grid[1] == 1:
            return f"{self.what}, {frames}"
        return f"{self.what}, {frames}, atoms {atom} to {self._end_of(j) - 1}"

    def _end_of(self, j: int) -> int:
        return min((j + 1) * self.chunk_atoms, self.n_atoms)

    def _parts_of(self, atoms: AtomIndices) -> list[Part]:
        """Sort a selection by chunk; the answer for the last selection is kept."""
        if self._parts is not None and np.array_equal(self._parts[0], atoms):
            return self._parts[1]
        owner = atoms // self.chunk_atoms
        parts = []
        for j in np.unique(owner).tolist():
            at = np.flatnonzero(owner == j)
            target: slice | AtomIndices = at
            if at[-1] - at[0] + 1 == at.size:
                target = slice(int(at[0]), int(at[-1]) + 1)
            parts.append(Part(j, atoms[at] - j * self.chunk_atoms, target))
        self._parts = (atoms.copy(), parts)
        return parts

    def _span(self, part: Part) -> tuple[int, int, bool]:
        """Return the first wanted atom, the one behind the last, and if frames are read in part."""
        first, last = 0, self._end_of(part.j) - part.j * self.chunk_atoms
        if part.atoms is not None:
            first, last = int(part.atoms.min()), int(part.atoms.max()) + 1
        large = 12 * self.chunk_atoms >= NARROW_FRAME_NBYTES
        return first, last, large and (last - first) * NARROW_SHARE <= self.chunk_atoms

    def _widened(self, first: int, last: int) -> tuple[int, int]:
        """Return which bytes of a frame's row are read for some atoms."""
        begin, end = 12 * first, 12 * last
        if self.pieces is not None and not self._trusted:
            return widened(begin, end, 12 * self.chunk_atoms)
        return begin, end
