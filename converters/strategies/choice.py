"""The choice of a strategy, by the facts of layout and source; strategies that copy bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, Self

import numpy as np

from mdio.converters.options import ConversionOptions
from mdio.converters.strategies.conversion import Conversion
from mdio.converters.strategies.job import Job
from mdio.converters.strategies.mpio import MPIOConversion
from mdio.core.errors import PlanError
from mdio.core.options import spell_option
from mdio.layouts.base import Layout, container_format
from mdio.layouts.plan import LayoutPlan
from mdio.layouts.registry import load_class, writable_layouts, writer_class
from mdio.layouts.tables import ChunkTable, FrameTable
from mdio.layouts.views.view import clip_runs
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
        is_selection = choice.kept is not None or choice.groups or job.transformed
        is_changed = (
            is_selection and job.appended is None
        ) or options.storage.precision is not None
        if job.view.first is None or is_changed:
            return None
        source, first, n_frames = job.view.source, job.view.first, job.view.info.n_frames
        n_taken = 0 if job.appended is None else job.appended.continuation.n_reused
        joined = [
            part
            for layout, *span in clip_runs(source.joined_layouts, n_taken, source.info.n_frames)
            for part in clip_runs(layout.joined_layouts, *span)
        ]
        parts = [(list(layout.files()), start, stop) for layout, start, stop in joined]
        layouts = [layout for files, *_ in parts for layout in files]
        try:
            ranges = _all_bytes(layouts)
            container = layouts[0].name
            if ranges is None or job.plan.container != container:
                return None
            remaining = iter(ranges)
            frames = [
                one
                for files, start, stop in parts
                for one in _cut(list(islice(remaining, len(files))), start, stop)
            ]
            planned_frames = [
                one for one in _cut(frames, first, first + n_frames - n_taken) if one.n_frames
            ]
            times_ps = _times_ps(source, first, job.plan)
        finally:
            for layout in layouts:
                layout.close()
        share = (n_frames - n_taken) / n_frames
        plan = job.plan.replace(
            nbytes=round(sum(one.nbytes for one in planned_frames) / share),
            piece_frames=max(job.plan.segment_frames),
        )
        return cls(
            job,
            plan,
            load_class(copier),
            frames=planned_frames,
            first_times_ps=times_ps,
            info=job.view.info,
            n_reused=n_taken,
        )

    @property
    def _needed_nbytes(self) -> float:
        return self.plan.after(self.n_taken).nbytes

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
    if len({container_format(layout) for layout in layouts}) > 1:
        return None
    tables = []
    for layout in layouts:
        with layout:
            tables.append(layout.tables().frames)
    frames = [one for one in tables if one is not None]
    headed = any(one.header is not None for one in frames)
    return None if len(frames) < len(tables) or (headed and len(frames) > 1) else frames


def _cut(frames: Sequence[FrameTable], first: int, stop: int) -> Iterator[FrameTable]:
    """Yield the part of each file that lies in frames ``first:stop`` of all."""
    n_before = 0
    for one in frames:
        begin = min(max(first - n_before, 0), one.n_frames)
        yield one.part(begin, max(begin, min(stop - n_before, one.n_frames)))
        n_before += one.n_frames


def _times_ps(source: Layout, first: int, plan: LayoutPlan) -> list[float]:
    """Return the time of the first frame of each segment."""
    starts = list(accumulate(plan.segment_frames, initial=first))[:-1]
    return [float(source.read(start, start + 1, atoms=[]).time[0]) for start in starts]


class Pointing(Conversion):
    """A planned output of references."""

    copies = True

    @classmethod
    def planned(cls, job: Job) -> Self:
        """Find out where positions lie; raises SourceError, PlanError."""
        if job.choice.kept is not None or job.transformed:
            raise PlanError(
                f"{job.out}: references are to whole frames as they are; leave out --select, --pbc "
                "and --center, or write zarr"
            )
        if len(job.files) > 1:
            raise PlanError(
                f"{job.out}: references are to one trajectory; make segments of several files "
                "first (mdio split), or references to each"
            )
        from mdio.layouts.refs import position_tables

        tables = position_tables(job.view.source)
        return cls(job, job.plan, tables=_kept_chunks(tables, job))

    def _worker(self, writer: LayoutWriter) -> Any:
        return _Columns(writer, self.view)


def _kept_chunks(tables: list[ChunkTable], job: Job) -> list[ChunkTable]:
    """Return the chunks of the frames that are kept."""
    frames = np.asarray(job.view.frames, np.int64)
    n_frames = job.view.source.info.n_frames
    is_whole = len(frames) == n_frames and job.view.first == 0
    if tables[0].chunk[0] > 1 and not (is_whole and len(tables) == 1):
        raise PlanError(
            f"{job.out}: its frames are stored in chunks of {tables[0].chunk[0]}, which references "
            "take whole: leave out --start, --stop and --step, or write zarr"
        )
    if is_whole:
        return tables
    cut, n_before = [], 0
    for table in tables:
        n_here = len(table.offset)
        inside = frames[(frames >= n_before) & (frames < n_before + n_here)] - n_before
        cut += [table.frames(inside)] if len(inside) else []
        n_before += n_here
    return cut


class _Columns:
    """Reads times, steps and cells of a piece at each call."""

    def __init__(self, writer: LayoutWriter, source: Layout) -> None:
        self.writer, self.source = writer, source

    def __call__(self, piece: tuple[int, int]) -> tuple[PieceRecord, list[EncodedChunk]]:
        block = self.source.read(*piece, atoms=[])
        plan = self.writer.plan
        nbytes = round(plan.nbytes * block.n_frames / plan.n_frames)
        return PieceRecord(*piece, {}, nbytes, block.box, block.time, block.step), []

    def close(self) -> None:
        """Close the source."""
        self.source.close()


def check_options(options: ConversionOptions, layout: str, out: Path) -> None:
    """Refuse options that the layout does not have; raises PlanError."""
    own_options = writer_class(layout).facts.own_options
    for one, value in options.given():
        if not one.metadata.get("own") or one.name in own_options:
            continue
        options_of = {name: writer_class(name).facts.own_options for name in writable_layouts()}
        having = sorted(name for name, names in options_of.items() if one.name in names)
        place = f"layout{'s' if len(having) > 1 else ''} {' and '.join(having)}"
        raise PlanError(
            f"{out}: {spell_option(one, value)} belongs to the {place}, not to {layout}; leave it "
            "out, or choose another output"
        )
    if options.running.hints and options.running.mpio is None:
        raise PlanError(
            "--hint (hints= in Python) is for MPI-IO; add --mpio or --collective (mpio=)"
        )


def choose(job: Job) -> Conversion:
    """Return the planned conversion; raises what the `planned` of its strategy raises."""
    facts, mpio = job.writer.facts, job.options.running.mpio
    if facts.points:
        return Pointing.planned(job)
    copied = None if facts.copier is None else CopiedBytes.planned(job, facts.copier)
    if copied is not None:
        return copied
    if mpio is not None and facts.through_mpi is not None:
        return MPIOConversion.planned(job, mpio, facts.through_mpi)
    return Conversion(job, job.plan)
