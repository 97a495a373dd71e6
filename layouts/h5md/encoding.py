"""Blocks of frames to the chunks of an H5MD file: pure, for any process.

Every chunk has the full chunk shape, as HDF5 wants it: behind the last frame and the last atom
there are zeros. Checksums are over the whole chunk as it is stored, decoded, zeros included. Runs
of frames of an array without chunks end with the last frame.

Integers are stored as in Zarr, by a filter of HDF5 that other programs have to be given; its chunks
hold the frames and atoms that there are, and those behind are zeros again once it is read.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import PlanError
from mdio.core.files.piece_sums import sums_of_rows
from mdio.core.frames import AtomIndices, FrameBlock
from mdio.core.kernels import crc32c, shuffle
from mdio.layouts.codecs import quantised
from mdio.layouts.codecs.compressors import MEANT, quantised_from_option
from mdio.layouts.codecs.quantised import WITHOUT_LEVEL, QuantisedFormat
from mdio.layouts.h5md.io import FULL_SYSTEM

if TYPE_CHECKING:
    from mdio.layouts.plan import ArrayPlan, LayoutPlan
    from mdio.layouts.writer import OutputMeta

FILTER = 397
"""Of integers; HDF5 leaves 256 to 511 to whoever has not registered a filter."""
FILTER_VERSION = 1

Coder = int | QuantisedFormat | None
"""What chunks go through: HDF5's shuffle and deflate, of that level; our filter; nothing."""

DEFAULT_GZIP_LEVEL = 4
"""zlib's higher levels take several times as long for a few percent."""

FLOAT32_DIGITS = 2.0**23
"""Numbers of at least this many steps have no bits below the step."""


def gzip_level(compression: str | None) -> int | None:
    """Return the zlib level that ``gzip`` or ``gzip:LEVEL`` asks for; None for no compression.

    Raises PlanError: another compressor: readers of H5MD have only those that every HDF5 has.
    """
    if compression is None or compression == "none":
        return None
    name, _, level = compression.partition(":")
    if name != "gzip" or (level and not (level.isdecimal() and 0 <= int(level) <= 9)):
        raise PlanError(
            f"--compression {compression}: H5MD files are compressed with gzip or gzip:0 to gzip:9 "
            "(which every HDF5 reads), integers also with bitpack or rigid[-seek]; take one of "
            "these, none, or the zarr layout"
        )
    return int(level) if level else DEFAULT_GZIP_LEVEL


def integers_by(compression: str | None) -> str | None:
    """Return what packs integers if ``--compression`` asks for that; None for anything else."""
    name = MEANT.get(compression or "", (None, compression))[1]
    return name if name in WITHOUT_LEVEL else None


def coder_of(plan: LayoutPlan, field: str) -> Coder:
    """Return what the chunks of a field go through."""
    if plan.compression not in WITHOUT_LEVEL:
        return gzip_level(plan.compression)
    step = plan.step_of(field)
    if step is None:
        return DEFAULT_GZIP_LEVEL
    rule = plan.precision_source if field == "positions" else "asked"
    return quantised_from_option(step, rule, plan.compression)


def power_of_two_step(precision: float, option: str = "--precision") -> float:
    """Return the largest power of two that is not above the `precision` that `option` gives.

    Multiples of it are floats whose low bits are zero, which compress better than multiples of
    a decimal step, and rounding to them is exact arithmetic.

    Raises PlanError: `precision` is not a positive number, or no float32 can hold its step.
    """
    if not (math.isfinite(precision) and 2.0**-100 <= precision <= 2.0**100):
        raise PlanError(f"{option} {precision}: give a positive number")
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
) -> Iterator[tuple[int, int, tuple[int, int], NDArray[np.float32]]]:
    """Cut a run of frames into chunks.

    `plan`: the array. `start`: first frame of `values`, which is the first of a chunk. `values`,
    (F, A, 3) float32: frames up to the end of a chunk, or of the trajectory.
    Yields (i, j, there, chunk): number of the chunk along frames and along atoms, how many of both
    are in it, and its numbers: C-contiguous, little endian, of the full chunk shape but in
    contiguous arrays (a view of `values` where it can be).
    """
    if start % plan.chunk_frames:
        raise ValueError(f"a piece begins at frame {start}, within a chunk of {plan.chunk_frames}")
    shape = (plan.chunk_frames, plan.chunk_atoms, 3)
    for first in range(0, len(values), plan.chunk_frames):
        for j in range(plan.n_atom_chunks):
            atom = j * plan.chunk_atoms
            part = values[first : first + plan.chunk_frames, atom : atom + plan.chunk_atoms]
            there = part.shape[:2]
            if part.shape != shape and not plan.contiguous:
                padded = np.zeros(shape, "<f4")
                padded[: part.shape[0], : part.shape[1]] = part
                part = padded
            i = (start + first) // plan.chunk_frames
            yield i, j, there, np.ascontiguousarray(part, "<f4")


