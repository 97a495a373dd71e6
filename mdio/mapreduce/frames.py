"""The trajectory definition: which frames of which trajectories, and how they are counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import PlanError
from mdio.layouts.base import Layout
from mdio.layouts.views.view import Frames as Numbers
from mdio.layouts.views.view import select_frames, times_of

Frames = slice | Sequence[float] | NDArray[Any] | Callable[[NDArray[np.float64]], Any]
"""A slice or a list, of numbers of frames or (floats) of times in ps; or a function of times."""


def choose_frames(layout: Layout, frames: Frames | None) -> Numbers:
    """Return numbers of frames of a layout, ascending.

    `layout`: the trajectory. `frames`: a slice of whole numbers, as Python has it, with a positive
    step; a slice of times (any of the three a float), both ends included; a list of numbers,
    negative ones from the end, or of times, each within rounding of a frame's; or a function that
    gets all times (F,) in ps and returns which frames to take, (F,) bool.
    Raises PlanError: no frame is left, or one that is not there or twice in a list.
    """
    if frames is None:
        frames = slice(None)
    if isinstance(frames, slice):
        parts = (frames.start, frames.stop, frames.step)
        if any(isinstance(part, float | np.floating) for part in parts):
            return select_frames(layout, None, None, None, *parts)
        return select_frames(layout, *parts)
    n_frames = layout.info.n_frames
    if callable(frames):
        time = times_of(layout)
        kept = np.asarray(frames(time))
        if kept.shape != time.shape or kept.dtype != np.bool_:
            raise PlanError(
                f"the function that chooses frames gave {kept.dtype} of shape {kept.shape} for "
                f"{n_frames} frames; expected bool, one a frame"
            )
        found = np.flatnonzero(kept)
    else:
        found = _listed(layout, np.asarray(frames), n_frames)
    if not len(found):
        raise PlanError(f"{layout.path}: none of its {n_frames} frames is chosen")
    steps = np.unique(np.diff(found))
    if len(steps) <= 1:
        step = int(steps[0]) if len(steps) else 1
        return range(int(found[0]), int(found[-1]) + 1, step)
    return found.astype(np.int64)


def _listed(layout: Layout, frames: NDArray[Any], n_frames: int) -> NDArray[np.int64]:
    if frames.ndim != 1 or frames.dtype.kind not in "iuf" or not frames.size:
        raise PlanError("frames are a list of whole numbers, or of times in ps as floats")
    if frames.dtype.kind == "f":
        time = times_of(layout)
        order = np.argsort(time, kind="stable")
        between = (time[order][1:] + time[order][:-1]) / 2
        found = order[np.searchsorted(between, frames)]
        spacing = np.diff(time[order])
        slack = max(1e-6, float(np.median(spacing)) / 100 if len(spacing) else 0.0)
        away = np.abs(time[found] - frames) > slack
        if away.any():
            raise PlanError(f"{layout.path}: it has no frame at {frames[away][0]:g} ps")
    else:
        found = np.where(frames < 0, frames + n_frames, frames).astype(np.int64)
        beyond = (found < 0) | (found >= n_frames)
        if beyond.any():
            raise PlanError(
                f"{layout.path}: there is no frame {frames[beyond][0]}; it has {n_frames} frames"
            )
    unique: NDArray[np.int64] = np.unique(found)
    if len(unique) < len(found):
        raise PlanError(f"{layout.path}: a frame is in the list twice; each is mapped once")
    return unique


@dataclass(slots=True)
class FrameTable:
    """All frames that are mapped: those of one trajectory after those of another."""

    number: NDArray[np.int64]
    """Of each frame in its trajectory, (F,)."""
    time: NDArray[np.float64]
    """ps, (F,)."""
    firsts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))
    """Where the frames of each trajectory begin."""
    labels: tuple[str, ...] = ()
    """Of the trajectories, where they have any."""

    @classmethod
    def of(cls, numbers: Mapping[str, Numbers]) -> FrameTable:
        """Count the frames of trajectories; their times are not known yet."""
        every = [np.asarray(one, np.int64) for one in numbers.values()]
        firsts = np.cumsum([0, *map(len, every)])[:-1]
        number = np.concatenate(every)
        labels = tuple(numbers) if tuple(numbers) != ("",) else ()
        return cls(number, np.zeros(len(number)), firsts, labels)

    def of_trajectory(self, at: NDArray[Any]) -> NDArray[np.int64]:
        """Return which trajectory frames are of, by their place in the table."""
        found: NDArray[np.int64] = np.searchsorted(self.firsts, at, side="right") - 1
        return found
