"""A planned conversion, of any strategy: publish, create, write every piece, finish.

The class here makes outputs of decoded frames. Other strategies are subclasses: each plans its jobs
(`from_job`), and overrides what it does differently.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mdio.converters.options import ConvertResult, Progress
from mdio.converters.periodic import count_all_crossings
from mdio.converters.storage import create_with_stripes
from mdio.converters.strategies import resuming
from mdio.converters.strategies.job import Job, file_has
from mdio.converters.strategies.resuming import find_complete_output
from mdio.converters.strategies.write_tasks import (
    WriteTaskWorker,
    describe_piece,
    order_for_concurrent_files,
)
from mdio.core.errors import MdioError, OutputError, PlanError
from mdio.core.files.fingerprint import SourceStates
from mdio.core.files.index import index_paths
from mdio.core.files.journal import (
    N_REUSED_KEY,
    Journal,
    allocated_nbytes,
    stored_frames_text,
    unfinished_in,
)
from mdio.core.files.locks import (
    TEMPORARY,
    concurrent_change_error,
    leftovers,
    state_at,
    temporary_for,
)
from mdio.core.files.publish import link_target, output_errors, publish, recover
from mdio.core.files.replacing import drop_unfinished
from mdio.core.files.store import store_at
from mdio.core.frames import notes_on_times
from mdio.core.signals import raise_received_signal
from mdio.layouts.plan import LayoutPlan
from mdio.layouts.registry import layout_class, refuse_parts
from mdio.layouts.striping.file_systems import no_stripes_note
from mdio.layouts.views import KEEP_ALL
from mdio.layouts.views.view import ViewLayout
from mdio.layouts.writer import LayoutWriter, OutputMeta, PieceRecord, add_not_finite
from mdio.parallel.executors import Executor, results_of

MAX_COMMIT_DELAY_S = 0.25
"""Longest time for which stored pieces wait to be committed; a kill loses these."""


class Conversion:
    """A planned conversion: look at `plan`, then `run` it."""

    copies: ClassVar[bool] = False
    """Whether frames are copied as bytes, without decoding them."""

    def __init__(
        self,
        job: Job,
        plan: LayoutPlan,
        writer: type[LayoutWriter] | None = None,
        **writer_options: Any,
    ) -> None:
        self.job = job
        self.plan = plan
        self.out, self.view, self.selected_atoms = job.out, job.view, job.selected_atoms
        self.extended, self.repaired = job.extended, job.repaired
        self.writer = writer or job.writer
        self.writer_options = writer_options
        info, frames = self.view.source.info, self.view.frames
        # The source may grow where frames are left out at its end: a simulation may be continued.
        may_grow = bool(info.lost) or int(max(frames[0], frames[-1])) + 1 < info.n_frames
        self.source_states = SourceStates(job.files, may_grow=may_grow)
        self._former_state = job.former_state
        """State of the output that is replaced, before it is read."""
        if self._former_state is None:
            with output_errors(job.out):
                self._former_state = state_at(job.out)
        self.uuid: str | None = None
        """Identity of the output after `run`, on its owner."""
        self._nbytes_out = 0
        self._journal: Journal | None = None
        self._times: dict[int, NDArray[np.float64]] = {}
        """Times of the committed pieces, by their first frames; of copied ones, the first times."""
        self._upload = store_at(self.out).upload(
            self.out,
            continues=self._replaces_former,
            uploads_while_writing=self.writer.facts.writes_files_once,
        )

    def run(
        self,
        executor: Executor,
        *,
        force: bool = False,
        resume: bool = False,
        progress: Progress | None = None,
    ) -> ConvertResult:
        """Convert, and publish the output when it is whole.

        With `resume`, continue an earlier run; begin where there is none; do nothing where the
        output is complete.

        Raises OutputError: the output exists, the disk is full, ... SourceError: the source turns
        out damaged on the way. PlanError: with `resume`, an output that cannot be continued.
        """
        if resume and not force:
            complete = executor.from_owner(self._find_complete)
            if complete is not None:
                self.view.close()
                return complete
        stack = ExitStack()
        start_s = 0.0
        records: list[PieceRecord] = []
        n_resumed = 0

        def begin() -> Any:
            nonlocal start_s, n_resumed
            if store_at(self.out).has_folders:  # before topologies get their names
                recover(self.out)
            meta = self.job.meta()
            identity = self._identity(meta)
            if self.extended is not None:
                identity["appended to"] = self.extended.continuation.manifest["uuid"]
            temporary = self._begin_publication(stack, identity, force=force, resume=resume)
            start_s = time.perf_counter()
            if not temporary.exists():
                storage = self.job.options.storage
                striping = create_with_stripes(temporary, storage, self.plan)
                meta = replace(meta, striping=striping)
            meta = meta if self.repaired is None else self.repaired.meta
            meta = meta if self.extended is None else self.extended.meta(meta)
            writer = self._open_writer(stack, temporary, identity, meta, resume)
            self.uuid = writer.meta.uuid
            self._note_stripes(writer)
            journal = self._journal
            if journal is not None and journal.records:
                records.extend(resuming.resume_from(journal, writer))
                for record in records:
                    self._commit(writer, record, None)
            else:
                writer.create()
            if self.extended is not None:
                self.extended.continuation.reuse_units(writer)
            n_resumed = sum(record.stop - record.start for record in records)
            if n_resumed:
                n_reused_frames = None if self.extended is None else self.n_reused_frames
                frames_text = stored_frames_text(n_resumed, self.plan.n_frames, n_reused_frames)
                writer.notes.append(f"{frames_text} taken from an earlier run")
                if progress is not None:
                    progress(n_resumed, 0)
            worker = self._create_worker(writer)
            worker.done = frozenset(record.start for record in records)
            return worker

        def end() -> ConvertResult:
            self.source_states.check()
            writer: LayoutWriter = worker.writer
            if writer.meta.not_finite is not None:
                writer.notes.append(writer.meta.not_finite.note(writer.plan.n_atoms))
            writer.notes += self._notes_on_times()
            if self._journal is not None:
                with output_errors(writer.path):
                    self._journal.close()
            writer.finish()
            self.plan = self.plan.replace(notes=tuple(writer.notes))
            stack.close()
            return self.job.result(
                self.plan,
                nbytes_out=self._nbytes_out,
                seconds=time.perf_counter() - start_s,
                workers=executor.n_workers,
                copied=self.copies,
                resumed_frames=n_resumed,
                topologies=tuple(str(path) for path in self.job.topology_files),
            )

        try:
            with stack:
                worker = executor.from_owner(begin)
                stack.callback(worker.close)
                if self.job.transformed:
                    count_all_crossings(getattr(worker, "source", None), self.plan, executor)
                self._nbytes_out = self._write(worker, executor, progress)
                self._nbytes_out += sum(record.nbytes for record in records)
                return executor.from_owner(end)
        except OSError as error:
            # Perhaps another run has replaced the output meanwhile, and its files.
            former_state = self.job.former_state
            if former_state is not None and state_at(self.out) != former_state:
                raise concurrent_change_error(self.out) from error
            raise
        finally:
            self.view.close()

    def _notes_on_times(self) -> tuple[str, ...]:
        """Return a note where the times that were stored repeat or go back."""
        times_of_pieces = sorted(self._times.items())
        # Otherwise files were joined by their times.
        keeps_all = self.job.options.sources.overlap == KEEP_ALL
        if self.n_reused_frames and keeps_all:
            last = self.n_reused_frames - 1
            times_of_pieces.insert(0, (last, self.view.read(last, last + 1, atoms=()).time))
        numbers = [start + np.arange(len(times)) for start, times in times_of_pieces]
        n_known = sum(len(times) for times in self._times.values())  # of copied frames, few
        return notes_on_times(
            np.concatenate([np.empty(0), *(times for _, times in times_of_pieces)]),
            np.concatenate([np.empty(0, np.int64), *numbers]),
            n_files=len(self.job.files) if self.extended is None else 2,
            lacks_first_frame=bool(len(self.view.frames) and self.view.frames[0]),
            lacks_frames=n_known < self.plan.n_frames - self.n_reused_frames,
        )

    def expected(self) -> ViewLayout:
        """Return the frames that the output should hold, once it is written, for `verify`."""
        return self.view if self.extended is None else self.extended.expected_view(self.out)

    def close(self) -> None:
        """Close the source; it opens again when it is read."""
        self.view.close()

    @property
    def _replaces_former(self) -> bool:
        """Whether the output replaces a former one that its frames come from."""
        return self.extended is not None or self.repaired is not None

    @property
    def n_reused_frames(self) -> int:
        """Frames that stay of the output that is continued."""
        return 0 if self.extended is None else self.extended.continuation.n_reused_frames

    @property
    def _needed_nbytes(self) -> float:
        """Bytes that will be written at least; 0 if unknown."""
        if self.plan.compression is not None or self.plan.is_rounded:
            return self.job.min_nbytes
        return self.plan.remaining(self.n_reused_frames).nbytes

    def _note_stripes(self, writer: LayoutWriter) -> None:
        """Add a note where stripes were requested, and the file system did something else."""
        striping = writer.meta.striping or {}
        needs_no_note = self.repaired is not None or no_stripes_note(self.out) is not None
        if striping.get("asked") and striping.get("reason") and not needs_no_note:
            writer.notes.append(f"{self.out}: stripes are not as asked for: {striping['reason']}")

    def _check_output(self, temporary: Path) -> None:
        """Check the temporary output before it is renamed."""
        nbytes = read_back(temporary, self.plan, self.repaired.compare if self.repaired else None)
        if nbytes is not None and not self._replaces_former:
            self._nbytes_out = nbytes

    def _identity(self, meta: OutputMeta) -> dict[str, Any]:
        """Return the values that must be equal for a run to continue an earlier one."""
        return resuming.conversion_identity(
            meta, self.plan, self.selected_atoms.topology_paths, self.job.universe_crc32c
        )

    def _find_complete(self) -> ConvertResult | None:
        """Return the result if the output is complete; unfinished copies of it are removed then."""
        recover(self.out)
        result = find_complete_output(self.job, self.plan, copies=self.copies)
        path = link_target(self.out).absolute() if store_at(self.out).has_folders else None
        if isinstance(result, str):
            traces = [] if path is None else leftovers([path])
            if not any(unfinished for trace in traces for unfinished in unfinished_in(trace)):
                raise OutputError(f"{self.out}: it exists already, and {result}")
            return None
        if result is not None and path is not None:
            drop_unfinished(path, self._identity(self.job.meta()))
        return result

    def _begin_publication(
        self, stack: ExitStack, identity: Mapping[str, Any], *, force: bool, resume: bool
    ) -> Path:
        """Enter `publish`, write the topologies, and return the temporary path."""
        source_grows = self.job.options.running.source_grows
        if force or self._replaces_former:
            refuse_parts(self.out)
        # An existing topology may serve several outputs: it stays.
        new_topologies = {
            path: data for path, data in self.job.topology_files.items() if not file_has(path, data)
        }
        temporary = stack.enter_context(
            publish(
                self.out,
                force=force or self._replaces_former,
                sources=[*self.job.files, *self.job.other_files],
                companions=list(new_topologies),
                check=self._check_output,
                identity=identity,
                resume=resume,
                # An output that follows a source, or is repaired, is started over each time.
                discard=force
                or (self._upload is None and (source_grows or self.repaired is not None)),
                upload=self._upload,
                former_state=self._former_state,
                continues=self._replaces_former,
            )
        )
        nbytes = self._needed_nbytes
        if nbytes and (self._upload is None or not self._upload.uploads_while_writing):
            nbytes -= allocated_nbytes(temporary)
            if nbytes > (free := shutil.disk_usage(temporary.parent).free):
                raise OutputError(
                    f"{self.out}: needs at least {nbytes:.0f} bytes, but only {free} are free in "
                    f"{temporary.parent}; free some space, choose another folder, or use "
                    "--precision or --select"
                )
        for path, data in new_topologies.items():
            temporary_for(temporary.with_name(path.name), temporary).write_bytes(data)
        return temporary

    def _open_writer(
        self,
        stack: ExitStack,
        temporary: Path,
        identity: Mapping[str, Any],
        meta: OutputMeta,
        resume: bool,
    ) -> LayoutWriter:
        """Return the writer; open a journal where another run could continue this one."""
        # An output that follows a source has little to lose: it is started over.
        if (
            self.writer.facts.resumes
            and self.repaired is None
            and not self.job.options.running.source_grows
        ):
            with output_errors(temporary):
                first_record = resuming.first_record(identity, meta, self.plan)
                if self.extended is not None:
                    first_record[N_REUSED_KEY] = self.n_reused_frames
                journal = Journal(temporary, first_record)
                self._journal = stack.enter_context(journal)
            meta, self.plan = resuming.restore_plan(journal, meta, self.plan)
        elif resume:
            raise PlanError(
                f"{self.out}: conversions to the layout {self.plan.layout} cannot be resumed; "
                "leave out --resume"
            )
        writer = self.writer(temporary, self.plan, meta, **self.writer_options)
        stack.push(lambda error_type, *_: writer.abort() if error_type is not None else None)
        return writer

    def _create_worker(self, writer: LayoutWriter) -> Any:
        """Return the callable that makes one piece, in any process."""
        return WriteTaskWorker(self.view, writer, self.repaired.former if self.repaired else None)

    def _pieces(self, worker: Any) -> list[tuple[int, int]]:
        """Return the pieces that are yet to be made, as (start, stop) frames."""
        return [
            (start, stop)
            for start, stop in worker.writer.plan.write_tasks()
            if start >= self.n_reused_frames and start not in worker.done
        ]

    def _write(self, worker: Any, executor: Executor, progress: Progress | None) -> int:
        """Make this process' share of the pieces; the owner stores and commits all."""
        nbytes, rank_options = 0, dict[str, Any]()
        if executor.ranks is not None:  # writes differ much in the time that they take
            owner_takes_items = not self.plan.writing.by_owner
            # The owner alone stores and commits what ranks have made.
            rank_options = {
                "dynamic": True,
                "owner_takes_items": owner_takes_items,
                "to_all": False,
            }
        writer: LayoutWriter = worker.writer
        worker.reuses_memory = executor.allows_buffer_reuse
        worker.overlaps_writes = bool(self.plan.writing.direct) and executor.shares_memory
        pieces = order_for_concurrent_files(
            self._pieces(worker), writer.plan.segment_frames, executor.n_workers
        )

        uncommitted: list[PieceRecord] = []
        """Pieces that may not be in their files yet."""
        next_commit_s = time.monotonic() + MAX_COMMIT_DELAY_S

        def commit_all() -> None:
            nonlocal next_commit_s
            writer.drain()
            while uncommitted:
                record = uncommitted.pop(0)
                self._commit(writer, record, progress)
                self._record(writer, record)
            next_commit_s = time.monotonic() + MAX_COMMIT_DELAY_S

        try:
            for _, (record, items) in results_of(
                executor, worker, pieces, describe_piece, **rank_options
            ):
                raise_received_signal()
                for item in items:
                    writer.store(item)
                uncommitted.append(record)
                nbytes += record.nbytes
                if not worker.overlaps_writes or time.monotonic() >= next_commit_s:
                    commit_all()
        except BaseException:
            with suppress(MdioError):  # which must not replace the one that is being raised
                commit_all()
            raise
        commit_all()
        return nbytes

    def _record(self, writer: LayoutWriter, record: PieceRecord) -> None:
        """Add a stored piece to the journal, and upload it into an object store."""
        for piece, files in writer.written_pieces(record):
            if self._upload is not None and self._upload.uploads_while_writing:
                self._upload.add(writer.path, files)
            if self._journal is not None:
                with output_errors(writer.path):
                    self._journal.add(resuming.journal_record(piece), files)

    def _commit(self, writer: LayoutWriter, record: PieceRecord, progress: Progress | None) -> None:
        """Commit a stored piece, and count the coordinates in it that are not numbers."""
        writer.commit(record)
        self._times[record.start] = record.time
        if not self.repaired:  # whose manifest has the count
            not_finite = add_not_finite(writer.meta.not_finite, record.not_finite, record.start)
            writer.meta = replace(writer.meta, not_finite=not_finite)
        if progress is not None:
            n_frames = record.stop - record.start
            progress(n_frames, n_frames * self.view.info.frame_nbytes)


