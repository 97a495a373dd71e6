"""The contract of a layout that is read: random access to runs of frames."""

from __future__ import annotations

import math
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from operator import index
from os import PathLike
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from weakref import WeakSet

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mdio.core.blocks import FrameRun, FrameRuns
from mdio.core.errors import (
    CorruptLayoutError,
    FrameRangeError,
    MdioError,
    OptionError,
    PlanError,
    SourceError,
    unreadable_error,
)
from mdio.core.files.checks import manifest_in
from mdio.core.files.in_flight import ByteRange, Opening, Prefetch
from mdio.core.files.reading import Closable
from mdio.core.files.store import store_at, to_path
from mdio.core.frames import FIELDS, AtomIndices, FrameBlock, Stretch, TrajectoryInfo, is_masked
from mdio.core.words import plural
from mdio.layouts.units import Unit, UnitFilter, add_repair_hint, check_units, frame_units

if TYPE_CHECKING:
    from xarray import Dataset

    from mdio.core.cache import Cache
    from mdio.core.frames import FrameData
    from mdio.core.topology import Topology
    from mdio.layouts.caching import UnitReads
    from mdio.layouts.tables import Tables


MISSING_VALUE_OPTIONS = {
    "dt": ("--timestep", "times"),
    "length_unit": ("--length-unit", "units of lengths"),
}
"""Options for values that a file may lack: flag, and what it gives. Without them, values are made
up."""

MADE_UP_DT_PS = 1.0
"""Time between frames of a file that holds no times."""
TIMES_MADE_UP = "times are made up"
"""Beginning of the note in `TrajectoryInfo.made_up`."""
TIMES_MADE_UP_NOT_STEPS = f"{TIMES_MADE_UP}, though steps are known"
"""Beginning of the note if the format numbers integration steps."""


def working_folder() -> str:
    """Return the working folder; empty if it has been removed."""
    try:
        return str(Path.cwd())
    except OSError:
        return ""


def chunk_boundaries(info: TrajectoryInfo) -> NDArray[np.int64]:
    """Return the first frame of each chunk, or all frames without chunks, and ``n_frames`` last."""
    edges = np.arange(0, info.n_frames, info.chunk_frames or 1, dtype=np.int64)
    return np.append(edges, info.n_frames)


def sparse_fields(infos: Sequence[TrajectoryInfo]) -> tuple[str, ...]:
    """Return the fields that some frames lack: in a file, or since another file lacks them."""
    sparse = {name for info in infos for name in info.sparse}
    fields = [set(info.fields) for info in infos]
    differing = fields[0].union(*fields) - fields[0].intersection(*fields)
    return tuple(sorted(sparse | differing))


class ChosenAtoms(np.ndarray[Any, np.dtype[np.int64]]):
    """Indices of atoms, and the number of atoms that they were chosen from."""

    n_candidates: int | None = None
    """Number of atoms of the Universe of a group, or of a mask; None if unknown, as in a copy."""


def atoms_to_array(atoms: Any) -> NDArray[Any]:
    """Return atoms (chosen without a selection text) as an array, of indices if possible.

    `atoms`: indices; a mask of all atoms; or anything of MDAnalysis that has atoms: an atom, a
    residue or a segment, a group of them, a Universe.
    """
    n_candidates = None
    if hasattr(atoms, "universe"):
        n_candidates = len(atoms.universe.atoms)
        array = np.asarray(getattr(atoms, "atoms", atoms).ix)
    else:
        if is_masked(atoms):
            raise PlanError("atoms are masked, and the mask would be lost: leave masked ones out")
        try:
            array = np.asanyarray(atoms)
        except ValueError as error:  # lists of different lengths
            raise PlanError(f"atoms are {atoms!r}; give a list of indices, or a mask") from error
        if array.dtype == bool and array.ndim == 1:
            n_candidates, array = len(array), np.flatnonzero(array)
    array = array if array.ndim else array.reshape(1)
    if n_candidates is None:
        return array
    chosen_atoms = array.astype(np.int64).view(ChosenAtoms)
    chosen_atoms.n_candidates = n_candidates
    return chosen_atoms


