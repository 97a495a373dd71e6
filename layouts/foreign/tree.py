"""Trajectories of other writers in H5MD's tree of groups, in HDF5 or Zarr.

h5py and zarr have the same interface to groups and arrays; `layouts.h5md.foreign` and
`layouts.zarr.foreign` have what differs. The numbers are those of MDAnalysis' H5MDReader.

H5MD samples every element by itself, say positions in each frame and velocities in every tenth. The
frames of the trajectory are the steps of all elements together; where an element has no row, the
frame lacks it. A unit cell is that of a frame or of all frames, as lengths or as vectors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.boxes import ROTATED_CELL, are_rotated, boxes_from_vectors
from mdio.core.errors import FOREIGN_ERRORS, MdioError, PlanError, SourceError, one_line
from mdio.core.frames import FIELDS, H5MD_NAMES, AtomIndices, Flaws, FrameBlock, TrajectoryInfo
from mdio.core.words import list_text
from mdio.layouts.base import TIMES_MADE_UP, TIMES_MADE_UP_NOT_STEPS
from mdio.layouts.foreign.snapshot import IMAGES_UNREAD
from mdio.layouts.foreign.units import LENGTH_UNITS_OF_PROGRAMS, factor_of

MAX_KEPT_NBYTES = 8 << 20
"""Arrays up to this size are read whole and kept: some programs store one number in a chunk."""


def child(group: Any, name: str, default: Any = None) -> Any:
    """Return an entry of a group or attributes; unlike h5py's `get`, raises for damaged ones."""
    if name not in group:
        return default
    return group[name]


def require_numbers(array: Any) -> None:
    """Raise ValueError for an array of strings, which HDF5 looks for elsewhere in the file."""
    if array is not None and array.dtype.kind not in "biuf":
        raise ValueError(f"{array.name} holds {array.dtype}, expected numbers")


class SampledColumn:
    """Steps or times of a time-dependent element, in all forms of H5MD.

    An array with a number for each frame; a scalar, the increment, with an attribute ``offset`` for
    the first frame; or nothing: frames are counted. `skip`: numbers before that of frame 0.
    """

    def __init__(self, array: Any, factor: float = 1.0, *, skip: int = 0) -> None:
        require_numbers(array)
        self._factor = factor
        self._skip = skip
        self._array = array if array is not None and array.shape else None
        self._start, self._increment = 0.0, 1.0
        self.n_rows: int | None = None
        """How many numbers there are; None if there is no end."""
        if self._array is not None:
            if array.ndim != 1:
                raise ValueError(f"{array.name} has shape {array.shape}")
            self.n_rows = int(array.shape[0]) - skip
            if array.size * array.dtype.itemsize <= MAX_KEPT_NBYTES:
                self._array = np.asarray(array[...])
        elif array is not None:
            self._start, self._increment = child(array.attrs, "offset", 0), array[()]

    def read(self, start: int, stop: int) -> NDArray[Any]:
        if self._array is not None:
            values = np.asarray(self._array[start + self._skip : stop + self._skip])
        else:
            values = self._start + np.arange(start, stop) * self._increment
        return values if self._factor == 1 else values * self._factor


@dataclass(frozen=True, slots=True)
class ElementFrames:
    """The frames of one element."""

    n_frames: int
    step: SampledColumn | None
    """None if it has no steps: its frames are those of the positions."""
    time: SampledColumn | None


