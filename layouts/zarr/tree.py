"""The arrays and groups of a Zarr tree of mdio, an H5MD 1.1 tree, as its plan determines them.

H5MD: https://www.nongnu.org/h5md/h5md.html. Zarr has no links, so steps and times are stored again
for each element of H5MD, and the edges of the boxes for each group. Data for which H5MD has no
place are under ``/mdio``: ``/mdio/box`` (boxes as six numbers), ``/mdio/step`` (the source's own
steps) and the tables of checksums of `mdio.layouts.zarr.own`.

``zarr.json`` of groups and arrays, written and read as plain JSON: importing zarr takes 0.3 s.

Zarr v3 core: https://zarr-specs.readthedocs.io/en/latest/v3/core/index.html;
sharding codec: https://zarr-specs.readthedocs.io/en/latest/v3/codecs/sharding-indexed/index.html
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from mdio._version import __version__
from mdio.core.errors import CorruptLayoutError, PlanError
from mdio.core.files.span_checksums import spans_of_row
from mdio.core.frames import H5MD_NAMES
from mdio.layouts.chunked.own import UNITS, check_members, labels_in
from mdio.layouts.codecs.compressors import (
    QUANTISED_NAME,
    Compressor,
    compressor_from_metadata,
    compressor_from_option,
    quantised_from_metadata,
    quantised_from_option,
    quantised_metadata,
)
from mdio.layouts.codecs.quantised import PACKING_CODECS, QuantisedFormat
from mdio.layouts.zarr.folder import Folder

if TYPE_CHECKING:
    from mdio.layouts.plan import ArrayPlan, LayoutPlan


TOPOLOGY = "mdio/topology"
COLUMN_FILE_FRAMES = 65536

TableName = Literal["crc32c", "crc32c_stored", "crc32c_pieces"]
ColumnName = Literal["box", "edges", "step", "source_step", "time"]


class ColumnFormat(NamedTuple):
    """A kind of per-frame numbers."""

    dtype: str
    row_shape: tuple[int, ...]
    dimensions: tuple[str, ...]
    unit: str | None = None


COLUMNS: dict[ColumnName, ColumnFormat] = {
    "time": ColumnFormat("float64", (), ("frame",), "ps"),
    "step": ColumnFormat("int64", (), ("frame",)),
    "source_step": ColumnFormat("int64", (), ("frame",)),
    "box": ColumnFormat("float32", (6,), ("frame", "cell")),
    "edges": ColumnFormat("float32", (3, 3), ("frame", "vector", "axis"), "Angstrom"),
}
"""`step` is H5MD's, which must increase; `source_step` is the source's own."""

ArrayKeys = Collection[tuple[str, str]]


def _elements(keys: ArrayKeys) -> list[str]:
    """Return the folders of H5MD's elements, which hold value, step and time."""
    elements = [f"particles/{group}/{H5MD_NAMES[field]}" for group, field in keys]
    groups = dict.fromkeys(group for group, _ in keys)
    return elements + [f"particles/{group}/box/edges" for group in groups]


def _atom_metadata(plan: LayoutPlan, array: ArrayPlan) -> ArrayMetadata:
    chunk = (array.chunk_frames, array.chunk_atoms, 3)
    file_atoms = array.n_atom_chunks * array.chunk_atoms
    quantised = compressor = None
    step = plan.rounding_step(array.field)
    if step is not None and array.field == "positions":
        codec = array.compression or plan.compression
        quantised = quantised_from_option(step, plan.precision_source, codec)
    elif step is not None:  # as positions, unless these are stored as floats
        option = None if plan.precision is None else plan.compression
        quantised = quantised_from_option(step, "asked", option)
    elif plan.precision is None or plan.compression not in PACKING_CODECS:  # those take integers
        compressor = compressor_from_option(plan.compression)
    if (quantised or compressor) and array.chunk_nbytes >= MAX_CHUNK_NBYTES:
        raise PlanError(
            f"chunks of {array.chunk_frames} frames of {array.chunk_atoms} atoms have "
            f"{array.chunk_nbytes} bytes, too many to compress; give a smaller --chunk-frames"
        )
    return ArrayMetadata(
        shape=(plan.n_frames, array.n_atoms, 3),
        dtype="float32",
        file_shape=(plan.piece_frames, file_atoms, 3),
        chunk_shape=chunk,
        sharded=True,
        compressor=compressor,
        quantised=quantised,
        unit=UNITS[array.field],
        dimensions=("frame", "atom", "axis"),
    )


