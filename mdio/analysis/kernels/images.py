"""Distances to the nearest image, in cells of all shapes.

MDAnalysis finds it in cells whose vectors are as short as they can be, as those of simulations; in
others it may take an image that is farther.

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
"""Boxes are rounded to float32."""
BATCH = 1 << 15
"""Distances at a time: 27 images of each are compared."""
ROUNDING = 1e-9
MANY = 100
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
        along = np.abs(cells[:, (1, 2, 2), (0, 0, 1)])
        far = (along > HALF * lengths[:, (0, 0, 1)]).any(axis=1) & (lengths > 0).all(axis=1)
        if far.any():
            rows = np.flatnonzero(far).tolist()
            skewed = {int(tilted[k]): cells[k] for k in rows if not is_reduced(cells[k])}
    return skewed


def shortest_images(apart: NDArray[Any], cell: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the shortest image of each of the vectors `apart`, (N, 3), in a cell."""
    images = np.empty(apart.shape)
    for start in range(0, len(apart), BATCH):
        run = slice(start, start + BATCH)
        images[run] = apart[run] - nearest_images(apart[run].astype(np.float64), cell)[0] @ cell
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
    apart: NDArray[np.float64], cell: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the lattice vectors to subtract for the shortest images, and their squared lengths.

    `apart`, (N, 3): vectors of any length. `cell`, (3, 3): a lower triangle.
    Returns (N, 3) multiples of the cell's vectors, and (N,) squares.
    """
    images = np.zeros_like(apart)
    for axis in (2, 1, 0):
        images[:, axis] = np.rint((apart - images @ cell)[:, axis] / cell[axis, axis])
    vectors = apart - images @ cell
    squares = np.einsum("nc,nc->n", vectors, vectors)
    # No vector of the lattice is shorter than the least of the three.
    unfinished = np.flatnonzero(squares > np.square(cell.diagonal().min() / 2))
    if np.array_equal(cell, np.diag(cell.diagonal())) or not unfinished.size:
        return images, squares
    steps = np.array([*itertools.product((0, -1, 1), repeat=3)], np.float64) @ _reduced(cell)
    while unfinished.size:  # from any image to the nearest, always by one that is shorter
        candidates = vectors[unfinished, None] - steps @ cell
        lengths = np.einsum("nsc,nsc->ns", candidates, candidates)
        best = lengths.argmin(axis=1)
        shorter = lengths.min(axis=1) < squares[unfinished] * (1 - ROUNDING)
        unfinished, best = unfinished[shorter], best[shorter]
        images[unfinished] += steps[best]
        vectors[unfinished] = apart[unfinished] - images[unfinished] @ cell
        squares[unfinished] = np.einsum("nc,nc->n", vectors[unfinished], vectors[unfinished])
    return images, squares


def is_reduced(cell: NDArray[np.float64]) -> bool:
    """Return whether the vectors of a cell are as short as those of its lattice can be."""
    if np.array_equal(cell, np.diag(cell.diagonal())):
        return True
    before, after = (np.sort((c**2).sum(axis=1)) for c in (cell, _reduced(cell) @ cell))
    return bool((after >= before * (1 - 1e-5)).all())


def _reduced(cell: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return multiples of the vectors whose sums are as short as they can be (a row each).

    Semaev's reduction (10.1007/3-540-44670-2_13).
    """
    rows = np.eye(3)

    def square(row: int) -> float:
        return float(np.square(rows[row] @ cell).sum())

    for _ in range(MANY):
        rows = rows[np.argsort([square(row) for row in range(3)], kind="stable")]
        for _ in range(MANY):
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
    for a, b, box in runs_of_boxes(boxes):
        first, second = (block.positions[a:b, side].reshape(-1, 3) for side in pairs)
        values[a:b] = bond_lengths(first, second, box, skewed.get(a)).reshape(b - a, -1)
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
