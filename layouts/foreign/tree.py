"""Trajectories of other writers in H5MD's tree of groups, whether HDF5 or Zarr holds it.

h5py and zarr show groups and arrays in the same way; what differs between them is left to
`layouts.h5md.foreign` and `layouts.zarr.foreign`. The numbers are those of MDAnalysis' H5MDReader.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.boxes import boxes_from_vectors
from mdio.core.errors import MdioError, PlanError, SourceError
from mdio.core.frames import ELEMENTS, FIELDS, FrameBlock, TrajectoryInfo
from mdio.layouts.base import AtomIndices
from mdio.layouts.foreign.units import factor_of

__all__ = ["ForeignTrajectory", "as_source_error"]

FOREIGN_ERRORS = (
    OSError,
    LookupError,
    RuntimeError,
    ValueError,
    TypeError,
    AttributeError,
    ArithmeticError,
    MemoryError,
)
"""What h5py, zarr and its codecs raise for what is damaged or not what it should be."""


def _is_array(node: Any) -> bool:
    return hasattr(node, "shape")


def _n_atoms(particles: Any, name: str) -> int | None:
    """Return how many atoms a particle group has; None without a trajectory, 0 if damaged."""
    try:
        if "position" not in particles[name] or _is_array(particles[name]["position"]):
            return None
        shape = particles[name]["position"]["value"].shape
        return int(shape[1]) if len(shape) == 3 else 0
    except FOREIGN_ERRORS:
        return 0


@contextmanager
def as_source_error(path: Path, what: str) -> Iterator[None]:
    """Turn what the libraries raise into ``PATH: WHAT (...)``; raises SourceError."""
    try:
        yield
    except MdioError:
        raise
    except FOREIGN_ERRORS as error:
        text = " ".join(str(error).split()) or type(error).__name__
        raise SourceError(f"{path}: {what} ({text})") from error


class _Axis:
    """Steps or times of a time-dependent element, in each form that H5MD has.

    An array with a number a frame; or a scalar, the increment, with an attribute ``offset`` for
    the first frame; or nothing, which counts frames.
    """

    def __init__(self, array: Any, n_frames: int, factor: float) -> None:
        self._factor = factor
        self._array = array if array is not None and array.shape else None
        self._start, self._increment = 0.0, 1.0
        if self._array is not None and (array.ndim != 1 or array.shape[0] < n_frames):
            raise ValueError(f"{array.name} has shape {array.shape} for {n_frames} frames")
        if array is not None and not array.shape:
            self._start, self._increment = array.attrs.get("offset", 0), array[()]

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return the numbers of frames ``start:stop``."""
        if self._array is not None:
            values = np.asarray(self._array[start:stop])
        else:
            values = self._start + np.arange(start, stop) * self._increment
        return values if self._factor == 1 else values * self._factor