def atom_indices(
    atoms: Any,
    n_atoms: int,
    name: Any,
    *,
    option: str = "atoms",
    error: type[MdioError] = PlanError,
    may_be_empty: bool = False,
) -> AtomIndices:
    """Return the indices of atoms chosen as for `atoms_to_array`, among `n_atoms` of `name`.

    Raises `error`: they are not atoms, or none, or of a system of another size. FrameRangeError:
    there are no atoms of these indices.
    """
    array = atoms_to_array(atoms)
    n_candidates = getattr(array, "n_candidates", None)
    if n_candidates is not None and n_candidates != n_atoms:
        raise error(
            f"{name}: {option}: the mask or Universe has {n_candidates} atoms, but this system has "
            f"{n_atoms}; choose among its atoms"
        )
    if not array.size and array.ndim == 1:
        if may_be_empty:
            return np.empty(0, np.int64)
        raise error(f"{name}: {option}: the selection is empty")
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise error(
            f"{name}: {option}: {np.array2string(array, threshold=9)}, but atom indices must be a "
            f"list of numbers from 0 to {n_atoms - 1}; give one, a mask, an AtomGroup or a "
            "selection"
        )
    indices = np.ascontiguousarray(array, np.int64)
    if n_candidates is not None:
        indices = indices.view(np.ndarray)
    low, high = indices.min(), indices.max()
    if not 0 <= low <= high < n_atoms:
        raise FrameRangeError(
            f"{name}: atom indices must be a list of numbers from 0 to {n_atoms - 1}, and {option} "
            f"has atom {low if low < 0 else high}"
        )
    return indices


def warn_of_lost_frames(info: TrajectoryInfo, stacklevel: int) -> None:
    """Warn of frames that a truncated file lacks, for callers that show no notes."""
    for loss in info.lost:
        warnings.warn(str(loss), stacklevel=stacklevel + 1)


def fill_absent(block: FrameBlock, info: TrajectoryInfo) -> None:
    """Fill fields that the trajectory lacks with NaN, and set them to None in `block`."""
    for name in ("velocities", "forces"):
        values = getattr(block, name)
        if values is not None and name not in info.fields:
            values[...] = np.nan
            setattr(block, name, None)


FLOAT32 = np.dtype(np.float32)


@dataclass(frozen=True, kw_only=True, slots=True)
class FormatFacts:
    """The facts of a format that are known without a file of it.

    An address is ``module:Class``, which is imported only when needed.
    """

    suffixes: tuple[str, ...] = ()
    options: frozenset[str] | None = frozenset()
    """Names of its options; None if it takes any option and passes it on."""
    writer: str | None = None
    """Address of the `LayoutWriter`, for plug-ins."""
    continuation: str | None = None
    """Address of its `Continuation`, if frames can be added to its outputs."""
    members: str | None = None
    """Address of the function that returns the trajectories of an ensemble at a path, by label."""
    parts: str | None = None
    """Address of the function that returns the folder of parts beside an output at a path."""
    imported_modules: tuple[str, ...] = ()
    """Modules that opening imports; a program may import them early."""
    is_folder: bool = False
    """Whether an output is a folder of files."""
    can_choose_n_files: bool = False
    """Whether the number of files of an output can be chosen."""
    stores_columns_exactly: bool = False
    """Whether box, time and step are stored exactly; other formats round them."""
    keeps_topology: bool = False
    """Whether outputs hold the topology."""
    step_is_frame_number: bool = False
    """Whether the format stores no steps, so that the number of a frame is read as its step."""
    rounded_fields: tuple[str, ...] = ()
    """Fields that are rounded, since their units on disk differ from those in memory."""
    can_copy_frames: bool = False
    """Whether frames can be copied as bytes from file to file."""
    single_frame_compressions: tuple[str, ...] = ()
    """Compressions that decode one frame without the others of its chunk."""
    reads_remote: bool = False
    """Whether objects in stores are read in place."""
    flavours: tuple[str, ...] = ()
    """Names of programs for which outputs can be written in their flavour."""


