"""The pieces of a frame that are verified as one in uncompressed chunks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mdio.core import kernels

__all__ = ["PIECE_NBYTES", "piece_crcs", "pieces_of", "widened"]

PIECE_NBYTES = 64 << 10
"""What is verified as one: reads of less are widened to it."""

Crcs = NDArray[np.uint32]


def pieces_of(row_nbytes: int) -> int:
    """Return how many pieces a frame's row of a chunk has."""
    return -(-row_nbytes // PIECE_NBYTES)


def widened(begin: int, end: int, row_nbytes: int) -> tuple[int, int]:
    """Return the pieces' bounds around bytes ``begin:end`` of a row, in bytes."""
    return begin // PIECE_NBYTES * PIECE_NBYTES, min(pieces_of(end) * PIECE_NBYTES, row_nbytes)


def piece_crcs(rows: NDArray[np.uint8]) -> Crcs:
    """Return the crc32c of each piece of each row; rows, or parts of them, begin with a piece."""
    n_rows, nbytes = rows.shape
    if nbytes <= PIECE_NBYTES:
        return np.array(kernels.crc32c_many(rows, nbytes), np.uint32).reshape(n_rows, 1)
    return np.array([kernels.crc32c_many(row, PIECE_NBYTES) for row in rows], np.uint32)
