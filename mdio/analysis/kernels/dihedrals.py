"""Dihedral angles of a protein: phi, psi, chi1 in every frame, as features or in degrees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.analysis.kernels.images import are_skewed, nearest_images
from mdio.analysis.kernels.kernel import Kernel, Prepared, check_switch, runs_of_boxes
from mdio.analysis.system import System
from mdio.core.boxes import shortest_heights
from mdio.core.errors import PlanError
from mdio.core.frames import FrameBlock
from mdio.core.kernels import dihedrals, distances
from mdio.layouts.cut_molecules import NoCellFinder
from mdio.layouts.foreign.universe import select_by_mdanalysis

BACKBONE = ("phi", "psi")
ANGLES = (*BACKBONE, "chi1")

PEPTIDE_BOND = 2.0
"""Largest distance of bonded C and N, angstrom; others are beyond 2.5."""

SAFE_SHARE = 0.49
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
        Whose residues, in MDAnalysis' selection language, or atoms of them (an AtomGroup, indices).
    angles
        Of ``phi``, ``psi``, ``chi1``; a text may have several, with commas.
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

    select: Any = "protein"
    angles: Sequence[str] | str = BACKBONE
    degrees: bool = False

    def prepare(self, system: System) -> Prepared:
        check_switch("degrees", self.degrees)
        names = self.angles.split(",") if isinstance(self.angles, str) else self.angles
        unknown = [name for name in names if name not in ANGLES]
        if unknown or not names:
            raise PlanError(f"the angles are {list(names)}; choose from {', '.join(ANGLES)}")
        atoms = system.universe.atoms
        if isinstance(self.select, str):
            selected = select_by_mdanalysis(atoms, self.select, notes=system.notes)
        else:
            selected = system.indices_in_topology(self.select)
        residues = atoms[selected].residues
        if not len(residues):
            raise PlanError(f"{self.select!r} selects no atoms")
        periodic = system.can_use_images()
        chains = _Chains(system, residues, periodic=periodic)
        angles: dict[str, list[Any]] = {
            name: residues.chi1_selections() if name == "chi1" else getattr(chains, name)()
            for name in ANGLES
            if name in names
        }
        quads, labels = [], []
        for row, residue in enumerate(chains.labels):
            quad_of = {name: angles[name][row] for name in angles}
            is_end = any(name in quad_of and quad_of[name] is None for name in BACKBONE)
            for name, quad in quad_of.items():
                if quad is not None and not (is_end and name in BACKBONE):
                    quads.append(getattr(quad, "indices", quad))
                    label = f"{name}:{residue}"
                    labels += [label] if self.degrees else [f"cos({label})", f"sin({label})"]
        if not quads:
            raise PlanError(f"no residue of {self.select!r} has the angles {list(names)}")
        indices = system.to_layout_indices(
            np.array(quads, dtype=np.int64).ravel(), f"of {self.select!r}"
        )
        atoms, rows = np.unique(indices, return_inverse=True)
        function = partial(
            degrees_of_block if self.degrees else dihedrals_of_block,
            quads=rows.reshape(-1, 4),
            periodic=periodic,
        )
        return Prepared(
            function,
            atoms,
            labels=labels,
            fills=not self.degrees,
            is_direct=not periodic,
            quantity="angle_degrees" if self.degrees else "",
            doubt_finder=NoCellFinder() if periodic else None,
        )


class _Chains:
    """The backbone of some residues: their own atoms, and those of their neighbours in the chain.

    A residue's neighbour is the next one of its segment that has the atom N or C, if its number is
    the same (insertion codes) or the following one. Where numbers have a gap, as in numbering
    schemes of families, residues are neighbours if they are bonded in the first frame.
    """

    def __init__(self, system: System, residues: Any, *, periodic: bool) -> None:
        self._periodic = periodic
        universe = residues.universe
        all_residues = universe.residues
        self._residue_indices = residues.ix
        self._atom = {name: _unique_atoms(universe, name) for name in ("N", "CA", "C")}
        icodes = getattr(all_residues, "icodes", np.full(len(all_residues), ""))
        self.labels = [
            f"{residue.segid}:{residue.resname}{residue.resid}{str(icodes[residue.ix]).strip()}"
            for residue in residues
        ]
        backbone = np.flatnonzero((self._atom["N"] >= 0) | (self._atom["C"] >= 0))
        residue_before, residue_after = backbone[:-1], backbone[1:]
        in_segment = (
            all_residues.segindices[residue_before] == all_residues.segindices[residue_after]
        )
        is_selected = np.isin(residue_before, self._residue_indices) | np.isin(
            residue_after, self._residue_indices
        )
        is_candidate = (
            (self._atom["C"][residue_before] >= 0)
            & (self._atom["N"][residue_after] >= 0)
            & in_segment
            & is_selected
        )
        residue_before, residue_after = residue_before[is_candidate], residue_after[is_candidate]
        step = all_residues.resids[residue_after] - all_residues.resids[residue_before]
        neighbours = (step == 0) | (step == 1)
        neighbours[~neighbours] = self._are_close(
            system, residue_before[~neighbours], residue_after[~neighbours]
        )
        self._previous_residues = np.full(len(all_residues), -1)
        self._next_residues = np.full(len(all_residues), -1)
        self._previous_residues[residue_after[neighbours]] = residue_before[neighbours]
        self._next_residues[residue_before[neighbours]] = residue_after[neighbours]

    def _are_close(
        self, system: System, before: NDArray[np.int64], after: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Return whether C and N of residues are at a bond's distance in the first frame."""
        if not len(before) or not system.layout.info.n_frames:
            return np.zeros(len(before), bool)
        ends = np.concatenate([self._atom["C"][before], self._atom["N"][after]])
        frame = system.frame(0, system.to_layout_indices(ends, "of the backbone"))
        box = frame.box if self._periodic else np.zeros_like(frame.box)
        carbon, nitrogen = np.split(np.arange(len(ends)), 2)
        (lengths,) = distances(frame.positions, box, carbon, nitrogen)
        return np.asarray(lengths < PEPTIDE_BOND)

    def phi(self) -> list[list[int] | None]:
        """Return C of the residue before and N, CA, C of each residue; None if one is missing."""
        previous = self._previous_residues[self._residue_indices]
        ends = np.where(previous >= 0, self._atom["C"][previous], -1)
        return self._quads(
            ends, *(self._atom[name][self._residue_indices] for name in ("N", "CA", "C"))
        )

    def psi(self) -> list[list[int] | None]:
        """Return N, CA, C of each residue and N of the next; None if one is missing."""
        following = self._next_residues[self._residue_indices]
        ends = np.where(following >= 0, self._atom["N"][following], -1)
        return self._quads(
            *(self._atom[name][self._residue_indices] for name in ("N", "CA", "C")), ends
        )

    @staticmethod
    def _quads(*columns: NDArray[np.int64]) -> list[list[int] | None]:
        return [None if min(row) < 0 else row for row in np.stack(columns, axis=1).tolist()]


