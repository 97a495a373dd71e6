"""Reading outputs of mdio in chunks, of HDF5 or Zarr: arrays, columns, groups, ensembles.

An ensemble has trajectories of one system side by side in one output, each readable alone. Its own
manifest names them in order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from mdio.core.blocks import FrameRuns
from mdio.core.errors import CorruptLayoutError, PlanError, SourceError
from mdio.core.files.in_flight import ByteRange, Opening
from mdio.core.frames import AtomIndices, Flaws, FrameBlock, Rounding, TrajectoryInfo
from mdio.core.topology import Topology
from mdio.layouts.chunked.array import ChunkedArray
from mdio.layouts.manifest import (
    FULL_SYSTEM,
    check_manifest,
    has_source_integers,
    indices_from_runs,
)
from mdio.layouts.units import Unit

if TYPE_CHECKING:
    from mdio.layouts.plan import ArrayPlan

Array = TypeVar("Array", bound=ChunkedArray)

UNITS = {
    "positions": "Angstrom",
    "velocities": "Angstrom ps-1",
    "forces": "kJ mol-1 Angstrom-1",
}
"""Names of mdio's units in H5MD, by field."""


class OwnOutput(ABC, Generic[Array]):
    """An output of mdio, open for reading.

    A subclass sets `arrays`, and reads times, steps and boxes. `group`: particle group whose atoms
    are those of the trajectory; the full system by default.
    """

    arrays: dict[tuple[str, str], Array]
    """The arrays, by group and field."""
    _factors: Mapping[str, float] = {}
    """Factors to mdio's units, of fields that are stored in others."""

    _cached_columns: tuple[int, int, Sequence[NDArray[Any]]] = (0, -1, ((), (), ()))  # type: ignore[assignment]
    """Run of frames (start, stop) whose times, steps and boxes were read last, and these."""

    def __init__(self, path: Path, manifest: Any, group: str | None, *, verify: bool) -> None:
        self.path, self._verifies = path, verify
        self.manifest: Mapping[str, Any] = check_manifest(manifest, path)
        self.n_frames: int = self.manifest["n_frames"]
        self._n_atoms_by_group = {FULL_SYSTEM: self.manifest["n_atoms"], **self.manifest["groups"]}
        self.group = group or FULL_SYSTEM
        if self.group not in self._n_atoms_by_group:
            raise PlanError(
                f"{path}: there is no group {group!r} in it; there are "
                f"{', '.join(self._n_atoms_by_group)}"
            )
        group_atoms = {}
        if self.group == FULL_SYSTEM:
            runs = self.manifest["group_atoms"]
            names = [name for name in self.manifest["groups"] if name in runs]
            group_atoms = {name: indices_from_runs(runs[name]) for name in names}
        self.groups = StoredGroups(group_atoms)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_cached_columns"}

    @property
    def has_manifest_times(self) -> bool:
        """Whether the manifest has the first and last time, so that opening reads no columns."""
        return None not in (self.manifest.get(f"time_{edge}_ps") for edge in ("first", "last"))

    @abstractmethod
    def read_column(self, name: str, start: int, stop: int) -> NDArray[Any]:
        """Return ``time`` (ps, shape (F,)), ``step`` ((F,)) or ``box`` ((F, 6)) of frames.

        Raises CorruptLayoutError.
        """

    @abstractmethod
    def _column_run(self, start: int, stop: int) -> tuple[int, int]:
        """Return a run around these frames whose times, steps and boxes are in memory."""

    @abstractmethod
    def _topology_bytes(self) -> bytes | None:
        """Return the stored topology; None if there is none. Raises CorruptLayoutError."""

    def topology(self) -> Topology | None:
        data = self._topology_bytes()
        if data is None:
            return None
        topology = Topology.from_bytes(data, str(self.path))
        if topology.n_atoms != self.manifest["n_atoms"]:
            raise CorruptLayoutError(
                f"{self.path}: its topology has {topology.n_atoms} atoms, its frames "
                f"{self.manifest['n_atoms']}; convert the source again"
            )
        runs = self.manifest["group_atoms"].get(self.group)
        return topology if runs is None else topology.take(indices_from_runs(runs))

    def array_plans(self, *, contiguous: bool = False) -> tuple[ArrayPlan, ...]:
        from mdio.layouts.plan import ArrayPlan  # not needed for reading frames

        plans = []
        for key, array in self.arrays.items():
            shape = (array.n_atoms, array.chunk_frames, array.chunk_atoms)
            plans.append(ArrayPlan(*key, *shape, contiguous, self._array_codec(*key)))
        return tuple(plans)

    def _array_codec(self, group: str, field: str) -> str | None:  # noqa: ARG002
        """Return the codec of an array; None if it is that of the full system."""
        return None

    def info(self, layout: str) -> TrajectoryInfo:
        manifest = self.manifest
        time_first_ps, time_last_ps, has_box = 0.0, 0.0, False
        if self.has_manifest_times:
            time_first_ps, time_last_ps = manifest["time_first_ps"], manifest["time_last_ps"]
            has_box = manifest["has_box"]
        else:
            # Damaged outputs must open without verifying, to be repaired.
            with nullcontext() if self._verifies else suppress(CorruptLayoutError):
                has_box = bool(self.read_column("box", 0, 1).any())
                time_first_ps = float(self.read_column("time", 0, 1)[0])
                time_last_ps = float(self.read_column("time", self.n_frames - 1, self.n_frames)[0])
        positions = self.arrays[self.group, "positions"]
        integers = has_source_integers(manifest)
        # Frames that a program added are stored as floats, beside the integers of the source.
        has_floats = integers and "by_program" in manifest["source"]
        return TrajectoryInfo(
            layout=layout,
            path=str(self.path),
            n_frames=self.n_frames,
            n_atoms=positions.n_atoms,
            dt_ps=float(manifest["dt_ps"]),
            time_first_ps=time_first_ps,
            time_last_ps=time_last_ps,
            has_velocities=(self.group, "velocities") in self.arrays,
            has_forces=(self.group, "forces") in self.arrays,
            has_box=has_box,
            sparse=tuple(
                name for name in manifest.get("sparse", ()) if (self.group, name) in self.arrays
            ),
            groups=dict(manifest["groups"]),
            chunk_frames=positions.chunk_frames,
            chunk_atoms=min(positions.chunk_atoms, positions.n_atoms),
            compression=manifest.get("compression"),
            precision=None if has_floats else manifest.get("precision"),
            rounding=Rounding(manifest.get("field_precisions", {}), integers and not has_floats),
            nbytes=int(manifest.get("nbytes", 0)),
            source=manifest["source"],
            flaws=Flaws(made_up=tuple(manifest["source"].get("made_up", ()))),
        )

    def read_into(
        self, start: int, stop: int, atoms: AtomIndices | None, block: FrameBlock
    ) -> None:
        first, end, (time, step, box) = self._cached_columns
        if not first <= start <= stop <= end:
            first, end = self._column_run(start, stop)
            time, step, box = (
                self.read_column(name, first, end) for name in ("time", "step", "box")
            )
            self._cached_columns = first, end, (time, step, box)
        is_single = stop - start == 1  # NumPy copies a number four times as fast as a slice of one
        rows, out_rows = (
            (start - first, 0) if is_single else (slice(start - first, stop - first), ...)
        )
        block.time[out_rows] = time[rows]
        block.step[out_rows] = step[rows]
        block.box[out_rows] = box[rows]
        if atoms is not None and not atoms.size:
            return
        group, atoms = self.stored_group(atoms)
        for field, out in block.present().items():
            array = self.arrays.get((group, field))
            if array is None:
                raise SourceError(f"{self.path}: there are no {field} in it; leave them out")
            array.read(start, stop, atoms, out)
            if field in self._factors:
                out *= np.float32(self._factors[field])

    def byte_ranges(
        self, start: int, stop: int, atoms: AtomIndices | None, fields: Sequence[str]
    ) -> Iterator[ByteRange]:
        if atoms is None or atoms.size:
            group, atoms = self.stored_group(atoms)
            for field in fields:
                if (group, field) in self.arrays:
                    yield from self.arrays[group, field].byte_ranges(start, stop, atoms)

    def openings(
        self, runs: FrameRuns, atoms: AtomIndices | None, fields: Sequence[str]
    ) -> Iterator[Opening]:
        """Yield the objects that reading `fields` opens; those of several fields alternate."""
        group, atoms = self.stored_group(atoms)
        if runs and (atoms is None or atoms.size):
            stored_fields = [field for field in fields if (group, field) in self.arrays]
            openings = [
                self.arrays[group, field].openings(runs, atoms, len(stored_fields))
                for field in stored_fields
            ]
            for next_openings in zip_longest(*openings):
                yield from (opening for opening in next_openings if opening is not None)

    def stored_group(self, atoms: AtomIndices | None) -> tuple[str, AtomIndices | None]:
        """Return the stored group to read atoms from, and their indices in it; None for all."""
        if atoms is None:
            return self.group, None
        group, atoms = self.groups.smallest_group(atoms) or (self.group, atoms)
        size = self._n_atoms_by_group[group]
        if atoms is not None and atoms.size == size and np.array_equal(atoms, np.arange(size)):
            atoms = None
        return group, atoms

    def _units_of(self, key: tuple[str, str]) -> Iterator[Unit]:
        array = self.arrays[key]
        for frame_chunk, atom_chunk in np.ndindex(*array.grid):
            first = frame_chunk * array.chunk_frames
            frames = (first, min(first + array.chunk_frames, array.n_frames))
            check, ranges = (
                partial(array.check, frame_chunk, atom_chunk),
                partial(array.chunk_range, frame_chunk, atom_chunk),
            )
            openings = partial(array.chunk_openings, frame_chunk)
            yield Unit(
                array.describe_chunk(frame_chunk, atom_chunk),
                check,
                frames,
                key[0],
                ranges,
                openings,
            )

    def close(self) -> None:
        for array in self.arrays.values():
            array.close()


