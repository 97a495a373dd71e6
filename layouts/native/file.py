"""What layouts of native files share: records at equal distances, frames found by an index.

Frames of an XTC or TRR file are found in several parts of it at a time. Where a file comes over a
network, walking from header to header costs a round trip each, or the bytes in between all the
same. So every process reads a part of the file once, many requests at a time, finds the first
header in it, and follows the frames from there. The parts fit together if each ends where the next
begins; and what was read is in the memory of the machine that will want it for the analysis.
"""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mdio.core.files.in_flight import ByteRange, InFlight, in_flight
from mdio.core.files.index import FrameIndex, load_index
from mdio.core.files.piece_sums import PieceSums
from mdio.core.files.reading import OpenFile
from mdio.core.files.store import file_system_type, is_network
from mdio.core.frames import AtomIndices, Flaws, FrameBlock, Stretch, TrajectoryInfo
from mdio.layouts.base import Layout
from mdio.layouts.tables import ChunkTable, FrameTable, Tables

BATCH_NBYTES = 4 * 2**20
"""Bytes read before they are decoded: stays in the cache of the processor."""
GAP_NBYTES = 16 * 1024
"""From this size on, a gap between wanted bytes is skipped; reading less is cheaper than a call."""


def spare_gaps(unwanted_nbytes: int, n_gaps: int) -> bool:
    """Return whether skipping so many bytes in so many gaps is cheaper than reading them."""
    return unwanted_nbytes >= n_gaps * GAP_NBYTES


