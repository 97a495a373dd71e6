"""Bytes of buffers: their CRC-32C, that of several joined, and bytes in the order of planes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.kernels import backend, checks
from mdio.core.kernels.checks import Buffer


def shuffle(data: Buffer, itemsize: int) -> bytes:
    """Return the bytes reordered as HDF5's shuffle filter does it.

    All first bytes of the items come first, then all second bytes, and so on; trailing bytes that
    do not fill an item stay where they are.
    """
    if itemsize < 1:
        raise ValueError(f"itemsize is {itemsize}; it must be positive")
    return bytes(backend.module.shuffle(checks.buffer(data), itemsize))


def unshuffle(data: Buffer, itemsize: int, out: bytearray | memoryview | NDArray[Any]) -> None:
    """Undo `shuffle`: fill `out`, a writable buffer of as many bytes, that is not `data`."""
    if itemsize < 1:
        raise ValueError(f"itemsize is {itemsize}; it must be positive")
    source, target = checks.buffer(data), checks.buffer(out)
    if source.nbytes != target.nbytes:
        raise ValueError(f"out has {target.nbytes} bytes; it must have {source.nbytes}")
    if source.nbytes:
        if target.readonly:
            raise ValueError("out is read-only")
        backend.module.unshuffle(source, itemsize, target)


def crc32c(data: Buffer, value: int = 0) -> int:
    """Return the CRC-32C (Castagnoli; RFC 3720) of a buffer.

    `data`: any C-contiguous buffer, arrays included. `value`: checksum of what comes before `data`,
    to go on from it.
    """
    return int(backend.module.crc32c(checks.buffer(data), value))


def crc32c_pieces(data: Buffer, edges: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Return the CRC-32C of consecutive pieces, all with one call.

    `data`: any C-contiguous buffer; it begins with the first piece. `edges` ((n + 1,) int64): where
    each piece begins, and where the last one ends, counted from anywhere.
    """
    return backend.module.crc32c_pieces(data, edges)


def crc32c_joined(crcs: NDArray[np.uint32], edges: NDArray[np.int64]) -> int:
    """Return the CRC-32C of consecutive pieces together, from `crc32c_pieces` of the same edges."""
    return backend.module.crc32c_joined(crcs, edges)
