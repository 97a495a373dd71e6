"""The rows of one block as they come: kept in one array, or reduced at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.analysis.reducers import Reducer, Stack, State
from mdio.core.errors import BlockError

__all__ = ["Collected"]


class Collected:
    """What one block has given so far.

    Rows that are kept lie in one array from the first on: what is computed piece by piece is never
    joined, and a kernel can write where its rows shall stay.

    Parameters
    ----------
    reducer
        What becomes of the rows.
    n_frames
        Of the block.
    """

    def __init__(self, reducer: Reducer, n_frames: int) -> None:
        self._reducer = reducer
        self._n_frames = n_frames
        self._keeps = type(reducer) is Stack
        self._rows: NDArray[Any] | None = None
        self._n_kept = 0
        self._room: NDArray[Any] | None = None
        self._state: State | None = None

    def room(self, n_frames: int) -> NDArray[Any] | None:
        """Return where the next rows will stay; None as long as their shape is not known."""
        if self._rows is not None:
            self._room = self._rows[self._n_kept : self._n_kept + n_frames]
        return self._room

    def add(self, rows: NDArray[Any]) -> None:
        """Take the next rows.

        Raises
        ------
        BlockError
            They have another shape than those before.
        """
        if not self._keeps:
            lifted = self._reducer.lift(rows)
            self._state = (
                lifted if self._state is None else self._reducer.merge(self._state, lifted)
            )
            return
        if self._rows is None:
            self._rows = np.empty((self._n_frames, *rows.shape[1:]), rows.dtype)
        if rows.shape[1:] != self._rows.shape[1:]:
            shapes = sorted({self._rows.shape[1:], rows.shape[1:]})
            raise BlockError(f"rows of different shapes, {shapes}, cannot be stacked")
        if rows.dtype != self._rows.dtype:
            self._rows = self._rows.astype(np.result_type(self._rows, rows), copy=False)
        if rows is not self._room:
            self._rows[self._n_kept : self._n_kept + len(rows)] = rows
        self._n_kept += len(rows)

    @property
    def state(self) -> State:
        """The state of all rows."""
        state = ([self._rows],) if self._keeps else self._state
        assert state is not None
        return state
