"""Periodic boundaries in NumPy; see `oracles.plain`."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from mdio.core.kernels.checks import Float32s, Float64s, Int64s

PAIRS_AT_ONCE = 1 << 20
ROUNDING = 1e-9
MAX_ROUNDS = 100
"""Limit of the rounds of a reduction, which no cell reaches."""


def within(
    positions: Float32s,
    vectors: Float64s,
    sources: Int64s,
    targets: Int64s,
    radius: float,
    out: NDArray[np.bool_],
) -> None:
    """Fill `out` (F, targets) with whether a target is within `radius` of any source."""
    for frame, cell, row in zip(positions, vectors, out, strict=True):
        near, asked = frame[sources].astype(np.float64), frame[targets].astype(np.float64)
        near = near[np.isfinite(near).all(axis=1)]
        if cell[2, 2] > 0:
            near, asked = _images(_wrapped(near, cell), cell, radius), _wrapped(asked, cell)
        batch = max(1, PAIRS_AT_ONCE // max(1, len(near)))
        for start in range(0, len(asked), batch):
            apart = asked[start : start + batch, None] - near
            squares = np.einsum("tsc,tsc->ts", apart, apart)
            row[start : start + batch] = (squares <= radius * radius).any(axis=1)


def _wrapped(points: Float64s, cell: Float64s) -> Float64s:
    with np.errstate(invalid="ignore"):  # what is not finite is near to nothing
        moved: Float64s = points - np.floor(points @ np.linalg.inv(cell)) @ cell
    return moved


def _images(points: Float64s, cell: Float64s, radius: float) -> Float64s:
    """Return the points and those of their images that may be near the cell."""
    inverse = np.linalg.inv(cell)
    margin = radius * np.linalg.norm(inverse, axis=0) + 1e-9
    if margin.max() > 1 + 2e-9:
        raise ValueError("the radius is larger than the cell of some frame")
    shifts = np.array([*itertools.product((-2, -1, 0, 1, 2), repeat=3)], np.float64)
    found = (points + (shifts @ cell)[:, None]).reshape(-1, 3)
    at = found @ inverse
    near: Float64s = found[((at >= -margin) & (at <= 1 + margin)).all(axis=1)]
    return near


def cut_frames(
    positions: NDArray[np.float32],
    cells: NDArray[np.float64],
    pairs: NDArray[np.int64],
    near: float,
    out: NDArray[np.bool_],
) -> None:
    """Fill `out` (F,): whether neighbours lie apart, and beside each other over the box."""
    for frame, cell in enumerate(cells):
        steps = positions[frame, pairs + 1].astype(np.float64) - positions[frame, pairs]
        with np.errstate(invalid="ignore"):
            steps = steps[np.square(steps).sum(axis=1) > near**2]
        if np.diagonal(cell).min() > 0:
            for axis in (2, 1, 0):  # the cell is a lower triangle
                steps -= np.rint(steps[:, axis, None] / cell[axis, axis]) * cell[axis]
            out[frame] = (np.square(steps).sum(axis=1) <= near**2).any()
        else:
            out[frame] = False


def make_whole(positions: Float32s, vectors: Float64s, links: Int64s) -> None:
    """Move each first atom of `links` to the image that is nearest to the second, if it can be."""
    for atom, fixed in links:
        apart = positions[:, atom].astype(np.float64) - positions[:, fixed]
        for frame, (one, cell) in enumerate(zip(apart, vectors, strict=True)):
            if np.isfinite(one).all():
                positions[frame, atom] -= (nearest_images(one[None], cell)[0] @ cell)[0]


def put_in_cell(
    positions: Float32s, vectors: Float64s, atoms: Int64s, starts: Int64s, weights: Float64s
) -> None:
    """Move molecules to where their centres lie in the cell."""
    for frame, cell in zip(positions, vectors, strict=True):
        centres = np.add.reduceat(frame[atoms] * weights[:, None], starts[:-1])
        is_known, images = np.isfinite(centres).all(axis=1), np.zeros(centres.shape)
        images[is_known] = np.floor(centres[is_known] @ np.linalg.inv(cell))
        frame[atoms] -= np.repeat(images @ cell, np.diff(starts), axis=0)


def gather(
    positions: Float32s, vectors: Float64s, atoms: Int64s, starts: Int64s, weights: Float64s
) -> None:
    """Move molecules together, each to the nearest of those that are there."""
    sizes = np.diff(starts)
    for frame, cell in zip(positions, vectors, strict=True):
        centres = np.add.reduceat(frame[atoms] * weights[:, None], starts[:-1])
        total = np.zeros(centres.shape)
        waiting = np.array(np.isfinite(centres).all(axis=1))
        shifts, squares = nearest_images(centres - cell.sum(axis=0) / 2, cell)
        for first in range(int(waiting.sum())):
            chosen = np.where(waiting, squares, np.inf).argmin()
            waiting[chosen] = False
            if first == 0:
                squares[:] = np.inf
            else:
                total[chosen] = shifts[chosen]
            there = centres[chosen] - total[chosen] @ cell
            images, found = nearest_images(centres - there, cell)
            nearer = found < squares
            shifts[nearer], squares[nearer] = images[nearer], found[nearer]
        frame[atoms] -= np.repeat(total @ cell, sizes, axis=0)


def centre(positions: Float32s, vectors: Float64s, picked: Int64s) -> None:
    """Move all atoms so that the centre of those picked is the middle of the cell."""
    middles = vectors.sum(axis=1) / 2
    positions += (middles - positions[:, picked].mean(axis=1, dtype=np.float64))[:, None]


def follow(
    positions: Float32s,
    vectors: Float64s,
    last: Float64s,
    shifts: NDArray[np.int64],
    known: bool,
    apply: bool,
) -> None:
    """Undo jumps over boundaries."""
    for frame, cell in zip(positions, vectors, strict=True):
        fractions = frame @ np.linalg.inv(cell)
        if known:
            moved = np.nan_to_num(fractions - last, posinf=0, neginf=0)
            moved = nearest_images(moved @ cell, cell)[0]
            shifts += np.where(np.abs(moved) < 1e9, moved, 0).astype(np.int64)
        has_place = np.isfinite(fractions).all(axis=1)
        last[has_place | (not known)] = fractions[has_place | (not known)]
        known = True
        if apply:
            frame -= shifts @ cell


def follow_steps(positions: Float32s, vectors: Float64s) -> Float64s:
    """Return positions that add up the shortest steps, each in the cell of its later frame."""
    steps = np.diff(positions.astype(np.float64), axis=0)
    for step, cell in zip(steps, vectors[1:], strict=True):
        step -= nearest_images(step, cell)[0] @ cell
    return np.cumsum(np.concatenate([positions[:1], steps]), axis=0)


def nearest_images(
    vectors: NDArray[np.float64], cell: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the lattice vectors to subtract for the shortest images, and their squared lengths.

    `vectors`, (N, 3): of any length. `cell`, (3, 3): a lower triangle.
    Returns (N, 3) multiples of the cell's vectors, and (N,) squares.
    """
    multiples = np.zeros_like(vectors)
    for axis in (2, 1, 0):
        multiples[:, axis] = np.rint((vectors - multiples @ cell)[:, axis] / cell[axis, axis])
    images = vectors - multiples @ cell
    squares = np.einsum("nc,nc->n", images, images)
    # No vector of the lattice is shorter than the smallest height of the cell.
    unfinished = np.flatnonzero(squares > np.square(cell.diagonal().min() / 2))
    if np.array_equal(cell, np.diag(cell.diagonal())) or not unfinished.size:
        return multiples, squares
    steps = np.array([*itertools.product((0, -1, 1), repeat=3)], np.float64) @ _reduce(cell)
    while unfinished.size:  # from any image to the nearest, always by one that is shorter
        candidates = images[unfinished, None] - steps @ cell
        candidate_squares = np.einsum("nsc,nsc->ns", candidates, candidates)
        best = candidate_squares.argmin(axis=1)
        is_shorter = candidate_squares.min(axis=1) < squares[unfinished] * (1 - ROUNDING)
        unfinished, best = unfinished[is_shorter], best[is_shorter]
        multiples[unfinished] += steps[best]
        images[unfinished] = vectors[unfinished] - multiples[unfinished] @ cell
        squares[unfinished] = np.einsum("nc,nc->n", images[unfinished], images[unfinished])
    return multiples, squares


