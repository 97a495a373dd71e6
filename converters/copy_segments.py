"""Segments made by copying the bytes of frames, several at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from itertools import accumulate, pairwise
from pathlib import Path

from mdio.converters.byte_frames import ByteFrames, joined_index
from mdio.core.copying import copy_summed, write_all
from mdio.core.errors import SourceError
from mdio.core.index import store_index
from mdio.core.kernels import crc32c
from mdio.core.publish import flush_tree, output_errors
from mdio.layouts.plan import LayoutPlan
from mdio.layouts.segment_files import Segment, segment_name

__all__ = ["SegmentCopier"]

Progress = Callable[[int, int], None]
Part = tuple[ByteFrames, int, int]
"""Frames ``start:stop`` of a file."""
STEP_NBYTES = 64 << 20
"""Bytes copied between two looks at whether to stop."""
FLUSHERS = 8
"""Threads that flush segments while the next ones are copied; they only wait."""


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
    """Copies the bytes of all segments of a plan."""

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
        self.stopped = threading.Event()

    def run(self, workers: int, progress: Progress | None, frame_nbytes: int) -> list[Segment]:
        """Copy all segments, and return what the manifest says of them."""
        numbers = range(len(self.plan.segment_frames))
        with output_errors(self.folder):
            for folder in {(self.folder / segment_name(n, "")).parent for n in numbers}:
                folder.mkdir(parents=True, exist_ok=True)
        done: dict[int, Segment] = {}
        flushed: list[Future[None]] = []
        with ThreadPoolExecutor(FLUSHERS) as flushers:
            for number, segment in self._copied(numbers, workers):
                done[number] = segment
                flushed.append(flushers.submit(flush_tree, self.folder / segment.file))
                if progress is not None:
                    progress(segment.n_frames, segment.n_frames * frame_nbytes)
            with output_errors(self.folder):
                for flush in flushed:
                    flush.result()
        return [done[number] for number in numbers]

    def _copied(self, numbers: range, workers: int) -> Iterator[tuple[int, Segment]]:
        """Copy segments, one by one or several at a time, and yield those that are done."""
        if workers <= 1:
            for number in numbers:
                yield number, self.copy(number)
            return
        with ThreadPoolExecutor(workers) as pool:
            futures = {pool.submit(self.copy, number): number for number in numbers}
            try:
                for future in as_completed(futures):
                    yield futures[future], future.result()
            except BaseException:
                self.stopped.set()
                pool.shutdown(cancel_futures=True)
                raise

    def copy(self, number: int) -> Segment:
        """Write one segment and its index."""
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
                header = frames.header(start, stop)
                write_all(target, header, 0)
                at, crc = len(header), crc32c(header)
            begin, end = int(frames.edges[start]), int(frames.edges[stop])
            with _reading(frames.path) as source:
                for offset in range(begin, end, STEP_NBYTES):
                    if self.stopped.is_set():
                        raise InterruptedError("another segment failed")
                    nbytes = min(STEP_NBYTES, end - offset)
                    crc = copy_summed(source, offset, nbytes, target, at, crc)
                    at += nbytes
        return at, crc
