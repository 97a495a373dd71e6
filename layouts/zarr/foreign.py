"""Reads Zarr trees of other writers through zarr: H5MD trees (v3) and ZarrMD (v2, zarrtraj).

ZarrMD 0.2.0 is H5MD 1.1 as a Zarr tree in which every array names its own unit.

Only arrays of numbers are read, and only with codecs that are known to do nothing but decode: Zarr
v2 has arrays of Python objects, whose codec ``pickle`` runs any code of the tree's writer.

Blosc chunks are checked before they are decoded, since c-blosc takes the length of a chunk from the
chunk's own header: of a truncated chunk it reads what follows it in memory, so that numbers change
from one reading to the next.
Format: https://github.com/Blosc/c-blosc/blob/main/README_CHUNK_FORMAT.rst
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.abc.store import ByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import WrapperStore

from mdio.core.errors import CorruptLayoutError, SourceError
from mdio.core.frames import ELEMENTS, AtomIndices
from mdio.layouts.codecs.compressors import QUANTISED_NAME
from mdio.layouts.codecs.quantised import BLOSC_HEADER
from mdio.layouts.foreign.tree import ForeignTrajectory, as_source_error
from mdio.layouts.zarr.array import CRC_NBYTES, MISSING_CHUNK

MAX_CACHED_NBYTES = 256 << 20
"""Decoded chunks of one run of frames are kept for the next read if they are not larger."""
_CODEC_NAMES = """
adler32 bitround blosc bytes bz2 crc32 crc32c delta fixedscaleoffset fletcher32 gzip jenkins_lookup3
lz4 lzma quantize sharding_indexed shuffle transpose zlib zstd
"""
CODECS = {QUANTISED_NAME, *_CODEC_NAMES.split()}
"""Codecs that are read. In Zarr v3 those of numcodecs are called ``numcodecs.NAME``."""
ELEMENT_NAMES = (*ELEMENTS.values(), "id", "box", "edges", "value", "time", "step")


class ForeignTree(ForeignTrajectory):
    """A Zarr tree of another writer; see `ForeignTrajectory`.

    `path`: root of the tree. `options`: by default the group is ``trajectory``, or else the first.
    """

    def __init__(self, path: Path, options: Mapping[str, Any]) -> None:
        self._cached: dict[str, tuple[int, NDArray[Any]]] = {}
        """By field, number and decoded frames of the row of chunks that was read in part."""
        with as_source_error(path, "cannot be read as a Zarr tree"):
            group = zarr.open_group(str(path), mode="r")
            store = BloscCheckingStore(group.store, path)
            root: Any = zarr.open_group(store, path=group.path, mode="r")
            particles = root.get("particles")
            names = sorted(particles.group_keys()) if isinstance(particles, zarr.Group) else []
            names.sort(key=lambda name: name != "trajectory")
            for name in names:
                _check_arrays(path, particles[name], store)
            super().__init__(path, root, names, options)

    def _compression(self, array: Any) -> str | None:
        """Return the names of the compressors, without crc32c; None if there are none."""
        names = []
        for codec in array.compressors:
            name = getattr(codec, "codec_id", None) or type(codec).__name__.removesuffix("Codec")
            names.append(name.lower())
        return "+".join(name for name in names if name != "crc32c") or None

    def _read_field(
        self, field: str, start: int, stop: int, atoms: AtomIndices | None, out: NDArray[np.float32]
    ) -> None:
        size = self._values[field].chunks[0]
        for chunk_row in range(start // size, (stop - 1) // size + 1):
            first, end = max(start, chunk_row * size), min(stop, (chunk_row + 1) * size)
            rows = self._frames_of_chunks(field, chunk_row, first, end)
            out[first - start : end - start] = rows if atoms is None else rows[:, atoms]

    def _frames_of_chunks(self, field: str, chunk_row: int, start: int, stop: int) -> NDArray[Any]:
        """Read frames ``start:stop`` of a row of chunks, which is kept if they are part of it."""
        array = self._values[field]
        begin = chunk_row * array.chunks[0]
        end = min(begin + array.chunks[0], array.shape[0])
        cached = self._cached.get(field)
        if cached is None or cached[0] != chunk_row:
            nbytes = (end - begin) * self.n_atoms * 3 * array.dtype.itemsize
            if (start, stop) == (begin, end) or nbytes > MAX_CACHED_NBYTES:
                return np.asarray(array[start:stop])
            cached = self._cached[field] = chunk_row, np.asarray(array[begin:end])
        return cached[1][start - begin : stop - begin]

    def close(self) -> None:
        """Drop the arrays and decoded chunks."""
        self._values, self._cached = {}, {}


def _check_arrays(path: Path, group: Any, store: BloscCheckingStore) -> None:
    """Raise SourceError if arrays in `group` that are read do not hold plain numbers.

    It also raises for folders without Zarr metadata, which zarr would ignore. Blosc chunks of all
    other arrays are checked by `store` from then on.
    """
    for name in ELEMENT_NAMES:
        node = group.get(name)
        folder = path / group.path / name
        if node is None and folder.is_dir():
            raise SourceError(
                f"{path}: {group.path}/{name} is a folder without metadata of Zarr (zarr.json, "
                ".zgroup or .zarray), so it is damaged; copy the tree again"
            )
        if isinstance(node, zarr.Group):
            _check_arrays(path, node, store)
        elif node is not None:
            unknown = set(_codec_names(node.metadata.to_dict())) - CODECS
            if node.dtype.kind not in "biuf" or unknown:
                unreadable = (
                    f"the codec {min(unknown)}" if unknown else f"values of type {node.dtype}"
                )
                raise SourceError(
                    f"{path}: {node.name} has {unreadable}, expected plain numbers with usual "
                    "compression; it is not read, since decoding it might run code"
                )
            store.watch(node)


def _codec_names(metadata: Any) -> Iterator[str]:
    """Yield the names of all codecs in the metadata of an array, including nested ones."""
    for key in ("filters", "compressor", "codecs", "index_codecs"):
        codecs = metadata.get(key) or ()
        for codec in (codecs,) if isinstance(codecs, dict) else codecs:
            name, options = _name_and_options(codec)
            yield name
            yield from _codec_names(options)


UNCOMPRESSED_FLAG = 2
"""In a Blosc header: the chunk's bytes follow it as they are."""
METADATA_NAMES = ("zarr.json", ".zarray", ".zattrs")
INDEX_NBYTES = {"bytes": 0, "crc32c": 4}
"""Codecs of shards' indexes, and bytes that each adds."""
SIZE_KEEPING_CODECS = ("bytes", "transpose")
SHARDING = "sharding_indexed"


