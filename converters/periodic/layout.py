"""Periodic boundaries as a layout: ``--pbc`` and ``--center``.

All but ``nojump`` look at one frame alone. That one counts over how many boundaries each atom has
gone since the first frame: the sum of what each block of frames counts by itself, so that workers
count blocks first, and then each knows where it begins (`mdio.converters.periodic.counting`).
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.converters.periodic import NEED_BONDS
from mdio.converters.periodic.steps import Steps, steps_for
from mdio.core import kernels
from mdio.core.boxes import vectors_from_boxes
from mdio.core.errors import PlanError
from mdio.core.frames import AtomIndices, FrameBlock, FrameData, Rounding, TrajectoryInfo
from mdio.core.words import plural
from mdio.layouts.base import FormatFacts, Layout
from mdio.layouts.views.options import FORMER_PBC, PBC

RUN_NBYTES = 16 << 20
"""Positions that are read at a time where only jumps are counted."""
TRIED_FRAMES = 3
"""Frames on which the time of the steps is measured."""

Counts = NDArray[np.int32]


@dataclass
class _Followed:
    """How far atoms have been followed: up to the frame before `frame`."""

    frame: int
    last: NDArray[np.float64]
    counts: Counts
    known: bool = False


class TransformedLayout(Layout):
    """A source whose molecules are put together, and in the cell, as it is read.

    The steps are these: jumps undone, molecules made whole, all moved to the centre, molecules (or
    atoms) put into the cell. Only atoms that are wanted, and those that their molecules and the
    centre need, are read.

    `path`: path of the source, for messages. `source`: the layout to read from. `top`: topology
    file; None = what the source has. `pbc`: one of `mdio.layouts.views.options.PBC`, or None.
    `center`: selection whose centre of geometry goes to the centre of the box, or None. With
    ``whole``, molecules are then put into the cell as with ``mol``, around those atoms. `steps`:
    what has been prepared of these; for other processes.
    """

    name = "transformed"
    facts = FormatFacts(
        options=frozenset({"source", "top", "pbc", "center", "steps"}),
    )

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        source: Layout,
        top: str | PathLike[str] | None,
        pbc: str | None = None,
        center: str | None = None,
        steps: Steps | None = None,
        **options: Any,
    ) -> None:
        given: dict[str, Any] = {"top": top, "pbc": pbc, "center": center, "steps": steps}
        super().__init__(path, source=source, **given, **options)
        if pbc is not None and pbc not in (*PBC, *FORMER_PBC):
            raise PlanError(f"--pbc {pbc!r} is unknown; choose from {', '.join(PBC)}")
        self.source, self.pbc, self.center = source, pbc, center
        self.load: Callable[[], Any] | None = None
        """Gives the Universe of the topology, in place of ``top``."""
        self._followed: _Followed | None = None
        if steps is None and not source.info.has_box:
            raise PlanError(
                f"{self.path}: its first frame has no unit cell, which --pbc and --center need; "
                "leave them out, or give a trajectory that has one in every frame"
            )

    @classmethod
    def sniff(cls, path: Path) -> bool:  # noqa: ARG003
        """No bytes on disk are a transformation."""
        return False

    def _open(self) -> TrajectoryInfo:
        # What comes out is no longer the integers of an XTC source.
        return self.source.info.replace(
            precision=None, rounding=Rounding(), compression=None, groups={}
        )

    @property
    def makes_whole(self) -> bool:
        """Whether no molecule is cut in what it gives."""
        return self.pbc in NEED_BONDS

    def frame_data(self) -> FrameData:
        """Return what the source has of its frames."""
        return self.source.frame_data()

    def _close(self) -> None:
        self.source.close()

    def files(self) -> Iterator[Layout]:
        """Yield itself: its frames are not those of a file."""
        yield self

    @cached_property
    def universe(self) -> Any:
        """The Universe of the topology; whoever has it may set it."""
        from mdio.converters.selection import load_topology, stored_universe

        if self.load is not None:
            return self.load()
        if self.options["top"] is not None:
            return load_topology(self.options["top"], self.source)
        stored = self.source.topology()
        if stored is None:
            raise PlanError(
                f"{self.path}: --pbc {'/'.join(NEED_BONDS[:2])} and --center need a topology; name "
                "one with -s/--top FILE"
            )
        return stored_universe(stored, self.source)

    def prepared(self, atoms: AtomIndices | None) -> Steps:
        """Return the steps for some atoms of the source, which are kept for the next time.

        Raises PlanError: there is no topology, or it has no bonds, or the selection is wrong.
        """
        steps: Steps | None = self.options["steps"]
        if steps is None or not steps.is_for(atoms):
            steps = self.options["steps"] = self._steps(atoms)
            self._followed = None
        return steps

    def _steps(self, atoms: AtomIndices | None) -> Steps:
        def universe() -> Any:
            return self.universe

        named = self.options["top"] or self.path
        return steps_for(self.source, atoms, self.pbc, self.center, universe, named)

    def _read_into(
        self, start: int, stop: int, atoms: AtomIndices | None, block: FrameBlock
    ) -> None:
        if atoms is not None and atoms.size == 0:
            self.source.read(start, stop, atoms=atoms, out=block)
            return
        steps = self.prepared(atoms)
        followed = self._followed_to(start, steps) if steps.follows else None
        same = steps.taken is None
        part = self._part(start, stop, steps, block if same else None)
        if followed is not None:
            _follow(followed, part)
        steps.apply(part)
        if steps.taken is not None:
            block.assign(part.take(steps.taken))

    def measured(self, atoms: AtomIndices | None) -> str:
        """Return what the steps take for a frame, measured on the first frames of the source."""
        steps = self.prepared(atoms)
        n_frames = min(TRIED_FRAMES, self.source.info.n_frames)
        self._part(0, 1, steps)
        begun = time.perf_counter()
        part = self._part(0, n_frames, steps)
        read = time.perf_counter()
        if steps.follows:
            _follow(self._unmoved(0, steps), part)
        steps.apply(part)
        ended = time.perf_counter()
        per_frame = [f"{1e3 * t_s / n_frames:.2g} ms" for t_s in (ended - read, read - begun)]
        return (
            f"this takes about {per_frame[0]} a frame, beside {per_frame[1]} for reading it "
            f"(measured on {plural(n_frames, 'frame')})"
        )

    def _part(
        self, start: int, stop: int, steps: Steps, out: FrameBlock | None = None
    ) -> FrameBlock:
        part = self.source.read(start, stop, atoms=steps.needed, out=out)
        lacking = ~(vectors_from_boxes(part.box)[:, 2, 2] > 0)
        if lacking.any():
            frame = int(lacking.argmax())
            lengths = part.box[frame, :3]
            what = "has no unit cell, and --pbc and --center need one in every frame"
            if lengths.any():
                names = " and ".join("xyz"[axis] for axis in np.flatnonzero(lengths == 0))
                what = f"is not periodic along {names}, and --pbc and --center need all three axes"
            raise PlanError(
                f"{self.path}: frame {start + frame} {what}; leave it out, or leave them out"
            )
        return part

    def _followed_to(self, start: int, steps: Steps) -> _Followed:
        """Return how often atoms have crossed boundaries before frame `start`."""
        counts = steps.counts or {}
        base = max((frame for frame in counts if frame <= start), default=0)
        now = self._followed
        if now is None or not base <= now.frame <= start:
            now = self._followed = self._unmoved(base, steps)
            if base:
                now.counts[:] = unpacked(counts[base]).reshape(-1, 3)
        return self._advance(now, start, steps)

    def _unmoved(self, frame: int, steps: Steps) -> _Followed:
        n_atoms = self.source.info.n_atoms if steps.needed is None else len(steps.needed)
        return _Followed(frame, np.zeros((n_atoms, 3)), np.zeros((n_atoms, 3), np.int32))

    def _advance(self, now: _Followed, stop: int, steps: Steps) -> _Followed:
        run = max(1, RUN_NBYTES // max(1, 12 * len(now.last)))
        while now.frame < stop:
            part = self._part(now.frame, min(now.frame + run, stop), steps)
            _follow(now, part, apply=False)
        return now

    def counted(self, run: tuple[int, int]) -> bytes:
        """Return how often atoms cross boundaries from one frame to another, packed."""
        start, stop = run
        steps: Steps = self.options["steps"]
        return packed(self._advance(self._unmoved(start, steps), stop + 1, steps).counts)


def _follow(now: _Followed, part: FrameBlock, *, apply: bool = True) -> None:
    kernels.follow(part.positions, part.box, now.last, now.counts, known=now.known, apply=apply)
    now.frame, now.known = now.frame + part.n_frames, True


def packed(counts: Counts) -> bytes:
    """Return counts as bytes, most of which are zeros."""
    return zlib.compress(counts.tobytes(), 1)


def unpacked(counts: bytes) -> Counts:
    """Return what was packed, in one dimension."""
    return np.frombuffer(zlib.decompress(counts), np.int32)
