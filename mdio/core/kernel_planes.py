"""Coordinates as planes, all x, all y, all z, as DCD stores them: the way out.

As in `mdio.core.kernels`, which has the way in (`planar_to_xyz`), and whose choice between
C++ and NumPy this shares.
"""

from __future__ import annotations

from mdio.core import kernel_checks as checks
from mdio.core import kernels
from mdio.core.kernel_checks import Float32s

__all__ = ["xyz_to_planar"]


def xyz_to_planar(src: Float32s, planar: Float32s) -> None:
    """Undo `mdio.core.kernels.planar_to_xyz`, for all atoms.

    Parameters
    ----------
    src : (F, A, 3) float32
        Frames may lie anywhere.
    planar : (F, 3, A) float32
        Filled. Contiguous along the atoms; frames and axes may lie anywhere (record markers between
        them) and need no alignment.
    """
    src = checks.native_rows(src, "src")
    planar, swapped = checks.coordinates(planar, "planar")
    n_frames, n_atoms, _ = src.shape
    if planar.shape != (n_frames, 3, n_atoms) or swapped:
        raise ValueError(f"planar has shape {planar.shape}; it must be {(n_frames, 3, n_atoms)}")
    if planar.size and n_atoms > 1 and planar.strides[2] != 4:
        raise ValueError("planar must be contiguous along its atoms")
    if not planar.flags.writeable:
        raise ValueError("planar is read-only")
    if planar.size:
        kernels._kernels.xyz_to_planar(src, planar)