AtomsInGroup = tuple[str, AtomIndices | None]
"""A stored group, and indices of atoms in it; None: all of them, in its order."""


class StoredGroups:
    """The atom groups that an output stores in addition to the full system.

    `groups`: atoms of each group, as indices into the full system, in the order in which they are
    stored.
    """

    def __init__(self, groups: Mapping[str, AtomIndices]) -> None:
        self._atoms_by_group, self._groups = groups, []
        for name in sorted(groups, key=lambda name: groups[name].size):
            order = np.argsort(groups[name], kind="stable")
            self._groups.append((name, groups[name][order], order))
        self._last_selection: tuple[AtomIndices, AtomsInGroup | None] | None = None

    def smallest_group(self, atoms: AtomIndices) -> AtomsInGroup | None:
        """Return the smallest group that has all of `atoms`, or None, and their indices in it.

        The result for the last selection is kept: an analysis reads the same one block after block.
        """
        if self._last_selection is not None and np.array_equal(self._last_selection[0], atoms):
            return self._last_selection[1]
        smallest = self._search(atoms) if self._groups else None
        self._last_selection = (atoms.copy(), smallest)
        return smallest

    def atoms_of(self, name: str) -> AtomIndices:
        """Return the atoms of a group in the order in which they are stored; raises KeyError."""
        return self._atoms_by_group[name]

    def _search(self, atoms: AtomIndices) -> AtomsInGroup | None:
        for name, group_atoms, order in self._groups:
            if not group_atoms.size:
                continue
            indices = np.minimum(np.searchsorted(group_atoms, atoms), group_atoms.size - 1)
            if np.array_equal(group_atoms[indices], atoms):
                indices = order[indices]
                is_all = np.array_equal(indices, np.arange(group_atoms.size))
                return name, None if is_all else indices
        return None


