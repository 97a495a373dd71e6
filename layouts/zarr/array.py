"""A per-atom array of our own Zarr trees: its chunks, found in shards and decoded without zarr.

Shard files: chunks one after the other, each with its crc32c, and an index at the end.

The index has offset and size (uint64) of every chunk, with a crc32c of its own; a chunk that is not
there has all bits set in both.

The checksums of a per-atom array in a tree, by which all that is read is verified.

========================== ============================ =========================================
array under ``/mdio``      shape                        crc32c of
========================== ============================ =========================================
``crc32c/G/F``             chunks: (frames, atoms)      a chunk, decoded
``crc32c_stored/G/F``      chunks: (frames, atoms)      a chunk's bytes on disk, where it is encoded
``crc32c_pieces/G/F``      frames, pieces of a frame    a frame's row of an uncompressed chunk, or
                                                        runs of 64 KiB of it where it is larger
========================== ============================ =========================================

G is a particle group, F a field. Trees of older versions have the first only.

Per-frame numbers of a Zarr tree: times, steps, cells; many frames a file, with a crc32c.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from mdio.core import kernels
from mdio.core.blocks import Spans
from mdio.core.boxes import edges_from_boxes, periodic_axes
from mdio.core.errors import CorruptLayoutError, OutputError, SourceError
from mdio.core.files.in_flight import Opening
from mdio.core.files.piece_sums import Sums, pieces_of_row
from mdio.core.files.reading import Handles, OpenFile
from mdio.core.files.store import store_at
from mdio.core.files.writing import Data, WrittenFile
from mdio.core.frames import AtomIndices
from mdio.layouts.chunked.array import ChunkedArray
from mdio.layouts.codecs.quantised import WITHOUT_LEVEL, decode_chunk
from mdio.layouts.zarr.folder import Folder
from mdio.layouts.zarr.tree import (
    DTYPES,
    SERIES,
    ArrayMetadata,
    SeriesName,
    series_arrays,
    series_metadata,
)

if TYPE_CHECKING:
    from mdio.layouts.plan import LayoutPlan
    from mdio.layouts.writer import EncodedChunk, PieceRecord


FloatArray = NDArray[np.float32]
Bytes = NDArray[np.uint8]


CRC_NBYTES = 4
MISSING = 2**64 - 1
AHEAD = 8
"""Shards of stores that are looked at ahead, where one after the other is read."""
WHOLE_NBYTES = 16 << 20
"""Shards up to this size that are read whole come with the request that opens them, ..."""
AHEAD_NBYTES = 192 << 20
"""... so many of them at a time as this holds, ..."""
MAX_AHEAD = 24
"""... but no more: they are kept open."""
MAX_OPEN = 31
"""Shard files of one array that are kept open beside the tree's folder."""


def packed_nbytes(sizes: Sequence[int], n_chunks: int) -> int:
    """Return the bytes of a shard with chunks of these sizes, and room for `n_chunks`."""
    return sum(sizes) + CRC_NBYTES * len(sizes) + 16 * n_chunks + CRC_NBYTES


def pack_shard(chunks: Sequence[Bytes], n_chunks: int, crcs: Sequence[int]) -> list[Bytes]:
    """Return the bytes of a shard, in parts that follow one another in the file.

    `chunks`: the bytes of the first chunks of the shard, encoded, in C order; they themselves are
    among the parts: nothing is copied. `n_chunks`: how many the shard has room for; those that are
    not given are missing. `crcs`: crc32c of each of `chunks`.
    """
    index = np.full((n_chunks, 2), MISSING, "<u8")
    parts = []
    offset = 0
    for number, (chunk, crc) in enumerate(zip(chunks, crcs, strict=True)):
        index[number] = offset, chunk.nbytes + CRC_NBYTES
        parts += [chunk, _crc_bytes(crc)]
        offset += chunk.nbytes + CRC_NBYTES
    table = index.reshape(-1).view(np.uint8)
    return [*parts, table, _crc_bytes(kernels.crc32c(table))]


def _crc_bytes(crc: int) -> Bytes:
    return np.frombuffer(crc.to_bytes(CRC_NBYTES, "little"), np.uint8)


