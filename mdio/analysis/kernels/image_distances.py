"""Distances by MDAnalysis' own functions, which workers import with this file, not as they compute.

What is measured as computing would else be mostly the import of MDAnalysis.
"""

from __future__ import annotations

import numpy as np
from MDAnalysis.lib.distances import distance_array
from numpy.typing import NDArray

from mdio.analysis.kernels.images import bond_lengths, skewed_cells
from mdio.analysis.kernels.kernel import runs_of_boxes
from mdio.core.frames import FrameBlock

PAIRS_AT_ONCE = 1 << 20
"""Distances that are held at a time (8 MiB)."""


def distances_of_pairs(block: FrameBlock, pairs: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the distances between the atoms ``pairs[0]`` and ``pairs[1]`` in every frame."""
    values = np.empty((block.n_frames, pairs.shape[1]))
    skewed = skewed_cells(block.box)
    for a, b, own in runs_of_boxes(block.box):
        one, other = (block.positions[a:b, side].reshape(-1, 3) for side in pairs)
        values[a:b] = bond_lengths(one, other, own, skewed.get(a)).reshape(b - a, -1)
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
