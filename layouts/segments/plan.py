"""Plans of segments. Pure arithmetic."""

from __future__ import annotations

import math

from mdio.core.errors import PlanError
from mdio.core.frames import TrajectoryInfo
from mdio.layouts.native.encoder import CONTAINERS, encoder_of, native_plan
from mdio.layouts.plan import LayoutPlan, WriteOptions
from mdio.layouts.segments.files import even_split

SEGMENT_NBYTES = 64 << 20
"""Decoded bytes of a segment where no number is asked for."""


def plan_segments(info: TrajectoryInfo, options: WriteOptions) -> LayoutPlan:
    """Plan a folder of segments.

    The container is what was asked for, else the source's own format, else ncdf; the number of
    segments is what was asked for, else so many that each has about 64 MiB decoded.

    Raises PlanError: more segments than frames, none, an unknown container, and what
    `mdio.layouts.native.encoder.native_plan` raises.
    """
    container = options.container
    if container is None:
        own = "xtc" if info.compression == "xtc" else info.layout
        container = own if own in CONTAINERS else "ncdf"
    if container not in CONTAINERS:
        raise PlanError(f"--container is {container!r}; it may be {', '.join(CONTAINERS)}")
    plan = native_plan(container, info, options)
    n_segments = options.segments
    if n_segments is None:
        wanted = math.ceil(info.n_frames * info.frame_nbytes / SEGMENT_NBYTES)
        n_segments = min(max(wanted, 1), info.n_frames)
    if not 1 <= n_segments <= info.n_frames:
        raise PlanError(
            f"{info.path}: {n_segments} segments asked for, but it has {info.n_frames} frames, so "
            f"there can be 1 to {info.n_frames}"
        )
    sizes = even_split(info.n_frames, n_segments)
    if options.expected_frames is not None:
        size = max(1, SEGMENT_NBYTES // info.frame_nbytes)
        full, rest = divmod(info.n_frames, size)
        sizes = (size,) * full + (rest,) * (rest > 0)
        n_segments = len(sizes)
    header_nbytes = encoder_of(container, plan).header_nbytes
    return plan.replace(
        layout="segments",
        segment_frames=sizes,
        piece_frames=min(plan.piece_frames, sizes[0]),
        n_files=n_segments,
        nbytes=plan.nbytes + (n_segments - 1) * header_nbytes,
    )