class MergedFrames:
    """The frames of all elements, merged by their steps; raises ValueError.

    `elements`: by name, positions first; their steps and times are the trajectory's if all
    elements have the same.
    """

    def __init__(self, elements: Mapping[str, ElementFrames]) -> None:
        self.elements = elements
        self._positions = first = elements["positions"]
        self.n_frames = first.n_frames
        self._rows: dict[str, NDArray[np.int64]] = {}
        """The row of each element in each frame, -1 without one; empty if all have the same."""
        self._steps: NDArray[np.int64] | None = None
        self.has_times = first.time is not None
        """Whether all frames have a time; otherwise they are counted."""
        self.has_steps = first.step is not None
        if all(_have_same_frames(first, element) for element in elements.values()):
            return
        steps = {}
        for name, element in elements.items():
            if element.step is None:
                raise ValueError(
                    f"{name} of {element.n_frames} frames beside positions of {first.n_frames}, "
                    "without steps of its own"
                )
            steps[name] = element.step.read(0, element.n_frames).astype(np.int64)
            if not (np.diff(steps[name]) > 0).all():
                raise ValueError(f"the steps of {name} do not increase, others have other steps")
        self._steps = np.unique(np.concatenate(list(steps.values())))
        self.n_frames = len(self._steps)
        for name, array_steps in steps.items():
            rows = np.full(self.n_frames, -1, np.int64)
            rows[np.searchsorted(self._steps, array_steps)] = np.arange(len(array_steps))
            self._rows[name] = rows
        is_timed = [self._rows[name] >= 0 for name, e in elements.items() if e.time is not None]
        self.has_times = bool(is_timed) and bool(np.any(is_timed, axis=0).all())
        self.has_steps = True

    def rows(self, name: str, start: int, stop: int) -> tuple[int, int, NDArray[np.bool_] | None]:
        """Return an element's first row and end, and a mask of frames that have one; None: all."""
        if not self._rows:
            return start, stop, None
        rows = self._rows[name][start:stop]
        has_row = rows >= 0
        sampled = rows[has_row]
        if not sampled.size:
            return 0, 0, has_row
        return int(sampled[0]), int(sampled[-1]) + 1, None if has_row.all() else has_row

    @property
    def position_rows(self) -> NDArray[np.int64]:
        """The row of the positions in each frame; -1 in frames without one."""
        return self._rows["positions"] if self._rows else np.arange(self.n_frames)

    def steps(self, start: int, stop: int) -> NDArray[Any]:
        if self._steps is not None:
            return self._steps[start:stop]
        return (self._positions.step or SampledColumn(None)).read(start, stop)

    def times(self, start: int, stop: int) -> NDArray[Any]:
        """Return the times (ps) of frames ``start:stop``, each from an element that has it."""
        times = np.arange(start, stop, dtype=np.float64)
        if not self.has_times:
            return times
        if not self._rows:
            assert self._positions.time is not None
            return self._positions.time.read(start, stop)
        for name in reversed(self._rows):
            first, end, has_row = self.rows(name, start, stop)
            time = self.elements[name].time
            if time is not None and first < end:
                times[... if has_row is None else has_row] = time.read(first, end)
        return times


def _have_same_frames(element: ElementFrames, other: ElementFrames) -> bool:
    if element.n_frames != other.n_frames:
        return False
    if element.step is None or other.step is None or element.step is other.step:
        return True
    for first in range(0, element.n_frames, 1 << 20):
        end = min(first + (1 << 20), element.n_frames)
        if not np.array_equal(element.step.read(first, end), other.step.read(first, end)):
            return False
    return True


FLAT_NOTE = "the file has two dimensions: the third coordinate of all atoms is taken to be 0"


def _n_atoms(particles: Any, name: str) -> int | None:
    """Return how many atoms a particle group has; None without a trajectory, 0 if damaged."""
    try:
        if "position" not in particles[name] or is_array(particles[name]["position"]):
            return None
        shape = particles[name]["position"]["value"].shape
        return int(shape[1]) if len(shape) == 3 else 0
    except FOREIGN_ERRORS:
        return 0


@contextmanager
def as_source_error(path: Path, problem: str) -> Iterator[None]:
    """Turn errors of the libraries into a SourceError, ``PATH: PROBLEM (...)``."""
    try:
        yield
    except MdioError:
        raise
    except Exception as error:  # codecs have errors of their own, of many kinds
        raise SourceError(f"{path}: {problem} ({one_line(error)})") from error


