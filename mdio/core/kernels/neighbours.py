"""Integers differenced along the atoms: what differences along the frames give way to.

Each atom is differenced against one of the four before it, in all frames the same: in water the
hydrogens against their oxygen, along a chain an atom against one it is bound to. The atoms are
sorted by the size of their differences, so that the leading zeros of small ones lie together.

Of each atom a byte is kept. Its low two bits are how many atoms before it the other one is, less
one; the rest is a class, by which the atoms are sorted, those of one class in their own order. What
lies before the first atom is at the origin. Frames do not depend on each other.

"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mdio.core.kernels import backend, checks
from mdio.core.kernels.checks import Float32s, Int32s, Int64s

Bytes = NDArray[np.uint8]


def choose_neighbours(deltas: Int32s) -> Bytes | None:
    """Choose what each atom is differenced against, if that is likely to take fewer bits.

    `deltas` ((F, A, 3) int32): of `quantise_deltas` or `quantise_xtc`; C-contiguous. Returns (A,)
    uint8, or None: what is kept of the atoms; None if the differences along the frames are likely
    to be smaller. Both are estimated from two frames, as the bits of the sums over x, y and z.
    """
    checks.integer_frames(deltas, "deltas")
    if not deltas.size:
        return None
    kept: Bytes | None = backend.module.choose_neighbours(deltas)
    return kept


def difference_neighbours(deltas: Int32s, kept: Bytes) -> None:
    """Turn differences along the frames into those along the atoms, sorted, in place.

    `deltas` ((F, A, 3) int32): as for `choose_neighbours`. `kept` ((A,) uint8): what that returned.
    """
    checks.integer_frames(deltas, "deltas")
    checks.kept_bytes(kept, deltas.shape[1])
    if not deltas.flags.writeable:
        raise ValueError("deltas is read-only")
    backend.module.difference_neighbours(deltas, kept)


def sum_neighbours(
    differences: Int32s,
    kept: Bytes,
    scale: float,
    out: Float32s,
    atoms: Int64s | None = None,
    *,
    xtc: bool,
) -> None:
    """Undo `difference_neighbours` and the making of integers.

    `differences` ((F, A, 3) int32): C-contiguous; any frames of what `difference_neighbours` made.
    `kept` ((A,) uint8): what is kept of the atoms; any bytes give some numbers. `scale`: step, or
    precision per nm if `xtc`. `out` ((F, k, 3) float32): filled, with the arithmetic of
    `dequantise_deltas`, or `dequantise_xtc` if `xtc`. `atoms` ((k,) int64, optional): which atoms;
    all by default. `xtc`: what `scale` is.
    """
    checks.integer_frames(differences, "differences")
    checks.kept_bytes(kept, differences.shape[1])
    atoms, n_out = checks.indices(atoms, differences.shape[1])
    out = checks.output(out, differences.shape[0], n_out)
    if out.size:
        scale = checks.step_size(scale, "scale")
        undo = backend.module.sum_neighbours_xtc if xtc else backend.module.sum_neighbours_step
        undo(differences, kept, scale, out, atoms)
