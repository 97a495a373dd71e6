"""Chooses how an output is written, by its file system: codecs, caching, stripes, owner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mdio.converters.options import Storage
from mdio.core.errors import PlanError
from mdio.core.files.publish import output_errors
from mdio.core.files.store import file_system_type, is_network, store_at
from mdio.core.files.writing import Direct, free_memory
from mdio.layouts.base import Layout
from mdio.layouts.codecs.quantised import QuantisedFormat, encode_chunk
from mdio.layouts.manifest import FULL_SYSTEM
from mdio.layouts.plan import DEFAULT_STRIPE_NBYTES, CodecShares, LayoutPlan
from mdio.layouts.registry import layout_class
from mdio.layouts.striping.file_systems import (
    StripeRecord,
    favours_one_writer,
    get_stripe,
    has_stripes,
    set_stripe,
    stripe_record,
)
from mdio.parallel.executors import Executor

MEMORY_SHARE = 0.25
"""Share of available memory: larger outputs would not stay in the page cache anyway."""
STRIPE_UNIT_NBYTES = 64 << 10
"""Stripe sizes are multiples of this on all file systems that stripe."""
LARGE_NBYTES = 1 << 30
"""Smaller outputs are often read again at once, which is faster from the page cache."""
PIECE_FOR_OWNER_NBYTES = 6 << 20
"""Size of a piece for an owner that writes alone: it begins when the first piece arrives."""
BITPACK_FRAMES, MAX_RIGID_FRAMES, SAMPLE_NBYTES = 4, 16, 16 << 20
"""Frames packed to measure bitpack, most frames to measure rigid, and most bytes of these."""
MAX_BITPACK_SHARE = 0.9
"""Where bitpack takes a smaller share of the source's size, no smaller codec is tried.

