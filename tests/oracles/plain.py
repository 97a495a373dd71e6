"""The kernels in NumPy, an oracle of the compiled ones.

Names, arguments and results are those of ``mdio._kernels``, but that nothing is chosen to be
differenced along the atoms, nor by what stays the same: what is written then may be larger.
"""

# ruff: noqa: F401
from __future__ import annotations

import itertools
from functools import lru_cache

import google_crc32c
import numpy as np
from numpy.typing import NDArray
from oracles.plain_distances import (
    centre,
    cut_frames,
    follow,
    follow_steps,
    gather,
    make_whole,
    put_in_cell,
    within,
)
from oracles.plain_integers import (
    decode_rigid,
    dequantise,
    quantise,
    sum_neighbours,
    sum_packed,
)
from oracles.plain_packed import pack

from mdio.core.kernels import checks
from mdio.core.kernels.checks import Buffer, Float32s, Float64s, Folded, Int32s, Int64s

CASTAGNOLI, ONE = 0x82F63B78, 1 << 31


def encode_rigid(
    _positions: Float32s, _number: float, _is_xtc: bool, _key_interval: int, _section_atoms: int
) -> None:
    """Leave it: only native code looks for what stays the same."""


def crc32c(data: memoryview, value: int) -> int:
    """Checksum of all bytes of `data`, going on from `value`."""
    return int(google_crc32c.extend(value, _bytes(data.toreadonly())))


def crc32c_spans(data: Buffer, edges: Int64s) -> NDArray[np.uint32]:
    """Checksums of consecutive spans."""
    view = checks.buffer(data)
    bounds = (edges - edges[0]).tolist()
    if sorted(bounds) != bounds or bounds[-1] > len(view):
        raise IndexError("a piece lies outside of the data")
    return np.array([crc32c(view[a:b], 0) for a, b in itertools.pairwise(bounds)], np.uint32)


def crc32c_joined(crcs: NDArray[np.uint32], edges: Int64s) -> int:
    """Checksum of consecutive pieces together."""
    if len(edges) != len(crcs) + 1:
        raise IndexError("an edge more than checksums")
    joined = 0
    for crc, nbytes in zip(crcs.tolist(), np.diff(edges).tolist(), strict=True):
        joined = _times(_power_of_x(8 * nbytes), joined) ^ crc
    return joined


def _times(a: int, b: int) -> int:
    """Return the product of two polynomials, reduced; bits are reversed, 1 << 31 is 1."""
    product = 0
    while a:
        if a & ONE:
            product ^= b
        a = (a << 1) & 0xFFFFFFFF
        b = (b >> 1) ^ (CASTAGNOLI if b & 1 else 0)
    return product


@lru_cache(maxsize=64)  # nearly all pieces have one size
def _power_of_x(n: int) -> int:
    result, square = ONE, ONE >> 1
    while n:
        if n & 1:
            result = _times(result, square)
        square = _times(square, square)
        n >>= 1
    return result


def planar_to_xyz(planar: Float32s, out: Float32s, atoms: Int64s | None, swap: bool) -> None:
    """Fill `out` (F, k, 3) from `planar` (F, 3, A)."""
    rows = planar if atoms is None else planar[:, :, atoms]
    out[...] = (rows.byteswap() if swap else rows).transpose(0, 2, 1)


def xyz_to_planar(src: Float32s, planar: Float32s) -> None:
    """Fill `planar` (F, 3, A) from `src` (F, A, 3)."""
    planar[...] = src.transpose(0, 2, 1)


def copy_atoms(
    src: Float32s, out: Float32s, atoms: Int64s | None, swap: bool, scale: float
) -> None:
    """Fill `out` (F, k, 3) from `src` (F, A, 3), swapping bytes first, then multiplying."""
    rows = src if atoms is None else src[:, atoms]
    out[...] = rows.byteswap() if swap else rows
    if scale != 1.0:
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            out *= np.float32(scale)


def _bytes(data: memoryview) -> NDArray[np.uint8]:
    return np.frombuffer(data, np.uint8) if len(data) else np.empty(0, np.uint8)


def choose_neighbours(_deltas: Int32s) -> None:
    """Choose differences along the frames, always."""


