"""Bytes of buffers: their CRC-32C, that of several joined, and bytes in the order of planes."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.kernels import backend, checks
from mdio.core.kernels.checks import Buffer

POLYNOMIAL = 0x82F63B78
"""Castagnoli's, bits reversed."""
ONE, X = 1 << 31, 1 << 30
"""The polynomials 1 and x, bits reversed."""


def _times(a: int, b: int) -> int:
    """Return the product of two polynomials, reduced."""
    product = 0
    while a:
        if a & ONE:
            product ^= b
        a = (a << 1) & 0xFFFFFFFF
        b = (b >> 1) ^ (POLYNOMIAL if b & 1 else 0)
    return product


@lru_cache(maxsize=64)  # nearly all parts of a file have one size
def _power_of_x(n: int) -> int:
    result, square = ONE, X
    while n:
        if n & 1:
            result = _times(result, square)
        square = _times(square, square)
        n >>= 1
    return result


def combine(first: int, second: int, second_nbytes: int) -> int:
    """Return the crc32c of A + B from those of A and of B, and the number of bytes of B."""
    return _times(_power_of_x(8 * second_nbytes), first) ^ second


def combine_all(parts: Iterable[tuple[int, int]]) -> int:
    """Return the crc32c of parts in their order, each given as (crc32c, number of bytes)."""
    total = 0
    for crc, nbytes in parts:
        total = combine(total, crc, nbytes)
    return total


@lru_cache(maxsize=16)
def _followed_by(nbytes: int) -> tuple[list[int], ...]:
    """Return what each byte of a checksum becomes when so many bytes follow, for each of four."""
    power = _power_of_x(8 * nbytes)
    tables = []
    for first in (0, 8, 16, 24):
        table = [0]
        for bit in range(first, first + 8):
            table += [one ^ _times(power, 1 << bit) for one in table]
        tables.append(table)
    return tuple(tables)


def combine_alike(parts: Iterable[tuple[int, int]]) -> int:
    """Return what `combine_all` does, faster where parts are of few sizes."""
    total = 0
    for crc, nbytes in parts:
        a, b, c, d = _followed_by(nbytes)
        total = a[total & 255] ^ b[total >> 8 & 255] ^ c[total >> 16 & 255] ^ d[total >> 24] ^ crc
    return total


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
