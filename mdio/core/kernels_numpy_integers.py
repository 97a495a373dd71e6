"""Coordinates as integers and back, in plain NumPy: a part of `mdio.core.kernels_numpy`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mdio.core.kernels_numpy_neighbours import neighbour_sums
from mdio.core.kernels_numpy_packed import unpacked

__all__ = [
    "dequantise_deltas",
    "dequantise_xtc",
    "quantise_deltas",
    "quantise_xtc",
    "sum_neighbours_step",
    "sum_neighbours_xtc",
    "sum_packed_neighbours_step",
    "sum_packed_neighbours_xtc",
    "sum_packed_step",
    "sum_packed_xtc",
]

Float32s = NDArray[np.float32]
Float64s = NDArray[np.float64]
Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
Bytes = NDArray[np.uint8]

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


def _sums(deltas: Int32s, atoms: Int64s | None, first: int, last: int) -> Int32s:
    rows = deltas[:last] if atoms is None else deltas[:last, atoms]
    sums: Int32s = np.cumsum(rows, axis=0, dtype=np.int32)
    return sums[first:]


def dequantise_deltas(
    deltas: Int32s, step: float, out: Float32s, atoms: Int64s | None, first: int, last: int
) -> None:
    """Fill `out` with frames ``first:last`` of what `quantise_deltas` made."""
    _step_floats(_sums(deltas, atoms, first, last), step, out, None)


def dequantise_xtc(
    deltas: Int32s, precision: float, out: Float32s, atoms: Int64s | None, first: int, last: int
) -> None:
    """Fill `out` with frames ``first:last`` of what `quantise_xtc` made."""
    _xtc_floats(_sums(deltas, atoms, first, last), precision, out, None)


def _step_floats(integers: Int32s, step: float, out: Float32s, atoms: Int64s | None) -> None:
    with np.errstate(over="ignore"):
        out[...] = (integers if atoms is None else integers[:, atoms]) * np.float64(step)


def _xtc_floats(integers: Int32s, precision: float, out: Float32s, atoms: Int64s | None) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        out[...] = _decode_xtc(integers if atoms is None else integers[:, atoms], precision)


def sum_neighbours_step(
    differences: Int32s, kept: Bytes, step: float, out: Float32s, atoms: Int64s | None
) -> None:
    """Fill `out` from differences along the atoms, as `dequantise_deltas` does."""
    _step_floats(neighbour_sums(differences, kept), step, out, atoms)


def sum_neighbours_xtc(
    differences: Int32s, kept: Bytes, precision: float, out: Float32s, atoms: Int64s | None
) -> None:
    """Fill `out` from differences along the atoms, as `dequantise_xtc` does."""
    _xtc_floats(neighbour_sums(differences, kept), precision, out, atoms)


def _unpacked_frames(packed: Bytes, n_frames: int, n_atoms: int, last: int) -> Int32s:
    """Return the differences along the frames, the first of which is stored along the atoms."""
    deltas = unpacked(packed, n_frames, 3 * n_atoms, 0, last).reshape(last, n_atoms, 3)
    np.cumsum(deltas[:1], axis=1, dtype=np.int32, out=deltas[:1])
    return deltas


def _unpacked_neighbours(
    packed: Bytes, n_frames: int, kept: Bytes, first: int, last: int
) -> Int32s:
    """Return the integers of some frames that are stored as differences along the atoms."""
    differences = unpacked(packed, n_frames, 3 * kept.size, first, last)
    return neighbour_sums(differences.reshape(-1, kept.size, 3), kept)


def sum_packed_step(
    packed: Bytes,
    n_frames: int,
    n_atoms: int,
    step: float,
    out: Float32s,
    atoms: Int64s | None,
    first: int,
    last: int,
) -> None:
    """Fill `out` from packed differences along the frames, as `dequantise_deltas` does."""
    deltas = _unpacked_frames(packed, n_frames, n_atoms, last)
    dequantise_deltas(deltas, step, out, atoms, first, last)


def sum_packed_xtc(
    packed: Bytes,
    n_frames: int,
    n_atoms: int,
    precision: float,
    out: Float32s,
    atoms: Int64s | None,
    first: int,
    last: int,
) -> None:
    """Fill `out` from packed differences along the frames, as `dequantise_xtc` does."""
    deltas = _unpacked_frames(packed, n_frames, n_atoms, last)
    dequantise_xtc(deltas, precision, out, atoms, first, last)


def sum_packed_neighbours_step(
    packed: Bytes,
    n_frames: int,
    kept: Bytes,
    step: float,
    out: Float32s,
    atoms: Int64s | None,
    first: int,
    last: int,
    _room: Bytes,
) -> None:
    """Fill `out` from packed differences along the atoms, as `dequantise_deltas` does."""
    sums = _unpacked_neighbours(packed, n_frames, kept, first, last)
    _step_floats(sums, step, out, atoms)


def sum_packed_neighbours_xtc(
    packed: Bytes,
    n_frames: int,
    kept: Bytes,
    precision: float,
    out: Float32s,
    atoms: Int64s | None,
    first: int,
    last: int,
    _room: Bytes,
) -> None:
    """Fill `out` from packed differences along the atoms, as `dequantise_xtc` does."""
    sums = _unpacked_neighbours(packed, n_frames, kept, first, last)
    _xtc_floats(sums, precision, out, atoms)
