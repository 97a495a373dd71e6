"""Reads Zarr trees of other writers through zarr: H5MD trees (v3) and ZarrMD (v2, zarrtraj).

ZarrMD 0.2.0 is H5MD 1.1 as a Zarr tree in which every array names its own unit. Numbers are
converted as MDAnalysis' H5MDReader converts them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from mdio.core.boxes import boxes_from_vectors
from mdio.core.errors import MdioError, PlanError, SourceError
from mdio.core.frames import ELEMENTS, FIELDS, FrameBlock, TrajectoryInfo
from mdio.layouts.h5md_units import factor_of

__all__ = ["ForeignTree"]

AtomIndices = NDArray[np.int64]
Numbers = NDArray[Any]

FOREIGN_ERRORS = (
    OSError,
    KeyError,
    ValueError,
    TypeError,
    RuntimeError,
    AttributeError,
    IndexError,
    MemoryError,
)
"""What zarr and its codecs raise for trees that are damaged or not what they should be."""
CACHE_NBYTES = 256 << 20
"""Decoded chunks of one run of frames are kept for the next read if they are no more than this."""


class _Values:
    """A per-atom array, of which the chunks over one run of frames are kept when read in parts."""

    def __init__(self, array: zarr.Array[Any], factor: float) -> None:
        self.array = array
        self.factor = np.float32(factor)
        self.n_frames, self.n_atoms, _ = array.shape
        self.chunk_frames: int = array.chunks[0]
        self._kept: tuple[int, Numbers] | None = None

    def read(
        self, start: int, stop: int, atoms: AtomIndices | None, out: NDArray[np.float32]
    ) -> None:
        size = self.chunk_frames
        for number in range(start // size, (stop - 1) // size + 1):
            begin, end = number * size, min((number + 1) * size, self.n_frames)
            first, last = max(start, begin), min(stop, end)
            rows = self._rows(number, begin, end, first, last)
            out[first - start : last - start] = rows if atoms is None else rows[:, atoms]
        if self.factor != 1:
            out *= self.factor

    def _rows(self, number: int, begin: int, end: int, first: int, last: int) -> Numbers:
        if self._kept is not None and self._kept[0] == number:
            return self._kept[1][first - begin : last - begin]
        nbytes = (end - begin) * self.n_atoms * 3 * self.array.dtype.itemsize
        if (first, last) == (begin, end) or nbytes > CACHE_NBYTES:
            return np.asarray(self.array[first:last])
        self._kept = number, np.asarray(self.array[begin:end])
        return self._kept[1][first - begin : last - begin]


class _Axis:
    """Steps or times of an element: a number a frame, or the increment, or nothing."""

    def __init__(self, array: Any, n_frames: int, factor: float) -> None:
        self._factor = factor
        self._array = array if array is not None and array.shape else None
        self._start, self._increment = 0.0, 1.0
        if self._array is not None and (array.ndim != 1 or array.shape[0] < n_frames):
            raise ValueError(f"{array.name} has shape {array.shape} for {n_frames} frames")
        if array is not None and not array.shape:
            self._start, self._increment = array.attrs.get("offset", 0), array[()]

    def read(self, start: int, stop: int) -> Numbers:
        if self._array is not None:
            values = np.asarray(self._array[start:stop])
        else:
            values = self._start + np.arange(start, stop) * self._increment
        return values if self._factor == 1 else values * self._factor


class ForeignTree:
    """A Zarr tree of another writer.

    Parameters
    ----------
    path
        Root of the tree.
    group
        Particle group; by default ``trajectory``, or else the first.
    convert_units
        Whether numbers have units and are converted.

    Raises
    ------
    SourceError
        No H5MD tree, no positions, units that are missing or unknown, shapes that do not agree.
    PlanError
        There is no such group.
    """

    manifest: None = None

    def __init__(self, path: Path, group: str | None, *, convert_units: bool) -> None:
        self.path = path
        self._convert = convert_units
        try:
            self._open(group)
        except FOREIGN_ERRORS as error:
            if isinstance(error, MdioError):
                raise
            raise SourceError(f"{path}: cannot be read as a Zarr tree ({_text(error)})") from error

    def _open(self, group: str | None) -> None:
        root: Any = zarr.open_group(str(self.path), mode="r")
        particles = root.get("particles")
        names = sorted(particles.group_keys()) if isinstance(particles, zarr.Group) else []
        if not names:
            raise SourceError(f"{self.path}: it has no particles, so it holds no trajectory")
        if group is not None and group not in names:
            raise PlanError(
                f"{self.path}: there is no group {group!r} in it; there are {', '.join(names)}"
            )
        chosen = group or ("trajectory" if "trajectory" in names else names[0])
        self._group: Any = root[f"particles/{chosen}"]
        self._values = {f: self._value(f) for f in FIELDS if ELEMENTS[f] in self._group}
        if "positions" not in self._values:
            raise SourceError(f"{self.path}: {self._group.name} has no positions")
        self.n_frames = self._values["positions"].n_frames
        self.n_atoms = self._values["positions"].n_atoms
        position = self._group["position"]
        times = position.get("time")
        scale = 1.0 if times is None else self._factor("time", times)
        self._time = _Axis(times, self.n_frames, scale)
        self._step = _Axis(position.get("step"), self.n_frames, 1.0)
        self._edges = self._find_edges()

    def _value(self, field: str) -> _Values:
        element: Any = self._group[ELEMENTS[field]]
        array = element.get("value") if isinstance(element, zarr.Group) else None
        if not isinstance(array, zarr.Array) or array.ndim != 3 or array.shape[2] != 3:
            raise SourceError(
                f"{self.path}: {element.name} is no time series of shape (frames, atoms, 3)"
            )
        if 0 in array.shape or array.dtype.kind not in "fiu":
            raise SourceError(
                f"{self.path}: {array.name} is {array.dtype} {array.shape}; numbers of at least "
                "one frame and atom expected"
            )
        return _Values(array, self._factor(field, array))

    def _factor(self, field: str, array: zarr.Array[Any]) -> float:
        if not self._convert:
            return 1.0
        unit: Any = array.attrs.get("unit")
        try:
            return factor_of(field, unit)
        except (KeyError, TypeError) as error:
            raise SourceError(
                f"{self.path}: {array.name} has {'no unit' if unit is None else repr(unit)}; "
                f"expected one of {error.args[0]}; read it with convert_units=False if its "
                "numbers are to be taken as they are"
            ) from None

    def _find_edges(self) -> Any:
        """Return the edges of the cells: a number of them a frame, or one for all frames."""
        self._edges_per_frame = False
        box = self._group.get("box")
        if box is None:
            return None
        if int(box.attrs.get("dimension", 3)) != 3:
            raise SourceError(
                f"{self.path}: {box.name} has {box.attrs['dimension']} dimensions, expected 3"
            )
        edges: Any = box.get("edges")
        if isinstance(edges, zarr.Group):
            edges = edges["value"]
            if edges.ndim > 1 and edges.shape[0] < self.n_frames:
                raise ValueError(f"{edges.name} has {edges.shape[0]} frames of {self.n_frames}")
            self._edges_per_frame = edges.ndim > 1
        if edges is not None and edges.shape[-1:] != (3,):
            raise ValueError(f"{edges.name} has shape {edges.shape}")
        if edges is not None:
            own = edges.attrs.get("unit") is not None
            self._edge_factor = (
                self._factor("positions", edges) if own else self._values["positions"].factor
            )
        return edges

    def info(self, layout: str) -> TrajectoryInfo:
        """Return what is in the tree."""
        positions = self._values["positions"]
        for field, values in self._values.items():
            if (values.n_frames, values.n_atoms) != (self.n_frames, self.n_atoms):
                raise SourceError(
                    f"{self.path}: {field} of {values.n_frames} frames and {values.n_atoms} atoms "
                    f"beside positions of {self.n_frames} and {self.n_atoms}; both expected for "
                    "every frame"
                )
        try:
            first = self._time.read(0, min(2, self.n_frames)).astype(np.float64)
            last = self._time.read(self.n_frames - 1, self.n_frames).astype(np.float64)
            has_box = bool(self._boxes(0, 1).any())
        except FOREIGN_ERRORS as error:
            raise SourceError(f"{self.path}: cannot be read ({_text(error)})") from error
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
            chunk_frames=None if positions.chunk_frames == 1 else positions.chunk_frames,
            chunk_atoms=min(positions.array.chunks[1], self.n_atoms),
            compression=_compression(positions.array),
            nbytes=sum(path.stat().st_size for path in self.path.rglob("*") if path.is_file()),
        )

    def _boxes(self, start: int, stop: int) -> NDArray[np.float32]:
        n_frames = stop - start
        if self._edges is None:
            return np.zeros((n_frames, 6), np.float32)
        edges = self._edges[start:stop] if self._edges_per_frame else self._edges[...][np.newaxis]
        if edges.ndim == 2:
            boxes = np.full((len(edges), 6), 90, np.float32)
            boxes[:, :3] = edges
        else:
            boxes = boxes_from_vectors(edges)
        boxes[(boxes[:, :3] == 0).all(axis=1)] = 0  # what MDAnalysis takes for no cell
        boxes[:, :3] *= np.float32(self._edge_factor)
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
                self._values[field].read(start, stop, atoms, out)
        except FOREIGN_ERRORS as error:
            if isinstance(error, MdioError):
                raise
            raise SourceError(
                f"{self.path}: frames {start} to {stop - 1} cannot be read ({_text(error)})"
            ) from error

    def close(self) -> None:
        """Forget what is kept."""
        self._values = {}


def _text(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _compression(array: zarr.Array[Any]) -> str | None:
    """Return the names of the compressors (crc32c is none)."""
    names = []
    for codec in array.compressors:
        name = getattr(codec, "codec_id", None) or type(codec).__name__.removesuffix("Codec")
        names.append(name.lower())
    return "+".join(name for name in names if name != "crc32c") or None