def checksums_of(chunk: NDArray[np.float32], coder: Coder) -> list[int]:
    """Return the crc32c of a chunk and, if it is not compressed, those of its rows."""
    if coder is not None:
        return [crc32c(chunk)]
    whole, rows = sums_of_rows(chunk)
    return [whole, *rows]


def encode_chunk(
    chunk: NDArray[np.float32], coder: Coder, there: tuple[int, int]
) -> tuple[Any, list[int]]:
    """Return the bytes of a chunk as they are stored, and `checksums_of` the decoded ones.

    Deflated ones went through HDF5's shuffle before (RFC 1950). `there`: frames and atoms in it;
    behind these are zeros.
    """
    if isinstance(coder, QuantisedFormat):
        held = np.ascontiguousarray(chunk[: there[0], : there[1]])
        stored = quantised.encode_chunk(held, coder, for_filter=True)
        if coder.rule == "step":  # else nothing is lost
            chunk = np.empty_like(chunk)
            unpack(np.frombuffer(stored, np.uint8), chunk)
        return stored, checksums_of(chunk, coder)
    checksums = checksums_of(chunk, coder)
    if coder is None:
        return chunk, checksums
    return zlib.compress(shuffle(chunk, chunk.itemsize), coder), checksums


def unpack(stored: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
    """Fill `out`, (F, A, 3), with what is in a chunk of integers.

    Raises ValueError: it is no such chunk, or of more frames or atoms.
    """
    n_frames, n_atoms = quantised.shape_of(stored.data)
    if not (1 <= n_frames <= len(out) and 1 <= n_atoms <= out.shape[1]):
        raise ValueError(f"{n_frames} frames of {n_atoms} atoms in a chunk of {out.shape[:2]}")
    quantised.decode_chunk(stored.data, (n_frames, n_atoms), out[:n_frames, :n_atoms])
    out[:n_frames, n_atoms:] = 0
    out[n_frames:] = 0


def atom_ids(meta: OutputMeta) -> dict[str, NDArray[np.int64]]:
    """Return the numbers that atoms have in the source, where they are not 0, 1, 2, ..."""
    ids = {} if meta.atoms is None else {FULL_SYSTEM: np.asarray(meta.atoms)}
    for name, atoms in (meta.groups or {}).items():
        ids[name] = ids[FULL_SYSTEM][atoms] if FULL_SYSTEM in ids else np.asarray(atoms)
    return ids


def values_of(
    block: FrameBlock,
    group: str,
    field: str,
    groups: Mapping[str, AtomIndices] | None,
    plan: LayoutPlan,
) -> NDArray[np.float32]:
    """Return the numbers of one array, of the group's atoms, rounded where floats are stored."""
    values = block.present()[field]
    if group != FULL_SYSTEM:
        values = np.take(values, (groups or {})[group], axis=1)
    step = plan.step_of(field)
    if step is not None and plan.compression not in WITHOUT_LEVEL:
        values = round_to_step(values, step)
    return values


def missing_chunks(
    stored: Mapping[tuple[str, str], NDArray[np.bool_]],
    arrays: Mapping[tuple[str, str], ArrayPlan],
    n_frames: int,
) -> str | None:
    """Return in words which chunks were not stored; None if all were."""
    for (group, field), there in stored.items():
        if not there.all():
            i, j = (int(n) for n in np.argwhere(~there)[0])
            array = arrays[group, field]
            first = i * array.chunk_frames
            return (
                f"{int((~there).sum())} of {there.size} chunks of {field} of {group} were not "
                f"stored, the first that of frames {first} to "
                f"{min(first + array.chunk_frames, n_frames) - 1}, atoms from "
                f"{j * array.chunk_atoms} on"
            )
    return None


def split_key(key: str) -> tuple[tuple[str, str], tuple[int, int]]:
    """Return group and field, and the number along frames and atoms, of an encoded chunk."""
    group, field, i, j = key.split("/")
    return (group, field), (int(i), int(j))
