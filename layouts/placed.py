"""Where positions lie in a file as numbers, or as frames that a codec knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class PlacedPositions:
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
        """What has to be the same in files that are one array."""
        codec = None if self.codec is None else tuple(sorted(self.codec.items()))
        return self.chunk, self.offset.shape[1:], self.dtype, self.unit, codec

    def frames(self, frames: NDArray[np.int64]) -> PlacedPositions:
        """Return those of some frames; there is one in each chunk."""
        return replace(self, offset=self.offset[frames], nbytes=self.nbytes[frames])


def in_frames(
    path: Path, begins: NDArray[np.int64], planes: NDArray[np.int64], n_atoms: int, **more: Any
) -> PlacedPositions:
    """Return positions that lie in each frame in the same way.

    `path`: the file. `begins` ((F,) int64): where each frame begins. `planes` ((C,) int64): where
    its positions begin in it (C = 1), or x, y and z (C = 3). `n_atoms`: of each frame. `**more`:
    ``dtype`` and ``unit``.
    """
    n_columns = 3 // len(planes)
    itemsize = np.dtype(more.get("dtype", "<f4")).itemsize
    offset = (begins[:, None] + planes)[:, None, :]
    nbytes = np.full(offset.shape, n_atoms * n_columns * itemsize, np.int64)
    return PlacedPositions(path, (1, n_atoms, n_columns), offset, nbytes, **more)
