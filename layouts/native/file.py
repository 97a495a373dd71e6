"""Native files: fields of records of one size, and frames found through an index.

An XTC or TRR file on another machine is scanned in parts, since going from header to header would
cost a round trip for each. Every process reads one part of the file, with many requests in flight,
finds the first header in it and follows the frames from there. The parts fit together if each ends
where the next begins. The bytes are then in the page cache of the machine that analyses the file.
"""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from operator import add
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mdio.core.boxes import ROTATED_CELL, are_rotated
from mdio.core.errors import SourceError
from mdio.core.files.in_flight import ByteRange, in_flight
from mdio.core.files.index import FrameIndex, load_index
from mdio.core.files.reading import OpenFile
from mdio.core.files.span_checksums import SpanChecksums
from mdio.core.files.store import file_system_type, is_network, store_at
from mdio.core.frames import AtomIndices, Flaws, FrameBlock, Stretch, TrajectoryInfo
from mdio.layouts.base import Layout
from mdio.layouts.tables import ChunkTable, FrameTable, Tables

BATCH_NBYTES = 4 * 2**20
"""Bytes of one read: few enough to stay in the CPU's cache until they are decoded."""
GAP_NBYTES = 16 * 1024
"""Gaps of this size or more are skipped; smaller ones are cheaper to read than another call."""
HEADERS_AT_ONCE, NEAR_NBYTES = 64, 4096
"""Headers of a read, and the largest mean distance at which they share one: files of tiny frames
have millions of them."""


def skips_gaps(unwanted_nbytes: int, n_gaps: int) -> bool:
    """Return whether skipping unwanted bytes, in `n_gaps` gaps, is cheaper than reading them."""
    return unwanted_nbytes >= n_gaps * GAP_NBYTES


