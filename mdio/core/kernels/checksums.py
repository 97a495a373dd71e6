"""CRC-32C of buffers."""

from __future__ import annotations

from mdio.core.kernels import backend, checks
from mdio.core.kernels.checks import Buffer

__all__ = [
    "crc32c",
    "crc32c_many",
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


def crc32c_many(data: Buffer, nbytes_each: int) -> list[int]:
    """Return the CRC-32C of consecutive pieces of `nbytes_each` bytes (the last may be shorter)."""
    if nbytes_each < 1:
        raise ValueError(f"nbytes_each is {nbytes_each}; it must be positive")
    return list(backend.module.crc32c_many(checks.buffer(data), nbytes_each))
