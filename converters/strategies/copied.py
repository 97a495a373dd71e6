"""Segments whose frames are the source's bytes: nothing is decoded, every frame stays as it is."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from itertools import accumulate, islice
from pathlib import Path
from typing import cast

from mdio.converters.options import ConvertResult, Progress
from mdio.converters.provenance import Appended, check_room, output_meta
from mdio.converters.read_back import read_back
from mdio.converters.strategies import resuming
from mdio.converters.strategies.copy_segments import SegmentCopier
from mdio.converters.strategies.repairs import Repairs
from mdio.converters.striping import StripeRequest
from mdio.core.files.fingerprint import SourceStates
from mdio.core.files.journals.journal import Journal
from mdio.core.files.journals.unfinished import allocated_nbytes
from mdio.core.files.publish import flush_tree, output_errors, publish
from mdio.core.frames import TrajectoryInfo
from mdio.layouts.base import Layout
from mdio.layouts.continuing.segments import SegmentsContinuation
from mdio.layouts.frame_bytes import FrameBytes
from mdio.layouts.h5md.layout import refers_to_parts
from mdio.layouts.plan import LayoutPlan, WriteOptions
from mdio.layouts.segments.layout import SegmentsLayout
from mdio.layouts.segments.plan import plan_segments
from mdio.layouts.segments.writer import write_manifest
from mdio.layouts.views.view import within
from mdio.layouts.writer import OutputMeta
from mdio.parallel.executors import Executor

__all__ = ["ByteConversion", "byte_conversion"]

FLUSHERS = 8
"""Threads that flush segments while the next ones are copied; they only wait."""


def byte_conversion(
    out: Path,
    paths: Sequence[Path],
    source: Layout,
    kept: TrajectoryInfo,
    first: int,
    options: WriteOptions,
    striping: StripeRequest,
    topology: Sequence[Path] = (),
    *,
    appended: Appended | None = None,
    planned: LayoutPlan | None = None,
) -> ByteConversion | None:
    """Plan segments by copying bytes; None where frames have to be decoded and encoded again.

    That is so for DCD files with fixed atoms, NetCDF-4 files or those without times, several DCD
    or NetCDF files, and what is no native file.

    Parameters
    ----------
    out
        Folder to be.
    paths
        Files (or folders of segments), for what the output says of its source.
    source
        What they make together.
    kept
        What is in the frames that are kept: neighbouring ones, from frame `first` on.
    options
        Number of segments, container.
    striping
        What was asked of Lustre.
    topology
        Its file, where one was given: not to be replaced.
    appended, planned
        The folder of segments that goes on, and what is planned for it.

    Raises
    ------
    PlanError
        More segments than frames.
    SourceError
        A file is damaged.
    """
    n_taken = 0 if appended is None else appended.continuation.taken
    joined = [
        part
        for layout, *span in within(source.kept, n_taken, source.info.n_frames)
        for part in within(layout.kept, *span)
    ]
    parts = [(list(layout.files()), start, stop) for layout, start, stop in joined]
    layouts = [layout for files, *_ in parts for layout in files]
    try:
        found = _all_bytes(layouts)
        name = layouts[0].name
        if found is None or options.container not in (None, name):
            return None
        rest = iter(found)
        frames = [
            one
            for files, start, stop in parts
            for one in _cut(list(islice(rest, len(files))), start, stop)
        ]
        n_more = kept.n_frames - n_taken
        own = [one for one in _cut(frames, first, first + n_more) if one.n_frames]
        plan = planned or plan_segments(kept, options)
        times_ps = _times_ps(source, first, plan)
    finally:
        for layout in layouts:
            layout.close()
    plan = plan.replace(container=name, nbytes=sum(one.nbytes for one in own))
    copied = ByteConversion(
        out, paths, source, kept, first, plan, own, times_ps, striping, topology
    )
    copied.appended = appended
    return copied


class ByteConversion:
    """A planned copy: look at `plan`, then `run` it."""

    repairs: Repairs | None = None
    """Of which output this is a repair."""
    appended: Appended | None = None
    """What it continues, and takes the place of."""

    def __init__(
        self,
        out: Path,
        paths: Sequence[Path],
        source: Layout,
        kept: TrajectoryInfo,
        first: int,
        plan: LayoutPlan,
        frames: Sequence[FrameBytes],
        first_times_ps: Sequence[float],
        striping: StripeRequest,
        topology: Sequence[Path],
    ) -> None:
        self.out = out
        self.paths = paths
        self.source = source.info
        self.joined = source.joined
        self.kept = kept
        self.first = first
        self.plan = plan
        self.frames = frames
        self.first_times_ps = first_times_ps
        self.striping = striping
        may_grow = bool(self.source.lost) or first + kept.n_frames < self.source.n_frames
        self.states = SourceStates(paths, may_grow=may_grow)
        self.topology = topology
        self._journal: Journal | None = None

    def run(
        self,
        executor: Executor,
        *,
        force: bool = False,
        resume: bool = False,
        progress: Progress | None = None,
    ) -> ConvertResult:
        """resuming.Copy, and publish the output when it is whole; see `Conversion.run`."""
        stack = ExitStack()
        begun = 0.0
        done: dict[int, resuming.Copy] = {}
        meta: OutputMeta

        def begin() -> SegmentCopier:
            nonlocal begun, meta
            meta = output_meta(
                self.paths,
                self.source,
                dt_ps=self.kept.dt_ps,
                frames=[[self.first, self.first + self.kept.n_frames, 1]],
                joined=self.joined,
            )
            words = resuming.made_of(meta, self.plan)
            folder = stack.enter_context(
                publish(
                    self.out,
                    force=force or self.appended is not None,
                    sources=[*self.paths, *self.topology],
                    was_in_parts=refers_to_parts,
                    check=lambda temporary: read_back(
                        temporary, self.plan, self.repairs.compare if self.repairs else None
                    ),
                    begun=words,
                    resume=resume,
                )
            )
            check_room(self.out, self.plan.nbytes - allocated_nbytes(folder))
            begun = time.perf_counter()
            if not folder.exists():
                meta = replace(meta, striping=self.striping.apply(folder, self.plan))
            kept = 0 if self.appended is None else self.appended.continuation.taken
            copier = SegmentCopier(folder, self.plan, self.frames, self.first_times_ps, kept)
            copier.create()
            if self.repairs is not None:
                copier.former = cast(SegmentsLayout, self.repairs.former)
                meta = self.repairs.meta
                return copier
            if self.appended is not None:
                continuation = cast(SegmentsContinuation, self.appended.continuation)
                done.update(enumerate(continuation.link(folder)))
                meta = self.appended.meta(meta)
                return copier
            with output_errors(folder):
                journal = Journal(folder, resuming.first_words(words, meta, self.plan))
                self._journal = stack.enter_context(journal)
            meta = resuming.same_output(self._journal, meta)
            done.update(resuming.segments_taken_up(self._journal, folder))
            copier.done = frozenset(done)
            if done:
                n_frames = sum(segment.n_frames for segment, _ in done.values())
                notes = (*self.plan.notes, resuming.note_of(n_frames, self.plan))
                self.plan = self.plan.replace(notes=notes)
                if progress is not None:
                    progress(n_frames, 0)
            return copier

        def end() -> ConvertResult:
            self.states.check()
            if self._journal is not None:
                with output_errors(copier.folder):
                    self._journal.close()
            segments = [segment for _, (segment, _) in sorted(done.items())]
            tables = [table for _, (_, table) in sorted(done.items())]
            write_manifest(
                copier.folder,
                self.plan,
                meta,
                segments,
                tables,
                time_last_ps=self.kept.time_last_ps,
                has_box=self.kept.has_box,
            )
            stack.close()
            return ConvertResult(
                out=str(self.out),
                layout=self.plan.layout,
                n_frames=self.kept.n_frames,
                n_atoms=self.kept.n_atoms,
                nbytes_in=self.source.nbytes,
                nbytes_out=sum(segment.nbytes for segment in segments),
                seconds=time.perf_counter() - begun,
                workers=executor.n_workers,
                plan=self.plan,
                copied=True,
            )

        with stack:
            copier = executor.from_owner(begin)
            done |= self._copy(copier, executor, progress)
            return executor.from_owner(end)

    def close(self) -> None:
        """Nothing is open."""

    def _copy(
        self, copier: SegmentCopier, executor: Executor, progress: Progress | None
    ) -> dict[int, resuming.Copy]:
        """Do this process' share; in the owner, return the segments and their sums by number."""
        done: dict[int, resuming.Copy] = {}
        flushed: list[Future[None]] = []
        numbers = copier.numbers
        with ThreadPoolExecutor(FLUSHERS) as flushers:
            for at, copied in executor.imap(copier, numbers, describe=_describe):
                done[numbers[at]] = copied
                segment = copied[0]
                if self._journal is not None:
                    with output_errors(copier.folder):
                        record = resuming.record_of_segment(numbers[at], copied)
                        self._journal.add(record, [copier.folder / segment.file])
                flushed.append(flushers.submit(flush_tree, copier.folder / segment.file))
                if progress is not None:
                    progress(segment.n_frames, segment.n_frames * self.kept.frame_nbytes)
            with output_errors(copier.folder):
                for flush in flushed:
                    flush.result()
        return done


def _describe(number: int) -> str:
    return f"segment {number}"


def _all_bytes(layouts: Sequence[Layout]) -> list[FrameBytes] | None:
    """Return the frames of all files as bytes; None if these cannot be copied together."""
    if len({layout.container for layout in layouts}) > 1:
        return None
    found = []
    for layout in layouts:
        with layout:
            found.append(layout.frame_bytes())
    frames = [one for one in found if one is not None]
    headed = any(one.header is not None for one in frames)
    return None if len(frames) < len(found) or (headed and len(frames) > 1) else frames


def _cut(frames: Sequence[FrameBytes], first: int, stop: int) -> Iterator[FrameBytes]:
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
