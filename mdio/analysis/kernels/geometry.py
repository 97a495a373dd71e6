"""RMSD, RMSF, radius of gyration, distances of pairs and to a reference."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from os import PathLike
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mdio.analysis.kernels.kernel import BlockFunction, Kernel, Prepared, check_switch
from mdio.analysis.reducers import StandardDeviation
from mdio.analysis.system import System
from mdio.core import kernels
from mdio.core.errors import PlanError
from mdio.core.frames import AtomIndices, FrameBlock

Weights = Literal["mass"] | ArrayLike | None
Reference = int | str | PathLike[str] | ArrayLike


@dataclass(frozen=True)
class RMSD(Kernel):
    """The root-mean-square deviation of every frame from a reference frame: (F,) float64, angstrom.

    Parameters
    ----------
    select
        Which atoms, in MDAnalysis' selection language; all by default.
    reference
        Number of the reference frame (negative: from the end); a file with a structure, which has
        these atoms or among whose atoms `select` finds as many; or coordinates (A, 3) in angstrom.
    weights
        ``"mass"``, or a number for each selected atom; None weights all equally.
    superpose
        Whether to centre and rotate each frame onto the reference (QCP), as
        ``MDAnalysis.analysis.rms.RMSD`` does; else the coordinates are compared as they are. By
        default (``"auto"``) unless `analyze` is given ``fit``, which lays frames on a reference.
    repeat
        How often to compute each block (the papers' X-fold workload); the result is the same.

    Examples
    --------
    >>> import mdio
    >>> from MDAnalysisTests.datafiles import DCD, PSF
    >>> result = mdio.analyze(DCD, top=PSF, kernel=mdio.RMSD(select="name CA"))
    >>> result.values[[0, 97]].round(2)
    array([0.  , 6.81])
    """

    select: str | None = None
    reference: Reference = 0
    weights: Weights = None
    superpose: bool | Literal["auto"] = "auto"
    repeat: int = 1

    needs_whole = True

    def prepare(self, system: System) -> Prepared:
        """Read the reference; look up masses if they are the weights."""
        atoms = system.select(self.select)
        reference = reference_positions(system, self.reference, self.select, atoms)
        superpose, fit = self.superpose, system.stored_and_read("fit")[1]
        if superpose == "auto":
            superpose = fit is None
            if fit is not None:
                name = system.reference[0] if system.reference else "the positions given"
                system.notes.append(
                    f"frames are compared as --fit {fit} lays them, with {name} (--ref-frame, "
                    "reference=); --superpose (superpose=True) superposes the selected atoms of "
                    "each on it once more"
                )
        check_switch("superpose", superpose)
        if self.repeat < 1:
            raise PlanError(f"repeat is {self.repeat}; give 1 or more")
        function = partial(
            rmsd_of_block,
            reference=reference,
            weights=atom_weights(system, self.weights, atoms, len(reference)),
            superpose=superpose,
            repeat=self.repeat,
        )
        return Prepared(function, atoms, labels=("rmsd_angstrom",), fills=True)


def rmsd_of_block(
    block: FrameBlock,
    reference: NDArray[np.float64],
    weights: NDArray[np.float64] | None,
    superpose: bool,
    repeat: int,
    out: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """Return the RMSD of each frame of a block that has just the reference's atoms."""
    for _ in range(repeat):
        values = kernels.rmsd(block.positions, reference, weights, superpose, out)
    return values


def reference_positions(
    system: System, reference: Reference, select: str | None, atoms: AtomIndices | None
) -> NDArray[np.float64]:
    """Return the reference coordinates, all finite: those of a frame, or the given ones."""
    if isinstance(reference, int | np.integer | str | PathLike):
        if isinstance(reference, int | np.integer):
            frame = system.read_reference(int(reference), atoms)
        else:
            frame = system.read_reference_from_file(reference, select, atoms)
        positions = np.array(frame.positions[0], np.float64)
        if not np.isfinite(positions).all():
            name = system.reference[0] if system.reference else reference
            raise PlanError(
                f"{system.layout.path}: the reference, {name}, has positions that are not finite; "
                "choose another (--ref-frame, in Python: reference=)"
            )
        return positions
    try:
        positions = np.array(reference, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise PlanError(
            f"the reference is {reference!r}; give coordinates, as of another file's frame "
            "(mda.Universe(...).atoms.positions), or the number of a frame"
        ) from error
    n_atoms = system.layout.info.n_atoms if atoms is None else len(atoms)
    if positions.shape != (n_atoms, 3):
        raise PlanError(
            f"the reference has shape {positions.shape}, but {n_atoms} atoms are selected; "
            f"give ({n_atoms}, 3) coordinates or the number of a frame"
        )
    if not np.isfinite(positions).all():
        raise PlanError("the reference has coordinates that are not finite")
    return positions


def atom_weights(
    system: System, weights: Weights, atoms: AtomIndices | None, n_atoms: int
) -> NDArray[np.float64] | None:
    """Return a weight for each selected atom, or None for equal weights."""
    if weights is None:
        return None
    if isinstance(weights, str):
        if weights != "mass":
            raise PlanError(
                f"the weights are {weights!r}; give 'mass', None or a number for each atom"
            )
        try:
            values = system.masses(atoms)
            if not values.any():
                raise PlanError(
                    f"{system.layout.path}: the selected atoms have no masses; use a topology that "
                    "has them"
                )
        except PlanError as error:
            raise PlanError(
                f"{error}, or weight all equally with --weights none (in Python: weights=None)"
            ) from error
    else:
        values = np.array(weights, dtype=np.float64)
    if values.shape != (n_atoms,):
        raise PlanError(
            f"weights of shape {values.shape} for {n_atoms} selected atoms; give one each"
        )
    if not (np.isfinite(values).all() and values.min() >= 0 and values.sum() > 0):
        raise PlanError("weights must be finite and not negative, and not all zero")
    return values


MAX_PAIRS = 1 << 22
"""Largest number of distances in a row: with more, a few frames would fill the memory."""


@dataclass(frozen=True)
class Pairs(Kernel):
    """Distances of pairs of atoms, to the nearest image or direct: (F, pairs) float64, angstrom.

    Parameters
    ----------
    select
        Which atoms; all by default.
    to
        As many atoms, of which each makes a pair with one of `select`, in order (as MDAnalysis'
        `AtomicDistances`); by default all pairs within `select` (as `self_distance_array`).
    periodic
        Whether to the nearest image, which is nearer than the atom itself where a molecule is
        longer than half of the box; else between the atoms as they lie (with ``pbc="whole"``:
        within the whole molecule).

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
    periodic: bool = True

    def prepare(self, system: System) -> Prepared:
        check_switch("periodic", self.periodic)
        first = system.atoms(self.select)
        if self.to is None:
            n_atoms = len(first)
            n_pairs = n_atoms * (n_atoms - 1) // 2
            if n_pairs > MAX_PAIRS or n_atoms < 2:
                raise PlanError(
                    f"{n_atoms} atoms make {n_pairs:,} pairs; select 2 to "
                    f"{int((2 * MAX_PAIRS) ** 0.5):,} atoms"
                )
            first, second = (first[side] for side in np.triu_indices(n_atoms, 1))
        else:
            second = system.atoms(self.to)
            if len(first) != len(second):
                raise PlanError(
                    f"{len(first)} and {len(second)} atoms make no pairs; select as many of each"
                )
        names = system.atom_names(None) or range(system.layout.info.n_atoms)
        labels = [f"{names[a]}-{names[b]}" for a, b in zip(first, second, strict=True)]
        atoms, indices = np.unique(np.concatenate([first, second]), return_inverse=True)
        from mdio.analysis.kernels.images import distances_of_pairs
        from mdio.layouts.cut_molecules import NoCellFinder, has_box

        periodic = self.periodic and system.can_use_images()
        if periodic and system.is_whole:
            system.notes.append(
                "molecules are whole, and distances are those to the nearest image all the same; "
                "--set periodic=false (in Python: periodic=False) gives those within molecules"
            )
        can_be_cut = not periodic and not system.is_whole and has_box(system.source)
        if can_be_cut and system.cut_molecules(atoms) is None:
            system.notes.append(
                "these atoms are no neighbours, so that it is not seen where the box cuts their "
                "molecules, which makes direct distances wrong; make molecules whole with --pbc "
                "whole (in Python: pbc='whole')"
            )
        return Prepared(
            partial(distances_of_pairs, pairs=indices.reshape(2, -1), periodic=periodic),
            atoms,
            labels=labels,
            quantity="distance_angstrom",
            fills=True,
            is_direct=not periodic,
            doubt_finder=NoCellFinder() if periodic else None,
        )


@dataclass(frozen=True)
class ReferenceDistances(Kernel):
    """The mean of all distances from each atom to each atom of the reference frame: (F,) float64.

    The papers' control for RMSD: a computation without iterations, whose time is the same for
    every frame. The box plays no part, nor is anything superposed. Distances between atoms of one
    frame are `Pairs`.

    Parameters
    ----------
    select
        Which atoms; all by default.
    reference
        Number of the reference frame, a file, or coordinates: as of `RMSD`.
    """

    select: str | None = None
    reference: Reference = 0

    needs_whole = True

    def prepare(self, system: System) -> Prepared:
        atoms = system.select(self.select)
        reference = reference_positions(system, self.reference, self.select, atoms).astype(
            np.float32
        )
        from mdio.analysis.kernels.images import mean_distances_to_reference

        function = partial(mean_distances_to_reference, reference=reference)
        return Prepared(function, atoms, labels=("mean_reference_distance_angstrom",))


@dataclass(frozen=True)
class RadiusOfGyration(Kernel):
    """The radius of gyration of every frame: (F,) float64, angstrom.

    Parameters
    ----------
    select
        Which atoms; all by default.
    weights
        ``"mass"`` (as MDAnalysis' `radius_of_gyration`), a number for each atom, or None.
    """

    select: str | None = None
    weights: Weights = "mass"

    needs_whole = True

    def prepare(self, system: System) -> Prepared:
        atoms = system.select(self.select)
        n_atoms = system.layout.info.n_atoms if atoms is None else len(atoms)
        weights = atom_weights(system, self.weights, atoms, n_atoms)
        shares = np.full(n_atoms, 1 / n_atoms) if weights is None else weights / weights.sum()
        function = partial(gyration_of_block, shares=shares)
        return Prepared(function, atoms, labels=("rgyr_angstrom",))


def gyration_of_block(block: FrameBlock, shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the radius of gyration of each frame; `shares` (A,) are the weights, summing to 1."""
    # The deviation from a point, over all translations.
    return kernels.rmsd(block.positions, np.zeros((len(shares), 3)), shares)


@dataclass(frozen=True)
class RMSF(Kernel):
    """The root-mean-square fluctuation of every atom about its mean place: (A,) float64, angstrom.

    As `MDAnalysis.analysis.rms.RMSF`, which leaves frames as they are: motion of the whole molecule
    counts too, unless they are superposed. The same for any partition into blocks, but for the
    rounding of sums in float64 (about 1e-15 of the coordinates).

    Parameters
    ----------
    select
        Which atoms; all by default.
    superpose
        Whether each frame is first centred and rotated onto the reference (all atoms alike), as
        `MDAnalysis.analysis.align.AlignTraj` does and ``gmx rmsf -fit``.
    reference
        Number of the reference frame, a file, or coordinates: as of `RMSD`.

    Examples
    --------
    >>> import mdio
    >>> from MDAnalysisTests.datafiles import DCD, PSF
    >>> kernel = mdio.RMSF(select="name CA", superpose=True)
    >>> mdio.analyze(DCD, top=PSF, kernel=kernel).values[:2].round(2)
    array([1.02, 0.87])
    """

    select: str | None = None
    superpose: bool = False
    reference: Reference = 0

    needs_whole = True

    def prepare(self, system: System) -> Prepared:
        check_switch("superpose", self.superpose)
        atoms = system.select(self.select)
        reducer = StandardDeviation(norm=True)
        function: BlockFunction = attrgetter("positions")
        if self.superpose:
            reference = reference_positions(system, self.reference, self.select, atoms)
            function = partial(superposed_block, reference=reference)
        elif not (isinstance(self.reference, int) and self.reference == 0):
            raise PlanError(
                "a reference (--ref-frame) goes with --superpose (in Python: superpose=True); give "
                "both, or leave it out"
            )
        elif not system.is_superposed:
            system.notes.append(
                "frames are taken as they are, so the motion of all selected atoms together counts "
                "too; --superpose (superpose=True) lays each frame on the reference first"
            )
        return Prepared(
            function,
            atoms,
            reducer,
            labels=("rmsf_angstrom",),
            row_labels=system.atom_names(atoms) or (),
            row_residues=system.residue_numbers(atoms),
        )


def superposed_block(block: FrameBlock, reference: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the coordinates, centred and rotated onto the centred `reference`, (F, A, 3).

    After Kabsch 1976 (10.1107/S0567739476001873), all atoms weighted alike.
    """
    n_frames, n_atoms = block.positions.shape[:2]
    origins, rotations = kernels.best_fits(
        block.positions, np.arange(n_atoms), reference - reference.mean(axis=0)
    )
    # A fourth coordinate of 1 takes the origins along: subtracting them first takes longer.
    moves = np.concatenate([rotations, -origins[:, np.newaxis] @ rotations], axis=1)
    frames = np.ones((n_frames, n_atoms, 4))
    frames[..., :3] = block.positions
    return np.asarray(frames @ moves)