class EnsembleWriter(ABC):
    """Makes an ensemble of several outputs, in a folder that is at `path` until published."""

    suffix: ClassVar[str] = ""
    """Suffix of the names of trajectories in the folder."""

    def __init__(self, path: Path, target: Path) -> None:
        from uuid import uuid4  # not needed for reading

        self.path, self.target = path, target
        self.uuid = str(uuid4())

    def create(self) -> None:
        self.path.mkdir()

    def member_path(self, label: str, *, final: bool = False) -> Path:
        """Return the path where a trajectory is written; `final`: its path after publication."""
        return (self.target if final else self.path) / f"{label}{self.suffix}"

    @abstractmethod
    def write_manifest(self, labels: Sequence[str]) -> None:
        """Write the manifest, with the trajectories in order; raises OutputError."""

    def manifest(self, labels: Sequence[str]) -> dict[str, Any]:
        return {
            "format": "mdio",
            "format_version": 1,
            "layout": "ensemble",
            "uuid": self.uuid,
            "members": list(labels),
        }


def labels_in(manifest: Mapping[str, Any]) -> list[str]:
    """Return the labels in a manifest, in order; empty if it is not of an ensemble."""
    members = manifest.get("members") if manifest.get("layout") == "ensemble" else None
    return [*map(str, members)] if isinstance(members, list) else []


def check_members(
    path: Path, members: Mapping[str, Path], required_file: str | None = None
) -> None:
    """Raise CorruptLayoutError if a trajectory of an ensemble is missing, or a file in it."""
    for label, member in members.items():
        if label in ("", ".", "..") or "/" in label or "\0" in label:
            raise CorruptLayoutError(
                f"{path}: its manifest calls a trajectory of the ensemble {label!r}, which is not "
                "a valid name; convert it again"
            )
        required = member if required_file is None else member / required_file
        if not required.exists():
            raise CorruptLayoutError(
                f"{path}: the trajectory {label!r} of the ensemble is missing ({member}); put it "
                "back, convert its source again to that path (mdio convert, then mv), or convert "
                "all again with --force"
            )
