"""A cache of decoded frames between a layout and a reader that asks for one frame at a time.

Memory that is read into again and again: fresh pages cost more than the bytes put into them.

Reading the next run of frames in a thread, while the analysis looks at the present one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from mdio.core.frames import FIELDS, FrameBlock, TrajectoryInfo
from mdio.layouts.base import Layout

FloatArray = NDArray[np.float32]

RUN_NBYTES = 2 << 20
"""Decoded bytes read ahead at a time: enough to make a read's overhead small, little enough to stay
in a processor's cache until the frames are used."""
MAX_UNIT_NBYTES = 256 << 20
"""A compressed chunk larger than this is not kept whole for the sake of one frame."""
NEAR_FRAMES = 4
"""A jump no longer than this counts as reading on: the frames between cost less than a call."""
NEAR_STEPS = 2
"""After a jump, so many of these in a row are wanted before a run is read ahead: frames that are
fetched at random lie near one another now and then, and a run costs as much as many of them."""
LONG_RUN_FRAMES = 8
"""The frame that is looked at last of a run of so many is copied out of it, which frees the memory
of the run for the next: what is read then goes to where a processor's cache still has lines."""

Frame = tuple[FloatArray, FloatArray | None, FloatArray | None, FloatArray, float, int]
"""Positions, velocities and forces of one frame, arrays that nobody else has, so that they may be
kept and changed; its box, (6,), zeros if there is none, to be copied; its time and its step."""


def _frames_of(room: FrameBuffer) -> list[Frame | None]:
    block, memory = room.block, room.memory
    if len(block.time) == 1:  # a jump: lists of one for each array would take as long as a read
        arrays = (
            memory["positions"].row(0),
            memory["velocities"].row(0) if "velocities" in memory else None,
            memory["forces"].row(0) if "forces" in memory else None,
        )
        return [(*arrays, block.box[0], block.time.item(), block.step.item())]
    rows = range(len(block.time))
    per_atom = [
        map(memory[name].row, rows) if name in memory else [None] * len(rows) for name in FIELDS
    ]
    return list(zip(*per_atom, block.box, block.time.tolist(), block.step.tolist(), strict=True))


