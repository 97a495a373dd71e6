"""Reads H5MD files of other writers, through h5py."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import SourceError
from mdio.layouts.base import AtomIndices
from mdio.layouts.foreign.tree import ForeignTrajectory
from mdio.layouts.h5md.inside import require_inside

__all__ = ["ForeignFile"]

CACHE_NBYTES = (8 << 20, 256 << 20)
"""Least and most of HDF5's chunk cache: two rows of chunks over all atoms where it has room."""

SLAB_NBYTES = 64 << 20
"""Frames are read this much at a time where they cannot be read into the output."""

FILLED_RATIO = 100_000
"""No compressor makes a trajectory so much smaller: a dataset of more bytes was never written."""


class ForeignFile(ForeignTrajectory):
    """An H5MD file of another writer; see `ForeignTrajectory`.

    Parameters
    ----------
    path, file
        The file, opened by h5py; it is closed by `close`.
    group
        Particle group; the first by default, as MDAnalysis has it.
    convert_units
        Whether numbers have units and are converted.
    """

    def __init__(
        self, path: Path, file: h5py.File, group: str | None, *, convert_units: bool
    ) -> None:
        self._file = file
        particles = file.get("particles")
        names = list(particles) if isinstance(particles, h5py.Group) else []
        if particles is not None:
            require_inside(path, particles)
        super().__init__(path, particles, names, group, convert_units)
        position = self._group["position"]
        for node in (self._group, position, position.get("time"), position.get("step")):
            if node is not None:
                require_inside(path, node)
        if self._edges is not None:
            require_inside(path, self._edges)

    def _value(self, element: str) -> h5py.Dataset:
        """Open the values of an element with a chunk cache that holds what a frame touches."""
        dataset: h5py.Dataset = super()._value(element)
        require_inside(self.path, dataset)
        nbytes = dataset.size * dataset.dtype.itemsize
        elsewhere = dataset.is_virtual or dataset.external
        if not elsewhere and nbytes > FILLED_RATIO * max(dataset.id.get_storage_size(), 1):
            raise SourceError(
                f"{self.path}: {dataset.name} claims {dataset.shape[0]} frames of "
                f"{dataset.shape[1]} atoms, but {dataset.id.get_storage_size()} bytes are stored"
            )
        if dataset.chunks is None:
            return dataset
        row = int(np.prod(dataset.chunks)) * dataset.dtype.itemsize
        row *= -(-dataset.shape[1] // dataset.chunks[1]) * -(-3 // dataset.chunks[2])
        access = dataset.id.get_access_plist()
        least, most = CACHE_NBYTES
        access.set_chunk_cache(100_003, min(max(2 * row, least), most), 1.0)
        return h5py.Dataset(h5py.h5d.open(self._group[element].id, b"value", access))

    def _compression(self, array: h5py.Dataset) -> str | None:
        name: str | None = array.compression
        options = array.compression_opts
        return name if name is None or options is None else f"{name}:{options}"

    def _read_field(
        self,
        field: str,
        start: int,
        stop: int,
        atoms: AtomIndices | None,
        out: NDArray[np.float32],
    ) -> None:
        dataset = self._values[field]
        if atoms is None and out.flags.c_contiguous:
            dataset.read_direct(out, np.s_[start:stop])
            return
        picked = np.arange(self.n_atoms) if atoms is None else atoms
        first, last = int(picked.min()), int(picked.max()) + 1
        n_rows = max(1, SLAB_NBYTES // (12 * (last - first)))
        if dataset.chunks is not None and n_rows > dataset.chunks[0]:
            n_rows -= n_rows % dataset.chunks[0]
        for at in range(start, stop, n_rows):
            end = min(at + n_rows, stop)
            rows = np.empty((end - at, last - first, 3), np.float32)
            dataset.read_direct(rows, np.s_[at:end, first:last])
            out[at - start : end - start] = rows[:, picked - first]

    def close(self) -> None:
        """Close the file."""
        self._file.close()
