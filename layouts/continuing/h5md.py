"""H5MD files that go on: compressed chunks are taken over as bytes.

A file has one size, and its tables lie behind its frames: more frames need a new file. Frames that
are not compressed, or lie in parts, are read and written as any others, by all workers.
"""

from __future__ import annotations

import math

from mdio.core.frames import TrajectoryInfo
from mdio.layouts.backend import stored
from mdio.layouts.continuing.continuation import Continuation
from mdio.layouts.h5md.layout import H5MDLayout
from mdio.layouts.h5md.parts import JoinedFile
from mdio.layouts.plan import LayoutPlan
from mdio.layouts.writer import LayoutWriter, PieceRecord


class H5MDContinuation(Continuation):
    """A file that goes on."""

    old: H5MDLayout

    def plan(self, info: TrajectoryInfo) -> LayoutPlan:
        """Plan chunks as they are; see the base class."""
        plan = self.planned(info)
        unit = math.lcm(*(array.chunk_frames for array in plan.arrays))
        plan = plan.replace(
            piece_frames=max(1, plan.piece_frames // unit) * unit, segment_frames=(), n_files=1
        )
        if plan.compression is not None and not isinstance(self.old.contents, JoinedFile):
            self.taken = self.stop // plan.piece_frames * plan.piece_frames
        return plan

    def take_over(self, writer: LayoutWriter) -> None:
        """Copy the chunks; see the base class."""
        for start, stop in writer.plan.write_tasks():
            if stop <= self.taken:
                items = stored(self.old, start, stop)
                for item in items:
                    writer.store(item)
                block = self.old.read(start, stop, atoms=[])
                crcs = {item.key: item.crcs for item in items}
                writer.commit(PieceRecord(start, stop, crcs, 0, block.box, block.time, block.step))
