"""Looks at Blosc chunks of other writers before they are decoded.

c-blosc takes the length of a chunk from the chunk's own header: of one that was cut it reads what
lies behind it in memory, and the numbers change from one reading to the next.
Format: https://github.com/Blosc/c-blosc/blob/main/README_CHUNK_FORMAT.rst
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from zarr.abc.store import ByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import WrapperStore

from mdio.core.errors import CorruptLayoutError, SourceError
from mdio.layouts.codecs.packing import BLOSC_HEADER

COPIED = 2
"""Flag of chunks that are stored as they are, behind the header."""
NO_CHUNK = 2**64 - 1
METADATA_NAMES = ("zarr.json", ".zarray", ".zattrs")
INDEX_NBYTES = {"bytes": 0, "crc32c": 4}
"""What the codecs of shards' indexes add to them."""
KEEP_SIZES = ("bytes", "transpose")
SHARDS = "sharding_indexed"
CRC_NBYTES = 4


def problem_of(data: memoryview, nbytes: int | None) -> str | None:
    """Say what is wrong with a Blosc chunk: found and expected; None if nothing is.

    `nbytes`: those of the decoded chunk, if they are known.
    """
    if len(data) < BLOSC_HEADER.size:
        return f"{len(data)} bytes, expected a header of Blosc of {BLOSC_HEADER.size} at least"
    _, _, flags, _, n_decoded, block, n_encoded = BLOSC_HEADER.unpack_from(data)
    if n_encoded != len(data):
        return f"{len(data)} bytes, expected {n_encoded} by the header of Blosc"
    if nbytes is not None and n_decoded != nbytes:
        return f"{n_decoded} decoded bytes by the header of Blosc, expected {nbytes}"
    if flags & COPIED:
        n_expected = BLOSC_HEADER.size + n_decoded
        return None if n_encoded == n_expected else f"{n_encoded} bytes, expected {n_expected}"
    if not 0 < block <= n_decoded:
        return f"blocks of {block} bytes by the header of Blosc, expected 1 to {n_decoded}"
    first = BLOSC_HEADER.size + 4 * -(-n_decoded // block)
    if first > n_encoded:
        return f"{n_encoded} bytes, expected {first} at least for the starts of Blosc's blocks"
    starts = np.frombuffer(data[BLOSC_HEADER.size : first], "<u4")
    if starts.min() < first or starts.max() >= n_encoded:
        return (
            f"Blosc's blocks begin at bytes {starts.min()} to {starts.max()}, expected {first} to "
            f"{n_encoded - 1}"
        )
    return None


@dataclass(frozen=True, slots=True)
class _Index:
    """Where the index of a shard lies."""

    n_chunks: int
    nbytes: int
    at_start: bool


@dataclass(frozen=True, slots=True)
class _Chunks:
    """What is known of an array's chunks."""

    nbytes: int | None
    """Decoded bytes of one; None if codecs before Blosc change them."""
    index: _Index | None
    """Of shards; None if each file is a chunk."""
    behind_nbytes: int
    """Bytes of checksums behind a chunk."""


def _named(codec: Any) -> tuple[str, Mapping[str, Any]]:
    options = codec if isinstance(codec, dict) else codec.get_config()
    name = str(options.get("id", options.get("name"))).removeprefix("numcodecs.")
    return name, options.get("configuration") or {}


def _chunks_of(array: Any) -> _Chunks | None:
    """Return what is known of the chunks; None if none of the codecs is Blosc.

    Raises SourceError: Blosc lies where its chunks are not seen before they are decoded.
    """
    node = array.metadata.to_dict()
    if node["zarr_format"] == 2:
        pipeline = [*(node.get("filters") or ()), node.get("compressor")]
        codecs = [_named(codec) for codec in pipeline if codec]
    else:
        codecs = [_named(codec) for codec in node["codecs"]]
    behind: list[str] = []
    before, shape = [], tuple(array.chunks)
    index = None
    names = [name for name, _ in codecs]
    if SHARDS in names:
        at = names.index(SHARDS)
        options = codecs[at][1]
        before, behind = names[:at], names[at + 1 :]
        index_names = [_named(codec)[0] for codec in options["index_codecs"]]
        if not INDEX_NBYTES.keys() >= set(index_names):
            raise ValueError(f"{array.name} has shards whose indexes have the codecs {index_names}")
        n_all = math.prod(node["chunk_grid"]["configuration"]["chunk_shape"])
        shape = tuple(options["chunk_shape"])  # `array` tells it only where nothing lies before
        n_chunks = n_all // math.prod(shape)
        nbytes = 16 * n_chunks + sum(INDEX_NBYTES[name] for name in index_names)
        index = _Index(n_chunks, nbytes, options["index_location"] == "start")
        names = [name for name, _ in map(_named, options["codecs"])]
        nested = [_named(codec)[1].get("codecs", ()) for codec in options["codecs"]]
        behind += [name for codecs in nested for name, _ in map(_named, codecs)]
    if "blosc" not in (*names, *before, *behind):
        return None
    first = names.index("blosc") if "blosc" in names else 0
    after = names[first + 1 :]
    if behind or "blosc" in before or set(after) - {"crc32c"}:
        under = [*behind, *before, *(name for name in after if name != "crc32c")][0]
        raise SourceError(
            f"{array.name} is packed by Blosc and by the codec {under}, so that a damaged chunk "
            "is not known before it is decoded, expected Blosc as the last one (or crc32c behind "
            "it); write the tree again so"
        )
    known = all(name in KEEP_SIZES for name in (*before, *names[:first]))
    size = math.prod(shape) * array.dtype.itemsize if known else None
    return _Chunks(size, index, CRC_NBYTES * len(after))


class BloscChecked(WrapperStore[Store]):
    """A store whose Blosc chunks are looked at when they are read, those of watched arrays.

    `path`: root of the tree, for messages.
    Raises CorruptLayoutError where a chunk is not as long as its header says, or the header is
    impossible.
    """

    def __init__(self, store: Store, path: Path) -> None:
        super().__init__(store)
        self._path = path
        self._watched: dict[str, _Chunks] = {}
        self._whole: set[str] = set()

    def watch(self, array: Any) -> None:
        """Look at the chunks of an array from now on, if Blosc has packed them."""
        chunks = _chunks_of(array)
        if chunks is not None:
            self._watched[f"{array.path}/"] = chunks

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Return the bytes of a key, or of a part of it, as any store."""
        chunks = None
        if not key.endswith(METADATA_NAMES):
            chunks = next((c for name, c in self._watched.items() if key.startswith(name)), None)
        if chunks is not None and chunks.index is not None and key not in self._whole:
            await self._check_shard(key, prototype, chunks, chunks.index)
            self._whole.add(key)
        found = await super().get(key, prototype, byte_range)
        if found is not None and chunks is not None and chunks.index is None:
            self._check(key, found, chunks)
        return found

    async def _check_shard(
        self, key: str, prototype: BufferPrototype, chunks: _Chunks, index: _Index
    ) -> None:
        """Look at all chunks of a shard: zarr may read several of them at once, or parts."""
        first = RangeByteRequest(0, index.nbytes)
        last = SuffixByteRequest(index.nbytes)
        table = await super().get(key, prototype, first if index.at_start else last)
        if table is None or len(table) != index.nbytes:
            return  # no such shard, or one without an index, which zarr tells
        file_nbytes = await self._store.getsize(key)
        rows = np.frombuffer(table.to_bytes(), "<u8", 2 * index.n_chunks).reshape(-1, 2)
        for begin, nbytes in rows.tolist():
            if (begin, nbytes) == (NO_CHUNK, NO_CHUNK):
                continue
            name, end = f"{key}, chunk at byte {begin}", begin + nbytes
            if end > file_nbytes:
                self._tell(name, f"it ends at byte {end}, expected {file_nbytes} at most")
            found = await super().get(key, prototype, RangeByteRequest(begin, end))
            if found is not None:
                self._check(name, found, chunks)

    def _check(self, name: str, found: Buffer, chunks: _Chunks) -> None:
        data: Any = found.as_numpy_array()
        data = data[: max(0, len(data) - chunks.behind_nbytes)]
        self._tell(name, problem_of(memoryview(data), chunks.nbytes))

    def _tell(self, name: str, problem: str | None) -> None:
        if problem is not None:
            raise CorruptLayoutError(
                f"{self._path / name}: {problem}; the chunk is damaged, copy the tree again"
            )
