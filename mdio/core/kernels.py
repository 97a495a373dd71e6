"""The small kernels under layouts and analyses: checksums, transposition, integers, RMSD.

Each runs in C++ where the extension is built and in NumPy otherwise, with the same results (RMSD:
to rounding). The native ones release the GIL. This file checks shapes and dtypes, once, so that
neither side does.

Arrays of coordinates, in and out, are (F, A, 3) with contiguous frames and any stride from frame to
frame, so that views into raw file buffers and slices of atoms of a larger block need no copy.
Wrong dtypes raise TypeError, wrong shapes, strides and numbers ValueError, atoms or frames out of
range IndexError.

``MDIO_PURE_PYTHON=1`` in the environment turns the native side off.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from numpy.typing import NDArray

from mdio.core import kernel_checks as checks
from mdio.core import kernels_numpy
from mdio.core.kernel_checks import Buffer, Float32s, Float64s, Folded, Int32s, Int64s

__all__ = [
    "NATIVE",
    "crc32c",
    "crc32c_many",
    "dequantise_deltas",
    "dequantise_xtc",
    "fold",
    "gather_atoms",
    "planar_to_xyz",
    "quantise_deltas",
    "quantise_xtc",
    "rmsd",
    "shuffle",
    "swap_to_native",
    "unfold",
    "unshuffle",
]


def _choose() -> tuple[Any, bool]:
    if os.environ.get("MDIO_PURE_PYTHON", "0") not in ("", "0"):
        return kernels_numpy, False
    try:
        return import_module("mdio._kernels"), True
    except ImportError:  # installed without a compiler
        return kernels_numpy, False


_kernels, NATIVE = _choose()


def crc32c(data: Buffer, value: int = 0) -> int:
    """Return the CRC-32C (Castagnoli; RFC 3720) of a buffer.

    Parameters
    ----------
    data
        Any C-contiguous buffer, arrays included.
    value
        Checksum of what comes before `data`, to go on from it.
    """
    return int(_kernels.crc32c(checks.buffer(data), value))


def crc32c_many(data: Buffer, nbytes_each: int) -> list[int]:
    """Return the CRC-32C of consecutive pieces of `nbytes_each` bytes (the last may be shorter)."""
    if nbytes_each < 1:
        raise ValueError(f"nbytes_each is {nbytes_each}; it must be positive")
    return list(_kernels.crc32c_many(checks.buffer(data), nbytes_each))


def planar_to_xyz(
    planar: Float32s, out: Float32s, atoms: Int64s | None = None, swap: bool = False
) -> None:
    """Interleave coordinates that are stored as all x, all y, all z (DCD).

    Parameters
    ----------
    planar : (F, 3, A) float32
        Contiguous along the atoms; frames and axes may lie anywhere (record markers between
        them) and need no alignment. Bytes are swapped if its dtype is of the other byte order.
    out : (F, k, 3) float32
        Filled.
    atoms : (k,) int64, optional
        Which atoms; all by default.
    swap
        Whether the bytes are the other way round than the dtype says.
    """
    planar, swapped = checks.coordinates(planar, "planar")
    n_frames, n_axes, n_atoms = planar.shape
    if n_axes != 3:
        raise ValueError(f"planar has shape {planar.shape}; it must be (frames, 3, atoms)")
    if planar.size and n_atoms > 1 and planar.strides[2] != 4:
        raise ValueError("planar must be contiguous along its atoms; pass a copy")
    atoms, n_out = checks.indices(atoms, n_atoms)
    out = checks.output(out, n_frames, n_out)
    if out.size:
        _kernels.planar_to_xyz(planar, out, atoms, swap != swapped)


def swap_to_native(
    src: Float32s, out: Float32s, atoms: Int64s | None = None, scale: float | None = None
) -> None:
    """Copy coordinates out of a raw file buffer: swap bytes if need be, pick atoms, convert units.

    Parameters
    ----------
    src : (F, A, 3) float32
        Big-endian (``>f4``: NetCDF-3 records, TRR) or little-endian, as its dtype says; frames
        may lie anywhere and need no alignment.
    out : (F, k, 3) float32
        Filled.
    atoms : (k,) int64, optional
        Which atoms; all by default.
    scale
        Multiplies every number, as float32 by float32 (10 makes nm to angstrom).
    """
    src, swapped = checks.atom_rows(src, "src")
    atoms, n_out = checks.indices(atoms, src.shape[1])
    out = checks.output(out, src.shape[0], n_out)
    if out.size:
        _kernels.copy_atoms(src, out, atoms, swapped, 1.0 if scale is None else scale)


def gather_atoms(src: Float32s, atoms: Int64s, out: Float32s) -> None:
    """Copy some atoms of every frame: ``np.take(src, atoms, axis=1, out=out)``.

    Parameters
    ----------
    src : (F, A, 3) float32
        Frames may lie anywhere.
    atoms : (k,) int64
        Which atoms.
    out : (F, k, 3) float32
        Filled.
    """
    src = checks.native_rows(src, "src")
    indices, n_out = checks.indices(atoms, src.shape[1])
    out = checks.output(out, src.shape[0], n_out)
    if out.size:
        _kernels.copy_atoms(src, out, indices, False, 1.0)


def quantise_deltas(positions: Float32s, step: float, out: Int32s | None = None) -> Int32s | None:
    """Turn coordinates into integers of `step`, differenced along the frames.

    Parameters
    ----------
    positions : (F, A, 3) float32
        Coordinates.
    step
        In the same unit; each integer is ``rint(x / step)`` in float64.
    out : (F, A, 3) int32, optional
        Filled and returned; C-contiguous.

    Returns
    -------
    (F, A, 3) int32, or None
        The first frame as it is, the others as differences to the frame before. None if a
        number is not finite or its integer reaches 2**30.
    """
    positions = checks.native_rows(positions, "positions")
    deltas = checks.deltas_output(out, positions.shape)
    done = _kernels.quantise_deltas(positions, checks.step_size(step, "step"), deltas)
    return deltas if done else None


def quantise_xtc(
    positions: Float32s, precision_per_nm: float, out: Int32s | None = None
) -> Int32s | None:
    """Find the integers that an XTC file held, differenced along the frames.

    Parameters
    ----------
    positions : (F, A, 3) float32
        Coordinates in angstrom as MDAnalysis reads them from XTC.
    precision_per_nm
        The file's precision (usually 1000).

    Other arguments and the result are those of `quantise_deltas`; it is None unless
    `dequantise_xtc` gives back every bit.
    """
    positions = checks.native_rows(positions, "positions")
    precision = checks.step_size(precision_per_nm, "precision_per_nm")
    deltas = checks.deltas_output(out, positions.shape)
    return deltas if _kernels.quantise_xtc(positions, precision, deltas) else None


def dequantise_deltas(
    deltas: Int32s,
    step: float,
    out: Float32s,
    atoms: Int64s | None = None,
    first: int = 0,
    last: int | None = None,
) -> None:
    """Undo `quantise_deltas`: sum along the frames and multiply by `step`.

    Parameters
    ----------
    deltas : (F, A, 3) int32
        C-contiguous.
    step
        The step they were made with; numbers are ``float32(integer * step)``, in float64.
    out : (last - first, k, 3) float32
        Filled.
    atoms : (k,) int64, optional
        Which atoms; all by default.
    first, last
        Frames that are wanted; those before `first` are summed but not written.
    """
    out, atoms, last = checks.deltas_arguments(deltas, out, atoms, first, last)
    if out.size:
        _kernels.dequantise_deltas(deltas, checks.step_size(step, "step"), out, atoms, first, last)


def dequantise_xtc(
    deltas: Int32s,
    precision_per_nm: float,
    out: Float32s,
    atoms: Int64s | None = None,
    first: int = 0,
    last: int | None = None,
) -> None:
    """Undo `quantise_xtc`, with the float32 arithmetic of xdrfile and MDAnalysis.

    An integer becomes ``float32(integer) * (float32(1) / float32(precision)) * float32(10)``, each
    product rounded to float32; the other arguments are those of `dequantise_deltas`.
    """
    out, atoms, last = checks.deltas_arguments(deltas, out, atoms, first, last)
    if out.size:
        precision = checks.step_size(precision_per_nm, "precision_per_nm")
        _kernels.dequantise_xtc(deltas, precision, out, atoms, first, last)


def fold(integers: Int32s) -> Folded:
    """Return integers (n,) unsigned, small if small whatever their sign; uint16 if all fit.

    0, -1, 1, -2, ... become 0, 1, 2, 3, ...; `integers` are C-contiguous, of any shape.
    """
    folded: Folded = _kernels.fold(checks.int32s(integers, "integers"))
    return folded


def unfold(folded: Folded, out: Int32s) -> None:
    """Undo `fold`: fill `out`, C-contiguous int32 of as many numbers."""
    checks.unfold_arguments(folded, out)
    _kernels.unfold(folded, out)


def shuffle(data: Buffer, itemsize: int) -> bytes:
    """Return the bytes reordered as HDF5's shuffle filter does it.

    All first bytes of the items come first, then all second bytes, and so on; trailing bytes that
    do not fill an item stay where they are.
    """
    if itemsize < 1:
        raise ValueError(f"itemsize is {itemsize}; it must be positive")
    return bytes(_kernels.shuffle(checks.buffer(data), itemsize))


def unshuffle(data: Buffer, itemsize: int, out: bytearray | memoryview | NDArray[Any]) -> None:
    """Undo `shuffle`: fill `out`, a writable buffer of as many bytes, that is not `data`."""
    if itemsize < 1:
        raise ValueError(f"itemsize is {itemsize}; it must be positive")
    source, target = checks.buffer(data), checks.buffer(out)
    if source.nbytes != target.nbytes:
        raise ValueError(f"out has {target.nbytes} bytes; it must have {source.nbytes}")
    if source.nbytes:
        if target.readonly:
            raise ValueError("out is read-only")
        _kernels.unshuffle(source, itemsize, target)


def rmsd(
    positions: Float32s,
    reference: Float64s,
    weights: Float64s | None = None,
    superpose: bool = True,
    out: Float64s | None = None,
) -> Float64s:
    """Return the root-mean-square deviation of every frame from a reference.

    Parameters
    ----------
    positions : (F, A, 3) float32
        Coordinates; frames may lie anywhere.
    reference : (A, 3) float64
        In the same unit; it need not be centred.
    weights : (A,) float64, optional
        Not negative, such as masses; only their ratios matter.
    superpose
        Whether to take the minimum over all translations and proper rotations (centres, weighted
        if there are weights, are removed from both; then the QCP method: Theobald 2005,
        10.1107/S0108767305015266; Liu et al. 2010, 10.1002/jcc.21439). If not, the coordinates are
        compared as they are, without centring.
    out : (F,) float64, optional
        Filled and returned.

    Returns
    -------
    (F,) float64
        ``sqrt(sum(w (x - r)**2) / sum(w))``, as MDAnalysis' ``rms.rmsd(x, r, w, center=superpose,
        superposition=superpose)``; not finite for frames with a number that is not.

    Raises
    ------
    ValueError
        No atoms, a reference that is not finite, weights that are negative or sum to zero.
    """
    reference, weights, out = checks.rmsd_arguments(positions, reference, weights, out)
    if out.size:
        _kernels.rmsd(positions, reference, weights, superpose, out)
    return out
