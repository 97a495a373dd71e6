"""``zarr.json`` of groups and arrays, written and read as plain JSON: importing zarr takes 0.3 s.

Zarr v3 core: https://zarr-specs.readthedocs.io/en/latest/v3/core/index.html;
sharding codec: https://zarr-specs.readthedocs.io/en/latest/v3/codecs/sharding-indexed/index.html
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from mdio.core.errors import CorruptLayoutError
from mdio.core.files.remote.paths import RemotePath
from mdio.layouts.chunked.ensembles import check_members, labels_in
from mdio.layouts.codecs.compressors import (
    QUANTISED_NAME,
    Compressor,
    compressor_from_metadata,
    quantised_from_metadata,
    quantised_metadata,
)
from mdio.layouts.codecs.quantised import QuantisedFormat
from mdio.layouts.zarr.folder import Folder

METADATA = "zarr.json"
MAX_METADATA_NBYTES = 1 << 28
MAX_CHUNK_NBYTES = 1 << 31
"""What a chunk may hold when decoded: more is a lie, and Blosc has no more either."""

DTYPES = {"float32": "<f4", "float64": "<f8", "int64": "<i8", "uint32": "<u4", "uint8": "<u1"}
_BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
_CRC32C = {"name": "crc32c"}


def group_metadata(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``zarr.json`` of a group."""
    return {"zarr_format": 3, "node_type": "group", "attributes": dict(attributes)}


