"""Tables of what lies where in a file: its frames, and the chunks of their positions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.files.piece_sums import PieceSums

EXPONENT, SWAPPED = 0x7F800000, 0x0000807F
EXPONENTS = {
    ("<", "little"): EXPONENT,
    (">", "big"): EXPONENT,
    ("<", "big"): SWAPPED,
    (">", "little"): SWAPPED,
}
"""Bits that are all set in a float that is no number, by its order and the machine's."""

FrameCheck = Callable[[NDArray[np.uint8], range, "FrameTable", int], None]
"""Given a buffer, the frames whose bytes it begins with, all frames and the number of atoms; raises
SourceError where these bytes cannot be read as frames, without decoding them."""


@dataclass(frozen=True, slots=True, eq=False)
class FrameTable:
    """Neighbouring frames of one file, each a run of bytes that can be copied.

    Attributes: `path`: the file. `edges`, (F + 1,) int64: where each frame begins, and where the
    last one ends. `header`: gives what is to stand before frames ``start:stop`` of the file in a
    file of their own; None where nothing does, so that frames of several files can follow one
    another. `first`: number of the first of these frames in the file. `sums`: checksums of the
    whole file that its frames are to have, if there are any. `check`: finds from their bytes
    whether frames can be read; None where any bytes can. `byte_order`: of the floats that are
    positions, ``<`` or ``>``; None where positions are integers, and finite.
    """

    path: Path
    edges: NDArray[np.int64]
    header: Callable[[int, int], bytes] | None = None
    first: int = 0
    sums: PieceSums | None = None
    check: FrameCheck | None = None
    byte_order: str | None = None

    @property
    def n_frames(self) -> int:
        """Number of frames F."""
        return len(self.edges) - 1

    @property
    def nbytes(self) -> int:
        """Bytes of all frames."""
        return int(self.edges[-1] - self.edges[0])

    def may_hold_nonfinite(self, data: memoryview) -> bool:
        """Return whether bytes of frames may hold positions that are NaN or infinite.

        Those of their exponents, all ones, are looked for in all words of four bytes.
        """
        if self.byte_order is None:
            return False
        mask = np.uint32(EXPONENTS[self.byte_order, sys.byteorder])
        return bool((np.frombuffer(data, np.uint32) & mask).max(initial=0) == mask)

    def part(self, start: int, stop: int) -> FrameTable:
        """Return frames ``start:stop`` of these."""
        edges = self.edges[start : stop + 1]
        return replace(self, edges=edges, first=self.first + start)


@dataclass(frozen=True, slots=True, eq=False)
class ChunkTable:
    """The chunks of an array (frames, atoms, 3), as bytes of a file.

    `path`: the file. `chunk`: frames, atoms and coordinates in a chunk. `offset`, `nbytes` ((A, B,
    C) int64): where each chunk begins, and its bytes. `dtype`: of its numbers, as NumPy calls it.
    `unit`: of its numbers: ``angstrom`` or ``nm``. `codec`: how the bytes become numbers, as
    numcodecs wants it; None where they are numbers.
    """

    path: Path
    chunk: tuple[int, int, int]
    offset: NDArray[np.int64]
    nbytes: NDArray[np.int64]
    dtype: str = "<f4"
    unit: str = "angstrom"
    codec: Mapping[str, Any] | None = None

    @property
    def kind(self) -> tuple[Any, ...]:
        """Values that are the same in all files of one array."""
        codec = None if self.codec is None else tuple(sorted(self.codec.items()))
        return self.chunk, self.offset.shape[1:], self.dtype, self.unit, codec

    def frames(self, frames: NDArray[np.int64]) -> ChunkTable:
        """Return those of some frames; there is one in each chunk."""
        return replace(self, offset=self.offset[frames], nbytes=self.nbytes[frames])


def no_table() -> None:
    """Return no table."""
    return


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """Where the data of a layout lie.

    `frames`: of one file, if copies of its frames make valid files of its format. `positions`:
    makes the table of the positions, which others read there without a copy; None from it where
    they are stored in a way that others do not know. It raises SourceError: the file is damaged.
    """

    frames: FrameTable | None = None
    positions: Callable[[], ChunkTable | None] = no_table


def frame_chunk_table(
    path: Path, begins: NDArray[np.int64], planes: NDArray[np.int64], n_atoms: int, **more: Any
) -> ChunkTable:
    """Return positions that lie in each frame in the same way.

    `path`: the file. `begins` ((F,) int64): where each frame begins. `planes` ((C,) int64): where
    its positions begin in it (C = 1), or x, y and z (C = 3). `n_atoms`: of each frame. `**more`:
    ``dtype`` and ``unit``.
    """
    n_columns = 3 // len(planes)
    itemsize = np.dtype(more.get("dtype", "<f4")).itemsize
    offset = (begins[:, None] + planes)[:, None, :]
    nbytes = np.full(offset.shape, n_atoms * n_columns * itemsize, np.int64)
    return ChunkTable(path, (1, n_atoms, n_columns), offset, nbytes, **more)
