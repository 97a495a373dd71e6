"""Blocks of frames to the chunks of an H5MD file: pure, for any process.

Every chunk has the full chunk shape, as HDF5 wants it: behind the last frame and the last atom
there are zeros. Checksums are over the whole chunk as it is stored, decoded, zeros included. Runs
of frames of an array without chunks end with the last frame.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import PlanError
from mdio.core.files.piece_sums import row_sums
from mdio.core.kernels import crc32c, shuffle
from mdio.layouts.plan import ArrayPlan

__all__ = [
    "checksums_of",
    "chunks_of",
    "encode_chunk",
    "gzip_level",
    "power_of_two_step",
    "round_to_step",
]

DEFAULT_GZIP_LEVEL = 4
"""zlib's higher levels take several times as long for a few percent."""

FLOAT32_DIGITS = 2.0**23
"""Numbers of at least this many steps have no bits below the step."""


def gzip_level(compression: str | None) -> int | None:
    """Return the zlib level that ``gzip`` or ``gzip:LEVEL`` asks for; None for no compression.

    Raises
    ------
    PlanError
        Another compressor: readers of H5MD have only those that every HDF5 has.
    """
    if compression is None or compression == "none":
        return None
    name, _, level = compression.partition(":")
    if name != "gzip" or (level and not (level.isdecimal() and 0 <= int(level) <= 9)):
        raise PlanError(
            f"--compression {compression}: H5MD files are compressed with gzip or gzip:0 to gzip:9 "
            "(which every HDF5 reads); take one of these, none, or the zarr layout"
        )
    return int(level) if level else DEFAULT_GZIP_LEVEL


def power_of_two_step(precision: float) -> float:
    """Return the largest power of two that is not above `precision` (angstrom).

    Multiples of it are floats whose low bits are zero, which compress better than multiples of
    a decimal step, and rounding to them is exact arithmetic.

    Raises
    ------
    PlanError
        `precision` is not a positive number, or no float32 can hold its step.
    """
    if not (math.isfinite(precision) and 2.0**-100 <= precision <= 2.0**100):
        raise PlanError(f"--precision {precision}: give a positive number of angstrom, or auto")
    return math.ldexp(1.0, math.frexp(precision)[1] - 1)


def round_to_step(values: NDArray[np.float32], step: float) -> NDArray[np.float32]:
    """Return the nearest multiples of `step`, a power of two.

    The error is at most half a step. NaN, infinity and numbers too large to have bits below the
    step stay as they are.
    """
    scale = np.float32(step)
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = np.rint(values / scale) * scale
        return np.where(np.abs(values) < np.float32(FLOAT32_DIGITS * step), rounded, values)


def chunks_of(
    plan: ArrayPlan, start: int, values: NDArray[np.float32]
) -> Iterator[tuple[int, int, NDArray[np.float32]]]:
    """Cut a run of frames into chunks.

    Parameters
    ----------
    plan
        The array.
    start
        First frame of `values`, which is the first of a chunk.
    values : (F, A, 3) float32
        Frames up to the end of a chunk, or of the trajectory.

    Yields
    ------
    (i, j, chunk)
        Number of the chunk along frames and along atoms, and its numbers: C-contiguous, little
        endian, of the full chunk shape but in contiguous arrays (a view of `values` where it can
        be).
    """
    if start % plan.chunk_frames:
        raise ValueError(f"a piece begins at frame {start}, within a chunk of {plan.chunk_frames}")
    shape = (plan.chunk_frames, plan.chunk_atoms, 3)
    for first in range(0, len(values), plan.chunk_frames):
        for j in range(plan.n_atom_chunks):
            atom = j * plan.chunk_atoms
            part = values[first : first + plan.chunk_frames, atom : atom + plan.chunk_atoms]
            if part.shape != shape and not plan.contiguous:
                padded = np.zeros(shape, "<f4")
                padded[: part.shape[0], : part.shape[1]] = part
                part = padded
            yield (
                (start + first) // plan.chunk_frames,
                j,
                np.ascontiguousarray(part, "<f4"),
            )


def checksums_of(chunk: NDArray[np.float32], level: int | None) -> list[int]:
    """Return the crc32c of a chunk and, if it is not compressed, those of its rows."""
    return [crc32c(chunk), *(row_sums(chunk).tolist() if level is None else ())]


def encode_chunk(chunk: NDArray[np.float32], level: int | None) -> tuple[Any, list[int]]:
    """Return the bytes of a chunk as they are stored, and `checksums_of` the decoded ones.

    With a `level` they go through HDF5's shuffle and deflate filters (RFC 1950).
    """
    checksums = checksums_of(chunk, level)
    if level is None:
        return chunk, checksums
    return zlib.compress(shuffle(chunk, chunk.itemsize), level), checksums