class ForeignTrajectory(ABC):
    """One particle group of another writer's tree; raises SourceError or PlanError.

    `path`: the file, or the root of the tree. `root`: the same, opened. `names`: the particle
    groups in it; the first is taken by default. `options`: of the layout: ``group``, the requested
    particle group; ``convert_units``, whether numbers have units and are converted;
    ``length_unit``, that of lengths if the file names none.
    """

    manifest: None = None

    def __init__(self, path: Path, root: Any, names: list[str], options: Mapping[str, Any]) -> None:
        self.path, group = path, options.get("group")
        self.notes: list[str] = []
        self._made_up: tuple[str, ...] = ()
        self._convert = options.get("convert_units", True)
        self._length_unit = options.get("length_unit")
        if not names:
            raise SourceError(f"{path}: it has no particles, so it holds no trajectory")
        if group is not None and group not in names:
            raise PlanError(
                f"{path}: there is no group {group!r} in it; there are {', '.join(names)}"
            )
        particles = root["particles"]
        group_name = group or names[0]
        self._creator = text_of(child((child(root, "h5md/creator") or root).attrs, "name"))
        self._group = particles[group_name]
        n_atoms_by_group = {name: _n_atoms(particles, name) for name in names if name != group_name}
        self._other_groups = {
            name: n_atoms for name, n_atoms in n_atoms_by_group.items() if n_atoms is not None
        }
        self._values = {
            f: self._value(H5MD_NAMES[f]) for f in FIELDS if H5MD_NAMES[f] in self._group
        }
        if "positions" not in self._values:
            raise SourceError(f"{path}: {self._group.name} has no positions")
        positions = self._values["positions"]
        # Programs create datasets that they never write: those are ignored.
        self._values = {f: v for f, v in self._values.items() if v.shape[0] or v is positions}
        if 0 in positions.shape:
            raise SourceError(
                f"{path}: {positions.name} is {positions.dtype} {positions.shape}; numbers of at "
                "least one frame and atom expected"
            )
        self.n_atoms = int(positions.shape[1])
        self._factors = {f: self._factor(f, array) for f, array in self._values.items()}
        elements = {f: self._element_frames(f) for f in self._values}
        self._cells = Cells.of_group(path, self._group, int(positions.shape[0]))
        if self._cells is not None:
            edges, scale = self._cells.edges, self._factors["positions"]
            if child(edges.attrs, "unit") is not None:
                scale = self._factor("positions", edges)
            self._cells.scale = np.float32(scale)
            self.notes += self._cells.notes
            if self._cells.per_frame:
                elements["box"] = self._element_frames("box", elements["positions"])
        self._merged_frames = MergedFrames(elements)
        self.n_frames = self._merged_frames.n_frames
        self._n_absent = 0
        """Entries of each frame without an atom, first where atoms are sorted."""
        self._ids = self._find_ids()
        images = child(self._group, "image/value")
        if images is not None and images.shape[0] and np.any(images[-1]):
            self.notes.append(f"{path}: {IMAGES_UNREAD.format(images.name)}")
        if not self._merged_frames.has_times:
            begin = TIMES_MADE_UP_NOT_STEPS if self._merged_frames.has_steps else TIMES_MADE_UP
            self._made_up += (f"{begin}, since not all frames have one: frames are 1 ps apart",)

    @property
    def has_steps(self) -> bool:
        return self._merged_frames.has_steps

    def _n_fill_rows(self, steps: Any) -> int:
        """Return how many fill values precede the step (and time) of the first frame.

        From 2020 to June 2026 ESPResSo made these arrays with one row too many.
        """
        if self._creator != "ESPResSo" or steps is None or steps.ndim != 1:
            return 0
        return int((np.asarray(steps[:1]) == -10).any())

    def _element_frames(self, field: str, positions: ElementFrames | None = None) -> ElementFrames:
        """Return the frames of an element, without an incomplete last one."""
        parent = self._group["box/edges" if field == "box" else H5MD_NAMES[field]]
        values = self._values[field] if field != "box" or self._cells is None else self._cells.edges
        times, steps = child(parent, "time"), child(parent, "step")
        skip = self._n_fill_rows(steps)
        if skip and field == "positions":
            self.notes.append(
                f"{self.path}: {steps.name} and times begin with an entry without a frame, as "
                "ESPResSo wrote them until June 2026; it is left out"
            )
        time = (
            None if times is None else SampledColumn(times, self._factor("time", times), skip=skip)
        )
        step = None if steps is None else SampledColumn(steps, skip=skip)
        n_values = int(values.shape[0])
        lengths = {column.n_rows for column in (step, time) if column is not None}
        counts = [n_values, *(n for n in lengths if n is not None)]
        if positions is not None and step is None:
            counts = [n_values, positions.n_frames]
        n_frames = min(counts)
        if max(counts) - n_frames > 1:
            owner = "positions" if positions is not None and step is None else "steps and times"
            raise ValueError(
                f"{field} of {n_values} frames in {parent.name}, with {owner} of "
                f"{list_text([str(count) for count in counts[1:]])} frames"
            )
        if max(counts) != n_frames:
            self.notes.append(
                f"{self.path}: {parent.name} has a frame that was not written whole, after "
                f"{n_frames} whole ones; it is left out"
            )
        return ElementFrames(n_frames, step, time)

    def _find_ids(self) -> Any:
        """Return the atom numbers of each frame, if a program writes atoms in any order."""
        node = child(self._group, "id")
        values = None if node is None or is_array(node) else child(node, "value")
        if values is None or values.ndim != 2 or values.shape[1] != self.n_atoms:
            return None
        require_numbers(values)
        self.notes.append(f"{self.path}: atoms are sorted by {values.name}")
        n_absent = int(np.count_nonzero(np.asarray(values[0]) < 0))  # as H5MD fills them
        if 0 < n_absent < self.n_atoms:
            self._n_absent = n_absent
            self.n_atoms -= n_absent
            self.notes.append(
                f"{self.path}: {n_absent} of {values.shape[1]} entries of each frame have a "
                f"negative number in {values.name}, and are no atoms: they are left out"
            )
        self._id_rows = self._rows_of_ids(child(node, "step"), int(values.shape[0]))
        return values

    def _rows_of_ids(self, steps: Any, n_rows: int) -> NDArray[np.int64]:
        """Return the row of atom numbers of each frame, by their steps; -1 without one."""
        rows = self._merged_frames.position_rows
        if steps is not None and self._merged_frames.has_steps:
            column = SampledColumn(steps, skip=self._n_fill_rows(steps))
            n_rows = n_rows if column.n_rows is None else min(n_rows, column.n_rows)
            id_steps = column.read(0, n_rows)
            steps_of_frames = self._merged_frames.steps(0, self.n_frames)
            rows = np.arange(self.n_frames)
            if not np.array_equal(id_steps, steps_of_frames[:n_rows]):
                if not (np.diff(id_steps) > 0).all():
                    raise ValueError(f"{steps.name} do not increase, others have other steps")
                rows = np.where(
                    np.isin(steps_of_frames, id_steps),
                    np.searchsorted(id_steps, steps_of_frames),
                    -1,
                )
        return np.where(rows < n_rows, rows, -1)

    @abstractmethod
    def close(self) -> None:
        """Close all files."""

    @abstractmethod
    def _compression(self, array: Any) -> str | None:
        """Name the compressors of an array."""

    @abstractmethod
    def _read_field(
        self, field: str, start: int, stop: int, atoms: AtomIndices | None, out: NDArray[np.float32]
    ) -> None:
        """Fill `out` with the stored numbers, without converting units."""

    def _value(self, element: str) -> Any:
        group = self._group[element]
        array: Any = None if is_array(group) else child(group, "value")
        if not is_array(array) or array.ndim != 3 or array.shape[2] not in (2, 3):
            raise SourceError(
                f"{self.path}: {group.name} is no time series of shape (frames, atoms, 3), or 2 "
                "where the third coordinate is 0"
            )
        if array.dtype.kind not in "fiu":
            raise SourceError(f"{self.path}: {array.name} is {array.dtype}; numbers expected")
        return array

    def _factor(self, field: str, array: Any) -> float:
        if not self._convert:
            return 1.0
        unit = text_of(child(array.attrs, "unit")) or self._missing_unit(field)
        if self._creator == "znh5md" and field == "velocities":
            self.notes.append(
                f"{self.path}: velocities are taken to be in {unit}, as the file says; those that "
                "ZnH5MD up to 0.4.8 got from ASE are in ASE's unit, and 10.18 times slower"
            )
        try:  # NOMAD's files have a number before the unit apart from it
            return factor_of(field, unit) * float(child(array.attrs, "unit_factor", 1))
        except KeyError as error:
            raise SourceError(
                f"{self.path}: {array.name} has {'no unit' if unit is None else repr(unit)}; "
                f"expected one of {error.args[0]}, or name the unit of lengths with --length-unit; "
                "in Python, convert_units=False takes the numbers as they are"
            ) from None

    def _missing_unit(self, field: str) -> str | None:
        """Return the unit of numbers that have none: as requested, or as their program has it."""
        length = LENGTH_UNITS_OF_PROGRAMS.get(self._creator or "")
        reason = f"as {self._creator} writes them"
        if self._length_unit is not None:
            length, reason = self._length_unit, "as asked with --length-unit"
        if length is None:
            return None
        self._made_up = (
            f"the file names no units: lengths are taken to be in {length}, times in ps, {reason}",
        )
        units = {"time": "ps", "positions": length, "velocities": f"{length} ps-1"}
        return units.get(field, f"kJ mol-1 {length}-1")

    def info(self, layout: str) -> TrajectoryInfo:
        n_entries = self._values["positions"].shape[1]
        for field, array in self._values.items():
            if array.shape[1] != n_entries:
                raise SourceError(
                    f"{self.path}: {field} of {array.shape[1]} atoms beside positions of "
                    f"{n_entries}; the same atoms are expected"
                )
        with as_source_error(self.path, "cannot be read"):
            first = self._merged_frames.times(0, min(2, self.n_frames)).astype(np.float64)
            last = self._merged_frames.times(self.n_frames - 1, self.n_frames).astype(np.float64)
            has_box = bool(self._boxes(0, 1).any())
            made_up = self._made_up + (FLAT_NOTE,) * (self._values["positions"].shape[2] == 2)
            if self._cells is not None and self._cells.is_rotated():
                made_up += (ROTATED_CELL,)
        elements = self._merged_frames.elements
        counts = {name: element.n_frames for name, element in elements.items()}
        sparse = {name: n for name, n in counts.items() if n < self.n_frames}
        self.notes += [
            f"{self.path}: {'boxes' if name == 'box' else name} are in {n} of {self.n_frames} "
            "frames"
            for name, n in sparse.items()
        ]
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
            sparse=tuple(name for name in sparse if name != "box"),
            chunk_frames=None if chunks is None or chunks[0] == 1 else int(chunks[0]),
            chunk_atoms=None if chunks is None else min(int(chunks[1]), self.n_atoms),
            compression=self._compression(positions),
            groups=self._other_groups,
            flaws=Flaws(made_up=made_up),
            nbytes=sum(p.stat().st_size for p in (self.path, *self.path.rglob("*")) if p.is_file()),
        )

    def _boxes(self, start: int, stop: int) -> NDArray[np.float32]:
        if self._cells is None:
            return np.zeros((stop - start, 6), np.float32)
        return self._cells.read(self._merged_frames, start, stop)

    def read_into(
        self, start: int, stop: int, atoms: AtomIndices | None, block: FrameBlock
    ) -> None:
        with as_source_error(self.path, f"frames {start} to {stop - 1} cannot be read"):
            block.time[:] = self._merged_frames.times(start, stop)
            block.step[:] = self._merged_frames.steps(start, stop)
            block.box[:] = self._boxes(start, stop)
            if atoms is not None and not atoms.size:
                return
            for field, out in block.present().items():
                first, end, has_row = self._merged_frames.rows(field, start, stop)
                rows, frames = out, np.arange(start, stop)
                if has_row is not None:
                    rows = np.empty((end - first, *out.shape[1:]), np.float32)
                    frames = frames[has_row]
                if first < end and self._values[field].shape[2] == 2:
                    two_dimensional = np.empty((*rows.shape[:2], 2), np.float32)
                    self._read_rows(field, frames, first, atoms, two_dimensional)
                    rows[:, :, :2], rows[:, :, 2] = two_dimensional, 0
                elif first < end:
                    self._read_rows(field, frames, first, atoms, rows)
                if has_row is not None:
                    out[has_row] = rows
                    out[~has_row] = np.nan
                if self._factors[field] != 1:
                    out *= np.float32(self._factors[field])

    def _read_rows(
        self,
        field: str,
        frames: NDArray[np.int64],
        first: int,
        atoms: AtomIndices | None,
        out: NDArray[np.float32],
    ) -> None:
        """Fill `out`; atoms are sorted if the file has their numbers by frame."""
        end = first + len(frames)
        if self._ids is None:
            self._read_field(field, first, end, atoms, out)
            return
        rows = self._id_rows[frames]
        if (rows < 0).any():
            raise SourceError(
                f"{self.path}: frame {frames[rows < 0][0]} has {field}, but no row in "
                f"{self._ids.name}, so the order of its atoms is unknown; leave that frame out"
            )
        ids = np.asarray(self._ids[int(rows[0]) : int(rows[-1]) + 1])[rows - rows[0]]
        values = np.empty((end - first, ids.shape[1], out.shape[2]), np.float32)
        self._read_field(field, first, end, None, values)
        order = np.argsort(ids, axis=1, kind="stable")
        has_same_ids = np.take_along_axis(ids, order, axis=1) == np.sort(self._ids[0])
        if not has_same_ids.all():
            frame = frames[~has_same_ids.all(axis=1)][0]
            raise SourceError(
                f"{self.path}: {self._ids.name} of frame {frame} has other atom ids than "
                "frame 0; a trajectory has the same atoms throughout: write the others "
                "into a file of their own"
            )
        order = order[:, self._n_absent :]
        order = order if atoms is None else order[:, atoms]
        out[...] = np.take_along_axis(values, order[:, :, np.newaxis], axis=1)


