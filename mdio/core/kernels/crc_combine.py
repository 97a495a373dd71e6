"""The crc32c of two runs of bytes one after the other, from the crc32c of each.

A checksum is the remainder of a polynomial over GF(2); appending n bytes multiplies it by x^(8n)
(the idea of zlib's crc32_combine). So pieces of a file can be summed wherever they are made.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

__all__ = ["combine", "combine_all"]

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
