"""CRC-32C of buffers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mdio.core.kernels import backend, checks
from mdio.core.kernels.checks import Buffer

__all__ = [
    "crc32c",
    "crc32c_pieces",
]


def crc32c(data: Buffer, value: int = 0) -> int:
    """Return the CRC-32C (Castagnoli; RFC 3720) of a buffer.

    Parameters
    ----------
    data
        Any C-contiguous buffer, arrays included.
    value
        Checksum of what comes before `data`, to go on from it.
    """
    return int(backend.module.crc32c(checks.buffer(data), value))


def crc32c_pieces(data: Buffer, edges: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Return the CRC-32C of consecutive pieces, all with one call.

    Parameters
    ----------
    data
        Any C-contiguous buffer; it begins with the first piece.
    edges : (n + 1,) int64
        Where each piece begins, and where the last one ends, counted from anywhere.
    """
    if hasattr(backend.module, "crc32c_pieces"):
        return backend.module.crc32c_pieces(data, edges)
    from mdio.core.kernels import plain  # compiled before there was one

    return plain.crc32c_pieces(data, edges)
