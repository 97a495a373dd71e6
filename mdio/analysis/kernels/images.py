"""Distances to the nearest image, in cells of all shapes.

MDAnalysis finds the nearest one in cells whose vectors are as short as they can be, as those of
simulations are; in others it may find an image that is farther.

MDAnalysis' functions are imported with this file, so that their import is not timed as computing.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from MDAnalysis.lib.distances import distance_array
from numpy.typing import NDArray

from mdio.analysis.kernels.kernel import runs_of_boxes
from mdio.core.boxes import vectors_from_boxes
from mdio.core.frames import FrameBlock

HALF = 0.5 + 1e-5
"""A half, with the rounding of boxes to float32."""
BATCH_SIZE = 1 << 15
"""Distances at a time: 27 images of each are compared."""
ROUNDING = 1e-9
MAX_ROUNDS = 100
"""Limit of the rounds of a reduction, which no cell reaches."""


def skewed_cells(boxes: NDArray[np.float32]) -> dict[int, NDArray[np.float64]]:
    """Return the vectors of cells in which MDAnalysis may miss the nearest image, by frame.

    `boxes`: (F, 6), zeros where there is none. Simulations rarely have such cells: there, a vector
    extends along the ones before it by no more than half of them.
    """
    skewed = {}
    tilted = np.flatnonzero((boxes[:, 3:] != 90).any(axis=1))
    if len(tilted):
        cells = vectors_from_boxes(boxes[tilted]).astype(np.float64)
        lengths = np.diagonal(cells, axis1=1, axis2=2)
        shifts = np.abs(cells[:, (1, 2, 2), (0, 0, 1)])
        is_far = (shifts > HALF * lengths[:, (0, 0, 1)]).any(axis=1) & (lengths > 0).all(axis=1)
        for row in np.flatnonzero(is_far).tolist():
            if not is_reduced(cells[row]):
                skewed[int(tilted[row])] = cells[row]
    return skewed


def shortest_images(vectors: NDArray[Any], cell: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the shortest image of each of the vectors, (N, 3), in a cell."""
    images = np.empty(vectors.shape)
    for start in range(0, len(vectors), BATCH_SIZE):
        batch = vectors[start : start + BATCH_SIZE]
        multiples, _ = nearest_images(batch.astype(np.float64), cell)
        images[start : start + BATCH_SIZE] = batch - multiples @ cell
    return images


def bond_lengths(
    first: NDArray[np.float32],
    second: NDArray[np.float32],
    box: NDArray[np.float32] | None,
    cell: NDArray[np.float64] | None,
) -> NDArray[np.float64]:
    """Return the distances of pairs of points, (N, 3) each, to the nearest image.

    `box`: (6,), or None; `cell`: its vectors, if it is among the `skewed_cells`.
    """
    from MDAnalysis.lib.distances import calc_bonds

    if cell is None:
        return np.asarray(calc_bonds(first, second, box=box))
    return np.asarray(
        np.linalg.norm(shortest_images(first.astype(np.float64) - second, cell), axis=1)
    )


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


def is_reduced(cell: NDArray[np.float64]) -> bool:
    """Return whether the vectors of a cell are as short as those of its lattice can be."""
    if np.array_equal(cell, np.diag(cell.diagonal())):
        return True
    squares, reduced_squares = (
        np.sort((vectors**2).sum(axis=1)) for vectors in (cell, _reduce(cell) @ cell)
    )
    return bool((reduced_squares >= squares * (1 - 1e-5)).all())


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


PAIRS_AT_ONCE = 1 << 20
"""Distances in memory at a time (8 MiB)."""


def distances_of_pairs(
    block: FrameBlock, pairs: NDArray[np.int64], *, periodic: bool
) -> NDArray[np.float64]:
    """Return the distances between the atoms ``pairs[0]`` and ``pairs[1]`` in every frame.

    `periodic`: whether to the nearest image.
    """
    values = np.empty((block.n_frames, pairs.shape[1]))
    boxes = block.box if periodic else np.zeros_like(block.box)
    skewed = skewed_cells(boxes)
    for start, stop, box in runs_of_boxes(boxes):
        first, second = (block.positions[start:stop, side].reshape(-1, 3) for side in pairs)
        lengths = bond_lengths(first, second, box, skewed.get(start))
        values[start:stop] = lengths.reshape(stop - start, -1)
    return values


def distances_to_reference(
    block: FrameBlock, reference: NDArray[np.float32]
) -> NDArray[np.float64]:
    """Return the mean distance of each frame; see `geometry.ReferenceDistances`."""
    n_atoms = len(reference)
    batch = max(1, PAIRS_AT_ONCE // (n_atoms * n_atoms))
    values = np.empty(block.n_frames)
    for start in range(0, block.n_frames, batch):
        frames = block.positions[start : start + batch]
        distances = distance_array(np.ascontiguousarray(frames).reshape(-1, 3), reference)
        values[start : start + batch] = distances.reshape(len(frames), -1).mean(axis=1)
    return values