def find_blosc_problem(data: memoryview, nbytes: int | None) -> str | None:
    """Return the text of a problem with a Blosc chunk; None if there is none.

    `nbytes`: of the decoded chunk, if known.
    """
    if len(data) < BLOSC_HEADER.size:
        return f"{len(data)} bytes, expected a header of Blosc of {BLOSC_HEADER.size} at least"
    _, _, flags, _, n_decoded, block_nbytes, n_encoded = BLOSC_HEADER.unpack_from(data)
    if n_encoded != len(data):
        return f"{len(data)} bytes, expected {n_encoded} by the header of Blosc"
    if nbytes is not None and n_decoded != nbytes:
        return f"{n_decoded} decoded bytes by the header of Blosc, expected {nbytes}"
    if flags & UNCOMPRESSED_FLAG:
        n_expected = BLOSC_HEADER.size + n_decoded
        return None if n_encoded == n_expected else f"{n_encoded} bytes, expected {n_expected}"
    if not 0 < block_nbytes <= n_decoded:
        return f"blocks of {block_nbytes} bytes by the header of Blosc, expected 1 to {n_decoded}"
    data_begin = BLOSC_HEADER.size + 4 * -(-n_decoded // block_nbytes)
    if data_begin > n_encoded:
        return f"{n_encoded} bytes, expected {data_begin} at least for the starts of Blosc's blocks"
    starts = np.frombuffer(data[BLOSC_HEADER.size : data_begin], "<u4")
    if starts.min() < data_begin or starts.max() >= n_encoded:
        return (
            f"Blosc's blocks begin at bytes {starts.min()} to {starts.max()}, expected "
            f"{data_begin} to {n_encoded - 1}"
        )
    return None


@dataclass(frozen=True, slots=True)
class _ShardIndex:
    """Size and place of the index in each shard of an array."""

    n_chunks: int
    nbytes: int
    at_start: bool


@dataclass(frozen=True, slots=True)
class _BloscChunks:
    """How the chunks of an array are packed by Blosc."""

    nbytes: int | None
    """Bytes of a chunk once Blosc has decoded it; None if other codecs change its size before."""
    index: _ShardIndex | None
    """None if each file is a chunk."""
    trailer_nbytes: int
    """Bytes of checksums behind a chunk."""


def _name_and_options(codec: Any) -> tuple[str, Mapping[str, Any]]:
    options = codec if isinstance(codec, dict) else codec.get_config()
    name = str(options.get("id", options.get("name"))).removeprefix("numcodecs.")
    return name, options.get("configuration") or {}


def _describe_chunks(array: Any) -> _BloscChunks | None:
    """Return how an array's chunks are packed; None if none of the codecs is Blosc.

    Raises SourceError: other codecs come after Blosc, so that its chunks cannot be checked.
    """
    metadata = array.metadata.to_dict()
    if metadata["zarr_format"] == 2:
        pipeline = [*(metadata.get("filters") or ()), metadata.get("compressor")]
        codecs = [_name_and_options(codec) for codec in pipeline if codec]
    else:
        codecs = [_name_and_options(codec) for codec in metadata["codecs"]]
    other_codecs: list[str] = []
    before, shape = [], tuple(array.chunks)
    index = None
    names = [name for name, _ in codecs]
    if SHARDING in names:
        shard_codec = names.index(SHARDING)
        options = codecs[shard_codec][1]
        before, other_codecs = names[:shard_codec], names[shard_codec + 1 :]
        index_names = [_name_and_options(codec)[0] for codec in options["index_codecs"]]
        if not INDEX_NBYTES.keys() >= set(index_names):
            raise ValueError(f"{array.name} has shards whose indexes have the codecs {index_names}")
        shard_size = math.prod(metadata["chunk_grid"]["configuration"]["chunk_shape"])
        shape = tuple(options["chunk_shape"])  # `array.chunks` is that only without other codecs
        n_chunks = shard_size // math.prod(shape)
        nbytes = 16 * n_chunks + sum(INDEX_NBYTES[name] for name in index_names)
        index = _ShardIndex(n_chunks, nbytes, options["index_location"] == "start")
        names = [name for name, _ in map(_name_and_options, options["codecs"])]
        nested = [_name_and_options(codec)[1].get("codecs", ()) for codec in options["codecs"]]
        other_codecs += [name for codecs in nested for name, _ in map(_name_and_options, codecs)]
    if "blosc" not in (*names, *before, *other_codecs):
        return None
    blosc_index = names.index("blosc") if "blosc" in names else 0
    after = names[blosc_index + 1 :]
    if other_codecs or "blosc" in before or set(after) - {"crc32c"}:
        unexpected = [*other_codecs, *before, *(name for name in after if name != "crc32c")][0]
        raise SourceError(
            f"{array.name} is packed by Blosc and by the codec {unexpected}, so that damage is not "
            "known before decoding; expected Blosc as the last codec (or only crc32c behind it): "
            "write the tree again in this order"
        )
    keeps_sizes = all(name in SIZE_KEEPING_CODECS for name in (*before, *names[:blosc_index]))
    nbytes_decoded = math.prod(shape) * array.dtype.itemsize if keeps_sizes else None
    return _BloscChunks(nbytes_decoded, index, CRC_NBYTES * len(after))


class BloscCheckingStore(WrapperStore[Store]):
    """A store that checks the Blosc chunks of watched arrays when they are read.

    `path`: root of the tree, for messages.
    Raises CorruptLayoutError where a chunk is not as long as its header says, or the header is
    impossible.
    """

    def __init__(self, store: Store, path: Path) -> None:
        super().__init__(store)
        self._path = path
        self._watched: dict[str, _BloscChunks] = {}
        self._checked_shards: set[str] = set()

    def watch(self, array: Any) -> None:
        """Check the chunks of an array from now on, if Blosc has packed them."""
        chunks = _describe_chunks(array)
        if chunks is not None:
            self._watched[f"{array.path}/"] = chunks

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Return the bytes of a key, or a range of them, after checking the chunks in it."""
        chunks = None
        if not key.endswith(METADATA_NAMES):
            chunks = next((c for name, c in self._watched.items() if key.startswith(name)), None)
        if chunks is not None and chunks.index is not None and key not in self._checked_shards:
            await self._check_shard(key, prototype, chunks, chunks.index)
            self._checked_shards.add(key)
        data = await super().get(key, prototype, byte_range)
        if data is not None and chunks is not None and chunks.index is None:
            self._check(key, data, chunks)
        return data

    async def _check_shard(
        self, key: str, prototype: BufferPrototype, chunks: _BloscChunks, index: _ShardIndex
    ) -> None:
        """Check all chunks of a shard: zarr may read several of them at once, or parts."""
        at_start = RangeByteRequest(0, index.nbytes)
        at_end = SuffixByteRequest(index.nbytes)
        table = await super().get(key, prototype, at_start if index.at_start else at_end)
        if table is None or len(table) != index.nbytes:
            return  # no such shard, or one without an index, which zarr reports
        file_nbytes = await self._store.getsize(key)
        rows = np.frombuffer(table.to_bytes(), "<u8", 2 * index.n_chunks).reshape(-1, 2)
        for begin, nbytes in rows.tolist():
            if (begin, nbytes) == (MISSING_CHUNK, MISSING_CHUNK):
                continue
            name, end = f"{key}, chunk at byte {begin}", begin + nbytes
            if end > file_nbytes:
                self._raise_if_problem(
                    name, f"it ends at byte {end}, expected {file_nbytes} at most"
                )
            data = await super().get(key, prototype, RangeByteRequest(begin, end))
            if data is not None:
                self._check(name, data, chunks)

    def _check(self, name: str, buffer: Buffer, chunks: _BloscChunks) -> None:
        data: Any = buffer.as_numpy_array()
        data = data[: max(0, len(data) - chunks.trailer_nbytes)]
        self._raise_if_problem(name, find_blosc_problem(memoryview(data), chunks.nbytes))

    def _raise_if_problem(self, name: str, problem: str | None) -> None:
        if problem is not None:
            raise CorruptLayoutError(
                f"{self._path / name}: {problem}; the chunk is damaged, copy the tree again"
            )
