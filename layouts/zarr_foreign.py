"""Reads Zarr trees of other writers through zarr: H5MD trees (v3) and ZarrMD (v2, zarrtraj).

ZarrMD 0.2.0 is H5MD 1.1 as a Zarr tree in which every array names its own unit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from mdio.layouts.base import AtomIndices
from mdio.layouts.foreign import ForeignTrajectory, as_source_error

__all__ = ["ForeignTree"]

CACHE_NBYTES = 256 << 20
"""Decoded chunks of one run of frames are kept for the next read if they are no more than this."""


class ForeignTree(ForeignTrajectory):
    """A Zarr tree of another writer; see `ForeignTrajectory`.

    Parameters
    ----------
    path
        Root of the tree.
    group
        Particle group; by default ``trajectory``, or else the first.
    convert_units
        Whether numbers have units and are converted.
    """

    def __init__(self, path: Path, group: str | None, *, convert_units: bool) -> None:
        self._kept: dict[str, tuple[int, NDArray[Any]]] = {}
        with as_source_error(path, "cannot be read as a Zarr tree"):
            root: Any = zarr.open_group(str(path), mode="r")
            particles = root.get("particles")
            names = sorted(particles.group_keys()) if isinstance(particles, zarr.Group) else []
            names.sort(key=lambda name: name != "trajectory")
            super().__init__(path, particles, names, group, convert_units)

    def _edge_factor(self, edges: Any) -> float:
        own = edges.attrs.get("unit") is not None
        return self._factor("positions", edges) if own else super()._edge_factor(edges)

    def _compression(self, array: Any) -> str | None:
        """Return the names of the compressors (crc32c is none)."""
        names = []
        for codec in array.compressors:
            name = getattr(codec, "codec_id", None) or type(codec).__name__.removesuffix("Codec")
            names.append(name.lower())
        return "+".join(name for name in names if name != "crc32c") or None

    def _read_field(
        self,
        field: str,
        start: int,
        stop: int,
        atoms: AtomIndices | None,
        out: NDArray[np.float32],
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
        end = min(begin + array.chunks[0], self.n_frames)
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
