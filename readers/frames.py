"""A cache of decoded frames between a layout and a reader that asks for one frame at a time.

Buffers are used again, since the kernel takes longer to clear fresh pages than it takes to fill
them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.frames import FIELDS, FrameBlock, TrajectoryInfo, uninitialised_array
from mdio.layouts.base import Layout

FloatArray = NDArray[np.float32]

RUN_NBYTES = 2 << 20
"""Decoded bytes read at a time: enough to make a read's overhead small, little enough to stay in a
processor's cache until the frames are used."""
MAX_UNIT_NBYTES = 256 << 20
"""A compressed chunk larger than this is not kept in memory for the sake of one frame."""
MAX_NEAR_FRAMES = 4
"""A jump up to this length counts as sequential: the frames between cost less than a call."""
MIN_NEAR_JUMPS = 2
"""So many near jumps in a row, after a longer one, before a run is read: random frames may be near
each other, too, and a run costs as much as many single frames."""
MIN_LONG_RUN_FRAMES = 8
"""In runs of at least this many frames, the one that will be used last is copied, so that the
run's buffer is free for the next run while it is still in a processor's cache."""
N_BUFFERS = 2
"""One that the caller still uses, and one that it gets next."""

Frame = tuple[FloatArray, FloatArray | None, FloatArray | None, FloatArray, float, int]
"""Positions, velocities and forces of one frame, which belong to the caller, who may change them;
its box, (6,), zeros if it has none, to be copied; its time and its step."""


def _split_frames(buffer: FrameBuffer) -> list[Frame | None]:
    block, arrays = buffer.block, buffer.arrays
    if len(block.time) == 1:  # a jump: building the lists below would take as long as the read
        frame = (
            arrays["positions"].row(0),
            arrays["velocities"].row(0) if "velocities" in arrays else None,
            arrays["forces"].row(0) if "forces" in arrays else None,
        )
        return [(*frame, block.box[0], block.time.item(), block.step.item())]
    rows = range(len(block.time))
    per_atom = [
        map(arrays[name].row, rows) if name in arrays else [None] * len(rows) for name in FIELDS
    ]
    return list(zip(*per_atom, block.box, block.time.tolist(), block.step.tolist(), strict=True))