def batches(start: int, stop: int, row_nbytes: int) -> Iterator[tuple[int, int]]:
    """Yield (first, end) of consecutive batches of ``start:stop``, one read each."""
    step = max(1, BATCH_NBYTES // max(1, row_nbytes))
    for first in range(start, stop, step):
        yield first, min(first + step, stop)


class Rows(NamedTuple):
    """Equal byte ranges of consecutive records.

    `buffer`, (B,) uint8: the bytes. `n_rows`: number of records R. `stride`: bytes from the
    beginning of one record to that of the next in `buffer`.
    """

    buffer: NDArray[np.uint8]
    n_rows: int
    stride: int

    def view(self, field: RecordField, offset: int) -> NDArray[Any]:
        """Return a view, (R, *shape), of the field at `offset` of every record."""
        strides = field.strides
        if strides is None:
            strides = np.empty(field.shape, np.dtype([("item", "V1")])).strides
            strides = tuple(n * field.dtype.itemsize for n in strides)
        return np.ndarray(
            (self.n_rows, *field.shape),
            field.dtype,
            buffer=self.buffer,
            offset=offset,
            strides=(self.stride, *strides),
        )


class RecordField(NamedTuple):
    """Numbers in every record of a file with records of one size.

    `begin`: offset of the field in record 0. `stride`: bytes from record to record. `dtype`,
    `shape`, `strides`: of the field in one record; C-contiguous by default.
    """

    begin: int
    stride: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes from the first number of one record to its last."""
        if self.strides is None:
            return self.dtype.itemsize * math.prod(self.shape)
        steps = zip(self.shape, self.strides, strict=True)
        return self.dtype.itemsize + sum((n - 1) * stride for n, stride in steps)

    def part(self, low: int, high: int) -> RecordField:
        begin = self.begin + low * self.dtype.itemsize * math.prod(self.shape[1:])
        return self._replace(begin=begin, shape=(high - low, *self.shape[1:]))


RecordFields = Mapping[str, RecordField]


class SharedRead(NamedTuple):
    """One read of every record that fetches several fields of it."""

    begin: int
    nbytes: int
    stride: int
    fields: RecordFields


def _plan_reads(fields: RecordFields) -> list[SharedRead]:
    """Return the reads that fetch `fields`.

    Fields of the same records share a read, unless that would fetch many unwanted bytes.
    """
    reads = []
    for stride in dict.fromkeys(field.stride for field in fields.values()):
        same_stride = {name: field for name, field in fields.items() if field.stride == stride}
        sizes = [field.nbytes for field in same_stride.values()]
        low = min(field.begin for field in same_stride.values())
        nbytes = max(map(add, (field.begin for field in same_stride.values()), sizes)) - low
        if nbytes <= stride and not skips_gaps(stride - sum(sizes), len(same_stride)):
            reads.append(SharedRead(low, nbytes, stride, same_stride))
        else:
            reads += [
                SharedRead(field.begin, size, stride, {name: field})
                for (name, field), size in zip(same_stride.items(), sizes, strict=True)
            ]
    return reads


class PositionalFile(OpenFile):
    """A file of records, read by position; with `checksums`, in whole spans that have them."""

    def __init__(self, path: Path, checksums: SpanChecksums | None = None) -> None:
        super().__init__(path)
        self.checksums = checksums
        self._padded = np.empty(0, np.uint8)

    def read(self, offset: int, nbytes: int) -> bytes:
        """Return `nbytes` bytes from `offset` on, or fewer at the end of the file."""
        if self.checksums is None:
            return self.peek(offset, nbytes)
        end = min(offset + nbytes, self.checksums.nbytes)
        return bytes(self._read_checked(offset, end)) if offset < end else b""

    def headers(self, offsets: Sequence[int], nbytes: int) -> Iterator[bytes]:
        """Yield `nbytes` bytes from each of ascending offsets; in a store, all are in flight."""
        begin, data = 0, b""
        with self._all_in_flight(offsets, nbytes):
            for number, offset in enumerate(offsets):
                if offset + nbytes > begin + len(data):
                    near = offsets[number : number + HEADERS_AT_ONCE]
                    end = near[-1] + nbytes
                    if self.remote is not None or end - offset > len(near) * NEAR_NBYTES:
                        end = offset + nbytes
                    begin, data = offset, self.read(offset, end - offset)
                yield data[offset - begin : offset - begin + nbytes]

    def read_padded(self, offset: int, nbytes: int, padding: int) -> NDArray[np.uint8]:
        """Return `nbytes` bytes, and `padding` more, in memory that the next call reuses."""
        if self._padded.size < nbytes + padding:
            self._padded = np.zeros(nbytes + padding, np.uint8)
        self._fill_checked(offset, self._padded.data[:nbytes])
        return self._padded[: nbytes + padding]

    def rows(self, offset: int, stride: int, n_rows: int, nbytes: int) -> Rows:
        """Read `nbytes` of each of `n_rows` records, the first at `offset`; skip large gaps."""
        if not skips_gaps(stride - nbytes, 1):
            return Rows(
                self._read_checked(offset, offset + (n_rows - 1) * stride + nbytes), n_rows, stride
            )
        first, last = self._whole_spans(offset, offset + nbytes)
        buffer = np.empty((n_rows, last - first), np.uint8)  # the same part of each record
        begins = [first + row * stride for row in range(n_rows)]
        with self._all_in_flight(begins, last - first):
            for begin, row in zip(begins, buffer, strict=True):
                self._fill_checked(begin, row.data)
        return Rows(buffer.reshape(-1)[offset - first :], n_rows, last - first)

    def _whole_spans(self, begin: int, end: int) -> tuple[int, int]:
        """Return a byte range, widened to the spans that have checksums."""
        return (begin, end) if self.checksums is None else self.checksums.span_bounds(begin, end)

    def _fill_checked(self, begin: int, data: memoryview) -> None:
        self.fill(begin, data)
        if self.checksums is not None:
            self.checksums.check(self.path, begin, data)

    def _read_checked(self, begin: int, end: int) -> NDArray[np.uint8]:
        first, last = self._whole_spans(begin, end)
        buffer = np.empty(last - first, np.uint8)
        self._fill_checked(first, buffer.data)
        return buffer[begin - first : end - first]

    @contextmanager
    def _all_in_flight(self, offsets: Sequence[int], nbytes: int) -> Iterator[None]:
        """Prefetch parts of an object in a store, if there are several."""
        prefetched = offsets if self.remote is not None and len(offsets) > 1 else ()
        ranges = (self._whole_spans(offset, offset + nbytes) for offset in prefetched)
        with in_flight(ByteRange(self, begin, end - begin) for begin, end in ranges):
            yield

    def fields(self, start: int, stop: int, fields: RecordFields) -> dict[str, NDArray[Any]]:
        """Read fields of records ``start:stop``: (stop - start, *shape) arrays, maybe with gaps."""
        return self._fetch(start, stop, _plan_reads(fields))

    def _fetch(self, start: int, stop: int, reads: Sequence[SharedRead]) -> dict[str, NDArray[Any]]:
        arrays = {}
        for read in reads:
            begin = read.begin + start * read.stride
            rows = self.rows(begin, read.stride, stop - start, read.nbytes)
            for name, field in read.fields.items():
                arrays[name] = rows.view(field, field.begin - read.begin)
        return arrays

    def records(
        self, start: int, stop: int, fields: RecordFields
    ) -> Iterator[tuple[int, int, dict[str, NDArray[Any]]]]:
        """Yield (first, end, their `fields`) of records ``start:stop``, some MiB at a time."""
        reads = _plan_reads(fields)
        row_nbytes = sum(
            read.nbytes if skips_gaps(read.stride - read.nbytes, 1) else read.stride
            for read in reads
        )
        for first, end in batches(start, stop, row_nbytes):
            yield first, end, self._fetch(first, end, reads)


NO_ATOMS = np.empty(0, np.int64)
SMALL_FRAME_NBYTES = 64 * 1024
"""Frames up to this size are prefetched as a whole, also where few atoms are read."""


class NativeLayout(Layout):
    """A file that is read by position; closed if it cannot be opened as a trajectory."""

    reads_whole_frames: ClassVar[bool] = False
    """Whether reading a few atoms takes all bytes of a frame."""
    _file: PositionalFile

    def _open(self) -> TrajectoryInfo:
        self._file = PositionalFile(self.path, self.options.get("checksums"))
        try:
            return self._open_frames()
        except BaseException:
            self._close()
            raise

    @abstractmethod
    def _open_frames(self) -> TrajectoryInfo:
        """Return the information on the opened file; raises SourceError."""

    @abstractmethod
    def _byte_bounds(self, start: int, stop: int) -> tuple[int, int]:
        """Return the offsets where frames ``start:stop`` begin and end in the opened file."""

    def _ranges(self, start: int, stop: int, atoms: AtomIndices | None) -> Iterator[ByteRange]:
        """Yield the bytes of frames that are read as a whole or are small."""
        if atoms is not None and not atoms.size:
            return
        begin, end = self._byte_bounds(start, stop)
        small = end - begin <= (stop - start) * SMALL_FRAME_NBYTES
        if begin < end and (atoms is None or small or self.reads_whole_frames):
            yield ByteRange(self._file, begin, min(end, self._file.nbytes) - begin)

    def _close(self) -> None:
        self._file.close()


class IndexedLayout(NativeLayout):
    """A file whose frames are found through an index of their offsets."""

    _index: FrameIndex
    _intact_frames: list[int] | None = None
    """Numbers of the frames that can be read, in a file with damage; None without damage."""

    @property
    def index(self) -> FrameIndex:
        """Offsets of the frames; opens the file if need be."""
        _ = self.info
        return self._index

    def _byte_bounds(self, start: int, stop: int) -> tuple[int, int]:
        offsets = self._index.offsets
        end = self._index.end if stop == self._index.n_frames else offsets[stop]
        return int(offsets[start]), int(end)

    def _read_properties(
        self, vectors: NDArray[Any] | None = None, /, **fields: Any
    ) -> TrajectoryInfo:
        """Return the information on the file; `vectors`: (1, 3, 3), the first frame's, or none."""
        last = self._index.n_frames - 1
        second = (
            min(1, last)
            if self._intact_frames is None
            else next(filter(None, self._intact_frames), last)
        )
        columns = FrameBlock.empty(3, 0)
        for row, frame in enumerate((0, second, last)):
            self._read_into(frame, frame + 1, NO_ATOMS, columns.frames(slice(row, row + 1)))
        times = columns.time.tolist()
        notes = (ROTATED_CELL,) if vectors is not None and are_rotated(vectors) else ()
        return TrajectoryInfo(
            layout=self.name,
            path=str(self.path),
            n_frames=self._index.n_frames,
            n_atoms=self._index.n_atoms,
            dt_ps=(times[1] - times[0]) / second if second else 1.0,
            time_first_ps=times[0],
            time_last_ps=times[2],
            has_box=bool(columns.box[0].any()),
            nbytes=self._index.end + self._index.lost_nbytes,
            flaws=Flaws(self._index.lost(self.path), notes),
            **fields,
        )


class ScannedLayout(IndexedLayout):
    """A file that is scanned once for its frames, whose headers hold their sizes.

    The index is stored for the next time (`mdio.core.files.index`).
    """

    check_frames: ClassVar[staticmethod[[NDArray[np.uint8], range, FrameTable, int], None]]
    """Its `mdio.layouts.tables.FrameCheck`."""
    header_nbytes: ClassVar[int]
    """Bytes at the beginning of a frame that give its size."""

    def tables(self) -> Tables:
        edges = np.append(self.index.offsets, np.int64(self.index.end))
        order = None if self.info.xtc_integers else ">"
        frames = FrameTable(
            self.path,
            edges,
            checksums=self.options.get("checksums"),
            check=self.check_frames,
            byte_order=order,
        )
        return Tables(frames, self._position_table)

    @abstractmethod
    def _position_table(self) -> ChunkTable | None:
        """Return the table of positions; see `Tables.positions`."""

    @classmethod
    @abstractmethod
    def magic(cls, path: Path) -> FrameMagic:
        """Return how frames of a file are recognised, from its first frame."""

    @abstractmethod
    def _parse_header(self, raw: bytes, frame: int) -> Any:
        """Return the header of a frame, with `nbytes` of the frame; raises SourceError."""

    def _header(self, frame: int) -> Any:
        raw = self._file.read(int(self._index.offsets[frame]), self.header_nbytes)
        return self._parse_header(raw, frame)

    def _headers(self, frames: Sequence[int]) -> Iterator[Any]:
        """Yield the headers of ascending frames; damaged ones are reported when they are read."""
        headers = self._file.headers(self._index.offsets[list(frames)].tolist(), self.header_nbytes)
        for frame, raw in zip(frames, headers, strict=True):
            with suppress(SourceError):
                yield self._parse_header(raw, frame)

    def _find_frames(self, n_atoms: int, scan: Callable[[Path], FrameIndex]) -> None:
        """Find the frames: by checksums, around damage, or by the stored index."""
        checksums, self._intact_frames = self.options.get("checksums"), None
        if self.options.get("salvage"):
            self._index, self._intact_frames = scan_around_damage(self.path, self.magic(self.path))
        elif checksums is None:
            self._index = load_index(
                self.path,
                lambda path: scan_fast(path, self.magic(path), scan),
                n_atoms,
                lambda path, stored: extend_index(path, self.magic(path), stored),
            )
        else:
            self._index = checksums.index(n_atoms)
        # The file may have grown since it was opened.
        self._file.nbytes = max(self._file.nbytes, self._index.end)
        last = self._index.n_frames - 1
        if self._index.frame_nbytes[last] != self._header(last).nbytes:
            # An index of MDAnalysis may end at damage, or where the file is cut: scan it.
            self._index = scan(self.path)

    @property
    def _readable_frames(self) -> Sequence[int]:
        return range(self._index.n_frames) if self._intact_frames is None else self._intact_frames

    def _sample_frames(self, count: int) -> list[int]:
        """Return the numbers of `count` frames at most: the first ones, some, and the last.

        Of an object in a store, the first ones: each of the others would be a request.
        """
        last = self._index.n_frames - 1
        n_first = count if store_at(self.path).opening_waits else count // 2
        frames = {*range(min(n_first, last + 1))}
        frames.update(np.linspace(0, last, count - n_first).astype(int).tolist())
        return sorted(frames if self._intact_frames is None else frames & set(self._intact_frames))

    @property
    def unreadable_stretches(self) -> tuple[Stretch, ...]:
        """Damaged bytes between frames with headers."""
        info = self.info
        if self._intact_frames is None:
            return ()
        intact = np.array(self._intact_frames)
        sizes, offsets = self._index.frame_nbytes, self._index.offsets
        median_nbytes = float(np.median(sizes[intact]))
        stretches = []
        for frame in np.setdiff1d(np.arange(info.n_frames), intact).tolist():
            following = int(np.searchsorted(intact, frame))
            neighbours = [
                int(intact[n]) for n in (following - 1, following) if 0 <= n < len(intact)
            ]
            times = [float(self.read(n, n + 1, atoms=[]).time[0]) for n in neighbours]
            n_by_size = max(1, round(sizes[frame] / median_nbytes))
            n_by_time = round((times[-1] - times[0]) / info.dt_ps) - 1 if info.dt_ps > 0 else 0
            # Both are estimates: the simulation may have a gap in its times here.
            n_frames = (
                n_by_time if abs(n_by_time - n_by_size) <= max(1, n_by_size // 4) else n_by_size
            )
            begin, nbytes = int(offsets[frame]), int(sizes[frame])
            stretches.append(
                Stretch(str(self.path), frame, begin, nbytes, times[0], times[-1], max(1, n_frames))
            )
        return tuple(stretches)


SCANNED_NBYTES = 1 << 20
"""Bytes that a scan reads at once."""
STORE_READ_NBYTES = 8 << 20
"""Objects in stores are scanned in parts of this size."""
MAX_STORE_READS = 4

Peek = Callable[[int, int], bytes]
"""Returns bytes from an offset on: (offset, nbytes); fewer only at the end of the file."""


def scan_around_damage(path: Path, magic: FrameMagic) -> tuple[FrameIndex, list[int]]:
    """Find the frames of a file, and the numbers of those with a header.

    A frame is complete if its header is valid and another header, or the end of the file, follows
    it. Otherwise the next header is searched, and the bytes before it are listed as one frame that
    cannot be read.
    """
    offsets: list[int] = []
    intact: list[int] = []
    with OpenFile(path) as file, _peeking(file) as peek:
        size = file.nbytes

        def frame_end(begin: int) -> int | None:
            """Return the end of the frame at this offset; None if there is no frame."""
            nbytes = magic.nbytes_from_header(peek(begin, magic.head_nbytes))
            return None if nbytes is None or begin + nbytes > size else begin + nbytes

        begin = end = 0
        while begin < size:
            stop = frame_end(begin)
            is_complete = stop is not None and (stop == size or frame_end(stop) is not None)
            next_begin = stop
            if not is_complete:
                next_begin = _find_next_frame(peek, size, magic.first_bytes, begin + 1, frame_end)
                # A frame before damage is complete if the next one does not begin within it.
                is_complete = stop is not None and (next_begin is None or next_begin >= stop)
                next_begin = stop if is_complete else next_begin
            if is_complete:
                intact.append(len(offsets))
                end = stop or end
            if is_complete or next_begin is not None:
                offsets.append(begin)
            if next_begin is None:
                break
            begin = next_begin
        lost_nbytes = size - end
    return FrameIndex(np.array(offsets, np.int64), end, magic.n_atoms, lost_nbytes), intact


@contextmanager
def _peeking(file: OpenFile) -> Iterator[Peek]:
    """Yield a function that returns bytes of a file; of an object in a store, in large reads."""
    if file.remote is None:
        yield file.peek
        return

    @lru_cache(MAX_STORE_READS)
    def read(number: int) -> bytes:
        return file.peek(number * STORE_READ_NBYTES, STORE_READ_NBYTES)

    def peek(offset: int, nbytes: int) -> bytes:
        first, begin = divmod(offset, STORE_READ_NBYTES)
        last = (min(offset + nbytes, file.nbytes) - 1) // STORE_READ_NBYTES
        return b"".join(map(read, range(first, last + 1)))[begin : begin + nbytes]

    with in_flight([ByteRange(file, 0, file.nbytes)]):
        yield peek


def _find_next_frame(
    peek: Peek,
    size: int,
    first_bytes: Sequence[bytes],
    offset: int,
    frame_end: Callable[[int], int | None],
) -> int | None:
    """Return the offset of the next frame, from `offset` on; None if there is none."""
    overlap = max(map(len, first_bytes)) - 1
    while offset < size:
        data = peek(offset, SCANNED_NBYTES + overlap)
        for position in sorted(_find_patterns(data, first_bytes)):
            if frame_end(offset + position) is not None:
                return offset + position
        offset += SCANNED_NBYTES
    return None


def _find_patterns(data: bytes, patterns: Sequence[bytes]) -> Iterator[int]:
    for pattern in patterns:
        position = data.find(pattern)
        while position >= 0:
            yield position
            position = data.find(pattern, position + 1)


ScannedPart = tuple[NDArray[np.int64], int]
"""Offsets of the frames that begin in a part of a file, and the end of the last one."""


@dataclass(frozen=True, slots=True)
class FrameMagic:
    """How frames are recognised in a file whose frames have headers with their sizes."""

    n_atoms: int
    first_bytes: Sequence[bytes]
    nbytes_from_header: Callable[[bytes], int | None]
    """Returns the bytes of the frame with this header; None for other bytes."""
    head_nbytes: int


def is_on_network(path: Path) -> bool:
    """Return whether a file is on another machine."""
    return is_network(file_system_type(path))


def scan_fast(path: Path, magic: FrameMagic, scan: Callable[[Path], FrameIndex]) -> FrameIndex:
    """Find the frames of a whole file; over a network, by reading it with many requests at a time.

    `scan` goes from header to header, and raises an error that says what is wrong.
    """
    if is_on_network(path):
        index = join_parts([scan_part(path, magic, 0, 1)], magic.n_atoms, path.stat().st_size)
        if index is not None:
            return index
    return scan(path)


def extend_index(path: Path, magic: FrameMagic, stored: FrameIndex) -> FrameIndex | None:
    """Add the frames after a stored index, in a file that has grown; None if others follow."""
    offsets, end = [], stored.end
    with OpenFile(path) as file:
        while end < file.nbytes:
            header = file.peek(end, magic.head_nbytes)
            nbytes = magic.nbytes_from_header(header) if len(header) == magic.head_nbytes else None
            if nbytes is None:
                return None
            if end + nbytes > file.nbytes:
                break
            offsets.append(end)
            end += nbytes
        all_offsets = np.append(stored.offsets, np.array(offsets, np.int64))
        return FrameIndex(all_offsets, end, stored.n_atoms, file.nbytes - end)


def scan_part(path: Path, magic: FrameMagic, part: int, n_parts: int) -> ScannedPart | None:
    """Find the frames that begin in one of `n_parts` equal parts of a file; None on damage."""
    with OpenFile(path) as file:
        begin, end = (file.nbytes * k // n_parts for k in (part, part + 1))
        with in_flight([ByteRange(file, begin, end - begin)]):
            return _scan_frames(file, magic, begin, end)


def _scan_frames(file: OpenFile, magic: FrameMagic, begin: int, end: int) -> ScannedPart | None:
    def frame_end(offset: int) -> int | None:
        """Return the end of a frame that is followed by another one or by the end of the file.

        Coordinates may look like a header, but hardly ever like one that leads to another header.
        """
        nbytes = magic.nbytes_from_header(file.peek(offset, magic.head_nbytes))
        stop = offset + (nbytes or file.nbytes)
        follows = stop == file.nbytes or (
            stop < file.nbytes
            and magic.nbytes_from_header(file.peek(stop, magic.head_nbytes)) is not None
        )
        return stop if nbytes and follows else None

    offset: int | None = (
        0 if begin == 0 else _find_next_frame(file.peek, end, magic.first_bytes, begin, frame_end)
    )
    if offset is None or offset >= end:
        return np.empty(0, np.int64), end
    offsets: list[int] = []
    edges = [
        begin,
        *range((begin // SCANNED_NBYTES + 1) * SCANNED_NBYTES, end, SCANNED_NBYTES),
        end,
    ]
    for first, last in itertools.pairwise(edges):
        data = file.array(first, last - first).data
        while offset < last:
            header = bytes(data[offset - first : offset - first + magic.head_nbytes])
            if len(header) < magic.head_nbytes:
                header = file.peek(offset, magic.head_nbytes)
            nbytes = magic.nbytes_from_header(header)
            if nbytes is None:
                return None
            offsets.append(offset)
            offset += nbytes
    return np.array(offsets, np.int64), offset


def join_parts(parts: Sequence[ScannedPart | None], n_atoms: int, nbytes: int) -> FrameIndex | None:
    """Return the index of a file that was scanned in parts; None if the parts do not join."""
    all_offsets, begin = [], 0
    for part in parts:
        if part is None:
            return None
        offsets, end = part
        if offsets.size:
            if offsets[0] != begin:
                return None
            all_offsets.append(offsets)
            begin = end
    return FrameIndex(np.concatenate(all_offsets), nbytes, n_atoms) if begin == nbytes else None
