"""The system of an analysis: its topology, and frames in which the box cuts molecules.

RMSD, radius of gyration and fluctuations take coordinates as they are: where neighbouring atoms lie
on two sides of the box, their values may look right and are wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import PlanError, SourceError
from mdio.core.files.store import to_path
from mdio.core.frames import AtomIndices, FrameBlock
from mdio.core.kernels import cut_frames
from mdio.core.topology import RESINDEX, SEGINDEX, Texts, Topology
from mdio.core.topology import select as select_stored
from mdio.core.words import plural, runs_text
from mdio.layouts.base import Layout
from mdio.layouts.foreign.universe import classes_of, masses_of, selected, topology_of
from mdio.layouts.manifest import indices_from_runs, runs_from_indices
from mdio.layouts.registry import open_layout
from mdio.layouts.views.options import FITS

if TYPE_CHECKING:
    from MDAnalysis import Universe


MORE_WATERS = ("OPC", "OPC3", "SPC", "SPCE", "TIP5")
"""Names of residues of water besides those that MDAnalysis knows."""


class System:
    """A trajectory and its topology, which is read when it is first needed.

    `layout`: the trajectory. `top`: topology file, or an MDAnalysis Universe. `group`: the stored
    atom group that `layout` reads; the topology may then be that of the group or that of the full
    system. `stored`: the layout on disk, if `layout` transforms its frames.
    """

    def __init__(
        self,
        layout: Layout,
        top: str | PathLike[str] | Universe | None = None,
        group: str | None = None,
        stored: Layout | None = None,
    ) -> None:
        self.layout = layout
        self.stored = layout if stored is None else stored
        self._top = top
        self._group = group
        self.notes: list[str] = []
        """Notes on guessed properties of atoms."""
        self._universe: Any = None
        self._group_atoms: AtomIndices | None = None

    @property
    def universe(self) -> Universe:
        """The topology, as MDAnalysis has it.

        Raises PlanError: there is none. SourceError: it cannot be read, or does not fit the
        trajectory.
        """
        if self._universe is None and self._top is None and self.topology is not None:
            from mdio.converters.selection import stored_universe

            self._universe = stored_universe(self.topology, self.layout)
        if self._universe is None:
            if self._top is None:
                raise PlanError(
                    f"{self.layout.path}: this analysis needs a topology; name one with -s/--top"
                )
            self._universe = self._load(self._top)
            self._group_atoms = self._find_group_atoms(len(self._universe.atoms))
        return self._universe

    @cached_property
    def topology(self) -> Topology | None:
        """The topology in the trajectory, or that of a file that was parsed before.

        None where MDAnalysis has to parse a file.
        """
        if self._top is None:
            return self.stored.topology()
        if self._group is not None or not isinstance(self._top, str | PathLike):
            return None
        from mdio.layouts.foreign.parsed import parsed_topology

        parsed = parsed_topology(to_path(self._top))
        fits = parsed is not None and parsed.n_atoms == self.layout.info.n_atoms
        return parsed if fits else None

    def select(self, selection: str | None) -> AtomIndices | None:
        """Return the selected atoms, as indices into the layout's atoms.

        `selection`: in MDAnalysis' selection language; None or ``all`` needs no topology.
        Returns (n,) int64, or None for all.
        Raises PlanError: the selection is wrong or empty, reaches outside of the stored group, or
        there is no topology.
        """
        if selection is not None and not isinstance(selection, str):
            raise PlanError(
                f"{type(selection).__name__} is no selection in MDAnalysis' language; give 'index "
                "0 5 7' for indices, 'index ' + ' '.join(map(str, ag.indices)) for an AtomGroup"
            )
        if selection is None or selection.strip() == "all":
            return None
        atoms = None
        if self.topology is not None:  # faster than importing MDAnalysis
            atoms = select_stored(self.topology, selection)
        if atoms is None:
            atoms = selected(self.universe.atoms, selection, notes=self.notes)
        if not atoms.size:
            raise PlanError(f"{selection!r} selects no atom of {self._top or self.layout.path}")
        return self.to_layout(atoms, selection)

    def atoms(self, selection: str | None) -> AtomIndices:
        """Return the selected atoms as `select` does, but all atoms as indices, too."""
        atoms = self.select(selection)
        return np.arange(self.layout.info.n_atoms) if atoms is None else atoms

    def to_layout(self, atoms: AtomIndices, selection: str) -> AtomIndices:
        """Turn indices into the topology's atoms into indices into the layout's atoms.

        Raises PlanError: the stored group that the layout reads lacks some of them.
        """
        if self._group_atoms is None:
            return atoms
        order = np.argsort(self._group_atoms, kind="stable")
        members = self._group_atoms[order]
        positions = np.minimum(np.searchsorted(members, atoms), members.size - 1)
        n_missing = int(np.count_nonzero(members[positions] != atoms))
        if n_missing:
            raise PlanError(
                f"{self.layout.path}: {n_missing} of {len(atoms)} atoms of {selection!r} are not "
                f"in the stored group {self._group!r}; leave the group out, or select less"
            )
        return order[positions].astype(np.int64)

    def masses(self, atoms: AtomIndices | None) -> NDArray[np.float64]:
        """Return the masses (u) of atoms of the layout.

        Raises PlanError: there is no topology, or it has neither masses nor elements.
        """
        stored = None if self.topology is None else self.topology.numbers("masses")
        if stored is not None:
            return stored if atoms is None else stored[atoms]
        if self._top is None and self.topology is None:
            raise PlanError(
                f"{self.layout.path}: weighting atoms by mass needs a topology; name one with "
                "-s/--top, or weight all equally with --weights none (in Python: weights=None)"
            )
        universe = self.universe
        path = self._top if isinstance(self._top, str | PathLike) else self.layout.path
        group = self._group_atoms
        own_atoms = atoms if group is None else group[... if atoms is None else atoms]
        try:
            masses = masses_of(universe, own_atoms, self.notes, path)
        except (ValueError, AttributeError) as error:
            raise PlanError(
                f"{path}: it has no masses, and they cannot be guessed ({error}); use a topology "
                "that has them, or --weights none"
            ) from error
        if group is not None:
            masses = masses[group]
        return masses if atoms is None else masses[atoms]

    def atom_names(self, atoms: AtomIndices | None) -> list[str] | None:
        """Return names of atoms of the layout, ``4AKE:MET1:CA``; None without a topology."""
        n_atoms = self.layout.info.n_atoms if atoms is None else len(atoms)
        columns = ("segids", "resnames", "resids", "icodes", "names")
        parts = [self._texts(name, atoms) for name in columns]
        if not any(parts):
            return None
        return [
            ":".join(filter(None, (segment, residue + number + icode.strip(), name)))
            for segment, residue, number, icode, name in zip(
                *(part or [""] * n_atoms for part in parts), strict=True
            )
        ]

    def residue_numbers(self, atoms: AtomIndices | None) -> list[int]:
        """Return the numbers of the residues of atoms of the layout; none without a topology."""
        return [int(number) for number in self._texts("resids", atoms) or ()]

    def _texts(self, name: str, atoms: AtomIndices | None) -> list[str] | None:
        """Return an attribute of atoms of the layout as texts; None if it is not known."""
        if self.topology is not None:
            column = self.topology.per_atom(name)
            values = column.values() if isinstance(column, Texts) else column
        elif self._top is not None:
            every_atom = self.universe.atoms
            group = self._group_atoms
            values = getattr(every_atom if group is None else every_atom[group], name, None)
        else:
            return None
        if values is None:
            return None
        return [str(value) for value in (values if atoms is None else values[atoms])]

    def _residues(self) -> tuple[Any, Any, Texts | None, Mapping[str, tuple[str, ...]]] | None:
        """Return what is known of residues; None if no topology was read, or it has none.

        That is, the residue of each atom of the layout, and of residues the segments, the names,
        and the classes of these.
        """
        topology = self.topology if self._top is None or self.topology_is_read else None
        if topology is not None:
            atoms, segments = topology.numbers(RESINDEX), topology.numbers(SEGINDEX)
            return atoms, segments, topology.texts("resnames"), topology.classes
        if self._universe is None:
            return None
        residues, group = self._universe.residues, self._group_atoms
        names = getattr(residues, "resnames", None)
        texts = None if names is None else Texts.of(names)
        atoms = self._universe.atoms.resindices[... if group is None else group]
        return atoms, residues.segindices, texts, classes_of(texts)

    @property
    def waters(self) -> tuple[str, ...]:
        """Names of residues of water, if a topology has been read."""
        _, _, names, classes = self._residues() or (None, None, None, {})
        waters = {*classes.get("water", ()), *MORE_WATERS}
        return () if names is None else tuple(name for name in names.table if name in waters)

    def neighbours(self, atoms: AtomIndices | None) -> NDArray[np.int64] | None:
        """Return positions in `atoms` of those that are in one molecule with the next, (n,) int64.

        That is, in one residue, or in neighbouring residues of a chain of protein or nucleic acid.
        Returns None if no topology was read.
        """
        residues, segments, texts, classes = self._residues() or (None, None, None, {})
        if residues is None:
            return None
        residues = residues if atoms is None else residues[atoms]
        step = np.diff(residues.astype(np.int64))
        is_neighbour = step == 0
        if texts is not None:
            polymers = {*classes.get("protein", ()), *classes.get("nucleic", ())}
            in_chain = np.array([name in polymers for name in texts.table], bool)[texts.codes]
            first, second = residues[:-1], residues[1:]
            same_segment = True if segments is None else segments[first] == segments[second]
            is_neighbour |= (step == 1) & same_segment & in_chain[first] & in_chain[second]
        return np.flatnonzero(is_neighbour)

    @property
    def topology_is_read(self) -> bool:
        """Whether the topology has been read."""
        return self._universe is not None or self.__dict__.get("topology") is not None

    def read_topology(self) -> None:
        """Read the topology that was given, unless that is done, to check that it fits.

        Raises SourceError: it cannot be read, or does not fit the trajectory.
        """
        if self._top is not None and self.topology is None:
            _ = self.universe

    def frame(self, number: int, atoms: AtomIndices | None) -> FrameBlock:
        """Return a frame; a negative number counts from the end."""
        n_frames = self.layout.info.n_frames
        start = number + n_frames if number < 0 else number
        if not 0 <= start < n_frames:
            raise PlanError(
                f"{self.layout.path}: reference frame {number} asked for, but it has {n_frames} "
                f"frames; give -{n_frames} to {n_frames - 1}"
            )
        return self.layout.read(start, start + 1, atoms=atoms)

    @property
    def is_superposed(self) -> bool:
        """Whether all frames are laid on one, as they were stored or as they are read."""
        return FITS[0] in self.treatments("fit")

    def treatments(self, option: str) -> tuple[Any, Any]:
        """Return the values of ``fit`` or ``pbc`` as frames were stored, and as they are read."""
        stored = (self._manifest or {}).get("source", {}).get("transformed") or {}
        return stored.get(option), self.layout.options.get(option)

    @property
    def _manifest(self) -> Mapping[str, Any] | None:
        _ = self.layout.info  # opens it
        return self.stored.member_runs[0][0].manifest

    def _load(self, top: Any) -> Any:
        """Return the Universe, which has to fit the stored group or the full system."""
        if not isinstance(top, str | PathLike):
            return top
        from mdio.converters.selection import load_topology
        from mdio.layouts.foreign.parsed import identity_of, store_parsed

        full = self.layout
        if self._group is not None and self._manifest is not None:
            stored = self.stored.member_runs[0][0]
            full = open_layout(stored.path, verify=stored.verify, uuid=stored.uuid)
        state = identity_of(to_path(top))
        try:
            universe = load_topology(top, full)
        except SourceError:
            if full is self.layout:
                raise
            universe = load_topology(top, self.layout)
        finally:
            if full is not self.layout:
                full.close()
        if self._group is None and self.topology is None:
            store_parsed(to_path(top), state, topology_of(universe))
        return universe

    def _find_group_atoms(self, n_atoms: int) -> AtomIndices | None:
        """Return the layout's atoms as indices into the topology; None if they are the same."""
        n_own_atoms = self.layout.info.n_atoms
        manifest = self._manifest
        if self._group is not None and manifest is not None and n_atoms == manifest["n_atoms"]:
            return indices_from_runs(manifest["group_atoms"][self._group])
        if n_atoms != n_own_atoms:
            raise SourceError(
                f"{self.layout.path} has {n_own_atoms} atoms, but the topology {self._top} has "
                f"{n_atoms}; give the topology that belongs to the trajectory"
            )
        return None


