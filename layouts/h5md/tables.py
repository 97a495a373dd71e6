"""The tables of an H5MD file that tell where chunks lie, and their checksums."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from mdio.core.frames import ELEMENTS
from mdio.core.kernels import crc32c
from mdio.layouts.h5md.file import chunk_table, create_column, run_table, value_path
from mdio.layouts.h5md.io import ARRAYS, PIECES, RUN_FRAMES
from mdio.layouts.plan import ArrayPlan

Key = tuple[str, str]
"""Group and field of an array."""
ChunkPlaces = tuple[NDArray[np.int64], NDArray[np.int64]]


def write_tables(
    file: h5py.File,
    arrays: Mapping[Key, ArrayPlan],
    crcs: Mapping[Key, NDArray[Any]],
    pieces: Mapping[Key, NDArray[Any]],
) -> tuple[dict[str, int], list[ChunkPlaces]]:
    """Write what is known of the chunks of a file.

    `crcs`: of the chunks of each array. `pieces`: checksums of pieces of its frames; of arrays that
    are not compressed.

    Returns the crc32c of each table by name, and the `chunk_table` of each array.
    """
    known, places = {}, []
    for (group, field), array in arrays.items():
        plain = (group, field) in pieces
        parent = file.create_group(f"{ARRAYS}/{group}/{ELEMENTS[field]}")
        tables: dict[str, NDArray[Any]] = {"crc32c": crcs[group, field]}
        if plain:
            tables[PIECES] = pieces[group, field]
        for name, table in tables.items():
            known[f"{group}/{ELEMENTS[field]}/{name}"] = crc32c(table)
        dataset = file[value_path(group, field)]
        if array.contiguous:
            parent.attrs[RUN_FRAMES] = array.chunk_frames
            places.append(run_table(dataset, array.chunk_frames))
        else:
            tables["offset"], nbytes = chunk_table(dataset)
            places.append((tables["offset"], nbytes))
            if not plain:
                tables["nbytes"] = nbytes
        for name, table in tables.items():
            create_column(parent, name, table.shape, table.dtype.str)
            parent[name][...] = table
    return known, places
