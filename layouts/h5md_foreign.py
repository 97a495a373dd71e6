"""Reads H5MD files of other writers, through h5py, with the numbers of MDAnalysis' H5MDReader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from mdio.core.boxes import boxes_from_vectors
from mdio.core.errors import MdioError, PlanError, SourceError
from mdio.core.frames import ELEMENTS, FIELDS, FrameBlock, TrajectoryInfo
from mdio.layouts.h5md_io import FOREIGN_ERRORS
from mdio.layouts.h5md_units import factor_of

__all__ = ["ForeignFile"]

AtomIndices = NDArray[np.int64]

CACHE_NBYTES = (8 << 20, 256 << 20)
"""Least and most of HDF5's chunk cache: two rows of chunks over all atoms where it has room."""

SLAB_NBYTES = 64 << 20
"""Frames are read this much at a time where they cannot be read into the output."""

FILLED_RATIO = 100_000
"""No compressor makes a trajectory so much smaller: a dataset of more bytes was never written."""


class _Axis:
    """Steps or times of a time-dependent element, in each form that H5MD has.

    A dataset with a number a frame; or a scalar, the increment, with an attribute ``offset`` for
    the first frame; or nothing, which counts frames.
    """

    def __init__(self, dataset: Any, n_frames: int, factor: float) -> None:
        self._factor = factor
        self._dataset = dataset if dataset is not None and dataset.shape else None
        self._start, self._increment = 0.0, 1.0
        if self._dataset is not None and (dataset.ndim != 1 or dataset.shape[0] < n_frames):
            raise ValueError(f"{dataset.name} has shape {dataset.shape} for {n_frames} frames")
        if dataset is not None and not dataset.shape:
            self._start, self._increment = dataset.attrs.get("offset", 0), dataset[()]

    def read(self, start: int, stop: int) -> NDArray[Any]:
        if self._dataset is not None:
            values: NDArray[Any] = self._dataset[start:stop]
        else:
            values = self._start + np.arange(start, stop) * self._increment
        return values if self._factor == 1 else values * self._factor