def redundant_option_error(path: Path, option: str) -> OptionError:
    """Return the error for an option whose value the file has already."""
    flag, value = MISSING_VALUE_OPTIONS[option]
    return OptionError(
        f"{path}: it has {value} of its own, so that there is nothing to assume; leave out {flag} "
        f"(in Python: {option}=), or give it to the conversion of a file that lacks them"
    )


class StoredTimes(NamedTuple):
    """Which of times and steps a layout stores; the others are made up."""

    has_times: bool
    """Whether the file has times; without them, frames are counted."""
    has_steps: bool
    """Whether the file has the integration step of each frame."""
    step_ps: float | None = None
    """Length of an integration step in ps, if times are computed from steps."""
    step_is_frame_number: bool = False
    """See `FormatFacts`."""


class Layout(Closable, ABC):
    """A trajectory on disk, opened for reading on first use.

    A layout pickles as (path, options) and reopens in the process that unpickles it: no handle
    crosses a process. Threads may share one; they read in turn. A relative path is one in the
    folder in which the layout was made. Subclasses implement `_open`, `_read_into`, `_close` and
    `sniff`.

    Parameters
    ----------
    path
        File or folder.
    fields
        Which of the per-atom arrays to read; all by default.
    verify
        Compare what is read with the checksums in the output. False trusts the disk.
    uuid
        Identity of the output that is expected at the path; by default, of the one at first use.
    cache
        Cache of this node, for the bytes that are read.
    **options
        Those of the subclass (``group=`` for layouts with stored groups). All take ``n_atoms``, for
        formats that do not store the number of atoms.

    Raises
    ------
    OptionError
        The layout has no such option (a TypeError).
    """

    name: ClassVar[str]
    facts: ClassVar[FormatFacts] = FormatFacts()
    cache: Cache | None
    """Cache of this node for its units."""
    _shared_metadata: Any = None
    """Metadata that another process read when it opened this, so that they are not read again."""
    _prefetch: Prefetch | None = None
    _unit_reads: dict[str, UnitReads] | None = None
    _notes_before_close: tuple[str, ...] = ()
    """Notes of the cache from before the layout was closed."""
    _opens_ahead = False
    """Whether opening files takes so long that they are opened ahead."""
    _caller_prefetches = False
    """Whether a caller uses `prefetch`, so that reading itself prefetches nothing."""
    _has_steps = True
    """Whether the file has steps, set when it is opened; formats without them say so in `facts`."""
    _step_ps: float | None = None
    """Length of an integration step, set when it is opened, if times are computed from steps."""

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        fields: Sequence[str] = FIELDS,
        verify: bool = True,
        uuid: str | None = None,
        cache: Cache | None = None,
        **options: Any,
    ) -> None:
        self.path = to_path(path)
        self.fields = (fields,) if isinstance(fields, str) else tuple(fields)
        self.verify = verify
        self.uuid = uuid
        self.cache = cache
        self.options = options
        self._check_options()
        self._info: TrajectoryInfo | None = None
        self._lock = RLock()
        """Held while files are opened, read or closed."""
        _layouts.add(self)
        self._folder = "" if self.path.is_absolute() else working_folder()

    def _check_options(self) -> None:
        if unknown_fields := [name for name in self.fields if name not in FIELDS]:
            raise OptionError(
                f"{self.path}: there are no fields {', '.join(map(repr, unknown_fields))}; give a "
                f"list of some of {', '.join(FIELDS)}"
            )
        dt = self.options.get("dt")
        if dt is not None and not 0 < float(dt) < math.inf:
            raise OptionError(
                f"{self.path}: --timestep is {dt}; give a positive number of ps (in Python: dt=)"
            )
        if self.facts.options is None:
            return
        if unknown := sorted(self.options.keys() - self.facts.options - {"n_atoms"}):
            names = ", ".join(sorted({*self.facts.options, "fields"}))
            if unknown[0] in MISSING_VALUE_OPTIONS:
                raise redundant_option_error(self.path, unknown[0])
            raise OptionError(
                f"{self.path}: the layout {self.name} has no option {unknown[0]!r}; it has {names} "
                "and verify"
            )

    @classmethod
    def sniff(cls, path: Path) -> bool:  # noqa: ARG003
        """Return whether the bytes at `path` look like this layout: a quick check, no parsing.

        By default False, as for layouts over others, which are not opened from a path.
        """
        return False

    @abstractmethod
    def _open(self) -> TrajectoryInfo:
        """Open the files that stay open, and return the information on the trajectory.

        Raises SourceError (native files) or CorruptLayoutError (outputs of mdio).
        """

    @abstractmethod
    def _read_into(
        self, start: int, stop: int, atoms: AtomIndices | None, block: FrameBlock
    ) -> None:
        """Fill every array of `block` with frames ``start:stop`` of `atoms` (None = all).

        `start < stop` and the shapes have been checked. `atoms` may be empty: then only box, time
        and step are wanted, and no coordinates should be read or decoded. All arrays may hold old
        values, so all have to be written.
        """

    def _close(self) -> None:
        """Close handles; called only after `_open`. Reading may open them again."""

    @property
    def info(self) -> TrajectoryInfo:
        """Information on the trajectory; opens it if it is not open."""
        if self._info is None:
            with self._lock:
                if self._info is None:
                    self._open_checked()
        assert self._info is not None
        return self._info

    def _open_checked(self) -> None:
        self._update_path()
        try:
            self._info = self._open()
            self._opens_ahead = self._opening_is_slow()
        except OSError as error:
            self._raise_clearer(error)
            raise
        uuid = (self.manifest or {}).get("uuid")
        if self.uuid is not None and uuid != self.uuid:  # another output has taken the path
            self.close()
            raise self._replaced_error()
        self.uuid = uuid

    def _update_path(self) -> None:
        """Make a relative path absolute if the working folder has changed."""
        if self._folder and working_folder() != self._folder:
            self.path, self._folder = Path(self._folder) / self.path, ""

    def _raise_clearer(self, error: Exception, frames: tuple[int, int] | None = None) -> None:
        """Raise a clearer error than `error`, if there is one; `frames`: first and last to read."""
        better_error: Exception | None = None
        if frames is not None and not isinstance(error, MdioError):
            better_error = self._damage_error(
                error, "frames {} to {} cannot be read".format(*frames)
            )
        if better_error is None and isinstance(error, OSError) and not isinstance(error, MdioError):
            better_error = unreadable_error(self.path, error)
        damage = better_error or error
        if isinstance(damage, CorruptLayoutError):
            if self.uuid is not None and self.uuid_at(self.path) not in (None, self.uuid):
                better_error = self._replaced_error()
            else:
                manifest = self.manifest if self._info is not None else None
                better_error = add_repair_hint(self.path, manifest, damage) or better_error
        if better_error is not None:
            raise better_error from error

    def _damage_error(self, error: Exception, failure: str) -> CorruptLayoutError | None:  # noqa: ARG002
        """Return the error for damage if `error` is one that a library raises on damage."""
        return None

    def _replaced_error(self) -> CorruptLayoutError:
        return CorruptLayoutError(
            f"{self.path}: was replaced while it was open, and another output is there now; "
            "open it again"
        )

    @property
    def joined_layouts(self) -> list[tuple[Layout, int, int]]:
        """Layouts joined in it, or itself alone; each with the run of its frames that is read."""
        return [(self, 0, self.info.n_frames)]

    def file_layouts(self) -> Iterator[Layout]:
        """Yield an unopened layout for each of its files."""
        names = [*self._missing_value_options, *self.options.keys() & {"salvage"}]
        yield type(self)(self.path, **{name: self.options[name] for name in names})

    @property
    def _missing_value_options(self) -> list[str]:
        """Names of the given options for values that the file lacks."""
        return [name for name in MISSING_VALUE_OPTIONS if self.options.get(name) is not None]

    def boundaries(self) -> NDArray[np.int64]:
        """Return the frames at which chunks, shards or segments begin, and ``n_frames`` last.

        Blocks that begin and end at these read no chunk, shard or segment twice.
        """
        return chunk_boundaries(self.info)

    def read(
        self, start: int, stop: int, atoms: ArrayLike | None = None, out: FrameBlock | None = None
    ) -> FrameBlock:
        """Read a run of frames.

        Parameters
        ----------
        start, stop
            Run of frames; ``0 <= start <= stop <= n_frames``.
        atoms
            Indices of atoms, in the order of the result, a mask, or a group of MDAnalysis; all by
            default. With an empty selection only box, time and step are read, and no coordinates
            are decoded.
        out
            A block of the right shape, which is filled and returned, so that none is allocated.
            Velocities and forces are read only if it has them.

        Returns
        -------
        FrameBlock
            ``stop - start`` frames.

        Raises
        ------
        FrameRangeError
            Frames or atoms outside the trajectory.
        SourceError, CorruptLayoutError
            The file is damaged.
        """
        info = self._info or self.info
        if type(start) is not int or type(stop) is not int:
            try:
                start, stop = index(start), index(stop)  # NumPy's small integers overflow
            except TypeError:
                raise FrameRangeError(
                    f"{self.path}: frames {start!r}:{stop!r} asked for; give whole numbers from 0 "
                    f"to {info.n_frames}"
                ) from None
        if not 0 <= start <= stop <= info.n_frames:
            raise FrameRangeError(
                f"{self.path}: frames {start}:{stop} asked for, but it has {info.n_frames} frames; "
                f"give 0 <= start <= stop <= {info.n_frames}"
            )
        indices = None if atoms is None else self._atom_indices(atoms, info.n_atoms)
        n_atoms = info.n_atoms if indices is None else indices.size
        if out is None:
            out = FrameBlock.empty(
                stop - start,
                n_atoms,
                velocities=info.has_velocities and "velocities" in self.fields,
                forces=info.has_forces and "forces" in self.fields,
            )
        else:
            self._check_out(out, stop - start, n_atoms, info)
        if start < stop:
            with self._lock:
                try:
                    if self._opens_ahead and not self._caller_prefetches:
                        self._prefetch_run(start, stop, indices)
                    reads = None if self.cache is None else self._cached_reads(indices)
                    (self._read_into if reads is None else reads.read)(start, stop, indices, out)
                except Exception as error:
                    self._raise_clearer(error, (start, stop - 1))
                    raise
        return out

    def _check_out(
        self, out: FrameBlock, n_frames: int, n_atoms: int, info: TrajectoryInfo
    ) -> None:
        """Raise an error unless a run of frames can be read into `out`."""
        if not isinstance(out, FrameBlock):
            raise TypeError(f"out is of {type(out).__name__}; give an mdio.FrameBlock")
        positions, velocities, forces = out.positions, out.velocities, out.forces
        if len(positions) != n_frames or positions.shape[1] != n_atoms:
            shape_text = f"{out.n_frames} frames of {out.n_atoms} atoms"
            raise ValueError(f"out holds {shape_text}, but {n_frames} of {n_atoms} are read")
        if positions.dtype != FLOAT32:
            raise TypeError(f"out holds positions of {positions.dtype}; they must be float32")
        if not positions.flags.writeable:
            raise ValueError("out is read-only; give a block of arrays that can be written")
        if (velocities is not None and not info.has_velocities) or (
            forces is not None and not info.has_forces
        ):
            name = "forces" if info.has_velocities or velocities is None else "velocities"
            raise SourceError(f"{self.path}: there are no {name} in it; leave them out")

    def _atom_indices(self, atoms: ArrayLike, n_atoms: int) -> AtomIndices:
        if isinstance(atoms, str):
            raise FrameRangeError(
                f"{self.path}: atom indices must be a list of numbers from 0 to {n_atoms - 1}; for "
                f"a selection, universe.select_atoms({atoms!r}).indices"
            )
        return atom_indices(atoms, n_atoms, self.path, error=FrameRangeError, may_be_empty=True)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the user, a sentence each: on truncated files and on values made up."""
        info = self.info
        return (*map(str, info.lost), *(f"{self.path}: {text}" for text in info.made_up))

    def units(self) -> Iterator[Unit]:
        """Yield all units to check, always in the same order."""
        yield from frame_units(self.info, self.boundaries(), self.read, self.byte_ranges)

    def check(self, wanted: UnitFilter | None = None) -> Iterator[tuple[str, str | None]]:
        """Read everything once, or the units whose numbers are `wanted`, and compare checksums.

        Yields
        ------
        name : str
            Name of the unit.
        problem : str or None
            Its problem, if there is one.
        """
        _ = self.info
        try:
            yield from check_units(self.units(), wanted, opens_ahead=self._opens_ahead)
        except Exception as error:
            damage = (
                None
                if isinstance(error, MdioError)
                else self._damage_error(error, "cannot be read")
            )
            if damage is None:
                raise
            raise damage from error

    @classmethod
    def uuid_at(cls, path: Path) -> str | None:
        """Return the identity of the output of mdio that is at `path` now; None if it has none."""
        return (manifest_in(path) or {}).get("uuid")

    @property
    def stored_times(self) -> StoredTimes:
        """Which of times and steps it stores."""
        texts = self.info.made_up
        has_times = not any(text.startswith(TIMES_MADE_UP) for text in texts)
        knows_steps = has_times or any(text.startswith(TIMES_MADE_UP_NOT_STEPS) for text in texts)
        return StoredTimes(
            has_times=has_times,
            has_steps=knows_steps and self._has_steps and not self.facts.step_is_frame_number,
            step_ps=self._step_ps,
            step_is_frame_number=self.facts.step_is_frame_number,
        )

    @property
    def unreadable_stretches(self) -> tuple[Stretch, ...]:
        """Damaged bytes between frames of a file, in which several frames may be lost."""
        return ()

    @property
    def manifest(self) -> Mapping[str, Any] | None:
        """The manifest of an output of mdio; None for other files."""
        return None

    def topology(self) -> Topology | None:
        """Return the stored topology; None if there is none.

        Raises
        ------
        CorruptLayoutError
            It is damaged.
        """
        return None

    def frame_data(self) -> FrameData:
        """Return further numbers of each frame, by name, (F,) or (F, k).

        Of AMBER's replica exchange: ``temp0`` (K), ``remd_indices`` and others.

        Raises
        ------
        CorruptLayoutError
            They are damaged.
        """
        from mdio.core.frames import columns_from_json

        n_frames = self.info.n_frames
        return columns_from_json((self.manifest or {}).get("frame_data"), n_frames, self.path)

    def tables(self) -> Tables:
        """Return the offsets of frames and positions in files, for copies and references.

        Raises
        ------
        SourceError
            The file is damaged.
        """
        from mdio.layouts.tables import Tables  # only copies and references need it

        return Tables()

    def to_xarray(self) -> Dataset:
        """Return the trajectory as a dataset of xarray, which dask reads chunk by chunk.

        Variables are ``positions``, ``velocities`` and ``forces`` (frame, atom, axis) and ``box``
        (frame, edge), if the trajectory has them; only selected atoms are read, of the frames from
        the first selected one to the last. The numbers of `frame_data` are in memory, and so are
        the coordinates: ``time`` (frame), ps, for which the times of all frames are read; ``axis``
        and ``edge``; and those of ``name``, ``resid``, ``resname``, ``segid`` (atom) that the
        trajectory has. Units are those of `FrameBlock`.

        Raises
        ------
        MissingExtraError
            xarray or dask is not installed.

        Examples
        --------
        >>> import mdio
        >>> from MDAnalysisTests.datafiles import DCD
        >>> dataset = mdio.open(DCD).to_xarray()
        >>> dataset.positions.isel(atom=0).mean("frame").values.round(1)
        array([ 3.4,  9.8, -8.2], dtype=float32)
        """
        dataset: Dataset = import_module("mdio.layouts.views.notebooks").as_dataset(self)
        return dataset

    def __repr__(self) -> str:
        """Return the path and, once it is open, numbers of frames and atoms."""
        return self._summary(repr(str(self.path)))

    def _summary(self, name: str) -> str:
        if self._info is None:
            return f"{type(self).__name__}({name})"
        frames = plural(self._info.n_frames, "frame")
        parts = [f"{frames} of {plural(self._info.n_atoms, 'atom')}", self._info.times]
        return f"<{type(self).__name__} {name}: {', '.join(filter(None, parts))}>"

    def _repr_html_(self) -> str:
        html: str = import_module("mdio.layouts.views.notebooks").as_html(self)
        return html

    def with_metadata(self) -> Any:
        """Return a layout that pickles with the metadata read; itself if opening is quick."""
        return self

    def _group_for_cache(self, atoms: AtomIndices | None) -> tuple[str, AtomIndices | None]:  # noqa: ARG002
        """Return the name and the atoms of the group whose units the cache keeps for `atoms`.

        Whole frames by default: then the name is empty and the atoms are None.
        """
        return "", None

    def _cached_reads(self, atoms: AtomIndices | None) -> UnitReads | None:
        """Return the reads of `atoms` through the cache; None without cache or without atoms."""
        if self.cache is None or (atoms is not None and not atoms.size):
            return None
        from mdio.layouts.caching import cached_reads

        return cached_reads(self, atoms)

    @property
    def _inner_layouts(self) -> tuple[Layout, ...]:
        """The layouts that a view reads."""
        return ()

    def _opening_is_slow(self) -> bool:
        return store_at(self.path).opening_waits or any(
            inner_layout._opening_is_slow() for inner_layout in self._inner_layouts
        )

    def byte_ranges(self, start: int, stop: int, atoms: AtomIndices | None) -> Iterator[ByteRange]:
        """Yield the bytes of files that reading frames ``start:stop`` of `atoms` takes, in order.

        Bytes in the node's cache are left out. So may small tables, and all ranges if
        prefetching gains nothing.
        Raises SourceError or CorruptLayoutError as reading does.
        """
        reads = self._cached_reads(atoms)
        if reads is None:
            _ = self.info
            yield from self._ranges(start, stop, atoms)
        else:
            yield from reads.source_ranges(start, stop)

    def _ranges(self, start: int, stop: int, atoms: AtomIndices | None) -> Iterator[ByteRange]:
        """Yield the byte ranges without a cache; by default those of the layouts that it reads."""
        for inner_layout, first, end in self._inner_runs(start, stop):
            yield from inner_layout.byte_ranges(first, end, atoms)

    def _inner_runs(self, start: int, stop: int) -> Iterator[tuple[Layout, int, int]]:  # noqa: ARG002
        """Yield opened inner layouts that have frames ``start:stop``, with the run of each."""
        yield from ()

    def _openings(self, runs: FrameRuns, atoms: AtomIndices | None) -> Iterator[Opening]:
        """Yield the objects that reading `runs` opens, in order; at least those of the first."""
        for run in runs:
            for inner_layout, first, end in self._inner_runs(*run):
                yield from inner_layout._openings([(first, end)], atoms)

    def prefetch(
        self,
        runs: Iterable[FrameRun],
        atoms: AtomIndices | None = None,
        *,
        open_ended: bool = False,
    ) -> None:
        """Prefetch what will be read next, and stop prefetching anything else.

        `runs`: start and stop of the next reads, in order; an empty sequence if nothing will be
        read. They are consumed as reading proceeds, so there may be many. `atoms`: as in the reads.
        `open_ended`: whether reading may end at any time, so that few bytes are prefetched from
        stores at first.
        """
        if isinstance(runs, Sequence) and not runs:
            self._set_caller_prefetches(False)
            if self._prefetch is not None:
                self._prefetch.stop()
            return
        self._set_caller_prefetches(True)
        self._prefetching.begin(runs, atoms, open_ended=open_ended)

    @property
    def _prefetching(self) -> Prefetch:
        if self._prefetch is None:
            _ = self.info  # opens the layout
            self._prefetch = Prefetch(self, opens_ahead=self._opens_ahead)
        return self._prefetch

    def _set_caller_prefetches(self, caller_prefetches: bool) -> None:
        """Set, here and in all inner layouts, whether a caller uses `prefetch`."""
        self._caller_prefetches = caller_prefetches
        for inner_layout in self._inner_layouts:
            inner_layout._set_caller_prefetches(caller_prefetches)

    def _prefetch_run(self, start: int, stop: int, atoms: AtomIndices | None) -> None:
        """Prefetch the frames that are being read, in a store."""
        for inner_layout in self._inner_layouts:
            inner_layout._set_caller_prefetches(True)
        if stop - start > 1:
            self._prefetching.begin([(start, stop)], atoms, open_ended=False)
        else:
            self._prefetching.prefetch_frame(start, atoms)

    def close(self) -> None:
        """Close files; reading again opens them again."""
        with self._lock:
            if self._info is not None:
                self.prefetch(())
                self._prefetch = None
                for reads in (self._unit_reads or {}).values():
                    self._notes_before_close = (*self._notes_before_close, *reads.source.notes)
                    reads.close()
                self._unit_reads = None
                self._info = None
                self._close()

    def __del__(self) -> None:
        """Close its files, but not inner layouts, which others may be reading right now."""
        with suppress(Exception):  # the interpreter may be ending
            if not self._inner_layouts:
                self.close()
            elif self._prefetch is not None:
                self._prefetch.stop()

    def _copy_with_metadata(self, metadata: Any) -> Layout:
        """Return an unopened copy that pickles with `metadata`, which opening has read."""
        reopen, arguments, _ = Layout.__reduce__(self)
        copy: Layout = reopen(*arguments)
        copy._shared_metadata = metadata
        return copy

    def __reduce__(self) -> tuple[Any, ...]:
        options = {"verify": self.verify, "uuid": self.uuid, "cache": self.cache}
        path = str(Path(self._folder) / self.path if self._folder else self.path)
        arguments = (type(self), path, self.fields, self.options | options)
        return _reopen, arguments, {"_shared_metadata": self._shared_metadata}


_layouts: WeakSet[Layout] = WeakSet()
"""All of this process, whose locks a forked child makes anew."""


def _renew_locks() -> None:
    for layout in list(_layouts):
        layout._lock = RLock()


# Another thread may have held them, which a child does not have.
os.register_at_fork(after_in_child=_renew_locks)


def _reopen(cls: type[Layout], path: str, fields: Sequence[str], options: dict[str, Any]) -> Layout:
    return cls(path, fields=fields, **options)


def container_format(layout: Layout) -> str | None:
    """Return the format of files whose frames can be copied as bytes; None if they cannot."""
    joined = [inner_layout for inner_layout, *_ in layout.joined_layouts]
    if joined == [layout]:
        name = (layout.manifest or {}).get("container")
        return name or (layout.name if layout.facts.can_copy_frames else None)
    names = {container_format(inner_layout) for inner_layout in joined}
    return names.pop() if len(names) == 1 else None


def cache_notes(layout: Layout) -> tuple[str, ...]:
    """Return the notes of the caches of a layout and of its inner layouts, each once."""
    notes = [*layout._notes_before_close]
    for reads in (layout._unit_reads or {}).values():
        notes += reads.source.notes
    for inner_layout in layout._inner_layouts:
        notes += cache_notes(inner_layout)
    return tuple(dict.fromkeys(notes))
