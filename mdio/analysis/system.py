"""What a kernel can ask of the system that it will analyse.

Molecules that the box cuts: frames in which neighbouring atoms lie on two sides of it.

RMSD, radius of gyration and fluctuations take coordinates as they are. Of such frames they give
numbers that may look right and are not.
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
from mdio.core.files.store import path_of
from mdio.core.frames import AtomIndices, FrameBlock
from mdio.core.kernels import cut_frames
from mdio.core.topology import RESINDEX, SEGINDEX, Texts, Topology
from mdio.core.topology import select as select_stored
from mdio.core.words import plural, runs_text
from mdio.layouts.base import Layout
from mdio.layouts.foreign.universe import classes_of, masses_of, selected, topology_of
from mdio.layouts.manifest import indices_from_runs, runs_from_indices
from mdio.layouts.registry import open_layout

if TYPE_CHECKING:
    from MDAnalysis import Universe


MORE_WATERS = ("OPC", "OPC3", "SPC", "SPCE", "TIP5")
"""What residues of water are called besides the names that MDAnalysis takes for water."""


class System:
    """A trajectory and, if one was given, its topology, which is only read when it is asked for.

    `layout`: the trajectory. `top`: topology file, or an MDAnalysis Universe. `group`: the stored
    atom group that `layout` reads; the topology may then be that of the group or that of the full
    system. `stored`: what lies on disk, where `layout` changes its frames.
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
        """What was guessed of the atoms."""
        self._universe: Any = None
        self._stored: AtomIndices | None = None

    @property
    def universe(self) -> Universe:
        """The topology, as MDAnalysis has it.

        Raises PlanError: None was given. SourceError: it cannot be read, or does not fit the
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
            self._stored = self._atoms_of_group(len(self._universe.atoms))
        return self._universe

    @cached_property
    def topology(self) -> Topology | None:
        """What the trajectory itself holds of its atoms, or a topology file that was parsed before.

        None where MDAnalysis has to be asked.
        """
        if self._top is None:
            return self.stored.topology()
        if self._group is not None or not isinstance(self._top, str | PathLike):
            return None
        from mdio.layouts.foreign.parsed import parsed_topology

        parsed = parsed_topology(path_of(self._top))
        fits = parsed is not None and parsed.n_atoms == self.layout.info.n_atoms
        return parsed if fits else None

    @property
    def _known(self) -> Topology | None:
        """The same, but no topology file is looked at for it."""
        return self.topology if self._top is None or self.looked else None

    def select(self, selection: str | None) -> AtomIndices | None:
        """Return the atoms that a selection means, as indices into the layout's atoms.

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
        found = None
        if self.topology is not None:  # MDAnalysis takes longer to import than this
            found = select_stored(self.topology, selection)
        if found is None:
            found = selected(self.universe.atoms, selection, notes=self.notes)
        if not found.size:
            raise PlanError(f"{selection!r} selects no atom of {self._top or self.layout.path}")
        return self.to_layout(found, selection)

    def atoms(self, selection: str | None) -> AtomIndices:
        """Return the same as `select`, with all atoms numbered too."""
        found = self.select(selection)
        return np.arange(self.layout.info.n_atoms) if found is None else found

    def to_layout(self, atoms: AtomIndices, what: str) -> AtomIndices:
        """Turn indices into the topology's atoms into indices into the layout's atoms.

        Raises PlanError: the stored group that the layout reads lacks some of them; `what` names
        them.
        """
        if self._stored is None:
            return atoms
        order = np.argsort(self._stored, kind="stable")
        members = self._stored[order]
        at = np.minimum(np.searchsorted(members, atoms), members.size - 1)
        n_missing = int(np.count_nonzero(members[at] != atoms))
        if n_missing:
            raise PlanError(
                f"{self.layout.path}: {n_missing} of {len(atoms)} atoms of {what!r} are not in the "
                f"stored group {self._group!r}; leave the group out, or select less"
            )
        return order[at].astype(np.int64)

    def masses(self, atoms: AtomIndices | None) -> NDArray[np.float64]:
        """Return the masses (u) of atoms of the layout.

        Raises PlanError: there is no topology, or it has no masses and no elements to tell them
        from.
        """
        known = None if self.topology is None else self.topology.numbers("masses")
        if known is not None:
            return known if atoms is None else known[atoms]
        if self._top is None and self.topology is None:
            raise PlanError(
                f"{self.layout.path}: weighting atoms by mass needs a topology; name one with "
                "-s/--top, or weight all equally with --weights none (in Python: weights=None)"
            )
        universe = self.universe
        named = self._top if isinstance(self._top, str | PathLike) else self.layout.path
        picked = atoms if self._stored is None else self._stored[... if atoms is None else atoms]
        try:
            masses = masses_of(universe, picked, self.notes, named)
        except (ValueError, AttributeError) as error:
            raise PlanError(
                f"{named}: it has no masses, and they cannot be guessed ({error}); use a topology "
                "that has them, or --weights none"
            ) from error
        if self._stored is not None:
            masses = masses[self._stored]
        return masses if atoms is None else masses[atoms]

    def atom_names(self, atoms: AtomIndices | None) -> list[str] | None:
        """Return what atoms of the layout are called, ``4AKE:MET1:CA``; None without a topology."""
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

    def _texts(self, name: str, atoms: AtomIndices | None) -> list[str] | None:
        """Return an attribute of atoms of the layout as texts; None if it is not known."""
        if self.topology is not None:
            column = self.topology.per_atom(name)
            values = column.values() if isinstance(column, Texts) else column
        elif self._top is not None:
            found = self.universe.atoms
            found = found if self._stored is None else found[self._stored]
            values = getattr(found, name, None)
        else:
            return None
        if values is None:
            return None
        return [str(value) for value in (values if atoms is None else values[atoms])]

    @property
    def waters(self) -> tuple[str, ...]:
        """Names of the residues that are water, as far as a topology tells that has been read."""
        if self._known is not None:
            names, classes = self._known.texts("resnames"), self._known.classes
        else:
            found = getattr(getattr(self._universe, "residues", None), "resnames", None)
            names = None if found is None else Texts.of(found)
            classes = {} if names is None else classes_of(names)
        known = {*classes.get("water", ()), *MORE_WATERS}
        return () if names is None else tuple(name for name in names.table if name in known)

    def neighbours(self, atoms: AtomIndices | None) -> NDArray[np.int64] | None:
        """Return which of some atoms have the next one of them beside them in their molecule.

        Those of one residue have, and of residues that follow each other in a chain of protein or
        nucleic acid. Returns places in `atoms`, (n,) int64; None where no topology was read.
        """
        topology = self._known
        if topology is None:
            if self._universe is None:
                return None
            universe: Any = self._universe
            residues, segments = universe.atoms.resindices, universe.residues.segindices
            names = getattr(universe.residues, "resnames", None)
            texts = None if names is None else Texts.of(names)
            classes: Mapping[str, tuple[str, ...]] = {} if texts is None else classes_of(texts)
            if self._stored is not None:
                residues = residues[self._stored]
        else:
            stored, of_residues = topology.numbers(RESINDEX), topology.numbers(SEGINDEX)
            if stored is None:
                return None
            residues = stored
            segments = np.zeros(len(residues), np.int64) if of_residues is None else of_residues
            texts, classes = topology.texts("resnames"), topology.classes
        residues = residues if atoms is None else residues[atoms]
        step = np.diff(residues.astype(np.int64))
        beside = step == 0
        if texts is not None:
            polymers = {*classes.get("protein", ()), *classes.get("nucleic", ())}
            in_chain = np.array([name in polymers for name in texts.table], bool)[texts.codes]
            ends = residues[:-1], residues[1:]
            same = segments[ends[0]] == segments[ends[1]]
            beside |= (step == 1) & same & in_chain[ends[0]] & in_chain[ends[1]]
        return np.flatnonzero(beside)

    @property
    def looked(self) -> bool:
        """Whether a topology that was given has been read."""
        return self._universe is not None or self.__dict__.get("topology") is not None

    def look(self) -> None:
        """Read the topology that was given, if that was not done: it has to fit.

        Raises SourceError: it cannot be read, or does not fit the trajectory.
        """
        if self._top is not None and self.topology is None:
            _ = self.universe

    def frame(self, number: int, atoms: AtomIndices | None) -> FrameBlock:
        """Return one frame; a negative number counts from the end."""
        n_frames = self.layout.info.n_frames
        at = number + n_frames if number < 0 else number
        if not 0 <= at < n_frames:
            raise PlanError(
                f"{self.layout.path}: reference frame {number} asked for, but it has {n_frames} "
                f"frames; give -{n_frames} to {n_frames - 1}"
            )
        return self.layout.read(at, at + 1, atoms=atoms)

    @property
    def _manifest(self) -> Mapping[str, Any] | None:
        _ = self.layout.info  # opens it
        return self.stored.kept[0][0].manifest

    def _load(self, top: Any) -> Any:
        """Return the Universe, checked against the layout or against the system behind its group.

        A group's topology has as many atoms as the group, a full one as many as the full system.
        """
        if not isinstance(top, str | PathLike):
            return top
        from mdio.converters.selection import load_topology
        from mdio.layouts.foreign.parsed import state_of, store_parsed

        full = self.layout
        if self._group is not None and self._manifest is not None:
            one = self.stored.kept[0][0]
            full = open_layout(one.path, verify=one.verify, uuid=one.uuid)
        state = state_of(path_of(top))
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
            store_parsed(path_of(top), state, topology_of(universe))
        return universe

    def _atoms_of_group(self, n_atoms: int) -> AtomIndices | None:
        """Return the layout's atoms as indices into the topology; None if they are the same."""
        n_here = self.layout.info.n_atoms
        manifest = self._manifest
        if self._group is not None and manifest is not None and n_atoms == manifest["n_atoms"]:
            return indices_from_runs(manifest["group_atoms"][self._group])
        if n_atoms != n_here:
            raise SourceError(
                f"{self.layout.path} has {n_here} atoms, but the topology {self._top} has "
                f"{n_atoms}; give the topology that belongs to the trajectory"
            )
        return None


