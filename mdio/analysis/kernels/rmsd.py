"""RMSD from a reference frame, after superposition or as the coordinates are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mdio.analysis.kernels.kernel import Kernel, Prepared
from mdio.analysis.system import System
from mdio.core import kernels
from mdio.core.errors import PlanError
from mdio.core.frames import AtomIndices, FrameBlock

Weights = Literal["mass"] | ArrayLike | None


@dataclass(frozen=True)
class RMSD(Kernel):
    """The root-mean-square deviation of every frame from a reference frame: (F,) float64, angstrom.

    Parameters
    ----------
    select
        Which atoms, in MDAnalysis' selection language; all by default.
    reference
        Number of the reference frame (negative: from the end), or coordinates (A, 3) in angstrom.
    weights
        ``"mass"``, or a number for each selected atom; None weights all equally.
    superpose
        Whether to centre and rotate each frame onto the reference (QCP), as
        ``MDAnalysis.analysis.rms.RMSD`` does; else the coordinates are compared as they are.
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
    reference: int | ArrayLike = 0
    weights: Weights = None
    superpose: bool = True
    repeat: int = 1

    needs_whole = True

    def prepare(self, system: System) -> Prepared:
        """Read the reference; look up masses if they are the weights."""
        if self.repeat < 1:
            raise PlanError(f"repeat is {self.repeat}; give 1 or more")
        atoms = system.select(self.select)
        reference = reference_of(system, self.reference, atoms)
        function = partial(
            rmsd_of_block,
            reference=reference,
            weights=weights_of(system, self.weights, atoms, len(reference)),
            superpose=self.superpose,
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


def reference_of(
    system: System, reference: int | ArrayLike, atoms: AtomIndices | None
) -> NDArray[np.float64]:
    """Return the reference coordinates: of a frame, or as they were given.

    Raises PlanError: no such frame, or coordinates of a wrong shape or that are not finite.
    """
    if isinstance(reference, int | np.integer):
        return np.asarray(system.frame(int(reference), atoms).positions[0], dtype=np.float64)
    found = np.array(reference, dtype=np.float64)
    n_atoms = system.layout.info.n_atoms if atoms is None else len(atoms)
    if found.shape != (n_atoms, 3):
        raise PlanError(
            f"the reference has shape {found.shape}, but {n_atoms} atoms are selected; "
            f"give ({n_atoms}, 3) coordinates or the number of a frame"
        )
    if not np.isfinite(found).all():
        raise PlanError("the reference has coordinates that are not finite")
    return found


def weights_of(
    system: System, weights: Weights, atoms: AtomIndices | None, n_atoms: int
) -> NDArray[np.float64] | None:
    """Return a weight for each selected atom, or None for equal weights.

    Raises PlanError: weights of a wrong shape, negative, not finite or all zero; masses without a
    topology.
    """
    if weights is None:
        return None
    if isinstance(weights, str):
        if weights != "mass":
            raise PlanError(f"the weights are {weights!r}; give 'mass' or a number for each atom")
        found = system.masses(atoms)
        if not found.any():
            raise PlanError(
                f"{system.layout.path}: the selected atoms have no masses; use a topology that has "
                "them, or weight all equally with --weights none (in Python: weights=None)"
            )
    else:
        found = np.array(weights, dtype=np.float64)
    if found.shape != (n_atoms,):
        raise PlanError(
            f"weights of shape {found.shape} for {n_atoms} selected atoms; give one each"
        )
    if not (np.isfinite(found).all() and found.min() >= 0 and found.sum() > 0):
        raise PlanError("weights must be finite and not negative, and not all zero")
    return found
