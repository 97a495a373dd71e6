"""Plans of H5MD files. Pure arithmetic."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

from mdio.core.errors import PlanError
from mdio.core.files.piece_sums import pieces_of_row
from mdio.core.frames import TrajectoryInfo
from mdio.layouts.chunk_shapes import MAX_PADDING, plan_padding
from mdio.layouts.h5md.encoding import gzip_level, power_of_two_step
from mdio.layouts.h5md.file import is_aligned
from mdio.layouts.h5md.io import FULL_SYSTEM
from mdio.layouts.h5md.others.flavours import flavour_of
from mdio.layouts.plan import LayoutPlan, WriteOptions, plan_pieces


def plan_contiguous(info: TrajectoryInfo, options: WriteOptions) -> LayoutPlan:
    """Plan arrays without chunks; as `mdio.layouts.plan.plan_pieces` with chunks.

    Raises PlanError: compression, precision or chunks of a part of the atoms are asked for too.
    """
    precision = None if options.precision in ("auto", "none") else options.precision
    options.keep_floats("--contiguous")
    for option, value in (
        ("--compression", options.compression),
        ("--precision", precision),
        ("--chunk-atoms", options.chunk_atoms),
    ):
        if value is not None:
            raise PlanError(
                f"--contiguous stores every array in one piece, and {option} {value} needs chunks; "
                "leave one of them away"
            )
    plan = plan_pieces(info, replace(options, chunk_atoms=info.n_atoms), quantised=False)
    arrays = tuple(replace(a, chunk_atoms=a.n_atoms, contiguous=True) for a in plan.arrays)
    shape = (info.n_frames, info.n_atoms)
    stripe = plan.stripe_nbytes
    padding = plan_padding(shape, shape, stripe)
    aligned = 1 < stripe < 12 * info.n_frames * info.n_atoms and padding <= MAX_PADDING
    return plan.replace(
        arrays=arrays,
        alignment_nbytes=stripe if aligned else 1,
        padding=padding if aligned else 0.0,
        nbytes=sum(12 * info.n_frames * array.n_atoms for array in arrays),
    )


CHUNK_ENTRY_NBYTES = 12 + 64
"""What a chunk takes in our tables and, about, in HDF5's index."""


def plan_h5md(info: TrajectoryInfo, options: WriteOptions) -> LayoutPlan:
    """Plan one file; raises PlanError for what H5MD files cannot have."""
    for name in options.groups:
        if name in ("", ".", "..", FULL_SYSTEM) or "/" in name or "\0" in name:
            raise PlanError(
                f"--group {name}: not a name for a particle group; take one without a slash "
                f"that is not {FULL_SYSTEM!r} (the full system)"
            )
    if flavour_of(options.flavour).to_file:
        options.keep_floats(f"--flavour {options.flavour}, which has units of its own")
        if options.precision not in (None, "auto", "none"):
            raise PlanError(
                f"--flavour {options.flavour} stores floats in its own units, which --precision "
                "does not know; leave one of them out"
            )
    level = gzip_level(options.compression)
    precision: float | None = None
    source: Literal["asked"] | None = None
    if options.precision not in (None, "auto", "none"):
        precision, source = power_of_two_step(float(options.precision)), "asked"
    steps = {
        name: power_of_two_step(step, f"--precision-{name}")
        for name, step in options.field_precisions.items()
    }
    if level is None and (steps or precision is not None):
        level = gzip_level("gzip")
    contiguous = options.contiguous
    plan = (
        plan_contiguous(info, options)
        if contiguous
        else plan_pieces(info, options, quantised=False)
    )
    plan = plan.replace(
        layout="h5md",
        writes_chunks=True,
        flavour=options.flavour,
        compression=None if level is None else f"gzip:{level}",
        precision=precision,
        precision_source=source,
        field_precisions=steps,
        direct=False if level is None else None,
    )
    if level is not None:  # nobody knows beforehand where compressed chunks end
        plan = plan.replace(alignment_nbytes=1, padding=0.0)
    nbytes = info.n_frames * (8 + 8 + 24 + 36) + 2 * options.topology_nbytes
    for array in plan.arrays:
        each = 12 * array.n_atoms * info.n_frames if contiguous else array.chunk_nbytes
        if is_aligned(array, plan.alignment_nbytes):
            each = math.ceil(each / plan.alignment_nbytes) * plan.alignment_nbytes
        n_chunks = math.ceil(info.n_frames / array.chunk_frames) * array.n_atom_chunks
        nbytes += (1 if contiguous else n_chunks) * each + n_chunks * CHUNK_ENTRY_NBYTES
        if level is None:
            per_row = array.n_atom_chunks * pieces_of_row(12 * array.chunk_atoms)
            nbytes += 4 * info.n_frames * per_row
    return plan.replace(nbytes=nbytes)
