"""The frames that an output is to have, and of which source each is, before any is copied."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from mdio.converters.comparing import Comparison
from mdio.core.frames import FrameBlock
from mdio.layouts.base import Layout
from mdio.layouts.views.joining import GAP, RUN_FRAMES
from mdio.layouts.views.merging import Frames, are_counted, continued, merge

Numbers = NDArray[np.int64]


def frames_of(layout: Layout) -> Frames:
    """Return times and steps of all frames; coordinates are not read."""
    n_frames = layout.info.n_frames
    runs = [(at, min(at + RUN_FRAMES, n_frames)) for at in range(0, n_frames, RUN_FRAMES)]
    blocks = [layout.read(begin, end, atoms=[]) for begin, end in runs]
    return Frames(
        path=str(layout.path),
        time=np.concatenate([np.empty(0), *(block.time for block in blocks)]),
        step=np.concatenate([np.empty(0, np.int64), *(block.step for block in blocks)]),
        timed=layout.timing.has_times,
        stepped=layout.timing.has_steps,
    )


class Timeline:
    """The frames of an output, and those that are put among them.

    Attributes: `members`: the output, and what was added. `member`, `frame`: which of these each
    frame is of, and its number there. `numbers`: for each member, its frame that each one is, or
    equals; -1 = none. `unit`: of that by which they were told apart. `n_equal`: how
    many of what was added last were there. `notes`: what was replaced
    or dropped.
    """

    def __init__(self, old: Layout) -> None:
        self.members: list[Layout] = [old]
        self._frames = frames_of(old)
        n_frames = old.info.n_frames
        self.member = np.zeros(n_frames, np.int64)
        self.frame = np.arange(n_frames)
        self.numbers = [np.arange(n_frames)]
        self.notes: list[str] = []
        self.unit, self.n_equal = "ps", 0

    def add(
        self, source: Layout, comparison: Comparison, nbytes: int | None, overlap: str | None
    ) -> None:
        """Put the frames of a source where they belong.

        `nbytes`: how much to compare, of frames that are there; None = all. `overlap`: see `merge`.
        Raises SourceError: they cannot be put there.
        """
        new = frames_of(source)

        def same(there: Numbers, here: Numbers) -> NDArray[np.bool_]:
            return comparison.same(self._read, self._follows, source, there, here, nbytes)

        if overlap is None and are_counted(self._frames, new):
            merged = continued(self._frames, new, same)
        else:
            merged = merge(self._frames, new, same, overlap)
        old = merged.there >= 0
        there = np.where(old, merged.there, 0)
        added = merged.added
        here = np.where(added | merged.equal, merged.here, -1)
        self.numbers = [
            np.where(old & (merged.equal | ~added), one[there], -1) for one in self.numbers
        ]
        self.numbers.append(here)
        self.member = np.where(added, len(self.members), self.member[there])
        self.frame = np.where(added, merged.here, self.frame[there])
        columns = {
            name: np.where(
                added, getattr(new, name)[merged.here], getattr(self._frames, name)[there]
            )
            for name in ("time", "step")
        }
        both = new, self._frames
        self._frames = replace(
            self._frames,
            timed=all(one.timed for one in both),
            stepped=all(one.stepped or one.timed for one in both),
            **columns,
        )
        self.members.append(source)
        self.unit, self.n_equal = merged.unit, int(np.count_nonzero(merged.equal))
        self.notes += merged.notes

    @property
    def parts(self) -> list[tuple[int, int, int]]:
        """Runs of frames of a member: its number, the first one, one beyond the last."""
        turns = np.flatnonzero((np.diff(self.member) != 0) | (np.diff(self.frame) != 1)) + 1
        edges = pairwise([0, *turns.tolist(), len(self.frame)])
        return [
            (int(self.member[a]), int(self.frame[a]), int(self.frame[b - 1]) + 1) for a, b in edges
        ]

    def gaps(self) -> list[str]:
        """Say what is missing where frames of one file follow those of another."""
        time = self._frames.time
        notes = []
        for at in np.flatnonzero(np.diff(self.member)).tolist():
            names = [str(self.members[int(self.member[n])].path) for n in (at, at + 1)]
            around = [time[n + 1] - time[n] for n in (at - 1, at + 1) if 0 <= n < len(time) - 1]
            if around and time[at + 1] - time[at] > GAP * max(around):
                notes.append(
                    f"no frames between {time[at]:g} ps, where {names[0]} ends, and "
                    f"{time[at + 1]:g} ps, where {names[1]} begins"
                )
        return notes

    def _follows(self, there: Numbers) -> NDArray[np.bool_]:
        """Return whether each of some frames but the first follows the one before in its file."""
        member, frame = self.member[there], self.frame[there]
        return np.asarray((np.diff(member) == 0) & (np.diff(frame) == 1))

    def _read(self, there: int, n_frames: int) -> FrameBlock:
        """Read frames that follow each other in the file that they are of."""
        first = int(self.frame[there])
        return self.members[int(self.member[there])].read(first, first + n_frames)
