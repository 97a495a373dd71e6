"""A planned conversion of decoded frames: publish, create, write every piece, finish."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from mdio.converters.options import ConvertResult, Progress
from mdio.converters.provenance import Appended, check_room, output_meta
from mdio.converters.read_back import read_back
from mdio.converters.selection import AtomChoice
from mdio.converters.strategies.repairs import Repairs
from mdio.converters.strategies.resuming import (
    first_words,
    made_of,
    note_of,
    record_of,
    same_output,
    take_up,
)
from mdio.converters.strategies.write_tasks import WriteTaskWorker, describe_on, spread
from mdio.converters.striping import StripeRequest
from mdio.converters.topology import holds, topologies
from mdio.core.errors import PlanError
from mdio.core.files.fingerprint import SourceStates
from mdio.core.files.journals.journal import Journal
from mdio.core.files.journals.unfinished import allocated_nbytes
from mdio.core.files.publish import output_errors, publish, temporary_for
from mdio.layouts.base import Layout
from mdio.layouts.h5md.layout import refers_to_parts
from mdio.layouts.plan import LayoutPlan
from mdio.layouts.striping.stripes import StripeRecord
from mdio.layouts.views.view import ViewLayout
from mdio.layouts.writer import LayoutWriter, OutputMeta, PieceRecord
from mdio.parallel.executors import Executor
from mdio.parallel.mpi_executor import MPIExecutor

__all__ = ["Conversion", "MakeWriter"]

MakeWriter = Callable[[Path, LayoutPlan, OutputMeta], LayoutWriter]
"""A class of writers, or what makes one with options of its own."""


class Conversion:
    """A planned conversion: look at `plan`, then `run` it."""

    appended: Appended | None = None
    """What it continues, and takes the place of."""
    repairs: Repairs | None = None
    """Of which output this is a repair."""

    def __init__(
        self,
        out: Path,
        view: ViewLayout,
        choice: AtomChoice,
        plan: LayoutPlan,
        writer: MakeWriter,
        source_paths: Sequence[Path],
        striping: StripeRequest,
        transformed: Mapping[str, str | None] | None = None,
        joined: Mapping[str, Any] | None = None,
    ) -> None:
        self.joined = joined
        self.out = out
        self.view = view
        self.choice = choice
        self.plan = plan
        self.writer = writer
        self.source_paths = source_paths
        self.transformed = transformed
        self.striping = striping
        self.beside = topologies(choice, out, source_paths)
        info = view.source.info
        self.nbytes_in = info.nbytes
        # Of a simulation that goes on, frames that are there can be had.
        may_grow = bool(info.lost) or int(max(view.frames[0], view.frames[-1])) + 1 < info.n_frames
        self.states = SourceStates(source_paths, may_grow=may_grow)
        self._journal: Journal | None = None

    def run(
        self,
        executor: Executor,
        *,
        force: bool = False,
        resume: bool = False,
        progress: Progress | None = None,
    ) -> ConvertResult:
        """Convert, and publish the output when it is whole.

        With `resume`, go on where a former run ended; begin where there is none.

        Raises
        ------
        OutputError
            The output exists, the disk is full, ...
        SourceError
            The source turns out damaged on the way.
        PlanError
            With `resume`, an output that cannot be gone on with.
        """
        stack = ExitStack()
        begun = 0.0
        taken: list[PieceRecord] = []

        def begin() -> WriteTaskWorker:
            nonlocal begun
            meta = output_meta(
                self.source_paths,
                self.view.source.info,
                dt_ps=self.view.info.dt_ps,
                frames=self.view.runs,
                atoms=self.choice.kept,
                groups=self.choice.groups,
                transformed=self.transformed,
                joined=self.joined,
            )
            if self.view.unreadable:
                lost = {"unreadable_frames": self.view.unreadable}
                meta = replace(meta, source={**meta.source, **lost})
            words = made_of(meta, self.plan, self.choice.files)
            temporary = self._publication(stack, words, force=force, resume=resume)
            begun = time.perf_counter()
            if not temporary.exists():
                meta = replace(meta, striping=self._stripe(temporary))
            meta = meta if self.repairs is None else self.repairs.meta
            if self.appended is not None:
                meta = self.appended.meta(meta)
            writer = self.writer(temporary, self.plan, meta)
            why = writer.why_no_resume
            if why is None and self.repairs is None and self.appended is None:
                with output_errors(temporary):
                    first = first_words(words, meta, self.plan)
                    self._journal = stack.enter_context(Journal(temporary, first))
                writer.meta = same_output(self._journal, meta)
            elif resume:
                raise PlanError(
                    f"{self.out}: this cannot be gone on with after an end "
                    f"({why or 'it adds frames'}); leave out --resume"
                )
            stack.push(lambda kind, *_: writer.abort() if kind is not None else None)
            if self._journal is not None and self._journal.records:
                taken.extend(take_up(self._journal, writer))
                for receipt in taken:
                    self._commit(writer, receipt, None)
                n_frames = sum(receipt.stop - receipt.start for receipt in taken)
                writer.notes.append(note_of(n_frames, self.plan))
                if progress is not None:
                    progress(n_frames, 0)
            else:
                writer.create()
            if self.appended is not None:
                self.appended.continuation.take_over(writer)
            return WriteTaskWorker(self.view, writer, self.repairs.former if self.repairs else None)

        def end() -> ConvertResult:
            self.states.check()
            if work.writer.meta.not_finite is not None:
                work.writer.notes.append(str(work.writer.meta.not_finite))
            if self._journal is not None:
                with output_errors(work.writer.path):
                    self._journal.close()
            work.writer.finish()
            self.plan = self.plan.replace(notes=tuple(work.writer.notes))
            stack.close()
            return self._result(nbytes, time.perf_counter() - begun, executor.n_workers)

        sources: list[Layout] = [self.view]
        try:
            with stack:
                work = executor.from_owner(begin)
                sources.append(work.source)
                nbytes = self._write(work, executor, progress)
                nbytes += sum(receipt.nbytes for receipt in taken)
                return executor.from_owner(end)
        finally:
            for source in sources:
                source.close()

    def close(self) -> None:
        """Close the source; it opens again when it is read."""
        self.view.close()

    @property
    def n_taken(self) -> int:
        """Frames that are taken over from the output that goes on."""
        return 0 if self.appended is None else self.appended.continuation.taken

    @property
    def in_parts(self) -> bool:
        """Whether the output has a folder of parts."""
        return False

    def _stripe(self, path: Path) -> StripeRecord | None:
        """Ask for the stripes of what is about to be made."""
        return self.striping.apply(path, self.plan)

    def _check(self, temporary: Path) -> None:
        """Look at what was written before it gets its name."""
        read_back(temporary, self.plan, self.repairs.compare if self.repairs else None)

    def _publication(
        self, stack: ExitStack, words: Mapping[str, Any], *, force: bool, resume: bool
    ) -> Path:
        """Enter `publish`, write the topologies, and return the temporary path."""
        # The same topology may serve several outputs: one that is there already stays.
        new = {path: data for path, data in self.beside.items() if not holds(path, data)}
        temporary = stack.enter_context(
            publish(
                self.out,
                force=force or self.appended is not None,
                sources=[*self.source_paths, *self.choice.files],
                companions=list(new),
                in_parts=self.in_parts,
                was_in_parts=refers_to_parts,
                check=self._check,
                begun=words,
                resume=resume,
            )
        )
        if self.plan.compression is None and self.plan.precision is None:
            # Other sizes are not known before.
            missing = self.plan.nbytes * (1 - self.n_taken / self.plan.n_frames)
            check_room(self.out, missing - allocated_nbytes(temporary))
        for path, data in new.items():
            temporary_for(path.absolute(), temporary).write_bytes(data)
        return temporary

    def _write(self, work: WriteTaskWorker, executor: Executor, progress: Progress | None) -> int:
        """Do this process' share, and store and commit in the owner what others have encoded."""
        nbytes = 0
        imap = executor.imap
        if isinstance(executor, MPIExecutor):
            # What a rank writes may take the system now a little, now long.
            imap = partial(executor.imap, at_own_pace=True)
        pieces = [
            piece
            for piece in self.plan.write_tasks()
            if piece[0] >= self.n_taken and piece[0] not in work.writer.done
        ]
        pieces = spread(pieces, self.plan.segment_frames, executor.n_workers)
        describe = describe_on(executor)
        for _, (record, items) in imap(work, pieces, describe=describe):
            for item in items:
                work.writer.store(item)
            self._commit(work.writer, record, progress)
            if self._journal is not None:
                with output_errors(work.writer.path):
                    for one in work.writer.settled(record):
                        self._journal.add(record_of(one), work.writer.files(one))
            nbytes += record.nbytes
        return nbytes

    def _commit(self, writer: LayoutWriter, record: PieceRecord, progress: Progress | None) -> None:
        """Take note of a piece that is stored, and of coordinates in it that are no numbers."""
        writer.commit(record)
        found = record.not_finite
        if found is not None:
            found = replace(found, first_frame=record.start + found.first_frame)
            before = writer.meta.not_finite
            found = found if before is None else before + found
            writer.meta = replace(writer.meta, not_finite=found)
        if progress is not None:
            n_frames = record.stop - record.start
            progress(n_frames, n_frames * self.view.info.frame_nbytes)

    def _result(self, nbytes: int, seconds: float, workers: int) -> ConvertResult:
        return ConvertResult(
            out=str(self.out),
            layout=self.plan.layout,
            n_frames=self.plan.n_frames,
            n_atoms=self.plan.n_atoms,
            nbytes_in=self.nbytes_in,
            nbytes_out=nbytes,
            seconds=seconds,
            workers=workers,
            plan=self.plan,
            topologies=tuple(str(path) for path in self.beside),
        )
