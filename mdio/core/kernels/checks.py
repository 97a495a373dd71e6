"""Checks of the kernels' arguments, so that native code need not check.

Wrong dtypes raise TypeError, wrong shapes and strides ValueError, indices out of range IndexError.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Float32s: TypeAlias = NDArray[np.float32]
Float64s: TypeAlias = NDArray[np.float64]
Int32s: TypeAlias = NDArray[np.int32]
Int64s: TypeAlias = NDArray[np.int64]
Folded: TypeAlias = NDArray[np.uint16] | NDArray[np.uint32]
Buffer: TypeAlias = bytes | bytearray | memoryview | NDArray[Any]


def buffer(data: Buffer) -> memoryview:
    """Return the bytes of `data`."""
    view = data.data if isinstance(data, np.ndarray) else memoryview(data)
    if not view.c_contiguous:
        raise ValueError("the data must be C-contiguous; pass a copy")
    if isinstance(data, np.ndarray):
        return data.reshape(-1).view(np.uint8).data  # casts refuse foreign byte orders
    return view.cast("B") if view.nbytes else memoryview(b"")


def coordinates(array: Float32s, name: str) -> tuple[Float32s, bool]:
    """Return the array as native float32, and whether its bytes are the other way round."""
    if array.dtype.kind != "f" or array.dtype.itemsize != 4:
        raise TypeError(f"{name} is {array.dtype}; it must be float32")
    if array.ndim != 3:
        raise ValueError(f"{name} has {array.ndim} dimensions; it must have 3")
    if array.dtype.isnative:
        return array, False
    return array.view(array.dtype.newbyteorder("=")), True


def atom_rows(array: Float32s, name: str) -> tuple[Float32s, bool]:
    """Do as `coordinates`, and check that frames are contiguous (A, 3)."""
    array, swapped = coordinates(array, name)
    n_atoms, n_axes = array.shape[1:]
    if n_axes != 3:
        raise ValueError(f"{name} has shape {array.shape}; it must be (frames, atoms, 3)")
    if array.size and (array.strides[2] != 4 or (n_atoms > 1 and array.strides[1] != 12)):
        raise ValueError(f"each frame of {name} must be contiguous; pass a copy")
    return array, swapped


def native_rows(array: Float32s, name: str) -> Float32s:
    """Do as `atom_rows`, and check that the byte order is this machine's."""
    array, swapped = atom_rows(array, name)
    if swapped:
        raise TypeError(f"{name} has the byte order of another machine; it must be native float32")
    return array


def output(out: Float32s, n_frames: int, n_atoms: int) -> Float32s:
    """Check that `out` can be filled with (n_frames, n_atoms, 3)."""
    out = native_rows(out, "out")
    if out.shape != (n_frames, n_atoms, 3):
        raise ValueError(f"out has shape {out.shape}; it must be {(n_frames, n_atoms, 3)}")
    if not out.flags.writeable:
        raise ValueError("out is read-only")
    return out


def indices(atoms: Int64s | None, n_atoms: int) -> tuple[Int64s | None, int]:
    """Check atom indices; return them and how many atoms come out."""
    if atoms is None:
        return None, n_atoms
    if atoms.dtype != np.int64 or atoms.ndim != 1 or not atoms.flags.c_contiguous:
        raise TypeError("atoms must be a contiguous int64 array of one dimension")
    if atoms.size and not 0 <= atoms.min() <= atoms.max() < n_atoms:
        raise IndexError(f"atom indices must be from 0 to {n_atoms - 1}")
    return atoms, atoms.size


def step_size(step: float, name: str) -> float:
    """Check a step or a precision."""
    if not (np.isfinite(step) and step > 0):
        raise ValueError(f"{name} is {step}; it must be positive")
    return float(step)


def read_arguments(
    shape: tuple[int, ...], out: Float32s, atoms: Int64s | None, first: int, last: int | None
) -> tuple[Float32s, Int64s | None, int]:
    """Check the part of `shape` (frames, atoms, ...) to read; return output, atoms, last frame."""
    n_frames, n_atoms = shape[:2]
    last = n_frames if last is None else last
    if not 0 <= first <= last <= n_frames:
        raise IndexError(f"frames {first}:{last} asked for, but there are {n_frames} frames")
    atoms, n_out = indices(atoms, n_atoms)
    return output(out, last - first, n_out), atoms, last


def deltas_output(out: Int32s | None, shape: tuple[int, ...]) -> Int32s:
    """Check the output array of integers, or allocate it."""
    if out is None:
        return np.empty(shape, np.int32)
    if int32s(out, "out").shape != shape:
        raise ValueError(f"out has shape {out.shape}; it must be {shape}")
    if not out.flags.writeable:
        raise ValueError("out is read-only")
    return out


def int32s(array: Int32s, name: str) -> Int32s:
    """Check that an array is contiguous native int32."""
    if array.dtype != np.int32 or not array.flags.c_contiguous:
        raise TypeError(f"{name} must be a C-contiguous array of native int32")
    return array


def integer_frames(array: Int32s, name: str) -> Int32s:
    """Do as `int32s`, and check that the shape is (frames, atoms, 3)."""
    int32s(array, name)
    if array.ndim != 3 or array.shape[2] != 3:
        raise ValueError(f"{name} have shape {array.shape}; it must be (frames, atoms, 3)")
    return array


def mask_bytes(kept: NDArray[np.uint8], n_atoms: int) -> None:
    """Check that there is one byte for every atom."""
    if kept.dtype != np.uint8 or kept.shape != (n_atoms,) or not kept.flags.c_contiguous:
        raise TypeError(f"kept must be a contiguous array of {n_atoms} uint8")


def unfold_arguments(folded: Folded, out: Int32s) -> None:
    """Check the arguments of unfolding."""
    if folded.dtype not in (np.uint16, np.uint32) or not folded.flags.c_contiguous:
        raise TypeError("folded must be a C-contiguous array of native uint16 or uint32")
    if int32s(out, "out").size != folded.size:
        raise ValueError(f"out has {out.size} numbers; it must have {folded.size}")
    if not out.flags.writeable:
        raise ValueError("out is read-only")


def rmsd_arguments(
    positions: Float32s, reference: Float64s, weights: Float64s | None, out: Float64s | None
) -> tuple[Float64s, Float64s | None, Float64s]:
    """Check the arguments of RMSD; return reference, weights and output."""
    n_frames, n_atoms = native_rows(positions, "positions").shape[:2]
    reference = np.ascontiguousarray(reference, np.float64)
    if n_atoms == 0 or reference.shape != (n_atoms, 3):
        raise ValueError(f"reference has shape {reference.shape} for {n_atoms} atoms")
    if not np.isfinite(reference).all():
        raise ValueError("the reference has numbers that are not finite")
    if weights is not None:
        weights = np.ascontiguousarray(weights, np.float64)
        if weights.shape != (n_atoms,):
            raise ValueError(f"weights have shape {weights.shape} for {n_atoms} atoms")
        if not (weights.min() >= 0 and 0 < weights.sum() < np.inf):
            raise ValueError("weights must not be negative, and some must be positive")
    if out is None:
        out = np.empty(n_frames)
    elif out.dtype != np.float64 or out.shape != (n_frames,) or not out.flags.c_contiguous:
        raise ValueError(f"out must be a contiguous float64 array of {n_frames} numbers")
    return reference, weights, out
