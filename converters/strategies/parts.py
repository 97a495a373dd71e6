"""Conversion into H5MD in parts: one file for each rank or worker (``--per-rank``)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from mdio.converters.options import ConversionOptions, Progress
from mdio.converters.read_back import read_back_joined
from mdio.converters.strategies.decoded import Conversion
from mdio.converters.strategies.write_tasks import WriteTaskWorker, describe_on
from mdio.core.errors import CorruptLayoutError, PlanError, SourceError
from mdio.core.files.publish import output_errors, parts_of, temporary_for
from mdio.layouts.base import Layout
from mdio.layouts.plan import LayoutPlan
from mdio.layouts.registry import open_layout
from mdio.layouts.striping.stripes import StripeRecord
from mdio.layouts.views.view import ViewLayout
from mdio.layouts.writer import PieceRecord
from mdio.parallel.executors import Executor
from mdio.parallel.mpi_executor import MPIExecutor

if TYPE_CHECKING:
    from mdio.layouts.h5md.parts.writer import H5MDPartsWriter
    from mdio.layouts.h5md.writer import H5MDWriter

__all__ = ["PartsConversion", "check_per_rank", "parts_reason"]

Piece = tuple[int, int]
Task = tuple[int, tuple[Piece, ...]] | None
"""A part, and pieces of it that follow each other, or nothing to do."""
Done = tuple[list[PieceRecord], tuple[int, int] | None]
"""Receipts of the pieces; bytes of the part's file and crc32c of its manifest if it is finished."""
ASKED = "asked for"


def check_per_rank(options: ConversionOptions, layout: str) -> None:
    """Refuse what cannot be written in parts; raises PlanError."""
    if layout != "h5md":
        raise PlanError(
            f"--per-rank writes h5md in parts, not {layout}; take .h5md for the output, or leave "
            "it out: workers write shards and segments as files of their own anyway"
        )
    if options.mpio is not None:
        raise PlanError(
            "--per-rank is for writing without parallel HDF5; leave --mpio and --collective out"
        )


def parts_reason(options: ConversionOptions, plan: LayoutPlan, executor: Executor) -> str | None:
    """Return why an h5md output should lie in parts; None if it should not.

    It should where that is asked for, and on ranks whose h5py has no parallel HDF5 if chunks are
    compressed: all would have to pass through rank 0.
    """
    if options.per_rank:
        return ASKED
    if plan.compression is None or not isinstance(executor, MPIExecutor) or executor.n_workers < 2:
        return None
    import h5py

    from mdio.layouts.h5md.parts.writer import plan_parts

    if h5py.get_config().mpi or len(plan_parts(plan, executor.n_workers).segment_frames) < 2:
        return None
    return "this h5py has no parallel HDF5, and compressed chunks of one file would pass rank 0"


class PartsConversion(Conversion):
    """A planned conversion whose parts are made by one process each."""

    reason: str

    def divide(self, n_parts: int, reason: str) -> None:
        """Divide the frames among `n_parts`, or as many as there are chunks for."""
        from mdio.layouts.h5md.parts.writer import H5MDPartsWriter, plan_parts

        self.reason = reason
        plan = self.plan if self.plan.segment_frames else plan_parts(self.plan, n_parts)
        count, name = len(plan.segment_frames), parts_of(self.out).name
        why = "" if reason == ASKED else f" ({reason})"
        files = f"{count:,} file" + ("" if count == 1 else "s")
        note = (
            f"frames lie in {files} in {name}, joined by virtual datasets in "
            f"{self.out.name}{why}; keep the two together"
        )
        self.plan = plan.replace(notes=(*plan.notes, note))
        self.writer = partial(H5MDPartsWriter, target=self.out, reason=reason)

    @property
    def in_parts(self) -> bool:
        """That the output has a folder of parts."""
        return True

    def _check(self, temporary: Path) -> None:
        look = self.repairs.compare if self.repairs else None
        read_back_joined(temporary, self.plan, self.out, look)

    def _stripe(self, path: Path) -> StripeRecord | None:
        """Stripe the folder in which parts are made, and not the file at `path`."""
        folder = temporary_for(parts_of(path.with_name(self.out.name)), path)
        with output_errors(folder):
            folder.mkdir(exist_ok=True)
        return super()._stripe(folder)

    def _write(self, work: WriteTaskWorker, executor: Executor, progress: Progress | None) -> int:
        writer = cast("H5MDPartsWriter", work.writer)
        worker = PartWorker(work.source, writer, parts_of(self.out) if self.repairs else None)
        name = describe_on(executor)

        def describe(task: Task) -> str:
            return "no frames" if task is None else name((task[1][0][0], task[1][-1][1]))

        tasks = list(self._tasks(writer, executor))
        nbytes = 0
        try:
            for number, (records, finished) in executor.imap(worker, tasks, describe=describe):
                for record in records:
                    self._commit(writer, record, progress)
                    nbytes += record.nbytes
                task = tasks[number]
                if finished is not None and task is not None:
                    writer.note(task[0], *finished)
        finally:
            worker.close()
        return nbytes

    def _tasks(self, writer: H5MDPartsWriter, executor: Executor) -> Iterator[Task]:
        """Yield work for `executor` so that all pieces of a part meet the same process.

        Elsewhere a part is one task. Ranks know their tasks beforehand (every n-th), so there a
        piece is one, and ranks learn of a failure between pieces.
        """
        every = self.plan.write_tasks()
        parts: dict[int, Sequence[Piece]] = {
            number: [piece for piece in every if first <= piece[0] < stop]
            for number, (first, stop) in enumerate(writer.ranges)
            if first >= self.n_taken
        }
        if not isinstance(executor, MPIExecutor):
            yield from ((number, tuple(pieces)) for number, pieces in parts.items())
            return
        shares: list[list[Task]] = [[] for _ in range(executor.n_workers)]
        for number, pieces in parts.items():
            shares[number % len(shares)] += [(number, (piece,)) for piece in pieces]
        for turn in itertools.zip_longest(*shares):
            yield from turn


class PartWorker:
    """Makes, fills and finishes parts, one after the other, in one process.

    Parameters
    ----------
    source
        All frames of the output.
    writer
        Of the file that joins the parts.
    former
        Folder of the parts that are repaired.
    """

    def __init__(self, source: Layout, writer: H5MDPartsWriter, former: Path | None = None) -> None:
        self.former = former
        self.source = source
        self.writer = writer
        self._number = -1
        self._part: WriteTaskWorker | None = None

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
            for piece in pieces:
                record, items = self._part((piece[0] - first, piece[1] - first))
                for item in items:
                    self._part.writer.store(item)
                self._part.writer.commit(record)
                records.append(replace(record, start=piece[0], stop=piece[1], crcs={}))
            return records, self._finish() if pieces[-1][1] == stop else None
        except BaseException:
            self.close()
            raise

    def _begin(self, number: int) -> None:
        self.close()
        frames = range(*self.writer.ranges[number])
        source = ViewLayout(self.source.path, source=self.source, frames=frames)
        writer = self.writer.part_writer(number)
        self._number, self._part = number, WriteTaskWorker(source, writer, self._former(writer))
        writer.create()

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
        writer.finish()
        self._part = None
        return writer.path.stat().st_size, writer.manifest_crc32c

    def close(self) -> None:
        """Leave a part that is not finished as it is."""
        if self._part is not None:
            self._part.writer.abort()
            self._part = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_part": None}