If the source has a step of its own, the larger of the shares with either step decides, so that
asking for a coarser step never makes the output larger.
"""


def file_system_for(target: Path, compression: str | None) -> str | None:
    """Return the type of the file system, if the codec of floats depends on it; else None."""
    if compression not in (None, "auto"):
        return None
    type_name = file_system_type(target)
    return type_name if compression == "auto" or is_network(type_name) else None


def measure_codec_shares(
    view: Layout,
    groups: Mapping[str, NDArray[np.int64]],
    storage: Storage,
    nbytes_per_atom: float | None,
) -> dict[str, CodecShares]:
    """Return, by group, the share of the source's size that codecs take, from a few middle frames.

    Empty where integers are not stored, or where their codec was requested. `nbytes_per_atom`:
    bytes of the source per atom and frame.
    """
    info, precision = view.info, storage.precision
    step = info.precision if info.xtc_integers else None
    if isinstance(precision, float | int):
        step = precision
    if precision == "none" or storage.compression not in (None, "auto"):
        return {}
    if step is None or not nbytes_per_atom or info.n_frames * info.n_atoms == 0:
        return {}
    if not 0 < step < np.inf:  # the plan refuses it
        return {}
    quantised_format = QuantisedFormat(step, "xtc" if step is info.precision else "step")
    max_frames = max(BITPACK_FRAMES, min(MAX_RIGID_FRAMES, SAMPLE_NBYTES // info.frame_nbytes))
    begin = max(0, info.n_frames - max_frames) // 2
    all_atoms = view.read(begin, min(begin + BITPACK_FRAMES, info.n_frames)).positions
    shares = {}
    for name, atoms in {FULL_SYSTEM: None, **groups}.items():
        frames = all_atoms if atoms is None else all_atoms.take(atoms, axis=1)
        source_frame_nbytes = nbytes_per_atom * frames.shape[1]
        bitpack_share = _bitpacked_nbytes(frames, quantised_format) / source_frame_nbytes
        larger_share, rigid_share = bitpack_share, None
        if info.precision is not None and step != info.precision:
            source_format = QuantisedFormat(info.precision, "xtc")
            larger_share = max(
                bitpack_share, _bitpacked_nbytes(frames, source_format) / source_frame_nbytes
            )
        if larger_share > MAX_BITPACK_SHARE:
            end = min(begin + max_frames, info.n_frames)
            is_read = end - begin == len(frames)
            sample = frames if is_read else view.read(begin, end, atoms=atoms).positions
            chunk = encode_chunk(sample, replace(quantised_format, compressor="rigid"))
            rigid_share = len(chunk) / len(sample) / source_frame_nbytes
        shares[name] = CodecShares(bitpack_share, rigid_share)
    return shares


def _bitpacked_nbytes(frames: NDArray[np.float32], quantised_format: QuantisedFormat) -> float:
    """Return the bytes of a frame other than the first of a chunk, which takes more."""
    nbytes = len(encode_chunk(frames, quantised_format))
    if len(frames) == 1:
        return nbytes
    return (nbytes - len(encode_chunk(frames[:1], quantised_format))) / (len(frames) - 1)


def choose_direct(requested: str, plan: LayoutPlan, target: Path) -> Direct:
    """Return whether large writes go past the page cache.

    With ``auto`` they do so only on a disk of this machine: always if the output is large compared
    with the memory; if it is merely large, only if the disk proves fast. Networks were not
    measured.
    """
    if requested != "auto":
        return requested == "on"
    nbytes = float(plan.nbytes)
    if plan.precision and plan.precision_source != "asked" and plan.source_nbytes_per_atom:
        n_atoms = sum(array.n_atoms for array in plan.arrays) or plan.n_atoms
        nbytes = min(nbytes, plan.source_nbytes_per_atom * plan.n_frames * n_atoms)
    if is_network(file_system_type(target)):
        return False
    if 0 < MEMORY_SHARE * free_memory() < nbytes:
        return True
    return "auto" if nbytes >= LARGE_NBYTES else False


def is_written_by_owner(plan: LayoutPlan, target: Path, executor: Executor) -> bool:
    """Return whether workers send what they encode to the owner, which alone writes.

    That sends the data over the network once more, and pays where several machines that write to
    one file delay each other. What goes into an object store is built where the owner is.
    """
    if not store_at(target).built_in_place:
        return not executor.shares_files
    several_ranks = executor.ranks is not None and executor.n_workers > 1
    return several_ranks and plan.n_files == 1 and favours_one_writer(file_system_type(target))


def plan_for_owner(plan: LayoutPlan) -> LayoutPlan:
    """Return `plan` with small pieces, whole chunks, for an owner that alone writes."""
    chunk = max((array.chunk_frames for array in plan.arrays), default=1)
    piece_frames = PIECE_FOR_OWNER_NBYTES * plan.n_frames // max(plan.nbytes, 1)
    frames = max(chunk, piece_frames // chunk * chunk)
    return plan.replace(by_owner=True, piece_frames=min(plan.piece_frames, frames))


def check_stripes(storage: Storage) -> None:
    """Raise PlanError for stripes of sizes and counts that no file system has."""
    sizes = [storage.stripe_nbytes or 0, *(end for end, _ in storage.progressive)]
    invalid = [size for size in sizes if size < 0 or size % STRIPE_UNIT_NBYTES]
    if invalid or storage.stripe_nbytes == 0:
        raise PlanError(
            f"stripes of {(invalid or [0])[0]} bytes: sizes are multiples of 64 KiB; give "
            "--stripe-size such as 1M or 4M"
        )
    counts = [storage.stripe_count, *(count for _, count in storage.progressive)]
    if any(count is not None and count < 1 and count != -1 for count in counts):
        raise PlanError(
            f"{min(c for c in counts if c is not None)} stripes: give 1 or more, or -1 for all "
            "servers (--stripe-count)"
        )


def planned_stripe_nbytes(storage: Storage, out: Path) -> int:
    """Return the stripe size to plan an output for: by default that of its folder, else 1 MiB."""
    if storage.stripe_nbytes is not None:
        return storage.stripe_nbytes
    striping = get_stripe(out.absolute().parent)
    return DEFAULT_STRIPE_NBYTES if striping is None else striping.stripe_nbytes


def create_with_stripes(temporary: Path, storage: Storage, plan: LayoutPlan) -> StripeRecord | None:
    """Create the output with its stripes: an empty file, or a folder for its files.

    Where none were requested, the folder's own default is kept, which a size and a count may not
    be able to express (a progressive one); it is only recorded.

    Returns a record for the manifest, with the answer of the file system, which does not stop the
    conversion; None where nothing was requested and files are not striped.
    """
    size_and_count = storage.stripe_nbytes, storage.stripe_count
    is_requested = size_and_count != (None, None) or bool(storage.progressive)
    if not is_requested and not has_stripes(temporary):
        return None
    if layout_class(plan.layout).facts.is_folder:
        with output_errors(temporary):
            temporary.mkdir(exist_ok=True)
    if is_requested:
        stripes = plan.stripes
        return set_stripe(
            temporary, stripes.stripe_nbytes, stripes.stripe_count, storage.progressive or None
        )
    striping = get_stripe(temporary.parent)
    return stripe_record(
        temporary, {}, striping, None if striping else "the file system does not tell"
    )
