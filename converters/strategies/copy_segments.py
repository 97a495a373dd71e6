"""Segments made by copying the bytes of frames."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import CorruptLayoutError, SourceError
from mdio.core.files.copying import link_or_copy, read_all, write_all, write_sliced
from mdio.core.files.index import store_index
from mdio.core.files.piece_sums import PieceSums, Sums, changed, piece_edges
from mdio.core.files.publish import output_errors
from mdio.core.kernels import crc32c, crc32c_pieces
from mdio.core.xtc.native import kernels
from mdio.layouts.frame_bytes import FrameBytes, joined_index
from mdio.layouts.plan import LayoutPlan
from mdio.layouts.segments.files import HEADS, Segment, read_sums, segment_name
from mdio.layouts.segments.layout import SegmentsLayout

__all__ = ["SegmentCopier"]

RUN_NBYTES = 1 << 20
"""Bytes that are read, looked at and written at a time: they stay in the processor's cache."""
ROOM_NBYTES = kernels.PADDING
"""What the decoder may read beyond the last frame."""

Part = tuple[FrameBytes, int, int]
"""Frames ``start:stop`` of a file."""


@contextmanager
def _reading(path: Path) -> Iterator[int]:
    """Open a source for reading."""
    try:
        with path.open("rb", buffering=0) as file:
            yield file.fileno()
    except FileNotFoundError as error:
        raise SourceError(f"{path}: it is no longer there; check the path") from error


class SegmentCopier:
    """Copies the bytes of one segment of a plan at each call, in any process."""

    def __init__(
        self,
        folder: Path,
        plan: LayoutPlan,
        frames: Sequence[FrameBytes],
        first_times_ps: Sequence[float],
        n_taken: int = 0,
    ) -> None:
        self.folder = folder
        self.first_times_ps = first_times_ps
        self.plan = plan
        self.frames = frames
        self.container = str(plan.container)
        self._buffer = np.empty(0, np.uint8)
        self.former: SegmentsLayout | None = None
        """The output that is repaired; its segments are taken where they are whole."""
        self.edges = list(accumulate(plan.segment_frames, initial=0))
        self.n_taken = n_taken
        """Frames before those of `frames`: of segments that are there."""
        self.done: frozenset[int] = frozenset()
        """Numbers of the segments that former runs have made."""

    @property
    def numbers(self) -> list[int]:
        """Numbers of all segments that are to be copied."""
        every = range(self.edges.index(self.n_taken), len(self.plan.segment_frames))
        return [number for number in every if number not in self.done]

    def create(self) -> None:
        """Make the folders."""
        with output_errors(self.folder):
            for folder in {(self.folder / segment_name(n, "")).parent for n in self.numbers}:
                folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, number: int) -> tuple[Segment, bytes]:
        """Write one segment and its index; return what the manifest says of it, and its sums."""
        kept = self._kept(number)
        if kept is not None:
            return kept
        first, stop = self.edges[number : number + 2]
        parts = list(self._parts(first, stop))
        path = self.folder / segment_name(number, self.container)
        with output_errors(path), path.open("wb", buffering=0) as file:
            crc, sums = self._copy_parts(parts, file.fileno())
        if parts[0][0].header is None:
            store_index(path, joined_index(parts, self.plan.n_atoms))
        segment = Segment(
            file=segment_name(number, self.container),
            first_frame=first,
            n_frames=stop - first,
            nbytes=sums.nbytes,
            crc32c=crc,
            time_first_ps=self.first_times_ps[number],
        )
        return segment, sums.table

    def _kept(self, number: int) -> tuple[Segment, bytes] | None:
        """Take a segment from the output that is repaired, if it is whole there."""
        former = self.former
        with suppress(CorruptLayoutError):
            sums = read_sums(former.path, former.manifest, number) if former is not None else None
            if former is not None and sums is not None:
                former.check_segment(number)
                segment = former.segments[number]
                link_or_copy(former.path / segment.file, self.folder / segment.file)
                if self.frames[0].header is None:
                    store_index(self.folder / segment.file, sums.index(self.plan.n_atoms))
                return segment, sums.table
        return None

    def _parts(self, first: int, stop: int) -> Iterator[Part]:
        """Yield the frames of each file that frames ``first:stop`` of all are."""
        starts = accumulate((one.n_frames for one in self.frames), initial=self.n_taken)
        for frames, (begin, end) in zip(self.frames, pairwise(starts), strict=True):
            if begin < stop and first < end:
                yield frames, max(first - begin, 0), min(stop, end) - begin

    def _copy_parts(self, parts: Sequence[Part], target: int) -> tuple[int, PieceSums]:
        """Copy frames one after the other; return the crc32c of all bytes, and of pieces."""
        crc = 0
        crcs: list[int] = []
        edges: list[NDArray[np.int64]] = []
        at = 0
        for frames, start, stop in parts:
            if frames.header is not None:
                header = frames.header(frames.first + start, frames.first + stop)
                write_all(target, header, 0)
                at, crc = len(header), crc32c(header)
                crcs.append(crc)
            with _reading(frames.path) as source:
                for data, run in self._runs(source, frames, start, stop):
                    crc = crc32c(data, crc)
                    crcs += self._sums(data, frames, run).tolist()
                    write_sliced(target, data, at)
                    edges.append(frames.edges[run.start : run.stop] - frames.edges[run.start] + at)
                    at += len(data)
        offsets = np.append(np.concatenate(edges), np.int64(at))
        return crc, PieceSums(offsets, HEADS[self.container], crcs)

    def _runs(
        self, source: int, frames: FrameBytes, start: int, stop: int
    ) -> Iterator[tuple[memoryview, range]]:
        """Yield the bytes of consecutive frames, which can be read, and their numbers."""
        edges = frames.edges
        while start < stop:
            beyond = int(np.searchsorted(edges, edges[start] + RUN_NBYTES, side="right")) - 1
            run = range(start, min(max(beyond, start + 1), stop))
            nbytes = int(edges[run.stop] - edges[run.start])
            if self._buffer.size < nbytes + ROOM_NBYTES:
                self._buffer = np.zeros(nbytes + ROOM_NBYTES, np.uint8)
            data = self._buffer.data[:nbytes]
            try:
                read_all(source, data, int(edges[run.start]))
            except SourceError as error:
                raise SourceError(f"{frames.path}: {error}") from error
            if frames.check is not None:
                frames.check(self._buffer, run, frames, self.plan.n_atoms)
            yield data, run
            start = run.stop

    def _sums(self, data: memoryview, frames: FrameBytes, run: range) -> Sums:
        """Return the checksums of pieces, which are those that the source has, if it has any."""
        edges = frames.edges[run.start : run.stop + 1] - frames.edges[run.start]
        found = crc32c_pieces(data, piece_edges(edges, HEADS[self.container]))
        if frames.sums is not None:
            a, b = frames.first + run.start, frames.first + run.stop
            if changed(found, frames.sums.of_frames(a, b)) is not None:
                raise CorruptLayoutError(
                    f"{frames.path}: frames {a} to {b - 1} of this segment do not have the "
                    "checksums that they were written with; copy it from where it came from again"
                )
        return found

    def __getstate__(self) -> dict[str, Any]:
        """Leave the buffer behind."""
        return {**self.__dict__, "_buffer": np.empty(0, np.uint8)}