def is_array(node: Any) -> bool:
    """Return whether a node of a tree is an array, not a group."""
    return hasattr(node, "shape")


def text_of(value: Any) -> str | None:
    """Return a string attribute, stored as bytes or text; None if there is none."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return None if value is None else str(value)


@dataclass(slots=True)
class Cells:
    """The edges of the cells of a particle group."""

    edges: Any
    """An array: (n,) or (n, n) for n dimensions, with a leading axis of frames if `per_frame`."""
    per_frame: bool
    aperiodic: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    scale: np.float32 = np.float32(1)  # noqa: RUF009 - a number
    """Factor to angstrom."""

    @classmethod
    def of_group(cls, path: Path, group: Any, n_positions: int) -> Cells | None:
        """Return the cells of a particle group; None if it has none."""
        box = child(group, "box")
        if is_array(box):
            raise SourceError(f"{path}: {box.name} is an array, expected a group with edges")
        edges = None if box is None else child(box, "edges")
        n_axes = 3 if box is None else int(child(box.attrs, "dimension", 3))
        if n_axes not in (2, 3):
            raise SourceError(f"{path}: {box.name} has {n_axes} dimensions, expected 3 or 2")
        boundary = () if box is None else np.atleast_1d(child(box.attrs, "boundary", ()))
        aperiodic = tuple(np.flatnonzero([text_of(text) == "none" for text in boundary]).tolist())
        if edges is None or (len(boundary) and len(aperiodic) == len(boundary)):
            return None
        per_frame = False
        if not is_array(edges):
            is_series = "step" in edges or "time" in edges
            edges = edges["value"]
            # (3, 3) numbers may be vectors, or the lengths of three frames.
            per_frame = edges.ndim > (1 if is_series else 2)
            per_frame |= edges.ndim == 2 and (edges.shape[0] != n_axes or n_positions == n_axes)
        require_numbers(edges)
        if n_axes == 2 and edges.shape[-1:] != (2,):
            raise SourceError(
                f"{path}: {box.name} has 2 dimensions, but {edges.name} has shape {edges.shape}"
            )
        if edges.shape[-1:] != (n_axes,) or edges.ndim - per_frame not in (1, 2):
            raise ValueError(f"{edges.name} has shape {edges.shape}")
        if 0 in edges.shape:
            return None
        notes: tuple[str, ...] = ()
        off_diagonal = ~np.eye(n_axes, dtype=bool)
        has_vectors = edges.ndim - per_frame == 2
        if aperiodic and has_vectors and edges[()][..., off_diagonal].any():
            names = " and ".join("xyz"[axis] for axis in aperiodic)
            notes = (
                f"{path}: the cell is not periodic along {names}, which cannot be kept of a skewed "
                "cell: it is taken for periodic on all axes",
            )
            aperiodic = ()
        return cls(edges, per_frame, aperiodic, notes)

    def is_rotated(self) -> bool:
        """Return whether the first cell is rotated; see `mdio.core.boxes.are_rotated`."""
        cell = np.asarray(self.edges[0] if self.per_frame else self.edges[()])
        return cell.shape == (3, 3) and are_rotated(cell[np.newaxis])

    def read(self, merged: MergedFrames, start: int, stop: int) -> NDArray[np.float32]:
        """Return the cells of frames ``start:stop``; zeros in those without one.

        The length of an axis that is not periodic, and of the third of two dimensions, is 0, as in
        MDAnalysis.
        """
        has_row = None
        if self.per_frame:
            first, end, has_row = merged.rows("box", start, stop)
            edges = self.edges[first:end]
        else:
            edges = self.edges[()][np.newaxis]
        n_axes = edges.shape[-1]
        if edges.ndim == 2:
            boxes = np.full((len(edges), 6), 90, np.float32)
            boxes[:, :n_axes] = edges
        else:
            if n_axes == 2:
                edges = np.pad(edges, ((0, 0), (0, 1), (0, 1)))
                edges[:, 2, 2] = 1
            if self.aperiodic:
                edges = np.array(edges)
                edges[:, self.aperiodic, self.aperiodic] = 1
            boxes = boxes_from_vectors(edges)
        boxes[:, n_axes:3] = 0
        boxes[:, self.aperiodic] = 0
        boxes[(boxes[:, :3] == 0).all(axis=1)] = 0  # as MDAnalysis has frames without a cell
        boxes[:, :3] *= self.scale
        if has_row is not None:
            all_boxes = np.zeros((stop - start, 6), np.float32)
            all_boxes[has_row] = boxes
            return all_boxes
        return boxes if self.per_frame else np.broadcast_to(boxes, (stop - start, 6))
