"""Segments made by copying the bytes of frames."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import CorruptLayoutError
from mdio.core.files.in_flight import ByteRange, in_flight
from mdio.core.files.index import store_index
from mdio.core.files.publish import output_errors
from mdio.core.files.reading import OpenFile
from mdio.core.files.remote.outputs import is_sent_placeholder
from mdio.core.files.span_checksums import SpanChecksums, Sums, first_difference, span_edges
from mdio.core.files.store import store_at
from mdio.core.files.writing import write_all, write_sliced
from mdio.core.frames import Scratch, TrajectoryInfo
from mdio.core.kernels import crc32c, crc32c_spans
from mdio.core.xtc import kernels
from mdio.layouts.base import Layout
from mdio.layouts.native import NATIVE_FORMATS
from mdio.layouts.plan import LayoutPlan
from mdio.layouts.registry import layout_class
from mdio.layouts.segments.files import Segment, file_crc, read_checksums, segment_name
from mdio.layouts.segments.layout import SegmentsLayout
from mdio.layouts.segments.writer import SegmentsWriter
from mdio.layouts.tables import FrameTable
from mdio.layouts.writer import NotFinite, OutputMeta, PieceRecord, SelectIntact, add_not_finite

RUN_NBYTES = 1 << 20
"""Bytes that are read, checked and written at a time: they stay in the processor's cache."""
_scratch = Scratch()

TablePart = tuple[FrameTable, int, int]
"""Frames ``start:stop`` of a file."""
SegmentChecksums = tuple[int, SpanChecksums, NotFinite | None]
"""The crc32c of all bytes of a segment, those of its spans, and its non-finite positions."""


