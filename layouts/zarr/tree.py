"""What a Zarr tree of mdio consists of, as it follows from the plan: an H5MD 1.1 tree.

H5MD: https://www.nongnu.org/h5md/h5md.html; Zarr has no links, so that the steps, times and cells
that H5MD's elements share are copies. What H5MD has no place for lies under ``/mdio``:
``/mdio/box`` (cells as six numbers), ``/mdio/step`` (the source's own steps) and
the tables of checksums of `mdio.layouts.zarr.checksums`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from mdio._version import __version__
from mdio.core.errors import PlanError
from mdio.core.files.piece_sums import pieces_of_row
from mdio.core.frames import ELEMENTS
from mdio.layouts.codecs.compressors import compressor_from_option, quantised_from_option
from mdio.layouts.codecs.quantised import WITHOUT_LEVEL
from mdio.layouts.zarr.metadata import MAX_CHUNK_NBYTES, ArrayMetadata, group_metadata

if TYPE_CHECKING:
    from mdio.layouts.plan import ArrayPlan, LayoutPlan

FIELD_UNITS = {
    "positions": "Angstrom",
    "velocities": "Angstrom ps-1",
    "forces": "kJ mol-1 Angstrom-1",
}
TOPOLOGY = "mdio/topology"
SERIES_FRAMES = 65536
"""Frames in a file of per-frame numbers."""

TableName = Literal["crc32c", "crc32c_stored", "crc32c_pieces"]
SeriesName = Literal["box", "edges", "step", "source_step", "time"]


@dataclass(frozen=True, slots=True)
class Series:
    """A kind of per-frame numbers."""

    dtype: str
    tail: tuple[int, ...]
    """Shape of one frame's numbers."""
    unit: str | None = None


SERIES: dict[SeriesName, Series] = {
    "time": Series("float64", (), "ps"),
    "step": Series("int64", ()),
    "source_step": Series("int64", ()),
    "box": Series("float32", (6,)),
    "edges": Series("float32", (3, 3), "Angstrom"),
}
"""`step` is that of H5MD, which increases; `source_step` is the source's."""


def _groups(plan: LayoutPlan) -> list[str]:
    return list(dict.fromkeys(array.group for array in plan.arrays))


def _elements(plan: LayoutPlan) -> list[str]:
    """Return the folders that hold value, step and time."""
    elements = [f"particles/{a.group}/{ELEMENTS[a.field]}" for a in plan.arrays]
    return elements + [f"particles/{group}/box/edges" for group in _groups(plan)]


def _atom_metadata(plan: LayoutPlan, array: ArrayPlan) -> ArrayMetadata:
    chunk = (array.chunk_frames, array.chunk_atoms, 3)
    file_atoms = array.n_atom_chunks * array.chunk_atoms
    quantised = compressor = None
    step = plan.step_of(array.field)
    if step is not None and array.field == "positions":
        quantised = quantised_from_option(step, plan.precision_source, plan.compression)
    elif step is not None:  # as positions, unless the compressor is that of floats
        option = None if plan.precision is None else plan.compression
        quantised = quantised_from_option(step, "asked", option)
    elif plan.precision is None or plan.compression not in WITHOUT_LEVEL:  # those take integers
        compressor = compressor_from_option(plan.compression)
    if (quantised or compressor) and array.chunk_nbytes >= MAX_CHUNK_NBYTES:
        raise PlanError(
            f"chunks of {array.chunk_frames} frames of {array.chunk_atoms} atoms have "
            f"{array.chunk_nbytes} bytes, too many to compress; give a smaller --chunk-frames"
        )
    return ArrayMetadata(
        shape=(plan.n_frames, array.n_atoms, 3),
        dtype="float32",
        file_shape=(plan.piece_frames, file_atoms, 3),
        chunk_shape=chunk,
        sharded=True,
        compressor=compressor,
        quantised=quantised,
    )


def atom_path(array: ArrayPlan) -> str:
    """Return the folder of a per-atom array."""
    return f"particles/{array.group}/{ELEMENTS[array.field]}/value"


def atom_arrays(plan: LayoutPlan) -> dict[str, tuple[ArrayPlan, ArrayMetadata]]:
    """Return the per-atom arrays by folder; raises PlanError for a compressor that is not there."""
    return {atom_path(array): (array, _atom_metadata(plan, array)) for array in plan.arrays}


def series_arrays(plan: LayoutPlan) -> dict[str, SeriesName]:
    """Return what per-frame numbers each of their folders holds."""
    found: dict[str, SeriesName] = {"mdio/box": "box", "mdio/step": "source_step"}
    for element in _elements(plan):
        found |= {f"{element}/step": "step", f"{element}/time": "time"}
    found |= {f"particles/{group}/box/edges/value": "edges" for group in _groups(plan)}
    return found


