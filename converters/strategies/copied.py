"""Outputs whose frames are the source's bytes: nothing is decoded, every frame stays as it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, islice
from typing import Any, Self

from mdio.converters.strategies.conversion import Conversion
from mdio.converters.strategies.job import Job
from mdio.layouts.base import Layout, container_of
from mdio.layouts.plan import LayoutPlan
from mdio.layouts.registry import load_class
from mdio.layouts.tables import FrameTable
from mdio.layouts.views.view import within
from mdio.layouts.writer import EncodedChunk, LayoutWriter, PieceRecord


class CopiedBytes(Conversion):
    """A planned copy of the bytes of frames.

    Frames have to be decoded and encoded again of DCD files with fixed atoms, NetCDF-4 files or
    those without times, several DCD or NetCDF files, and what is no native file.
    """

    copies = True

    @classmethod
    def planned(cls, job: Job, copier: str) -> Self | None:
        """Plan to have `copier` copy; None where not all of each frame is kept.

        Raises SourceError: the source is damaged.
        """
        choice, options = job.choice, job.options
        chosen = choice.kept is not None or choice.groups or job.transformed
        changed = (chosen and job.appended is None) or options.storage.precision is not None
        if job.view.first is None or changed:
            return None
        source, first, n_frames = job.view.source, job.view.first, job.view.info.n_frames
        n_taken = 0 if job.appended is None else job.appended.continuation.taken
        joined = [
            part
            for layout, *span in within(source.kept, n_taken, source.info.n_frames)
            for part in within(layout.kept, *span)
        ]
        parts = [(list(layout.files()), start, stop) for layout, start, stop in joined]
        layouts = [layout for files, *_ in parts for layout in files]
        try:
            found = _all_bytes(layouts)
            container = layouts[0].name
            if found is None or job.plan.container != container:
                return None
            rest = iter(found)
            frames = [
                one
                for files, start, stop in parts
                for one in _cut(list(islice(rest, len(files))), start, stop)
            ]
            own = [one for one in _cut(frames, first, first + n_frames - n_taken) if one.n_frames]
            times_ps = _times_ps(source, first, job.plan)
        finally:
            for layout in layouts:
                layout.close()
        plan = job.plan.replace(
            nbytes=sum(one.nbytes for one in own), piece_frames=max(job.plan.segment_frames)
        )
        return cls(
            job,
            plan,
            load_class(copier),
            frames=own,
            first_times_ps=times_ps,
            kept=job.view.info,
            n_taken=n_taken,
        )

    @property
    def _needed_nbytes(self) -> float:
        return self.plan.nbytes

    def _worker(self, writer: LayoutWriter) -> Any:
        return _Worker(writer, self.repairs.former if self.repairs else None)


class _Worker:
    """Copies one segment at each call."""

    def __init__(self, writer: Any, former: Layout | None) -> None:
        self.writer = writer
        self.former = former

    def __call__(self, piece: tuple[int, int]) -> tuple[PieceRecord, list[EncodedChunk]]:
        return self.writer.copy(*piece, self.former), []

    def close(self) -> None:
        """Nothing is open."""


def _all_bytes(layouts: Sequence[Layout]) -> list[FrameTable] | None:
    """Return the frames of all files as bytes; None if these cannot be copied together."""
    if len({container_of(layout) for layout in layouts}) > 1:
        return None
    found = []
    for layout in layouts:
        with layout:
            found.append(layout.tables().frames)
    frames = [one for one in found if one is not None]
    headed = any(one.header is not None for one in frames)
    return None if len(frames) < len(found) or (headed and len(frames) > 1) else frames


def _cut(frames: Sequence[FrameTable], first: int, stop: int) -> Iterator[FrameTable]:
    """Yield the part of each file that lies in frames ``first:stop`` of all."""
    at = 0
    for one in frames:
        begin = min(max(first - at, 0), one.n_frames)
        yield one.part(begin, max(begin, min(stop - at, one.n_frames)))
        at += one.n_frames


def _times_ps(source: Layout, first: int, plan: LayoutPlan) -> list[float]:
    """Return the time of the first frame of each segment."""
    starts = list(accumulate(plan.segment_frames, initial=first))[:-1]
    return [float(source.read(start, start + 1, atoms=[]).time[0]) for start in starts]
