"""Distances to the nearest image, in cells of all shapes.

MDAnalysis finds the nearest one in cells whose vectors are as short as they can be, as those of
simulations are; in others it may find an image that is farther.

MDAnalysis' functions are imported with this file, so that their import is not timed as computing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from MDAnalysis.lib.distances import distance_array
from numpy.typing import NDArray

from mdio.core import kernels
from mdio.core.boxes import vectors_from_boxes
from mdio.core.frames import FrameBlock

HALF = 0.5 + 1e-5
"""A half, with the rounding of boxes to float32."""


def are_skewed(boxes: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Return in which cells, (F, 6), MDAnalysis may miss the nearest image, (F,).

    Cells of simulations are rarely so: none of their vectors extends along another one by more
    than half of the shorter of the two.
    """
    if (boxes[:, 3:] == 90).all():
        return np.zeros(len(boxes), bool)
    vectors = vectors_from_boxes(boxes).astype(np.float64)
    products = np.abs(vectors @ vectors.transpose(0, 2, 1))
    squares = np.diagonal(products, axis1=1, axis2=2)
    is_far = [
        products[:, one, other] > HALF * np.minimum(squares[:, one], squares[:, other])
        for one, other in ((0, 1), (0, 2), (1, 2))
    ]
    return np.asarray(np.any(is_far, axis=0) & (vectors[:, 2, 2] > 0))


def nearest_images(
    points: Sequence[NDArray[np.float32]], box: NDArray[np.float32]
) -> list[NDArray[np.float32]]:
    """Return points, (N, 3) each, at the images that are nearest to those before them."""
    n_points, positions = len(points[0]), np.concatenate(points)[np.newaxis]
    moved = np.arange(n_points, positions.shape[1])
    links = np.stack([moved, moved - n_points], axis=1)
    kernels.make_whole(positions, box[np.newaxis], links)
    return np.split(positions[0], len(points))


PAIRS_AT_ONCE = 1 << 20
"""Distances in memory at a time (8 MiB)."""


def distances_of_pairs(
    block: FrameBlock,
    pairs: NDArray[np.int64],
    out: NDArray[np.float64] | None = None,
    *,
    periodic: bool,
) -> NDArray[np.float64]:
    """Return the distances between the atoms ``pairs[0]`` and ``pairs[1]`` in every frame."""
    boxes = block.box if periodic else np.zeros_like(block.box)
    return kernels.distances(block.positions, boxes, pairs[0], pairs[1], out)


def mean_distances_to_reference(
    block: FrameBlock, reference: NDArray[np.float32]
) -> NDArray[np.float64]:
    """Return the mean distance of each frame; see `geometry.ReferenceDistances`."""
    n_atoms = len(reference)
    batch = max(1, min(block.n_frames, PAIRS_AT_ONCE // (n_atoms * n_atoms)))
    values = np.empty(block.n_frames)
    distances = np.empty((batch * n_atoms, n_atoms))  # reused, since fresh memory is slow
    for start in range(0, block.n_frames, batch):
        points = np.ascontiguousarray(block.positions[start : start + batch]).reshape(-1, 3)
        rows = distance_array(points, reference, result=distances[: len(points)])
        values[start : start + batch] = rows.reshape(-1, n_atoms * n_atoms).mean(axis=1)
    return values