ALONG_CHAIN = 8.0
"""Largest distance of successive atoms within a residue, or of neighbouring residues, angstrom."""
BONDED = 1.7
"""Largest distance of successive atoms that are bonded, angstrom; used without a topology."""
MAX_RUNS = 5
"""Runs of frames that a note names."""


@dataclass(frozen=True)
class CutMolecules:
    """Finds the frames in which the box cuts molecules."""

    pairs: NDArray[np.int64]
    """Atoms, as positions in those that are read, that are in one molecule with the next, (n,)."""
    near: float
    """Largest distance of such neighbours, angstrom."""

    @classmethod
    def of(cls, system: System, atoms: NDArray[np.int64] | None) -> CutMolecules | None:
        """Return a finder for frames of some atoms; None if none of them are neighbours."""
        n_atoms = system.layout.info.n_atoms if atoms is None else len(atoms)
        pairs = system.neighbours(atoms)
        if pairs is None:
            return cls(np.arange(n_atoms - 1), BONDED) if n_atoms > 1 else None
        return cls(pairs, ALONG_CHAIN) if len(pairs) else None

    def frames(self, block: FrameBlock) -> NDArray[np.int64]:
        """Return numbers of the frames, (n,), that have neighbours on two sides of the box."""
        return np.flatnonzero(cut_frames(block.positions, block.box, self.pairs, self.near))


def cut_note(frames: Sequence[int], n_frames: int) -> str:
    """Return the note on molecules that the box cuts in some of the frames analysed."""
    names = runs_text(runs_from_indices(np.unique(frames)), MAX_RUNS)
    return (
        f"the box cuts molecules in {len(frames):,} of {plural(n_frames, 'frame')} ({names}): "
        "neighbouring atoms lie on two sides of it, so that values there are wrong; make molecules "
        "whole with --pbc whole (in Python: pbc='whole')"
    )
