"""Distances to the nearest image, in cells of all shapes.

MDAnalysis finds it in cells whose vectors are as short as they can be, as simulations have them;
in others it may take an image that is farther.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.boxes import vectors_from_boxes

HALF = 0.5 + 1e-5
"""Boxes are rounded to float32."""
BATCH = 1 << 15
"""Distances at a time: each has 27 images that are looked at."""


def skewed_cells(boxes: NDArray[np.float32]) -> dict[int, NDArray[np.float64]]:
    """Return the vectors of the cells in which images have to be looked for, by frame.

    `boxes`: (F, 6), zeros where there is none. Those of simulations are rarely among them: each
    vector goes no further along the ones before it than half of these.
    """
    found = {}
    tilted = np.flatnonzero((boxes[:, 3:] != 90).any(axis=1))
    if len(tilted):
        cells = vectors_from_boxes(boxes[tilted]).astype(np.float64)
        lengths = np.diagonal(cells, axis1=1, axis2=2)
        along = np.abs(cells[:, (1, 2, 2), (0, 0, 1)])
        far = (along > HALF * lengths[:, (0, 0, 1)]).any(axis=1) & (lengths > 0).all(axis=1)
        if far.any():
            from mdio.core.kernels.plain_distances import is_reduced

            rows = np.flatnonzero(far).tolist()
            found = {int(tilted[k]): cells[k] for k in rows if not is_reduced(cells[k])}
    return found


def shortest(apart: NDArray[Any], cell: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the shortest image of each of `apart`, (N, 3), in a cell."""
    from mdio.core.kernels.plain_distances import nearest

    images = np.empty(apart.shape)
    for start in range(0, len(apart), BATCH):
        run = slice(start, start + BATCH)
        images[run] = apart[run] - nearest(apart[run].astype(np.float64), cell)[0] @ cell
    return images


def bond_lengths(
    one: NDArray[np.float32],
    other: NDArray[np.float32],
    box: NDArray[np.float32] | None,
    cell: NDArray[np.float64] | None,
) -> NDArray[np.float64]:
    """Return the distances of pairs of points, (N, 3) each, to the nearest image.

    `box`: (6,), or None; `cell`: its vectors, if it is among the `skewed_cells`.
    """
    from MDAnalysis.lib.distances import calc_bonds

    if cell is None:
        return np.asarray(calc_bonds(one, other, box=box))
    return np.asarray(np.linalg.norm(shortest(one.astype(np.float64) - other, cell), axis=1))
