"""The rows of one block as they come: kept in one array, written to shared memory, or reduced."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mdio.analysis.reducers import Reducer, Stack, State
from mdio.core.errors import BlockError

if TYPE_CHECKING:
    from mdio.parallel.shared_rows import SharedRows


class Collected:
    """What one block has given so far.

    Rows that are kept lie in one array from the first on: what is computed piece by piece is never
    joined, and a kernel can write where its rows shall stay.

    `reducer`: what becomes of the rows. `n_frames`: of the block. `shared`: where rows that are
    kept may go instead, if it accepts them. `first_row`: which of the shared rows is that of the
    block's first frame.
    """

    def __init__(
        self, reducer: Reducer, n_frames: int, shared: SharedRows | None = None, first_row: int = 0
    ) -> None:
        self._reducer = reducer
        self._n_frames = n_frames
        self._shared = shared
        self._first_row = first_row
        self._keeps = type(reducer) is Stack
        self._kept: _Kept | _Shared | None = None
        self._state: State | None = None
        self.row_shape: tuple[int, ...] | None = None
        """Of the rows that have come."""

    def room(self, n_frames: int) -> NDArray[Any] | None:
        """Return where to put the next rows; None as long as their shape is not known."""
        return None if self._kept is None else self._kept.room(n_frames)

    def add(self, rows: NDArray[Any]) -> None:
        """Take the next rows.

        Raises BlockError: they have another shape than those before.
        """
        shape = rows.shape[1:]
        if self.row_shape is None:
            self.row_shape = shape
        elif shape != self.row_shape and self._reducer.of_one_shape:
            raise BlockError(f"rows of different shapes, {self.row_shape} and then {shape}")
        if not self._keeps:
            lifted = self._reducer.lift(rows)
            self._state = (
                lifted if self._state is None else self._reducer.merge(self._state, lifted)
            )
            return
        if self._kept is None:
            self._kept = self._start(rows)
        if rows.dtype != self._kept.dtype:
            self._kept = self._kept.widened(np.result_type(self._kept.dtype, rows))
        self._kept.add(rows)

    def _start(self, rows: NDArray[Any]) -> _Kept | _Shared:
        shape, dtype = rows.shape[1:], rows.dtype
        if self._shared is not None and self._shared.accepts(shape, dtype):
            return _Shared(self._shared, self._first_row, (self._n_frames, *shape), dtype)
        return _Kept(np.empty((self._n_frames, *shape), dtype), 0)

    @property
    def state(self) -> State | None:
        """The state of all rows; None if they are among the shared ones."""
        return self._kept.state if self._kept is not None else self._state


class _Kept:
    """Rows in an array of this process."""

    def __init__(self, rows: NDArray[Any], n_kept: int) -> None:
        self._rows = rows
        self._n_kept = n_kept
        self._room: NDArray[Any] | None = None
        self.dtype = rows.dtype

    def room(self, n_frames: int) -> NDArray[Any]:
        self._room = self._rows[self._n_kept : self._n_kept + n_frames]
        return self._room

    def add(self, rows: NDArray[Any]) -> None:
        if rows is not self._room:
            self._rows[self._n_kept : self._n_kept + len(rows)] = rows
        self._n_kept += len(rows)

    def widened(self, dtype: np.dtype[Any]) -> _Kept:
        return _Kept(self._rows.astype(dtype, copy=False), self._n_kept)

    @property
    def state(self) -> State:
        return ([self._rows],)


class _Shared:
    """Rows that are written to memory of the parent; those of one read are computed in a buffer."""

    def __init__(
        self, shared: SharedRows, first: int, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> None:
        self._shared = shared
        self._first = first
        self._at = first
        self._shape = shape
        self._room = np.empty((0, *shape[1:]), dtype)
        self.dtype = dtype

    def room(self, n_frames: int) -> NDArray[Any]:
        if len(self._room) < n_frames:
            self._room = np.empty((n_frames, *self._shape[1:]), self.dtype)
        return self._room[:n_frames]

    def add(self, rows: NDArray[Any]) -> None:
        self._shared.write(self._at, rows)
        self._at += len(rows)

    def widened(self, dtype: np.dtype[Any]) -> _Kept:
        """Take back what has been written: the parent's rows are all of one type."""
        n_kept = self._at - self._first
        rows = np.empty(self._shape, dtype)
        rows[:n_kept] = self._shared.read(self._first, self._at)
        return _Kept(rows, n_kept)

    @property
    def state(self) -> None:
        return None
