"""Reads Zarr trees that mdio wrote, without zarr: per-atom arrays in shards, and numbers.

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

import json
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mdio.core import kernels
from mdio.core.blocks import FrameRuns
from mdio.core.errors import CorruptLayoutError, SourceError
from mdio.core.files.in_flight import Opening, prefetch_openings
from mdio.core.files.reading import HandleCache, OpenFile
from mdio.core.files.remote.objects import LARGE_NBYTES, prefetch
from mdio.core.files.span_checksums import Sums, spans_of_row
from mdio.core.files.store import store_at
from mdio.core.frames import FIELDS, H5MD_NAMES, AtomIndices, TrajectoryInfo
from mdio.layouts.chunked.array import ChunkedArray
from mdio.layouts.chunked.own import OwnOutput
from mdio.layouts.codecs.quantised import PACKING_CODECS, decode_chunk
from mdio.layouts.manifest import manifest_checksums
from mdio.layouts.units import Unit
from mdio.layouts.zarr.folder import Folder
from mdio.layouts.zarr.tree import (
    DTYPES,
    METADATA,
    TOPOLOGY,
    ArrayMetadata,
    ColumnName,
    TableName,
    column_arrays,
    column_metadata,
    group_metadata,
    parse_metadata,
    read_node,
    spans_metadata,
    table_path,
)

if TYPE_CHECKING:
    from mdio.layouts.writer import EncodedChunk

FloatArray = NDArray[np.float32]
Bytes = NDArray[np.uint8]
Numbers = NDArray[Any]

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

MAX_CACHED_NBYTES = 8 << 20
"""Memory for the files of one array that were read last; one at least is kept. So reading frames of
a long trajectory in any order does not read a file of 65,536 rows for each."""
MAX_FILES_AHEAD = 4
"""Objects of one array that are prefetched."""


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


class ShardedChunks(ChunkedArray):
    """A per-atom array in shards.

    Its tables of checksums are read when they are first needed. `decoded`: of decoded chunks.
    `stored`: of stored chunks, which is `decoded` for an uncompressed array. `spans`: of the spans
    of frames. None stands for tables that older versions did not write.
    """

    trailer_nbytes = CRC_NBYTES

    def __init__(
        self,
        root: Folder,
        array_path: str,
        name: str,
        metadata: ArrayMetadata,
        *,
        decoded: NumberArray,
        stored: NumberArray | None,
        spans: NumberArray | None,
        verify: bool,
    ) -> None:
        super().__init__(
            name,
            metadata.shape,
            metadata.chunk_shape,
            uncompressed=metadata.uncompressed,
            verify=verify,
            has_span_checksums=spans is not None,
        )
        self._array_path = array_path
        self.metadata = metadata
        self._decoded_crcs, self._stored_crcs, self._spans = decoded, stored, spans
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
            reads_whole = self._spans is None or any(whole for _, whole in covered)
            if self._stored_crcs is not None and reads_whole:
                yield from self._stored_crcs.openings(0, 1)
            if self._spans is not None and any(
                len(touched) > len(whole) for touched, whole in covered
            ):
                yield from self._spans.openings(runs[0][0], runs[-1][1])
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
        elif self._stored_crc(row, column) not in (None, crc):
            problem = (
                "not what was written there, though intact: a shard of another output, or another "
                "shard of this one, is in its place"
            )
        else:
            return
        raise self.chunk_error(row, column, file, f"{problem}; convert the source again")

    def _span_checksums(self, start: int, stop: int, column: int, first: int, n_spans: int) -> Sums:
        assert self._spans is not None
        rows = self._spans.rows(start, stop)
        if n_spans == self._n_spans * self._n_columns:
            return rows  # of whole frames: a view would take as long as finding them
        first += column * self._n_spans
        return rows[:, first : first + n_spans]

    def _stored_crc(self, row: int, column: int) -> int | None:
        """Return the checksum of a chunk's stored bytes; None if there is none."""
        return None if self._stored_crcs is None else int(self._stored_crcs.file(0)[row, column])

    def read_checksums(self) -> None:
        """Read all tables of checksums; raises CorruptLayoutError."""
        for table in filter(None, (self._decoded_crcs, self._stored_crcs, self._spans)):
            for number in range(table.metadata.n_files):
                table.file(number)

    def recorded_checksums(self, start: int, stop: int) -> list[int]:
        """Return the checksums of whole chunks, frames ``start:stop``, as in a `PieceRecord`.

        First those of decoded chunks; then those of the spans of frames or else of stored chunks.
        """
        first, end = start // self.chunk_frames, -(-stop // self.chunk_frames)
        crcs = [self._decoded_crcs.rows(first, end)]
        if self._spans is not None:
            crcs.append(self._spans.rows(start, stop))
        elif self._stored_crcs is not None:
            crcs.append(self._stored_crcs.rows(first, end))
        return [crc for table in crcs for crc in table.ravel().tolist()]

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
        if self.uncompressed and self._spans is not None:
            n_rows = min(self.chunk_frames, self.n_frames - row * self.chunk_frames)
            self._check_frames(row, column, 0, self.locate(row, column)[0], chunk[:n_rows])
        return chunk

    def _compare_decoded(self, row: int, column: int, chunk: FloatArray) -> None:
        if kernels.crc32c(chunk) != self._decoded_crcs.file(0)[row, column]:
            raise self.chunk_error(
                row, column, self.locate(row, column)[0], "not what was written there"
            )

    def encoded_chunk(self, start: int, stop: int) -> EncodedChunk:
        """Return the shard of frames ``start:stop``, after checking all its chunks."""
        from mdio.layouts.writer import EncodedChunk  # only writing needs it

        rows = range(start // self.chunk_frames, -(-stop // self.chunk_frames))
        for row, column in product(rows, range(self.grid[1])):
            self.check(row, column)
        path = self.locate(rows.start, 0)[0].path
        file_name = self.metadata.file_name(rows.start // self.frames_per_shard)
        crcs = self.recorded_checksums(start, stop)
        return EncodedChunk(
            f"{self._array_path}/{file_name}", store_at(path).bytes_to_link(path), crcs, path
        )


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


class OwnTree(OwnOutput[ShardedChunks]):
    """A Zarr tree of mdio, in a folder that `close` closes; `text`: the root's ``zarr.json``."""

    def __init__(
        self, root: Folder, text: bytes, manifest: Any, group: str | None, *, verify: bool
    ) -> None:
        path = root.path
        self._root, self._text = root, text
        super().__init__(path, manifest, group, verify=verify)
        root.use_redirects(self.manifest)
        self._file_crcs = manifest_checksums(self.manifest, "file_crc32c", path)
        self._node_crcs = manifest_checksums(self.manifest, "node_crc32c", path)
        fields = self.manifest.get("fields")
        if not isinstance(fields, list) or "positions" not in fields or set(fields) - set(FIELDS):
            raise self._damage_error("", f"its manifest has {fields!r} for 'fields'")
        if not self._node_crcs and store_at(path).opening_waits:
            prefetch((path / node / METADATA for node in self._nodes_to_open(fields)), 0)
        self.arrays = {
            (name, field): self._array(name, field, n_atoms)
            for name, n_atoms in self._n_atoms_by_group.items()
            for field in fields
        }
        self._columns = {
            "time": self._column(f"particles/{self.group}/position/time", "time"),
            "step": self._column("mdio/step", "source_step"),
            "box": self._column("mdio/box", "box"),
        }
        if not self.has_manifest_times and store_at(path).opening_waits:
            rows = (("box", 0), ("time", 0), ("time", self.n_frames - 1))
            prefetch_openings(
                opening
                for name, row in rows
                for opening in self._columns[name].openings(row, row + 1)
            )

    def _damage_error(self, node: str, problem: str) -> CorruptLayoutError:
        return CorruptLayoutError(f"{self.path / node}: {problem}; convert the source again")

    def openings(
        self, runs: FrameRuns, atoms: AtomIndices | None, fields: Sequence[str]
    ) -> Iterator[Opening]:
        for column in self._columns.values() if runs else ():
            yield from column.openings(runs[0][0], runs[-1][1])
        yield from super().openings(runs, atoms, fields)

    def _nodes_to_open(self, fields: Sequence[str]) -> Iterator[str]:
        """Yield the arrays whose ``zarr.json`` opening reads if the manifest does not have them."""
        yield from (f"particles/{self.group}/position/time", "mdio/step", "mdio/box")
        for group, field in product(self._n_atoms_by_group, fields):
            yield f"particles/{group}/{H5MD_NAMES[field]}/value"
            yield table_path("crc32c", group, field)

    @cached_property
    def _topology(self) -> NumberArray | None:
        if TOPOLOGY not in self._file_crcs:
            return None
        metadata = ArrayMetadata.from_json(self._node(TOPOLOGY))
        return self._number_array(TOPOLOGY, metadata, is_of_frames=False)

    def _node(self, path: str, expected: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """Return a ``zarr.json``, on a network `expected` if the manifest has its checksum.

        So opening a tree takes one round of requests, for the root's.
        """
        if expected is not None and self._root.opening_waits:
            crc = kernels.crc32c(json.dumps(expected).encode())
            if self._node_crcs.get(path) == crc:
                return expected
        return parse_metadata(self.path / path / METADATA, read_node(self._root, path))

    def _metadata(
        self,
        path: str,
        shape: tuple[int, ...],
        dtype: str,
        expected: Mapping[str, Any] | None = None,
    ) -> ArrayMetadata:
        node = self._node(path, expected)
        try:
            metadata = ArrayMetadata.from_json(node)
        except ValueError as error:
            problem = f"this is not an array as mdio writes it: {error}"
            raise self._damage_error(path, problem) from error
        if (metadata.shape, metadata.dtype) != (shape, dtype):
            problem = f"{metadata.dtype} of shape {metadata.shape}, but by the manifest it is"
            raise self._damage_error(path, f"{problem} {dtype} of shape {shape}")
        return metadata

    def _known(self, path: str, expected: ArrayMetadata) -> ArrayMetadata:
        node = expected.to_json() if self._root.opening_waits else None
        return self._metadata(path, expected.shape, expected.dtype, node)

    def _array(self, group: str, field: str, n_atoms: int) -> ShardedChunks:
        path = f"particles/{group}/{H5MD_NAMES[field]}/value"
        node = manifest_checksums(self.manifest, "nodes", self.path).get(path)
        metadata = self._metadata(path, (self.n_frames, n_atoms, 3), "float32", node)
        if not metadata.sharded or metadata.chunk_shape[2] != 3:
            raise self._damage_error(path, "mdio did not write this array")
        n_atom_chunks = metadata.chunks_per_file[1]
        n_spans = spans_of_row(12 * metadata.chunk_shape[1])
        grid = (-(-self.n_frames // metadata.chunk_shape[0]), n_atom_chunks)
        decoded = self._table("crc32c", group, field, grid)
        stored: NumberArray | None = decoded
        spans = None
        if not metadata.uncompressed:
            stored = self._table("crc32c_stored", group, field, grid)
        else:
            shape = (self.n_frames, n_atom_chunks * n_spans)
            spans = self._table("crc32c_pieces", group, field, shape)
        assert decoded is not None
        return ShardedChunks(
            self._root,
            path,
            f"{field} of {group}",
            metadata,
            decoded=decoded,
            stored=stored,
            spans=spans,
            verify=self._verifies,
        )

    def _column(self, path: str, name: ColumnName) -> NumberArray:
        return self._number_array(path, self._known(path, column_metadata(self.n_frames, name)))

    def _table(
        self, table: TableName, group: str, field: str, shape: tuple[int, int]
    ) -> NumberArray | None:
        """Return a table of checksums; None for tables that older versions did not write."""
        path = table_path(table, group, field)
        if table != "crc32c" and path not in self._file_crcs:
            return None
        expected = ArrayMetadata.of_rows(shape, "uint32")
        if table == "crc32c_pieces":
            expected = spans_metadata(*shape)
        return self._number_array(path, self._known(path, expected), is_of_frames=False)

    def _number_array(
        self, path: str, metadata: ArrayMetadata, *, is_of_frames: bool = True
    ) -> NumberArray:
        crcs = self._file_crcs.get(path)
        if crcs is not None and len(crcs) != metadata.n_files:
            problem = f"in {metadata.n_files} files, but by the manifest in {len(crcs)}"
            raise self._damage_error(path, problem)
        return NumberArray(self._root, path, metadata, crcs, is_of_frames=is_of_frames)

    def info(self, layout: str) -> TrajectoryInfo:
        info = super().info(layout)
        quantised = self.arrays[self.group, "positions"].metadata.quantised
        group_codec = self._array_codec(self.group, "positions")
        if quantised is not None and (group_codec or info.compression is None):
            info = info.replace(compression=group_codec or quantised.compression)
        return info

    def _topology_bytes(self) -> bytes | None:
        return None if self._topology is None else self._topology.file(0).tobytes()

    def read_column(self, name: str, start: int, stop: int) -> NDArray[Any]:
        return self._columns[name].rows(start, stop)

    def _column_run(self, start: int, stop: int) -> tuple[int, int]:
        sizes = {column.rows_per_file for column in self._columns.values()}
        begin = start - start % max(sizes)
        end = min(begin + max(sizes), self.n_frames)
        return (begin, end) if len(sizes) == 1 and stop <= end else (start, stop)

    def units(self) -> Iterator[Unit]:
        for (group, field), array in self.arrays.items():
            try:
                array.read_checksums()
            except CorruptLayoutError:
                yield Unit(f"checksums of the {array.name}", array.read_checksums, None, group)
                continue
            yield from self._units_of((group, field))
        all_columns = column_arrays(self.arrays)
        if store_at(self.path).opening_waits:
            nodes = [self.path / path / METADATA for path in self._node_crcs]
            prefetch(nodes, LARGE_NBYTES)
            for path, name in all_columns.items():
                with suppress(CorruptLayoutError):
                    prefetch_openings(self._column(path, name).openings(0, self.n_frames))
        for path, name in all_columns.items():
            try:
                column = self._column(path, name)
            except CorruptLayoutError:
                yield Unit(path, partial(self._check_column, path, name, 0))
                continue
            rows = column.rows_per_file
            for number in range(column.metadata.n_files):
                frames = (number * rows, min((number + 1) * rows, self.n_frames))
                check = partial(self._check_column, path, name, number)
                yield Unit(f"{path}, file {number}", check, frames)
        if TOPOLOGY in self._file_crcs:
            yield Unit(TOPOLOGY, self._topology_bytes)
        if self._node_crcs:  # trees of older versions have none
            for path in ("", *self._node_crcs):
                yield Unit(f"{path}/{METADATA}".lstrip("/"), partial(self._check_node, path))

    def _check_column(self, path: str, name: ColumnName, number: int) -> None:
        self._column(path, name).file(number)

    def _check_node(self, path: str) -> None:
        """Compare a ``zarr.json`` with its checksum; raises CorruptLayoutError."""
        if path:
            is_same = kernels.crc32c(read_node(self._root, path)) == self._node_crcs[path]
        else:
            is_same = self._text == json.dumps(group_metadata({"mdio": self.manifest})).encode()
        if not is_same:
            raise CorruptLayoutError(
                f"{self.path / path / METADATA}: not as mdio wrote it; it was damaged, or another "
                "program added to it (attributes, consolidated metadata)"
            )

    def encoded_chunks(self, start: int, stop: int) -> list[EncodedChunk]:
        return [array.encoded_chunk(start, stop) for array in self.arrays.values()]

    def plan_fields(self) -> dict[str, Any]:
        first = next(iter(self.arrays.values()))
        piece_frames = first.frames_per_shard * first.chunk_frames
        fields: dict[str, Any] = {"arrays": self.array_plans(), "piece_frames": piece_frames}
        with suppress(CorruptLayoutError):  # `repair` makes it from the topology again
            topology = self._topology
            fields["topology_nbytes"] = 0 if topology is None else topology.metadata.shape[0]
        return fields

    def _array_codec(self, group: str, field: str) -> str | None:
        """Return the codec of a group's positions if it differs from the manifest's, else None."""
        quantised = self.arrays[group, field].metadata.quantised
        if field != "positions" or quantised is None:
            return None
        common = (self.manifest.get("compression") or "bitpack").partition(":")[0]
        return None if quantised.compressor == common else quantised.compression

    def reopen(self) -> bool:
        return self._root.reopen()

    def close(self) -> None:
        super().close()
        self._root.close()