class ForeignTrajectory(ABC):
    """One particle group of another writer's tree.

    Parameters
    ----------
    path
        The file, or the root of the tree.
    particles
        The group of all particle groups, and None if there is none.
    names
        The particle groups in it; the first is taken by default.
    group
        The particle group that is asked for.
    convert_units
        Whether numbers have units and are converted.

    Raises
    ------
    SourceError
        No positions, units that are missing or unknown.
    PlanError
        There is no such group.
    """

    manifest: None = None

    def __init__(
        self, path: Path, particles: Any, names: list[str], group: str | None, convert_units: bool
    ) -> None:
        self.path = path
        self._convert = convert_units
        if not names:
            raise SourceError(f"{path}: it has no particles, so it holds no trajectory")
        if group is not None and group not in names:
            raise PlanError(
                f"{path}: there is no group {group!r} in it; there are {', '.join(names)}"
            )
        chosen = group or names[0]
        self._group = particles[chosen]
        others = {name: _n_atoms(particles, name) for name in names if name != chosen}
        self._others = {name: n_atoms for name, n_atoms in others.items() if n_atoms is not None}
        self._values = {f: self._value(ELEMENTS[f]) for f in FIELDS if ELEMENTS[f] in self._group}
        if "positions" not in self._values:
            raise SourceError(f"{path}: {self._group.name} has no positions")
        self.n_frames, self.n_atoms = self._values["positions"].shape[:2]
        self._factors = {f: self._factor(f, array) for f, array in self._values.items()}
        position = self._group["position"]
        times = position.get("time")
        scale = 1.0 if times is None else self._factor("time", times)
        self._time = _Axis(times, self.n_frames, scale)
        self._step = _Axis(position.get("step"), self.n_frames, 1.0)
        self._edges = self._find_edges()

    @abstractmethod
    def close(self) -> None:
        """Close what was opened."""

    @abstractmethod
    def _compression(self, array: Any) -> str | None:
        """Name the compressors of an array."""

    @abstractmethod
    def _read_field(
        self,
        field: str,
        start: int,
        stop: int,
        atoms: AtomIndices | None,
        out: NDArray[np.float32],
    ) -> None:
        """Fill `out` with the numbers as they are stored."""

    def _edge_factor(self, _edges: Any) -> float:
        """Return what cells are multiplied by: MDAnalysis has them in the unit of positions."""
        return self._factors["positions"]

    def _value(self, element: str) -> Any:
        """Open the values of an element."""
        group = self._group[element]
        array: Any = None if _is_array(group) else group.get("value")
        if not _is_array(array) or array.ndim != 3 or array.shape[2] != 3:
            raise SourceError(
                f"{self.path}: {group.name} is no time series of shape (frames, atoms, 3)"
            )
        if 0 in array.shape or array.dtype.kind not in "fiu":
            raise SourceError(
                f"{self.path}: {array.name} is {array.dtype} {array.shape}; numbers of at least "
                "one frame and atom expected"
            )
        return array

    def _factor(self, field: str, array: Any) -> float:
        if not self._convert:
            return 1.0
        unit = array.attrs.get("unit")
        if isinstance(unit, bytes):
            unit = unit.decode("utf-8", "replace")
        try:
            return factor_of(field, None if unit is None else str(unit))
        except KeyError as error:
            raise SourceError(
                f"{self.path}: {array.name} has {'no unit' if unit is None else repr(unit)}; "
                f"expected one of {error.args[0]}; read it with convert_units=False if its "
                "numbers are to be taken as they are"
            ) from None

    def _find_edges(self) -> Any:
        """Return the edges of the cells: a number of them a frame, or one for all frames."""
        self._edges_per_frame = False
        box = self._group.get("box")
        edges = None if box is None else box.get("edges")
        if box is not None and int(box.attrs.get("dimension", 3)) != 3:
            raise SourceError(
                f"{self.path}: {box.name} has {box.attrs['dimension']} dimensions, expected 3"
            )
        if edges is None:
            return None
        if not _is_array(edges):
            edges = edges["value"]
            self._edges_per_frame = edges.ndim > 1
        if self._edges_per_frame and edges.shape[0] < self.n_frames:
            raise ValueError(f"{edges.name} has {edges.shape[0]} frames of {self.n_frames}")
        if edges.shape[-1:] != (3,):
            raise ValueError(f"{edges.name} has shape {edges.shape}")
        self._box_factor = np.float32(self._edge_factor(edges))
        return edges

    def info(self, layout: str) -> TrajectoryInfo:
        """Return what is in it; raises SourceError."""
        for field, array in self._values.items():
            if array.shape[:2] != (self.n_frames, self.n_atoms):
                raise SourceError(
                    f"{self.path}: {field} of {array.shape[0]} frames and {array.shape[1]} atoms "
                    f"beside positions of {self.n_frames} and {self.n_atoms}; both expected for "
                    "every frame"
                )
        with as_source_error(self.path, "cannot be read"):
            first = self._time.read(0, min(2, self.n_frames)).astype(np.float64)
            last = self._time.read(self.n_frames - 1, self.n_frames).astype(np.float64)
            has_box = bool(self._boxes(0, 1).any())
        positions = self._values["positions"]
        chunks = positions.chunks
        return TrajectoryInfo(
            layout=layout,
            path=str(self.path),
            n_frames=self.n_frames,
            n_atoms=self.n_atoms,
            dt_ps=float(first[1] - first[0]) if self.n_frames > 1 else 1.0,
            time_first_ps=float(first[0]),
            time_last_ps=float(last[0]),
            has_velocities="velocities" in self._values,
            has_forces="forces" in self._values,
            has_box=has_box,
            chunk_frames=None if chunks is None or chunks[0] == 1 else int(chunks[0]),
            chunk_atoms=None if chunks is None else min(int(chunks[1]), self.n_atoms),
            compression=self._compression(positions),
            groups=self._others,
            nbytes=sum(p.stat().st_size for p in (self.path, *self.path.rglob("*")) if p.is_file()),
        )

    def _boxes(self, start: int, stop: int) -> NDArray[np.float32]:
        n_frames = stop - start
        if self._edges is None:
            return np.zeros((n_frames, 6), np.float32)
        edges = self._edges[start:stop] if self._edges_per_frame else self._edges[()][np.newaxis]
        if edges.ndim == 2:
            boxes = np.full((len(edges), 6), 90, np.float32)
            boxes[:, :3] = edges
        else:
            boxes = boxes_from_vectors(edges)
        boxes[(boxes[:, :3] == 0).all(axis=1)] = 0  # what MDAnalysis takes for no cell
        boxes[:, :3] *= self._box_factor
        return np.broadcast_to(boxes, (n_frames, 6)) if len(boxes) == 1 else boxes

    def read_into(
        self, start: int, stop: int, atoms: AtomIndices | None, block: FrameBlock
    ) -> None:
        """Fill `block`; raises SourceError."""
        with as_source_error(self.path, f"frames {start} to {stop - 1} cannot be read"):
            block.time[:] = self._time.read(start, stop)
            block.step[:] = self._step.read(start, stop)
            block.box[:] = self._boxes(start, stop)
            if atoms is not None and not atoms.size:
                return
            for field, out in block.present().items():
                if field not in self._values:
                    raise SourceError(f"{self.path}: there are no {field} in it; leave them out")
                self._read_field(field, start, stop, atoms, out)
                if self._factors[field] != 1:
                    out *= np.float32(self._factors[field])