class ForeignFile:
    """An H5MD file of another writer.

    Parameters
    ----------
    path, file
        The file, opened by h5py; it is closed by `close`.
    group
        Particle group; the first by default, as MDAnalysis has it.
    convert_units
        Whether numbers have units and are converted.

    Raises
    ------
    SourceError
        No positions, units that are missing or unknown, shapes that do not agree.
    PlanError
        There is no such group.
    """

    manifest: None = None

    def __init__(
        self, path: Path, file: h5py.File, group: str | None, *, convert_units: bool
    ) -> None:
        self.path = path
        self._file = file
        self._convert = convert_units
        particles = file.get("particles")
        names = list(particles) if isinstance(particles, h5py.Group) else []
        if not names:
            raise SourceError(f"{path}: it has no particles, so it holds no trajectory")
        if group is not None and group not in names:
            raise PlanError(
                f"{path}: there is no group {group!r} in it; there are {', '.join(names)}"
            )
        self._group = particles[group or names[0]]
        self._values = {f: self._value(ELEMENTS[f]) for f in FIELDS if ELEMENTS[f] in self._group}
        if "positions" not in self._values:
            raise SourceError(f"{path}: {self._group.name} has no positions")
        self.n_frames, self.n_atoms = self._values["positions"].shape[:2]
        self._factors = {f: self._factor(f, dataset) for f, dataset in self._values.items()}
        position = self._group["position"]
        times = position.get("time")
        scale = 1.0 if times is None else self._factor("time", times)
        self._time = _Axis(times, self.n_frames, scale)
        self._step = _Axis(position.get("step"), self.n_frames, 1.0)
        self._edges = self._find_edges()

    def _value(self, element: str) -> h5py.Dataset:
        """Open the values of an element with a chunk cache that holds what a frame touches."""
        group = self._group[element]
        dataset = group["value"] if isinstance(group, h5py.Group) and "value" in group else None
        if not isinstance(dataset, h5py.Dataset) or dataset.ndim != 3 or dataset.shape[2] != 3:
            raise SourceError(
                f"{self.path}: {group.name} is no time series of shape (frames, atoms, 3)"
            )
        if 0 in dataset.shape or dataset.dtype.kind not in "fiu":
            raise SourceError(
                f"{self.path}: {dataset.name} is {dataset.dtype} {dataset.shape}; numbers of at "
                "least one frame and atom expected"
            )
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
        return h5py.Dataset(h5py.h5d.open(group.id, b"value", access))

    def _factor(self, field: str, dataset: h5py.Dataset) -> float:
        if not self._convert:
            return 1.0
        unit = dataset.attrs.get("unit")
        if isinstance(unit, bytes):
            unit = unit.decode("utf-8", "replace")
        try:
            return factor_of(field, unit)
        except KeyError as error:
            raise SourceError(
                f"{self.path}: {dataset.name} has {'no unit' if unit is None else repr(unit)}; "
                f"expected one of {error.args[0]}; read it with convert_units=False if its "
                "numbers are to be taken as they are"
            ) from None

    def _find_edges(self) -> h5py.Dataset | None:
        """Return the edges of the cells: a number of them a frame, or one for all frames."""
        box = self._group.get("box")
        if box is None:
            return None
        if int(box.attrs.get("dimension", 3)) != 3:
            raise SourceError(
                f"{self.path}: {box.name} has {box.attrs['dimension']} dimensions, expected 3"
            )
        edges = box.get("edges")
        if isinstance(edges, h5py.Group):
            edges = edges["value"]
            if edges.ndim > 1 and edges.shape[0] < self.n_frames:
                raise ValueError(f"{edges.name} has {edges.shape[0]} frames of {self.n_frames}")
        if edges is not None and edges.shape[-1:] != (3,):
            raise ValueError(f"{edges.name} has shape {edges.shape}")
        return edges

    def info(self, layout: str) -> TrajectoryInfo:
        """Return what is in the file."""
        positions = self._values["positions"]
        times = np.append(
            self._time.read(0, min(2, self.n_frames)),
            self._time.read(self.n_frames - 1, self.n_frames),
        ).astype(np.float64)
        chunks = positions.chunks
        compression = positions.compression
        if compression is not None and positions.compression_opts is not None:
            compression = f"{compression}:{positions.compression_opts}"
        for field in self._values:
            self._require_all_frames(field)
        return TrajectoryInfo(
            layout=layout,
            path=str(self.path),
            n_frames=self.n_frames,
            n_atoms=self.n_atoms,
            dt_ps=float(times[1] - times[0]) if self.n_frames > 1 else 1.0,
            time_first_ps=float(times[0]),
            time_last_ps=float(times[-1]),
            has_velocities="velocities" in self._values,
            has_forces="forces" in self._values,
            has_box=bool(self._boxes(0, 1).any()),
            chunk_frames=None if chunks is None or chunks[0] == 1 else int(chunks[0]),
            chunk_atoms=None if chunks is None else min(int(chunks[1]), self.n_atoms),
            compression=compression,
            nbytes=self.path.stat().st_size,
        )

    def _require_all_frames(self, field: str) -> None:
        shape = self._values[field].shape
        if shape[:2] != (self.n_frames, self.n_atoms):
            raise SourceError(
                f"{self.path}: {field} of {shape[0]} frames and {shape[1]} atoms beside positions "
                f"of {self.n_frames} and {self.n_atoms}; both expected for every frame"
            )

    def _boxes(self, start: int, stop: int) -> NDArray[np.float32]:
        n_frames = stop - start
        if self._edges is None:
            return np.zeros((n_frames, 6), np.float32)
        per_frame = isinstance(self._group["box/edges"], h5py.Group) and self._edges.ndim > 1
        edges = self._edges[start:stop] if per_frame else self._edges[()][np.newaxis]
        if edges.ndim == 2:
            boxes = np.full((len(edges), 6), 90, np.float32)
            boxes[:, :3] = edges
        else:
            boxes = boxes_from_vectors(edges)
        boxes[(boxes[:, :3] == 0).all(axis=1)] = 0  # what MDAnalysis takes for no cell
        boxes[:, :3] *= np.float32(self._factors["positions"])
        return np.broadcast_to(boxes, (n_frames, 6)) if len(boxes) == 1 else boxes

    def read_into(
        self, start: int, stop: int, atoms: AtomIndices | None, block: FrameBlock
    ) -> None:
        """Fill `block`; raises SourceError."""
        try:
            block.time[:] = self._time.read(start, stop)
            block.step[:] = self._step.read(start, stop)
            block.box[:] = self._boxes(start, stop)
            if atoms is not None and not atoms.size:
                return
            for field, out in block.present().items():
                if field not in self._values:
                    raise SourceError(f"{self.path}: there are no {field} in it; leave them out")
                self._read_field(self._values[field], start, stop, atoms, out)
                if self._factors[field] != 1:
                    out *= np.float32(self._factors[field])
        except FOREIGN_ERRORS as error:
            if isinstance(error, MdioError):
                raise
            raise SourceError(
                f"{self.path}: frames {start} to {stop - 1} cannot be read "
                f"({' '.join(str(error).split())})"
            ) from error

    def _read_field(
        self,
        dataset: h5py.Dataset,
        start: int,
        stop: int,
        atoms: AtomIndices | None,
        out: NDArray[np.float32],
    ) -> None:
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
