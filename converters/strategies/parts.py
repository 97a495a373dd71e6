"""Conversion in parts: one file for each rank or worker (``--per-rank``), joined in the output."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from mdio.converters.options import Progress
from mdio.converters.strategies.conversion import Conversion
from mdio.converters.strategies.job import Job
from mdio.converters.strategies.read_back import read_back_joined
from mdio.converters.strategies.resuming import record_of, take_up
from mdio.converters.strategies.write_tasks import WriteTaskWorker, describe_on, sum_of
from mdio.core.errors import CorruptLayoutError, PlanError, SourceError
from mdio.core.files.journal import Journal, unfinished
from mdio.core.files.marks import parts_for, parts_of
from mdio.core.files.publish import output_errors
from mdio.core.files.remote.paths import is_remote, refuse_remote
from mdio.core.files.temporaries import temporary_for
from mdio.layouts.base import Layout
from mdio.layouts.plan import LayoutPlan
from mdio.layouts.registry import load_class, open_layout, parts_at
from mdio.layouts.striping.stripes import StripeRecord
from mdio.layouts.views.view import ViewLayout
from mdio.layouts.writer import LayoutWriter, NotFinite, PieceRecord
from mdio.parallel.executors import Executor

if TYPE_CHECKING:
    from mdio.layouts.h5md.parts.writer import H5MDPartsWriter
    from mdio.layouts.h5md.writer import H5MDWriter

Piece = tuple[int, int]
Task = tuple[int, tuple[Piece, ...]] | None
"""A part, and pieces of it that follow each other, or nothing to do."""
Done = tuple[list[PieceRecord], tuple[int, int] | None]
"""Receipts of the pieces; bytes of the part's file and crc32c of its manifest if it is finished."""
ASKED = "asked for"


def _reason(job: Job, executor: Executor) -> str | None:
    """Return why an output should lie in parts; None if it should not.

    It should where that is asked for, and on ranks whose h5py has no parallel HDF5 if chunks are
    compressed: all would have to pass through rank 0.
    """
    former = job.repairs or (job.appended and job.appended.continuation)
    if former:
        return former.manifest.get("parts_reason") if "parts" in former.manifest else None
    if job.options.per_rank:
        refuse_remote(job.out, "an output in parts (--per-rank)")
        return ASKED
    if is_remote(job.out):
        return None
    several = executor.ranks is not None and executor.n_workers > 1
    if job.plan.compression is None or job.options.flavour is not None or not several:
        return None
    import h5py

    divided = load_class(job.writer.in_parts or "").divided(job.plan, executor.n_workers)
    if h5py.get_config().mpi or len(divided.segment_frames) < 2:
        return None
    return "this h5py has no parallel HDF5, and compressed chunks of one file would pass rank 0"


