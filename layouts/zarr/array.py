"""Arrays of mdio's own Zarr trees, read without zarr: per-atom arrays in shards, and numbers.

A shard file has chunks one after the other, each followed by its crc32c, and an index at the end
with offset and size (uint64) of every chunk, followed by its own crc32c. Both have all bits set for
a missing chunk.

Whatever is read of a per-atom array is verified with these tables of checksums:

========================== ============================ =========================================
array under ``/mdio``      shape                        crc32c of
========================== ============================ =========================================
``crc32c/G/F``             chunks: (frames, atoms)      a chunk, decoded
``crc32c_stored/G/F``      chunks: (frames, atoms)      a chunk's bytes on disk, where it is encoded
``crc32c_pieces/G/F``      frames, spans of a frame     a frame's row of an uncompressed chunk, or
                                                        runs of 64 KiB of it where it is larger
========================== ============================ =========================================

G is a particle group, F a field. Trees of older versions have the first only.

Per-frame numbers (times, steps, boxes) and these tables are in files of many rows, each with a
crc32c.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence, Set
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from mdio.core import kernels
from mdio.core.blocks import FrameRuns
from mdio.core.boxes import edges_from_boxes, periodic_axes
from mdio.core.errors import CorruptLayoutError, SourceError
from mdio.core.files.in_flight import Opening
from mdio.core.files.reading import HandleCache, OpenFile
from mdio.core.files.span_checksums import Sums, spans_of_row
from mdio.core.files.store import store_at
from mdio.core.files.writing import WrittenFile
from mdio.core.frames import AtomIndices
from mdio.core.kernels.checks import Buffer
from mdio.layouts.chunked.array import ChunkedArray
from mdio.layouts.codecs.quantised import PACKING_CODECS, decode_chunk
from mdio.layouts.zarr.folder import Folder
from mdio.layouts.zarr.tree import (
    COLUMNS,
    DTYPES,
    ArrayMetadata,
    ColumnName,
    column_arrays,
    column_metadata,
)

if TYPE_CHECKING:
    from mdio.layouts.plan import LayoutPlan
    from mdio.layouts.writer import EncodedChunk, PieceRecord


FloatArray = NDArray[np.float32]
Bytes = NDArray[np.uint8]


CRC_NBYTES = 4
MISSING_CHUNK = 2**64 - 1
"""Offset and size of a missing chunk in the index of a shard."""
MAX_INDEXES_AHEAD = 8
"""Shards of stores whose indexes are prefetched, where parts of shards are read."""
MAX_WHOLE_NBYTES = 16 << 20
"""Shards up to this size are fetched by the request that opens them, if they are read whole."""
MAX_AHEAD_NBYTES = 192 << 20
"""Most bytes of whole shards that are fetched at a time."""
MAX_SHARDS_AHEAD = 24
"""Most whole shards that are fetched at a time, since they are kept open."""
MAX_OPEN_SHARDS = 31
"""Shard files of one array that are kept open."""


def pack_shard(chunks: Sequence[Bytes], n_chunks: int, crcs: Sequence[int]) -> list[Bytes]:
    """Return the bytes of a shard, in parts that follow one another in the file.

    `chunks`: encoded, in C order; they become parts without a copy. `n_chunks`: entries of the
    index; chunks that are not given are missing. `crcs`: crc32c of each of `chunks`.
    """
    index = np.full((n_chunks, 2), MISSING_CHUNK, "<u8")
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
        self.path = root.path_of(name)
        try:
            self.file = OpenFile(
                self.path, CorruptLayoutError, root.open(name), 16 * n_chunks + CRC_NBYTES
            )
        except FileNotFoundError as error:
            raise self._damage_error("no such shard; it is missing from the tree,") from error
        try:
            self.index = self._read_index(n_chunks)
        except BaseException:
            self.close()
            raise

    def _damage_error(self, problem: str) -> CorruptLayoutError:
        return CorruptLayoutError(f"{self.path}: {problem} convert the source again")

    def _read_index(self, n_chunks: int) -> list[tuple[int, int]]:
        nbytes = self.file.nbytes
        begin = nbytes - 16 * n_chunks - CRC_NBYTES
        if begin < 0:
            problem = f"{nbytes} bytes, too few for an index of {n_chunks} chunks"
            raise self._damage_error(f"{problem}; it is truncated,")
        tail = self.file.peek(begin, nbytes - begin)
        if kernels.crc32c(tail[:-CRC_NBYTES]) != int.from_bytes(tail[-CRC_NBYTES:], "little"):
            raise self._damage_error(
                "the checksum of its index is wrong; it is truncated or damaged,"
            )
        entries = np.frombuffer(tail, "<u8", 2 * n_chunks).reshape(n_chunks, 2)
        index: list[tuple[int, int]] = list(map(tuple, entries.tolist()))
        if any(
            size < CRC_NBYTES or offset + size > begin
            for offset, size in index
            if offset != MISSING_CHUNK
        ):
            raise self._damage_error("its index points outside of the file;")
        return index

    def locate(self, chunk: int) -> tuple[int, int]:
        """Return offset and size of a chunk, without its crc32c."""
        offset, size = self.index[chunk]
        if offset == MISSING_CHUNK:
            raise self._damage_error(f"chunk {chunk} is missing from it;")
        return offset, size - CRC_NBYTES

    def crc32c(self, chunk: int) -> int:
        offset, nbytes = self.locate(chunk)
        return kernels.crc32c(self.file.array(offset, nbytes))

    def close(self) -> None:
        """Drop the file, which is closed once nothing reads it any more."""
        self.__dict__.pop("file", None)


class ShardFiles(HandleCache[int, "Shard"]):
    """The shard files of one array, by their numbers along the frames; a few are open at a time."""

    def __init__(self, root: Folder, name: str, metadata: ArrayMetadata) -> None:
        super().__init__(self._open_shard, MAX_OPEN_SHARDS)
        self._root = root
        self._name = name
        self.metadata = metadata
        self.n_chunks = int(np.prod(metadata.chunks_per_file))
        self._nbytes = self.n_chunks * (metadata.chunk_nbytes + CRC_NBYTES + 16) + CRC_NBYTES
        """Bytes of the shard that was opened last; at first, those of an uncompressed one."""
        self._next_paths: dict[int, Path] = {}
        """Of the last `openings`, which are mostly those of the next: making paths takes time."""

    def _shard_name(self, number: int) -> str:
        return f"{self._name}/{self.metadata.file_name(number)}"

    def _open_shard(self, number: int) -> Shard:
        try:
            shard = Shard(self._root, self._shard_name(number), self.n_chunks)
        except SourceError:  # too many open files: close those of this array and try again
            if not len(self):
                raise
            self.close()
            shard = Shard(self._root, self._shard_name(number), self.n_chunks)
        self._nbytes = shard.file.nbytes
        return shard

    def openings(self, numbers: Sequence[int], whole: Set[int], n_arrays: int) -> Iterator[Opening]:
        """Yield the openings of the first shards of `numbers`, which will be read in this order.

        `whole`: numbers of shards of which all is read; the request that opens one fetches it,
        unless it is large. `n_arrays`: arrays that are read at the same time.
        """
        n_ahead, index_nbytes = MAX_INDEXES_AHEAD, 16 * self.n_chunks + CRC_NBYTES
        if whole and self._nbytes <= MAX_WHOLE_NBYTES:
            n_fitting = MAX_AHEAD_NBYTES // (n_arrays * self._nbytes)
            n_ahead = min(max(2, n_fitting), MAX_SHARDS_AHEAD)
        else:
            whole = set()
        self._next_paths = {
            number: self._next_paths.get(number) or self._root.path_of(self._shard_name(number))
            for number in numbers[:n_ahead]
        }
        for number, path in self._next_paths.items():
            if number not in self:
                is_whole = number in whole
                last_nbytes = MAX_WHOLE_NBYTES if is_whole else index_nbytes
                yield Opening(path, last_nbytes, self._nbytes if is_whole else 0)


Crcs = NDArray[np.uint32]


class Checksums:
    """The tables of checksums of one array, which are read when they are first needed.

    `decoded`: of decoded chunks. `stored`: of stored chunks, which is `decoded` for an uncompressed
    array; None if there is no such table. `spans`: of the spans of frames; None if there is no
    such table. `spans_per_row`: spans of a frame in each column of chunks.
    """

    def __init__(
        self,
        decoded: NumberArray,
        stored: NumberArray | None,
        spans: NumberArray | None,
        spans_per_row: int,
    ) -> None:
        self._decoded = decoded
        self._stored = stored
        self._spans = spans
        self._spans_per_row = spans_per_row
        self._n_spans = 0 if spans is None else spans.metadata.shape[1]
        self.has_spans = spans is not None

    def openings(self, start: int, stop: int, *, whole: bool, parts: bool) -> Iterator[Opening]:
        """Yield the openings of tables that reading frames ``start:stop`` needs."""
        if self._stored is not None and (whole or self._spans is None):
            yield from self._stored.openings(0, 1)
        if self._spans is not None and parts:
            yield from self._spans.openings(start, stop)

    def read(self) -> None:
        for table in (self._decoded, self._stored, self._spans):
            if table is not None:
                for number in range(table.metadata.n_files):
                    table.file(number)

    def decoded(self, number: int, column: int) -> int:
        return int(self._decoded.file(0)[number, column])

    def stored(self, number: int, column: int) -> int | None:
        """Return the checksum of a chunk's stored bytes; None if there is none."""
        return None if self._stored is None else int(self._stored.file(0)[number, column])

    def spans(self, start: int, stop: int, column: int, first: int, n_spans: int) -> Crcs:
        """Return those of `n_spans` from `first` on, in frames ``start:stop`` of a column."""
        assert self._spans is not None
        rows = self._spans.rows(start, stop)
        if n_spans == self._n_spans:  # as of whole frames: a view takes as long as finding them
            return rows
        first += column * self._spans_per_row
        return rows[:, first : first + n_spans]

    def of_frames(self, start: int, stop: int, chunk_frames: int) -> list[int]:
        """Return the checksums of whole chunks, frames ``start:stop``, as in a `PieceRecord`.

        First those of decoded chunks; then those of the spans of frames or else of stored chunks.
        """
        first, end = start // chunk_frames, -(-stop // chunk_frames)
        other_crcs = np.empty(0, np.uint32)
        if self._spans is not None:
            other_crcs = self._spans.rows(start, stop)
        elif self._stored is not None:
            other_crcs = self._stored.rows(first, end)
        return [*self._decoded.rows(first, end).ravel().tolist(), *other_crcs.ravel().tolist()]


