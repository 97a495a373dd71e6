"""Dihedral angles as cosines and sines, which need no angle to be computed.

With the bonds a, b, c from atom to atom, x = (a x b) . (b x c) and y = |b| a . (b x c) are the
cosine and the sine but for one common factor (Blondel & Karplus 1996,
10.1002/(SICI)1096-987X(19960715)17:9<1132::AID-JCC5>3.0.CO;2-T, with the sign of IUPAC).

As in `mdio.core.kernels`, whose checks and choice between C++ and NumPy these share.
"""

from __future__ import annotations

import numpy as np

from mdio.core import kernel_checks as checks
from mdio.core import kernels
from mdio.core.kernel_checks import Float32s, Float64s, Int64s

__all__ = ["dihedrals"]


def dihedrals(positions: Float32s, quads: Int64s, out: Float64s) -> float:
    """Fill `out` with the cosine and the sine of dihedral angles in every frame.

    Parameters
    ----------
    positions : (F, A, 3) float32
        Coordinates; frames may lie anywhere. Bonds are taken as they are, whatever the box.
    quads : (n, 4) int64
        The four atoms of each angle; C-contiguous.
    out : (F, 2 n) float64
        Of each angle the cosine, then the sine; C-contiguous. Not a number where the four atoms lie
        on a line, or a coordinate is not finite.

    Returns
    -------
    float
        The longest bond, in the unit of the positions: bonds much shorter than the box do not
        reach through it. Bonds that are not a number do not count.
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
    return float(kernels._kernels.dihedrals(positions, quads, out)) if out.size else 0.0
