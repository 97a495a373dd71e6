"""Molecules that the box cuts: frames in which neighbouring atoms lie on two sides of it.

RMSD, radius of gyration and fluctuations take coordinates as they are. Of such frames they give
numbers that may look right and are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mdio.analysis.system import System
from mdio.core.frames import FrameBlock
from mdio.core.kernels import cut_frames
from mdio.core.words import plural, runs_text
from mdio.layouts.manifest import runs_from_indices

ALONG_CHAIN = 8.0
"""Atoms that follow each other within a residue, or from one to the next, are nearer, angstrom."""
BONDED = 1.7
"""So are those that follow each other in a file and are bonded; those of two molecules are not."""
MOST_RUNS = 5
"""Runs of frames that a note names."""


@dataclass(frozen=True)
class CutMolecules:
    """Finds the frames in which the box cuts molecules."""

    pairs: NDArray[np.int64]
    """Which atoms, of those that are read, have the next one beside them in their molecule."""
    near: float
    """How near neighbours are, angstrom."""

    @classmethod
    def of(cls, system: System, atoms: NDArray[np.int64] | None) -> CutMolecules | None:
        """Return what looks at the frames of some atoms; None if none of them are neighbours."""
        n_atoms = system.layout.info.n_atoms if atoms is None else len(atoms)
        pairs = system.neighbours(atoms)
        if pairs is None:
            return cls(np.arange(n_atoms - 1), BONDED) if n_atoms > 1 else None
        return cls(pairs, ALONG_CHAIN) if len(pairs) else None

    def frames(self, block: FrameBlock) -> NDArray[np.int64]:
        """Return which frames of a block, (n,), have neighbours on two sides of the box."""
        return np.flatnonzero(cut_frames(block.positions, block.box, self.pairs, self.near))


def cut_note(frames: Sequence[int], n_frames: int) -> str:
    """Return the note on molecules that the box cuts in some of the frames analysed."""
    names = runs_text(runs_from_indices(np.unique(frames)), MOST_RUNS)
    return (
        f"the box cuts molecules in {len(frames):,} of {plural(n_frames, 'frame')} ({names}): "
        "neighbouring atoms lie on two sides of it, so that values there are wrong; make molecules "
        "whole with --pbc whole (in Python: pbc='whole')"
    )
