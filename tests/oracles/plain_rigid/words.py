"""The words of a section of a rigid chunk, in all its frames."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from oracles.plain_rigid.description import LOWEST, USES, Class

Bytes = NDArray[np.uint8]
Array = NDArray[Any]


class Section:
    """Blocks that share their words, of which `silent` frames have none."""

    def __init__(self, words: list[Bytes], silent: Array, lanes: int) -> None:
        self.silent, self.lanes = silent, lanes
        n_bytes = np.array([w.size for w in words])
        short = np.where(silent, n_bytes > 0, n_bytes < 4 * lanes)
        if np.any(n_bytes % 2) or np.any(short):
            raise ValueError("the words of a frame do not fit its sections")
        room = np.zeros((len(words), n_bytes.max(initial=0) + 6 * lanes), np.uint8)
        for row, w in zip(room, words, strict=True):
            row[: w.size] = w
        self.words, self.ends = room.view("<u2").astype(np.int64), n_bytes // 2
        states = room[:, : 4 * lanes].copy().view("<u4")
        self.states, self.next = states.astype(np.int64), np.full(len(words), 2 * lanes)

    def symbols(self, c: Class, stream: int, contexts: Array | None, n: int, told: Array) -> Array:
        """Return the symbols of one number of `n` atoms, in the frames `told`."""
        first, count, bits = USES[c.kind][stream]
        tables = np.stack(c.tables[first : first + count])
        made = np.zeros((len(self.states), n), np.int64)
        rows = told[:, None]
        for begin in range(0, n if told.size else 0, self.lanes):
            width = min(self.lanes, n - begin)
            x = self.states[told, :width]
            which = 0 if contexts is None else contexts[told, begin : begin + width]
            symbol, frequency, bias = np.moveaxis(tables[which, :, x & ((1 << bits) - 1)], -1, 0)
            made[told, begin : begin + width] = symbol
            x = frequency * (x >> bits) + bias
            low = x < LOWEST
            places = self.next[told, None] + np.cumsum(low, axis=1) - low
            x = np.where(low, x << 16 | self.words[rows, places], x)
            self.states[told, :width] = x & 0xFFFFFFFF
            self.next[told] += low.sum(axis=1)
            if np.any(self.next[told] > self.ends[told]):
                raise ValueError("the words of a frame end too early")
        return made

    def ended(self) -> bool:
        """Return whether all words have been used up."""
        told = ~self.silent
        all_read = np.all(self.next[told] == self.ends[told])
        return bool(all_read and np.all(self.states[told] == LOWEST))
