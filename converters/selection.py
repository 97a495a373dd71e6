"""Evaluates selections of atoms, with the topology of a file or of the source."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import AtomCountError, PlanError, SourceError
from mdio.core.files.checks import check_regular
from mdio.core.files.store import store_at, to_path
from mdio.core.frames import TrajectoryInfo
from mdio.core.stalls import is_mount_lost
from mdio.core.topology import BONDS, Residues, Topology
from mdio.core.topology import select as select_stored
from mdio.core.words import plural
from mdio.layouts.base import Layout, atom_indices
from mdio.layouts.foreign.universe import (
    compare_names,
    residues_of,
    select_by_mdanalysis,
    stored_topology,
    topology_of,
    universe_from_parser,
    universe_of,
)
from mdio.layouts.manifest import runs_from_indices
from mdio.layouts.units import frame_units
from mdio.layouts.views.opening import open_source
from mdio.layouts.views.view import FrameNumbers

if TYPE_CHECKING:
    from MDAnalysis import Universe

AtomSelection = str | NDArray[np.int64]
AnyTopology: TypeAlias = "str | PathLike[str] | Universe"


def check_not_truncated(info: TrajectoryInfo, stop: int | None, end_ps: float | None) -> None:
    """Raise SourceError if a source is truncated, and what is requested may go beyond that.

    `stop`, `end_ps`: where the requested frames end; None = with the source.
    """
    for loss in info.lost:
        n_whole_frames = loss.first + loss.frame
        ends_by_frame = stop is not None and 0 <= stop <= n_whole_frames
        ends_by_time = end_ps is not None and end_ps <= info.time_last_ps
        # At the end of all frames, and not of a file that others follow.
        at_end = loss.at_end and n_whole_frames == info.n_frames
        if not (ends_by_frame or (ends_by_time and at_end)):
            advice = ""
            if n_whole_frames < info.n_frames:  # `split`, which ends here too, has no --stop
                advice = (
                    f", or convert with --stop {n_whole_frames} (stop={n_whole_frames}) to take "
                    "those before it"
                )
            frames = plural(info.n_frames, "whole frame")
            raise SourceError(f"{loss}; add --salvage (salvage=True) to take the {frames}{advice}")


def split_readable(source: Layout, frames: FrameNumbers) -> tuple[FrameNumbers, list[list[int]]]:
    """Return those of `frames` that can be read, and runs of the frames of `source` that cannot.

    Reads all of the source. Raises SourceError: none can be read. OSError: the mount is lost.
    """
    unreadable: list[int] = []
    for unit in frame_units(source.info, source.boundaries(), source.read):
        if not can_read(unit.check):
            unit_frames = range(*unit.frames or (0, 0))
            source.prefetch((frame, frame + 1) for frame in unit_frames)
            unreadable += [
                frame
                for frame in unit_frames
                if not can_read(partial(source.read, frame, frame + 1))
            ]
            source.prefetch(())
    if not unreadable:
        return frames, []
    readable = np.setdiff1d(np.asarray(frames, np.int64), unreadable)
    if not len(readable):
        raise SourceError(f"{source.path}: none of its frames can be read")
    return readable, runs_from_indices(unreadable)


def can_read(read: Callable[[], Any]) -> bool:
    """Return whether a call reads without an error; raises OSError: the mount is lost."""
    try:
        read()
    except OSError as error:
        if is_mount_lost(error):
            raise
        return False
    return True


def universe_from_topology(top: AnyTopology, source: Layout) -> Universe:
    """Return a Universe of topology `top` with the first frame of `source` as its coordinates.

    The frame is read when coordinates are. A Universe as `top` is copied.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on guessed and missing attributes
        universe = _topology_universe(top)
        n_atoms = source.info.n_atoms
        if len(universe.atoms) != n_atoms:
            raise SourceError(
                f"{source.path} has {n_atoms} atoms, but the topology {top} has "
                f"{len(universe.atoms)}; give the topology that belongs to the trajectory"
            )
        _set_first_frame(universe, source)
    return universe


def stored_universe(topology: Topology, source: Layout) -> Universe:
    """Return a Universe of a stored topology, with the first frame of `source`."""
    universe = universe_of(topology)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _set_first_frame(universe, source)
    return universe


def _set_first_frame(universe: Universe, source: Layout) -> None:
    from mdio.layouts.foreign.first_frame import FirstFrame

    universe.trajectory = FirstFrame(source)