def atom_arrays(plan: LayoutPlan) -> dict[str, tuple[ArrayPlan, ArrayMetadata]]:
    """Return the per-atom arrays by folder; raises PlanError for an unavailable compressor."""
    return {
        f"particles/{array.group}/{H5MD_NAMES[array.field]}/value": (
            array,
            _atom_metadata(plan, array),
        )
        for array in plan.arrays
    }


def column_arrays(keys: ArrayKeys) -> dict[str, ColumnName]:
    """Return the name of the per-frame numbers in each folder; some have the same numbers."""
    arrays: dict[str, ColumnName] = {"mdio/box": "box", "mdio/step": "source_step"}
    elements = _elements(keys)
    for element in elements:
        arrays |= {f"{element}/step": "step", f"{element}/time": "time"}
    arrays |= {f"{edges}/value": "edges" for edges in elements if edges.endswith("/box/edges")}
    return arrays


def column_metadata(n_frames: int, name: ColumnName) -> ArrayMetadata:
    """Return the metadata of an array of per-frame numbers."""
    dtype, row_shape, dimensions, unit = COLUMNS[name]
    rows = min(COLUMN_FILE_FRAMES, n_frames)
    return ArrayMetadata.of_rows((n_frames, *row_shape), dtype, rows, unit, dimensions)


def table_path(table: TableName, group: str, field: str) -> str:
    """Return the folder of a table of checksums; see `mdio.layouts.zarr.own`."""
    return f"mdio/{table}/{group}/{field}"


