"""The program of a map-reduce (map, reduce, combiner), and the frames that it maps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.analysis.kernels.kernel import (
    BlockFunction,
    Kernel,
    UserKernel,
    check_takes,
    field_names,
    kernel_name,
)
from mdio.core.errors import PlanError
from mdio.core.words import number_text
from mdio.layouts.base import Layout
from mdio.layouts.views.view import FrameNumbers, read_times, select_frames, time_tolerance_ps
from mdio.mapreduce.pairs import KeyValuePairs, convert_values

FrameSelector = slice | Sequence[float] | NDArray[Any] | Callable[[NDArray[np.float64]], Any]
"""A slice or a list, of numbers of frames or (floats) of times in ps; or a function of times."""


def choose_frames(layout: Layout, frames: FrameSelector | None) -> FrameNumbers:
    """Return numbers of frames of a layout, ascending.

    `layout`: the trajectory. `frames`: a slice of whole numbers, as in Python, with a positive
    step; a slice of times (any of the three a float), both ends included; a list of numbers,
    negative ones from the end, or of times, each within rounding of a frame's; or a function that
    gets all times (F,) in ps and returns a mask, (F,) bool.
    Raises PlanError: no frame is chosen; or the list has a frame that does not exist, or a frame
    twice.
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
        time = read_times(layout)
        mask = np.asarray(frames(time))
        if mask.shape != time.shape or mask.dtype != np.bool_:
            raise PlanError(
                f"the function that chooses frames gave {mask.dtype} of shape {mask.shape} for "
                f"{n_frames} frames; expected bool, one per frame"
            )
        numbers = np.flatnonzero(mask)
    else:
        numbers = _frames_of_list(layout, np.asarray(frames), n_frames)
    if not len(numbers):
        raise PlanError(f"{layout.path}: none of its {n_frames} frames is chosen")
    steps = np.unique(np.diff(numbers))
    if len(steps) <= 1:
        step = int(steps[0]) if len(steps) else 1
        return range(int(numbers[0]), int(numbers[-1]) + 1, step)
    return numbers.astype(np.int64)


def _frames_of_list(layout: Layout, frames: NDArray[Any], n_frames: int) -> NDArray[np.int64]:
    if frames.ndim != 1 or frames.dtype.kind not in "iuf" or not frames.size:
        raise PlanError("frames are a list of whole numbers, or of times in ps as floats")
    if frames.dtype.kind == "f":
        time = read_times(layout)
        order = np.argsort(time, kind="stable")
        midpoints = (time[order][1:] + time[order][:-1]) / 2
        numbers = order[np.searchsorted(midpoints, frames)]
        spacing = np.diff(time[order])
        share = float(np.median(spacing)) / 100 if len(spacing) else 0.0
        tolerance = max(1e-6, share, time_tolerance_ps(time))
        is_absent = ~(np.abs(time[numbers] - frames) <= tolerance)  # NaN, too
        if is_absent.any():
            raise PlanError(
                f"{layout.path}: it has no frame at {number_text(frames[is_absent][0])} ps"
            )
    else:
        numbers = np.where(frames < 0, frames + n_frames, frames).astype(np.int64)
        is_absent = (numbers < 0) | (numbers >= n_frames)
        if is_absent.any():
            raise PlanError(
                f"{layout.path}: there is no frame {frames[is_absent][0]}; it has {n_frames} frames"
            )
    unique: NDArray[np.int64] = np.unique(numbers)
    if len(unique) < len(numbers):
        raise PlanError(f"{layout.path}: a frame is in the list twice; each is mapped once")
    return unique


@dataclass(slots=True)
class MappedFrames:
    """All mapped frames, one trajectory after the other."""

    frame_numbers: NDArray[np.int64]
    """Number of each frame in its trajectory, (F,)."""
    time: NDArray[np.float64]
    """Time of each frame, ps, (F,)."""
    firsts: NDArray[np.int64]
    """Index of the first frame of each trajectory."""
    labels: tuple[str, ...]
    """Labels of the trajectories, if they have any."""

    @classmethod
    def of(cls, frames: Mapping[str, FrameNumbers]) -> MappedFrames:
        """Return the frames of trajectories by label; times are zeros until they are read."""
        by_trajectory = [np.asarray(numbers, np.int64) for numbers in frames.values()]
        firsts = np.cumsum([0, *map(len, by_trajectory)])[:-1]
        frame_numbers = np.concatenate(by_trajectory)
        labels = tuple(frames) if tuple(frames) != ("",) else ()
        return cls(frame_numbers, np.zeros(len(frame_numbers)), firsts, labels)

    @property
    def edges(self) -> list[int]:
        """Index of the first frame of each trajectory, and the number of frames."""
        return [*self.firsts.tolist(), len(self.frame_numbers)]

    def trajectory_numbers(self, frame_index: NDArray[Any]) -> NDArray[np.int64]:
        """Return the number of the trajectory of each of the frames."""
        return np.asarray(np.searchsorted(self.firsts, frame_index, side="right") - 1)


