"""Reads Zarr trees that mdio wrote, without zarr."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from itertools import product
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from mdio.core import kernels
from mdio.core.blocks import FrameRuns
from mdio.core.errors import CorruptLayoutError
from mdio.core.files.in_flight import Opening, prefetch_openings
from mdio.core.files.remote.objects import LARGE_NBYTES, prefetch
from mdio.core.files.span_checksums import spans_of_row
from mdio.core.files.store import store_at
from mdio.core.frames import FIELDS, H5MD_NAMES, AtomIndices, TrajectoryInfo
from mdio.layouts.chunked.own import OwnOutput
from mdio.layouts.manifest import manifest_checksums
from mdio.layouts.units import Unit
from mdio.layouts.zarr.array import Checksums, NumberArray, ShardedChunks
from mdio.layouts.zarr.folder import Folder
from mdio.layouts.zarr.tree import (
    COLUMNS,
    METADATA,
    TOPOLOGY,
    ArrayMetadata,
    ColumnName,
    TableName,
    column_arrays,
    column_node,
    group_metadata,
    parse_metadata,
    read_node,
    spans_metadata,
    table_path,
)

if TYPE_CHECKING:
    from mdio.layouts.writer import EncodedChunk


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
        checksums = Checksums(decoded, stored, spans, n_spans)
        name = f"{field} of {group}"
        return ShardedChunks(self._root, path, name, metadata, checksums, verify=self._verifies)

    def _column(self, path: str, name: ColumnName) -> NumberArray:
        column = COLUMNS[name]
        node = column_node(self.n_frames, name)
        metadata = self._metadata(path, (self.n_frames, *column.row_shape), column.dtype, node)
        return self._number_array(path, metadata)

    def _table(
        self, table: TableName, group: str, field: str, shape: tuple[int, int]
    ) -> NumberArray | None:
        """Return a table of checksums; None for tables that older versions did not write."""
        path = table_path(table, group, field)
        if table != "crc32c" and path not in self._file_crcs:
            return None
        if table == "crc32c_pieces":
            expected = spans_metadata(*shape)
        else:
            expected = ArrayMetadata(shape, "uint32", shape, shape)
        metadata = self._metadata(path, shape, "uint32", expected.to_json({}))
        return self._number_array(path, metadata, is_of_frames=False)

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
                array.checksums.read()
            except CorruptLayoutError:
                yield Unit(f"checksums of the {array.name}", array.checksums.read, None, group)
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
