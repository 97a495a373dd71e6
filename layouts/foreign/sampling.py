"""Which frames the elements of an H5MD tree have, each by its own steps.

H5MD samples every element by itself: positions each frame, velocities every tenth. The frames of
the trajectory are the steps that any of them has; in a frame that lacks a field it is absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

KEPT_NBYTES = 8 << 20
"""Arrays up to this size are read once: some programs store them a number a chunk."""


def child(group: Any, name: str, default: Any = None) -> Any:
    """Return what a group or its attributes have under a name.

    h5py's `get` gives the default for what is there but damaged, too; this raises.
    """
    if name not in group:
        return default
    return group[name]


def require_numbers(array: Any) -> None:
    """Refuse strings, which HDF5 looks for elsewhere in the file; raises ValueError."""
    if array is not None and array.dtype.kind not in "biuf":
        raise ValueError(f"{array.name} holds {array.dtype}, expected numbers")


class Axis:
    """Steps or times of a time-dependent element, in each form that H5MD has.

    An array with a number a frame; or a scalar, the increment, with an attribute ``offset`` for
    the first frame; or nothing, which counts frames. `skip`: numbers before that of the first
    frame.
    """

    def __init__(self, array: Any, factor: float = 1.0, *, skip: int = 0) -> None:
        require_numbers(array)
        self._factor = factor
        self._skip = skip
        self._array = array if array is not None and array.shape else None
        self._start, self._increment = 0.0, 1.0
        self.n_rows: int | None = None
        """Numbers that there are; None if they go on for ever."""
        if self._array is not None:
            if array.ndim != 1:
                raise ValueError(f"{array.name} has shape {array.shape}")
            self.n_rows = int(array.shape[0]) - skip
            if array.size * array.dtype.itemsize <= KEPT_NBYTES:
                self._array = np.asarray(array[...])
        elif array is not None:
            self._start, self._increment = child(array.attrs, "offset", 0), array[()]

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return the numbers of frames ``start:stop``."""
        if self._array is not None:
            values = np.asarray(self._array[start + self._skip : stop + self._skip])
        else:
            values = self._start + np.arange(start, stop) * self._increment
        return values if self._factor == 1 else values * self._factor


@dataclass(frozen=True, slots=True)
class Series:
    """The frames of one element."""

    n_frames: int
    step: Axis | None
    """None where it has none, and frames are those of the positions."""
    time: Axis | None


class Sampling:
    """The frames of all elements together.

    `series`: by element; the positions first, whose steps and times are those of the trajectory
    where all elements have the same.
    Raises ValueError: elements of different frames, whose steps do not tell which is which.
    """

    def __init__(self, series: Mapping[str, Series]) -> None:
        self._series = series
        first = next(iter(series.values()))
        self.n_frames = first.n_frames
        self._rows: dict[str, NDArray[np.int64]] = {}
        self._steps: NDArray[np.int64] | None = None
        self._axes = [(first, np.empty(0, np.int64))]
        if all(_same(first, one) for one in series.values()):
            return
        steps = {}
        for name, one in series.items():
            if one.step is None:
                raise ValueError(
                    f"{name} of {one.n_frames} frames beside positions of {first.n_frames}, "
                    "without steps of its own"
                )
            steps[name] = one.step.read(0, one.n_frames).astype(np.int64)
            if not (np.diff(steps[name]) > 0).all():
                raise ValueError(f"the steps of {name} do not increase, others have other steps")
        self._steps = np.unique(np.concatenate(list(steps.values())))
        self.n_frames = len(self._steps)
        for name, own in steps.items():
            rows = np.full(self.n_frames, -1, np.int64)
            rows[np.searchsorted(self._steps, own)] = np.arange(len(own))
            self._rows[name] = rows
        self._axes = [(one, self._rows[name]) for name, one in series.items()]

    def n_of(self, name: str) -> int:
        """Return in how many frames an element is."""
        return self._series[name].n_frames

    def rows(self, name: str, start: int, stop: int) -> tuple[int, int, NDArray[np.bool_] | None]:
        """Return which rows of an element are in frames ``start:stop``, and which frames have one.

        The rows are neighbours; None for the frames if all have one.
        """
        if not self._rows:
            return start, stop, None
        rows = self._rows[name][start:stop]
        has = rows >= 0
        found = rows[has]
        if not found.size:
            return 0, 0, has
        return int(found[0]), int(found[-1]) + 1, None if has.all() else has

    def steps(self, start: int, stop: int) -> NDArray[Any]:
        """Return the steps of frames ``start:stop``."""
        if self._steps is not None:
            return self._steps[start:stop]
        return (self._axes[0][0].step or Axis(None)).read(start, stop)

    def times(self, start: int, stop: int) -> NDArray[Any]:
        """Return the times (ps) of frames ``start:stop``, of whichever element has them."""
        if not self._rows:
            return (self._axes[0][0].time or Axis(None)).read(start, stop)
        times = np.arange(start, stop, dtype=np.float64)
        for series, rows in reversed(self._axes):
            if series.time is not None:
                here = rows[start:stop]
                has = here >= 0
                if has.any():
                    own = here[has]
                    times[has] = series.time.read(int(own[0]), int(own[-1]) + 1)
        return times


def _same(one: Series, other: Series) -> bool:
    """Return whether two elements have the same frames."""
    if one.n_frames != other.n_frames:
        return False
    if one.step is None or other.step is None or one.step is other.step:
        return True
    for at in range(0, one.n_frames, 1 << 20):
        end = min(at + (1 << 20), one.n_frames)
        if not np.array_equal(one.step.read(at, end), other.step.read(at, end)):
            return False
    return True
