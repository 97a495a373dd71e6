"""Planning segments, and writing decoded frames into them (`mdio split` copies bytes)."""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import OutputError, PlanError
from mdio.core.files.publish import output_errors
from mdio.core.files.span_checksums import SpanChecksums, span_edges
from mdio.core.files.writing import WrittenFile, copy_bytes, write_all
from mdio.core.frames import FrameBlock, TrajectoryInfo
from mdio.core.kernels import crc32c, crc32c_joined, crc32c_spans
from mdio.core.words import plural
from mdio.layouts.manifest import build_manifest
from mdio.layouts.native import NATIVE_FORMATS
from mdio.layouts.native.encoder import (
    batch_checksums,
    encode_frames,
    encoder_of,
    is_stored,
    native_plan,
)
from mdio.layouts.native.xtc import XTCLayout
from mdio.layouts.plan import LayoutPlan, WriteOptions
from mdio.layouts.registry import layout_class
from mdio.layouts.segments.files import MANIFEST, Segment, even_split, segment_name, write_checksums
from mdio.layouts.writer import (
    EncodedChunk,
    LayoutWriter,
    OutputMeta,
    PieceRecord,
    SelectIntact,
    WriterFacts,
)

SEGMENT_NBYTES = 64 << 20
"""Decoded bytes of a segment, unless a number of segments is asked for."""