class Shard:
    """An opened shard file with its index, which has been checked."""

    def __init__(self, root: Folder, name: str, n_chunks: int) -> None:
        self.path = root.place(name)
        try:
            self.file = OpenFile(
                self.path, CorruptLayoutError, root.open(name), 16 * n_chunks + CRC_NBYTES
            )
        except FileNotFoundError as error:
            raise CorruptLayoutError(
                f"{self.path}: no such shard; it is missing from the tree, convert the source again"
            ) from error
        try:
            self.index = self._read_index(n_chunks)
        except BaseException:
            self.close()
            raise

    def _read_index(self, n_chunks: int) -> list[tuple[int, int]]:
        nbytes = self.file.nbytes
        index_nbytes = 16 * n_chunks
        begin = nbytes - index_nbytes - CRC_NBYTES
        if begin < 0:
            raise CorruptLayoutError(
                f"{self.path}: {nbytes} bytes, too few for an index of {n_chunks} chunks; it is "
                "truncated, convert the source again"
            )
        tail = self.file.peek(begin, index_nbytes + CRC_NBYTES)
        if kernels.crc32c(tail[:-CRC_NBYTES]) != int.from_bytes(tail[-CRC_NBYTES:], "little"):
            raise CorruptLayoutError(
                f"{self.path}: the checksum of its index is wrong; it is truncated or damaged, "
                "convert the source again"
            )
        index = np.frombuffer(tail, "<u8", 2 * n_chunks).reshape(n_chunks, 2)
        stored = index[index[:, 0] != MISSING]
        if stored.size and (
            int(stored[:, 1].max()) > begin
            or int(stored[:, 1].min()) < CRC_NBYTES
            or int(stored[:, 0].max()) > begin
            or int(stored.sum(axis=1).max()) > begin
        ):
            raise CorruptLayoutError(f"{self.path}: its index points outside of the file")
        return [(int(offset), int(size)) for offset, size in index]

    def span(self, chunk: int) -> tuple[int, int]:
        """Return offset and size of a chunk, its crc32c not counted."""
        offset, size = self.index[chunk]
        if offset == MISSING:
            raise CorruptLayoutError(
                f"{self.path}: chunk {chunk} is missing from it; convert the source again"
            )
        return offset, size - CRC_NBYTES

    def crc32c(self, chunk: int) -> int:
        """Return the checksum of a chunk as it lies on disk; raises CorruptLayoutError."""
        offset, nbytes = self.span(chunk)
        return kernels.crc32c(self.file.array(offset, nbytes))

    def close(self) -> None:
        """Let go of the file, which is closed once nobody reads it any more."""
        self.__dict__.pop("file", None)


