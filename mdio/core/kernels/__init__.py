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

from mdio.core.kernels.checksums import crc32c, crc32c_joined, crc32c_pieces, shuffle, unshuffle
from mdio.core.kernels.coordinates import gather_atoms, planar_to_xyz, swap_to_native, xyz_to_planar
from mdio.core.kernels.distances import (
    centre,
    cut_frames,
    follow,
    gather,
    make_whole,
    put_in_cell,
    within,
)
from mdio.core.kernels.geometry import dihedrals, rmsd
from mdio.core.kernels.integers import (
    dequantise_deltas,
    dequantise_xtc,
    fold,
    quantise_deltas,
    quantise_xtc,
    unfold,
)
from mdio.core.kernels.neighbours import choose_neighbours, difference_neighbours, sum_neighbours
from mdio.core.kernels.packed import (
    decode_rigid,
    difference_first,
    encode_rigid,
    neighbours_room,
    pack,
    packed_limit,
    sum_packed,
    sum_packed_neighbours,
)