def _reduce(cell: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return multiples of the vectors whose sums are as short as they can be (a row each).

    Semaev's reduction (10.1007/3-540-44670-2_13).
    """
    rows = np.eye(3)

    def square(row: int) -> float:
        return float(np.square(rows[row] @ cell).sum())

    for _ in range(MAX_ROUNDS):
        rows = rows[np.argsort([square(row) for row in range(3)], kind="stable")]
        for _ in range(MAX_ROUNDS):
            u, v, _ = rows @ cell
            rows[1] -= np.rint(v @ u / (u @ u)) * rows[0]
            if square(1) >= square(0) * (1 - ROUNDING):
                break
            rows[:2] = rows[1::-1].copy()
        vectors = rows @ cell
        multiples = np.rint(np.linalg.solve(vectors[:2] @ vectors[:2].T, vectors[:2] @ vectors[2]))
        candidates = (
            rows[2] - (multiples + list(itertools.product((0, -1, 1), repeat=2))) @ rows[:2]
        )
        shortest = candidates[np.square(candidates @ cell).sum(axis=1).argmin()]
        if np.square(shortest @ cell).sum() < square(2) * (1 - ROUNDING):
            rows[2] = shortest
        if square(2) >= square(1) * (1 - ROUNDING):
            break
    return rows
