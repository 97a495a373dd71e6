"""Layouts in notebooks: as datasets of xarray, read chunk by chunk, and as tables of facts."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import MissingExtraError
from mdio.core.frames import FIELDS, FrameBlock
from mdio.core.pages import html_table
from mdio.core.units import FIELD_UNITS
from mdio.core.words import box_text, human_nbytes
from mdio.layouts.base import Layout
from mdio.layouts.views.view import times_of

if TYPE_CHECKING:
    from xarray import Dataset

CHUNK_NBYTES = 16 << 20
"""Decoded bytes of the positions in a chunk, at least, if there are as many."""


class FieldArray:
    """One field of all frames as an array that is read where it is sliced; pickles as its layout.

    `layout`: which has it. `name`: ``positions``, ``velocities``, ``forces`` or ``box``.
    """

    def __init__(self, layout: Layout, name: str) -> None:
        self.layout, self.name = layout, name
        info = layout.info
        self.shape = (info.n_frames, *((6,) if name == "box" else (info.n_atoms, 3)))
        self.dtype = np.dtype(np.float32)
        self.ndim = len(self.shape)

    def __getitem__(self, key: Any) -> NDArray[Any]:
        """Return a part, of numbers and slices; frames and atoms that are left out are not read."""
        keys = key if isinstance(key, tuple) else (key,)
        picked = [np.arange(n)[one] for n, one in zip(self.shape, keys, strict=False)]
        picked += [np.arange(n) for n in self.shape[len(picked) :]]
        frames, *rest = map(np.atleast_1d, picked)
        atoms = np.empty(0, np.int64)
        if self.name in FIELDS:
            atoms, rest = rest[0], [np.arange(rest[0].size), *rest[1:]]
        first = int(frames.min(initial=self.shape[0]))
        stop = int(frames.max(initial=first - 1)) + 1
        more = {name: name == self.name for name in FIELDS[1:]}
        block = FrameBlock.empty(stop - first, len(atoms), **more)
        self.layout.read(first, stop, atoms=atoms, out=block)
        found: NDArray[Any] = getattr(block, self.name)[np.ix_(frames - first, *rest)]
        return found[tuple(0 if one.ndim == 0 else slice(None) for one in picked)]


def as_dataset(layout: Layout) -> Dataset:
    """Return the trajectory as a dataset of xarray; see `Layout.to_xarray`."""
    try:
        import dask.array as da
        import xarray as xr
    except ImportError as error:
        raise MissingExtraError(
            f"{error.name} is not installed, and to_xarray() needs xarray and dask: "
            "pip install 'mdio-layouts[xarray]'"
        ) from error
    from_array: Any = da.from_array
    info = layout.info
    edges = [0]
    wanted = max(1, CHUNK_NBYTES // max(1, 12 * info.n_atoms))
    for edge in layout.boundaries()[1:].tolist():
        if edge - edges[-1] >= wanted or edge == info.n_frames:
            edges.append(edge)
    chunks = tuple(b - a for a, b in pairwise(edges))
    names = {"positions", *(name for name in FIELDS[1:] if getattr(info, f"has_{name}"))}
    variables: dict[str, Any] = {}
    for name in (*FIELDS, "box"):
        if name in names or (name == "box" and info.has_box):
            array = FieldArray(layout, name)
            shape = (chunks, *array.shape[1:])
            values = from_array(
                array,
                shape,
                name=False,
                asarray=False,
                meta=np.empty((0,) * array.ndim, array.dtype),
            )
            dims = ("frame", "edge") if name == "box" else ("frame", "atom", "axis")
            units = {"units": FIELD_UNITS[name]} if name in FIELD_UNITS else {}
            variables[name] = (dims, values, units)
    for name, data in layout.frame_data().items():
        variables.setdefault(name, (("frame", f"{name}_column")[: data.ndim], data, {}))
    coordinates: dict[str, Any] = {
        "time": ("frame", times_of(layout), {"units": "ps"}),
        "axis": ["x", "y", "z"],
    }
    if info.has_box:
        coordinates["edge"] = ["a", "b", "c", "alpha", "beta", "gamma"]
    topology = layout.topology()
    for column in ("names", "resids", "resnames", "segids") if topology is not None else ():
        found = None if topology is None else topology.per_atom(column)
        if found is not None:
            if isinstance(found, np.ndarray):
                plain = found.astype(np.int64)
            else:
                plain = found.values().astype(str)
            coordinates[column.removesuffix("s")] = ("atom", plain)
    return xr.Dataset(variables, coordinates, {"source": str(layout.path)})


def as_html(layout: Layout) -> str:
    """Return a table of what is in the trajectory."""
    info = layout.info
    has = [name for name in ("velocities", "forces", "box") if getattr(info, f"has_{name}")]
    first = layout.read(0, 1, atoms=np.empty(0, np.int64)).box if info.n_frames else None
    rows = {
        "layout": info.layout,
        "frames": f"{info.n_frames:,}",
        "atoms": f"{info.n_atoms:,}",
        "time": info.times,
        "has": ", ".join(["positions", *has]),
        "box": "" if first is None or not first.any() else box_text(first[0].tolist()),
        "groups": ", ".join(info.groups),
        "size": human_nbytes(info.nbytes),
    }
    return html_table(str(layout.path), [row for row in rows.items() if row[1]])
