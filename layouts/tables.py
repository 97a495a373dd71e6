"""Tables of where frames, and the chunks of their positions, are in a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.files.span_checksums import SpanChecksums
from mdio.core.files.store import store_at

EXPONENT = 0x7F800000
"""Bits that are all set in a float that is NaN or infinite."""

FrameCheck = Callable[[NDArray[np.uint8], range, "FrameTable", int], None]
"""Takes a buffer, the frames whose bytes it begins with, the table of all frames and the number of
atoms; raises SourceError if the bytes cannot be frames. It decodes nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class FrameTable:
    """Neighbouring frames of one file, each a run of bytes that can be copied.

    `edges`, (F + 1,) int64: where each frame begins, and the last one ends. `header`: returns the
    header of a file of frames ``start:stop``; None for formats without one, where frames of several
    files can follow one another. `first`: number of the first of these frames in the file.
    `checksums`: of the whole file, if known. `check`: None where any bytes can be read.
    `byte_order`: of positions, ``<`` or ``>``; None where they are integers, and so finite.
    """

    path: Path
    edges: NDArray[np.int64]
    header: Callable[[int, int], bytes] | None = None
    first: int = 0
    checksums: SpanChecksums | None = None
    check: FrameCheck | None = None
    byte_order: str | None = None

    @property
    def n_frames(self) -> int:
        return len(self.edges) - 1

    @property
    def nbytes(self) -> int:
        return int(self.edges[-1] - self.edges[0])

    def may_hold_nonfinite(self, data: memoryview) -> bool:
        """Return whether bytes of frames may hold positions that are NaN or infinite.

        True if any word of four bytes, read as a float, has an exponent of all ones.
        """
        if self.byte_order is None:
            return False
        mask = np.array(EXPONENT, f"{self.byte_order}u4").view(np.uint32)
        return bool((np.frombuffer(data, np.uint32) & mask).max(initial=0) == mask)

    def part(self, start: int, stop: int) -> FrameTable:
        edges = self.edges[start : stop + 1]
        return replace(self, edges=edges, first=self.first + start)


@dataclass(frozen=True, slots=True, eq=False)
class ChunkTable:
    """The chunks of an array (frames, atoms, 3), as bytes of a file.

    `chunk`: frames, atoms and coordinates in a chunk. `offset`, `nbytes` ((A, B, C) int64): where
    each begins, and its size. `dtype`: of its numbers, a name of NumPy's. `unit`: ``angstrom`` or
    ``nm``. `codec`: configuration of the numcodecs codec that decodes the bytes; None for plain
    ones.
    """

    path: Path
    chunk: tuple[int, int, int]
    offset: NDArray[np.int64]
    nbytes: NDArray[np.int64]
    dtype: str = "<f4"
    unit: str = "angstrom"
    codec: Mapping[str, Any] | None = None

    @property
    def url(self) -> str:
        """Return the URL of the file as fsspec and obstore take it, without escapes."""
        return store_at(self.path).url(self.path)

    @property
    def array_format(self) -> tuple[Any, ...]:
        """Values that must be equal in all files that make up one array."""
        codec = None if self.codec is None else tuple(sorted(self.codec.items()))
        return self.chunk, self.offset.shape[1:], self.dtype, self.unit, codec

    def frames(self, frames: NDArray[np.int64]) -> ChunkTable:
        """Return the chunks of `frames`, in a table whose chunks hold one frame each."""
        return replace(self, offset=self.offset[frames], nbytes=self.nbytes[frames])


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """Where the data of a layout lie; raises SourceError.

    `frames`: of one file, if copies of its frames make valid files of its format. `positions`:
    returns the table of positions, by which other programs read them in place; None if these do not
    know how they are stored.
    """

    frames: FrameTable | None = None
    positions: Callable[[], ChunkTable | None] = lambda: None


def frame_chunk_table(
    path: Path,
    begins: NDArray[np.int64],
    planes: NDArray[np.int64],
    n_atoms: int,
    **number_format: Any,
) -> ChunkTable:
    """Return the table of positions that lie at the same offsets in every frame.

    `begins` ((F,) int64): where each frame begins. `planes` ((C,) int64): offsets within a frame of
    its positions (C = 1), or of x, y and z (C = 3). `**number_format`: ``dtype`` and ``unit``.
    """
    n_columns = 3 // len(planes)
    itemsize = np.dtype(number_format.get("dtype", "<f4")).itemsize
    offset = (begins[:, None] + planes)[:, None, :]
    nbytes = np.full(offset.shape, n_atoms * n_columns * itemsize, np.int64)
    return ChunkTable(path, (1, n_atoms, n_columns), offset, nbytes, **number_format)
