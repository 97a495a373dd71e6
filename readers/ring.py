"""Memory that is read into again and again: fresh pages cost more than the bytes put into them."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.frames import FrameBlock, TrajectoryInfo

FloatArray = NDArray[np.float32]


class _Memory(np.ndarray[Any, Any]):
    """An array that owns its memory, of a type of its own.

    NumPy lets a view of a view refer to the array that owns the memory, but stops where the type
    changes. So each plain view of a row of this is referred to by what is made of it, and
    `sys.getrefcount` of the row says whether anybody has any of it.
    """

    def rows(self, n_rows: int) -> list[FloatArray]:
        return [row.view(np.ndarray) for row in self[:n_rows]]


@dataclass(slots=True)
class FrameBuffer:
    """A block to read into, and its per-atom arrays frame by frame."""

    block: FrameBlock
    memory: dict[str, _Memory]

    def rows(self, field: str) -> Iterable[FloatArray | None]:
        """Return the frames of positions, velocities or forces; None each if there are none."""
        n_frames = self.block.n_frames
        if field not in self.memory:
            return [None] * n_frames
        return self.memory[field].rows(n_frames)


class _Buffer:
    """The per-atom arrays of some frames, and the room that was made of them last."""

    def __init__(self, fields: tuple[str, ...], n_frames: int, n_atoms: int) -> None:
        self.n_frames = n_frames
        self._memory = {name: _Memory((n_frames, n_atoms, 3), np.float32) for name in fields}
        self._room = self._made(n_frames)
        self._idle = self._n_references()

    def _n_references(self) -> list[int]:
        return [sys.getrefcount(self._room), *map(sys.getrefcount, self._memory.values())]

    def is_idle(self) -> bool:
        """Return whether nobody has the room any more, nor any array of a frame."""
        return self._n_references() == self._idle

    def room(self, n_frames: int) -> FrameBuffer:
        if self._room.block.n_frames != n_frames:
            self._room = self._made(n_frames)
        return self._room

    def _made(self, n_frames: int) -> FrameBuffer:
        block = FrameBlock.empty(n_frames, 0)
        for name, memory in self._memory.items():
            setattr(block, name, memory.view(np.ndarray)[:n_frames])
        return FrameBuffer(block, self._memory)


class BufferRing:
    """Gives out blocks to read into, in memory that nobody looks at any more.

    Whoever keeps an array of a block, or a view of one, keeps its memory: that is not given out
    again, and left to him if more is needed.

    `info`, `fields`: of the layout: what a block has. `n_buffers`: how many are kept at most.
    """

    def __init__(self, info: TrajectoryInfo, fields: tuple[str, ...], n_buffers: int) -> None:
        there = {"positions": True, "velocities": info.has_velocities, "forces": info.has_forces}
        self._fields = tuple(
            name for name, has in there.items() if has and (name in fields or name == "positions")
        )
        self._n_atoms = info.n_atoms
        self._n_buffers = n_buffers
        self._buffers: list[_Buffer] = []

    def take(self, n_frames: int) -> FrameBuffer:
        """Return room for `n_frames`; nobody minds what becomes of what is in it."""
        for buffer in self._buffers:
            if buffer.n_frames >= n_frames and buffer.is_idle():
                return buffer.room(n_frames)
        if len(self._buffers) >= self._n_buffers:
            idle = [buffer for buffer in self._buffers if buffer.is_idle()]
            left = idle[0] if idle else self._buffers[0]
            self._buffers = [buffer for buffer in self._buffers if buffer is not left]
        buffer = _Buffer(self._fields, n_frames, self._n_atoms)
        self._buffers.append(buffer)
        return buffer.room(n_frames)
