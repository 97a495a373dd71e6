"""The system of an analysis: the trajectory and its topology."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import PlanError, SourceError
from mdio.core.files.store import to_path
from mdio.core.frames import AtomIndices, FrameBlock
from mdio.core.topology import Residues, Texts, Topology
from mdio.core.topology import select as select_stored
from mdio.core.words import plural
from mdio.layouts.base import Layout, atom_indices
from mdio.layouts.foreign.universe import (
    compare_names,
    masses_of,
    note_on_reference_names,
    residues_of,
    select_by_mdanalysis,
    stored_topology,
    topology_of,
)
from mdio.layouts.manifest import indices_from_runs, stored_transformation
from mdio.layouts.registry import open_layout
from mdio.layouts.views.options import NEED_BONDS, ROT_TRANS
from mdio.layouts.views.view import FrameNumbers

if TYPE_CHECKING:
    from MDAnalysis import Universe

    from mdio.layouts.cut_molecules import CutMoleculeFinder


MORE_WATERS = ("OPC", "OPC3", "SPC", "SPCE", "TIP5")
"""Names of residues of water besides those that MDAnalysis knows."""


class System:
    """A trajectory and its topology, which is read when it is first needed.

    `layout`: the trajectory. `top`: topology file, or an MDAnalysis Universe. `group`: the stored
    atom group that `layout` reads; the topology may then be that of the group or that of the full
    system. `source`: the layout on disk, if `layout` transforms its frames.
    """

    def __init__(
        self,
        layout: Layout,
        top: str | PathLike[str] | Universe | None = None,
        group: str | None = None,
        source: Layout | None = None,
    ) -> None:
        self.layout = layout
        self.source = layout if source is None else source
        self.frames: FrameNumbers = range(layout.info.n_frames)
        """Those that are analysed."""
        self._top = top
        self._group = group
        self.notes: list[str] = []
        """Notes for the user: on guessed properties of atoms, on boxes and fits."""
        self.reference: tuple[str, FrameBlock, bool] | None = None
        """Name of the reference that a kernel has read, the frame, and whether it is a file's."""
        self._universe: Any = None
        self._group_atoms: AtomIndices | None = None

    @property
    def universe(self) -> Universe:
        """The topology, as a Universe of MDAnalysis.

        Raises PlanError: there is none. SourceError: it cannot be read, or does not fit the
        trajectory.
        """
        if self._universe is None and self._top is None and self.topology is not None:
            from mdio.converters.selection import stored_universe

            self._universe = stored_universe(self.topology, self.source)
        if self._universe is None:
            if self._top is None:
                raise PlanError(
                    f"{self.layout.path}: this analysis needs a topology; name one with -s/--top "
                    "FILE (in Python: top=)"
                )
            universe = self._load(self._top)
            atoms, self._group_atoms = universe.atoms, self._find_group_atoms(len(universe.atoms))
            self._compare_names(atoms if self._group_atoms is None else atoms[self._group_atoms])
            self._universe = universe
        return self._universe

    @cached_property
    def topology(self) -> Topology | None:
        """The topology in the trajectory, or that of a file that was parsed before.

        None where MDAnalysis has to parse a file.
        """
        if self._top is None:
            return self.source.topology()
        if self._group is not None or not isinstance(self._top, str | PathLike):
            return None
        from mdio.layouts.foreign.parsed import parsed_topology

        parsed = parsed_topology(to_path(self._top))
        if parsed is None or parsed.n_atoms != self.layout.info.n_atoms:
            return None
        self._compare_names(parsed)
        return parsed

    def select(self, selection: Any) -> AtomIndices | None:
        """Return the selected atoms, as indices into the layout's atoms.

        `selection`: in MDAnalysis' selection language; or atoms as `atom_indices` takes them, whose
        order is kept. None, ``all`` and, without a group, indices need no topology.
        Returns (n,) int64, or None for all.
        Raises PlanError: the selection is wrong or empty, reaches outside of the stored group, or
        there is no topology.
        """
        if selection is not None and not isinstance(selection, str):
            indices = self.indices_in_topology(selection)
            return self.to_layout_indices(indices, "selected")
        if selection is None or selection.strip() == "all":
            return None
        atoms = None
        if self.topology is not None:  # faster than importing MDAnalysis
            atoms = select_stored(self.topology, selection)
        if atoms is None:
            atoms = select_by_mdanalysis(self.universe.atoms, selection, notes=self.notes)
        if not atoms.size:
            raise PlanError(f"{selection!r} selects no atom of {self._top or self.layout.path}")
        return self.to_layout_indices(atoms, f"of {selection!r}")

    def indices_in_topology(self, selection: Any) -> AtomIndices:
        """Return atoms given as indices or an AtomGroup, as indices into the topology."""
        is_in_topology = self._top is not None and self._group is not None
        n_atoms = len(self.universe.atoms) if is_in_topology else self.layout.info.n_atoms
        name = self._top if is_in_topology else self.layout.path
        return atom_indices(selection, n_atoms, name, option="select")

    def atoms(self, selection: Any) -> AtomIndices:
        """Return the result of `select`, but indices instead of None for all atoms."""
        atoms = self.select(selection)
        return np.arange(self.layout.info.n_atoms) if atoms is None else atoms

    def to_layout_indices(self, atoms: AtomIndices, origin: str) -> AtomIndices:
        """Convert indices of atoms in the topology to indices of the same atoms in the layout.

        `origin`: what they are, for the message, such as ``of the backbone``.
        Raises PlanError: the stored group that the layout reads lacks some of them.
        """
        if self._group_atoms is None:
            return atoms
        order = np.argsort(self._group_atoms, kind="stable")
        group_atoms = self._group_atoms[order]
        indices = np.minimum(np.searchsorted(group_atoms, atoms), group_atoms.size - 1)
        n_missing = int(np.count_nonzero(group_atoms[indices] != atoms))
        if n_missing:
            raise PlanError(
                f"{self.layout.path}: {n_missing} of {len(atoms)} atoms {origin} are not in the "
                f"stored group {self._group!r}; leave the group out, or select less"
            )
        return order[indices].astype(np.int64)

    def to_topology_indices(self, atoms: AtomIndices) -> AtomIndices:
        """Convert indices of atoms in the layout to those of the same atoms in the topology."""
        if self._top is not None and self._group is not None:
            _ = self.universe  # finds the group in it
        return atoms if self._group_atoms is None else self._group_atoms[atoms]

    def masses(self, atoms: AtomIndices | None) -> NDArray[np.float64]:
        """Return the masses (u) of atoms of the layout.

        Raises PlanError: there is no topology, or it has neither masses nor elements.
        """
        stored = None if self.topology is None else self.topology.numbers("masses")
        if stored is not None:
            return stored if atoms is None else stored[atoms]
        if self._top is None and self.topology is None:
            raise PlanError(f"{self.layout.path}: masses need a topology; name one with -s/--top")
        universe = self.universe
        path = self._top if isinstance(self._top, str | PathLike) else self.layout.path
        group = self._group_atoms
        topology_atoms = atoms if group is None else group[... if atoms is None else atoms]
        try:
            masses = masses_of(universe, topology_atoms, self.notes, path)
        except (ValueError, AttributeError) as error:
            raise PlanError(
                f"{path}: it has no masses, and they cannot be guessed ({error}); use a topology "
                "that has them"
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
            ":".join(filter(None, (segment, residue + resid + icode.strip(), name)))
            for segment, residue, resid, icode, name in zip(
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
            all_atoms = self.universe.atoms
            group = self._group_atoms
            values = getattr(all_atoms if group is None else all_atoms[group], name, None)
        else:
            return None
        if values is None:
            return None
        return [str(value) for value in (values if atoms is None else values[atoms])]

    def residues(self, atoms: AtomIndices | None) -> Residues | None:
        """Return the residues of atoms of the layout; None without a topology that has them."""
        topology = self.topology if self._top is None or self.topology_is_read else None
        if topology is not None:
            return topology.residues(atoms)
        if self._universe is None:
            return None
        return residues_of(self._universe, self._group_atoms).take(atoms)

    @property
    def waters(self) -> tuple[str, ...]:
        """Names of residues of water, if a topology has been read."""
        residues = self.residues(None)
        if residues is None or residues.names is None:
            return ()
        waters = {*residues.classes.get("water", ()), *MORE_WATERS}
        codes = np.unique(residues.names.codes[np.unique(residues.resindices)])
        return tuple(name for code in codes if (name := residues.names.table[code]) in waters)

    @property
    def topology_is_read(self) -> bool:
        """Whether the topology has been read."""
        return self._universe is not None or self.__dict__.get("topology") is not None

    def read_topology(self) -> None:
        """Read the given topology, if it has not been read yet, to check that it fits.

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

    def read_reference(self, number: int, atoms: AtomIndices | None) -> FrameBlock:
        """Return a frame as `frame` does, and keep it as the `reference`."""
        frame = self.frame(number, atoms)
        self.reference = f"frame {number % self.layout.info.n_frames}", frame, False
        return frame

    def read_reference_from_file(
        self, file: str | PathLike[str], selection: str | None, atoms: AtomIndices | None
    ) -> FrameBlock:
        """Return the selected atoms in the first frame of a file, and keep it as the `reference`.

        `selection`: of the trajectory; made in the file, too, unless that has just as many atoms.
        `atoms`: the trajectory's atoms that it selects.
        Raises PlanError: the file has another number of them, or names in another order.
        SourceError: it cannot be read.
        """
        from mdio.converters.selection import stored_universe

        n_atoms = self.layout.info.n_atoms if atoms is None else len(atoms)
        with open_layout(file) as layout:
            reference, selected_indices = layout.topology(), None
            n_reference = layout.info.n_atoms
            if n_reference != n_atoms and isinstance(selection, str) and reference is not None:
                selected_indices = select_stored(reference, selection)
                if selected_indices is None:
                    reference_atoms = stored_universe(reference, layout).atoms
                    selected_indices = select_by_mdanalysis(
                        reference_atoms, selection, notes=self.notes
                    )
                n_reference = len(selected_indices)
            topology: Topology | None = None
            if reference is not None and (self._top is not None or self.topology is not None):
                topology = self.topology or topology_of(self.universe)
                topology = topology if atoms is None else topology.take(atoms)
                reference = (
                    reference if selected_indices is None else reference.take(selected_indices)
                )
            if n_reference != n_atoms:
                difference = ""
                advice = "select atoms that both have (--select, in Python: select=)"
                if topology is not None and reference is not None:
                    difference = f" ({_first_difference(topology, reference)})"
                else:
                    advice += ", such as 'protein and name CA'"
                if not isinstance(selection, str | None):
                    advice = (
                        "an AtomGroup or indices cannot be looked up in the file: give select= as "
                        "text, such as 'protein and name CA', or reference= as coordinates, "
                        f"({n_atoms}, 3)"
                    )
                raise PlanError(
                    f"{file}: the reference has {plural(n_reference, 'atom')}, but {n_atoms:,} of "
                    f"the trajectory are selected{difference}; {advice}"
                )
            if topology is not None and reference is not None:
                self.notes += note_on_reference_names(topology, reference, file, "compared")
            frame = layout.read(0, 1, atoms=selected_indices)
        if not frame.box.any() and self.layout.info.n_frames:
            # The trajectory's box shows whether molecules were cut before the file was saved.
            frame.box[...] = self.layout.read(0, 1, atoms=()).box
        self.reference = str(file), frame, True
        return frame

    @property
    def is_superposed(self) -> bool:
        """Whether all frames are superposed on one, when they were stored or when they are read.

        Their boxes are not rotated with them.
        """
        return ROT_TRANS in self.stored_and_read("fit")

    @property
    def was_rotated(self) -> bool:
        """Whether frames were superposed before they were stored, so that their boxes are wrong."""
        return bool(self.stored_and_read("fit")[0] == ROT_TRANS)

    def note_unrotated_boxes(self) -> None:
        """Add a note, for kernels that need boxes, if frames were rotated without their boxes."""
        if self.was_rotated and self.source.info.has_box:
            self.notes.append(
                "frames were rotated by a fit when they were stored, and their boxes were not: "
                "results that depend on the sides or axes of the box are wrong; give the "
                "trajectory from before the fit"
            )

    @property
    def is_whole(self) -> bool:
        """Whether molecules were made whole, as they were stored or as they are read."""
        stored_pbc, read_pbc = self.stored_and_read("pbc")
        return (read_pbc or stored_pbc) in NEED_BONDS

    def can_use_images(self) -> bool:
        """Return whether the boxes of frames can be used to find periodic images of atoms.

        Adds a note where a fit has rotated frames, and not their boxes, as they were stored.
        Raises PlanError: it rotates them as they are read.
        """
        fit = self.stored_and_read("fit")[1]
        if fit == ROT_TRANS:
            raise PlanError(
                f"{self.layout.path}: --fit {fit} rotates frames and not their boxes, by which "
                "distances and dihedrals to nearest images are found; they do not depend on a "
                "fit: leave out --fit (in Python: fit=)"
            )
        if not self.was_rotated:
            return True
        if self.source.info.has_box:
            self.notes.append(
                "frames were rotated by a fit as they were stored, and their boxes were not: "
                "periodic images are ignored"
            )
        return False

    def cut_molecules(self, atoms: AtomIndices | None) -> CutMoleculeFinder | None:
        """Return a finder of frames in which the box cuts molecules; None if there can be none."""
        from mdio.layouts.cut_molecules import CutMoleculeFinder, has_box

        if not has_box(self.source):
            return None
        self.read_topology()
        residues, is_rotated = self.residues(atoms), self.is_superposed
        if residues is None and is_rotated and not self.is_whole:
            self.notes.append(
                "frames are rotated by a fit: without a topology, molecules that the box cuts are "
                "not found; give one with -s/--top FILE (in Python: top=)"
            )
        n_atoms = self.layout.info.n_atoms if atoms is None else len(atoms)
        return CutMoleculeFinder.of(
            residues,
            n_atoms,
            is_rotated=is_rotated,
            was_rotated=self.was_rotated,
            is_whole=self.is_whole,
            in_group=self._group is not None,
        )

    def stored_and_read(self, option: str) -> tuple[Any, Any]:
        """Return the values of ``fit`` or ``pbc`` as frames were stored, and as they are read."""
        return stored_transformation(self._manifest, option), self.layout.options.get(option)

    @property
    def _manifest(self) -> Mapping[str, Any] | None:
        _ = self.layout.info  # opens it
        return self.source.joined_layouts[0][0].manifest

    def _compare_names(self, topology: Any) -> None:
        """Add a note if the topology that was given differs from the one in the trajectory."""
        name = self._top if isinstance(self._top, str | PathLike) else "the Universe"
        self.notes += compare_names(topology, stored_topology(self.source), name, self.source.path)

    def _load(self, top: Any) -> Any:
        """Return the Universe, which has to fit the stored group or the full system."""
        if not isinstance(top, str | PathLike):
            if not hasattr(top, "atoms"):
                raise PlanError(f"the topology is {top!r}; give the path of a file, or a Universe")
            return top
        from mdio.converters.selection import universe_from_topology
        from mdio.layouts.foreign.parsed import identity_of, store_parsed

        full_system = self.source
        if self._group is not None and self._manifest is not None:
            output = self.source.joined_layouts[0][0]
            full_system = open_layout(output.path, verify=output.verify, uuid=output.uuid)
        identity = identity_of(to_path(top))
        try:
            universe = universe_from_topology(top, full_system)
        except SourceError:
            if full_system is self.source:
                raise
            universe = universe_from_topology(top, self.source)
        finally:
            if full_system is not self.source:
                full_system.close()
        if self._group is None and self.topology is None:
            store_parsed(to_path(top), identity, topology_of(universe))
        return universe

    def _find_group_atoms(self, n_atoms: int) -> AtomIndices | None:
        """Return the layout's atoms as indices into the topology; None if they are the same."""
        n_layout_atoms = self.layout.info.n_atoms
        manifest = self._manifest
        if self._group is not None and manifest is not None and n_atoms == manifest["n_atoms"]:
            return indices_from_runs(manifest["group_atoms"][self._group])
        if n_atoms != n_layout_atoms:
            raise SourceError(
                f"{self.layout.path} has {n_layout_atoms} atoms, but the topology {self._top} has "
                f"{n_atoms}; give the topology that belongs to the trajectory"
            )
        return None


def _first_difference(topology: Topology, reference: Topology) -> str:
    """Return a message on the first atom by which the trajectory and a reference differ."""
    common = np.arange(min(topology.n_atoms, reference.n_atoms))
    differing, _ = topology.take(common).differing_names(reference.take(common))
    first = int(differing[0]) if len(differing) else len(common)
    name, longer_topology = "trajectory", topology
    if reference.n_atoms > topology.n_atoms:
        name, longer_topology = "reference", reference
    numbers = longer_topology.per_atom("resids")
    residue = f" of residue {numbers[first]}" if isinstance(numbers, np.ndarray) else ""
    return f"they differ from {longer_topology.name_of(first)}{residue} of the {name} on"
