"""A cache of decoded frames between a layout and a reader that asks for one frame at a time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from mdio.core.frames import FIELDS, FrameBlock
from mdio.layouts.base import Layout
from mdio.readers.ahead import ReadAhead, may_read_ahead
from mdio.readers.ring import BufferRing, FrameBuffer

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
    block = room.block
    per_atom = (room.rows(name) for name in FIELDS)
    return list(zip(*per_atom, block.box, block.time.tolist(), block.step.tolist(), strict=True))


class FrameCache:
    """Holds the last run of frames read from a layout, and guesses what to read next.

    Reading on, forwards or backwards, fetches whole chunks, several if they are small. A jump, and
    the first step after it, fetch one frame where a frame can be had alone, and the chunk around it
    where it has to be decoded whole anyway.

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
        compressed = info.compression is not None or info.precision is not None
        self._jump_unit = self._unit if compressed and unit_nbytes <= MAX_UNIT_NBYTES else 1
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
        """How far the last frame is from the one before; what was told to come: runs without gaps
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
        at = frame - self._start
        held = 0 <= at < len(self._frames)
        found = self._frames[at] if held else None
        if found is None:
            self._fetch(frame, again=held)
            at = frame - self._start
            found = self._frames[at]
            assert found is not None
        self._jump, self._last = frame - self._last, frame
        if not self.keeps:
            self._frames[at] = None
        return found

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
            at = 0 if frame < self._last else stop - start - 1
            self._frames[at] = self._copied(room, at)
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
            self._layout.expect_nothing()
            return
        n_frames = self._run if goes_on else self._jump_unit
        if goes_on:
            last = self._n_frames if step > 0 else -n_frames  # the first of all may be shorter
            starts: Iterable[int] = range(start, last, step * n_frames)
        else:
            jumps = range(frame, self._n_frames if step > 0 else -1, step)
            starts = (at for at, _ in groupby(at - at % n_frames for at in jumps))
        runs = ((max(at, 0), min(at + n_frames, self._n_frames)) for at in starts)
        self._layout.expect(runs, guessed=True)

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
            if self._n_near >= NEAR_STEPS or self._jump_unit > 1:
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

    def _copied(self, room: FrameBuffer, at: int) -> Frame | None:
        """Return a frame of a block in memory of its own."""
        copy = self._singles.take(1)
        copy.block.assign(room.block.frames(slice(at, at + 1)))
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
        self._layout.expect([(part[0], part[-1] + 1) for part in parts], atoms)
        for row, part in enumerate(parts):
            run = np.empty((part[-1] + 1 - part[0], n_atoms, 3), np.float32)
            self._read_positions(part[0], part[-1] + 1, atoms, run)
            begin = row * rows_per_read
            out[begin : begin + len(part)] = run[:: frames.step]
        self._layout.expect_nothing()
        self._expects = 0
        return out

    def _read_positions(
        self, start: int, stop: int, atoms: NDArray[np.int64] | None, out: NDArray[np.float32]
    ) -> None:
        block = FrameBlock.empty(stop - start, 0)
        self._layout.read(start, stop, atoms=atoms, out=replace(block, positions=out))
