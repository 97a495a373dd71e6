"""H5MD files that go on: compressed chunks are taken over as bytes, parts as the files they are.

A file has one size, and its tables lie behind its frames: more frames need a new file. Frames that
are not compressed are read and written as any others, by all workers.
"""

from __future__ import annotations

import math

from mdio.core.files.copying import link_or_copy
from mdio.core.files.publish import output_errors
from mdio.core.frames import TrajectoryInfo
from mdio.layouts.continuing.continuation import Continuation
from mdio.layouts.h5md.layout import H5MDLayout
from mdio.layouts.h5md.parts.reader import JoinedFile, Part
from mdio.layouts.h5md.parts.writer import H5MDPartsWriter, plan_parts
from mdio.layouts.plan import LayoutPlan
from mdio.layouts.writer import LayoutWriter, PieceRecord


class H5MDContinuation(Continuation):
    """A file that goes on, in one piece or in parts."""

    old: H5MDLayout

    @property
    def parts(self) -> list[Part]:
        """The parts whose frames are all kept; none of a file in one piece."""
        every = [Part(**row) for row in self.manifest.get("parts", [])]
        return [part for part in every if part.stop <= self.stop]

    def plan(self, info: TrajectoryInfo, n_parts: int) -> LayoutPlan:
        """Plan chunks as they are; see the base class."""
        contents = self.old.contents
        plan = self.planned(info)
        unit = math.lcm(*(array.chunk_frames for array in plan.arrays))
        plan = plan.replace(
            piece_frames=max(1, plan.piece_frames // unit) * unit, segment_frames=()
        )
        if not isinstance(contents, JoinedFile):
            if plan.compression is not None:
                self.taken = self.stop // plan.piece_frames * plan.piece_frames
            return plan
        kept = [part.n_frames for part in self.parts]
        self.taken = sum(kept)
        rest = plan_parts(plan.replace(n_frames=info.n_frames - self.taken), n_parts)
        sizes = (*kept, *rest.segment_frames)
        return plan.replace(segment_frames=sizes, n_files=1 + len(sizes))

    def take_over(self, writer: LayoutWriter) -> None:
        """Copy the chunks, or link the parts; see the base class."""
        in_parts = isinstance(writer, H5MDPartsWriter)
        contents = self.old.contents
        if isinstance(writer, H5MDPartsWriter) and isinstance(contents, JoinedFile):
            for number, part in enumerate(self.parts):
                target = writer.folder / part.file
                with output_errors(target):
                    link_or_copy(contents.folder / part.file, target)
                writer.adopt(number, part)
        for start, stop in writer.plan.write_tasks():
            if stop <= self.taken:
                items = [] if in_parts else self.old.stored(start, stop)
                for item in items:
                    writer.store(item)
                block = self.old.read(start, stop, atoms=[])
                crcs = {item.key: item.crcs for item in items}
                writer.commit(PieceRecord(start, stop, crcs, 0, block.box, block.time, block.step))
