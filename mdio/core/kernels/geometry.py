"""RMSD, and dihedral angles as cosines and sines, which need no angle to be computed.

With the bonds a, b, c from atom to atom, x = (a x b) . (b x c) and y = |b| a . (b x c) are the
cosine and the sine but for one common factor (Blondel & Karplus 1996,
10.1002/(SICI)1096-987X(19960715)17:9<1132::AID-JCC5>3.0.CO;2-T, with the sign of IUPAC).
"""

from __future__ import annotations

import numpy as np

from mdio.core.kernels import backend, checks
from mdio.core.kernels.checks import Float32s, Float64s, Int64s


def rmsd(
    positions: Float32s,
    reference: Float64s,
    weights: Float64s | None = None,
    superpose: bool = True,
    out: Float64s | None = None,
) -> Float64s:
    """Return the root-mean-square deviation of every frame from a reference.

    `positions` ((F, A, 3) float32): coordinates; frames may lie anywhere. `reference` ((A, 3)
    float64): in the same unit; it need not be centred. `weights` ((A,) float64, optional): not
    negative, such as masses; only their ratios matter. `superpose`: whether to take the minimum
    over all translations and proper rotations (centres, weighted if there are weights, are removed
    from both; then the QCP method: Theobald 2005, 10.1107/S0108767305015266; Liu et al. 2010,
    10.1002/jcc.21439). If not, the coordinates are compared as they are, without centring. `out`
    ((F,) float64, optional): filled and returned. Returns (F,) float64: ``sqrt(sum(w (x - r)**2) /
    sum(w))``, as MDAnalysis' ``rms.rmsd(x, r, w, center=superpose, superposition=superpose)``; not
    finite for frames with a number that is not. Raises ValueError: no atoms, a reference that is
    not finite, weights that are negative or sum to zero.
    """
    reference, weights, out = checks.rmsd_arguments(positions, reference, weights, out)
    if out.size:
        backend.module.rmsd(positions, reference, weights, superpose, out)
    return out


def dihedrals(positions: Float32s, quads: Int64s, out: Float64s) -> float:
    """Fill `out` with the cosine and the sine of dihedral angles in every frame.

    `positions` ((F, A, 3) float32): coordinates; frames may lie anywhere. Bonds are taken as they
    are, whatever the box. `quads` ((n, 4) int64): the four atoms of each angle; C-contiguous. `out`
    ((F, 2 n) float64): of each angle the cosine, then the sine; C-contiguous. Not a number where
    the four atoms lie on a line, or a coordinate is not finite. Returns float: the longest bond, in
    the unit of the positions: bonds much shorter than the box do not reach through it. Bonds that
    are not a number do not count.
    """
    n_frames, n_atoms = checks.native_rows(positions, "positions").shape[:2]
    if quads.ndim != 2 or quads.shape[1] != 4:
        raise ValueError(f"quads has shape {quads.shape}; it must be (angles, 4)")
    if not quads.flags.c_contiguous:
        raise TypeError("quads must be contiguous")
    checks.indices(quads.reshape(-1), n_atoms)
    wanted = n_frames, 2 * len(quads)
    if out.dtype != np.float64 or out.shape != wanted or not out.flags.c_contiguous:
        raise ValueError(f"out must be a contiguous float64 array of shape {wanted}")
    if not out.flags.writeable:
        raise ValueError("out is read-only")
    return float(backend.module.dihedrals(positions, quads, out)) if out.size else 0.0
