"""Whether frames of a source are those that an output has: what grows is known by its contents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.converters.verifying.checks import compare_blocks
from mdio.core.errors import SourceError
from mdio.core.files.fingerprint import file_state
from mdio.core.frames import FrameBlock
from mdio.layouts.base import Layout

COMPARED_NBYTES = 1 << 30
"""So much is compared of a source that looks as it did when frames were taken; all of others."""
FOLLOWED_NBYTES = 64 << 20
"""So much is compared each time where a source is followed, and nobody but we has been at it."""
AT_LEAST = 16
"""Frames that are compared, however large they are."""
RUN_NBYTES = 16 << 20
ROUNDED_ANGSTROM = 0.02
"""So far apart a frame and the same one in another format may be: formats round."""
ROUNDED_BOX = 1e-4
"""Relative: unit cells are kept as vectors or as lengths and angles."""

Numbers = NDArray[np.int64]
Bools = NDArray[np.bool_]


def is_unchanged(path: Path, source: Mapping[str, Any]) -> bool:
    """Return whether a file still begins as it did when an output was made of it.

    `source`: what the manifest of the output says of its source.
    """
    for known in source.get("files", [source]):
        if known.get("path") == str(path.absolute()):
            now = file_state(path, known["nbytes"], 0)
            return now["nbytes"] >= known["nbytes"] and all(
                now[end] == known[end] for end in ("crc32c_head", "crc32c_tail")
            )
    return False


class Comparison:
    """Compares frames of a source with those that an output, or a source before it, has."""

    def __init__(self, old: Layout, source: Layout) -> None:
        assert old.manifest is not None
        made_of = old.manifest["source"]
        files = [known.get("path", "") for known in made_of.get("files", [made_of])]
        self.is_exact = source.path.suffix in {Path(file).suffix for file in files}
        """Whether both come from files of one format, which rounds in one way."""
        bounds = [(one.manifest or {}).get("error_bound_angstrom", 0.0) for one in (old, source)]
        self.allowed = {"positions": sum(bounds) + (0.0 if self.is_exact else ROUNDED_ANGSTROM)}
        for name, step in old.info.field_precisions.items():
            self.allowed[name] = step / 2

    def same(
        self,
        read: Callable[[int, int], FrameBlock],
        follows: Callable[[Numbers], Bools],
        source: Layout,
        there: Numbers,
        here: Numbers,
        nbytes: int | None,
    ) -> Bools:
        """Return which frames are the same.

        `read`: gives some frames of what there is, from one on. `follows`: tells which of them
        follow each other. `source`: of which the others are. `there`, `here`: numbers of frames in
        both, ascending. `nbytes`: how much to compare, of frames evenly spread; None = all. As soon
        as one of them differs, all are.
        """
        n_pairs = few = len(there)
        if nbytes is not None:
            few = min(n_pairs, max(AT_LEAST, nbytes // max(1, source.info.frame_nbytes)))
        if few < n_pairs:
            some = np.unique(np.linspace(0, n_pairs - 1, few).astype(int))
            if self._same(read, follows, source, there[some], here[some]).all():
                return np.ones(n_pairs, bool)
        return self._same(read, follows, source, there, here)

    def _same(
        self,
        read: Callable[[int, int], FrameBlock],
        follows: Callable[[Numbers], Bools],
        source: Layout,
        there: Numbers,
        here: Numbers,
    ) -> Bools:
        same = np.ones(len(there), bool)
        most = max(1, RUN_NBYTES // max(1, source.info.frame_nbytes))
        cuts = np.flatnonzero(~follows(there) | (np.diff(here) != 1)) + 1
        for begin, end in pairwise([0, *cuts.tolist(), len(there)]):
            for first in range(begin, end, most):
                n_frames = min(most, end - first)
                mine = read(int(there[first]), n_frames)
                theirs = source.read(int(here[first]), int(here[first]) + n_frames)
                if self._equal(mine, theirs):
                    continue
                for at in range(n_frames):
                    one = slice(at, at + 1)
                    same[first + at] = self._equal(mine.frames(one), theirs.frames(one))
        return same

    def _equal(self, mine: FrameBlock, theirs: FrameBlock) -> bool:
        for name in ("velocities", "forces"):
            ours, others = getattr(mine, name), getattr(theirs, name)
            unknown = others is None or ours is None or not self.is_exact
            if unknown or np.isnan(ours).all() or np.isnan(others).all():
                setattr(mine, name, None)
        rounded = ("positions", "velocities", "forces")
        _, problems = compare_blocks(mine, theirs, self.allowed, tables=False, rounded=rounded)
        boxes = np.isclose(mine.box, theirs.box, rtol=ROUNDED_BOX, atol=1e-3, equal_nan=True)
        return not problems and bool(boxes.all())


def refuse_another(source: Path, out: Path, same: Bools, times_ps: NDArray[np.float64]) -> None:
    """Refuse a source whose frames are not those that an output has of it; raises SourceError."""
    if same.all():
        return
    other = np.flatnonzero(~same)
    raise SourceError(
        f"{source}: holds another trajectory now than the one of which {out} has frames: "
        f"{len(other):,} of {len(same):,} that were compared differ, the first at "
        f"{times_ps[other[0]]:g} ps; nothing was added: convert it into another output"
    )