class FrameCache:
    """Holds the last run of frames read from a layout, and guesses what to read next.

    Reading on, forwards or backwards, fetches whole chunks, several if they are small. A jump, and
    the first step after it where nothing is decoded, fetch one frame where a frame can be had
    alone, and the chunk around it where it has to be decoded whole anyway.

    Frames are handed out as views, each once: what the caller makes of one is never seen again,
    since a frame that is asked for again is read again. From then on, and in chunks that were
    decoded for a jump, frames are kept, and the caller copies them.
    """

    def __init__(self, layout: Layout) -> None:
        info = layout.info
        self._layout = layout
        self._n_frames = info.n_frames
        self._unit = min(info.chunk_frames or 1, max(1, info.n_frames))
        unit_nbytes = max(1, self._unit * info.frame_nbytes)
        self._compressed = info.compression is not None or info.precision is not None
        whole = self._compressed and info.compression not in layout.facts.decodes_frames
        self._jump_unit = self._unit if whole and unit_nbytes <= MAX_UNIT_NBYTES else 1
        if unit_nbytes > MAX_UNIT_NBYTES:
            self._unit = 1
            unit_nbytes = info.frame_nbytes
        self._run = self._unit * max(1, RUN_NBYTES // max(1, unit_nbytes))
        self._ahead = ReadAhead(layout) if may_read_ahead(layout) else None
        # One that the caller still looks at, one that he gets next, one that is read ahead into.
        self._ring = BufferRing(info, layout.fields, 2 if self._ahead is None else 3)
        self._singles = BufferRing(info, layout.fields, 2)  # for frames by themselves
        self._start = self._stop = 0
        self._frames: list[Frame | None] = []
        self._asked_again = False
        self._last = -1
        self._n_near = 0
        self._jump = self._expects = 0
        """How far the last frame is from the one before; the announced runs: without gaps
        (1 or -1), a frame after each jump of so many, or nothing (0)."""
        self.keeps = False
        """Whether frames stay here, so that the caller has to copy them."""

    def rewind(self) -> None:
        """Expect frame 0 next."""
        self._last = -1
        self._asked_again = False
        self.stop_reading_ahead()

    def frame(self, frame: int) -> Frame:
        """Return a frame; unless `keeps`, its arrays are the caller's from now on.

        Raises what `Layout.read` raises.
        """
        index = frame - self._start
        is_cached = 0 <= index < len(self._frames)
        cached = self._frames[index] if is_cached else None
        if cached is None:
            self._fetch(frame, again=is_cached)
            index = frame - self._start
            cached = self._frames[index]
            assert cached is not None
        self._jump, self._last = frame - self._last, frame
        if not self.keeps:
            self._frames[index] = None
        return cached

    def stop_reading_ahead(self) -> None:
        """End the thread that may be using the layout; reading on starts another."""
        if self._ahead is not None:
            self._ahead.stop()

    def use_alone(self) -> Layout:
        """Return the layout to somebody who may use it at any time: no thread will any more."""
        self.stop_reading_ahead()
        self._ahead = None
        return self._layout

    def _fetch(self, frame: int, *, again: bool) -> None:
        before = self._start, self._stop
        start, stop, keeps = self._window(frame, again=again)
        self._start = self._stop = 0  # nothing is cached if the read fails
        self._frames = []
        room = None if self._ahead is None else self._ahead.take(start, stop)
        if self._ahead is None:
            self._expect(frame, start, stop, before)
        try:
            room = room or self._read(start, stop)
        except OSError:
            # Damage further on must not keep this frame from being read.
            unit = frame - frame % self._unit
            if stop - start <= self._unit:
                raise
            start, stop = unit, min(unit + self._unit, self._n_frames)
            room = self._read(start, stop)
        self._frames, self.keeps = _frames_of(room), keeps
        self._start, self._stop = start, stop
        if stop - start >= LONG_RUN_FRAMES and not keeps and self._ahead is None:
            row = 0 if frame < self._last else stop - start - 1
            self._frames[row] = self._copied(room, row)
        if self._ahead is not None and start == before[1] and stop < self._n_frames:
            # The run before was the one before: so the next will be the next.
            end = min(stop + self._run, self._n_frames)
            self._ahead.begin(stop, end, self._ring.take(end - stop))

    def _expect(self, frame: int, start: int, stop: int, before: tuple[int, int]) -> None:
        """Tell the layout of all runs to come, from the second of neighbours or equal jumps on."""
        jump = frame - self._last
        step = 0
        if abs(jump) <= stop - start and before != (0, 0):
            step = (start == before[1]) - (stop == before[0])
        goes_on = step != 0
        if not goes_on and jump == self._jump and abs(jump) > NEAR_FRAMES:
            step = jump
        if step == self._expects:
            return
        self._expects = step
        if not step:
            self._layout.prefetch(())
            return
        n_frames = self._run if goes_on else self._unit if self._compressed else 1
        if goes_on:
            last = self._n_frames if step > 0 else -n_frames  # the first of all may be shorter
            starts: Iterable[int] = range(start, last, step * n_frames)
        else:
            jumps = range(frame, self._n_frames if step > 0 else -1, step)
            starts = (
                target for target, _ in groupby(target - target % n_frames for target in jumps)
            )
        runs = ((max(target, 0), min(target + n_frames, self._n_frames)) for target in starts)
        self._layout.prefetch(runs, guessed=True)

    def _window(self, frame: int, *, again: bool) -> tuple[int, int, bool]:
        """Return which frames to read for one, and whether to keep them."""
        if again and self._last >= 0:
            self._asked_again = True
            return self._start, self._stop, True
        ahead = frame - self._last
        if self._last < 0:
            self._n_near = NEAR_STEPS - 1  # the first frame: all get it who open and rewind
        elif -NEAR_FRAMES <= ahead <= NEAR_FRAMES:
            self._n_near += 1
            if self._n_near >= NEAR_STEPS or self._compressed:
                start = frame - frame % self._unit
                stop = start + self._run
                if ahead < 0:
                    stop = start + self._unit
                    start = stop - self._run
                return max(start, 0), min(stop, self._n_frames), self._asked_again
        else:
            self._n_near = 0
        start = frame - frame % self._jump_unit
        stop = min(start + self._jump_unit, self._n_frames)
        return start, stop, self._asked_again or self._jump_unit > 1

    def _copied(self, room: FrameBuffer, index: int) -> Frame | None:
        """Return a frame of a block in memory of its own."""
        copy = self._singles.take(1)
        copy.block.assign(room.block.frames(slice(index, index + 1)))
        return _frames_of(copy)[0]

    def _read(self, start: int, stop: int) -> FrameBuffer:
        ring = self._ring if stop - start > 1 else self._singles
        room = ring.take(stop - start)
        self._layout.read(start, stop, out=room.block)
        return room

    def positions(
        self, frames: range, atoms: NDArray[np.int64] | None = None
    ) -> NDArray[np.float32]:
        """Return the positions of many frames, shape (F, A, 3), read in runs where they are dense.

        Does not touch what is cached.
        """
        self.stop_reading_ahead()
        n_atoms = self._layout.info.n_atoms if atoms is None else len(atoms)
        out = np.empty((len(frames), n_atoms, 3), np.float32)
        if not len(frames) or not n_atoms:
            return out
        if frames.step == 1:
            self._read_positions(frames.start, frames.stop, atoms, out)
            return out
        if frames.step < 0:
            return self.positions(frames[::-1], atoms)[::-1]
        rows_per_read = max(1, self._run // frames.step)
        parts = [frames[row : row + rows_per_read] for row in range(0, len(frames), rows_per_read)]
        self._layout.prefetch([(part[0], part[-1] + 1) for part in parts], atoms)
        for row, part in enumerate(parts):
            run = np.empty((part[-1] + 1 - part[0], n_atoms, 3), np.float32)
            self._read_positions(part[0], part[-1] + 1, atoms, run)
            begin = row * rows_per_read
            out[begin : begin + len(part)] = run[:: frames.step]
        self._layout.prefetch(())
        self._expects = 0
        return out

    def _read_positions(
        self, start: int, stop: int, atoms: NDArray[np.int64] | None, out: NDArray[np.float32]
    ) -> None:
        block = FrameBlock.empty(stop - start, 0)
        self._layout.read(start, stop, atoms=atoms, out=replace(block, positions=out))


class _Memory(np.ndarray[Any, Any]):
    """An array that owns its memory, of a type of its own.

    NumPy lets a view of a view refer to the array that owns the memory, but stops where the type
    changes. So each plain view of a row of this is referred to by what is made of it, and
    `sys.getrefcount` of the row says whether anybody has any of it.
    """

    def row(self, number: int) -> FloatArray:
        row: FloatArray = self[number].view(np.ndarray)
        return row


@dataclass(slots=True)
class FrameBuffer:
    """A block to read into, and its per-atom arrays frame by frame."""

    block: FrameBlock
    memory: dict[str, _Memory]


class _Buffer:
    """The per-atom arrays of some frames, and the room that was made of them last."""

    def __init__(self, fields: tuple[str, ...], n_frames: int, n_atoms: int) -> None:
        self.n_frames = n_frames
        self._memory = {name: _Memory((n_frames, n_atoms, 3), np.float32) for name in fields}
        self._room = self._made(n_frames)
        self._idle = [sys.getrefcount(self._room), *map(sys.getrefcount, self._memory.values())]

    @property
    def is_idle(self) -> bool:
        """Whether nobody has the room any more, nor any array of a frame."""
        references = [sys.getrefcount(self._room), *map(sys.getrefcount, self._memory.values())]
        return references == self._idle

    def room(self, n_frames: int) -> FrameBuffer:
        if len(self._room.block.time) != n_frames:
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
        present = {"positions": True, "velocities": info.has_velocities, "forces": info.has_forces}
        self._fields = tuple(
            name for name, has in present.items() if has and (name in fields or name == "positions")
        )
        self._n_atoms = info.n_atoms
        self._n_buffers = n_buffers
        self._buffers: list[_Buffer] = []

    def take(self, n_frames: int) -> FrameBuffer:
        """Return room for `n_frames`; nobody minds what becomes of what is in it."""
        for buffer in self._buffers:
            if buffer.n_frames >= n_frames and buffer.is_idle:
                return buffer.room(n_frames)
        if len(self._buffers) >= self._n_buffers:
            idle = [buffer for buffer in self._buffers if buffer.is_idle]
            left = idle[0] if idle else self._buffers[0]
            self._buffers = [buffer for buffer in self._buffers if buffer is not left]
        buffer = _Buffer(self._fields, n_frames, self._n_atoms)
        self._buffers.append(buffer)
        return buffer.room(n_frames)


_all: WeakSet[ReadAhead] = WeakSet()


def may_read_ahead(layout: Layout) -> bool:
    """Return whether to read ahead: if asked to, with a core to spare and something to decode.

    It is asked for with ``MDIO_READ_AHEAD=1`` in the environment, since it pays only where nobody
    else works on the other cores: the workers of a parallel analysis would be in each other's way.
    """
    if os.environ.get("MDIO_READ_AHEAD", "0") in ("", "0") or not (
        layout.manifest is not None or layout.facts.decodes
    ):
        return False
    if hasattr(os, "sched_getaffinity"):
        n_cores = len(os.sched_getaffinity(0))
    else:
        n_cores = os.cpu_count() or 1
    return n_cores > 1 and layout.info.compression is not None


class ReadAhead:
    """One run of frames at a time on its way into memory, in a thread.

    The layout is the thread's from `begin` until `take` or `stop` has returned. The thread ends
    with `stop`, with the last reference to this, and before the process forks.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._thread: ThreadPoolExecutor | None = None
        self._begun: tuple[int, int, FrameBuffer, Future[FrameBlock]] | None = None
        _all.add(self)

    def begin(self, start: int, stop: int, room: FrameBuffer) -> None:
        """Begin to read frames ``start:stop``."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "mdio read-ahead")
        future = self._thread.submit(self._layout.read, start, stop, out=room.block)
        self._begun = start, stop, room, future

    def take(self, start: int, stop: int) -> FrameBuffer | None:
        """Wait for what was begun, and return it if it is frames ``start:stop``.

        None also if they could not be read: the error comes again when they are read for good,
        and belongs to the frame that is asked for then.
        """
        begun, self._begun = self._begun, None
        if begun is None or begun[3].exception() is not None or begun[:2] != (start, stop):
            return None
        return begun[2]

    def stop(self) -> None:
        """Wait for the thread, forget what it has read, and end it."""
        self._begun = None
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.shutdown()


def _stop_all() -> None:
    for ahead in list(_all):
        ahead.stop()


if hasattr(os, "register_at_fork"):
    # The child would have no such thread, but what the thread was about.
    os.register_at_fork(before=_stop_all)
