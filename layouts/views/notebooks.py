"""Layouts in notebooks: as datasets of xarray, read chunk by chunk, and as tables of properties."""

from __future__ import annotations

import math
import pickle
from importlib import import_module
from itertools import pairwise
from threading import Lock, local
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.blocks import cut_runs
from mdio.core.errors import MissingExtraError
from mdio.core.frames import FIELDS, AtomIndices, FrameBlock
from mdio.core.pages import html_table
from mdio.core.units import FIELD_UNITS
from mdio.core.words import box_text, human_nbytes
from mdio.layouts.base import Layout, warn_of_lost_frames
from mdio.layouts.views.view import read_columns

if TYPE_CHECKING:
    from xarray import Dataset

CHUNK_NBYTES = 16 << 20
"""Decoded bytes of a field in a chunk, about; more if the layout's own chunks are larger."""


class LayoutPerThread:
    """Copies of a layout, one for each thread, since only one thread at a time can read a layout.

    `layout`: the original, which is not read. Pickles as the original.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._lock = Lock()
        self._copies = local()

    def get(self) -> Layout:
        if not hasattr(self._copies, "layout"):
            with self._lock:
                self._copies.layout = pickle.loads(pickle.dumps(self.layout.with_metadata()))
        layout: Layout = self._copies.layout
        return layout

    def __reduce__(self) -> tuple[Any, ...]:
        return LayoutPerThread, (self.layout,)


class FieldArray:
    """One field of all frames as an array of which slices are read; pickles as its layout.

    `layouts`: copies of the layout. `name`: ``positions``, ``velocities``, ``forces`` or ``box``.
    `atoms`: their indices; all atoms by default.
    """

    def __init__(
        self, layouts: LayoutPerThread, name: str, atoms: AtomIndices | None = None
    ) -> None:
        self.layouts, self.name, self.atoms = layouts, name, atoms
        info = layouts.layout.info
        n_atoms = info.n_atoms if atoms is None else len(atoms)
        self.shape = (info.n_frames, *((6,) if name == "box" else (n_atoms, 3)))
        self.dtype = np.dtype(np.float32)
        self.ndim = len(self.shape)

    def __getitem__(self, key: Any) -> NDArray[Any]:
        """Return a part, by integers, arrays and slices; no other atoms are read."""
        keys = key if isinstance(key, tuple) else (key,)
        indices = [np.arange(n)[index] for n, index in zip(self.shape, keys, strict=False)]
        indices += [np.arange(n) for n in self.shape[len(indices) :]]
        frames, *other_axes = map(np.atleast_1d, indices)
        atoms = np.empty(0, np.int64)
        if self.name in FIELDS:
            atoms, other_axes = other_axes[0], [np.arange(other_axes[0].size), *other_axes[1:]]
            atoms = atoms if self.atoms is None else self.atoms[atoms]
        first = int(frames.min(initial=self.shape[0]))
        stop = int(frames.max(initial=first - 1)) + 1
        fields = {name: name == self.name for name in FIELDS[1:]}
        block = FrameBlock.empty(stop - first, len(atoms), **fields)
        self.layouts.get().read(first, stop, atoms=atoms, out=block)
        values: NDArray[Any] = getattr(block, self.name)[np.ix_(frames - first, *other_axes)]
        return values[tuple(0 if index.ndim == 0 else slice(None) for index in indices)]

    def chunks(self) -> tuple[tuple[int, ...], ...]:
        """Return the lengths of chunks, axis by axis: each is one or more chunks of the layout.

        Chunks that are long in time, such as those for time series, have fewer atoms.
        """
        layout = self.layouts.layout
        chunk_frames, chunk_atoms = layout.info.chunk_frames or 1, layout.info.chunk_atoms or 0
        row_nbytes = max(1, self.dtype.itemsize * math.prod(self.shape[1:]))
        runs = cut_runs(
            layout.boundaries(), self.shape[0], chunk_frames, CHUNK_NBYTES // row_nbytes
        )
        frames_per_chunk = tuple(map(len, runs))
        widths = [(n,) for n in self.shape[1:]]
        longest = max(frames_per_chunk, default=0)
        if self.atoms is None and self.ndim == 3 and 0 < chunk_atoms < self.shape[1]:
            width = chunk_atoms * max(1, CHUNK_NBYTES // (12 * max(1, longest) * chunk_atoms))
            edges = [*range(0, self.shape[1], width), self.shape[1]]
            widths[0] = tuple(b - a for a, b in pairwise(edges))
        return frames_per_chunk, *widths

    def to_dask(self) -> Any:
        from_array: Any = import_extra("dask.array").from_array
        meta = np.empty((0,) * self.ndim, self.dtype)
        return from_array(self, self.chunks(), name=False, asarray=False, meta=meta)


def import_extra(module: str) -> Any:
    """Return xarray, or dask's module of arrays; raises MissingExtraError."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"{error.name} is not installed, and this needs xarray and dask: "
            "pip install 'mdio-layouts[xarray]'"
        ) from error


def as_dataset(layout: Layout) -> Dataset:
    """Return the trajectory as a dataset of xarray."""
    xr = import_extra("xarray")
    layouts = LayoutPerThread(layout)
    info = layout.info
    warn_of_lost_frames(info, stacklevel=3)
    names = set(info.fields)
    columns = read_columns(layout)
    has_box = bool(columns.box.any())  # the first frame may not have one
    variables: dict[str, Any] = {}
    for name in (*FIELDS, "box"):
        if name in names or (name == "box" and has_box):
            dims = ("frame", "edge") if name == "box" else ("frame", "atom", "axis")
            units = {"units": FIELD_UNITS[name]} if name in FIELD_UNITS else {}
            variables[name] = (dims, FieldArray(layouts, name).to_dask(), units)
    for name, data in layout.frame_data().items():
        variables.setdefault(name, (("frame", f"{name}_column")[: data.ndim], data, {}))
    coordinates: dict[str, Any] = {
        "time": ("frame", columns.time, {"units": "ps"}),
        "axis": ["x", "y", "z"],
    }
    if has_box:
        coordinates["edge"] = ["a", "b", "c", "alpha", "beta", "gamma"]
    topology = layout.topology()
    for column in ("names", "resids", "resnames", "segids") if topology is not None else ():
        values = None if topology is None else topology.per_atom(column)
        if values is not None:
            if isinstance(values, np.ndarray):
                column_values = values.astype(np.int64)
            else:
                column_values = values.values().astype(str)
            coordinates[column.removesuffix("s")] = ("atom", column_values)
    dataset: Dataset = xr.Dataset(variables, coordinates, {"source": str(layout.path)})
    return dataset


def as_html(layout: Layout) -> str:
    """Return a table of properties of the trajectory, with the notes on it."""
    info = layout.info
    fields = [*info.fields[1:], *["box"] * info.has_box]
    boxes = layout.read(0, 1, atoms=np.empty(0, np.int64)).box if info.n_frames else None
    rows = {
        "layout": info.layout,
        "frames": f"{info.n_frames:,}",
        "atoms": f"{info.n_atoms:,}",
        "time": info.times,
        "has": ", ".join(["positions", *fields]),
        "box": "" if boxes is None or not boxes.any() else box_text(boxes[0].tolist()),
        "groups": ", ".join(info.groups),
        "size": human_nbytes(info.nbytes),
    }
    filled_rows = [row for row in rows.items() if row[1]]
    return html_table(str(layout.path), [*filled_rows, *(("note", note) for note in layout.notes)])