class ShardedChunks(ChunkedArray):
    """A per-atom array in shards."""

    trailer_nbytes = CRC_NBYTES

    def __init__(
        self,
        root: Folder,
        array_path: str,
        name: str,
        metadata: ArrayMetadata,
        checksums: Checksums,
        *,
        verify: bool,
    ) -> None:
        super().__init__(
            name,
            metadata.shape,
            metadata.chunk_shape,
            uncompressed=metadata.uncompressed,
            verify=verify,
            has_span_checksums=checksums.has_spans,
        )
        self._array_path = array_path
        self.metadata = metadata
        self.checksums = checksums
        self.frames_per_shard, self._n_columns, _ = metadata.chunks_per_file
        quantised = metadata.quantised
        self.decodes_atoms = quantised is not None
        self.decodes_frames = quantised is not None and quantised.compressor in PACKING_CODECS
        self._chunk_nbytes = metadata.chunk_nbytes
        self._files = ShardFiles(root, array_path, metadata)

    def close(self) -> None:
        super().close()
        self._files.close()

    def locate(self, row: int, column: int) -> tuple[OpenFile, int, int]:
        number, shard_row = divmod(row, self.frames_per_shard)
        try:
            shard = self._files[number]
            offset, nbytes = shard.locate(shard_row * self._n_columns + column)
        except CorruptLayoutError as error:
            raise CorruptLayoutError(f"{error} ({self.describe_chunk(row, column)})") from error
        if self.uncompressed and nbytes != self._chunk_nbytes:
            raise self.chunk_error(
                row, column, shard.file, f"a chunk of {nbytes} bytes, not {self._chunk_nbytes}"
            )
        return shard.file, offset, nbytes

    def openings(
        self, runs: FrameRuns, atoms: AtomIndices | None, n_arrays: int
    ) -> Iterator[Opening]:
        """Yield tables and shards (whole if all their chunks are read)."""
        if self.verifies:
            covered = [self._covered(*run, self.chunk_frames) for run in runs]
            yield from self.checksums.openings(
                runs[0][0],
                runs[-1][1],
                whole=any(whole for _, whole in covered),
                parts=any(len(touched) > len(whole) for touched, whole in covered),
            )
        columns = self.columns(atoms)
        all_atoms = len(columns) == self.grid[1] and all(
            column.byte_bounds is None for column in columns
        )
        numbers, whole_shards = dict[int, None](), set[int]()
        for run in runs:
            touched, whole = self._covered(*run, self.frames_per_shard * self.chunk_frames)
            numbers |= dict.fromkeys(touched[:MAX_SHARDS_AHEAD])
            whole_shards.update(whole[:MAX_SHARDS_AHEAD] if all_atoms else ())
        yield from self._files.openings(list(numbers), whole_shards, n_arrays)

    def chunk_openings(self, row: int) -> Iterator[Opening]:
        return self._files.openings([row // self.frames_per_shard], set(), 1)

    def _covered(self, start: int, stop: int, n_frames: int) -> tuple[range, range]:
        """Return the chunks or shards of `n_frames` that a run overlaps, and those it covers."""
        touched = range(start // n_frames, -(-stop // n_frames))
        end = touched.stop if stop == self.n_frames else stop // n_frames
        return touched, range(-(-start // n_frames), end)

    def chunk_error(
        self, row: int, column: int, file: OpenFile, problem: str
    ) -> CorruptLayoutError:
        return CorruptLayoutError(f"{file.path}: {problem} ({self.describe_chunk(row, column)})")

    def _compare(self, row: int, column: int, file: OpenFile, crc: int, trailer: Bytes) -> None:
        if crc != int.from_bytes(trailer.tobytes(), "little"):
            problem = "the checksum of a chunk is wrong; the file is damaged"
        elif self.checksums.stored(row, column) not in (None, crc):
            problem = (
                "not what was written there, though intact: a shard of another output, or another "
                "shard of this one, is in its place"
            )
        else:
            return
        raise self.chunk_error(row, column, file, f"{problem}; convert the source again")

    def _span_checksums(self, start: int, stop: int, column: int, first: int, n_spans: int) -> Sums:
        return self.checksums.spans(start, stop, column, first, n_spans)

    def _decode(
        self, data: Bytes, out: FloatArray, atoms: AtomIndices | None, first: int, end: int
    ) -> None:
        if self.metadata.quantised is not None:
            decode_chunk(data.data, (self.chunk_frames, self.chunk_atoms), out, atoms, first, end)
        elif self.metadata.compressor is not None:
            self.metadata.compressor.decode(data.data, out.reshape(-1).view(np.uint8))

    def _load(self, row: int, column: int, *, verify: bool) -> FloatArray:
        chunk = super()._load(row, column, verify=verify)
        compressor = self.metadata.compressor
        if verify and compressor is not None and compressor.is_plug_in:
            self._compare_decoded(row, column, chunk)
        return chunk

    def check(self, row: int, column: int) -> FloatArray:
        chunk = super().check(row, column)
        self._compare_decoded(row, column, chunk)
        if self.uncompressed and self.checksums.has_spans:
            n_rows = min(self.chunk_frames, self.n_frames - row * self.chunk_frames)
            self._check_frames(row, column, 0, self.locate(row, column)[0], chunk[:n_rows])
        return chunk

    def _compare_decoded(self, row: int, column: int, chunk: FloatArray) -> None:
        if kernels.crc32c(chunk) != self.checksums.decoded(row, column):
            raise self.chunk_error(
                row, column, self.locate(row, column)[0], "not what was written there"
            )

    def encoded_chunk(self, start: int, stop: int) -> EncodedChunk:
        """Return the shard of frames ``start:stop``, after checking all its chunks."""
        from mdio.layouts.writer import EncodedChunk  # only writing needs it

        rows = range(start // self.chunk_frames, -(-stop // self.chunk_frames))
        decoded: list[int] = []
        other_crcs: list[int | None] = []
        for row, column in product(rows, range(self.grid[1])):
            self.check(row, column)
            decoded.append(self.checksums.decoded(row, column))
            other_crcs.append(self.checksums.stored(row, column))
        path = self.locate(rows.start, 0)[0].path
        if self.uncompressed:
            n_spans = self.grid[1] * spans_of_row(self.row_nbytes)
            other_crcs = [*self.checksums.spans(start, stop, 0, 0, n_spans).reshape(-1).tolist()]
        file_name = self.metadata.file_name(rows.start // self.frames_per_shard)
        crcs = cast(list[int], [*decoded, *other_crcs])
        return EncodedChunk(
            f"{self._array_path}/{file_name}", store_at(path).bytes_to_link(path), crcs, path
        )


Numbers = NDArray[Any]
MAX_CACHED_NBYTES = 8 << 20
"""Memory for the files of one array that were read last; one at least is kept. So reading frames of
a long trajectory in any order does not read a file of 65,536 rows for each."""
MAX_FILES_AHEAD = 4
"""Objects of one array that are prefetched."""


def write_file(path: Path, *parts: Buffer) -> None:
    """Write a file from its parts, one after the other; raises OutputError."""
    from mdio.core.files.publish import output_errors  # readers have no use for it

    with output_errors(path), WrittenFile(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as file:
        file.write(0, *parts)


def write_numbers(path: Path, metadata: ArrayMetadata, rows: Numbers) -> int:
    """Write one file of an array without shards, padded with zeros; return its crc32c."""
    chunk = np.zeros(metadata.file_shape, DTYPES[metadata.dtype])
    chunk[: len(rows)] = rows
    crc = kernels.crc32c(chunk)
    write_file(path, chunk.reshape(-1).view(np.uint8).data, crc.to_bytes(CRC_NBYTES, "little"))
    return crc


class NumberArray:
    """An array of numbers without shards, of which the files read last are kept in memory."""

    def __init__(
        self,
        root: Folder,
        name: str,
        metadata: ArrayMetadata,
        crcs: Sequence[int] | None = None,
        *,
        is_of_frames: bool = True,
    ) -> None:
        self._root = root
        self._name = name
        self._crcs = crcs
        self._is_of_frames = is_of_frames
        """Whether it has a row for each frame."""
        self.metadata = metadata
        self.rows_per_file = metadata.file_shape[0]
        self._max_cached_files = max(1, MAX_CACHED_NBYTES // metadata.chunk_nbytes)
        self._rows_by_file: dict[int, Numbers] = {}

    def file(self, number: int) -> Numbers:
        if number in self._rows_by_file:
            return self._rows_by_file[number]
        name = f"{self._name}/{self.metadata.file_name(number)}"
        begin = number * self.rows_per_file
        end = min(begin + self.rows_per_file, self.metadata.shape[0])

        def damage(text: str) -> CorruptLayoutError:
            frames = f" (frames {begin} to {end - 1})" if self._is_of_frames else ""
            return CorruptLayoutError(
                f"{self._root.path / name}: {text}, convert the source again{frames}"
            )

        expected = self.metadata.chunk_nbytes + CRC_NBYTES
        try:
            data = np.frombuffer(self._root.read(name, expected + 1), np.uint8)
        except FileNotFoundError as error:
            raise damage("no such file; it is missing from the tree") from error
        if data.nbytes != expected:
            raise damage(f"{data.nbytes} bytes, expected {expected}; it is truncated or damaged")
        crc = kernels.crc32c(data[:-CRC_NBYTES])
        if crc != int.from_bytes(data[-CRC_NBYTES:].tobytes(), "little"):
            raise damage("its checksum is wrong; it is damaged")
        if self._crcs is not None and crc != self._crcs[number]:
            raise damage("not what was written there, though intact: a file of another output")
        numbers = data[:-CRC_NBYTES].view(DTYPES[self.metadata.dtype])
        rows: Numbers = numbers.reshape(self.metadata.file_shape)[: end - begin]
        while len(self._rows_by_file) >= self._max_cached_files:
            self._rows_by_file.pop(next(iter(self._rows_by_file)))  # the one that was read first
        self._rows_by_file[number] = rows
        return rows

    def openings(self, start: int, stop: int) -> Iterator[Opening]:
        """Yield the openings of files with rows ``start:stop``, `MAX_FILES_AHEAD` at most."""
        numbers = range(start // self.rows_per_file, -(-stop // self.rows_per_file))
        for number in numbers[:MAX_FILES_AHEAD]:
            if number not in self._rows_by_file:
                path = self._root.path / self._name / self.metadata.file_name(number)
                yield Opening(path, self.metadata.chunk_nbytes + CRC_NBYTES + 1)

    def rows(self, start: int, stop: int) -> Numbers:
        """Return rows ``start:stop``, which must not be changed; raises as `file` does."""
        size = self.rows_per_file
        number, first = divmod(start, size)
        if first + stop - start <= size:
            numbers = self._rows_by_file.get(number)
            numbers = self.file(number) if numbers is None else numbers
            return numbers[first : first + stop - start]
        files = range(number, (stop - 1) // size + 1)
        parts = (self.file(n)[max(start - n * size, 0) : stop - n * size] for n in files)
        return np.concatenate(list(parts))


class TableWriter:
    """Writes an array of numbers whose rows come in any order: each file once it is complete."""

    def __init__(self, folders: Sequence[Path], metadata: ArrayMetadata) -> None:
        self.folders, self.metadata = folders, metadata
        self._incomplete: dict[int, tuple[Numbers, int]] = {}
        """Rows of files that are not complete yet, and how many are missing."""
        self.crcs = [0] * metadata.n_files

    def add(self, start: int, rows: Numbers) -> None:
        """Take rows from `start` on, each row once."""
        size, stop = self.metadata.file_shape[0], start + len(rows)
        for number in range(start // size, (stop - 1) // size + 1):
            begin = number * size
            n_rows = min(size, self.metadata.shape[0] - begin)
            first, last = max(start, begin), min(stop, begin + n_rows)
            if number in self._incomplete:
                buffer, n_missing = self._incomplete[number]
            else:
                shape = (n_rows, *self.metadata.shape[1:])
                buffer, n_missing = np.zeros(shape, DTYPES[self.metadata.dtype]), n_rows
            buffer[first - begin : last - begin] = rows[first - start : last - start]
            self._incomplete[number] = buffer, n_missing - (last - first)
            if n_missing == last - first:
                del self._incomplete[number]
                self.write(number, buffer)

    def write(self, number: int, rows: Numbers) -> None:
        for folder in self.folders:
            file = folder / self.metadata.file_name(number)
            self.crcs[number] = write_numbers(file, self.metadata, rows)


class _BoxWriter(TableWriter):
    """Writes boxes, and the edges computed from them."""

    edges: TableWriter

    def write(self, number: int, rows: Numbers) -> None:
        super().write(number, rows)
        self.edges.write(number, edges_from_boxes(rows))


class ColumnWriter:
    """Gathers the per-frame numbers of the pieces."""

    def __init__(self, root: Path, plan: LayoutPlan) -> None:
        self.root = root
        self.periodic = np.zeros(3, bool)
        """Axes along which any frame is periodic."""
        self.time_first_ps: float | None = None
        self.time_last_ps: float | None = None
        self._paths, self._n_frames = column_arrays(plan.array_keys), plan.n_frames
        self._tables: dict[ColumnName, TableWriter] = {}
        for name in COLUMNS:
            folders = [root / path for path, series in self._paths.items() if series == name]
            writer_class = _BoxWriter if name == "box" else TableWriter
            self._tables[name] = writer_class(folders, column_metadata(plan.n_frames, name))
        cast(_BoxWriter, self._tables["box"]).edges = self._tables["edges"]

    @property
    def crcs(self) -> dict[str, list[int]]:
        return {path: self._tables[name].crcs for path, name in self._paths.items()}

    def add(self, record: PieceRecord) -> None:
        self.periodic |= periodic_axes(record.box)
        if np.isfinite(record.time[[0, -1]]).all():  # JSON has no NaN or infinity
            if record.start == 0:
                self.time_first_ps = float(record.time[0])
            if record.stop == self._n_frames:
                self.time_last_ps = float(record.time[-1])
        self._tables["time"].add(record.start, record.time)
        self._tables["source_step"].add(record.start, record.step)
        self._tables["box"].add(record.start, record.box)

    def finish(self) -> None:
        """Write H5MD's steps: those of the source if they increase, else the frame numbers."""
        steps = self._tables["source_step"]
        increasing, last = True, None
        with Folder(self.root) as root:
            name = str(steps.folders[0].relative_to(self.root))
            source = NumberArray(root, name, steps.metadata)
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