class SegmentsCopier(SegmentsWriter):
    """Writes ``NAME.segments/`` by copying the bytes of frames, which are not encoded again.

    Every worker copies whole segments (`copy`), which are the pieces of the plan; the owner commits
    their records. `frames`: tables of the frames to copy, in order. `first_times_ps`: of each
    segment. `info`: of all frames of the output. `n_reused_frames`: frames in segments that it has
    already, before those of `frames`.
    """

    facts = SegmentsWriter.facts._replace(writes_files_once=True)

    def __init__(
        self,
        path: Path,
        plan: LayoutPlan,
        meta: OutputMeta,
        *,
        frames: Sequence[FrameTable],
        first_times_ps: Sequence[float],
        info: TrajectoryInfo,
        n_reused_frames: int = 0,
    ) -> None:
        super().__init__(path, plan, meta)
        self.first_times_ps = first_times_ps
        self.frames = frames
        self.n_reused_frames = n_reused_frames
        self._time_last_ps, self._has_box = info.time_last_ps, info.has_box

    def copy(self, start: int, stop: int, old_output: Layout | None = None) -> PieceRecord:
        """Write one segment and its index; link it if it is intact in `old_output`."""
        number = self._segment_number(start)
        linked_segment = None if old_output is None else self._link_segment(number, old_output)
        crc, checksums, not_finite = linked_segment or self._copy_segment(number, start, stop)
        if self.frames[0].header is None:
            store_index(self._file(number), checksums.index(self.plan.n_atoms))
        return PieceRecord(
            start,
            stop,
            {"file": [crc]},
            checksums.nbytes,
            np.empty((0, 6), np.float32),
            np.array([self.first_times_ps[number]]),
            np.empty(0, np.int64),
            not_finite,
            {"table": np.frombuffer(checksums.table, np.uint8)},
        )

    def commit(self, record: PieceRecord) -> None:
        number = self._segment_number(record.start)
        self._finished[number] = Segment(
            file=segment_name(number, self.container),
            first_frame=record.start,
            n_frames=record.stop - record.start,
            nbytes=record.nbytes,
            crc32c=record.crcs["file"][0],
            time_first_ps=float(record.time[0]),
        )
        self._tables[number] = record.extra["table"].tobytes()

    def find(
        self, records: Sequence[PieceRecord], select_intact: SelectIntact
    ) -> Sequence[PieceRecord]:
        """Make missing folders and files, and keep the intact segments."""
        self.create()
        return select_intact(records, self._is_intact)

    def written_pieces(self, record: PieceRecord) -> list[tuple[PieceRecord, Sequence[Path]]]:
        return [(record, [self._file(self._segment_number(record.start))])]

    def _is_intact(self, record: PieceRecord) -> bool:
        """Return whether a segment has its checksum; one that was sent to a store is trusted."""
        path = self._file(self._segment_number(record.start))
        if is_sent_placeholder(path):
            return True
        try:
            return file_crc(path) == record.crcs["file"][0]
        except OSError:
            return False

    def _copy_segment(self, number: int, start: int, stop: int) -> SegmentChecksums:
        parts = list(self._parts(start, stop))
        path = self._file(number)
        with output_errors(path), path.open("wb", buffering=0) as file:
            crc, checksums, to_check = self._copy_parts(parts, file.fileno())
        not_finite = self._not_finite(path, to_check) if to_check else None
        return crc, checksums, not_finite

    def _not_finite(self, path: Path, to_check: Sequence[range]) -> NotFinite | None:
        """Return how many positions in these frames of a segment are NaN or infinite."""
        not_finite: NotFinite | None = None
        with layout_class(self.container)(path) as layout:
            for run in to_check:
                positions = layout.read(run.start, run.stop).positions
                not_finite = add_not_finite(not_finite, NotFinite.count_in(positions, run.start))
        return not_finite

    def _link_segment(self, number: int, old_output: Layout) -> SegmentChecksums | None:
        """Link a segment of the output that is repaired; return None if it is damaged there."""
        with suppress(CorruptLayoutError):
            checksums = read_checksums(old_output.path, old_output.manifest or {}, number)
            if checksums is not None:
                segmented = cast(SegmentsLayout, old_output)
                segmented.check_segment(number)
                segment, path = segmented.segments[number], self._file(number)
                file = segmented.path / segment.file
                store_at(file).link(file, path)
                return segment.crc32c, checksums, None
        return None

    def _parts(self, first: int, stop: int) -> Iterator[TablePart]:
        """Yield the parts of files that make up frames ``first:stop`` of the output."""
        starts = accumulate((table.n_frames for table in self.frames), initial=self.n_reused_frames)
        for frames, (begin, end) in zip(self.frames, pairwise(starts), strict=True):
            if begin < stop and first < end:
                yield frames, max(first - begin, 0), min(stop, end) - begin

    def _copy_parts(
        self, parts: Sequence[TablePart], target: int
    ) -> tuple[int, SpanChecksums, list[range]]:
        """Copy frames one after the other to the descriptor `target`.

        Returns `crc` (int): the crc32c of all bytes. `checksums` (SpanChecksums): those of its
        spans. `to_check` (list of range): frames in which positions may be NaN or infinite.
        """
        crc = n_copied = 0
        to_check: list[range] = []
        crcs: list[int] = []
        edges: list[NDArray[np.int64]] = []
        offset = 0
        for frames, start, stop in parts:
            if frames.header is not None:
                header = frames.header(frames.first + start, frames.first + stop)
                write_all(target, 0, header)
                offset, crc = len(header), crc32c(header)
                crcs.append(crc)
            begin, nbytes = int(frames.edges[start]), int(frames.edges[stop] - frames.edges[start])
            with (
                OpenFile(frames.path) as source,
                in_flight([ByteRange(source, begin, nbytes)] if source.remote else []),
            ):
                for data, run in self._runs(source, frames, start, stop):
                    crc = crc32c(data, crc)
                    crcs += self._checksums(data, frames, run).tolist()
                    write_sliced(target, data, offset)
                    edges.append(
                        frames.edges[run.start : run.stop] - frames.edges[run.start] + offset
                    )
                    offset += len(data)
                    if frames.may_hold_nonfinite(data):
                        to_check.append(range(n_copied, n_copied + len(run)))
                    n_copied += len(run)
        offsets = np.append(np.concatenate(edges), np.int64(offset))
        return (
            crc,
            SpanChecksums(offsets, NATIVE_FORMATS[self.container].head_nbytes, crcs),
            to_check,
        )

    def _runs(
        self, source: OpenFile, frames: FrameTable, start: int, stop: int
    ) -> Iterator[tuple[memoryview, range]]:
        """Yield the bytes of runs of frames, after checking them, and the frames' numbers."""
        edges = frames.edges
        while start < stop:
            end = int(np.searchsorted(edges, edges[start] + RUN_NBYTES, side="right")) - 1
            run = range(start, min(max(end, start + 1), stop))
            nbytes = int(edges[run.stop] - edges[run.start])
            buffer = _scratch.buffer("frames", nbytes + kernels.PADDING)
            buffer[nbytes:] = 0  # the decoder may read beyond the last frame
            data = buffer.data[:nbytes]
            source.fill(int(edges[run.start]), data)
            if frames.check is not None:
                frames.check(buffer, run, frames, self.plan.n_atoms)
            yield data, run
            start = run.stop

    def _checksums(self, data: memoryview, frames: FrameTable, run: range) -> Sums:
        """Return the checksums of spans; raise if the source has others for them."""
        edges = frames.edges[run.start : run.stop + 1] - frames.edges[run.start]
        crcs = crc32c_spans(data, span_edges(edges, NATIVE_FORMATS[self.container].head_nbytes))
        if frames.checksums is not None:
            first, stop = frames.first + run.start, frames.first + run.stop
            if first_difference(crcs, frames.checksums.of_frames(first, stop)) is not None:
                raise CorruptLayoutError(
                    f"{frames.path}: frames {first} to {stop - 1} of this segment do not have the "
                    "checksums that they were written with; copy it again from where it came from"
                )
        return crcs

    def __getstate__(self) -> dict[str, Any]:
        """Make the paths of sources absolute, as that of the output."""
        frames = [replace(table, path=table.path.absolute()) for table in self.frames]
        return {**super().__getstate__(), "frames": frames}
