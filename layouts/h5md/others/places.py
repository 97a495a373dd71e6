"""Where HDF5 has put the chunks of an array of others, so that they are read without it."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np

from mdio.core.files.reading import OpenFile
from mdio.layouts.h5md.chunks import PlacedChunks

__all__ = ["placed_chunks"]

LARGEST_NBYTES = 64 << 20
"""Chunks are held in memory; HDF5 reads larger ones in parts."""
NOWHERE = -1


def placed_chunks(dataset: h5py.Dataset, file: OpenFile) -> PlacedChunks | None:
    """Return an array of coordinates whose chunks lie in `file` as they are in memory.

    What is refused here is for HDF5 to read: compressed chunks, other numbers than float32, chunks
    that were never written (HDF5 fills them) or that are cut along x, y, z.
    """
    n_frames, n_atoms, _ = dataset.shape
    frames, atoms = (1, n_atoms) if dataset.chunks is None else dataset.chunks[:2]
    nbytes = 12 * frames * atoms
    kept = dataset.id.get_create_plist()
    if (
        dataset.dtype != np.dtype("<f4")
        or dataset.is_virtual
        or Path(dataset.file.filename) != file.path  # a link to another file
        or kept.get_nfilters()
        or nbytes > LARGEST_NBYTES
        or (dataset.chunks is not None and dataset.chunks[2] != 3)
        or (dataset.chunks is not None and not hasattr(dataset.id, "chunk_iter"))
    ):
        return None
    offset = np.full((-(-n_frames // frames), -(-n_atoms // atoms)), NOWHERE, np.int64)
    if dataset.chunks is not None:

        def place(found: h5py.h5d.StoreInfo) -> None:
            i, j = found.chunk_offset[0] // frames, found.chunk_offset[1] // atoms
            if found.size == nbytes and i < offset.shape[0] and j < offset.shape[1]:
                offset[i, j] = found.byte_offset

        dataset.id.chunk_iter(place)
    elif not dataset.external and dataset.id.get_offset() is not None:
        offset[:, 0] = dataset.id.get_offset() + nbytes * np.arange(n_frames)
    if (offset < 0).any():
        return None
    return PlacedChunks(
        f"{file.path}: {dataset.name}",
        dataset.shape,
        (frames, atoms),
        file,
        offset,
        np.full(offset.shape, nbytes, np.int64),
        np.empty((0, 0), np.uint32),
        deflated=False,
        pieces=None,
        verify=False,
    )