def spans_metadata(n_frames: int, n_spans: int) -> ArrayMetadata:
    """Return the metadata of a table of checksums of the spans of frames."""
    rows = min(n_frames, max(1, COLUMN_FILE_FRAMES // n_spans))
    return ArrayMetadata.of_rows((n_frames, n_spans), "uint32", rows)


def table_arrays(plan: LayoutPlan) -> dict[str, ArrayMetadata]:
    """Return the tables of checksums by folder."""
    arrays = {}
    for array, metadata in atom_arrays(plan).values():
        grid = (math.ceil(plan.n_frames / array.chunk_frames), array.n_atom_chunks)
        chunk_table = ArrayMetadata.of_rows(grid, "uint32")
        arrays[table_path("crc32c", array.group, array.field)] = chunk_table
        if metadata.uncompressed:
            n_spans = array.n_atom_chunks * spans_of_row(12 * array.chunk_atoms)
            path = table_path("crc32c_pieces", array.group, array.field)
            arrays[path] = spans_metadata(plan.n_frames, n_spans)
        else:
            arrays[table_path("crc32c_stored", array.group, array.field)] = chunk_table
    return arrays


def group_nodes(
    plan: LayoutPlan, periodic: Sequence[bool] = (False, False, False)
) -> dict[str, dict[str, Any]]:
    """Return the ``zarr.json`` of every group but the root, by folder; `periodic`: of each axis."""
    boundary = ["periodic" if is_periodic else "none" for is_periodic in periodic]
    attributes: dict[str, dict[str, Any]] = {
        "h5md": {"version": [1, 1]},
        "h5md/author": {"name": "N/A"},
        "h5md/creator": {"name": "mdio", "version": __version__},
        "particles": {},
        "mdio": {},
    }
    for group in dict.fromkeys(group for group, _ in plan.array_keys):
        attributes[f"particles/{group}"] = {}
        attributes[f"particles/{group}/box"] = {"dimension": 3, "boundary": boundary}
    for table in table_arrays(plan):
        group = table.rpartition("/")[0]
        attributes |= {group.rpartition("/")[0]: {}, group: {}}
    attributes |= {element: {} for element in _elements(plan.array_keys)}
    return {path: group_metadata(values) for path, values in attributes.items()}


def all_arrays(plan: LayoutPlan) -> dict[str, ArrayMetadata]:
    """Return every array, by folder."""
    arrays = {path: metadata for path, (_, metadata) in atom_arrays(plan).items()}
    for path, name in column_arrays(plan.array_keys).items():
        arrays[path] = column_metadata(plan.n_frames, name)
    if plan.topology_nbytes:
        arrays[TOPOLOGY] = ArrayMetadata.of_rows((plan.topology_nbytes,), "uint8")
    return arrays | table_arrays(plan)


def array_nodes(plan: LayoutPlan) -> dict[str, dict[str, Any]]:
    """Return the ``zarr.json`` of every array, by folder."""
    return {path: metadata.to_json() for path, metadata in all_arrays(plan).items()}


def count_files(plan: LayoutPlan) -> int:
    """Return how many files the tree has."""
    n_groups = 1 + len(group_nodes(plan))
    return n_groups + sum(1 + metadata.n_files for metadata in all_arrays(plan).values())


METADATA = "zarr.json"
MAX_METADATA_NBYTES = 1 << 28
MAX_CHUNK_NBYTES = 1 << 31
"""Largest decoded chunk that is compressed: Blosc's limit."""

DTYPES = {"float32": "<f4", "float64": "<f8", "int64": "<i8", "uint32": "<u4", "uint8": "<u1"}
_BYTES_CODEC = {"name": "bytes", "configuration": {"endian": "little"}}
_CRC32C_CODEC = {"name": "crc32c"}


def group_metadata(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``zarr.json`` of a group."""
    return {"zarr_format": 3, "node_type": "group", "attributes": dict(attributes)}


@dataclass(frozen=True, slots=True)
class ArrayMetadata:
    """How an array of mdio's is cut into files and chunks, and encoded.

    The chunks of per-atom arrays are in shards, files of several chunks; in other arrays each chunk
    is a file. Files are called ``c.0.0.0`` and lie in the array's own folder.
    """

    shape: tuple[int, ...]
    dtype: str
    """A name in `DTYPES`."""
    file_shape: tuple[int, ...]
    """Shape of the part of the array in one file."""
    chunk_shape: tuple[int, ...]
    """Shape of a chunk; equal to `file_shape` without shards."""
    sharded: bool = False
    compressor: Compressor | None = None
    quantised: QuantisedFormat | None = None
    unit: str | None = None
    dimensions: tuple[str, ...] = ()
    """Their names, by default made from number and length: xarray opens a tree only if all
    dimensions have names, and those of equal name have equal lengths."""

    @classmethod
    def of_rows(
        cls,
        shape: tuple[int, ...],
        dtype: str,
        rows: int | None = None,
        unit: str | None = None,
        dimensions: tuple[str, ...] = (),
    ) -> ArrayMetadata:
        """Return an array without shards, in files of so many rows, by default in one file."""
        part = (rows or shape[0], *shape[1:])
        return cls(shape, dtype, part, part, unit=unit, dimensions=dimensions)

    @property
    def uncompressed(self) -> bool:
        """Whether chunks are stored as they are in memory."""
        return self.compressor is None and self.quantised is None

    @property
    def chunk_nbytes(self) -> int:
        return int(np.dtype(DTYPES[self.dtype]).itemsize * np.prod(self.chunk_shape, dtype=object))

    @property
    def chunks_per_file(self) -> tuple[int, ...]:
        return tuple(f // c for f, c in zip(self.file_shape, self.chunk_shape, strict=True))

    @property
    def n_files(self) -> int:
        return -(-self.shape[0] // self.file_shape[0])

    def file_name(self, number: int) -> str:
        return "c." + ".".join([str(number), *("0" for _ in self.shape[1:])])

    def to_json(self) -> dict[str, Any]:
        """Return the ``zarr.json`` of the array."""
        names = self.dimensions or tuple(f"dim{axis}_{n}" for axis, n in enumerate(self.shape))
        if self.quantised is not None:
            codecs = [quantised_metadata(self.quantised)]
        else:
            codecs = [_BYTES_CODEC]
            codecs += [self.compressor.metadata()] if self.compressor is not None else []
        codecs = [*codecs, _CRC32C_CODEC]
        if self.sharded:
            options = {
                "chunk_shape": list(self.chunk_shape),
                "codecs": codecs,
                "index_codecs": [_BYTES_CODEC, _CRC32C_CODEC],
                "index_location": "end",
            }
            codecs = [{"name": "sharding_indexed", "configuration": options}]
        return {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(self.shape),
            "data_type": self.dtype,
            "chunk_grid": {
                "name": "regular",
                "configuration": {"chunk_shape": list(self.file_shape)},
            },
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
            "fill_value": 0.0 if self.dtype.startswith("float") else 0,
            "codecs": codecs,
            "attributes": {} if self.unit is None else {"unit": self.unit},
            "storage_transformers": [],
            "dimension_names": list(names),
        }

    @classmethod
    def from_json(cls, node: Mapping[str, Any]) -> ArrayMetadata:
        """Return the metadata in a ``zarr.json``, without its attributes; raises ValueError."""
        try:
            codecs = list(node["codecs"])
            shape = _sizes(node["shape"])
            file_shape = chunk_shape = _sizes(node["chunk_grid"]["configuration"]["chunk_shape"])
            encoding = node["chunk_key_encoding"]
            if encoding != {"name": "default", "configuration": {"separator": "."}}:
                raise ValueError(f"the chunk key encoding {encoding}")
            sharded = codecs[0]["name"] == "sharding_indexed"
            if sharded:
                options = codecs[0]["configuration"]
                if len(codecs) > 1 or options["index_codecs"] != [_BYTES_CODEC, _CRC32C_CODEC]:
                    raise ValueError(f"the codecs {codecs}")
                if options.get("index_location", "end") != "end":
                    raise ValueError("an index at the start")
                chunk_shape = _sizes(options["chunk_shape"])
                codecs = list(options["codecs"])
            serializer, *compressors, checksum = codecs
            if checksum["name"] != "crc32c" or len(compressors) > 1:
                raise ValueError(f"the codecs {codecs}")
            quantised = None
            if serializer["name"] == QUANTISED_NAME:
                quantised = quantised_from_metadata(serializer["configuration"])
            elif serializer != _BYTES_CODEC:
                raise ValueError(f"the codec {serializer}")
            metadata = cls(
                shape=shape,
                dtype=node["data_type"],
                file_shape=file_shape,
                chunk_shape=chunk_shape,
                sharded=sharded,
                compressor=compressor_from_metadata(compressors[0]) if compressors else None,
                quantised=quantised,
            )
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            raise ValueError(f"metadata without {error}") from error
        if metadata.dtype not in DTYPES or metadata.chunk_nbytes >= MAX_CHUNK_NBYTES:
            raise ValueError(f"{metadata.dtype} in chunks of {metadata.chunk_shape}")
        same_rank = len(shape) == len(file_shape) == len(chunk_shape)
        if not same_rank or any(f % c for f, c in zip(file_shape, chunk_shape, strict=True)):
            raise ValueError(f"shape {shape}, files of {file_shape}, chunks of {chunk_shape}")
        if any(f < n for f, n in zip(file_shape[1:], shape[1:], strict=True)):
            raise ValueError(f"shape {shape}, but files of {file_shape}")
        return metadata


def _sizes(values: Sequence[Any]) -> tuple[int, ...]:
    if not all(isinstance(n, int) and n > 0 for n in values):
        raise ValueError(f"sizes {values}")
    return tuple(values)


def read_metadata(root: Folder) -> dict[str, Any]:
    """Return the root's ``zarr.json``; raises CorruptLayoutError: it is missing or malformed."""
    return parse_metadata(root.path / METADATA, read_node(root, ""))


def read_node(root: Folder, name: str) -> bytes:
    """Return the bytes of a ``zarr.json``; see `read_metadata`."""
    path = root.path / name / METADATA
    try:
        text = root.read(f"{name}/{METADATA}" if name else METADATA, MAX_METADATA_NBYTES + 1)
    except FileNotFoundError as error:
        raise CorruptLayoutError(
            f"{path}: no such file, though the tree needs it; the tree is unfinished or damaged, "
            "convert it again"
        ) from error
    if len(text) > MAX_METADATA_NBYTES:
        raise CorruptLayoutError(f"{path}: it is too large for metadata; convert it again")
    return text


def parse_metadata(path: Path, text: bytes) -> dict[str, Any]:
    """Return the object in the bytes of a ``zarr.json``; raises CorruptLayoutError."""
    try:
        node = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorruptLayoutError(f"{path}: not valid JSON ({error}); convert it again") from error
    if not isinstance(node, dict):
        raise CorruptLayoutError(f"{path}: a JSON object was expected; convert it again")
    return node


def members_in(path: Path) -> dict[str, Path]:
    """Return the groups of the ensemble at `path`, by label; empty if there is no ensemble."""
    labels: list[str] = []
    if not (path / "particles").is_dir():  # that is in a trajectory, whose metadata may be large
        with suppress(OSError, LookupError, TypeError, AttributeError), Folder(path) as root:
            labels = labels_in(read_metadata(root)["attributes"]["mdio"])
    members = {label: path / label for label in labels}
    check_members(path, members, METADATA)
    return members
