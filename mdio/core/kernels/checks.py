"""Checks of the kernels' arguments, so that native code need not check.

Wrong dtypes raise TypeError, wrong shapes and strides ValueError, indices out of range IndexError.
"""

from __future__ import annotations

from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

Float32s: TypeAlias = NDArray[np.float32]
Float64s: TypeAlias = NDArray[np.float64]
Int32s: TypeAlias = NDArray[np.int32]
Int64s: TypeAlias = NDArray[np.int64]
Folded: TypeAlias = NDArray[np.uint16] | NDArray[np.uint32]
Buffer: TypeAlias = bytes | bytearray | memoryview | NDArray[Any]
Array = TypeVar("Array", bound=NDArray[Any])


def buffer(data: Buffer) -> memoryview:
    """Return the bytes of `data`."""
    view = data.data if isinstance(data, np.ndarray) else memoryview(data)
    if not view.c_contiguous:
        raise ValueError("the data must be C-contiguous; pass a copy")
    if isinstance(data, np.ndarray):
        return data.reshape(-1).view(np.uint8).data  # casts refuse foreign byte orders
    return view.cast("B") if view.nbytes else memoryview(b"")


def coordinates(array: Float32s, name: str) -> tuple[Float32s, bool]:
    """Return the array as native float32, and whether its bytes are in the other order."""
    if array.dtype.kind != "f" or array.dtype.itemsize != 4:
        raise TypeError(f"{name} is {array.dtype}; it must be float32")
    if array.ndim != 3:
        raise ValueError(f"{name} has {array.ndim} dimensions; it must have 3")
    if array.dtype.isnative:
        return array, False
    return array.view(array.dtype.newbyteorder("=")), True


def atom_rows(array: Float32s, name: str) -> tuple[Float32s, bool]:
    """Do as `coordinates`, and check that frames are contiguous (A, 3)."""
    array, is_swapped = coordinates(array, name)
    n_atoms, n_axes = array.shape[1:]
    if n_axes != 3:
        raise ValueError(f"{name} has shape {array.shape}; it must be (frames, atoms, 3)")
    if array.size and (array.strides[2] != 4 or (n_atoms > 1 and array.strides[1] != 12)):
        raise ValueError(f"each frame of {name} must be contiguous; pass a copy")
    return array, is_swapped


def native_rows(array: Float32s, name: str) -> Float32s:
    """Do as `atom_rows`, and check that the byte order is this machine's."""
    array, is_swapped = atom_rows(array, name)
    if is_swapped:
        raise TypeError(f"{name} has the byte order of another machine; it must be native float32")
    return array


def planes(planar: Float32s) -> tuple[Float32s, bool]:
    """Do as `coordinates`, and check that the atoms of (frames, 3, atoms) are contiguous."""
    planar, is_swapped = coordinates(planar, "planar")
    if planar.shape[1] != 3:
        raise ValueError(f"planar has shape {planar.shape}; it must be (frames, 3, atoms)")
    if planar.size and planar.shape[2] > 1 and planar.strides[2] != 4:
        raise ValueError("planar must be contiguous along its atoms; pass a copy")
    return planar, is_swapped


def output(out: Float32s, n_frames: int, n_atoms: int) -> Float32s:
    """Check that `out` can be filled with (n_frames, n_atoms, 3)."""
    out = native_rows(out, "out")
    if out.shape != (n_frames, n_atoms, 3):
        raise ValueError(f"out has shape {out.shape}; it must be {(n_frames, n_atoms, 3)}")
    if not out.flags.writeable:
        raise ValueError("out is read-only")
    return out


def array(
    values: Array,
    name: str,
    dtype: DTypeLike,
    shape: tuple[int | None, ...] | None = None,
    *,
    is_output: bool = False,
) -> Array:
    """Check that an array is C-contiguous and of this machine's byte order.

    `shape`: None = any; a None in it = any length. `is_output`: whether it is written to.
    """
    if values.dtype != dtype:
        raise TypeError(f"{name} is {values.dtype}; it must be native {np.dtype(dtype)}")
    if shape not in (None, values.shape) and (
        values.ndim != len(shape)
        or any(n not in (None, size) for n, size in zip(shape, values.shape, strict=True))
    ):
        raise ValueError(f"{name} has shape {values.shape}; it must be {shape}")
    if not values.flags.c_contiguous:
        raise ValueError(f"{name} must be C-contiguous; pass a copy")
    if is_output and not values.flags.writeable:
        raise ValueError(f"{name} is read-only")
    return values


def indices(atoms: Int64s | None, n_atoms: int) -> tuple[Int64s | None, int]:
    """Check atom indices; return them, and how many atoms they choose."""
    if atoms is None:
        return None, n_atoms
    array(atoms, "atoms", np.int64, (None,))
    if atoms.size and not 0 <= atoms.min() <= atoms.max() < n_atoms:
        raise IndexError(f"atom indices must be from 0 to {n_atoms - 1}")
    return atoms, atoms.size


def step_size(step: float, name: str) -> float:
    """Check a step or a precision."""
    if not 0 < step < np.inf:
        raise ValueError(f"{name} is {step}; it must be positive")
    return float(step)


def read_arguments(
    shape: tuple[int, ...], out: Float32s, atoms: Int64s | None, first: int, end: int | None
) -> tuple[Float32s, Int64s | None, int]:
    """Check the part of `shape` (frames, atoms, ...) to read; return output, atoms, end frame."""
    n_frames, n_atoms = shape[:2]
    end = n_frames if end is None else end
    if not 0 <= first <= end <= n_frames:
        raise IndexError(f"frames {first}:{end} asked for, but there are {n_frames} frames")
    atoms, n_out = indices(atoms, n_atoms)
    return output(out, end - first, n_out), atoms, end
