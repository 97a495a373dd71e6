"""The pieces of a frame that are verified as one in uncompressed chunks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mdio.core import kernels

__all__ = ["PIECE_NBYTES", "piece_crcs", "pieces_of", "widened"]

PIECE_NBYTES = 64 << 10
"""What is verified as one: reads of less are widened to it."""


def pieces_of(row_nbytes: int) -> int:
    """Return how many pieces a frame's row of a chunk has."""
    return -(-row_nbytes // PIECE_NBYTES)


def widened(begin: int, end: int, row_nbytes: int) -> tuple[int, int]:
    """Return the pieces' bounds around bytes ``begin:end`` of a row, in bytes."""
    return begin // PIECE_NBYTES * PIECE_NBYTES, min(pieces_of(end) * PIECE_NBYTES, row_nbytes)


def piece_crcs(rows: NDArray[np.uint8]) -> list[int]:
    """Return the crc32c of the pieces of each row, one row's after the other's.

    Rows, or parts of them, begin with a piece.
    """
    nbytes = rows.shape[1]
    if nbytes <= PIECE_NBYTES:
        return kernels.crc32c_many(rows, nbytes)
    return [crc for row in rows for crc in kernels.crc32c_many(row, PIECE_NBYTES)]
