"""Reads Zarr trees of other writers through zarr: H5MD trees (v3) and ZarrMD (v2, zarrtraj).

Only numbers, and only codecs that are known to do no more than decode, are touched: Zarr v2 has
arrays of Python objects, whose codec ``pickle`` runs what the tree's writer wants.

ZarrMD 0.2.0 is H5MD 1.1 as a Zarr tree in which every array names its own unit.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from mdio.core.errors import SourceError
from mdio.core.files.remote.paths import RemotePath
from mdio.core.frames import ELEMENTS
from mdio.layouts.base import AtomIndices
from mdio.layouts.codecs.compressors import QUANTISED_NAME
from mdio.layouts.foreign.tree import ForeignTrajectory, as_source_error
from mdio.layouts.zarr.blosc import BloscChecked

CACHE_NBYTES = 256 << 20
"""Decoded chunks of one run of frames are kept for the next read if they are no more than this."""
CODECS = {
    *(
        "adler32",
        "bitround",
        "blosc",
        "bytes",
        "bz2",
        "crc32",
        "crc32c",
        "delta",
        "fixedscaleoffset",
    ),
    *("fletcher32", "gzip", "jenkins_lookup3", "lz4", "lzma", "quantize", "sharding_indexed"),
    *("shuffle", "transpose", "zlib", "zstd", QUANTISED_NAME),
}
"""In Zarr v3 those of numcodecs are called ``numcodecs.NAME``."""
ELEMENT_NAMES = (*ELEMENTS.values(), "id", "box", "edges", "value", "time", "step")


class ForeignTree(ForeignTrajectory):
    """A Zarr tree of another writer; see `ForeignTrajectory`.

    `path`: root of the tree. `group`: particle group; by default ``trajectory``, or else the first.
    `convert_units`: whether numbers have units and are converted.
    """

    def __init__(
        self, path: Path, group: str | None, *, convert_units: bool, length_unit: str | None = None
    ) -> None:
        self._kept: dict[str, tuple[int, NDArray[Any]]] = {}
        with as_source_error(path, "cannot be read as a Zarr tree"):
            found = zarr.open_group(str(path), mode="r")
            store = BloscChecked(found.store, path)
            root: Any = zarr.open_group(store, path=found.path, mode="r")
            particles = root.get("particles")
            names = sorted(particles.group_keys()) if isinstance(particles, zarr.Group) else []
            names.sort(key=lambda name: name != "trajectory")
            for name in names:
                _check_arrays(path, particles[name], store)
            super().__init__(
                path, root, names, group, convert_units=convert_units, length_unit=length_unit
            )

    def _compression(self, array: Any) -> str | None:
        """Return the names of the compressors (crc32c is none)."""
        names = []
        for codec in array.compressors:
            name = getattr(codec, "codec_id", None) or type(codec).__name__.removesuffix("Codec")
            names.append(name.lower())
        return "+".join(name for name in names if name != "crc32c") or None

    def _read_field(
        self, field: str, start: int, stop: int, atoms: AtomIndices | None, out: NDArray[np.float32]
    ) -> None:
        size = self._values[field].chunks[0]
        for number in range(start // size, (stop - 1) // size + 1):
            first, last = max(start, number * size), min(stop, (number + 1) * size)
            rows = self._rows(field, number, first, last)
            out[first - start : last - start] = rows if atoms is None else rows[:, atoms]

    def _rows(self, field: str, number: int, first: int, last: int) -> NDArray[Any]:
        """Read frames of one row of chunks, which is kept when it is read in parts."""
        array = self._values[field]
        begin = number * array.chunks[0]
        end = min(begin + array.chunks[0], array.shape[0])
        kept = self._kept.get(field)
        if kept is None or kept[0] != number:
            nbytes = (end - begin) * self.n_atoms * 3 * array.dtype.itemsize
            if (first, last) == (begin, end) or nbytes > CACHE_NBYTES:
                return np.asarray(array[first:last])
            kept = self._kept[field] = number, np.asarray(array[begin:end])
        return kept[1][first - begin : last - begin]

    def close(self) -> None:
        """Forget what is kept."""
        self._values, self._kept = {}, {}


def _check_arrays(path: Path, group: Any, store: BloscChecked) -> None:
    """Refuse arrays below `group` that are read and whose numbers could be something else.

    Blosc chunks of the others are watched from then on.

    So are folders that have lost what says what they are, which zarr takes for nothing at all.
    """
    for name in ELEMENT_NAMES:
        node = group.get(name)
        folder = path / group.path / name
        if node is None and not isinstance(path, RemotePath) and folder.is_dir():
            raise SourceError(
                f"{path}: {group.path}/{name} is a folder without metadata of Zarr (zarr.json, "
                ".zgroup or .zarray), so it is damaged; copy the tree again"
            )
        if isinstance(node, zarr.Group):
            _check_arrays(path, node, store)
        elif node is not None:
            unknown = set(_codec_names(node.metadata.to_dict())) - CODECS
            if node.dtype.kind not in "biuf" or unknown:
                what = f"the codec {min(unknown)}" if unknown else f"values of type {node.dtype}"
                raise SourceError(
                    f"{path}: {node.name} has {what}, expected plain numbers with usual "
                    "compression; it is not read, since decoding it might run code"
                )
            store.watch(node)


def _codec_names(node: Any) -> Iterator[str]:
    """Return the names of all codecs in the metadata of an array, nested ones too."""
    for key in ("filters", "compressor", "codecs", "index_codecs"):
        codecs = node.get(key) or ()
        for codec in (codecs,) if isinstance(codecs, dict) else codecs:
            options = codec if isinstance(codec, dict) else codec.get_config()
            yield str(options.get("id", options.get("name"))).removeprefix("numcodecs.")
            yield from _codec_names(options.get("configuration") or {})