def series_metadata(n_frames: int, name: SeriesName) -> ArrayMetadata:
    """Return how per-frame numbers lie on disk."""
    series = SERIES[name]
    chunk = (min(SERIES_FRAMES, n_frames), *series.tail)
    return ArrayMetadata((n_frames, *series.tail), series.dtype, chunk, chunk)


def series_node(n_frames: int, name: SeriesName) -> dict[str, Any]:
    """Return the ``zarr.json`` of per-frame numbers."""
    unit, tail = SERIES[name].unit, SERIES[name].tail
    dimensions = ("frame", "vector", "axis")[: 1 + len(tail)] if tail != (6,) else ("frame", "cell")
    return series_metadata(n_frames, name).to_json({"unit": unit} if unit else {}, dimensions)


def topology_metadata(nbytes: int) -> ArrayMetadata:
    """Return how the topology lies on disk: as bytes (`mdio.core.topology`)."""
    return ArrayMetadata((nbytes,), "uint8", (nbytes,), (nbytes,))


def table_path(table: TableName, group: str, field: str) -> str:
    """Return the folder of a table of checksums; see `mdio.layouts.zarr.checksums`."""
    return f"mdio/{table}/{group}/{field}"


def pieces_metadata(n_frames: int, n_pieces: int) -> ArrayMetadata:
    """Return how checksums of the pieces of frames lie on disk."""
    rows = min(n_frames, max(1, SERIES_FRAMES // n_pieces))
    return ArrayMetadata((n_frames, n_pieces), "uint32", (rows, n_pieces), (rows, n_pieces))


def table_arrays(plan: LayoutPlan) -> dict[str, ArrayMetadata]:
    """Return the tables of checksums by folder."""
    found = {}
    for array, metadata in atom_arrays(plan).values():
        grid = (math.ceil(plan.n_frames / array.chunk_frames), array.n_atom_chunks)
        of_chunks = ArrayMetadata(grid, "uint32", grid, grid)
        found[table_path("crc32c", array.group, array.field)] = of_chunks
        if metadata.plain:
            n_pieces = array.n_atom_chunks * pieces_of_row(12 * array.chunk_atoms)
            path = table_path("crc32c_pieces", array.group, array.field)
            found[path] = pieces_metadata(plan.n_frames, n_pieces)
        else:
            found[table_path("crc32c_stored", array.group, array.field)] = of_chunks
    return found


def group_nodes(
    plan: LayoutPlan, periodic: Sequence[bool] = (False, False, False)
) -> dict[str, dict[str, Any]]:
    """Return the ``zarr.json`` of every group but the root, by folder.

    `periodic`: along which axes cells are.
    """
    boundary = ["periodic" if one else "none" for one in periodic]
    attributes: dict[str, dict[str, Any]] = {
        "h5md": {"version": [1, 1]},
        "h5md/author": {"name": "N/A"},
        "h5md/creator": {"name": "mdio", "version": __version__},
        "particles": {},
        "mdio": {},
    }
    for group in _groups(plan):
        attributes[f"particles/{group}"] = {}
        attributes[f"particles/{group}/box"] = {"dimension": 3, "boundary": boundary}
    for table in table_arrays(plan):
        group = table.rpartition("/")[0]
        attributes |= {group.rpartition("/")[0]: {}, group: {}}
    attributes |= {element: {} for element in _elements(plan)}
    return {path: group_metadata(values) for path, values in attributes.items()}


def array_nodes(plan: LayoutPlan) -> dict[str, dict[str, Any]]:
    """Return the ``zarr.json`` of every array, by folder."""
    nodes = {
        path: metadata.to_json({"unit": FIELD_UNITS[array.field]}, ("frame", "atom", "axis"))
        for path, (array, metadata) in atom_arrays(plan).items()
    }
    for path, name in series_arrays(plan).items():
        nodes[path] = series_node(plan.n_frames, name)
    if plan.topology_nbytes:
        nodes[TOPOLOGY] = topology_metadata(plan.topology_nbytes).to_json({})
    return nodes | {path: metadata.to_json({}) for path, metadata in table_arrays(plan).items()}


def count_files(plan: LayoutPlan) -> int:
    """Return how many files the tree has."""
    n_nodes = 1 + len(group_nodes(plan)) + len(array_nodes(plan))
    n_shards = len(plan.arrays) * len(plan.write_tasks())
    n_series = len(series_arrays(plan)) * math.ceil(plan.n_frames / SERIES_FRAMES)
    n_tables = sum(metadata.n_files for metadata in table_arrays(plan).values())
    return n_nodes + n_shards + n_series + n_tables + bool(plan.topology_nbytes)