class ShardFiles:
    """The shard files of one array, a few of them open at a time."""

    def __init__(self, root: Folder, name: str, metadata: ArrayMetadata) -> None:
        self._root = root
        self._name = name
        self.metadata = metadata
        self.n_chunks = int(np.prod(metadata.chunks_per_file))
        self._open = Handles(self._shard, MAX_OPEN)
        self._nbytes = packed_nbytes([metadata.chunk_nbytes] * self.n_chunks, self.n_chunks)
        """Bytes of the shard that was opened last; at first, of one without compression."""

    def _name_of(self, number: int) -> str:
        return f"{self._name}/{self.metadata.file_name(number)}"

    def _shard(self, number: int) -> Shard:
        shard = Shard(self._root, self._name_of(number), self.n_chunks)
        self._nbytes = shard.file.nbytes
        return shard

    def openings(self, coming: Sequence[int], whole: Set[int], share: int) -> Iterator[Opening]:
        """Yield the shards that are opened first of those `coming`.

        `whole`: of which all is read: it comes as they are opened, if they are not large. `share`:
        how many arrays are read at the same time.
        """
        ahead, index_nbytes = AHEAD, 16 * self.n_chunks + CRC_NBYTES
        if whole and self._nbytes <= WHOLE_NBYTES:
            ahead = min(max(2, AHEAD_NBYTES // (share * self._nbytes)), MAX_AHEAD)
        else:
            whole = set()
        for number in coming[:ahead]:
            nbytes = WHOLE_NBYTES if number in whole else index_nbytes
            yield Opening(self._root.place(self._name_of(number)), nbytes, number in self._open)

    def __getitem__(self, number: int) -> Shard:
        """Return shard `number` along the frames; raises CorruptLayoutError."""
        try:
            return self._open[number]
        except SourceError:  # too many open files, some of which are ours
            if not self._open:
                raise
            self._open.close()
            return self._open[number]

    def close(self) -> None:
        """Close all files."""
        self._open.close()


Crcs = NDArray[np.uint32]


class Checksums:
    """The tables of one array; they are read when they are first needed.

    `decoded`: of chunks. `stored`: of chunks as they lie on disk, None where there is no table of
    them. Of an uncompressed array it is `decoded`. `pieces`: of the pieces of frames, None where
    there is no table of them. `pieces_per_row`: of each column of chunks.
    """

    def __init__(
        self,
        decoded: SeriesArray,
        stored: SeriesArray | None,
        pieces: SeriesArray | None,
        pieces_per_row: int,
    ) -> None:
        self._decoded = decoded
        self._stored = stored
        self._pieces = pieces
        self._pieces_per_row = pieces_per_row
        self.has_pieces = pieces is not None

    def openings(self, start: int, stop: int, *, whole: bool, parts: bool) -> Iterator[Opening]:
        """Yield the files of tables that reading frames ``start:stop`` takes.

        `whole`, `parts`: whether some chunks are read as a whole, and whether some in part.
        """
        if self._stored is not None and (whole or self._pieces is None):
            yield from self._stored.openings(0, 1)
        if self._pieces is not None and parts:
            yield from self._pieces.openings(start, stop)

    def read(self) -> None:
        """Read all tables once; raises CorruptLayoutError."""
        for table in (self._decoded, self._stored, self._pieces):
            if table is not None:
                for number in range(table.metadata.n_files):
                    table.file(number)

    def decoded(self, number: int, column: int) -> int:
        """Return that of a chunk, decoded."""
        return int(self._decoded.file(0)[number, column])

    def stored(self, number: int, column: int) -> int | None:
        """Return that of a chunk as it lies on disk, None if there is none."""
        return None if self._stored is None else int(self._stored.file(0)[number, column])

    def pieces(self, start: int, stop: int, column: int, first: int, n_pieces: int) -> Crcs:
        """Return those of frames ``start:stop`` of a column of chunks, from piece `first` on."""
        assert self._pieces is not None
        first += column * self._pieces_per_row
        return self._pieces.rows(start, stop)[:, first : first + n_pieces]

    def of_frames(self, start: int, stop: int, chunk_frames: int) -> list[int]:
        """Return all that the writer got of whole chunks, those of frames ``start:stop``.

        First those of chunks, decoded; then those of frames' pieces or of chunks as they lie.
        """
        first, beyond = start // chunk_frames, -(-stop // chunk_frames)
        others = self._stored
        rows = others.rows(first, beyond) if others is not None else np.empty(0, np.uint32)
        if self._pieces is not None:
            rows = self._pieces.rows(start, stop)
        return [*self._decoded.rows(first, beyond).ravel().tolist(), *rows.ravel().tolist()]


class ShardedChunks(ChunkedArray):
    """A per-atom array in shards.

    `root`: of the tree. `name`: of the array in it. `what`: what messages call it. `metadata`: what
    its ``zarr.json`` says; shape (frames, atoms, 3), float32. `checksums`: what is read should have
    these. `verify`: whether it is compared with them.
    """

    behind_nbytes = CRC_NBYTES

    def __init__(
        self,
        root: Folder,
        name: str,
        what: str,
        metadata: ArrayMetadata,
        checksums: Checksums,
        *,
        verify: bool,
    ) -> None:
        super().__init__(
            what,
            metadata.shape,
            metadata.chunk_shape,
            plain=metadata.plain,
            verify=verify,
            in_pieces=checksums.has_pieces,
        )
        self._name = name
        self.metadata = metadata
        self.checksums = checksums
        self.frames_per_shard, self._n_columns, _ = metadata.chunks_per_file
        form = metadata.quantised
        self.decodes_parts = form is not None
        self.decodes_frames = form is not None and form.compressor in WITHOUT_LEVEL
        self._chunk_nbytes = metadata.chunk_nbytes
        self._files = ShardFiles(root, name, metadata)

    def close(self) -> None:
        """Close files and forget what was decoded."""
        super().close()
        self._files.close()

    def locate(self, i: int, j: int) -> tuple[OpenFile, int, int]:
        """Return the shard of a chunk, and offset and size of the chunk in it."""
        number, row = divmod(i, self.frames_per_shard)
        try:
            shard = self._files[number]
            offset, nbytes = shard.span(row * self._n_columns + j)
        except CorruptLayoutError as error:
            raise CorruptLayoutError(f"{error} ({self.describe_chunk(i, j)})") from error
        if self.plain and nbytes != self._chunk_nbytes:
            raise self.corrupt(
                i, j, shard.file, f"a chunk of {nbytes} bytes, not {self._chunk_nbytes}"
            )
        return shard.file, offset, nbytes

    def openings(self, runs: Spans, atoms: AtomIndices | None, share: int) -> Iterator[Opening]:
        """Yield shards, whole where all of their chunks are wanted; see the base class."""
        if self.verifies:
            covered = [self._covered(*run, self.chunk_frames) for run in runs]
            yield from self.checksums.openings(
                runs[0][0],
                runs[-1][1],
                whole=any(whole for _, whole in covered),
                parts=any(len(touched) > len(whole) for touched, whole in covered),
            )
        columns = self.columns(atoms)
        every = len(columns) == self.grid[1] and all(column.span is None for column in columns)
        coming, wholly = dict[int, None](), set[int]()
        for run in runs:
            touched, whole = self._covered(*run, self.frames_per_shard * self.chunk_frames)
            coming |= dict.fromkeys(touched[:MAX_AHEAD])
            wholly.update(whole[:MAX_AHEAD] if every else ())
        yield from self._files.openings(list(coming), wholly, share)

    def chunk_openings(self, i: int) -> Iterator[Opening]:
        """Yield the shard of a row of chunks; see the base class."""
        return self._files.openings([i // self.frames_per_shard], set(), 1)

    def _covered(self, start: int, stop: int, frames: int) -> tuple[range, range]:
        """Return which parts of so many frames a run of frames touches, and which it has whole."""
        touched = range(start // frames, -(-stop // frames))
        end = touched.stop if stop == self.n_frames else stop // frames
        return touched, range(-(-start // frames), end)

    def corrupt(self, i: int, j: int, file: OpenFile, problem: str) -> CorruptLayoutError:
        """Return the error for a chunk, which names its frames."""
        return CorruptLayoutError(f"{file.path}: {problem} ({self.describe_chunk(i, j)})")

    def _compare(self, i: int, j: int, file: OpenFile, crc: int, behind: Bytes) -> None:
        if crc != int.from_bytes(behind.tobytes(), "little"):
            raise self.corrupt(
                i,
                j,
                file,
                "the checksum of a chunk is wrong; the file is damaged, convert the source again",
            )
        if self.checksums.stored(i, j) not in (None, crc):
            raise self.corrupt(
                i,
                j,
                file,
                "not what was written there, though whole: a shard of another output, or another "
                "one of this, has its place; convert the source again",
            )

    def _pieces(self, start: int, stop: int, j: int, first: int, n_pieces: int) -> Sums:
        return self.checksums.pieces(start, stop, j, first, n_pieces)

    def _decode(
        self, data: Bytes, out: FloatArray, atoms: AtomIndices | None, first: int, last: int
    ) -> None:
        if self.metadata.quantised is not None:
            decode_chunk(data.data, (self.chunk_frames, self.chunk_atoms), out, atoms, first, last)
        elif self.metadata.compressor is not None:
            self.metadata.compressor.decode(data.data, out.reshape(-1).view(np.uint8))

    def check(self, i: int, j: int) -> FloatArray:
        """Return a whole chunk, compared with all its checksums; raises CorruptLayoutError."""
        chunk = super().check(i, j)
        file, *_ = self.locate(i, j)
        if kernels.crc32c(chunk) != self.checksums.decoded(i, j):
            raise self.corrupt(i, j, file, "not what was written there")
        if self.plain and self.checksums.has_pieces:
            n_rows = min(self.chunk_frames, self.n_frames - i * self.chunk_frames)
            self._check_rows(i, j, 0, file, chunk[:n_rows])
        return chunk

    def encoded_chunk(self, start: int, stop: int) -> EncodedChunk:
        """Return the shard of frames ``start:stop``, in which all has been checked."""
        from mdio.layouts.writer import EncodedChunk  # reading frames needs none

        rows = range(start // self.chunk_frames, -(-stop // self.chunk_frames))
        decoded: list[int] = []
        others: list[int | None] = []
        for i, j in product(rows, range(self.grid[1])):
            self.check(i, j)
            decoded.append(self.checksums.decoded(i, j))
            others.append(self.checksums.stored(i, j))
        path = self.locate(rows.start, 0)[0].path
        if self.plain:
            n_pieces = self.grid[1] * pieces_of_row(self.row_nbytes)
            others = [*self.checksums.pieces(start, stop, 0, 0, n_pieces).reshape(-1).tolist()]
        name = self.metadata.file_name(rows.start // self.frames_per_shard)
        crcs = cast(list[int], [*decoded, *others])
        return EncodedChunk(f"{self._name}/{name}", store_at(path).linked(path), crcs, path)


Numbers = NDArray[Any]
KEPT_NBYTES = 8 << 20
"""Files of one array up to this size together stay in memory, at least one of them: frames of a
long trajectory are then fetched in any order without reading the numbers of 65,536 frames each."""
SERIES_AHEAD = 4
"""Objects of one array that are asked for before they are read."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the system says while a file of ours is written into OutputError."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error.strerror})") from error


def write_file(path: Path, *parts: Data) -> None:
    """Write a file of ours, its parts one after the other; raises OutputError."""
    with writing(path), WrittenFile(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as file:
        file.write(0, *parts)


def write_numbers(path: Path, metadata: ArrayMetadata, rows: Numbers) -> int:
    """Write one file of an array without shards: its numbers, filled up, and their crc32c.

    The crc32c is returned.
    """
    chunk = np.zeros(metadata.file_shape, DTYPES[metadata.dtype])
    chunk[: len(rows)] = rows
    crc = kernels.crc32c(chunk)
    write_file(path, chunk.reshape(-1).view(np.uint8).data, crc.to_bytes(CRC_NBYTES, "little"))
    return crc


class SeriesArray:
    """An array of numbers without shards, of which the files read last are kept in memory.

    `root`: of the tree. `name`: of the array in it. `metadata`: what its ``zarr.json`` says.
    `crcs`: the crc32c that the numbers of each file should have; by default, what the file says.
    """

    def __init__(
        self, root: Folder, name: str, metadata: ArrayMetadata, crcs: Sequence[int] | None = None
    ) -> None:
        self._root = root
        self._name = name
        self._crcs = crcs
        self.metadata = metadata
        self.rows_per_file = metadata.file_shape[0]
        self._n_kept = max(1, KEPT_NBYTES // metadata.chunk_nbytes)
        self._kept: OrderedDict[int, Numbers] = OrderedDict()

    def file(self, number: int) -> Numbers:
        """Return the rows of one file.

        Raises CorruptLayoutError: it is missing, truncated, or its checksum is wrong.
        """
        file = self._kept.get(number)
        if file is not None:
            self._kept.move_to_end(number)
            return file
        name = f"{self._name}/{self.metadata.file_name(number)}"
        path = self._root.path / name
        begin = number * self.rows_per_file
        end = min(begin + self.rows_per_file, self.metadata.shape[0])
        frames = f"(frames {begin} to {end - 1})"
        expected = self.metadata.chunk_nbytes + CRC_NBYTES
        try:
            data = np.frombuffer(self._root.read(name, expected + 1), np.uint8)
        except FileNotFoundError as error:
            raise CorruptLayoutError(
                f"{path}: no such file; it is missing from the tree, convert the source again "
                f"{frames}"
            ) from error
        if data.nbytes != expected:
            raise CorruptLayoutError(
                f"{path}: {data.nbytes} bytes, expected {expected}; it is truncated or damaged, "
                f"convert the source again {frames}"
            )
        stored = int.from_bytes(data[-CRC_NBYTES:].tobytes(), "little")
        crc = kernels.crc32c(data[:-CRC_NBYTES])
        if crc != stored:
            raise CorruptLayoutError(
                f"{path}: its checksum is wrong; it is damaged, convert the source again {frames}"
            )
        if self._crcs is not None and crc != self._crcs[number]:
            raise CorruptLayoutError(
                f"{path}: not what was written there, though whole: a file of another output has "
                f"its place, convert the source again {frames}"
            )
        numbers = data[:-CRC_NBYTES].view(DTYPES[self.metadata.dtype])
        rows: Numbers = numbers.reshape(self.metadata.file_shape)[: end - begin]
        while len(self._kept) >= self._n_kept:
            self._kept.popitem(last=False)
        self._kept[number] = rows
        return rows

    def openings(self, start: int, stop: int) -> Iterator[Opening]:
        """Yield the files with rows ``start:stop``, `SERIES_AHEAD` at most."""
        numbers = range(start // self.rows_per_file, -(-stop // self.rows_per_file))
        for number in numbers[:SERIES_AHEAD]:
            place = self._root.path / self._name / self.metadata.file_name(number)
            yield Opening(place, self.metadata.chunk_nbytes + CRC_NBYTES + 1, number in self._kept)

    def rows(self, start: int, stop: int) -> Numbers:
        """Return rows ``start:stop``, not to be changed; raises as `file` does."""
        size = self.rows_per_file
        number, first = divmod(start, size)
        if first + stop - start <= size:
            return self.file(number)[first : first + stop - start]
        numbers = range(number, (stop - 1) // size + 1)
        parts = (self.file(n)[max(start - n * size, 0) : stop - n * size] for n in numbers)
        return np.concatenate(list(parts))


class TableWriter:
    """Writes an array of numbers whose rows come in any order, each file when it is full.

    `folders`: of the array and its copies. `metadata`: how it lies on disk.
    """

    def __init__(self, folders: Sequence[Path], metadata: ArrayMetadata) -> None:
        self.folders, self.metadata = folders, metadata
        self._gathered: dict[int, tuple[Numbers, int]] = {}
        self.crcs = [0] * metadata.n_files
        """The crc32c of the numbers of each file."""

    def add(self, start: int, rows: Numbers) -> None:
        """Take rows from `start` on, each row once."""
        size, stop = self.metadata.file_shape[0], start + len(rows)
        for number in range(start // size, (stop - 1) // size + 1):
            begin = number * size
            n_rows = min(size, self.metadata.shape[0] - begin)
            first, last = max(start, begin), min(stop, begin + n_rows)
            if number in self._gathered:
                gathered, missing = self._gathered[number]
            else:
                shape = (n_rows, *self.metadata.shape[1:])
                gathered, missing = np.zeros(shape, DTYPES[self.metadata.dtype]), n_rows
            gathered[first - begin : last - begin] = rows[first - start : last - start]
            self._gathered[number] = gathered, missing - (last - first)
            if missing == last - first:
                del self._gathered[number]
                self.write(number, gathered)

    def write(self, number: int, rows: Numbers) -> None:
        """Write all rows of a file."""
        for folder in self.folders:
            file = folder / self.metadata.file_name(number)
            self.crcs[number] = write_numbers(file, self.metadata, rows)


class _BoxWriter(TableWriter):
    """Writes boxes, and the edges that follow from them."""

    edges: TableWriter

    def write(self, number: int, rows: Numbers) -> None:
        super().write(number, rows)
        self.edges.write(number, edges_from_boxes(rows))


class SeriesWriter:
    """Gathers the per-frame numbers of the pieces.

    `root`: of the tree. `plan`: what is written.
    """

    def __init__(self, root: Path, plan: LayoutPlan) -> None:
        self.root = root
        self.periodic = np.zeros(3, bool)
        """Along which axes any frame is."""
        self.time_first_ps: float | None = None
        self.time_last_ps: float | None = None
        self._paths, self._n_frames = series_arrays(plan), plan.n_frames
        self._tables: dict[SeriesName, TableWriter] = {}
        for name in SERIES:
            folders = [root / path for path, series in self._paths.items() if series == name]
            kind = _BoxWriter if name == "box" else TableWriter
            self._tables[name] = kind(folders, series_metadata(plan.n_frames, name))
        cast(_BoxWriter, self._tables["box"]).edges = self._tables["edges"]

    @property
    def crcs(self) -> dict[str, list[int]]:
        """The crc32c of the numbers of each file, by array."""
        return {path: self._tables[name].crcs for path, name in self._paths.items()}

    def add(self, record: PieceRecord) -> None:
        """Take the numbers of a piece, each piece once."""
        self.periodic |= periodic_axes(record.box)
        if np.isfinite(record.time[[0, -1]]).all():  # JSON has no others
            if record.start == 0:
                self.time_first_ps = float(record.time[0])
            if record.stop == self._n_frames:
                self.time_last_ps = float(record.time[-1])
        self._tables["time"].add(record.start, record.time)
        self._tables["source_step"].add(record.start, record.step)
        self._tables["box"].add(record.start, record.box)

    def finish(self) -> None:
        """Write the steps of H5MD: the source's if they increase, or else the frame numbers."""
        steps = self._tables["source_step"]
        increasing, last = True, None
        with Folder(self.root) as root:
            name = str(steps.folders[0].relative_to(self.root))
            source = SeriesArray(root, name, steps.metadata)
            for number in range(steps.metadata.n_files):
                rows = source.file(number)
                increasing &= bool(np.all(np.diff(rows) > 0)) and (last is None or rows[0] > last)
                last = rows[-1]
            for number in range(steps.metadata.n_files):
                begin = number * source.rows_per_file
                rows = source.file(number)
                if not increasing:
                    rows = np.arange(begin, begin + len(rows))
                self._tables["step"].write(number, rows)