def batches(start: int, stop: int, row_nbytes: int) -> Iterator[tuple[int, int]]:
    """Yield (first, last) of consecutive pieces of ``start:stop`` that are read at one go."""
    step = max(1, BATCH_NBYTES // max(1, row_nbytes))
    for first in range(start, stop, step):
        yield first, min(first + step, stop)


class Rows(NamedTuple):
    """Equal byte ranges of consecutive records.

    `buffer`, (B,) uint8: holds them. `n_rows`: number of records R. `stride`: bytes between the
    beginnings of two of them in `buffer`.
    """

    buffer: NDArray[np.uint8]
    n_rows: int
    stride: int

    def view(self, field: Field, offset: int) -> NDArray[Any]:
        """Return a field that lies at `offset` of every record, (R, *shape), without a copy."""
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


class Field(NamedTuple):
    """Numbers that lie in every record of a file, records at equal distances.

    `begin`: where those of record 0 lie, or would. `stride`: bytes from record to record. `dtype`,
    `shape`, `strides`: of those of one record; C-contiguous by default.
    """

    begin: int
    stride: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of those of one record, from the first to the last."""
        if self.strides is None:
            return self.dtype.itemsize * math.prod(self.shape)
        steps = zip(self.shape, self.strides, strict=True)
        return self.dtype.itemsize + sum((n - 1) * stride for n, stride in steps)

    def part(self, low: int, high: int) -> Field:
        """Return elements ``low:high`` of them."""
        begin = self.begin + low * self.dtype.itemsize * math.prod(self.shape[1:])
        return self._replace(begin=begin, shape=(high - low, *self.shape[1:]))


Fields = Mapping[str, Field]


def _read_as_one(fields: Fields) -> list[tuple[int, int, int, list[str]]]:
    """Return which fields are read at one go: begin, bytes, stride of records, and their names.

    Those of the same records are, unless that would read much that is not wanted.
    """
    found = []
    for stride in dict.fromkeys(field.stride for field in fields.values()):
        names = [name for name, field in fields.items() if field.stride == stride]
        low = min(fields[name].begin for name in names)
        nbytes = max(fields[name].begin + fields[name].nbytes for name in names) - low
        unwanted = stride - sum(fields[name].nbytes for name in names)
        if nbytes <= stride and not spare_gaps(unwanted, len(names)):
            found.append((low, nbytes, stride, names))
        else:
            found += [(fields[one].begin, fields[one].nbytes, stride, [one]) for one in names]
    return found


class PositionalFile(OpenFile):
    """A file of records, opened for reading by position."""

    def read(self, offset: int, nbytes: int) -> bytes:
        """Return bytes from `offset` on: `nbytes`, or fewer at the end of the file."""
        return self.peek(offset, nbytes)

    def rows(self, offset: int, stride: int, n_rows: int, nbytes: int) -> Rows:
        """Read `nbytes` of each of `n_rows` records; gaps between them are skipped if large.

        `offset`: where the first wanted byte of the first record lies in the file. `stride`:
        distance between records in the file. `n_rows`, `nbytes`: how many records, and how much of
        each; ``nbytes <= stride``.
        Raises SourceError: the file ends before, or cannot be read.
        """
        if spare_gaps(stride - nbytes, 1):
            buffer = np.empty(n_rows * nbytes, np.uint8)
            for at, row in self._apart(offset, stride, buffer.reshape(n_rows, nbytes)):
                self.fill(at, row)
            return Rows(buffer, n_rows, nbytes)
        buffer = np.empty((n_rows - 1) * stride + nbytes, np.uint8)
        self.fill(offset, buffer)
        return Rows(buffer, n_rows, stride)

    def fields(self, start: int, stop: int, fields: Fields) -> dict[str, NDArray[Any]]:
        """Read what is in records ``start:stop``: arrays (stop - start, *shape), maybe with gaps.

        Raises SourceError: the file ends before, or cannot be read.
        """
        found = {}
        for begin, nbytes, stride, names in _read_as_one(fields):
            rows = self.rows(begin + start * stride, stride, stop - start, nbytes)
            for name in names:
                found[name] = rows.view(fields[name], fields[name].begin - begin)
        return found

    def records(
        self, start: int, stop: int, fields: Fields
    ) -> Iterator[tuple[int, int, dict[str, NDArray[Any]]]]:
        """Yield (first, last, `fields` of these) of records ``start:stop``, some MiB at a time."""
        row_nbytes = 0
        for _, nbytes, stride, _ in _read_as_one(fields):
            row_nbytes += nbytes if spare_gaps(stride - nbytes, 1) else stride
        for first, last in batches(start, stop, row_nbytes):
            yield first, last, self.fields(first, last, fields)

    def _apart(
        self, offset: int, stride: int, buffer: NDArray[np.uint8]
    ) -> Iterator[tuple[int, memoryview]]:
        """Yield where each row of `buffer` lies, and the row; those of an object are under way."""
        places = [offset + row * stride for row in range(len(buffer))]
        ahead = places if self.remote is not None and len(places) > 1 else []
        with in_flight(ByteRange(self, at, buffer.shape[1]) for at in ahead):
            yield from zip(places, (row.data for row in buffer), strict=True)


class CheckedFile(PositionalFile):
    """A file whose bytes are compared with their checksums whenever they are read.

    Reads are widened to whole pieces; of a large gap between wanted bytes, nothing is read.

    `path`: the file. `sums`: its checksums.
    """

    def __init__(self, path: Path, sums: PieceSums) -> None:
        super().__init__(path)
        self.sums = sums

    def read(self, offset: int, nbytes: int) -> bytes:
        """Return bytes from `offset` on; see the base class."""
        end = min(offset + nbytes, self.sums.nbytes)
        return bytes(self._checked(offset, end)) if offset < end else b""

    def rows(self, offset: int, stride: int, n_rows: int, nbytes: int) -> Rows:
        """Read `nbytes` of each of `n_rows` records; see the base class."""
        if spare_gaps(stride - nbytes, 1):
            first, last = self.sums.around(offset, offset + nbytes)
            buffer = np.empty((n_rows, last - first), np.uint8)  # frames are alike, and so pieces
            for at, row in self._apart(first, stride, buffer):
                self.fill(at, row)
                self.sums.check(self.path, at, row)
            return Rows(buffer.reshape(-1)[offset - first :], n_rows, last - first)
        return Rows(self._checked(offset, offset + (n_rows - 1) * stride + nbytes), n_rows, stride)

    def _checked(self, begin: int, end: int) -> NDArray[np.uint8]:
        first, last = self.sums.around(begin, end)
        buffer = np.empty(last - first, np.uint8)
        self.fill(first, buffer)
        self.sums.check(self.path, first, buffer.data)
        return buffer[begin - first : end - first]


def open_positional(path: Path, options: Mapping[str, Any]) -> PositionalFile:
    """Open a file for a layout with `options`: with checksums (``sums=``) where it has them."""
    sums = options.get("sums")
    return PositionalFile(path) if sums is None else CheckedFile(path, sums)


NO_ATOMS = np.empty(0, np.int64)
SMALL_FRAME_NBYTES = 64 * 1024
"""Frames up to this size are asked for as a whole, also where few atoms are wanted."""


class NativeLayout(Layout):
    """A file that is opened by position, and closed again if it cannot be understood."""

    reads_whole_frames: ClassVar[bool] = False
    """Whether a few atoms of a frame cost all of its bytes."""
    _file: PositionalFile

    def _open(self) -> TrajectoryInfo:
        self._file = open_positional(self.path, self.options)
        try:
            return self._open_frames()
        except BaseException:
            self._close()
            raise

    @abstractmethod
    def _open_frames(self) -> TrajectoryInfo:
        """Say what is in the opened file; raises SourceError."""

    @abstractmethod
    def _span(self, start: int, stop: int) -> tuple[int, int]:
        """Return where frames ``start:stop`` begin in the opened file, and where they end."""

    def _ranges(self, start: int, stop: int, atoms: AtomIndices | None) -> Iterator[ByteRange]:
        """Yield where frames lie, if they are read as a whole or are small."""
        if atoms is not None and not atoms.size:
            return
        begin, end = self._span(start, stop)
        small = end - begin <= (stop - start) * SMALL_FRAME_NBYTES
        if begin < end and (atoms is None or small or self.reads_whole_frames):
            yield ByteRange(self._file, begin, min(end, self._file.nbytes) - begin)

    def _close(self) -> None:
        self._file.close()


class FoundFrames(NativeLayout):
    """A file of which an index tells where frames are."""

    _index: FrameIndex
    _whole: list[int] | None = None
    """Frames that can be read, of a file with damage between them."""

    @property
    def index(self) -> FrameIndex:
        """Where the frames are; opens the file if need be."""
        _ = self.info
        return self._index

    def _span(self, start: int, stop: int) -> tuple[int, int]:
        begin, nbytes = self._index.offsets[start], self._index.nbytes
        return int(begin), int(
            nbytes if stop == self._index.n_frames else self._index.offsets[stop]
        )

    def _describe(self, **more: Any) -> TrajectoryInfo:
        last = self._index.n_frames - 1
        second = min(1, last) if self._whole is None else next(filter(None, self._whole), last)
        edges = FrameBlock.empty(3, 0)
        for row, frame in enumerate((0, second, last)):
            self._read_into(frame, frame + 1, NO_ATOMS, edges.frames(slice(row, row + 1)))
        times = edges.time.tolist()
        return TrajectoryInfo(
            layout=self.name,
            path=str(self.path),
            n_frames=self._index.n_frames,
            n_atoms=self._index.n_atoms,
            dt_ps=(times[1] - times[0]) / second if second else 1.0,
            time_first_ps=times[0],
            time_last_ps=times[2],
            has_box=bool(edges.box[0].any()),
            nbytes=self._index.nbytes + self._index.lost_nbytes,
            flaws=Flaws(self._index.lost(self.path)),
            **more,
        )


class IndexedLayout(FoundFrames):
    """A file whose frames are found through an index (`mdio.core.files.index`)."""

    check_frames: ClassVar[staticmethod[[NDArray[np.uint8], range, FrameTable, int], None]]
    """Its `mdio.layouts.tables.FrameCheck`."""

    def tables(self) -> Tables:
        """Return where its frames, and their positions, lie; see `Layout.tables`."""
        edges = np.append(self.index.offsets, np.int64(self.index.nbytes))
        order = None if self.info.xtc_integers else ">"
        frames = FrameTable(
            self.path,
            edges,
            sums=self.options.get("sums"),
            check=self.check_frames,
            byte_order=order,
        )
        return Tables(frames, self._positions)

    @abstractmethod
    def _positions(self) -> ChunkTable | None:
        """Return where positions lie; see `Tables.positions`."""

    @classmethod
    @abstractmethod
    def marks(cls, path: Path) -> FrameMarks:
        """Return how frames of a file are known, by its first."""

    def _find_frames(self, n_atoms: int, scan: Callable[[Path], FrameIndex]) -> None:
        """Find the frames: by checksums, around damage, or by the stored index."""
        sums, self._whole = self.options.get("sums"), None
        if self.options.get("salvage"):
            self._index, self._whole = scan_around_damage(self.path, self.marks(self.path))
        elif sums is None:
            self._index = load_index(
                self.path,
                lambda path: scan_fast(path, self.marks(path), scan),
                n_atoms,
                lambda path, former: extended(path, self.marks(path), former),
            )
        else:
            self._index = sums.index(n_atoms)

    @property
    def stretches(self) -> tuple[Stretch, ...]:
        """What lies between frames with headers; see `Layout.stretches`."""
        info = self.info
        if self._whole is None:
            return ()
        whole = np.array(self._whole)
        sizes, offsets = self._index.frame_nbytes, self._index.offsets
        usual = float(np.median(sizes[whole]))
        found = []
        for frame in np.setdiff1d(np.arange(info.n_frames), whole).tolist():
            at = int(np.searchsorted(whole, frame))
            around = [int(whole[n]) for n in (at - 1, at) if 0 <= n < len(whole)]
            times = [float(self.read(n, n + 1, atoms=[]).time[0]) for n in around]
            by_size = max(1, round(sizes[frame] / usual))
            by_time = round((times[-1] - times[0]) / info.dt_ps) - 1 if info.dt_ps > 0 else 0
            # Both are guesses; times may have a gap of their own there.
            about = by_time if abs(by_time - by_size) <= max(1, by_size // 4) else by_size
            bytes_ = int(offsets[frame]), int(sizes[frame])
            found.append(
                Stretch(str(self.path), frame, *bytes_, times[0], times[-1], max(1, about))
            )
        return tuple(found)


SCANNED_NBYTES = 1 << 20
STORE_PIECE_NBYTES = 8 << 20
"""An object is looked at in pieces of this size, ..."""
MAX_STORE_PIECES = 4
"""... of which so many are kept."""

Peek = Callable[[int, int], bytes]
"""Gives up to so many bytes from a place on; fewer only at the end."""


def scan_around_damage(path: Path, marks: FrameMarks) -> tuple[FrameIndex, list[int]]:
    """Find the frames of a file whose frames have headers with their sizes.

    A frame counts if its header can be one and the next follows it, or the file ends. Where that
    is not so, the next such header is looked for; what lies before it is listed as a frame too,
    which cannot be read.

    `path`: the file. `marks`: how its frames are known.
    Returns `index` (FrameIndex). `whole` (list of int): numbers of the frames with a header.
    """
    offsets: list[int] = []
    whole: list[int] = []
    with OpenFile(path) as file, _peeking(file) as peek:
        size = file.nbytes

        def end_of(at: int) -> int | None:
            """Return where the frame that begins here ends; None if none does."""
            nbytes = marks.size_of(peek(at, marks.head_nbytes))
            return None if nbytes is None or at + nbytes > size else at + nbytes

        at = end = 0
        while at < size:
            stop = end_of(at)
            sound = stop is not None and (stop == size or end_of(stop) is not None)
            following = stop
            if not sound:
                following = _next(peek, size, marks.begins, at + 1, end_of)
                # A frame before damage is whole if what comes next does not begin within it.
                sound = stop is not None and (following is None or following >= stop)
                if sound and following != stop:
                    following = stop
            if sound:
                whole.append(len(offsets))
                end = stop or end
            if sound or following is not None:
                offsets.append(at)
            if following is None:
                break
            at = following
        lost_nbytes = size - end
    return FrameIndex(np.array(offsets, np.int64), end, marks.n_atoms, lost_nbytes), whole


@contextmanager
def _peeking(file: OpenFile) -> Iterator[Peek]:
    """Yield what gives bytes of a file, of an object in pieces that are asked for ahead."""
    if file.remote is None:
        yield file.peek
        return
    ahead, kept, newest = InFlight(), OrderedDict[int, bytes](), -1

    def piece(number: int) -> bytes:
        nonlocal newest
        if number in kept:
            return kept[number]
        begin = number * STORE_PIECE_NBYTES
        if number != newest + 1 or not kept:
            ahead.prefetch([ByteRange(file, begin, file.nbytes - begin)])
        newest = number
        kept[number] = file.peek(begin, STORE_PIECE_NBYTES)
        if len(kept) > MAX_STORE_PIECES:
            kept.popitem(last=False)
        return kept[number]

    def peek(at: int, nbytes: int) -> bytes:
        end = min(at + nbytes, file.nbytes)
        if end <= at:
            return b""
        first, last = at // STORE_PIECE_NBYTES, (end - 1) // STORE_PIECE_NBYTES
        if nbytes < SCANNED_NBYTES and last > newest + 1 and first not in kept:
            return file.peek(at, nbytes)  # far away, where a damaged header leads
        found = b"".join(piece(number) for number in range(first, last + 1))
        at -= first * STORE_PIECE_NBYTES
        return found[at : at + nbytes]

    try:
        yield peek
    finally:
        ahead.stop()


def _next(
    peek: Peek,
    size: int,
    begins: Sequence[bytes],
    at: int,
    end_of: Callable[[int], int | None],
) -> int | None:
    """Return where the next frame begins, from `at` on; None if none does."""
    more = max(map(len, begins)) - 1
    while at < size:
        data = peek(at, SCANNED_NBYTES + more)
        for place in sorted(_places(data, begins)):
            if end_of(at + place) is not None:
                return at + place
        at += SCANNED_NBYTES
    return None


def _places(data: bytes, begins: Sequence[bytes]) -> Iterator[int]:
    for begin in begins:
        place = data.find(begin)
        while place >= 0:
            yield place
            place = data.find(begin, place + 1)


PIECE_NBYTES = 1 << 20

Part = tuple[NDArray[np.int64], int]
"""Where the frames begin that begin in a part of a file, and where the last of them ends."""


@dataclass(frozen=True, slots=True)
class FrameMarks:
    """How the frames of a file are known, whose headers tell how long they are."""

    n_atoms: int
    begins: Sequence[bytes]
    """Bytes with which frames begin."""
    size_of: Callable[[bytes], int | None]
    """Bytes of the frame whose header this is; None if it is none."""
    head_nbytes: int
    """Bytes of a header that `size_of` needs."""


def comes_over_a_network(path: Path) -> bool:
    """Return whether a file lies elsewhere than on a disk of this machine."""
    return is_network(file_system_type(path))


def scan_fast(path: Path, marks: FrameMarks, scan: Callable[[Path], FrameIndex]) -> FrameIndex:
    """Find the frames of a whole file; over a network, by reading it with many requests at a time.

    `scan` walks from header to header, and says what is wrong.
    """
    if comes_over_a_network(path):
        found = joined([scan_part(path, marks, 0, 1)], marks.n_atoms, path.stat().st_size)
        if found is not None:
            return found
    return scan(path)


def extended(path: Path, marks: FrameMarks, former: FrameIndex) -> FrameIndex | None:
    """Add the frames behind those of `former`, of a file that was written on.

    None if something else follows, or the beginning of a header: a scan can say what.
    """
    offsets, at = [], former.nbytes
    with OpenFile(path) as file:
        while at < file.nbytes:
            raw = file.peek(at, marks.head_nbytes)
            nbytes = marks.size_of(raw) if len(raw) == marks.head_nbytes else None
            if nbytes is None:
                return None
            if at + nbytes > file.nbytes:
                break
            offsets.append(at)
            at += nbytes
        every = np.append(former.offsets, np.array(offsets, np.int64))
        return FrameIndex(every, at, former.n_atoms, file.nbytes - at)


def scan_part(path: Path, marks: FrameMarks, part: int, n_parts: int) -> Part | None:
    """Find the frames that begin in one of `n_parts` equal parts of a file.

    Returns Part or None: None if there is anything but frames; a walk over the file can say what.
    Raises SourceError: the file cannot be read.
    """
    with OpenFile(path) as file:
        begin, end = (file.nbytes * k // n_parts for k in (part, part + 1))
        with in_flight([ByteRange(file, begin, end - begin)]):
            return _frames(file, marks, begin, end)


def _frames(file: OpenFile, marks: FrameMarks, begin: int, end: int) -> Part | None:
    offsets: list[int] = []
    at = 0 if begin == 0 else -1
    edges = [begin, *range((begin // PIECE_NBYTES + 1) * PIECE_NBYTES, end, PIECE_NBYTES), end]
    for first, last in itertools.pairwise(edges):
        data = file.array(first, last - first).data
        if at < 0:
            at = _first_header(file, data, first, marks)
        while 0 <= at < last:
            raw = bytes(data[at - first : at - first + marks.head_nbytes])
            if len(raw) < marks.head_nbytes:
                raw = file.peek(at, marks.head_nbytes)
            nbytes = marks.size_of(raw)
            if nbytes is None:
                return None
            offsets.append(at)
            at += nbytes
    return np.array(offsets, np.int64), at if at >= 0 else end


def _first_header(file: OpenFile, data: memoryview, first: int, marks: FrameMarks) -> int:
    """Return where the first frame begins in a piece of a file; -1 if none does.

    Coordinates may hold what looks like a header, but hardly one whose frame ends at another.
    """
    raw = bytes(data) + file.peek(first + len(data), marks.head_nbytes)
    at = -1
    while True:
        found = [k for k in (raw.find(begin, at + 1) for begin in marks.begins) if k >= 0]
        if not found or min(found) >= len(data):
            return -1
        at = min(found)
        nbytes = marks.size_of(raw[at : at + marks.head_nbytes])
        end = first + at + (nbytes or file.nbytes)
        if end == file.nbytes and nbytes:
            return first + at
        if end < file.nbytes and marks.size_of(file.peek(end, marks.head_nbytes)) is not None:
            return first + at


def joined(parts: Sequence[Part | None], n_atoms: int, nbytes: int) -> FrameIndex | None:
    """Return the index of a file that was found in parts; None if they do not fit together."""
    at = 0
    offsets = []
    for part in parts:
        if part is None:
            return None
        starts, end = part
        if starts.size:
            if starts[0] != at:
                return None
            offsets.append(starts)
            at = end
    return FrameIndex(np.concatenate(offsets), nbytes, n_atoms) if at == nbytes else None
