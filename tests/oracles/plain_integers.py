"""Coordinates as integers and back in NumPy; names and arguments are those of the native module."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray
from oracles.plain_packed import unpacked
from oracles.plain_rigid import decode

from mdio.core.kernels.checks import Float32s, Float64s, Int32s, Int64s

Bytes = NDArray[np.uint8]
Floats = Callable[[Int32s, float], NDArray[np.floating]]

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


def quantise_deltas(positions: Float32s, step: float, deltas: Int32s) -> bool:
    """Fill `deltas` with the differenced integers of `positions` at `step`, if there are such."""
    with np.errstate(over="ignore", invalid="ignore"):
        return _difference(np.rint(positions.astype(np.float64) / step), deltas)


def _decode_xtc(integers: Int32s, precision: float) -> Float32s:
    return (integers.astype(np.float32) * _inverse(precision)) * np.float32(10)


def _inverse(precision: float) -> np.float32:
    return np.float32(1) / np.float32(precision)


def quantise_xtc(positions: Float32s, precision: float, deltas: Int32s) -> bool:
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


def _step_floats(integers: Int32s, step: float) -> Float64s:
    return integers * np.float64(step)


def _picked(rows: Int32s, atoms: Int64s | None) -> Int32s:
    return rows if atoms is None else rows[:, atoms]


def _fill(out: Float32s, floats: Floats, integers: Int32s, scale: float) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        out[...] = floats(integers, scale)


def _dequantise(
    floats: Floats,
    deltas: Int32s,
    scale: float,
    out: Float32s,
    atoms: Int64s | None,
    first: int,
    last: int,
) -> None:
    sums: Int32s = np.cumsum(_picked(deltas[:last], atoms), axis=0, dtype=np.int32)
    _fill(out, floats, sums[first:], scale)


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


def _sum_neighbours(
    floats: Floats,
    differences: Int32s,
    kept: Bytes,
    scale: float,
    out: Float32s,
    atoms: Int64s | None,
) -> None:
    _fill(out, floats, _picked(_neighbour_sums(differences, kept), atoms), scale)


def _sum_packed(
    floats: Floats,
    packed: Bytes,
    n_frames: int,
    n_atoms: int,
    scale: float,
    out: Float32s,
    atoms: Int64s | None,
    first: int,
    last: int,
) -> None:
    deltas = unpacked(packed, n_frames, 3 * n_atoms, 0, last).reshape(last, n_atoms, 3)
    np.cumsum(deltas[:1], axis=1, dtype=np.int32, out=deltas[:1])  # stored along the atoms
    _dequantise(floats, deltas, scale, out, atoms, first, last)


def _sum_packed_neighbours(
    floats: Floats,
    packed: Bytes,
    n_frames: int,
    kept: Bytes,
    scale: float,
    out: Float32s,
    atoms: Int64s | None,
    first: int,
    last: int,
    _room: Bytes,
) -> None:
    differences = unpacked(packed, n_frames, 3 * kept.size, first, last)
    _sum_neighbours(floats, differences.reshape(-1, kept.size, 3), kept, scale, out, atoms)


def _decode_rigid(
    floats: Floats,
    description: Bytes,
    data: Bytes,
    n_frames: int,
    n_atoms: int,
    scale: float,
    out: Float32s,
    atoms: Int64s | None,
    first: int,
    last: int,
) -> None:
    integers = decode(description, data, n_frames, n_atoms)
    _fill(out, floats, _picked(integers[first:last], atoms), scale)


decode_rigid_step = partial(_decode_rigid, _step_floats)
decode_rigid_xtc = partial(_decode_rigid, _decode_xtc)
dequantise_deltas = partial(_dequantise, _step_floats)
dequantise_xtc = partial(_dequantise, _decode_xtc)
sum_neighbours_step = partial(_sum_neighbours, _step_floats)
sum_neighbours_xtc = partial(_sum_neighbours, _decode_xtc)
sum_packed_step = partial(_sum_packed, _step_floats)
sum_packed_xtc = partial(_sum_packed, _decode_xtc)
sum_packed_neighbours_step = partial(_sum_packed_neighbours, _step_floats)
sum_packed_neighbours_xtc = partial(_sum_packed_neighbours, _decode_xtc)
