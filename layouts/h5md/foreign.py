"""Reads H5MD files of other writers: chunks by their offsets in the file, the rest with h5py."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import SourceError
from mdio.core.frames import H5MD_NAMES, AtomIndices
from mdio.core.topology import Topology
from mdio.layouts.foreign.hdf5 import Datasets, check_heaps, has_plausible_size
from mdio.layouts.foreign.tree import ElementFrames, ForeignTrajectory, as_source_error, child
from mdio.layouts.h5md.gromacs_topology import read_foreign_topology
from mdio.layouts.h5md.io import duplicate_descriptor

MAX_DEPTH = 4
"""How deeply virtual datasets of virtual datasets are followed."""


def require_inside(path: Path, node: Any, folder: Path | None = None, depth: int = 0) -> None:
    """Raise SourceError unless all bytes of an object are in the folder of the opened file."""
    is_dataset = isinstance(node, h5py.Dataset)
    if node.file.filename == str(path) and not (is_dataset and (node.is_virtual or node.external)):
        return
    folder = folder or path.resolve().parent
    own_path = Path(node.file.filename).resolve()
    storage_paths = {str(own_path): own_path}
    sources = []
    if is_dataset:
        # HDF5 looks for external storage in the working folder, and, last, for virtual sources too.
        storage_paths |= {name: Path(name).resolve() for name, *_ in node.external or ()}
        sources = list(node.virtual_sources()) if node.is_virtual else []
        for source in sources:
            name = source.file_name.replace("%%", "%")
            storage_paths[name] = own_path if name == "." else (own_path.parent / name).resolve()
    for name, storage_path in storage_paths.items():
        if folder not in storage_path.parents or not storage_path.is_file() or depth > MAX_DEPTH:
            raise SourceError(
                f"{path}: {node.name} is stored in {name}, not in a file in the folder of this "
                "one, so it is not read; copy both into one folder and use a relative name"
            )
    if own_path != path.resolve():
        check_heaps(own_path)
    for source in sources:
        storage_path = storage_paths[source.file_name.replace("%%", "%")]
        with h5py.File(storage_path, "r", locking="best-effort") as file:
            require_inside(path, file[source.dset_name], folder, depth + 1)


CACHE_NBYTES = (8 << 20, 256 << 20)
"""Smallest and largest chunk cache of HDF5, which should hold two rows of chunks over all atoms."""


class ForeignFile(ForeignTrajectory):
    """An H5MD file of another writer; by default its first group is read, as by MDAnalysis."""

    def __init__(self, path: Path, file: h5py.File, options: Mapping[str, Any]) -> None:
        self._file = file
        self._datasets = Datasets(path, lambda: duplicate_descriptor(file))
        check_heaps(path)
        particles = child(file, "particles")
        names = list(particles) if isinstance(particles, h5py.Group) else []
        if particles is not None:
            require_inside(path, particles)
        super().__init__(path, file, names, options)
        parents = [self._group, *(self._group[H5MD_NAMES[field]] for field in self._values)]
        edges = None if self._cells is None else self._cells.edges
        for node in (*parents, child(self._group, "box/edges"), edges, self._ids):
            if node is not None:
                require_inside(path, node)

    def _element_frames(self, field: str, positions: ElementFrames | None = None) -> ElementFrames:
        parent = self._group["box/edges" if field == "box" else H5MD_NAMES[field]]
        for name in ("time", "step"):
            if name in parent:
                require_inside(self.path, parent[name])
        return super()._element_frames(field, positions)

    def _value(self, element: str) -> h5py.Dataset:
        """Open the values of an element with a chunk cache for all chunks of a frame."""
        dataset: h5py.Dataset = super()._value(element)
        require_inside(self.path, dataset)
        if not (dataset.is_virtual or dataset.external or has_plausible_size(dataset)):
            raise SourceError(
                f"{self.path}: {dataset.name} claims {dataset.shape[0]} frames of "
                f"{dataset.shape[1]} atoms, but {dataset.id.get_storage_size()} bytes are stored"
            )
        if dataset.chunks is None:
            return dataset
        row_nbytes = int(np.prod(dataset.chunks)) * dataset.dtype.itemsize
        row_nbytes *= -(-dataset.shape[1] // dataset.chunks[1]) * -(-3 // dataset.chunks[2])
        access = dataset.id.get_access_plist()
        min_nbytes, max_nbytes = CACHE_NBYTES
        access.set_chunk_cache(100_003, min(max(2 * row_nbytes, min_nbytes), max_nbytes), 1.0)
        return h5py.Dataset(h5py.h5d.open(self._group[element].id, b"value", access))

    def _compression(self, array: h5py.Dataset) -> str | None:
        name: str | None = array.compression
        options = array.compression_opts
        return name if name is None or options is None else f"{name}:{options}"

    def _read_field(
        self, field: str, start: int, stop: int, atoms: AtomIndices | None, out: NDArray[np.float32]
    ) -> None:
        self._datasets.read(field, self._values[field], start, stop, atoms, out)

    def topology(self) -> Topology | None:
        with as_source_error(self.path, "its topology cannot be read"):
            return read_foreign_topology(self._file, self._group, self.n_atoms)

    def close(self) -> None:
        self._datasets.close()
        self._file.close()