def manifests_of_parts(out: Path, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what parts of an output say of themselves; their uuids alone if they cannot be read.

    Parts of an output that was appended to are of several conversions.
    """
    manifests = []
    for row in rows:
        manifest = {"uuid": row["uuid"]}
        path = parts_at(out) / row["file"]
        with (
            suppress(SourceError, CorruptLayoutError),
            open_layout(path, layout="h5md", verify=False, uuid=row["uuid"]) as part,
        ):
            manifest = dict(part.manifest or manifest)
        manifests.append(manifest)
    return manifests


class PartsConversion(Conversion):
    """A planned conversion whose parts are made by one process each.

    That process keeps a journal of its part beside it; the owner keeps one of finished parts.
    """

    in_parts = True
    reason: str

    @classmethod
    def planned(cls, job: Job, executor: Executor) -> Self | None:
        """Divide the frames among the workers, as far as there are chunks for them."""
        reason = None if job.writer.in_parts is None else _reason(job, executor)
        if reason is None:
            return None
        writer, plan = load_class(job.writer.in_parts or ""), job.plan
        plan = plan if plan.segment_frames else writer.divided(plan, executor.n_workers)
        made = cls(job, plan, writer, target=job.out, reason=reason)
        made.reason = reason
        name = parts_for(job.out, "*").name
        made.plan = plan.replace(notes=(*plan.notes, made._told(plan, name)))
        return made

    def _told(self, plan: LayoutPlan, name: str) -> str:
        count = len(plan.segment_frames)
        why = "" if self.reason == ASKED else f" ({self.reason})"
        files = f"{count:,} file" + ("" if count == 1 else "s")
        return (
            f"frames lie in {files} in {name}, joined by virtual datasets in "
            f"{self.out.name}{why}; keep the two together"
        )

    def _check(self, temporary: Path) -> None:
        look = self.repairs.compare if self.repairs else None
        read_back_joined(temporary, self.plan, self.out, look)

    def _stripe(self, path: Path) -> StripeRecord | None:
        """Stripe the folder in which parts are made, and not the file at `path`."""
        folder = temporary_for(parts_of(path.with_name(self.out.name)), path)
        with output_errors(folder):
            folder.mkdir(exist_ok=True)
        return super()._stripe(folder)

    def _open(self, stack: ExitStack, temporary: Path, *words: Any) -> LayoutWriter:
        told = self._told(self.plan, parts_for(self.out, "*").name)
        writer = cast("H5MDPartsWriter", super()._open(stack, temporary, *words))
        if self.repairs is not None:
            writer.former = manifests_of_parts(self.out, self.repairs.manifest["parts"])
        # As many as the first run had workers, whose parts are gone on with.
        now = self._told(self.plan, writer.folder_name)
        writer.notes = [now if note == told else note for note in writer.notes]
        return writer

    def _n_there(self, temporary: Path, taken: Sequence[PieceRecord]) -> int:  # noqa: ARG002
        """Return how many frames there are in parts, finished or not."""
        left = None if self._journal is None else unfinished(temporary)
        return 0 if left is None else left.n_frames

    def _worker(self, writer: LayoutWriter) -> Any:
        former = parts_at(self.out) if self.repairs else None
        return PartWorker(self.view, cast("H5MDPartsWriter", writer), former, self._journal)

    def _write(self, work: Any, executor: Executor, progress: Progress | None) -> int:
        writer: H5MDPartsWriter = work.writer
        name = describe_on(executor)

        def describe(task: Task) -> str:
            return "no frames" if task is None else name((task[1][0][0], task[1][-1][1]))

        tasks = list(self._tasks(writer, executor))
        nbytes = 0
        odd: dict[int, NotFinite | None] = {}
        for at, (records, finished) in executor.imap(work, tasks, describe=describe):
            number = (tasks[at] or (0, ()))[0]
            first = writer.ranges[number][0]
            for record in records:
                self._commit(writer, record, progress)
                nbytes += record.nbytes
                odd[number] = sum_of(odd.get(number), record.not_finite, record.start - first)
            if finished is not None:
                part = writer.finished(number, *finished)
                self._note(writer, replace(part, not_finite=odd.get(number)))
        return nbytes

    def _tasks(self, writer: H5MDPartsWriter, executor: Executor) -> Iterator[Task]:
        """Yield work for `executor` so that all pieces of a part meet the same process.

        Elsewhere a part is one task. Ranks know their tasks beforehand (every n-th), so there a
        piece is one, and ranks learn of a failure between pieces.
        """
        every = writer.write_tasks()
        parts: dict[int, Sequence[Piece]] = {
            number: [piece for piece in every if first <= piece[0] < stop]
            for number, (first, stop) in enumerate(writer.ranges)
            if first >= self.n_taken and first not in writer.done
        }
        if executor.ranks is None:
            yield from ((number, tuple(pieces)) for number, pieces in parts.items())
            return
        shares: list[list[Task]] = [[] for _ in range(executor.n_workers)]
        for at, (number, pieces) in enumerate(parts.items()):
            shares[at % len(shares)] += [(number, (piece,)) for piece in pieces]
        for turn in itertools.zip_longest(*shares):
            yield from turn


class PartWorker:
    """Makes, fills and finishes parts, one after the other, in one process.

    `source`: all frames of the output. `writer`: of the file that joins the parts. `former`: folder
    of the parts that are repaired. `journaled`: whether each part has a journal; what that tells of
    it is gone on with.
    """

    def __init__(
        self,
        source: Layout,
        writer: H5MDPartsWriter,
        former: Path | None = None,
        journaled: object = None,
    ) -> None:
        self.former = former
        self.source = source
        self.writer = writer
        self.journaled = journaled is not None
        self._number = -1
        self._part: WriteTaskWorker | None = None
        self._journal: Journal | None = None
        self._taken: dict[int, PieceRecord] = {}

    def __call__(self, task: Task) -> Done:
        """Write pieces; raises PlanError if the part was begun by another process."""
        records: list[PieceRecord] = []
        if task is None:
            return records, None
        number, pieces = task
        first, stop = self.writer.ranges[number]
        try:
            if pieces[0][0] == first:
                self._begin(number)
            if self._part is None or self._number != number:
                raise PlanError("pieces of one part came to several workers; deal them in turn")
            for begin, end in pieces:
                record = self._taken.pop(begin - first, None) or self._made(
                    begin - first, end - first
                )
                records.append(replace(record, start=begin, stop=end, crcs={}, extra={}))
            return records, self._finish() if pieces[-1][1] == stop else None
        except BaseException:
            self._leave()
            raise

    def _begin(self, number: int) -> None:
        self._leave()
        frames = range(*self.writer.ranges[number])
        source = ViewLayout(self.source.path, source=self.source, frames=frames)
        writer = self.writer.part_writer(number)
        self._number, self._part = number, WriteTaskWorker(source, writer, self._former(writer))
        with output_errors(writer.path):
            if self.journaled:
                self._journal = Journal(writer.path, {"first frame": frames.start})
            if self._journal is not None and self._journal.records:
                self._taken = {one.start: one for one in take_up(self._journal, writer)}
                for record in self._taken.values():
                    writer.commit(record)
            else:
                writer.path.unlink(missing_ok=True)
                writer.create()

    def _made(self, start: int, stop: int) -> PieceRecord:
        """Write a piece of the part, counted from its first frame."""
        assert self._part is not None
        writer = self._part.writer
        record, items = self._part((start, stop))
        for item in items:
            writer.store(item)
        writer.commit(record)
        if self._journal is not None:
            with output_errors(writer.path):
                for one in writer.settled(record):
                    self._journal.add(record_of(one), writer.files(one))
        return record

    def _former(self, writer: H5MDWriter) -> Layout | None:
        """Return the part that is repaired, if it can be opened."""
        if self.former is None:
            return None
        former = open_layout(
            self.former / writer.path.name, layout="h5md", verify=False, uuid=writer.meta.uuid
        )
        try:
            _ = former.info
        except (SourceError, CorruptLayoutError):
            return None
        return former

    def _finish(self) -> tuple[int, int]:
        assert self._part is not None
        writer = cast("H5MDWriter", self._part.writer)
        journal, self._journal = self._journal, None
        if journal is not None:
            with output_errors(writer.path):
                journal.close()
        writer.finish()
        self._part = None
        return writer.path.stat().st_size, writer.manifest_crc32c

    def _leave(self) -> None:
        """Leave a part that is not finished as it is."""
        part, journal = self._part, self._journal
        self._part = self._journal = None
        if part is not None:
            part.writer.abort()
        if journal is not None:
            with suppress(OSError):  # what it does not tell is done again
                journal.close()

    def close(self) -> None:
        """Close everything."""
        self._leave()
        self.source.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_part": None, "_journal": None, "_taken": {}}
