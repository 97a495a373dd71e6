"""The manifest of a folder of segments: read and checked, and known again."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from mdio.core.errors import CorruptLayoutError, PlanError
from mdio.core.files.marks import manifest_in
from mdio.core.files.regular import read_regular
from mdio.core.frames import TrajectoryInfo
from mdio.layouts.manifest import check_manifest
from mdio.layouts.native.encoder import CONTAINERS, encoder_of, native_plan
from mdio.layouts.plan import LayoutPlan, WriteOptions
from mdio.layouts.segments.files import MANIFEST, even_split


def read_manifest(path: Path, layout: str) -> dict[str, Any]:
    """Return the manifest of a folder of segments; raises CorruptLayoutError."""
    where = path / MANIFEST
    try:
        manifest = json.loads(read_regular(where))
    except FileNotFoundError as error:
        raise CorruptLayoutError(
            f"{path}: it has no {MANIFEST}, so it was not finished or is not a folder of "
            "segments; split or convert the source again"
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise CorruptLayoutError(
            f"{where}: it cannot be read ({error}); split or convert the source again"
        ) from error
    from mdio.layouts.native.encoder import CONTAINERS  # other folders are looked at, too

    manifest = check_manifest(manifest, path)
    container, fields = manifest.get("container"), manifest.get("fields")
    if manifest["layout"] != layout or container not in CONTAINERS or not isinstance(fields, list):
        raise CorruptLayoutError(
            f"{where}: it describes the layout {manifest['layout']!r} with {fields!r} in files "
            f"of format {container!r}, expected {layout!r} with one of "
            f"{', '.join(CONTAINERS)}; split or convert the source again"
        )
    return manifest


def written_by_mdio(folder: Path) -> bool:
    """Return whether a folder has segments that mdio wrote; False for whatever else is there."""
    found = manifest_in(folder)
    return found is not None and found.get("layout") == "segments"


def state_of(path: Path) -> tuple[int, ...] | None:
    """Return what differs between a file and one that has taken its name."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


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