ALONG_CHAIN = 8.0
"""Atoms that follow each other within a residue, or from one to the next, are nearer, angstrom."""
BONDED = 1.7
"""So are those that follow each other in a file and are bonded; those of two molecules are not."""
MOST_RUNS = 5
"""Runs of frames that a note names."""


@dataclass(frozen=True)
class CutMolecules:
    """Finds the frames in which the box cuts molecules."""

    pairs: NDArray[np.int64]
    """Which atoms, of those that are read, have the next one beside them in their molecule."""
    near: float
    """How near neighbours are, angstrom."""

    @classmethod
    def of(cls, system: System, atoms: NDArray[np.int64] | None) -> CutMolecules | None:
        """Return what looks at the frames of some atoms; None if none of them are neighbours."""
        n_atoms = system.layout.info.n_atoms if atoms is None else len(atoms)
        pairs = system.neighbours(atoms)
        if pairs is None:
            return cls(np.arange(n_atoms - 1), BONDED) if n_atoms > 1 else None
        return cls(pairs, ALONG_CHAIN) if len(pairs) else None

    def frames(self, block: FrameBlock) -> NDArray[np.int64]:
        """Return which frames of a block, (n,), have neighbours on two sides of the box."""
        return np.flatnonzero(cut_frames(block.positions, block.box, self.pairs, self.near))


def cut_note(frames: Sequence[int], n_frames: int) -> str:
    """Return the note on molecules that the box cuts in some of the frames analysed."""
    names = runs_text(runs_from_indices(np.unique(frames)), MOST_RUNS)
    return (
        f"the box cuts molecules in {len(frames):,} of {plural(n_frames, 'frame')} ({names}): "
        "neighbouring atoms lie on two sides of it, so that values there are wrong; make molecules "
        "whole with --pbc whole (in Python: pbc='whole')"
    )
