"""Dihedral angles of a protein: phi, psi, chi1 in every frame, as features or in degrees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.analysis.kernels.kernel import Kernel, Prepared, runs_of_boxes
from mdio.analysis.system import System
from mdio.core.errors import PlanError
from mdio.core.frames import FrameBlock
from mdio.core.kernels import dihedrals
from mdio.layouts.foreign.universe import selected

BACKBONE = ("phi", "psi")
ANGLES = (*BACKBONE, "chi1")

SURE = 0.49
"""A bond shorter than half the shortest height of the cell is the shortest of its images."""


@dataclass(frozen=True)
class Dihedrals(Kernel):
    """Cosine and sine of dihedral angles: (F, 2 x angles) float64; or degrees, (F, angles).

    Columns go by residue, then in the order phi, psi, chi1, then cosine before sine. Residues that
    lack one of the backbone angles asked for (the ends of chains) are left out; chi1 is there
    where the residue has it.

    Parameters
    ----------
    select
        Whose residues, in MDAnalysis' selection language.
    angles
        Of ``phi``, ``psi``, ``chi1``.
    degrees
        Whether to give the angles themselves, from -180 to 180 degrees.

    Examples
    --------
    >>> import mdio
    >>> from MDAnalysisTests.datafiles import DCD, PSF
    >>> result = mdio.analyze(DCD, top=PSF, kernel=mdio.Dihedrals(select="resid 1:10"))
    >>> result.values.shape
    (98, 36)
    >>> list(result.labels[:2])
    ['cos(phi:4AKE:ARG2)', 'sin(phi:4AKE:ARG2)']
    """

    select: str = "protein"
    angles: Sequence[str] = BACKBONE
    degrees: bool = False

    def prepare(self, system: System) -> Prepared:
        """Find the four atoms of each angle."""
        unknown = [name for name in self.angles if name not in ANGLES]
        if unknown or not self.angles:
            raise PlanError(f"the angles are {list(self.angles)}; choose from {', '.join(ANGLES)}")
        residues = _residues(system, self.select)
        found: dict[str, list[Any]] = {
            name: getattr(residues, f"{name}_selections")()
            for name in ANGLES
            if name in self.angles
        }
        quads, labels = [], []
        for at, residue in enumerate(residues):
            groups = {name: groups[at] for name, groups in found.items()}
            if any(groups.get(name, residue) is None for name in BACKBONE):
                continue
            for name, group in groups.items():
                if group is not None:
                    quads.append(group.indices)
                    where = f"{name}:{residue.segid}:{residue.resname}{residue.resid}"
                    labels += [where] if self.degrees else [f"cos({where})", f"sin({where})"]
        if not quads:
            raise PlanError(f"no residue of {self.select!r} has the angles {list(self.angles)}")
        indices = system.to_layout(np.array(quads, dtype=np.int64).ravel(), self.select)
        atoms, local = np.unique(indices, return_inverse=True)
        quadruples = local.reshape(-1, 4)
        if self.degrees:
            return Prepared(partial(degrees_of_block, quads=quadruples), atoms, labels=labels)
        function = partial(dihedrals_of_block, quads=quadruples)
        return Prepared(function, atoms, labels=labels, fills=True)


def _residues(system: System, select: str) -> Any:
    atoms = system.universe.atoms
    residues = atoms[selected(atoms, select)].residues
    if not len(residues):
        raise PlanError(f"{select!r} selects no atoms")
    return residues


def dihedrals_of_block(
    block: FrameBlock, quads: NDArray[np.int64], out: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """Return cosines and sines of the angles that `quads` (n, 4) name, in every frame of a block.

    Periodic boxes count as they do in MDAnalysis: each bond is taken to the nearest image.
    """
    values = np.empty((block.n_frames, 2 * len(quads))) if out is None else out
    longest = dihedrals(block.positions, quads, values)
    if block.box.any() and not longest < SURE * _shortest_height(block.box):
        _to_nearest_images(block, quads, values)
    return values


def degrees_of_block(block: FrameBlock, quads: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the angles that `quads` (n, 4) name, in every frame of a block, degrees."""
    values = dihedrals_of_block(block, quads)
    return np.asarray(np.degrees(np.arctan2(values[:, 1::2], values[:, 0::2])))


def _to_nearest_images(
    block: FrameBlock, quads: NDArray[np.int64], values: NDArray[np.float64]
) -> None:
    """Fill `values` by MDAnalysis' own arithmetic, a run of frames with equal boxes at a time."""
    from MDAnalysis.lib.distances import calc_dihedrals

    theta = np.empty((block.n_frames, len(quads)))
    corners = [block.positions[:, atoms] for atoms in quads.T]
    for a, b, own in runs_of_boxes(block.box):
        flat = [corner[a:b].reshape(-1, 3) for corner in corners]
        calc_dihedrals(*flat, box=own, result=theta[a:b].reshape(-1))
    np.cos(theta, out=values[:, 0::2])
    np.sin(theta, out=values[:, 1::2])


def _shortest_height(box: NDArray[np.float32]) -> float:
    """Return the shortest height of all cells; 0 if some frame has no cell."""
    # A run of frames mostly has few cells: an array of one is as quickly looked at as a number.
    box = box[:1] if (box == box[0]).all() else box
    lengths, angles = box[:, :3].astype(np.float64), np.radians(box[:, 3:].astype(np.float64))
    cosines, sines = np.cos(angles), np.sin(angles)
    volume = 1 - np.square(cosines).sum(axis=1) + 2 * cosines.prod(axis=1)
    if not (lengths.min() > 0 and volume.min() > 0 and sines.min() > 0):
        return 0.0
    return float((lengths * np.sqrt(volume)[:, None] / sines).min())