COMBINERS = {"sum": np.add, "min": np.minimum, "max": np.maximum}


@dataclass(frozen=True, slots=True)
class Program:
    """A map and a reduce, and how they are called; see `mdio.mapreduce.driver`."""

    kernel: Kernel
    reduce: Callable[..., Any]
    combine: Callable[..., Any] | str | None = None
    per_frame: bool = False
    frames: FrameSelector | None = None
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        map: Kernel | BlockFunction | Any,
        reduce: Callable[..., Any] | None = None,
        combine: Callable[..., Any] | str | None = None,
        per_frame: bool | None = None,
        frames: FrameSelector | None = None,
        select: str | None = None,
        fields: tuple[str, ...] | None = None,
    ) -> Program:
        """Return a program; for arguments that are None, attributes of the map's object are used.

        Raises PlanError: there is no map or no reduce, or it takes other arguments.
        """
        map_object = map if isinstance(map, Kernel) else getattr(map, "__self__", None)
        if not callable(map) and hasattr(map, "map"):  # a program
            map_object, map = map, map.map
        if isinstance(map, Kernel):
            kernel: Kernel = map
            if select is not None or fields is not None:
                noun = "fields" if select is None else "selection"
                raise PlanError(f"give the {noun} to the program: {type(map).__name__} has its own")
        elif callable(map) and not isinstance(map, type):
            selection = select if select is not None else getattr(map_object, "select", None)
            own_fields = field_names(getattr(map_object, "fields", ("positions",)))
            more_fields = () if fields is None else field_names(fields)
            kernel = UserKernel(map, selection, tuple(dict.fromkeys((*own_fields, *more_fields))))
        elif isinstance(map, type):
            raise PlanError(
                f"the map is the class {map.__name__}; make a program of it: "
                f"map={map.__name__}(...)"
            )
        else:
            raise PlanError(
                f"the map is {map!r}; give a function that takes a block of frames and returns "
                "keys, rows and values, or an object with the methods map and reduce"
            )
        reduce = reduce if reduce is not None else getattr(map_object, "reduce", None)
        if not callable(reduce):
            raise PlanError(
                "there is no reduce; give reduce=, a function of a key, frames, times and values, "
                "or a method reduce beside the map"
            )
        check_takes(reduce, 4, "the reduce is called as reduce(key, frame, time, values)")
        combine = combine if combine is not None else getattr(map_object, "combine", None)
        if combine is not None and not callable(combine) and combine not in COMBINERS:
            raise PlanError(f"combine is {combine!r}; give one of {', '.join(COMBINERS)}")
        per_frame = (
            bool(getattr(map_object, "per_frame", False)) if per_frame is None else per_frame
        )
        own_frames, notes = getattr(map_object, "frames", None), tuple[str, ...]()
        if frames is None:
            frames = own_frames
        elif own_frames is not None:
            name = type(map_object).__name__
            notes = (f"the requested frames are mapped, in place of those of {name}.frames",)
        return cls(kernel, reduce, combine, per_frame, frames, notes)


def combine_pairs(combine: Callable[..., Any] | str, pairs: KeyValuePairs) -> KeyValuePairs:
    """Combine sorted pairs into fewer, before they are sent."""
    if isinstance(combine, str):
        firsts = pairs.key_edges()[:-1]
        combiner = COMBINERS[combine]
        values = {name: combiner.reduceat(column, firsts) for name, column in pairs.values.items()}
    else:
        firsts, combined_values = combine(pairs.keys, pairs.values)
        firsts = np.asarray(firsts, np.int64)
        values = convert_values(combined_values, len(firsts))
    edges = np.array([-1, *firsts, len(pairs.keys)])
    if not np.all(np.diff(edges) > 0):
        name = kernel_name(combine)  # type: ignore[arg-type]
        raise ValueError(f"{name} gave first rows that do not ascend or do not exist")
    columns = [pairs.keys[firsts], pairs.frame_index[firsts], *values.values()]
    return KeyValuePairs(tuple(values), columns)
