"""Distances to the nearest image, in cells of all shapes.

MDAnalysis finds it in cells whose vectors are as short as they can be, as simulations have them;
in others it may take an image that is farther.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.boxes import vectors_from_boxes

BATCH = 1 << 15
"""Distances at a time: each has 27 images that are looked at."""


def skewed_cell(box: NDArray[np.float32] | None) -> NDArray[np.float64] | None:
    """Return the vectors of a cell in which images have to be looked for; None for all others.

    `box`: (6,), or None.
    """
    if box is None or (box[3:] == 90).all():
        return None
    from mdio.core.kernels.plain_distances import is_reduced  # few cells are asked about

    cell = vectors_from_boxes(box[None])[0].astype(np.float64)
    return None if not cell.any() or is_reduced(cell) else cell


def shortest(apart: NDArray[Any], cell: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the shortest image of each of `apart`, (N, 3), in a cell."""
    from mdio.core.kernels.plain_distances import nearest

    images = np.empty(apart.shape)
    for start in range(0, len(apart), BATCH):
        run = slice(start, start + BATCH)
        images[run] = apart[run] - nearest(apart[run].astype(np.float64), cell)[0] @ cell
    return images


def bond_lengths(
    one: NDArray[np.float32], other: NDArray[np.float32], box: NDArray[np.float32] | None
) -> NDArray[np.float64]:
    """Return the distances of pairs of points, (N, 3) each, to the nearest image."""
    from MDAnalysis.lib.distances import calc_bonds

    cell = skewed_cell(box)
    if cell is None:
        return np.asarray(calc_bonds(one, other, box=box))
    return np.asarray(np.linalg.norm(shortest(one.astype(np.float64) - other, cell), axis=1))
