"""Coordinates as integers, differenced along the frames and folded, and back."""

from __future__ import annotations

from mdio.core.kernels import backend, checks
from mdio.core.kernels.checks import Float32s, Folded, Int32s, Int64s


def quantise_deltas(positions: Float32s, step: float, out: Int32s | None = None) -> Int32s | None:
    """Turn coordinates into integers of `step`, differenced along the frames.

    `positions` ((F, A, 3) float32): coordinates. `step`: in the same unit; each integer is ``rint(x
    / step)`` in float64. `out` ((F, A, 3) int32, optional): filled and returned; C-contiguous.
    Returns (F, A, 3) int32, or None: the first frame as it is, the others as differences to the
    frame before. None if a number is not finite or its integer reaches 2**30.
    """
    positions = checks.native_rows(positions, "positions")
    deltas = checks.deltas_output(out, positions.shape)
    done = backend.module.quantise_deltas(positions, checks.step_size(step, "step"), deltas)
    return deltas if done else None


def quantise_xtc(
    positions: Float32s, precision_per_nm: float, out: Int32s | None = None
) -> Int32s | None:
    """Find the integers that an XTC file held, differenced along the frames.

    `positions` ((F, A, 3) float32): coordinates in angstrom as MDAnalysis reads them from XTC.
    `precision_per_nm`: the file's precision (usually 1000). Other arguments and the result are
    those of `quantise_deltas`; it is None unless `dequantise_xtc` gives back every bit.
    """
    positions = checks.native_rows(positions, "positions")
    precision = checks.step_size(precision_per_nm, "precision_per_nm")
    deltas = checks.deltas_output(out, positions.shape)
    return deltas if backend.module.quantise_xtc(positions, precision, deltas) else None


def dequantise_deltas(
    deltas: Int32s,
    step: float,
    out: Float32s,
    atoms: Int64s | None = None,
    first: int = 0,
    last: int | None = None,
) -> None:
    """Undo `quantise_deltas`: sum along the frames and multiply by `step`.

    `deltas` ((F, A, 3) int32): C-contiguous. `step`: the step they were made with; numbers are
    ``float32(integer * step)``, in float64. `out` ((last - first, k, 3) float32): filled. `atoms`
    ((k,) int64, optional): which atoms; all by default. `first`, `last`: frames that are wanted;
    those before `first` are summed but not written.
    """
    out, atoms, last = checks.wanted(
        checks.integer_frames(deltas, "deltas").shape, out, atoms, first, last
    )
    if out.size:
        backend.module.dequantise_deltas(
            deltas, checks.step_size(step, "step"), out, atoms, first, last
        )


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
    out, atoms, last = checks.wanted(
        checks.integer_frames(deltas, "deltas").shape, out, atoms, first, last
    )
    if out.size:
        precision = checks.step_size(precision_per_nm, "precision_per_nm")
        backend.module.dequantise_xtc(deltas, precision, out, atoms, first, last)


def fold(integers: Int32s) -> Folded:
    """Return integers (n,) unsigned, small if small whatever their sign; uint16 if all fit.

    0, -1, 1, -2, ... become 0, 1, 2, 3, ...; `integers` are C-contiguous, of any shape.
    """
    folded: Folded = backend.module.fold(checks.int32s(integers, "integers"))
    return folded


def unfold(folded: Folded, out: Int32s) -> None:
    """Undo `fold`: fill `out`, C-contiguous int32 of as many numbers."""
    checks.unfold_arguments(folded, out)
    backend.module.unfold(folded, out)