READ_BACK_CHUNKS = 4
"""Chunks or segments of which a frame is read, the first and the last among them."""


def read_back(
    path: Path, plan: LayoutPlan, check: Callable[[Mapping[str, Any]], None] | None = None
) -> int | None:
    """Check an output before it gets its name: open it, and read some of it.

    Opening checks the manifest and the tables; reading, the checksums of what is read. `verify`
    reads all, but would take as long as any other pass over the trajectory. `check` is called with
    the manifest, and may raise. Returns the output's bytes; None if they are not known, as of
    references in a store.
    """
    try:
        with layout_class(plan.layout)(path) as layout:
            shape = (layout.info.n_frames, layout.info.n_atoms)
            nbytes = layout.info.nbytes if layout.facts.is_folder else None
            if nbytes is None and store_at(path).has_folders:
                nbytes = path.stat().st_size
            edges = layout.boundaries()
            if shape == (plan.n_frames, plan.n_atoms):
                firsts = edges[np.linspace(0, len(edges) - 2, READ_BACK_CHUNKS).round().astype(int)]
                frames = sorted({*firsts.tolist(), plan.n_frames - 1})
                layout.prefetch((frame, frame + 1) for frame in frames)  # stores answer late
                for frame in frames:
                    layout.read(frame, frame + 1)
            manifest = layout.manifest
    except OSError as error:
        raise _read_back_error(path, str(error)) from error
    finally:
        with suppress(OSError):
            next(index_paths(path)).unlink()  # under the name of the temporary
    if shape != (plan.n_frames, plan.n_atoms):
        raise _read_back_error(path, f"{shape[0]} frames of {shape[1]} atoms in it")
    if check is not None and manifest is not None:
        check(manifest)
    return nbytes


def _read_back_error(path: Path, problem: str) -> OutputError:
    name, problem = (TEMPORARY.sub(r"\1", text) for text in (str(path), problem))
    return OutputError(
        f"{name}: it does not read back as it was written ({problem}), so it was not put in place; "
        "check the disk and convert again"
    )
