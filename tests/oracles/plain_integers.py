"""Coordinates as integers and back in NumPy; names and arguments are those of the native module."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from oracles.plain_packed import unpacked
from oracles.plain_rigid import decode

from mdio.core.kernels.checks import Float32s, Float64s, Int32s, Int64s

Bytes = NDArray[np.uint8]

BACK = 4
"""How far before an atom the one may lie that it is differenced against."""
LIMIT = 2**30
"""Integers of this size and more are not stored: differences of smaller ones fit in int32."""


def _difference(integers: Float64s, deltas: Int32s) -> bool:
    if not np.all(np.abs(integers) < LIMIT):  # NaN compares false
        return False
    deltas[...] = integers
    deltas[1:] -= deltas[:-1].copy()
    return True


def quantise(positions: Float32s, number: float, is_xtc: bool, deltas: Int32s) -> bool:
    """Fill `deltas` with the differenced integers of `positions`, if there are such."""
    if is_xtc:
        return _quantise_xtc(positions, number, deltas)
    with np.errstate(over="ignore", invalid="ignore"):
        return _difference(np.rint(positions.astype(np.float64) / number), deltas)


def _decode_xtc(integers: Int32s, precision: float) -> Float32s:
    return (integers.astype(np.float32) * _inverse(precision)) * np.float32(10)


def _inverse(precision: float) -> np.float32:
    return np.float32(1) / np.float32(precision)


def _quantise_xtc(positions: Float32s, precision: float, deltas: Int32s) -> bool:
    """Fill `deltas`, if there are integers that decode to `positions` bit for bit."""
    with np.errstate(over="ignore", invalid="ignore"):
        guess = np.rint(positions.astype(np.float64) / (10 * float(_inverse(precision))))
    if not np.all(np.abs(guess) < LIMIT):
        return False
    wanted = np.ascontiguousarray(positions).view(np.int32)
    integers = guess.astype(np.int32)
    missed = _decode_xtc(integers, precision).view(np.int32) != wanted
    for shift in (-1, 1, -2, 2):
        if not missed.any():
            break
        tried = guess[missed].astype(np.int32) + np.int32(shift)
        hit = _decode_xtc(tried, precision).view(np.int32) == wanted[missed]
        where = tuple(axis[hit] for axis in np.nonzero(missed))
        integers[where] = tried[hit]
        missed[where] = False
    return not missed.any() and _difference(integers.astype(np.float64), deltas)


def _picked(rows: Int32s, atoms: Int64s | None) -> Int32s:
    return rows if atoms is None else rows[:, atoms]


def _fill(out: Float32s, integers: Int32s, number: float, is_xtc: bool) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        out[...] = _decode_xtc(integers, number) if is_xtc else integers * np.float64(number)


def dequantise(
    deltas: Int32s,
    number: float,
    is_xtc: bool,
    out: Float32s,
    atoms: Int64s | None,
    first: int,
    last: int,
) -> None:
    """Undo `quantise`."""
    sums: Int32s = np.cumsum(_picked(deltas[:last], atoms), axis=0, dtype=np.int32)
    _fill(out, sums[first:], number, is_xtc)


def neighbour_order(kept: Bytes) -> NDArray[np.int64]:
    """Return the atoms, sorted by class."""
    return np.argsort(kept >> 2, kind="stable")


def neighbour_places(kept: Bytes) -> NDArray[np.int64]:
    """Return the other atom of each; there are some more before the first one."""
    others: NDArray[np.int64] = np.arange(BACK - 1, BACK - 1 + kept.size) - (kept & 3)
    return others


def _neighbour_sums(differences: Int32s, kept: Bytes) -> Int32s:
    """Return the integers that differences along the atoms were made of.

    Each pass adds to every atom what it hangs from, and doubles how far that is away.
    """
    n_frames, n_atoms = differences.shape[:2]
    sums = np.zeros((n_frames, BACK + n_atoms, 3), np.int32)
    sums[:, BACK + neighbour_order(kept)] = differences
    others = np.concatenate([np.zeros(BACK, np.int64), neighbour_places(kept)])
    others[others < BACK] = 0
    while others.any():
        sums += sums[:, others]
        others = others[others]
    return sums[:, BACK:]


def sum_neighbours(
    differences: Int32s,
    kept: Bytes,
    number: float,
    is_xtc: bool,
    out: Float32s,
    atoms: Int64s | None,
) -> None:
    """Sum differences along the atoms to coordinates."""
    _fill(out, _picked(_neighbour_sums(differences, kept), atoms), number, is_xtc)


def sum_packed(
    packed: Bytes,
    n_frames: int,
    n_atoms: int,
    kept: Bytes | None,
    number: float,
    is_xtc: bool,
    out: Float32s,
    atoms: Int64s | None,
    first: int,
    last: int,
) -> None:
    """Undo `pack` of differences along the atoms, or the frames."""
    if kept is not None:
        differences = unpacked(packed, n_frames, 3 * n_atoms, first, last)
        sum_neighbours(differences.reshape(-1, n_atoms, 3), kept, number, is_xtc, out, atoms)
        return
    deltas = unpacked(packed, n_frames, 3 * n_atoms, 0, last).reshape(last, n_atoms, 3)
    np.cumsum(deltas[:1], axis=1, dtype=np.int32, out=deltas[:1])  # stored along the atoms
    dequantise(deltas, number, is_xtc, out, atoms, first, last)


def decode_rigid(
    description: Bytes,
    data: Bytes,
    n_frames: int,
    n_atoms: int,
    number: float,
    is_xtc: bool,
    out: Float32s,
    atoms: Int64s | None,
    first: int,
    last: int,
) -> None:
    """Undo ``encode_rigid``."""
    integers = decode(description, data, n_frames, n_atoms)
    _fill(out, _picked(integers[first:last], atoms), number, is_xtc)
