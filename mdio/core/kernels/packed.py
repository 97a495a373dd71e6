"""Rows of integers in as few bits as are needed: smaller than floats, and quick to read.

The numbers of a row are folded (0, -1, 1, -2, ... become 0, 1, 2, 3, ...) and taken in groups of
32; zeros fill the last group of a row up to a multiple of 8. Each number of a group is stored with
as many bits as the largest one needs. There are, one after the other:

- the widths: for each row, for each group a byte, 0 to 32;
- the groups, of as many bytes for every 8 numbers as their width says; the lowest bit of a number
  and of a byte comes first;
- 16 bytes of zeros, so that native code can load whole vectors.

The size has to be what the widths say: anything else raises ValueError, and no bytes are read
outside.

Coordinates become integers, which are differenced along the frames; or along the atoms, where that
makes them smaller. Then each atom is differenced against one of the four before it, the same one in
all frames: in water the hydrogens against their oxygen, along a chain an atom against one it is
bound to. The atoms are sorted by the size of their differences, so that the leading zeros of small
ones lie together.

`neighbours` has a byte for each atom. Its low two bits say which atom this one is differenced
against: 0, the one before it, to 3, the fourth before it; before the first atom there are atoms at
the origin. The other bits are a class, by which the atoms are sorted; those of one class stay in
their order. Frames do not depend on each other.

Arguments: `deltas`, (F, A, 3) int32, of `quantise`, C-contiguous; `neighbours`, (A,) uint8, of
`choose_neighbours`; `scale` and `xtc`, as of `quantise`; `out`, filled, with the arithmetic of
`dequantise`, (end - first, k, 3) float32; `atoms`, (k,) int64, all by default; `first` and `end`,
which choose frames ``first:end``, all by default.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mdio.core.kernels import backend, checks
from mdio.core.kernels.checks import Float32s, Folded, Int32s, Int64s

Bytes = NDArray[np.uint8]
FRAMES_SHAPE = (None, None, 3)
"""The shape (F, A, 3)."""


def quantise(
    positions: Float32s, scale: float, out: Int32s | None = None, *, xtc: bool = False
) -> Int32s | None:
    """Return coordinates as integers, differenced along the frames; None if they do not fit.

    `positions`, (F, A, 3) float32. `scale`: step of the integers, each of which is ``rint(x /
    step)`` in float64; if `xtc`, the precision per nm (usually 1000) of an XTC file whose integers
    are to be found, in coordinates in angstrom as MDAnalysis reads them.
    Returns (F, A, 3) int32, or None: the first frame as it is, the others as differences to the
    frame before. None if a number is not finite or its integer reaches 2**30, and if `xtc`, unless
    `dequantise` gives back every bit.
    """
    positions = checks.native_rows(positions, "positions")
    scale = checks.step_size(scale, "scale")
    if out is None:
        out = np.empty(positions.shape, np.int32)
    deltas = checks.array(out, "out", np.int32, positions.shape, is_output=True)
    return deltas if backend.module.quantise(positions, scale, xtc, deltas) else None


def dequantise(
    deltas: Int32s,
    scale: float,
    out: Float32s,
    atoms: Int64s | None = None,
    first: int = 0,
    end: int | None = None,
    *,
    xtc: bool = False,
) -> None:
    """Undo `quantise`: sum along the frames and multiply.

    Numbers are ``float32(integer * step)``, in float64; if `xtc`, they have the float32 arithmetic
    of xdrfile and MDAnalysis: ``float32(integer) * (float32(1) / float32(precision)) *
    float32(10)``, each product rounded. Frames before `first` are summed but not written.
    """
    shape = checks.array(deltas, "deltas", np.int32, FRAMES_SHAPE).shape
    out, atoms, end = checks.read_arguments(shape, out, atoms, first, end)
    if out.size:
        scale = checks.step_size(scale, "scale")
        backend.module.dequantise(deltas, scale, xtc, out, atoms, first, end)


def fold(integers: Int32s) -> Folded:
    """Return integers (n,) unsigned, small if small whatever their sign; uint16 if all fit.

    0, -1, 1, -2, ... become 0, 1, 2, 3, ...; `integers` are C-contiguous, of any shape.
    """
    folded: Folded = backend.module.fold(checks.array(integers, "integers", np.int32))
    return folded


def unfold(folded: Folded, out: Int32s) -> None:
    """Undo `fold`: fill `out`, C-contiguous int32 of as many numbers."""
    checks.array(folded, "folded", np.uint16 if folded.itemsize == 2 else np.uint32)
    if checks.array(out, "out", np.int32, is_output=True).size != folded.size:
        raise ValueError(f"out has {out.size} numbers; it must have {folded.size}")
    backend.module.unfold(folded, out)


GROUP_SIZE = 32
"""Numbers that have one width."""
PADDING_NBYTES = 16
"""Bytes of zeros after the groups."""


def packed_limit(n_rows: int, n_numbers: int) -> int:
    """Return the most bytes that rows of `n_numbers` integers can take."""
    return n_rows * (-(-n_numbers // GROUP_SIZE) + _unpacked_nbytes(n_numbers)) + PADDING_NBYTES


def _unpacked_nbytes(n_numbers: int) -> int:
    """Return the bytes of unpacked integers, rounded up to a multiple of 8."""
    return 4 * 8 * -(-n_numbers // 8)


def pack(integers: Int32s, out: Bytes) -> Bytes | None:
    """Pack integers, if that makes them smaller; return the filled part of `out`, else None.

    `integers`, (R, ...) int32: rows; C-contiguous. `out`: at least `packed_limit` bytes.
    """
    checks.array(integers, "integers", np.int32)
    if not integers.size:
        raise ValueError("there are no integers to pack")
    n_rows, n_numbers = len(integers), integers.size // len(integers)
    max_nbytes = packed_limit(n_rows, n_numbers)
    if checks.array(out, "out", np.uint8, (None,), is_output=True).size < max_nbytes:
        raise ValueError(f"out has {out.size} bytes; it must have {max_nbytes}")
    nbytes = int(backend.module.pack(integers, out))
    return out[:nbytes] if nbytes - PADDING_NBYTES <= n_rows * _unpacked_nbytes(n_numbers) else None


def difference_first(deltas: Int32s) -> None:
    """Turn the first frame, in place, into differences of each atom to the one before."""
    checks.array(deltas, "deltas", np.int32, FRAMES_SHAPE)
    deltas[0, 1:] -= deltas[0, :-1].copy()


def sum_packed(
    packed: Bytes,
    shape: tuple[int, int],
    scale: float,
    out: Float32s,
    atoms: Int64s | None = None,
    first: int = 0,
    end: int | None = None,
    *,
    xtc: bool,
    neighbours: Bytes | None = None,
) -> None:
    """Undo `pack`, then `difference_first` or `difference_neighbours`, then `quantise`.

    `difference_neighbours` if there are `neighbours`. `packed`: (n,) uint8, C-contiguous. `shape`:
    (F, A), frames and atoms, at least one of each.
    Raises ValueError: the bytes do not fit together, even those of frames and atoms that are not
    read.
    """
    out, atoms, end = checks.read_arguments(shape, out, atoms, first, end)
    scale = checks.step_size(scale, "scale")
    checks.array(packed, "packed", np.uint8, (None,))
    if neighbours is not None:
        checks.array(neighbours, "neighbours", np.uint8, shape[1:])
    backend.module.sum_packed(packed, *shape, neighbours, scale, xtc, out, atoms, first, end)


def encode_rigid(
    positions: Float32s, scale: float, key_interval: int = 0, section_atoms: int = 0, *, xtc: bool
) -> tuple[bytes, Bytes] | None:
    """Encode integers by what changes little: lengths, triangles, bonds that turn slowly.

    ``docs/rigid.md`` has the format. `positions` become integers as by `quantise`. `key_interval`:
    frames from one that is decoded without earlier ones (a key frame) to the next, up to 255; 0 =
    only the first is one. `section_atoms`: least number of atoms of a section, which is decoded
    without the others, up to 4,096; 0 = one section of all atoms.
    Returns the chunk's description, to be compressed further, and its data, (n,) uint8, which
    cannot be; the data are valid until this thread encodes again. None for a single frame, or where
    there are no such integers.
    """
    positions = checks.native_rows(positions, "positions")
    scale = checks.step_size(scale, "scale")
    if not (0 <= key_interval < 256 and 0 <= section_atoms <= 4096):
        raise ValueError(
            f"key_interval is {key_interval} and section_atoms {section_atoms}: give at most 255 "
            "and 4096"
        )
    if len(positions) < 2 or not positions.size:
        return None
    encoded: tuple[bytes, Bytes] | None
    encoded = backend.module.encode_rigid(positions, scale, xtc, key_interval, section_atoms)
    return encoded


def decode_rigid(
    description: Bytes,
    data: Bytes,
    shape: tuple[int, int],
    scale: float,
    out: Float32s,
    atoms: Int64s | None = None,
    first: int = 0,
    end: int | None = None,
    *,
    xtc: bool,
) -> None:
    """Undo `encode_rigid`; `description` is (n,) uint8, the others are as for `sum_packed`."""
    out, atoms, end = checks.read_arguments(shape, out, atoms, first, end)
    description = np.frombuffer(checks.buffer(description), np.uint8)
    scale = checks.step_size(scale, "scale")
    checks.array(data, "data", np.uint8, (None,))
    backend.module.decode_rigid(description, data, *shape, scale, xtc, out, atoms, first, end)


def choose_neighbours(deltas: Int32s) -> Bytes | None:
    """Choose what each atom is differenced against, if that is likely to take fewer bits.

    Returns (A,) uint8, a byte of each atom (see the module); None if the differences along the
    frames are likely to be smaller. Both are estimated from two frames, as the bits of the sums
    over x, y, z.
    """
    checks.array(deltas, "deltas", np.int32, FRAMES_SHAPE)
    if not deltas.size:
        return None
    neighbours: Bytes | None = backend.module.choose_neighbours(deltas)
    return neighbours


def difference_neighbours(deltas: Int32s, neighbours: Bytes) -> None:
    """Turn differences along the frames into those along the atoms, sorted, in place."""
    checks.array(deltas, "deltas", np.int32, FRAMES_SHAPE, is_output=True)
    checks.array(neighbours, "neighbours", np.uint8, deltas.shape[1:2])
    backend.module.difference_neighbours(deltas, neighbours)


def sum_neighbours(
    differences: Int32s,
    neighbours: Bytes,
    scale: float,
    out: Float32s,
    atoms: Int64s | None = None,
    *,
    xtc: bool,
) -> None:
    """Undo `difference_neighbours` and the making of integers.

    `differences`: any frames of what `difference_neighbours` made. `neighbours`: any bytes give
    some numbers.
    """
    checks.array(differences, "differences", np.int32, FRAMES_SHAPE)
    checks.array(neighbours, "neighbours", np.uint8, differences.shape[1:2])
    atoms, n_out = checks.indices(atoms, differences.shape[1])
    out = checks.output(out, differences.shape[0], n_out)
    if out.size:
        scale = checks.step_size(scale, "scale")
        backend.module.sum_neighbours(differences, neighbours, scale, xtc, out, atoms)
