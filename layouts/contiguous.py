"""Plans of arrays without chunks: each lies in the file in one piece, frame after frame.

Nothing is stored beside the frames, frames of any number are one read, and any program that knows
where the array begins can map it into memory. In return such arrays cannot be compressed, and the
pieces of two workers may meet within a stripe. Our checksums are of runs of frames, which are to
plans and readers what chunks are elsewhere (``--chunk-frames`` says how long). Pure arithmetic.
"""

from __future__ import annotations

from dataclasses import replace

from mdio.core.errors import PlanError
from mdio.core.frames import TrajectoryInfo
from mdio.layouts.chunk_shapes import MAX_PADDING, plan_padding
from mdio.layouts.plan import LayoutPlan, WriteOptions, plan_pieces

__all__ = ["plan_contiguous"]


def plan_contiguous(info: TrajectoryInfo, options: WriteOptions) -> LayoutPlan:
    """Plan arrays without chunks; as `mdio.layouts.plan.plan_pieces` with chunks.

    Raises PlanError: compression, precision or chunks of a part of the atoms are asked for too.
    """
    precision = None if options.precision in ("auto", "none") else options.precision
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