@dataclass(frozen=True, slots=True)
class ArrayMetadata:
    """How the chunks of an array of ours lie on disk.

    The chunks of per-atom arrays lie in shards, files of several chunks; others are files.
    Files are called ``c.0.0.0`` and lie in the array's own folder.
    """

    shape: tuple[int, ...]
    dtype: str
    """As in `DTYPES`."""
    file_shape: tuple[int, ...]
    """Shape of what one file holds."""
    chunk_shape: tuple[int, ...]
    """Shape of a chunk; that of a file where there are no shards."""
    sharded: bool = False
    compressor: Compressor | None = None
    quantised: QuantisedFormat | None = None

    @property
    def plain(self) -> bool:
        """Whether chunks lie as they are in memory."""
        return self.compressor is None and self.quantised is None

    @property
    def chunk_nbytes(self) -> int:
        """Decoded bytes of a chunk."""
        return int(np.dtype(DTYPES[self.dtype]).itemsize * np.prod(self.chunk_shape, dtype=object))

    @property
    def chunks_per_file(self) -> tuple[int, ...]:
        """How many chunks a file holds along each axis."""
        return tuple(f // c for f, c in zip(self.file_shape, self.chunk_shape, strict=True))

    @property
    def n_files(self) -> int:
        """How many files there are along the frames."""
        return -(-self.shape[0] // self.file_shape[0])

    def file_name(self, number: int) -> str:
        """Return the name of the file that is `number` along the frames."""
        return "c." + ".".join([str(number), *("0" for _ in self.shape[1:])])

    def to_json(
        self, attributes: Mapping[str, Any], dimensions: tuple[str, ...] = ()
    ) -> dict[str, Any]:
        """Return the ``zarr.json`` of the array.

        Without names of `dimensions` these are called by number and length: xarray opens a tree
        only if all have names, and those of equal name the same length.
        """
        dimensions = dimensions or tuple(f"dim{at}_{n}" for at, n in enumerate(self.shape))
        if self.quantised is not None:
            codecs = [quantised_metadata(self.quantised)]
        else:
            codecs = [_BYTES]
            codecs += [self.compressor.metadata()] if self.compressor is not None else []
        codecs = [*codecs, _CRC32C]
        if self.sharded:
            options = {
                "chunk_shape": list(self.chunk_shape),
                "codecs": codecs,
                "index_codecs": [_BYTES, _CRC32C],
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
            "attributes": dict(attributes),
            "storage_transformers": [],
            "dimension_names": list(dimensions),
        }

    @classmethod
    def from_json(cls, node: Mapping[str, Any]) -> ArrayMetadata:
        """Undo `to_json`.

        Raises ValueError: no array, or one that mdio would not have written.
        """
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
                if len(codecs) > 1 or options["index_codecs"] != [_BYTES, _CRC32C]:
                    raise ValueError(f"the codecs {codecs}")
                if options.get("index_location", "end") != "end":
                    raise ValueError("an index at the start")
                chunk_shape = _sizes(options["chunk_shape"])
                codecs = list(options["codecs"])
            first, *between, last = codecs
            if last["name"] != "crc32c" or len(between) > 1:
                raise ValueError(f"the codecs {codecs}")
            quantised = None
            if first["name"] == QUANTISED_NAME:
                quantised = quantised_from_metadata(first["configuration"])
            elif first != _BYTES:
                raise ValueError(f"the codec {first}")
            made = cls(
                shape=shape,
                dtype=node["data_type"],
                file_shape=file_shape,
                chunk_shape=chunk_shape,
                sharded=sharded,
                compressor=compressor_from_metadata(between[0]) if between else None,
                quantised=quantised,
            )
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            raise ValueError(f"metadata without {error}") from error
        if made.dtype not in DTYPES or made.chunk_nbytes >= MAX_CHUNK_NBYTES:
            raise ValueError(f"{made.dtype} in chunks of {made.chunk_shape}")
        whole = len(shape) == len(file_shape) == len(chunk_shape)
        if not whole or any(f % c for f, c in zip(file_shape, chunk_shape, strict=True)):
            raise ValueError(f"shape {shape}, files of {file_shape}, chunks of {chunk_shape}")
        if any(f < n for f, n in zip(file_shape[1:], shape[1:], strict=True)):
            raise ValueError(f"shape {shape}, but files of {file_shape}")
        return made


def _sizes(values: Sequence[Any]) -> tuple[int, ...]:
    if not all(isinstance(n, int) and n > 0 for n in values):
        raise ValueError(f"sizes {values}")
    return tuple(values)


def read_metadata(root: Folder) -> dict[str, Any]:
    """Return the ``zarr.json`` of a tree; raises CorruptLayoutError: it is missing, or none."""
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
    """Return what the bytes of a ``zarr.json`` say; raises CorruptLayoutError."""
    try:
        node = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorruptLayoutError(f"{path}: not valid JSON ({error}); convert it again") from error
    if not isinstance(node, dict):
        raise CorruptLayoutError(f"{path}: a JSON object was expected; convert it again")
    return node


def members_in(path: Path) -> dict[str, Path]:
    """Return the groups of the ensemble that is at `path`, in order; none if it is something else.

    Raises CorruptLayoutError: a group is missing.
    """
    labels: Sequence[str] = ()
    with suppress(OSError):
        labels = _labels(path, *_state((path / METADATA).stat()))
    members = {label: path / label for label in labels}
    check_members(path, members, METADATA)
    return members


@lru_cache(maxsize=64)
def _labels(path: Path, *_: int) -> Sequence[str]:
    """Return what the root names; read once as long as it is the same file: all who open ask."""
    with Folder(path) as root:
        state = _state(root.stat(METADATA))
        text = read_node(root, "")
    _handed_on.clear()
    _handed_on[state] = text
    attributes = parse_metadata(path / METADATA, text).get("attributes")
    manifest = attributes.get("mdio") if isinstance(attributes, dict) else None
    return labels_in(manifest) if isinstance(manifest, dict) else ()


def root_node(root: Folder) -> bytes:
    """Return the root's metadata; not read again where it was just asked for labels."""
    if not isinstance(root.path, RemotePath):
        with suppress(OSError):
            text = _handed_on.pop(_state(root.stat(METADATA)), None)
            if text is not None:
                return text
    return read_node(root, "")


_handed_on: dict[tuple[int, ...], bytes] = {}
"""The root that was read last, by the state of its file, for the one who opens it next: taken away
then, so that whoever opens later sees what is on the disk."""


def _state(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size
