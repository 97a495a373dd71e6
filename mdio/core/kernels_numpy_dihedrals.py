"""Dihedral angles in plain NumPy; `mdio.core.kernel_dihedrals` says what comes out."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

__all__ = ["dihedrals"]


def dihedrals(
    positions: NDArray[np.float32], quads: NDArray[np.int64], out: NDArray[np.float64]
) -> float:
    """Fill `out` (F, 2 n) with cosines and sines; return the longest bond."""
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
        return float(np.sqrt(np.fmax.reduce(squared, axis=None, initial=0)))
