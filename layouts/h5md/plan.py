"""Plans of H5MD files. Pure arithmetic."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from mdio.core.errors import PlanError
from mdio.core.files.piece_sums import pieces_of_row
from mdio.core.frames import TrajectoryInfo
from mdio.layouts.chunk_shapes import MAX_PADDING, plan_padding
from mdio.layouts.codecs.compressors import quantised_from_option
from mdio.layouts.h5md.encoding import FILTER, gzip_level, integers_by, power_of_two_step
from mdio.layouts.h5md.file import is_aligned
from mdio.layouts.h5md.others.flavours import flavour_of
from mdio.layouts.manifest import check_group_names
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


def _floats(options: WriteOptions) -> dict[str, Any]:
    """Return what the plan says of floats: as they are, or multiples of powers of two."""
    level = gzip_level(options.compression)
    steps = {
        name: power_of_two_step(step, f"--precision-{name}")
        for name, step in options.field_precisions.items()
    }
    precision, source = None, None
    if options.precision not in (None, "auto", "none"):
        precision, source = power_of_two_step(float(options.precision)), "asked"
    if level is None and (steps or precision is not None):
        level = gzip_level("gzip")
    return {
        "compression": None if level is None else f"gzip:{level}",
        "precision": precision,
        "precision_source": source,
        "field_precisions": steps,
    }


def _packed(info: TrajectoryInfo, options: WriteOptions) -> dict[str, Any]:
    """Return what the plan says of integers, of a step or of an XTC; raises PlanError."""
    name, asked = integers_by(options.compression), options.precision
    precision, source = None, None
    if isinstance(asked, float | int):
        precision, source = float(asked), "asked"
        quantised_from_option(precision, source, name)  # raises for a step that is none
    elif asked != "none" and info.xtc_integers and info.precision is not None:
        precision, source = info.precision, "xtc"
    elif not options.field_precisions:
        raise PlanError(
            f"--compression {name} stores integers, and {info.path} holds none of one step; give "
            "--precision STEP, or take --compression gzip"
        )
    if flavour_of(options.flavour).to_file:
        raise PlanError(
            f"--flavour {options.flavour} is for a program that reads no integers of mdio's; take "
            "--compression gzip"
        )
    note = (
        f"other programs read this by HDF5's filter {FILTER}, which comes with mdio's sources "
        "(packaging/hdf5-filter); --compression gzip is for all programs"
    )
    return {
        "compression": name,
        "precision": precision,
        "precision_source": source,
        "notes": (note,),
    }


def plan_h5md(info: TrajectoryInfo, options: WriteOptions) -> LayoutPlan:
    """Plan one file; raises PlanError for what H5MD files cannot have."""
    check_group_names(options.groups)
    if flavour_of(options.flavour).to_file:
        options.keep_floats(f"--flavour {options.flavour}, which has units of its own")
        if options.precision not in (None, "auto", "none"):
            raise PlanError(
                f"--flavour {options.flavour} stores floats in its own units, which --precision "
                "does not know; leave one of them out"
            )
    how = _packed(info, options) if integers_by(options.compression) else _floats(options)
    packed = how["compression"] is not None
    contiguous = options.contiguous
    quantised = integers_by(how["compression"]) is not None
    plan = (
        plan_contiguous(info, options)
        if contiguous
        else plan_pieces(info, options, quantised=quantised)
    )
    plan = plan.replace(
        layout="h5md",
        writes_chunks=True,
        flavour=options.flavour,
        direct=None if packed else False,
        **how,
    )
    if packed:  # nobody knows beforehand where compressed chunks end
        plan = plan.replace(alignment_nbytes=1, padding=0.0)
    nbytes = info.n_frames * (8 + 8 + 24 + 36) + 2 * options.topology_nbytes
    for array in plan.arrays:
        each = 12 * array.n_atoms * info.n_frames if contiguous else array.chunk_nbytes
        if is_aligned(array, plan.alignment_nbytes):
            each = math.ceil(each / plan.alignment_nbytes) * plan.alignment_nbytes
        n_chunks = math.ceil(info.n_frames / array.chunk_frames) * array.n_atom_chunks
        nbytes += (1 if contiguous else n_chunks) * each + n_chunks * CHUNK_ENTRY_NBYTES
        if not packed:
            per_row = array.n_atom_chunks * pieces_of_row(12 * array.chunk_atoms)
            nbytes += 4 * info.n_frames * per_row
    return plan.replace(nbytes=nbytes)