def fold(integers: Int32s) -> Folded:
    """Fold, into two bytes each if all fit."""
    folded = ((integers << 1) ^ (integers >> 31)).view(np.uint32).reshape(-1)
    return folded.astype(np.uint16) if not folded.size or folded.max() < 2**16 else folded


def unfold(folded: Folded, out: Int32s) -> None:
    """Undo `fold`."""
    wide = folded.astype(np.uint32).reshape(out.shape)
    out[...] = ((wide >> 1) ^ -(wide & 1)).view(np.int32)


def shuffle(data: memoryview, itemsize: int) -> bytes:
    """All first bytes of the items, then all second bytes, and so on; then what is left over."""
    source = _bytes(data)
    whole = source.size // itemsize * itemsize
    return source[:whole].reshape(-1, itemsize).T.tobytes() + source[whole:].tobytes()


def unshuffle(data: memoryview, itemsize: int, out: memoryview) -> None:
    """Undo `shuffle`."""
    source, target = _bytes(data), _bytes(out)
    whole = source.size // itemsize * itemsize
    target[:whole].reshape(-1, itemsize)[...] = source[:whole].reshape(itemsize, -1).T
    target[whole:] = source[whole:]


def rmsd(
    positions: Float32s,
    reference: Float64s,
    weights: Float64s | None,
    superpose: bool,
    out: Float64s,
) -> None:
    """Fill `out` (F,) with the RMSD of every frame."""
    n_frames, n_atoms = positions.shape[:2]
    weight = np.ones(n_atoms) if weights is None else weights / weights.mean()
    batch = max(1, 2**20 // n_atoms)  # keeps the float64 copies small
    with np.errstate(invalid="ignore", over="ignore"):  # frames with NaN or infinity
        for start in range(0, n_frames, batch):
            mobile = positions[start : start + batch].astype(np.float64)
            squares = (
                _least_squares(mobile, reference, weight)
                if superpose
                else np.einsum("fac,a->f", np.square(mobile - reference), weight)
            )
            out[start : start + batch] = np.sqrt(np.maximum(squares, 0) / n_atoms)


def _least_squares(mobile: Float64s, reference: Float64s, weight: Float64s) -> Float64s:
    """Return the (F,) weighted sums of squared distances after superposition."""
    fixed = reference - np.average(reference, axis=0, weights=weight)
    mobile -= mobile[:, :1]  # far from the origin, sums of squares would lose digits
    mobile -= np.einsum("fac,a->fc", mobile, weight)[:, None] / len(weight)
    inner = np.einsum("fai,aj,a->fij", mobile, fixed, weight, optimize=True)
    squares: Float64s = np.einsum("fac,fac,a->f", mobile, mobile, weight, optimize=True)
    squares += np.einsum("ac,ac,a->", fixed, fixed, weight)
    overlap = np.full(len(inner), np.nan)
    finite = np.isfinite(inner).all(axis=(1, 2))
    sizes = np.linalg.svd(inner[finite], compute_uv=False)
    sizes[:, 2] *= np.sign(np.linalg.det(inner[finite]))  # a rotation, not a mirror
    overlap[finite] = sizes.sum(axis=1)
    squares -= 2 * overlap
    return squares


def dihedrals(
    positions: NDArray[np.float32],
    quads: NDArray[np.int64],
    out: NDArray[np.float64],
    longest: NDArray[np.float64],
) -> None:
    """Fill `out` (F, 2 n) with cosines and sines, `longest` (F,) with the longest bonds."""
    corners = [positions[:, atoms] for atoms in quads.T]
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        # Rounded to float32, as MDAnalysis rounds it.
        bonds = [(b - a).astype(np.float64) for a, b in itertools.pairwise(corners)]
        a, b, c = bonds
        squared = [np.square(bond).sum(axis=-1) for bond in bonds]
        normal = np.cross(b, c)
        x = (np.cross(a, b) * normal).sum(axis=-1)
        y = np.sqrt(squared[1]) * (a * normal).sum(axis=-1)
        scale = 1 / np.sqrt(x * x + y * y)
        out[:, 0::2] = x * scale
        out[:, 1::2] = y * scale
        longest[:] = np.sqrt(np.fmax.reduce(squared, axis=(0, 2), initial=0))
