"""Packed integers in plain NumPy; `mdio.core.kernels.packed` says how they lie."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mdio.core.kernels.checks import Int32s

Bytes = NDArray[np.uint8]

GROUP = 32
MAX_WIDTH = 32
BEHIND = 16


def _order(widths: Bytes) -> list[tuple[int, NDArray[np.int64]]]:
    """Return the widths that there are, each with its groups."""
    return [(int(width), np.flatnonzero(widths == width)) for width in np.unique(widths) if width]


def _sizes(n_rows: int, n_numbers: int, widths: Bytes) -> NDArray[np.int64]:
    """Return the bytes of each group."""
    n_groups = -(-n_numbers // GROUP)
    eights = np.minimum(-(-n_numbers // 8) - 4 * np.arange(n_groups), 4)
    return np.tile(eights, n_rows) * widths.astype(np.int64)


def _bits(numbers: NDArray[np.uint32]) -> Bytes:
    """Return the bits of (n, 32) numbers, (n, 32, 32), the lowest first."""
    plain = numbers.astype("<u4").view(np.uint8).reshape(-1, GROUP, 4)
    return np.unpackbits(plain, axis=2, bitorder="little")


def pack(integers: Int32s, room: Bytes) -> int:
    """Pack rows of integers into `room`; return how many bytes that took."""
    n_rows = len(integers)
    folded = ((integers << 1) ^ (integers >> 31)).view(np.uint32).reshape(n_rows, -1)
    n_numbers = folded.shape[1]
    padded = np.pad(folded, ((0, 0), (0, -n_numbers % GROUP)))
    groups = padded.reshape(-1, GROUP)
    widths = np.frexp(groups.max(axis=1).astype(np.float64))[1].astype(np.uint8)
    sizes = _sizes(n_rows, n_numbers, widths)
    # All groups in full, and then only the bytes that are stored of them.
    body = np.zeros((widths.size, 4 * MAX_WIDTH), np.uint8)
    for width, which in _order(widths):
        bits = _bits(groups[which])[:, :, :width].reshape(which.size, -1)
        body[which, : 4 * width] = np.packbits(bits, axis=1, bitorder="little")
    stored = body[np.arange(4 * MAX_WIDTH) < sizes[:, None]]
    packed = np.concatenate([widths, stored, np.zeros(BEHIND, np.uint8)])
    room[: packed.size] = packed
    return packed.size


def unpacked(packed: Bytes, n_rows: int, n_numbers: int, first: int, last: int) -> Int32s:
    """Return rows ``first:last`` of what `pack` made, (last - first, n_numbers); checks it all."""
    n_groups = -(-n_numbers // GROUP)
    if n_rows * n_groups > packed.size:
        raise ValueError("packed integers end within the widths of their groups")
    widths = packed[: n_rows * n_groups]
    if widths.max(initial=0) > MAX_WIDTH:
        raise ValueError("a group of packed integers is wider than 32 bits")
    sizes = _sizes(n_rows, n_numbers, widths)
    expected = widths.size + int(sizes.sum()) + BEHIND
    if packed.size != expected:
        raise ValueError("packed integers do not take the bytes that their widths say")
    begins = np.cumsum(sizes) - sizes
    stored = packed[widths.size :]
    wanted = slice(first * n_groups, last * n_groups)
    begins, sizes, widths = begins[wanted], sizes[wanted], widths[wanted]
    body = np.zeros((widths.size, 4 * MAX_WIDTH), np.uint8)
    there = np.arange(4 * MAX_WIDTH) < sizes[:, None]
    begin = int(begins[0]) if begins.size else 0
    body[there] = stored[begin : begin + int(sizes.sum())]
    folded = np.zeros((widths.size, GROUP), np.uint32)
    for width, which in _order(widths):
        bits = np.zeros((which.size, GROUP, MAX_WIDTH), np.uint8)
        plain = np.unpackbits(body[which, : 4 * width], axis=1, bitorder="little")
        bits[:, :, :width] = plain.reshape(which.size, GROUP, width)
        numbers = np.packbits(bits, axis=2, bitorder="little")
        folded[which] = numbers.view("<u4").reshape(which.size, GROUP)
    integers: Int32s = ((folded >> 1) ^ -(folded & 1)).view(np.int32)
    return integers.reshape(last - first, n_groups * GROUP)[:, :n_numbers]