class ParsedTopology(PathLike[str]):
    """The path of a topology file that is parsed once in a process, for several conversions."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self._path = fspath(path)

    def __fspath__(self) -> str:
        return self._path

    __str__ = __fspath__

    def __reduce__(self) -> tuple[Any, ...]:
        return ParsedTopology, (self._path,)

    @cached_property
    def universe(self) -> Universe:
        """The topology, of which others are copies."""
        return _read_topology(self._path)


def _topology_universe(top: AnyTopology) -> Universe:
    """Return a new Universe of a topology, without coordinates."""
    if isinstance(top, ParsedTopology):
        return _copy_topology(top.universe)
    return _read_topology(top) if isinstance(top, str | PathLike) else _copy_topology(top)


def _copy_topology(universe: Universe) -> Universe:
    """Return a Universe of the same topology, without coordinates."""
    import MDAnalysis as mda

    if not isinstance(universe, mda.Universe):
        raise PlanError(f"{universe!r} is no topology; give a file or a Universe")
    copy = mda.Universe(universe._topology.copy(), to_guess=())
    copy.filename = universe.filename
    return copy


def _read_topology(top: str | PathLike[str]) -> Universe:
    import MDAnalysis as mda
    from MDAnalysis.core._get_readers import get_parser_for

    path = to_path(top)
    try:
        with store_at(path).as_local_file(path) as file:
            if file.exists():
                check_regular(file)
            # Where the suffix names the format, the file is not opened to find it.
            suffix = file.suffix[1:].upper()
            format_name = suffix if suffix in mda._PARSERS else None
            # A Universe of the file's name would also read the coordinates that it may have.
            with get_parser_for(str(file), format=format_name)(str(file)) as parser:
                universe = universe_from_parser(parser)
        universe.filename = str(top)
        return universe
    except FileNotFoundError as error:
        raise SourceError(
            f"{top}: no such file; give the topology of the trajectory, or an output of mdio that "
            "holds it, with -s/--top"
        ) from error
    except (
        OSError,
        ValueError,
        TypeError,
        KeyError,
        IndexError,
        EOFError,
        NotImplementedError,
    ) as error:
        reason = " ".join(str(error).split()).partition(" You can use 'Universe(")[0]
        if not reason:
            is_truncated = isinstance(error, EOFError)
            reason = "it is truncated: copy it again" if is_truncated else type(error).__name__
        raise SourceError(
            f"{top}: cannot be read as a topology ({reason}); give a TPR, PSF, PRMTOP, PDB, GRO or "
            "another file that MDAnalysis reads as one"
        ) from error


def open_with_topology(
    source: str | PathLike[str] | Sequence[str | PathLike[str]],
    top: AnyTopology | None,
    **options: Any,
) -> Layout:
    """Open a source; `top` says how many atoms it has where its format (AMBER's ASCII) does not."""
    layout = open_source(source, **options)
    try:
        layout.info  # noqa: B018 - opens it
    except AtomCountError:
        if top is None:
            raise
        return open_source(source, n_atoms=atom_count(top), **options)
    return layout


def atom_count(top: AnyTopology) -> int:
    """Return the number of atoms of a topology; raises SourceError if it cannot be read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return len(_topology_universe(top).atoms)


PDB_NAME_LETTERS = 4


@dataclass(eq=False)
class SelectedAtoms:
    """The atoms to keep, and the groups among them."""

    universe: Universe | None
    """The topology, where one was given."""
    atoms: NDArray[np.int64] | None
    """(A,) indices of the atoms to keep in the source; None = all."""
    groups: dict[str, NDArray[np.int64]]
    """By name, indices into the atoms to keep."""
    source_topology: Topology | None = None
    notes: tuple[str, ...] = ()
    """Notes on guessed attributes of atoms, and on topologies that differ."""

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the topology: other processes need only indices."""
        return {**self.__dict__, "universe": None, "source_topology": None}

    @property
    def topology(self) -> Topology | None:
        """The topology of the kept atoms, from the topology file or else from the source."""
        if self.universe is not None:
            return topology_of(self.universe, self.atoms)
        if self.source_topology is None or self.atoms is None:
            return self.source_topology
        return self.source_topology.take(self.atoms)

    def residues(self, atoms: NDArray[np.int64]) -> Residues | None:
        """Return the residues of some atoms of the source; None without a topology."""
        if self.universe is not None:
            return residues_of(self.universe, atoms)
        return None if self.source_topology is None else self.source_topology.residues(atoms)

    @property
    def topology_paths(self) -> list[Path]:
        """The file of the topology, where one was given."""
        name = getattr(self.universe, "filename", None)
        return [to_path(name)] if isinstance(name, str | PathLike) else []

    def atom_group(self, group: str | None = None) -> Any:
        """Return the MDAnalysis AtomGroup of the kept atoms, or of one of the groups."""
        assert self.universe is not None
        atoms = self.universe.atoms if self.atoms is None else self.universe.atoms[self.atoms]
        return atoms if group is None else atoms[self.groups[group]]


def notes_on_cut_names(
    topology: Topology | None, holder: str, n_letters: int, *, holds_segments: bool = True
) -> list[str]:
    """Return notes if names, or numbers of residues, are longer than a file of a topology holds.

    `holder`: how the note calls the file. `n_letters`: of the name of an atom, a residue or a
    segment, and digits of the number of a residue, of which the last are kept. Cut names of
    segments are noted only if some are then the same: MDAnalysis gives those of a TPR long names.
    """
    if topology is None:
        return []
    notes = []
    columns = filter(None, map(topology.texts, ("names", "resnames")))
    names = dict.fromkeys(name for column in columns for name in column.values())
    long_names = [name for name in names if len(name) > n_letters]
    if long_names:
        have = "has" if len(long_names) == 1 else "have"
        notes.append(
            f"{holder} holds {n_letters} letters of a name, and "
            f"{plural(len(long_names), 'name')} of atoms or residues {have} more, such as "
            f"{long_names[0]}; h5md and zarr hold them in full"
        )
    resids = topology.numbers("resids")
    if resids is not None and resids.max(initial=0) >= 10**n_letters:
        number = resids[resids >= 10**n_letters][0]
        notes.append(
            f"{holder} holds {n_letters} digits of the number of a residue, and the highest is "
            f"{resids.max()}: {number} becomes {number % 10**n_letters}, which others may have; "
            "h5md and zarr hold them in full"
        )
    segids = topology.texts("segids") if holds_segments else None
    first_names: dict[str, str] = {}
    for name in () if segids is None else segids.values():
        first_name = first_names.setdefault(name[:n_letters], name)
        if first_name != name:
            notes.append(
                f"{holder} holds {n_letters} letters of the name of a segment: {first_name} and "
                f"{name} become {name[:n_letters]}; h5md and zarr hold them in full"
            )
            break
    return notes


MAX_CONECT_SERIAL = 99_999
"""The last atom for whose bonds PDB has room; if others have bonds, none are written."""


def notes_on_missing_bonds(topology: Topology | None, holder: str) -> list[str]:
    """Return a note if a PDB file of a topology has no room for bonds that the topology has."""
    bonds = None if topology is None else topology.numbers(BONDS)
    if bonds is None or bonds.max(initial=0) < MAX_CONECT_SERIAL:
        return []
    return [
        f"{holder} holds no bonds: PDB has room for those of {MAX_CONECT_SERIAL} atoms; h5md and "
        "zarr hold them"
    ]


def choose_atoms(
    source: Layout,
    top: AnyTopology | None,
    select: AtomSelection | None,
    groups: Mapping[str, AtomSelection],
) -> SelectedAtoms:
    """Return the atoms that the user selected.

    `source`: the trajectory; selections by place are evaluated on its first frame. `top`: needed
    for selection strings, and checked against `source` if given. `select`: atoms to keep:
    MDAnalysis selection language, indices in the source, a mask, or an AtomGroup. `groups`: names
    and selections, of the atoms that are kept.
    """
    texts = [selection for selection in (select, *groups.values()) if isinstance(selection, str)]
    source_topology = source.topology() if top is None else None
    if texts and top is None and source_topology is None:
        raise PlanError(
            f"{source.path}: the selection {texts[0]!r} needs a topology; give one with "
            "-s/--top FILE (top= in Python)"
        )
    universe, notes = None, list[str]()
    if top is not None:
        universe = universe_from_topology(top, source)
        notes += compare_names(universe.atoms, stored_topology(source), top, source.path)
        if not any(hasattr(universe.atoms, name) for name in ("names", "types", "elements")):
            notes.append(
                f"{top}: holds no names, types or elements, only coordinates; to store "
                "them, give a topology (TPR, PSF, PRMTOP, PDB, GRO) with -s/--top"
            )
    n_atoms, full_universe = source.info.n_atoms, universe

    def select_atoms(
        selection: AtomSelection, candidates: NDArray[np.int64], option: str
    ) -> NDArray[np.int64]:
        """Return the selected atoms: by a text, among `candidates`; or by indices in the source."""
        nonlocal full_universe
        if not isinstance(selection, str):
            return atom_indices(selection, n_atoms, source.path, option=option)
        indices = None
        if source_topology is not None:
            is_by_number = re.search(r"\b(index|bynum)\b", selection) is not None  # of all atoms
            if len(candidates) == n_atoms or not is_by_number:
                indices = select_stored(source_topology.take(candidates), selection)
        if indices is not None:
            indices = np.unique(candidates[indices])
        else:
            if full_universe is None:
                assert source_topology is not None
                full_universe = stored_universe(source_topology, source)
            indices = select_by_mdanalysis(
                full_universe.atoms[candidates], selection, option, notes
            )
        if not len(indices):
            raise PlanError(f"{option}: {selection!r} selects no atoms")
        return indices

    all_atoms = np.arange(n_atoms, dtype=np.int64)
    selected_indices = None if select is None else select_atoms(select, all_atoms, "--select")
    atoms = all_atoms if selected_indices is None else selected_indices
    output_indices = np.full(source.info.n_atoms, -1, dtype=np.int64)
    output_indices[atoms] = np.arange(len(atoms))
    group_indices = {}
    for name, selection in groups.items():
        alphanumerics = name.replace("_", "").replace("-", "") if isinstance(name, str) else ""
        if name == "trajectory" or not alphanumerics.isalnum():
            raise PlanError(
                f"a group cannot be called {name!r}; use letters, digits, - and _ "
                "('trajectory' is the name of the full system)"
            )
        group_atoms = select_atoms(selection, atoms, f"--group {name}")
        group_indices[name] = output_indices[group_atoms]
        if np.any(group_indices[name] < 0):
            raise PlanError(f"--group {name}: some of its atoms are not in --select; widen that")
    return SelectedAtoms(universe, selected_indices, group_indices, source_topology, tuple(notes))
