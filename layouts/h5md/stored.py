"""Chunks of our own H5MD files as they lie on disk, for a file that is to hold them again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from mdio.core.files.piece_sums import row_sums
from mdio.layouts.h5md.chunks import ChunkedArray
from mdio.layouts.h5md.io import pread_exactly
from mdio.layouts.output import EncodedChunk
from mdio.layouts.plan import ArrayPlan

__all__ = ["plans_of", "stored_chunks"]

Arrays = Mapping[tuple[str, str], ChunkedArray]


def plans_of(arrays: Arrays, *, contiguous: bool) -> tuple[ArrayPlan, ...]:
    """Return how arrays are cut into chunks."""
    return tuple(
        ArrayPlan(*of, one.n_atoms, one.chunk_frames, one.chunk_atoms, contiguous)
        for of, one in arrays.items()
    )


def stored_chunks(arrays: Arrays, fd: int, start: int, stop: int) -> Iterator[EncodedChunk]:
    """Yield the chunks of frames ``start:stop`` of all arrays, each checked.

    Raises
    ------
    CorruptLayoutError
        One of them is not what was written.
    """
    for (group, field), array in arrays.items():
        rows = range(start // array.chunk_frames, -(-stop // array.chunk_frames))
        for i, j in ((i, j) for i in rows for j in range(array.grid[1])):
            array.verify(fd, i, j)
            offset, nbytes = (int(table[i, j]) for table in array.places)
            data = np.empty(nbytes, np.uint8)
            pread_exactly(fd, data, offset, array.name_of(i, j))
            crcs = [int(array.crcs[i, j])]
            if not array.deflated:
                crcs += row_sums(data.reshape(-1, 12 * array.chunk_atoms)).tolist()
            yield EncodedChunk(f"{group}/{field}/{i}/{j}", data, crcs)
