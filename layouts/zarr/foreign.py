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

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numcodecs.blosc import Blosc
from numcodecs.compat import ensure_contiguous_ndarray
from numpy.typing import NDArray

from mdio.core.errors import SourceError
from mdio.core.frames import H5MD_NAMES, AtomIndices
from mdio.layouts.codecs.compressors import QUANTISED_NAME
from mdio.layouts.codecs.quantised import BLOSC_HEADER
from mdio.layouts.foreign.tree import ForeignTrajectory, as_source_error

MAX_CACHED_NBYTES = 256 << 20
"""Decoded chunks of one run of frames are kept for the next read if they are not larger."""
_CODEC_NAMES = """
adler32 bitround blosc bytes bz2 crc32 crc32c delta fixedscaleoffset fletcher32 gzip jenkins_lookup3
lz4 lzma quantize sharding_indexed shuffle transpose zlib zstd
"""
CODECS = {QUANTISED_NAME, *_CODEC_NAMES.split()}
"""Codecs that are read. In Zarr v3 those of numcodecs are called ``numcodecs.NAME``."""
ELEMENT_NAMES = (*H5MD_NAMES.values(), "id", "box", "edges", "value", "time", "step")


class ForeignTree(ForeignTrajectory):
    """A Zarr tree of another writer; its group ``trajectory``, or else the first, by default."""

    def __init__(self, path: Path, options: Mapping[str, Any]) -> None:
        self._cached: dict[str, tuple[int, NDArray[Any]]] = {}
        """By field, number and decoded frames of the row of chunks that was read in part."""
        with as_source_error(path, "cannot be read as a Zarr tree"):
            root: Any = zarr.open_group(str(path), mode="r")
            particles = root.get("particles")
            names = sorted(particles.group_keys()) if isinstance(particles, zarr.Group) else []
            names.sort(key=lambda name: name != "trajectory")
            for name in names:
                _check_arrays(path, particles[name])
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
        self._values, self._cached = {}, {}


def _check_arrays(path: Path, group: Any) -> None:
    """Raise SourceError if arrays in `group` that are read do not hold plain numbers.

    It also raises for folders without Zarr metadata, which zarr would ignore.
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
            _check_arrays(path, node)
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


def _codec_names(metadata: Mapping[str, Any]) -> Iterator[str]:
    for key in ("filters", "compressor", "codecs", "index_codecs"):
        codecs = metadata.get(key) or ()
        for codec in (codecs,) if isinstance(codecs, dict) else codecs:
            options = codec if isinstance(codec, dict) else codec.get_config()
            yield str(options.get("id", options.get("name"))).removeprefix("numcodecs.")
            yield from _codec_names(options.get("configuration") or {})


UNCOMPRESSED_FLAG = 2
"""In a Blosc header: the chunk's bytes follow it as they are."""


def find_blosc_problem(data: memoryview) -> str | None:
    """Return the text of a problem with a Blosc chunk; None if there is none."""
    if len(data) < BLOSC_HEADER.size:
        return f"{len(data)} bytes, expected a header of Blosc of {BLOSC_HEADER.size} at least"
    _, _, flags, _, decoded_nbytes, block_nbytes, encoded_nbytes = BLOSC_HEADER.unpack_from(data)
    if encoded_nbytes != len(data):
        return f"{len(data)} bytes, expected {encoded_nbytes} by the header of Blosc"
    if flags & UNCOMPRESSED_FLAG:
        expected_nbytes = BLOSC_HEADER.size + decoded_nbytes
        return (
            None
            if encoded_nbytes == expected_nbytes
            else f"{encoded_nbytes} bytes, expected {expected_nbytes}"
        )
    if not 0 < block_nbytes <= decoded_nbytes:
        return (
            f"blocks of {block_nbytes} bytes by the header of Blosc, expected 1 to {decoded_nbytes}"
        )
    data_begin = BLOSC_HEADER.size + 4 * -(-decoded_nbytes // block_nbytes)
    if data_begin > encoded_nbytes:
        problem = f"expected {data_begin} at least for the starts of Blosc's blocks"
        return f"{encoded_nbytes} bytes, {problem}"
    starts = np.frombuffer(data[BLOSC_HEADER.size : data_begin], "<u4")
    if starts.min() < data_begin or starts.max() >= encoded_nbytes:
        return (
            f"Blosc's blocks begin at bytes {starts.min()} to {starts.max()}, expected "
            f"{data_begin} to {encoded_nbytes - 1}"
        )
    return None


_decode = Blosc.decode


def _decode_checked(codec: Blosc, buf: Any, out: Any = None) -> Any:
    problem = find_blosc_problem(ensure_contiguous_ndarray(buf).view(np.uint8).data)
    if problem is not None:
        raise ValueError(f"a chunk of {problem}; it is damaged, copy the tree again")
    return _decode(codec, buf, out)


Blosc.decode = _decode_checked  # zarr decodes chunks by it, wherever Blosc stands among codecs
