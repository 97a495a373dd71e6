"""Frames as libraries return them, in MDAnalysis' units."""

from __future__ import annotations

import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import AtomCountError, MdioError
from mdio.core.frames import FIELDS, AtomIndices, FrameBlock, LostBytes

Vectors = NDArray[np.float32]
IMAGES_UNREAD = (
    "which periodic image an atom is in ({}) is not read: atoms lie where the box has them; --pbc "
    "nojump (in Python: pbc='nojump') has them go on over its sides"
)


@dataclass(slots=True)
class Snapshot:
    """One frame; fields that it lacks are None.

    Positions are in angstrom, velocities in angstrom/ps, forces in kJ/(mol angstrom), of shape
    (A, 3); the box, (6,), in angstrom and degrees; the time in ps.
    """

    positions: Vectors
    velocities: Vectors | None = None
    forces: Vectors | None = None
    box: NDArray[np.float32] | None = None
    """Lengths and angles; the length of an axis that is not periodic is 0."""
    time: float | None = None
    step: int | None = None

    @property
    def n_atoms(self) -> int:
        return len(self.positions)


def fill_row(
    block: FrameBlock, row: int, snapshot: Snapshot, atoms: AtomIndices | None, number: int
) -> None:
    """Fill a row of a block, but for its time; arrays that the frame lacks are NaN.

    `number`: of the frame, in place of a step that it lacks.
    """
    block.step[row] = number if snapshot.step is None else snapshot.step
    block.box[row] = 0 if snapshot.box is None else snapshot.box
    for name, out in block.present().items() if block.n_atoms else ():
        values = getattr(snapshot, name)
        if values is not None and atoms is not None:
            values = values[atoms]
        out[row] = np.nan if values is None else values


def snapshot_of(ts: Any) -> Snapshot:
    """Return a copy of a timestep of MDAnalysis."""
    box = None if ts.dimensions is None else np.array(ts.dimensions, np.float32)
    if box is not None and not box[:3].any():
        box = None
    return Snapshot(
        positions=np.array(ts.positions, np.float32),
        velocities=np.array(ts.velocities, np.float32) if ts.has_velocities else None,
        forces=np.array(ts.forces, np.float32) if ts.has_forces else None,
        box=box,
        time=float(ts.time) if "time" in ts.data else None,
        step=int(ts.data["step"]) if "step" in ts.data else None,
    )


def clear_timestep(ts: Any) -> None:
    """Clear a timestep, in which a reader leaves old values if the next frame lacks them."""
    ts.dimensions = None
    for name in FIELDS:
        if getattr(ts, f"has_{name}"):
            getattr(ts, name)[:] = np.nan
    for name in ("time", "step"):
        ts.data.pop(name, None)


def absent_fields(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the fields that a reader did not fill after `clear_timestep`."""
    values = {name: getattr(snapshot, name) for name in FIELDS}
    return tuple(
        name
        for name, array in values.items()
        if array is not None and array.size and np.isnan(array).all()
    )


class ForeignReader(ABC):
    """A reader of the frames of a file, through any library."""

    n_frames: int
    n_atoms: int
    fields: tuple[str, ...] = ()
    """Which of velocities and forces any frame has."""
    sparse: tuple[str, ...] = ()
    """Which of them some frames lack."""
    has_times: bool = False
    time_unit: str = "frames"
    """Unit in which times are counted if the file has none: ``frames`` or ``steps``."""
    lost: tuple[LostBytes, ...] = ()
    has_length_unit: bool = True
    """Whether the unit of lengths is known."""
    _errors: tuple[type[BaseException], ...] = (Exception,)
    """Exceptions that the library raises on bad input; most may raise any."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._pid = -1
        self._handle: Any = None

    @property
    def _file(self) -> Any:
        """The library's handle of the open file.

        A forked process shares the position in the file with its parent: it opens it again.
        """
        if self._pid != os.getpid():
            self._handle, self._pid = self._open(), os.getpid()
        return self._handle

    @abstractmethod
    def _open(self) -> Any:
        """Open the file."""

    @abstractmethod
    def _error_for(self, action: str, error: BaseException) -> BaseException:
        """Return the exception to raise for an `error` of the library.

        `action`: what the file cannot be: ``opened``, ``read at frame 3``.
        """

    def _atom_count_error(self) -> AtomCountError:
        return AtomCountError(
            f"{self.path}: its format does not hold the number of atoms; give a topology with "
            "-s/--top FILE (in Python: n_atoms=)"
        )

    @contextmanager
    def _library_errors(self, action: str) -> Iterator[None]:
        """Raise SourceError for errors of the library, and hide its warnings."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                yield
            except MdioError:
                raise
            except self._errors as error:
                failure = self._error_for(action, error)
                if failure is error:
                    raise
                raise failure from error

    def _set_properties(self, first: Snapshot) -> None:
        """Set from the first frame whether all have times, velocities and forces."""
        self.has_times = first.time is not None
        self.fields = tuple(name for name in FIELDS[1:] if getattr(first, name) is not None)

    @abstractmethod
    def read(self, frame: int) -> Snapshot:
        """Return a frame; raises SourceError."""

    @abstractmethod
    def notes(self) -> Iterator[str]:
        """Yield notes on values that are made up or not read."""

    def topology_file(self) -> Any:
        """Return the file that MDAnalysis' parser of topologies reads."""
        return str(self.path)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.close()
