"""H5MD files that a former run has left: all but the frames is made anew, the frames stay.

That run may have ended while HDF5 was writing, so that nothing but the chunks can be believed. What
HDF5 makes of a plan is always the same: the chunks have their places before the first is written.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import CorruptLayoutError
from mdio.core.files.copying import copy_bytes
from mdio.core.files.temporaries import TEMPORARY, temporary_for
from mdio.layouts.h5md.file import Places, create_file
from mdio.layouts.h5md.io import pread_checksum
from mdio.layouts.h5md.seal import gaps
from mdio.layouts.output import PieceRecord
from mdio.layouts.plan import ArrayPlan, LayoutPlan

__all__ = ["holds_chunks", "remake"]


def _chunk_nbytes(array: ArrayPlan, row: int, n_frames: int) -> int:
    """Return the bytes of a chunk, or of a run of frames of an array in one piece."""
    if not array.contiguous:
        return array.chunk_nbytes
    return 12 * array.n_atoms * min(array.chunk_frames, n_frames - row * array.chunk_frames)


def remake(path: Path, plan: LayoutPlan, atom_ids: Mapping[str, NDArray[np.int64]]) -> Places:
    """Make everything but the chunks of an unfinished file as it was when it was created.

    Parameters
    ----------
    path
        Temporary path of the file.
    plan, atom_ids
        As for `create_file`; nothing is compressed.
    """
    match = TEMPORARY.fullmatch(path.name)
    name = path.name if match is None else match[1]
    fresh = temporary_for(path.with_name(f"{name}.new"), path)  # it goes where the output goes
    fresh.unlink(missing_ok=True)
    try:
        places = create_file(fresh, plan.replace(direct=False), None, atom_ids)
        chunks = []
        for array in plan.arrays:
            offsets = places.chunks[array.group, array.field]
            sizes = [_chunk_nbytes(array, row, plan.n_frames) for row in range(len(offsets))]
            chunks.append((offsets, np.broadcast_to(np.array(sizes)[:, None], offsets.shape)))
        with fresh.open("rb", buffering=0) as source, path.open("r+b", buffering=0) as file:
            size = os.fstat(source.fileno()).st_size
            file.truncate(size)
            for begin, stop in gaps(chunks, size):
                copy_bytes(source.fileno(), begin, stop - begin, file.fileno(), begin)
    finally:
        fresh.unlink(missing_ok=True)
    return places


def holds_chunks(fd: int, receipt: PieceRecord, plan: LayoutPlan, places: Places) -> bool:
    """Return whether the chunks of a piece are in the file, by their checksums."""
    for key, crcs in receipt.crcs.items():
        group, field, row, column = key.split("/")
        array = plan.array(group, field)
        offset = int(places.chunks[group, field][int(row), int(column)])
        room = np.empty(_chunk_nbytes(array, int(row), plan.n_frames), np.uint8)
        try:
            if pread_checksum(fd, room, offset, group) != crcs[0]:
                return False
        except CorruptLayoutError:
            return False
    return True
