"""Distances between atoms in every frame."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from mdio.analysis.kernels.kernel import Kernel, Prepared
from mdio.analysis.system import AtomIndices, System
from mdio.core.errors import PlanError
from mdio.core.frames import FrameBlock

__all__ = ["Pairs"]

MOST_PAIRS = 1 << 22
"""Distances in a row: with more, a result of a few frames would fill the memory."""


@dataclass(frozen=True)
class Pairs(Kernel):
    """Distances of pairs of atoms, to the nearest image: (F, pairs) float64, angstrom.

    Parameters
    ----------
    select
        Which atoms; all by default.
    to
        As many atoms, of which each makes a pair with one of `select`, in order (as MDAnalysis'
        `AtomicDistances`); by default all pairs within `select` (as `self_distance_array`).

    Examples
    --------
    >>> import mdio
    >>> from MDAnalysisTests.datafiles import DCD, PSF
    >>> ends = mdio.Pairs("resid 1 and name CA", to="resid 214 and name CA")
    >>> mdio.analyze(DCD, top=PSF, kernel=ends).values[0].round(2)
    array([10.94])
    """

    select: str | None = None
    to: str | None = None

    def prepare(self, system: System) -> Prepared:
        """Find the atoms."""
        first = _atoms(system, self.select)
        if self.to is None:
            n = len(first)
            if n * (n - 1) // 2 > MOST_PAIRS or n < 2:
                raise PlanError(
                    f"{n} atoms make {n * (n - 1) // 2:,} pairs; select 2 to "
                    f"{int((2 * MOST_PAIRS) ** 0.5):,} atoms"
                )
            one, other = (first[side] for side in np.triu_indices(n, 1))
        else:
            one, other = first, _atoms(system, self.to)
            if len(one) != len(other):
                raise PlanError(
                    f"{len(one)} and {len(other)} atoms make no pairs; select as many of each"
                )
        names = system.atom_names(None) or [str(at) for at in range(system.layout.info.n_atoms)]
        labels = [f"{names[a]}-{names[b]}" for a, b in zip(one, other, strict=True)]
        atoms, local = np.unique(np.concatenate([one, other]), return_inverse=True)
        function = partial(distances_of_pairs, pairs=local.reshape(2, -1))
        return Prepared(function, atoms, labels=labels)


def _atoms(system: System, select: str | None) -> AtomIndices:
    found = system.select(select)
    return np.arange(system.layout.info.n_atoms) if found is None else found


def distances_of_pairs(block: FrameBlock, pairs: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the distances between the atoms ``pairs[0]`` and ``pairs[1]`` in every frame."""
    from MDAnalysis.lib.distances import calc_bonds

    values = np.empty((block.n_frames, pairs.shape[1]))
    box = block.box
    changes = np.flatnonzero((box[1:] != box[:-1]).any(axis=1)) + 1
    for a, b in itertools.pairwise([0, *changes.tolist(), len(box)]):
        ends = (block.positions[a:b, side].reshape(-1, 3) for side in pairs)
        own = box[a] if box[a].any() else None
        values[a:b] = calc_bonds(*ends, box=own).reshape(b - a, -1)
    return values
