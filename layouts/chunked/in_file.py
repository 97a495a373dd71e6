"""Arrays whose chunks lie at known places of one file, and what went through HDF5's filters."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import CorruptLayoutError
from mdio.core.files.reading import OpenFile
from mdio.core.kernels import unshuffle
from mdio.layouts.chunked.array import ChunkedArray

DEFLATE_MAX_RATIO = 1100
"""zlib makes at most about 1,030 bytes of one; a chunk that claims more is damaged."""
DAMAGED = "the file is damaged: convert the source again"


class ChunksInFile(ChunkedArray):
    """Chunks of one file.

    `file`: which has them. `offset`, `nbytes`, (frame chunks, atom chunks): place and stored bytes
    of each. The rest is that of `ChunkedArray`.
    """

    def __init__(
        self,
        what: str,
        shape: tuple[int, ...],
        chunk: tuple[int, int],
        file: OpenFile,
        offset: NDArray[np.int64],
        nbytes: NDArray[np.int64],
        **facts: bool,
    ) -> None:
        super().__init__(what, shape, chunk, **facts)
        self.file, self.offset, self.nbytes = file, offset, nbytes

    def locate(self, i: int, j: int) -> tuple[OpenFile, int, int]:
        """Return the file, and offset and size of a chunk."""
        return self.file, int(self.offset[i, j]), int(self.nbytes[i, j])

    def corrupt(self, i: int, j: int, file: OpenFile, problem: str) -> CorruptLayoutError:  # noqa: ARG002
        """Return an error that tells of a chunk."""
        return CorruptLayoutError(f"{self.name_of(i, j)}: {problem}")


def inflate(stored: NDArray[np.uint8], out: NDArray[Any]) -> None:
    """Fill `out` with what is in a chunk that went through HDF5's filters shuffle and deflate.

    Raises ValueError: it cannot be decompressed, or to another number of bytes.
    """
    if out.nbytes > DEFLATE_MAX_RATIO * stored.nbytes:
        raise ValueError(f"{stored.nbytes} bytes cannot hold {out.nbytes}; {DAMAGED}")
    stream = zlib.decompressobj()
    try:  # one byte more: zlib compares its checksum at the end alone
        found = stream.decompress(stored.data, out.nbytes + 1)
    except zlib.error as error:
        raise ValueError(f"{error}; {DAMAGED}") from error
    if not stream.eof and len(found) == out.nbytes:
        raise ValueError(f"its end is missing; {DAMAGED}")
    if len(found) != out.nbytes:
        raise ValueError(f"it has {len(found)} bytes, expected {out.nbytes}; {DAMAGED}")
    unshuffle(found, out.itemsize, out.reshape(-1).view(np.uint8).data)