class SegmentsWriter(LayoutWriter):
    """Writes ``NAME.segments/``.

    Every worker stores its own pieces: in place where all frames have one size. Of XTC segments
    with several pieces, all but the first are stored as parts beside the segment, and the owner
    joins them once all are stored.
    """

    facts = WriterFacts(
        own_options=frozenset({"container", "segments"}),
        copier="mdio.layouts.segments.copying:SegmentsCopier",
        resumes=True,
        parallel_store=True,
    )

    def __init__(self, path: Path, plan: LayoutPlan, meta: OutputMeta) -> None:
        super().__init__(path, plan, meta)
        assert plan.container is not None
        self.container = plan.container
        self._encoder = encoder_of(plan.container, plan)
        self.facts = self.facts._replace(batch_frames=self._encoder.batch_frames)
        self._first_frames = np.cumsum((0, *plan.segment_frames)).tolist()
        self._records: dict[int, dict[int, PieceRecord]] = {}
        """By segment and first frame, of pieces of segments that are not complete."""
        self._finished: dict[int, Segment] = {}
        self._tables: dict[int, bytes] = {}
        self._time_last_ps = 0.0
        self._format_notes: dict[int, list[str]] = {}
        """By segment, notes on values that the format cannot hold."""
        self._has_box = False
        self._joined_offsets: dict[int, int] = {}
        """Offsets, in their segments, of pieces that earlier runs have joined, by first frame."""

    @classmethod
    def plan_for(cls, info: TrajectoryInfo, options: WriteOptions) -> LayoutPlan:
        """Plan a folder of segments; raises PlanError.

        The container is the one asked for; else xtc for the integers of an XTC without velocities
        and forces; else the source's own format; else ncdf. Without a number of segments, each has
        about 64 MiB decoded.
        """
        container = options.container
        if container is None:
            is_xtc = info.xtc_integers and not (info.has_velocities or info.has_forces)
            source_format = "xtc" if is_xtc or info.compression == "xtc" else info.layout
            container = source_format if source_format in NATIVE_FORMATS else "ncdf"
        if container not in NATIVE_FORMATS:
            raise PlanError(f"--container is {container!r}; it may be {', '.join(NATIVE_FORMATS)}")
        plan = native_plan(container, info, options, f"segments of {container}")
        n_segments = options.segments
        if n_segments is None:
            n_by_size = math.ceil(info.n_frames * info.frame_nbytes / SEGMENT_NBYTES)
            n_segments = min(max(n_by_size, 1), info.n_frames)
        if not 1 <= n_segments <= info.n_frames:
            raise PlanError(
                f"{info.path}: {n_segments} segments asked for, of "
                f"{plural(info.n_frames, 'frame')} to store; each holds one or more"
            )
        sizes = even_split(info.n_frames, n_segments)
        if options.expected_frames is not None:
            size = max(1, SEGMENT_NBYTES // info.frame_nbytes)
            n_full, n_remaining = divmod(info.n_frames, size)
            sizes = (size,) * n_full + (n_remaining,) * (n_remaining > 0)
            n_segments = len(sizes)
        header_nbytes = encoder_of(container, plan).header_nbytes
        return plan.replace(
            layout="segments",
            segment_frames=sizes,
            piece_frames=min(plan.piece_frames, sizes[0]),
            n_files=n_segments,
            nbytes=plan.nbytes + (n_segments - 1) * header_nbytes,
        )

    def create(self) -> None:
        with output_errors(self.path):
            self.path.mkdir(exist_ok=True)  # it may exist already, with Lustre stripes set
            for number in range(len(self.plan.segment_frames)):
                file = self._file(number)
                file.parent.mkdir(exist_ok=True)
                file.touch()

    def reuse_segments(self, segments: Sequence[tuple[Segment, bytes]], *, has_box: bool) -> None:
        """Keep the descriptions and checksums of the first segments, which exist and are intact."""
        for number, (segment, table) in enumerate(segments):
            self._finished[number], self._tables[number] = segment, table
        self._has_box |= has_box

    def find(
        self, records: Sequence[PieceRecord], select_intact: SelectIntact
    ) -> Sequence[PieceRecord]:
        """Keep the intact pieces, except of segments that an earlier run was joining at its end."""
        self.create()
        if self._encoder.frame_nbytes is not None:
            return select_intact(records, self._is_intact)
        return self._resumable(select_intact(self._resumable(records), self._is_intact))

    def _resumable(self, records: Sequence[PieceRecord]) -> Sequence[PieceRecord]:
        """Return the records of segments of which all pieces, or all parts on record, exist.

        With all its pieces on record, a segment has been joined: its parts are removed.
        """
        resumable: list[PieceRecord] = []
        self._joined_offsets.clear()
        ordered = sorted(records, key=lambda record: record.start)
        for number, group in groupby(ordered, lambda record: self._segment_number(record.start)):
            pieces = list(group)
            parts = [self._locate(piece.start)[0] for piece in pieces]
            if (
                sum(piece.stop - piece.start for piece in pieces)
                == self.plan.segment_frames[number]
            ):
                offsets = accumulate((piece.nbytes for piece in pieces), initial=0)
                self._joined_offsets |= {
                    piece.start: offset for piece, offset in zip(pieces, offsets, strict=False)
                }
                for part in parts[1:]:
                    part.unlink(missing_ok=True)
            elif not all(part.exists() for part in parts):
                continue
            resumable += pieces
        return resumable

    def written_pieces(self, record: PieceRecord) -> list[tuple[PieceRecord, Sequence[Path]]]:
        files = [self._file(self._segment_number(record.start)), self._locate(record.start)[0]]
        return [(record, files)]

    def _is_intact(self, record: PieceRecord) -> bool:
        """Return whether a piece is intact where it was stored, or in its joined segment."""
        path, offset = self._locate(record.start)
        if record.start in self._joined_offsets:
            path = self._file(self._segment_number(record.start))
            offset = self._joined_offsets[record.start]
        return is_stored(record, self._encoder.frame_nbytes, path, offset)

    def encode(self, start: int, block: FrameBlock) -> list[EncodedChunk]:
        """Return the bytes of these frames; the key is the number of the first frame."""
        data = encode_frames(self._encoder, block)
        edges = span_edges(self._encoder.offsets(data), NATIVE_FORMATS[self.container].head_nbytes)
        checksums = crc32c_spans(data, edges)
        crcs = [crc32c_joined(checksums, edges), *checksums.tolist()]
        return [EncodedChunk(str(start), data, crcs)]

    def store(self, item: EncodedChunk) -> None:
        """Write a piece, or a batch of one, into its segment, or beside it."""
        path, offset = self._locate(int(item.key))
        if self._encoder.frame_nbytes is None:
            path.touch()
        direct = self.plan.writing.direct or False
        with output_errors(path), WrittenFile(path, direct=direct) as file:
            file.write(offset, *item.parts)

    def commit(self, record: PieceRecord) -> None:
        number = self._segment_number(record.start)
        pieces = self._records.setdefault(number, {})
        pieces[record.start] = record
        n_frames = sum(piece.stop - piece.start for piece in pieces.values())
        if n_frames == self.plan.segment_frames[number]:
            with output_errors(self._file(number)):
                self._complete_segment(number, [pieces[start] for start in sorted(pieces)])
            del self._records[number]

    def _complete_segment(self, number: int, records: Sequence[PieceRecord]) -> None:
        time = np.concatenate([record.time for record in records])
        step = np.concatenate([record.step for record in records])
        with self._file(number).open("r+b", buffering=0) as file:
            header = self._encoder.header(time, step)
            write_all(file.fileno(), 0, header)
            if self._encoder.frame_nbytes is None:
                self._join(number, file.fileno(), records)
        size = self._encoder.frame_nbytes
        parts = [part for record in records for part in batch_checksums(record, size)]
        checksums, sizes = zip((crc32c(header), len(header)), *parts, strict=True)
        crc = crc32c_joined(np.array(checksums, np.uint32), np.cumsum((0, *sizes)))
        if notes := list(self._encoder.notes(time, step)):
            is_single = len(self.plan.segment_frames) == 1
            figures = "" if is_single else f" (figures of {segment_name(number, self.container)})"
            self._format_notes[number] = [note + figures for note in notes]
        self._has_box = self._has_box or any(bool(record.box.any()) for record in records)
        offsets = self._index_segment(number, crc)
        crcs = [crc32c(header)] if header else []
        for record in records:
            for start in sorted(map(int, record.crcs)):
                crcs += record.crcs[str(start)][1:]
        self._tables[number] = SpanChecksums(
            offsets, NATIVE_FORMATS[self.container].head_nbytes, crcs
        ).table

    def _index_segment(self, number: int, crc: int) -> NDArray[np.int64]:
        """Open a finished segment as a reader does, and keep its description.

        This writes its index beside it, and proves that it can be read. Returns edges of frames.
        """
        encoder, file = self._encoder, segment_name(number, self.container)
        with layout_class(self.container)(self.path / file) as layout:
            info = layout.info
            if encoder.frame_nbytes is None:
                index = cast(XTCLayout, layout).index
                edges = np.append(index.offsets, np.int64(index.end))
            else:
                frames = np.arange(info.n_frames + 1, dtype=np.int64)
                edges = encoder.header_nbytes + encoder.frame_nbytes * frames
        first_frame, first_ps = self._first_frames[number], info.time_first_ps
        segment = Segment(file, first_frame, info.n_frames, info.nbytes, crc, first_ps)
        self._finished[number] = segment
        if segment.stop == self.plan.n_frames:
            self._time_last_ps = info.time_last_ps
        return edges

    def _join(self, number: int, fd: int, records: Sequence[PieceRecord]) -> None:
        """Append the parts of an XTC segment to its first piece.

        A part that no longer exists was appended by an earlier run.
        """
        offset = records[0].nbytes
        parts = [self._part(number, record.start) for record in records[1:]]
        for part, record in zip(parts, records[1:], strict=True):
            if part.exists():
                with part.open("rb", buffering=0) as file:
                    copy_bytes(file.fileno(), 0, record.nbytes, fd, offset)
            offset += record.nbytes
        for part in parts:  # only now, since until here another run may have to join them
            part.unlink(missing_ok=True)

    def finish(self) -> None:
        """Write the checksums and then the manifest, which completes the folder."""
        missing = [n for n in range(len(self.plan.segment_frames)) if n not in self._finished]
        if missing:
            raise OutputError(
                f"{self.path}: {len(missing)} segments are incomplete, the first being "
                f"{segment_name(missing[0], self.container)}; convert again"
            )
        if self._format_notes:  # once, with the figures of the first segment
            self.notes += self._format_notes[min(self._format_notes)]
        with output_errors(self.path):
            manifest = build_manifest(
                self.plan,
                self.meta,
                has_box=self._has_box,
                container=self.container,
                fields=list(self.plan.native.fields),
                time_last_ps=self._time_last_ps,
                segments=[asdict(self._finished[n]) for n in sorted(self._finished)],
                **write_checksums(self.path, [self._tables[n] for n in sorted(self._tables)]),
            )
            (self.path / MANIFEST).write_text(json.dumps(manifest, indent=1))

    def _locate(self, start: int) -> tuple[Path, int]:
        """Return the file, and the offset in it, to which the piece at frame `start` is written."""
        number = self._segment_number(start)
        frame = start - self._first_frames[number]
        if self._encoder.frame_nbytes is not None:
            offset = self._encoder.header_nbytes + frame * self._encoder.frame_nbytes
            return self._file(number), offset
        return (self._part(number, start) if frame else self._file(number)), 0

    def _segment_number(self, frame: int) -> int:
        return bisect_right(self._first_frames, frame) - 1

    def _file(self, number: int) -> Path:
        return self.path / segment_name(number, self.container)

    def _part(self, number: int, start: int) -> Path:
        file = self._file(number)
        return file.with_name(f"{file.name}.part-{start}")

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_records": {}, "_finished": {}, "_tables": {}}
