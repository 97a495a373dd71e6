"""Segments that go on: all are taken over but a last one that is shorter than the others."""

from __future__ import annotations

from mdio.core.files.index import index_paths
from mdio.core.frames import TrajectoryInfo
from mdio.layouts.continuing.continuation import Continuation
from mdio.layouts.plan import LayoutPlan
from mdio.layouts.segments.files import Segment, read_sums
from mdio.layouts.segments.layout import SegmentsLayout
from mdio.layouts.segments.writer import SegmentsWriter
from mdio.layouts.writer import LayoutWriter


class SegmentsContinuation(Continuation):
    """A folder of segments that goes on."""

    old: SegmentsLayout

    @property
    def kept(self) -> list[Segment]:
        """The segments that are taken over; an even split leaves them one frame apart."""
        kept = [segment for segment in self.old.segments if segment.stop <= self.stop]
        while kept and kept[-1].n_frames < self.old.segments[0].n_frames - 1:
            kept.pop()
        return kept

    def plan(self, info: TrajectoryInfo) -> LayoutPlan:
        """Plan segments as long as the first; see the base class."""
        if read_sums(self.old.path, self.manifest, 0) is None:
            raise self.refuse()
        kept = [segment.n_frames for segment in self.kept]
        self.taken = sum(kept)
        size = self.old.segments[0].n_frames
        full, rest = divmod(info.n_frames - self.taken, size)
        sizes = (*kept, *[size] * full, *[rest] * (rest > 0))
        plan = self.planned(info)
        return plan.replace(
            segment_frames=sizes, piece_frames=min(plan.piece_frames, size), n_files=len(sizes)
        )

    def take_over(self, writer: LayoutWriter) -> None:
        """Link the segments, whoever writes the others; see the base class."""
        assert isinstance(writer, SegmentsWriter)
        taken = []
        for number, segment in enumerate(self.kept):
            sums = read_sums(self.old.path, self.manifest, number)
            assert sums is not None
            self.take(segment.file, writer.path)
            index = next(index_paths(self.old.path / segment.file))
            if (name := str(index.relative_to(self.old.path))) in self.sizes:
                self.take(name, writer.path)
            taken.append((segment, sums.table))
        writer.adopt(taken, has_box=bool(self.manifest["has_box"]))
