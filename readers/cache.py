"""A cache of decoded frames between a layout and a reader that asks for one frame at a time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from mdio.core.frames import FrameBlock
from mdio.layouts.base import Layout

__all__ = ["FrameCache"]

RUN_NBYTES = 2 << 20
"""Decoded bytes read ahead at a time: enough to make a read's overhead small, little enough to stay
in a processor's cache until the frames are used."""
MAX_UNIT_NBYTES = 256 << 20
"""A compressed chunk larger than this is not kept whole for the sake of one frame."""
NEAR_FRAMES = 4
"""A jump no longer than this counts as reading on: the frames between cost less than a call."""


class FrameCache:
    """Holds the last run of frames read from a layout, and guesses what to read next.

    Reading on, forwards or backwards, fetches whole chunks, several if they are small. A jump
    fetches one frame where a frame can be had alone, and the chunk around it where it has to be
    decoded whole anyway.
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
        self._buffer: FrameBlock | None = None
        self._block: FrameBlock | None = None
        self._start = self._stop = 0
        self._last = -1
        self.times: list[float] = []
        """Times of the frames in the block, as Python numbers: made once for a run of frames."""
        self.steps: list[int] = []
        self.has_box: list[bool] = []

    def rewind(self) -> None:
        """Expect frame 0 next."""
        self._last = -1

    def frame(self, frame: int) -> tuple[FrameBlock, int]:
        """Return a block that holds `frame`, and its row there."""
        if not self._start <= frame < self._stop:
            self._fetch(frame)
        self._last = frame
        assert self._block is not None
        return self._block, frame - self._start

    def _fetch(self, frame: int) -> None:
        ahead = frame - self._last
        if 0 < ahead <= NEAR_FRAMES:
            start = frame - frame % self._unit
            stop = start + self._run
        elif -NEAR_FRAMES <= ahead < 0:
            stop = frame - frame % self._unit + self._unit
            start = stop - self._run
        else:
            start = frame - frame % self._jump_unit
            stop = start + self._jump_unit
        start, stop = max(start, 0), min(stop, self._n_frames)
        self._start = self._stop = 0  # nothing is cached if the read fails
        try:
            self._block = self._layout.read(start, stop, out=self._room(stop - start))
        except OSError:
            # Damage further on must not keep this frame from being read.
            unit = frame - frame % self._unit
            if stop - start <= self._unit:
                raise
            start, stop = unit, min(unit + self._unit, self._n_frames)
            self._block = self._layout.read(start, stop, out=self._room(stop - start))
        self._start, self._stop = start, stop
        self.times = self._block.time.tolist()
        self.steps = self._block.step.tolist()
        self.has_box = np.any(self._block.box, axis=1).tolist()

    def _room(self, n_frames: int) -> FrameBlock | None:
        """Return memory to read into that earlier reads have used, which spares page faults."""
        if self._buffer is None or self._buffer.n_frames < n_frames:
            info = self._layout.info
            fields = self._layout.fields
            self._buffer = FrameBlock.empty(
                n_frames,
                info.n_atoms,
                velocities=info.has_velocities and "velocities" in fields,
                forces=info.has_forces and "forces" in fields,
            )
        return self._buffer.frames(slice(0, n_frames))

    def positions(
        self, frames: range, atoms: NDArray[np.int64] | None = None
    ) -> NDArray[np.float32]:
        """Return the positions of many frames, shape (F, A, 3), read in runs where they are dense.

        Does not touch what is cached.
        """
        n_atoms = self._layout.info.n_atoms if atoms is None else len(atoms)
        out = np.empty((len(frames), n_atoms, 3), np.float32)
        if not len(frames) or not n_atoms:
            return out
        if frames.step == 1:
            self._read_positions(frames.start, frames.stop, atoms, out)
        else:
            rows_per_read = max(1, self._run // abs(frames.step))
            for row in range(0, len(frames), rows_per_read):
                part = frames[row : row + rows_per_read]
                first = min(part[0], part[-1])
                run = np.empty((abs(part[-1] - part[0]) + 1, n_atoms, 3), np.float32)
                self._read_positions(first, first + len(run), atoms, run)
                out[row : row + len(part)] = run[np.asarray(part) - first]
        return out

    def _read_positions(
        self,
        start: int,
        stop: int,
        atoms: NDArray[np.int64] | None,
        out: NDArray[np.float32],
    ) -> None:
        block = FrameBlock.empty(stop - start, 0)
        self._layout.read(start, stop, atoms=atoms, out=replace(block, positions=out))
