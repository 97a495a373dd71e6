"""Which layouts are worth a trial for a source and an analysis. Pure: no disk, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.advisor.model.profile import BEHAVES_LIKE, access_model
from mdio.core.errors import PlanError
from mdio.core.frames import TrajectoryInfo
from mdio.layouts.plan import DEFAULT_STRIPE_NBYTES, WriteOptions
from mdio.layouts.registry import writer_class

GROUP = "selection"
"""What the stored group of the analysed atoms is called."""

WORTH_A_GROUP = 0.5
"""A group is stored if it has at most this share of the atoms."""

PLAIN_CONTAINER = "dcd"
"""Floats as they are in memory, in frames of one size."""
SEGMENT_NBYTES = 64 << 20
"""Decoded bytes of a segment, unless there are as many segments as ranks anyway."""


@dataclass(frozen=True)
class Group:
    """The atoms that the analysis reads, as a group to be stored."""

    selection: str
    indices: NDArray[np.int64] = field(repr=False)


@dataclass(frozen=True)
class Candidate:
    """A layout to try."""

    name: str
    layout: str
    behaves_like: str
    to: str | None = None
    """What to convert into; None: nothing is converted."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of `mdio.convert`, but groups."""
    group: Group | None = None
    chunk_frames: int | None = None
    segments: int | None = None
    stripe_nbytes: int = DEFAULT_STRIPE_NBYTES

    @property
    def command_options(self) -> dict[str, str]:
        """Options of ``mdio convert``."""
        words = {f"--{name}": str(value) for name, value in self.options.items()}
        if self.group is not None:
            words["--group"] = f"{GROUP}={self.group.selection}"
        return words


def as_is(info: TrajectoryInfo) -> Candidate:
    """Return the source as it is, read with mdio's own reader."""
    alike = {**BEHAVES_LIKE, "segments": "segments", "chain": "segments"}
    return Candidate("as-is", "as-is", alike.get(info.layout, "xtc-shared"))


def local_copy() -> Candidate:
    """Return the source, copied to a disk of each node first.

    In a trial the sample is copied as one segment, which is the same file of fewer frames.
    """
    return Candidate("local-copy", "local-copy", "segments", to="segments", segments=1)


def candidates(
    info: TrajectoryInfo,
    container: str | None,
    group: Group | None,
    ranks: int,
    allow_lossy: float | None = None,
) -> list[Candidate]:
    """Return what the source could be converted into, the simpler first.

    `info`, `container`: the source, and the format of its files, if frames of them can be copied
    as bytes. `group`: the atoms that the analysis reads, if they are fewer than all.
    `ranks`: segments are one a rank, or more of them if they would be large. `allow_lossy`: a step
    in angstrom that positions may be rounded to; None = nothing may be lost.
    """
    if group is not None and len(group.indices) > WORTH_A_GROUP * info.n_atoms:
        group = None
    n_segments = segments_for(info.n_frames, info.frame_nbytes, ranks)
    found = []
    if container is not None:
        found.append(_segments("segments", n_segments, {}))
    if container != PLAIN_CONTAINER:
        plain = {"container": PLAIN_CONTAINER}
        found.append(_segments(f"segments of {PLAIN_CONTAINER}", n_segments, plain))
    found.append(_chunked(info, "h5md", "h5md", group, {}))
    found.append(_chunked(info, "zarr", "zarr", group, {}))
    if info.xtc_integers:
        found.append(_chunked(info, "zarr raw floats", "zarr", group, {"precision": "none"}))
    if allow_lossy is not None:
        name = f"zarr precision {allow_lossy:g}"
        found.append(_chunked(info, name, "zarr", group, {"precision": allow_lossy}))
    return found


def segments_for(n_frames: int, frame_nbytes: int, ranks: int) -> int:
    """Return how many segments: one a rank, or more of them if they would be large."""
    wanted = max(ranks, round(frame_nbytes * n_frames / SEGMENT_NBYTES))
    return max(1, min(wanted, n_frames))


def _segments(name: str, n_segments: int, options: Mapping[str, Any]) -> Candidate:
    return Candidate(
        name, "segments", "segments", to="segments", options=options, segments=n_segments
    )


def _chunked(
    info: TrajectoryInfo, name: str, layout: str, group: Group | None, options: Mapping[str, Any]
) -> Candidate:
    """Plan the whole output, so that a trial of a few frames has the same chunks."""
    wanted = WriteOptions(
        precision=options.get("precision"),
        groups={} if group is None else {GROUP: len(group.indices)},
    )
    try:
        plan = writer_class(layout).plan_for(info, wanted)
        chunk_frames: int | None = plan.array("trajectory", "positions").chunk_frames
        stripe = plan.stripes.stripe_nbytes
    except (PlanError, KeyError):  # the trial will tell what is wrong
        chunk_frames, stripe = None, DEFAULT_STRIPE_NBYTES
    return Candidate(
        name,
        layout,
        access_model(layout),
        to=layout,
        options=options,
        group=group,
        chunk_frames=chunk_frames,
        stripe_nbytes=stripe,
    )
