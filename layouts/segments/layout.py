"""Reading a trajectory in segments: ``NAME.segments/``, a folder of files of a native format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from mdio.core.blocks import FrameRuns, runs_in_parts
from mdio.core.errors import CorruptLayoutError, SourceError
from mdio.core.files.in_flight import Opening
from mdio.core.files.reading import OpenFile, handles_allowed
from mdio.core.files.remote.outputs import Redirect
from mdio.core.frames import AtomIndices, Flaws, FrameBlock, TrajectoryInfo
from mdio.core.kernels import crc32c
from mdio.layouts.base import FormatFacts, Layout, StoredTimes, fill_absent
from mdio.layouts.registry import layout_class
from mdio.layouts.segments.files import (
    CHECKSUMS_FILE,
    CHECKSUMS_KEY,
    MANIFEST,
    Segment,
    check_checksums,
    file_crc,
    file_identity,
    read_checksums,
    read_manifest,
    segments_of,
)
from mdio.layouts.units import Unit

if TYPE_CHECKING:
    from mdio.layouts.writer import EncodedChunk


MAX_KEPT_OPEN = 16
"""Segments that stay open once they were read: frames in any order need them again."""
MAX_OPENED_AHEAD = 24
"""Segments in a store whose openings are prefetched at the same time."""
MAX_SEGMENTS_AHEAD = 48
"""A segment that was opened for prefetching stays open if it is fewer than this many segments after
the one that is read."""


class SegmentsLayout(Layout):
    """A folder of segments, opened as they are read.

    Its information comes from the manifest and the first undamaged segment, so that opening takes
    as long for ten segments as for ten thousand, and ranks do not all open every file. The segments
    that were read last stay open, and those that are prefetched are opened. Bytes are compared with
    their checksums as they are read. If another output takes the folder's name meanwhile, opening a
    further segment raises CorruptLayoutError.
    """

    name = "segments"
    facts = FormatFacts(
        suffixes=(".segments",),
        continuation="mdio.layouts.continuation:SegmentsContinuation",
        is_folder=True,
        can_choose_n_files=True,
        reads_remote=True,
    )

    _manifest: dict[str, Any]
    _manifest_identity: tuple[int, ...] | None
    """`file_identity` of the manifest when it was read."""
    _segments: list[Segment]
    _edges: NDArray[np.int64]
    """First frame of each segment, and the number of frames."""
    _open_layouts: dict[int, Layout]
    _prefetched: set[int]
    """Numbers of segments that were opened before they are read."""

    @classmethod
    def sniff(cls, path: Path) -> bool:
        """Return whether it is a folder with a manifest, or with the suffix of one."""
        return path.is_dir() and ((path / MANIFEST).is_file() or path.suffix in cls.facts.suffixes)

    @property
    def manifest(self) -> Mapping[str, Any]:
        _ = self.info
        return self._manifest

    @property
    def segments(self) -> list[Segment]:
        _ = self.info
        return self._segments

    def _open(self) -> TrajectoryInfo:
        if self._shared_metadata is None:
            self._manifest_identity = file_identity(self.path / MANIFEST)
            self._manifest = read_manifest(self.path, self.name)
        else:
            _, self._manifest, self._manifest_identity = self._shared_metadata
        manifest = self._manifest
        self._segments = segments_of(manifest, self.path)
        self._edges = np.array([0, *(segment.stop for segment in self._segments)], np.int64)
        self._open_layouts, self._prefetched = {}, set()
        if self._shared_metadata is not None:
            return cast(TrajectoryInfo, self._shared_metadata[0])
        first = self._first_info()
        last_ps = manifest.get("time_last_ps")
        return first.replace(
            layout=self.name,
            path=str(self.path),
            n_frames=manifest["n_frames"],
            dt_ps=float(manifest["dt_ps"]),
            has_velocities="velocities" in manifest["fields"],
            has_forces="forces" in manifest["fields"],
            sparse=tuple(name for name in manifest.get("sparse", ()) if name in manifest["fields"]),
            time_first_ps=self._segments[0].time_first_ps,
            time_last_ps=first.time_last_ps if last_ps is None else float(last_ps),
            compression=manifest.get("compression"),
            precision=manifest.get("precision"),
            nbytes=sum(segment.nbytes for segment in self._segments),
            source=manifest["source"],
            flaws=Flaws(made_up=tuple(manifest["source"].get("made_up", ()))),
        )

    def _locate(self, file: str) -> Path:
        self._update_path()
        return Redirect(self.path, self._manifest).path_of(file)

    def _first_info(self) -> TrajectoryInfo:
        """Return the information on the first undamaged segment; reading others raises errors.

        If the checksums of all spans are lost, reading raises errors, too.
        """
        numbers = range(len(self._segments))
        for number in numbers:
            with suppress(CorruptLayoutError):
                return self._segment(number).info
        for number in numbers:
            with suppress(CorruptLayoutError):
                self.check_segment(number)
                with self._open_segment(number, verify=False) as layout:
                    return layout.info
        return self._segment(0).info

    def _segment(self, number: int, *, is_prefetched: bool = False) -> Layout:
        """Return an opened segment; closes others, except a few that were read last.

        `is_prefetched`: the segment is not read yet, and stays open until it is.
        """
        open_layouts = self._open_layouts
        layout = open_layouts.pop(number, None) or self._open_segment(number)
        open_layouts[number] = layout  # the last one is closed last
        if is_prefetched:
            self._prefetched.add(number)
        else:
            self._prefetched = {
                n for n in self._prefetched if number < n < number + MAX_SEGMENTS_AHEAD
            }
            others = [n for n in open_layouts if n not in self._prefetched]
            for other_number in others[: -handles_allowed(MAX_KEPT_OPEN)]:
                open_layouts.pop(other_number).close()
        return layout

    def _open_segment(self, number: int, *, verify: bool = True) -> Layout:
        """Open a segment, which the caller closes; raises CorruptLayoutError."""
        segment = self._segments[number]
        path = self._locate(segment.file)
        self._check_size(segment)
        verify = verify and self.verify
        checksums = read_checksums(self.path, self._manifest, number) if verify else None
        options: dict[str, Any] = {} if checksums is None else {"checksums": checksums}
        if checksums is not None and (checksums.nbytes, len(checksums.offsets)) != (
            segment.nbytes,
            segment.n_frames + 1,
        ):
            raise CorruptLayoutError(
                f"{self.path / CHECKSUMS_FILE}: its table of segment {number} is of "
                f"{len(checksums.offsets) - 1} frames in {checksums.nbytes} bytes, expected "
                f"{segment.n_frames} in {segment.nbytes}; split or convert the source again"
            )
        layout = layout_class(self._manifest["container"])(path, fields=self.fields, **options)
        try:
            info = layout.info
            self._check_not_replaced(layout)
        except SourceError as error:
            raise CorruptLayoutError(f"{error} (segment {number} of {self.path})") from error
        shape = (info.n_frames, info.n_atoms)
        expected = (segment.n_frames, self._manifest["n_atoms"])
        if shape != expected:
            layout.close()
            raise CorruptLayoutError(
                f"{path}: {shape[0]} frames of {shape[1]} atoms, expected {expected[0]} of "
                f"{expected[1]}; split or convert the source again"
            )
        return layout

    def _check_not_replaced(self, segment: Layout) -> None:
        """Raise if the folder was replaced before the segment was opened."""
        file = self.path / MANIFEST
        if (
            file_identity(file) != self._manifest_identity
            and self.uuid_at(self.path) != self._manifest["uuid"]
        ):
            segment.close()
            raise self._replaced_error()

    def _check_size(self, segment: Segment) -> None:
        path = self._locate(segment.file)
        try:
            nbytes = path.stat().st_size
        except OSError as error:
            raise CorruptLayoutError(
                f"{path}: this segment (frames {segment.first_frame} to {segment.stop - 1}) is "
                f"missing ({error.strerror}); put it back, or split or convert the source again"
            ) from error
        if nbytes != segment.nbytes:
            raise CorruptLayoutError(
                f"{path}: this segment has {nbytes} bytes, expected {segment.nbytes}; "
                "split or convert the source again"
            )

    @property
    def stored_times(self) -> StoredTimes:
        """Which of times and steps it stores: no steps if the segments' format has none."""
        stored = super().stored_times
        step_is_frame_number = layout_class(self.manifest["container"]).facts.step_is_frame_number
        has_steps = stored.has_steps and not step_is_frame_number
        return stored._replace(has_steps=has_steps, step_is_frame_number=step_is_frame_number)

    def _read_into(
        self, start: int, stop: int, atoms: AtomIndices | None, block: FrameBlock
    ) -> None:
        for number, first, end in runs_in_parts(self._edges, start, stop):
            first_frame = int(self._edges[number])
            rows = block.frames(slice(first_frame + first - start, first_frame + end - start))
            layout = self._segment(number)
            fill_absent(rows, layout.info)
            try:
                layout.read(first, end, atoms, rows)
            except SourceError as error:
                raise CorruptLayoutError(f"{error} (segment {number} of {self.path})") from error
            if layout.facts.step_is_frame_number:
                rows.step += first_frame

    def _inner_runs(self, start: int, stop: int) -> Iterator[tuple[Layout, int, int]]:
        for number, first, end in runs_in_parts(self._edges, start, stop):
            yield self._segment(number, is_prefetched=True), first, end

    def _openings(self, runs: FrameRuns, atoms: AtomIndices | None) -> Iterator[Opening]:  # noqa: ARG002
        numbers = (
            number
            for start, stop in runs
            for number in range(
                int(self._edges.searchsorted(start, side="right")) - 1,
                int(self._edges.searchsorted(stop)),
            )
        )
        for number in islice(numbers, MAX_OPENED_AHEAD):
            if number not in self._open_layouts:
                yield Opening(self._locate(self._segments[number].file), 0)

    def with_metadata(self) -> Layout:
        if self._shared_metadata is not None:
            return self
        return self._copy_with_metadata((self.info, self.manifest, self._manifest_identity))

    def file_layouts(self) -> Iterator[Layout]:
        """Yield a layout for each segment, not opened."""
        with self:
            for number in range(len(self.segments)):
                layout = self._open_segment(number)
                layout.close()  # opened again when it is used: there may be many
                yield layout

    def _close(self) -> None:
        while self._open_layouts:
            self._open_layouts.popitem()[1].close()

    def boundaries(self) -> NDArray[np.int64]:
        _ = self.info
        return self._edges.copy()

    def plan_fields(self) -> dict[str, Any]:
        return {"segment_frames": tuple(segment.n_frames for segment in self.segments)}

    def units(self) -> Iterator[Unit]:
        """Yield every segment, and damaged tables of checksums."""
        has_checksums = CHECKSUMS_KEY in self.manifest
        if has_checksums:
            check_file = partial(check_checksums, self.path, self.manifest)
            try:
                check_file()
            except CorruptLayoutError:
                yield Unit(CHECKSUMS_FILE, check_file)
                has_checksums = False
        for number, segment in enumerate(self.segments):
            frames = (segment.first_frame, segment.stop)
            if has_checksums:
                try:
                    read_checksums(self.path, self.manifest, number)
                except CorruptLayoutError:
                    yield Unit(
                        CHECKSUMS_FILE,
                        partial(read_checksums, self.path, self.manifest, number),
                        frames,
                    )
            check = partial(self.check_segment, number)
            yield Unit(segment.file, check, frames, proves_frames=True)

    def check_segment(self, number: int) -> None:
        """Compare size and checksum of a file with the manifest; raises CorruptLayoutError."""
        segment = self._segments[number]
        self._check_size(segment)
        crc = file_crc(self._locate(segment.file))
        if crc != segment.crc32c:
            raise CorruptLayoutError(
                f"{self._locate(segment.file)}: its crc32c is {crc:08x}, expected "
                f"{segment.crc32c:08x}: frames {segment.first_frame} to {segment.stop - 1} "
                "have changed; split or convert the source again"
            )

    def encoded_chunks(self, start: int, stop: int) -> list[EncodedChunk]:
        number = int(np.searchsorted(self.boundaries(), start, side="right")) - 1
        segment = self.segments[number]
        checksums = read_checksums(self.path, self.manifest, number)
        self._check_size(segment)
        if checksums is None:
            raise CorruptLayoutError(f"{self.path}: it has no checksums of its frames")
        first = start - segment.first_frame
        edges = checksums.offsets[first : first + stop - start + 1]
        path = self._locate(segment.file)
        with OpenFile(path, CorruptLayoutError) as file:
            data = file.array(int(edges[0]), int(edges[-1] - edges[0])).data
        checksums.check(path, int(edges[0]), data)
        crcs = checksums.of_frames(first, first + stop - start).tolist()
        from mdio.layouts.writer import EncodedChunk  # only writing needs it

        return [EncodedChunk(str(start), data, [crc32c(data), *crcs])]
