"""Writing a trajectory into segments, from decoded frames (bytes are copied by `mdio split`).

Plans of segments. Pure arithmetic.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import OutputError, PlanError
from mdio.core.files.piece_sums import PieceSums, piece_edges
from mdio.core.files.publish import output_errors
from mdio.core.files.writing import WrittenFile, copy_bytes, write_all
from mdio.core.frames import FrameBlock, TrajectoryInfo
from mdio.core.kernels import crc32c, crc32c_joined, crc32c_pieces
from mdio.layouts.manifest import build_manifest
from mdio.layouts.native import NATIVE_FORMATS
from mdio.layouts.native.encoder import (
    Encoder,
    EncodingBuffer,
    encoder_of,
    is_stored,
    native_plan,
    summed,
)
from mdio.layouts.native.xtc import XTCLayout
from mdio.layouts.plan import LayoutPlan, WriteOptions
from mdio.layouts.registry import layout_class
from mdio.layouts.segments.files import (
    MANIFEST,
    Segment,
    even_split,
    segment_name,
    write_sums,
)
from mdio.layouts.writer import (
    EncodedChunk,
    LayoutWriter,
    OutputMeta,
    PieceRecord,
    SelectIntact,
    WriterFacts,
)


def describe_segment(
    folder: Path, number: int, encoder: Encoder, container: str, first_frame: int, crc: int
) -> tuple[Segment, TrajectoryInfo, NDArray[np.int64]]:
    """Open a finished segment, as a reader will; return what is said of it, and its frames' edges.

    This also puts its index beside it, and proves that it can be read.
    """
    file = segment_name(number, container)
    with layout_class(container)(folder / file) as layout:
        info = layout.info
        if encoder.frame_nbytes is None:
            index = cast(XTCLayout, layout).index
            edges = np.append(index.offsets, np.int64(index.nbytes))
        else:
            frames = np.arange(info.n_frames + 1, dtype=np.int64)
            edges = encoder.header_nbytes + encoder.frame_nbytes * frames
    segment = Segment(file, first_frame, info.n_frames, info.nbytes, crc, info.time_first_ps)
    return segment, info, edges


def write_manifest(
    folder: Path,
    plan: LayoutPlan,
    meta: OutputMeta,
    segments: Sequence[Segment],
    tables: Sequence[bytes],
    *,
    time_last_ps: float,
    has_box: bool,
) -> None:
    """Write the checksums, and the manifest, which makes the folder a trajectory."""
    sums = write_sums(folder, tables)
    manifest = build_manifest(
        plan,
        meta,
        has_box=has_box,
        container=plan.container,
        fields=list(plan.native.fields),
        time_last_ps=time_last_ps,
        segments=[
            {name: getattr(segment, name) for name in Segment.__slots__} for segment in segments
        ],
        **sums,
    )
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1))


class SegmentsWriter(LayoutWriter):
    """Writes ``NAME.segments/``.

    Every worker stores its own pieces: in place, where frames have one size; XTC pieces that are
    not a whole segment lie beside it as parts, which the owner joins when all have come.
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
        self._room = EncodingBuffer()
        self._firsts = np.cumsum((0, *plan.segment_frames)).tolist()
        self._records: dict[int, dict[int, PieceRecord]] = {}
        self._done: dict[int, Segment] = {}
        self._tables: dict[int, bytes] = {}
        self._time_last_ps = 0.0
        self._has_lost_times = False
        self._has_box = False
        self._joined: dict[int, int] = {}
        """Where in their segments the pieces are that former runs have joined."""

    @classmethod
    def plan_for(cls, info: TrajectoryInfo, options: WriteOptions) -> LayoutPlan:
        """Plan the segments; see `plan_segments`."""
        return plan_segments(info, options)

    def create(self) -> None:
        """Make the folders and empty files."""
        with output_errors(self.path):
            self.path.mkdir(exist_ok=True)  # Lustre's stripes may have been set for it
            for number in range(len(self.plan.segment_frames)):
                file = self._file(number)
                file.parent.mkdir(exist_ok=True)
                file.touch()

    def adopt(self, segments: Sequence[tuple[Segment, bytes]], *, has_box: bool) -> None:
        """Take note of the first segments, with their sums: they are there, and whole."""
        for number, (segment, table) in enumerate(segments):
            self._done[number], self._tables[number] = segment, table
        self._has_box |= has_box

    def find(self, receipts: Sequence[PieceRecord], believe: SelectIntact) -> Sequence[PieceRecord]:
        """Make the folders; leave out segments whose parts were just being joined."""
        self.create()
        if self._encoder.frame_nbytes is not None:
            return believe(receipts, self._holds)
        return self._rejoined(believe(self._rejoined(receipts), self._holds))

    def _rejoined(self, receipts: Sequence[PieceRecord]) -> Sequence[PieceRecord]:
        """Return the receipts of segments that are joined, or whose parts are all there."""
        rejoined: list[PieceRecord] = []
        self._joined.clear()
        ordered = sorted(receipts, key=lambda receipt: receipt.start)
        for number, some in groupby(ordered, lambda receipt: self._number(receipt.start)):
            in_order = list(some)
            parts = [self._place(receipt.start)[0] for receipt in in_order]
            if sum(r.stop - r.start for r in in_order) == self.plan.segment_frames[number]:
                starts = accumulate((receipt.nbytes for receipt in in_order), initial=0)
                self._joined |= {r.start: start for r, start in zip(in_order, starts, strict=False)}
                for part in parts[1:]:
                    part.unlink(missing_ok=True)
            elif not all(part.exists() for part in parts):
                continue
            rejoined += in_order
        return rejoined

    def settled(self, receipt: PieceRecord) -> list[tuple[PieceRecord, Sequence[Path]]]:
        """Return the receipt, and the segment, and the part beside it."""
        files = [self._file(self._number(receipt.start)), self._place(receipt.start)[0]]
        return [(receipt, files)]

    def _holds(self, receipt: PieceRecord) -> bool:
        """Read a piece where it is stored, or where it was joined to others."""
        path, offset = self._place(receipt.start)
        if receipt.start in self._joined:
            path, offset = self._file(self._number(receipt.start)), self._joined[receipt.start]
        return is_stored(receipt, self._encoder.frame_nbytes, path, offset)

    def encode(self, start: int, block: FrameBlock) -> list[EncodedChunk]:
        """Return the bytes of these frames; their key is the first of them."""
        data = self._room.encode(self._encoder, block)
        edges = piece_edges(self._encoder.offsets(data), NATIVE_FORMATS[self.container].head_nbytes)
        sums = crc32c_pieces(data, edges)
        crcs = [crc32c_joined(sums, edges), *sums.tolist()]
        return [EncodedChunk(str(start), data, crcs)]

    def store(self, item: EncodedChunk) -> None:
        """Write a piece, or a batch of one, into its segment, or beside it."""
        path, offset = self._place(int(item.key))
        if self._encoder.frame_nbytes is None:
            path.touch()
        direct = self.plan.writing.direct or False
        with output_errors(path), WrittenFile(path, direct=direct) as file:
            file.write(offset, *item.parts)

    def commit(self, record: PieceRecord) -> None:
        """Take note of a piece; the last of a segment completes it."""
        number = self._number(record.start)
        received = self._records.setdefault(number, {})
        received[record.start] = record
        if sum(r.stop - r.start for r in received.values()) == self.plan.segment_frames[number]:
            with output_errors(self._file(number)):
                self._complete(number, [received[start] for start in sorted(received)])
            del self._records[number]

    def _complete(self, number: int, records: Sequence[PieceRecord]) -> None:
        time = np.concatenate([record.time for record in records])
        step = np.concatenate([record.step for record in records])
        with self._file(number).open("r+b", buffering=0) as file:
            header = self._encoder.header(time, step)
            write_all(file.fileno(), 0, header)
            if self._encoder.frame_nbytes is None:
                self._join(number, file.fileno(), records)
        size = self._encoder.frame_nbytes
        parts = [part for record in records for part in summed(record, size)]
        sums, sizes = zip((crc32c(header), len(header)), *parts, strict=True)
        crc = crc32c_joined(np.array(sums, np.uint32), np.cumsum((0, *sizes)))
        lost = self._encoder.lost(time, step)
        if lost is not None and not self._has_lost_times:
            self._has_lost_times = True  # noted once, with the figures of one segment
            self.notes.append(lost)
        self._has_box = self._has_box or any(bool(record.box.any()) for record in records)
        segment, info, offsets = describe_segment(
            self.path, number, self._encoder, self.container, self._firsts[number], crc
        )
        self._done[number] = segment
        crcs = [crc32c(header)] if header else []
        for record in records:
            for start in sorted(map(int, record.crcs)):
                crcs += record.crcs[str(start)][1:]
        self._tables[number] = PieceSums(
            offsets, NATIVE_FORMATS[self.container].head_nbytes, crcs
        ).table
        if segment.stop == self.plan.n_frames:
            self._time_last_ps = info.time_last_ps

    def _join(self, number: int, fd: int, records: Sequence[PieceRecord]) -> None:
        """Append the parts of an XTC segment to its first piece.

        A part that is there no more has its place already, from an earlier run.
        """
        offset = records[0].nbytes
        parts = [self._part(number, record.start) for record in records[1:]]
        for part, record in zip(parts, records[1:], strict=True):
            if part.exists():
                with part.open("rb", buffering=0) as file:
                    copy_bytes(file.fileno(), 0, record.nbytes, fd, offset)
            offset += record.nbytes
        for part in parts:  # only now: until then another run can join them
            part.unlink(missing_ok=True)

    def finish(self) -> None:
        """Check that every segment is complete, and write the manifest."""
        missing = [n for n in range(len(self.plan.segment_frames)) if n not in self._done]
        if missing:
            raise OutputError(
                f"{self.path}: {len(missing)} segments are incomplete, the first being "
                f"{segment_name(missing[0], self.container)}; convert again"
            )
        with output_errors(self.path):
            write_manifest(
                self.path,
                self.plan,
                self.meta,
                [self._done[number] for number in sorted(self._done)],
                [self._tables[number] for number in sorted(self._tables)],
                time_last_ps=self._time_last_ps,
                has_box=self._has_box,
            )

    def _place(self, start: int) -> tuple[Path, int]:
        """Return where the frames from `start` on are stored."""
        number = self._number(start)
        frame = start - self._firsts[number]
        if self._encoder.frame_nbytes is not None:
            offset = self._encoder.header_nbytes + frame * self._encoder.frame_nbytes
            return self._file(number), offset
        return (self._part(number, start) if frame else self._file(number)), 0

    def _number(self, frame: int) -> int:
        return bisect_right(self._firsts, frame) - 1

    def _file(self, number: int) -> Path:
        return self.path / segment_name(number, self.container)

    def _part(self, number: int, start: int) -> Path:
        file = self._file(number)
        return file.with_name(f"{file.name}.part-{start}")

    def __getstate__(self) -> dict[str, Any]:
        """Leave behind what only the owner needs."""
        return {**super().__getstate__(), "_records": {}, "_done": {}, "_tables": {}}


