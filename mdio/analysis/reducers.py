"""Reducers: combine the results of blocks into one; associative, for any partition.

A reducer turns the rows of some frames into a state (`lift`), joins the state of earlier frames
with that of later ones (`merge`), and turns the state of all frames into the result (`finish`).
Workers send states, so that an average sends no rows. Reducers have no state of their own and can
be pickled.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import partial, reduce
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mdio.core.errors import BlockError, MdioError, PlanError, error_text
from mdio.core.frames import is_masked

Rows = NDArray[Any]
State = tuple[Any, ...]
NUMBERS_IN_CACHE = 1 << 15
"""Numbers that are gone through several times at once: 256 KiB."""


class Reducer(ABC):
    """Combines rows, one for each frame, into a result."""

    of_one_shape: ClassVar[bool] = False
    """Whether the rows of all frames need to have one shape."""
    keeps_rows: ClassVar[bool] = True
    """Whether a state may hold the rows themselves; they are then copied, since the next frames
    overwrite them."""

    @abstractmethod
    def lift(self, rows: Rows) -> State:
        """Return the state of some frames (at least one).

        Parameters
        ----------
        rows : (F, ...) array
            Overwritten after the call if `keeps_rows` is False.
        """

    @abstractmethod
    def merge(self, earlier: State, later: State) -> State:
        """Return the state of both; may modify the arguments."""

    @abstractmethod
    def finish(self, state: State) -> Rows:
        """Return the result."""


def check_reducer(reducer: Any) -> None:
    """Raise PlanError if it is no reducer."""
    if not isinstance(reducer, Reducer):
        raise PlanError(
            f"the reducer is {reducer!r}; give one of mdio.analysis.reducers, such as Mean()"
        )


RETURNS = {"lift": "the state of the rows", "merge": "the merged state", "finish": "the result"}
"""Names, for messages, of the values that the methods of a reducer return."""


def call_reducer(reducer: Reducer, method: str, *arguments: Any) -> Any:
    """Call a method of a reducer, and return its value, which is neither None nor masked."""
    name = f"{type(reducer).__name__}.{method}()"
    try:
        value = getattr(reducer, method)(*arguments)
    except (MdioError, MemoryError):
        raise
    except Exception as error:  # a user's reducer raises anything
        raise BlockError(
            f"{method}() of the reducer {type(reducer).__name__} failed: {error_text(error)}"
        ) from error
    if value is None:
        raise PlanError(f"{name} returned None; return {RETURNS[method]}")
    if is_masked(value):
        raise PlanError(
            f"{name} returned an array with masked values, whose mask would be lost; return "
            "its .filled(np.nan)"
        )
    return value


class Stack(Reducer):
    """All rows in order: (F, ...)."""

    of_one_shape = True
    keeps_rows = False  # `lift` copies them

    def lift(self, rows: Rows) -> State:
        """Keep a copy of the rows."""
        return ([np.array(rows)],)

    def merge(self, earlier: State, later: State) -> State:
        """Append the later rows to the earlier ones."""
        earlier[0].extend(later[0])
        return earlier

    def finish(self, state: State) -> Rows:
        """Return all rows in one array; each part is dropped once it has been copied."""
        parts = state[0]
        if len(parts) == 1:
            return np.asarray(parts[0])
        shape = (sum(map(len, parts)), *parts[0].shape[1:])
        if any(part.shape[1:] != shape[1:] for part in parts):
            shapes = sorted({part.shape[1:] for part in parts})
            raise BlockError(f"rows of different shapes, {shapes}, cannot be stacked")
        rows = np.empty(shape, np.result_type(*parts))
        parts.reverse()
        n_done = 0
        while parts:
            part = parts.pop()
            rows[n_done : n_done + len(part)] = part
            n_done += len(part)
        return rows


class Sum(Reducer):
    """The sum over all frames; float64 for floats, int64 for whole numbers."""

    of_one_shape = True
    keeps_rows = False

    def lift(self, rows: Rows) -> State:
        return (_wide(_numbers(self, rows)).sum(axis=0),)

    def merge(self, earlier: State, later: State) -> State:
        return (earlier[0] + later[0],)

    def finish(self, state: State) -> Rows:
        """Return the sum, or the counts."""
        return np.asarray(state[0])


class Moments(Reducer):
    """Number of frames, mean, and sum of squared deviations from it, in double precision.

    Merged as in Chan, Golub & LeVeque 1983 (10.1080/00031305.1983.10483115), which loses no digits
    where the mean is far larger than the deviations.
    """

    of_one_shape = True
    keeps_rows = False

    def lift(self, rows: Rows) -> State:
        numbers = _numbers(self, rows)
        wide = np.complex128 if numbers.dtype.kind == "c" else np.float64
        columns = numbers.reshape(len(numbers), math.prod(numbers.shape[1:]))
        means, squares = np.empty(columns.shape[1], wide), np.empty(columns.shape[1])
        n_columns = max(1, NUMBERS_IN_CACHE // max(1, len(columns)))
        for begin in range(0, columns.shape[1], n_columns):
            part = slice(begin, begin + n_columns)
            values: Rows = columns[:, part].astype(wide)
            means[part] = values.mean(axis=0)
            values -= means[part]
            squares[part] = _squared(values).sum(axis=0)
        shape = numbers.shape[1:]
        return len(numbers), means.reshape(shape), squares.reshape(shape)

    def merge(self, earlier: State, later: State) -> State:
        (n_a, mean_a, squares_a), (n_b, mean_b, squares_b) = earlier, later
        n_total = n_a + n_b
        delta = mean_b - mean_a
        mean = mean_a + delta * (n_b / n_total)
        return n_total, mean, squares_a + squares_b + _squared(delta) * (n_a * n_b / n_total)


class Mean(Moments):
    """The mean over all frames."""

    def finish(self, state: State) -> Rows:
        return np.asarray(state[1])


class Variance(Moments):
    """The variance over all frames (divided by the number of frames)."""

    def finish(self, state: State) -> Rows:
        return np.asarray(state[2] / state[0])


class StandardDeviation(Moments):
    """The standard deviation over all frames.

    Parameters
    ----------
    norm
        Whether to sum the variance over the last axis first: the fluctuation of a vector.
    """

    def __init__(self, *, norm: bool = False) -> None:
        self.norm = norm

    def finish(self, state: State) -> Rows:
        variance = state[2] / state[0]
        return np.asarray(np.sqrt(variance.sum(axis=-1) if self.norm else variance))


class Histogram(Sum):
    """The count of all values between each two edges: (len(edges) - 1,) int64.

    Parameters
    ----------
    edges
        Ascending; as `numpy.histogram`, the last edge belongs to its bin. Values beyond the edges,
        and those that are not numbers (NaN), are not counted.
    """

    of_one_shape = False

    def __init__(self, edges: ArrayLike) -> None:
        self.edges = np.asarray(edges, dtype=np.float64)
        if self.edges.ndim != 1 or self.edges.size < 2 or not np.all(np.diff(self.edges) > 0):
            raise PlanError("a histogram needs a list of at least two ascending edges")

    def lift(self, rows: Rows) -> State:
        return (np.histogram(_numbers(self, rows, "biuf"), self.edges)[0].astype(np.int64),)


def result_of(reducer: Reducer, states: Iterable[State]) -> Rows:
    """Return the result of all frames, from the states of blocks in their order."""
    try:
        state = reduce(partial(call_reducer, reducer, "merge"), states)
        result = np.asarray(call_reducer(reducer, "finish", state))
        if result.dtype == object:
            raise TypeError("its finish() returns no array of numbers")
        return result
    except (MdioError, MemoryError):
        raise
    except Exception as error:  # a user's reducer raises anything
        name = type(reducer).__name__
        raise BlockError(f"the reducer {name} failed: {error_text(error)}") from error


def _squared(values: Rows) -> Rows:
    """Return the squares; of complex numbers, those of their absolute values."""
    return np.asarray(np.square(np.abs(values) if values.dtype.kind == "c" else values))


def _numbers(reducer: Reducer, rows: Rows, kinds: str = "biufc") -> Rows:
    """Return rows as an array; raises TypeError if its `dtype.kind` is not in `kinds`."""
    numbers = np.asarray(rows)
    if numbers.dtype.kind in kinds:
        return numbers
    needs = f"{type(reducer).__name__} needs {'numbers' if 'c' in kinds else 'real numbers'}"
    if names := numbers.dtype.names:
        raise TypeError(f"{needs}; return a plain array, not rows with fields ({', '.join(names)})")
    raise TypeError(f"{needs}, not values of {numbers.dtype}")


def _wide(rows: Rows) -> Rows:
    """Return rows in the widest type of their kind, so that sums lose nothing."""
    kind = rows.dtype.kind
    if kind in "biu":
        return np.asarray(rows, dtype=np.int64)
    return np.asarray(rows, dtype=np.complex128 if kind == "c" else np.float64)
