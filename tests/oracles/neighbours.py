"""Differences along the atoms in NumPy; `mdio.core.kernels.packed` says what they are."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from oracles.plain_integers import BACK, neighbour_order, neighbour_places

__all__ = ["choose_neighbours", "difference_neighbours"]

Int32s = NDArray[np.int32]
Bytes = NDArray[np.uint8]

SAMPLE = 2
MOST = 2**27
"""Larger differences count as this in the comparison: native code sums in 32 bits."""


def _cost(differences: Int32s) -> NDArray[np.uint64]:
    """Return the sums of the three folded differences of every atom."""
    folded = ((differences << 1) ^ (differences >> 31)).view(np.uint32)
    costs: NDArray[np.uint64] = np.minimum(folded, MOST).sum(axis=-1, dtype=np.uint64)
    return costs


def _bits(sums: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the bits of numbers below 2**53."""
    bits: NDArray[np.int64] = np.frexp(sums.astype(np.float64))[1].astype(np.int64)
    return bits


def choose_neighbours(deltas: Int32s) -> Bytes | None:
    """Choose what each atom is differenced against; None if the frames are likely to be better."""
    n_frames, n_atoms = deltas.shape[:2]
    sample = np.cumsum(deltas[:SAMPLE], axis=0, dtype=np.int32)
    padded = np.pad(sample, ((0, 0), (BACK, 0), (0, 0)))
    sums = np.stack(
        [
            _cost(sample - padded[:, BACK - back : BACK - back + n_atoms]).sum(axis=0)
            for back in range(1, BACK + 1)
        ]
    )
    at = sums.argmin(axis=0)
    sizes = _bits(sums.min(axis=0) // np.uint64(len(sample)))
    along_frames = int(_bits(_cost(deltas[0])).sum())
    rest = n_frames - 1
    n_sample = min(rest, SAMPLE)
    if n_sample:
        frames = 1 + np.arange(n_sample) * rest // n_sample
        along_frames += int(_bits(_cost(deltas[frames])).sum()) * rest // n_sample
    if n_frames * int(sizes.sum()) + n_atoms >= along_frames:
        return None
    kept: Bytes = (sizes << 2 | at).astype(np.uint8)
    return kept


def difference_neighbours(deltas: Int32s, kept: Bytes) -> None:
    """Turn differences along the frames into sorted ones along the atoms, in place."""
    integers = np.cumsum(deltas, axis=0, dtype=np.int32)
    padded = np.pad(integers, ((0, 0), (BACK, 0), (0, 0)))
    deltas[...] = (integers - padded[:, neighbour_places(kept)])[:, neighbour_order(kept)]
