"""Chooses a strategy, by the facts of layout and source; and the strategies that copy bytes."""

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
from mdio.layouts.registry import layout_class, load_class, writable_layouts, writer_class
from mdio.layouts.tables import ChunkTable, FrameTable
from mdio.layouts.views.view import clip_runs
from mdio.layouts.writer import EncodedChunk, LayoutWriter, PieceRecord


class CopyConversion(Conversion):
    """A planned copy of the bytes of frames.

    Not for DCD files with fixed atoms, NetCDF-4 files or those without times, several DCD or NetCDF
    files, and what is no native file: their frames have to be decoded and encoded again.
    """

    copies = True

    @classmethod
    def from_job(cls, job: Job, copier_address: str) -> Self | None:
        """Plan a copy by a writer class; None where frames cannot be copied, or not as a whole."""
        selected_atoms, options = job.selected_atoms, job.options
        is_selected = selected_atoms.atoms is not None or selected_atoms.groups or job.transformed
        is_changed = (is_selected and job.extended is None) or options.storage.precision is not None
        if job.view.first is None or is_changed:
            return None
        source, first, n_frames = job.view.source, job.view.first, job.view.info.n_frames
        n_reused_frames = 0 if job.extended is None else job.extended.continuation.n_reused_frames
        runs = [
            run
            for layout, *frame_bounds in clip_runs(
                source.joined_layouts, n_reused_frames, source.info.n_frames
            )
            for run in clip_runs(layout.joined_layouts, *frame_bounds)
        ]
        file_runs = [(list(layout.file_layouts()), start, stop) for layout, start, stop in runs]
        files = [file for run_files, *_ in file_runs for file in run_files]
        try:
            file_tables = _frame_tables(files)
            if file_tables is None or job.plan.container != files[0].name:
                return None
            remaining = iter(file_tables)
            source_tables = [
                table
                for run_files, start, stop in file_runs
                for table in _cut_frames(list(islice(remaining, len(run_files))), start, stop)
            ]
            stop = first + n_frames - n_reused_frames
            tables = [table for table in _cut_frames(source_tables, first, stop) if table.n_frames]
            starts = accumulate(job.plan.segment_frames[:-1], initial=first)
            times_ps = [float(source.read(n, n + 1, atoms=[]).time[0]) for n in starts]
        finally:
            for file in files:
                file.close()
        share = (n_frames - n_reused_frames) / n_frames
        plan = job.plan.replace(
            nbytes=round(sum(table.nbytes for table in tables) / share),
            piece_frames=max(job.plan.segment_frames),
        )
        return cls(
            job,
            plan,
            load_class(copier_address),
            frames=tables,
            first_times_ps=times_ps,
            info=job.view.info,
            n_reused_frames=n_reused_frames,
        )

    @property
    def _needed_nbytes(self) -> float:
        return self.plan.remaining(self.n_reused_frames).nbytes

    def _create_worker(self, writer: LayoutWriter) -> Any:
        return _SegmentCopier(writer, self.repaired.former if self.repaired else None)


class _SegmentCopier:
    """Copies one segment at each call."""

    def __init__(self, writer: Any, former: Layout | None) -> None:
        self.writer = writer
        self.former = former

    def __call__(self, piece: tuple[int, int]) -> tuple[PieceRecord, list[EncodedChunk]]:
        return self.writer.copy(*piece, self.former), []

    def close(self) -> None:
        """Nothing is open."""


def _frame_tables(files: Sequence[Layout]) -> list[FrameTable] | None:
    """Return where the frames of files lie; None if their bytes cannot be copied together."""
    if len({container_format(file) for file in files}) > 1:
        return None
    tables = []
    for file in files:
        with file:
            table = file.tables().frames
        if table is None:
            return None
        tables.append(table)
    has_header = any(table.header is not None for table in tables)
    return None if has_header and len(tables) > 1 else tables


def _cut_frames(tables: Sequence[FrameTable], first: int, stop: int) -> Iterator[FrameTable]:
    """Yield the part of each file that is among frames ``first:stop`` of all."""
    n_before = 0
    for table in tables:
        begin = min(max(first - n_before, 0), table.n_frames)
        yield table.part(begin, max(begin, min(stop - n_before, table.n_frames)))
        n_before += table.n_frames


class ReferenceConversion(Conversion):
    """A planned output of references to positions in other files."""

    copies = True

    @classmethod
    def from_job(cls, job: Job) -> Self:
        """Plan references, with tables of where positions lie; raises SourceError, PlanError."""
        if job.selected_atoms.atoms is not None or job.transformed:
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
        return cls(job, job.plan, tables=_choose_chunks(tables, job))

    def _create_worker(self, writer: LayoutWriter) -> Any:
        return _ColumnReader(writer, self.view)


def _choose_chunks(tables: list[ChunkTable], job: Job) -> list[ChunkTable]:
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
    cut_tables, n_before = [], 0
    for table in tables:
        n_after = n_before + len(table.offset)
        inside = frames[(frames >= n_before) & (frames < n_after)] - n_before
        cut_tables += [table.frames(inside)] if len(inside) else []
        n_before = n_after
    return cut_tables


class _ColumnReader:
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
    for declaration, value in options.changed():
        if not declaration.metadata.get("layout_specific") or declaration.name in own_options:
            continue
        layouts = sorted(
            name
            for name in writable_layouts()
            if declaration.name in writer_class(name).facts.own_options
        )
        layouts_text = f"layout{'s' if len(layouts) > 1 else ''} {' and '.join(layouts)}"
        raise PlanError(
            f"{out}: {spell_option(declaration, value)} belongs to the {layouts_text}, not to "
            f"{layout}; leave it out, or choose another output"
        )
    flavours, flavour = layout_class(layout).facts.flavours, options.storage.flavour
    if flavour is not None and flavour not in flavours:
        raise PlanError(
            f"--flavour {flavour}: {layout} has {' or '.join(flavours) or 'no flavours'}; "
            "gromacs is one of h5md"
        )
    if flavour is not None and options.running.mpio is not None:
        raise PlanError(
            f"--flavour {flavour} is written without parallel HDF5; leave out --mpio and "
            "--collective"
        )
    if options.running.hints and options.running.mpio is None:
        raise PlanError(
            "--hint (hints= in Python) is for MPI-IO; add --mpio or --collective (mpio=)"
        )


def choose_strategy(job: Job) -> Conversion:
    """Return the planned conversion; raises what the `from_job` of its strategy raises."""
    facts, mpio = job.writer.facts, job.options.running.mpio
    if facts.refers_to_source:
        return ReferenceConversion.from_job(job)
    copy = None if facts.copier is None else CopyConversion.from_job(job, facts.copier)
    if copy is not None:
        return copy
    if mpio is not None and facts.mpi_writer is not None:
        return MPIOConversion.from_job(job, mpio, facts.mpi_writer)
    return Conversion(job, job.plan)
