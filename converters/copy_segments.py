"""Segments made by copying the bytes of frames."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise
from pathlib import Path

from mdio.converters.byte_frames import ByteFrames, joined_index
from mdio.core.copying import copy_summed, write_all
from mdio.core.errors import SourceError
from mdio.core.index import store_index
from mdio.core.kernels import crc32c
from mdio.core.publish import output_errors
from mdio.layouts.plan import LayoutPlan
from mdio.layouts.segment_files import Segment, segment_name

__all__ = ["SegmentCopier"]

Part = tuple[ByteFrames, int, int]
"""Frames ``start:stop`` of a file."""


@contextmanager
def _reading(path: Path) -> Iterator[int]:
    """Open a source for reading, and name it in errors."""
    try:
        with path.open("rb", buffering=0) as file:
            try:
                yield file.fileno()
            except SourceError as error:
                raise SourceError(f"{path}: {error}") from error
    except FileNotFoundError as error:
        raise SourceError(f"{path}: it is there no more; check the path") from error


class SegmentCopier:
    """Copies the bytes of one segment of a plan at each call, in any process."""

    def __init__(
        self,
        folder: Path,
        plan: LayoutPlan,
        frames: Sequence[ByteFrames],
        first_times_ps: Sequence[float],
    ) -> None:
        self.folder = folder
        self.first_times_ps = first_times_ps
        self.plan = plan
        self.frames = frames
        self.container = str(plan.container)
        self.edges = list(accumulate(plan.segment_frames, initial=0))

    @property
    def numbers(self) -> range:
        """Numbers of all segments."""
        return range(len(self.plan.segment_frames))

    def create(self) -> None:
        """Make the folders."""
        with output_errors(self.folder):
            for folder in {(self.folder / segment_name(n, "")).parent for n in self.numbers}:
                folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, number: int) -> Segment:
        """Write one segment and its index; return what the manifest says of it."""
        first, stop = self.edges[number : number + 2]
        parts = list(self._parts(first, stop))
        path = self.folder / segment_name(number, self.container)
        with output_errors(path), path.open("xb", buffering=0) as file:
            nbytes, crc = self._copy_parts(parts, file.fileno())
        if parts[0][0].header is None:
            store_index(path, joined_index(parts, self.plan.n_atoms))
        return Segment(
            file=segment_name(number, self.container),
            first_frame=first,
            n_frames=stop - first,
            nbytes=nbytes,
            crc32c=crc,
            time_first_ps=self.first_times_ps[number],
        )

    def _parts(self, first: int, stop: int) -> Iterator[Part]:
        """Yield the frames of each file that frames ``first:stop`` of all are."""
        starts = accumulate((one.n_frames for one in self.frames), initial=0)
        for frames, (begin, end) in zip(self.frames, pairwise(starts), strict=True):
            if begin < stop and first < end:
                yield frames, max(first - begin, 0), min(stop, end) - begin

    def _copy_parts(self, parts: Sequence[Part], target: int) -> tuple[int, int]:
        """Copy frames one after the other; return their bytes, with the header, and the crc32c."""
        at = crc = 0
        for frames, start, stop in parts:
            if frames.header is not None:
                header = frames.header(frames.first + start, frames.first + stop)
                write_all(target, header, 0)
                at, crc = len(header), crc32c(header)
            begin, nbytes = int(frames.edges[start]), int(frames.edges[stop] - frames.edges[start])
            with _reading(frames.path) as source:
                crc = copy_summed(source, begin, nbytes, target, at, crc)
                at += nbytes
        return at, crc
