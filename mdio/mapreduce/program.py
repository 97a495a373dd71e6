"""What a map-reduce computes: a map, a reduce, and perhaps a combiner between them.

The trajectory definition: which frames of which trajectories, and how they are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.analysis.kernels.kernel import BlockFunction, Kernel, UserKernel, kernel_name
from mdio.core.errors import PlanError
from mdio.layouts.base import Layout
from mdio.layouts.views.view import Frames as Numbers
from mdio.layouts.views.view import select_frames, times_of
from mdio.mapreduce.pairs import KeyValuePairs, convert_values

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
class MappedFrames:
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
    def of(cls, numbers: Mapping[str, Numbers]) -> MappedFrames:
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


COMBINERS = {"sum": np.add, "min": np.minimum, "max": np.maximum}


@dataclass(frozen=True, slots=True)
class Program:
    """A map and a reduce, and how they want to be called; see `mdio.mapreduce.driver`."""

    kernel: Kernel
    reduce: Callable[..., Any]
    combine: Callable[..., Any] | str | None = None
    per_frame: bool = False
    frames: Frames | None = None

    @classmethod
    def of(
        cls,
        map: Kernel | BlockFunction,
        reduce: Callable[..., Any] | None = None,
        combine: Callable[..., Any] | str | None = None,
        per_frame: bool | None = None,
        frames: Frames | None = None,
        select: str | None = None,
        fields: tuple[str, ...] | None = None,
    ) -> Program:
        """Put a program together; what is not given is asked of the object that has the map.

        Raises PlanError: there is no map or no reduce.
        """
        owner = map if isinstance(map, Kernel) else getattr(map, "__self__", None)
        if isinstance(map, Kernel):
            kernel: Kernel = map
            if select is not None:
                raise PlanError(
                    f"give the selection to the program: {type(map).__name__} has its own"
                )
        elif callable(map) and not isinstance(map, type):
            chosen = select if select is not None else getattr(owner, "select", None)
            wanted: tuple[str, ...] = getattr(owner, "fields", ("positions",))
            kernel = UserKernel(map, chosen, tuple(fields or wanted))
        else:
            if isinstance(map, type):
                raise PlanError(
                    f"the map is the class {map.__name__}; make a program of it and give its map: "
                    f"map={map.__name__}(...).map"
                )
            raise PlanError(
                f"the map is {map!r}; give a function that takes a block of frames and returns "
                "keys, rows and values"
                + (", such as its method: map=program.map" if hasattr(map, "map") else "")
            )
        reduce = reduce if reduce is not None else getattr(owner, "reduce", None)
        if not callable(reduce):
            raise PlanError(
                "there is no reduce; give reduce=, a function of a key, frames, times and values, "
                "or a method reduce beside the map"
            )
        combine = combine if combine is not None else getattr(owner, "combine", None)
        if combine is not None and not callable(combine) and combine not in COMBINERS:
            raise PlanError(f"combine is {combine!r}; give one of {', '.join(COMBINERS)}")
        per_frame = bool(getattr(owner, "per_frame", False)) if per_frame is None else per_frame
        frames = frames if frames is not None else getattr(owner, "frames", None)
        return cls(kernel, reduce, combine, per_frame, frames)


@dataclass(frozen=True, slots=True)
class Combiner:
    """Makes fewer pairs of sorted ones, before they travel."""

    combine: Callable[..., Any] | str

    def __call__(self, pairs: KeyValuePairs) -> KeyValuePairs:
        """Return what is left of the sorted pairs of some frames."""
        if isinstance(self.combine, str):
            firsts = pairs.groups()[:-1]
            join = COMBINERS[self.combine]
            values = {name: join.reduceat(one, firsts) for name, one in pairs.values.items()}
        else:
            firsts, given = self.combine(pairs.keys, pairs.values)
            firsts = np.asarray(firsts, np.int64)
            values = convert_values(given, len(firsts))
        columns = [pairs.keys[firsts], pairs.at[firsts], *values.values()]
        if len(firsts) and not (firsts.min() >= 0 and np.all(np.diff(firsts) > 0)):
            raise ValueError(f"{kernel_name(self.combine)} gave rows that do not ascend")  # type: ignore[arg-type]
        return KeyValuePairs(tuple(values), columns)