def _unique_atoms(universe: Any, name: str) -> NDArray[np.int64]:
    """Return the atom of each residue with this name; -1 if there is none, or several."""
    atoms = np.flatnonzero(universe.atoms.names == name)
    residues = universe.atoms.resindices[atoms]
    atom_of_residue = np.full(len(universe.residues), -1)
    atom_of_residue[residues] = atoms
    atom_of_residue[np.bincount(residues, minlength=len(atom_of_residue)) > 1] = -1
    return atom_of_residue


def dihedrals_of_block(
    block: FrameBlock,
    quads: NDArray[np.int64],
    out: NDArray[np.float64] | None = None,
    *,
    periodic: bool = True,
) -> NDArray[np.float64]:
    """Return cosines and sines of the angles that `quads` (n, 4) name, in every frame of a block.

    Where they are `periodic`, each bond is taken to the nearest image, as in MDAnalysis.
    """
    values = np.empty((block.n_frames, 2 * len(quads))) if out is None else out
    longest = dihedrals(block.positions, quads, values)
    if periodic and block.box.any():
        # Frame by frame, so that a frame's values are the same in whatever block it is read.
        # Most blocks have a single cell.
        box = block.box[:1] if (block.box == block.box[0]).all() else block.box
        heights = shortest_heights(box)
        heights[np.isinf(heights) & box.any(axis=1)] = 0.0  # periodic along some axes
        unsafe = np.flatnonzero(~(longest < SAFE_SHARE * heights))
        if unsafe.size:
            values[unsafe] = _dihedrals_of_images(block.frames(unsafe), quads)
    return values


def degrees_of_block(
    block: FrameBlock, quads: NDArray[np.int64], *, periodic: bool = True
) -> NDArray[np.float64]:
    """Return the angles that `quads` (n, 4) name, in every frame of a block, degrees."""
    values = dihedrals_of_block(block, quads, periodic=periodic)
    return np.asarray(np.degrees(np.arctan2(values[:, 1::2], values[:, 0::2])))


def _dihedrals_of_images(block: FrameBlock, quads: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return cosines and sines with bonds to nearest images, by MDAnalysis' own arithmetic."""
    from MDAnalysis.lib.distances import calc_dihedrals

    theta = np.empty((block.n_frames, len(quads)))
    corners = [block.positions[:, atoms] for atoms in quads.T]
    is_skewed = are_skewed(block.box)
    for start, stop, box in runs_of_boxes(block.box):
        points = [corner[start:stop].reshape(-1, 3) for corner in corners]
        if box is not None and is_skewed[start]:
            points, box = nearest_images(points, box), None
        calc_dihedrals(*points, box=box, result=theta[start:stop].reshape(-1))
    return np.stack([np.cos(theta), np.sin(theta)], axis=-1).reshape(block.n_frames, -1)