class FrameCache:
    """Holds the last run of frames read from a layout, and predicts which are read next.

    Sequential access, forwards or backwards, reads complete chunks, several if they are small. A
    jump (and, in uncompressed layouts, the first step after it) reads one frame if it can be read
    or decoded alone, otherwise its chunk.

    Frames are handed out as views, each once, so that the caller may change them: a frame that is
    requested again is read again. From then on, and in chunks that were decoded for a jump, frames
    stay in the cache, and the caller must copy them.
    """

    def __init__(self, layout: Layout) -> None:
        info = layout.info
        self._layout = layout
        self._n_frames = info.n_frames
        self._unit_frames = min(info.chunk_frames or 1, max(1, info.n_frames))
        unit_nbytes = max(1, self._unit_frames * info.frame_nbytes)
        self._is_compressed = info.compression is not None or info.precision is not None
        decodes_chunks = (
            self._is_compressed and info.compression not in layout.facts.single_frame_compressions
        )
        self._jump_frames = (
            self._unit_frames if decodes_chunks and unit_nbytes <= MAX_UNIT_NBYTES else 1
        )
        # Any frames of uncompressed chunks can be read.
        if unit_nbytes > (MAX_UNIT_NBYTES if self._is_compressed else RUN_NBYTES):
            self._unit_frames = 1
            unit_nbytes = info.frame_nbytes
        self._run_frames = self._unit_frames * max(1, RUN_NBYTES // unit_nbytes)
        self._run_buffers = BufferPool(info, layout.fields)
        self._single_frames = BufferPool(info, layout.fields)
        self._start = self._stop = 0
        self._frames: list[Frame | None] = []
        self._caches_all = False
        self._last_frame = -1
        self._n_near_jumps = 0
        self._last_jump = self._prefetched_step = 0
        """Distance of the last two frames; and the step of the prefetched runs: 1 or -1 without
        gaps, the length of equal jumps, or 0 if nothing is prefetched."""
        self.must_copy = False
        """Whether frames stay in the cache, so that the caller must copy them."""

    def rewind(self) -> None:
        """Prepare for reading frame 0 next."""
        self._last_frame = -1
        self._caches_all = False

    def frame(self, frame: int) -> Frame:
        """Return a frame; unless `must_copy`, its arrays belong to the caller.

        Raises the errors of `Layout.read`.
        """
        index = frame - self._start
        is_cached = 0 <= index < len(self._frames)
        cached_frame = self._frames[index] if is_cached else None
        if cached_frame is None:
            self._fetch(frame, is_repeated=is_cached)
            index = frame - self._start
            cached_frame = self._frames[index]
            assert cached_frame is not None
        self._last_jump, self._last_frame = frame - self._last_frame, frame
        if not self.must_copy:
            self._frames[index] = None
        return cached_frame

    def _fetch(self, frame: int, *, is_repeated: bool) -> None:
        previous_run = self._start, self._stop
        start, stop, must_copy = self._run_to_read(frame, is_repeated=is_repeated)
        self._start = self._stop = 0  # nothing is cached if the read fails
        self._frames = []
        self._prefetch_next(frame, start, stop, previous_run)
        try:
            buffer = self._read(start, stop)
        except OSError:
            # Damage in other chunks of the run must not prevent reading this frame.
            unit = frame - frame % self._unit_frames
            if stop - start <= self._unit_frames:
                raise
            start, stop = unit, min(unit + self._unit_frames, self._n_frames)
            buffer = self._read(start, stop)
        self._frames, self.must_copy = _split_frames(buffer), must_copy
        self._start, self._stop = start, stop
        if stop - start >= MIN_LONG_RUN_FRAMES and not must_copy:
            row = 0 if frame < self._last_frame else stop - start - 1
            copy = self._single_frames.take(1)
            copy.block.assign(buffer.block.frames(slice(row, row + 1)))
            self._frames[row] = _split_frames(copy)[0]

    def _prefetch_next(
        self, frame: int, start: int, stop: int, previous_run: tuple[int, int]
    ) -> None:
        """Let the layout prefetch the expected runs, after two neighbouring ones or equal jumps."""
        jump = frame - self._last_frame
        step = 0
        if abs(jump) <= stop - start and previous_run != (0, 0):
            step = (start == previous_run[1]) - (stop == previous_run[0])
        is_continuous = step != 0
        if not is_continuous and jump == self._last_jump and abs(jump) > MAX_NEAR_FRAMES:
            step = jump
        if step == self._prefetched_step:
            return
        self._prefetched_step = step
        if not step:
            self._layout.prefetch(())
            return
        n_frames = self._unit_frames if self._is_compressed else 1
        if is_continuous:
            n_frames = self._run_frames
            end = self._n_frames if step > 0 else -n_frames  # backwards, the last may be shorter
            starts: Iterable[int] = range(start, end, step * n_frames)
        else:
            jumps = range(frame, self._n_frames if step > 0 else -1, step)
            starts = (
                target for target, _ in groupby(target - target % n_frames for target in jumps)
            )
        runs = ((max(target, 0), min(target + n_frames, self._n_frames)) for target in starts)
        self._layout.prefetch(runs, open_ended=True)

    def _run_to_read(self, frame: int, *, is_repeated: bool) -> tuple[int, int, bool]:
        """Return the run to read for a frame, and whether to keep its frames in the cache."""
        if is_repeated and self._last_frame >= 0:
            self._caches_all = True
            return self._start, self._stop, True
        jump = frame - self._last_frame
        if self._last_frame < 0:
            self._n_near_jumps = MIN_NEAR_JUMPS - 1  # after opening or rewinding
        elif -MAX_NEAR_FRAMES <= jump <= MAX_NEAR_FRAMES:
            self._n_near_jumps += 1
            if self._n_near_jumps >= MIN_NEAR_JUMPS or self._is_compressed:
                start = frame - frame % self._unit_frames
                stop = start + self._run_frames
                if jump < 0:
                    stop = start + self._unit_frames
                    start = stop - self._run_frames
                return max(start, 0), min(stop, self._n_frames), self._caches_all
        else:
            self._n_near_jumps = 0
        start = frame - frame % self._jump_frames
        stop = min(start + self._jump_frames, self._n_frames)
        return start, stop, self._caches_all or self._jump_frames > 1

    def _read(self, start: int, stop: int) -> FrameBuffer:
        buffers = self._run_buffers if stop - start > 1 else self._single_frames
        buffer = buffers.take(stop - start)
        self._layout.read(start, stop, out=buffer.block)
        return buffer

    def positions(
        self, frames: range, atoms: NDArray[np.int64] | None = None
    ) -> NDArray[np.float32]:
        """Return the positions of many frames, shape (F, A, 3), read in runs.

        The cached frames stay as they are.
        """
        n_atoms = self._layout.info.n_atoms if atoms is None else len(atoms)
        out = uninitialised_array((len(frames), n_atoms, 3), np.float32)
        if not len(frames) or not n_atoms:
            return out
        if frames.step == 1:
            self._read_positions(frames.start, frames.stop, atoms, out)
            return out
        if frames.step < 0:
            return self.positions(frames[::-1], atoms)[::-1]
        rows_per_read = max(1, self._run_frames // frames.step)
        parts = [frames[row : row + rows_per_read] for row in range(0, len(frames), rows_per_read)]
        self._layout.prefetch([(part[0], part[-1] + 1) for part in parts], atoms)
        for row, part in enumerate(parts):
            run = np.empty((part[-1] + 1 - part[0], n_atoms, 3), np.float32)
            self._read_positions(part[0], part[-1] + 1, atoms, run)
            begin = row * rows_per_read
            out[begin : begin + len(part)] = run[:: frames.step]
        self._layout.prefetch(())
        self._prefetched_step = 0
        return out

    def _read_positions(
        self, start: int, stop: int, atoms: NDArray[np.int64] | None, out: NDArray[np.float32]
    ) -> None:
        block = FrameBlock.empty(stop - start, 0)
        self._layout.read(start, stop, atoms=atoms, out=replace(block, positions=out))


class _OwningArray(np.ndarray[Any, Any]):
    """An array whose rows' references can be counted.

    NumPy lets a view of a view refer to the array that owns the memory, unless the types of the
    arrays differ. So views of a row, which is a plain array, refer to the row or to this array, and
    `sys.getrefcount` shows whether any of them still exists.
    """

    def row(self, number: int) -> FloatArray:
        row: FloatArray = self[number].view(np.ndarray)
        return row


@dataclass(slots=True)
class FrameBuffer:
    """A block to read into, and its per-atom arrays frame by frame."""

    block: FrameBlock
    arrays: dict[str, _OwningArray]


class _BufferMemory:
    """The memory of the per-atom arrays of some frames, and the buffer that uses it."""

    def __init__(self, fields: tuple[str, ...], n_frames: int, n_atoms: int) -> None:
        self.n_frames = n_frames
        shape = (n_frames, n_atoms, 3)
        self._arrays = {
            name: uninitialised_array(shape, np.float32).view(_OwningArray) for name in fields
        }
        self._buffer = self._new_buffer(n_frames)
        self._idle_counts = [
            sys.getrefcount(self._buffer),
            *map(sys.getrefcount, self._arrays.values()),
        ]

    @property
    def is_idle(self) -> bool:
        """Whether nothing else refers to the buffer or to an array of a frame any more."""
        references = [sys.getrefcount(self._buffer), *map(sys.getrefcount, self._arrays.values())]
        return references == self._idle_counts

    def buffer(self, n_frames: int) -> FrameBuffer:
        if len(self._buffer.block.time) != n_frames:
            self._buffer = self._new_buffer(n_frames)
        return self._buffer

    def _new_buffer(self, n_frames: int) -> FrameBuffer:
        block = FrameBlock.empty(n_frames, 0)
        for name, array in self._arrays.items():
            setattr(block, name, array.view(np.ndarray)[:n_frames])
        return FrameBuffer(block, self._arrays)


class BufferPool:
    """Provides blocks to read into, in memory that is no longer in use.

    While a caller keeps an array of a block, or a view of one, its memory is not used again; if
    more than `N_BUFFERS` are needed, the pool forgets that memory.
    """

    def __init__(self, info: TrajectoryInfo, fields: tuple[str, ...]) -> None:
        self._fields = tuple(name for name in info.fields if name in fields or name == "positions")
        self._n_atoms = info.n_atoms
        self._buffers: list[_BufferMemory] = []

    def take(self, n_frames: int) -> FrameBuffer:
        """Return a buffer for `n_frames`, whose old contents may be overwritten."""
        for memory in self._buffers:
            if memory.n_frames >= n_frames and memory.is_idle:
                return memory.buffer(n_frames)
        if len(self._buffers) >= N_BUFFERS:
            idle = [memory for memory in self._buffers if memory.is_idle]
            evicted = idle[0] if idle else self._buffers[0]
            self._buffers = [memory for memory in self._buffers if memory is not evicted]
        memory = _BufferMemory(self._fields, n_frames, self._n_atoms)
        self._buffers.append(memory)
        return memory.buffer(n_frames)
