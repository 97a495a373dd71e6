"""The small kernels under layouts and analyses: checksums, transposition, integers, geometry.

Each runs in C++ and releases the GIL. Shapes and dtypes are checked here, so that native code does
not. What it has to equal in NumPy (RMSD and dihedral angles: to rounding) is in ``tests/oracles``.

Arrays of coordinates, in and out, are (F, A, 3) with contiguous frames and any stride from frame to
frame, so that views into raw file buffers and slices of atoms of a larger block need no copy.
Wrong dtypes raise TypeError, wrong shapes, strides and numbers ValueError, atoms or frames out of
range IndexError.
"""

# mypy: implicit-reexport
# ruff: noqa: F401
from __future__ import annotations

from mdio.core.kernels.checksums import (
    crc32c,
    crc32c_joined,
    crc32c_spans,
    read_rows,
    shuffle,
    unshuffle,
)
from mdio.core.kernels.coordinates import (
    best_fits,
    centre,
    cut_frames,
    dihedrals,
    distances,
    fit,
    follow,
    gather,
    gather_atoms,
    longest_distances,
    make_whole,
    planar_to_xyz,
    put_in_cell,
    rmsd,
    swap_to_native,
    within,
    xyz_to_planar,
)
from mdio.core.kernels.packed import (
    choose_neighbours,
    decode_rigid,
    dequantise,
    difference_first,
    difference_neighbours,
    encode_rigid,
    fold,
    pack,
    packed_limit,
    quantise,
    sum_neighbours,
    sum_packed,
    unfold,
)