SEGMENT_NBYTES = 64 << 20
"""Decoded bytes of a segment where no number is asked for."""


def plan_segments(info: TrajectoryInfo, options: WriteOptions) -> LayoutPlan:
    """Plan a folder of segments.

    The container is what was asked for, else the source's own format, else xtc where that loses
    nothing of an XTC's integers, else ncdf; the number of segments is what was asked for, else so
    many that each has about 64 MiB decoded.

    Raises PlanError: more segments than frames, none, an unknown container, and what
    `mdio.layouts.native.encoder.native_plan` raises.
    """
    container = options.container
    if container is None:
        is_xtc = info.xtc_integers and not (info.has_velocities or info.has_forces)
        own = "xtc" if is_xtc or info.compression == "xtc" else info.layout
        container = own if own in NATIVE_FORMATS else "ncdf"
    if container not in NATIVE_FORMATS:
        raise PlanError(f"--container is {container!r}; it may be {', '.join(NATIVE_FORMATS)}")
    plan = native_plan(container, info, options)
    n_segments = options.segments
    if n_segments is None:
        n_by_size = math.ceil(info.n_frames * info.frame_nbytes / SEGMENT_NBYTES)
        n_segments = min(max(n_by_size, 1), info.n_frames)
    if not 1 <= n_segments <= info.n_frames:
        raise PlanError(
            f"{info.path}: {n_segments} segments asked for, but it has {info.n_frames} frames, so "
            f"there can be 1 to {info.n_frames}"
        )
    sizes = even_split(info.n_frames, n_segments)
    if options.expected_frames is not None:
        size = max(1, SEGMENT_NBYTES // info.frame_nbytes)
        full, rest = divmod(info.n_frames, size)
        sizes = (size,) * full + (rest,) * (rest > 0)
        n_segments = len(sizes)
    header_nbytes = encoder_of(container, plan).header_nbytes
    return plan.replace(
        layout="segments",
        segment_frames=sizes,
        piece_frames=min(plan.piece_frames, sizes[0]),
        n_files=n_segments,
        nbytes=plan.nbytes + (n_segments - 1) * header_nbytes,
    )
