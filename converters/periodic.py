"""A layout that treats periodic boundaries and fits frames (``--pbc``, ``--center``, ``--fit``).

Also the first pass of ``--pbc nojump`` and ``toroidal``: workers find where atoms cross boundaries,
each over its runs of frames.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.core import kernels
from mdio.core.boxes import vectors_from_boxes
from mdio.core.errors import MdioError, PlanError
from mdio.core.files.in_flight import ByteRange
from mdio.core.frames import AtomIndices, FrameBlock, FrameData, Rounding, TrajectoryInfo
from mdio.core.topology import Residues, Topology, find_molecules
from mdio.core.topology import select as select_stored
from mdio.core.words import MAX_RUNS, plural, runs_text
from mdio.layouts.base import FormatFacts, Layout, StoredTimes, atom_indices
from mdio.layouts.cut_molecules import CutMoleculeFinder, has_box
from mdio.layouts.manifest import runs_from_indices, stored_transformation
from mdio.layouts.plan import LayoutPlan
from mdio.layouts.registry import open_layout
from mdio.layouts.views.options import (
    FOLLOWS_ATOMS,
    NEED_BONDS,
    NEED_BONDS_EXAMPLES,
    ROT_TRANS,
    TOROIDAL,
    TRANSLATION,
)
from mdio.layouts.views.view import FrameNumbers, notes_on_nojump
from mdio.parallel.executors import Executor

Molecules = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]
"""Atoms of molecules, one after the other; where each molecule begins; weights of the atoms."""


@dataclass(frozen=True)
class Fit:
    """A reference on which frames are superposed."""

    atoms: AtomIndices
    reference: NDArray[np.float64]
    """Coordinates of these atoms in the reference, angstrom."""
    rotates: bool
    box: NDArray[np.float32]
    """Box of the reference, (6,)."""


@dataclass(frozen=True)
class Transform:
    """Steps that transform frames of some atoms; indices are into the atoms that are read."""

    output_atoms: AtomIndices | None
    """Atoms of the source to return; None = all."""
    read_atoms: AtomIndices | None
    """Atoms of the source to read; None = all."""
    output_in_read: AtomIndices | None
    """Indices of `output_atoms` among `read_atoms`; None = all, in this order."""
    bonds: NDArray[np.int64] | None = None
    """(n, 2): an atom, and the one beside which it is put, to make molecules whole."""
    cluster: Molecules | None = None
    """Molecules that are brought together."""
    centre_atoms: NDArray[np.int64] | None = None
    """Atoms whose centre goes to the centre of the box."""
    wrapped: Molecules | None = None
    """Molecules that are put into the box."""
    unwraps: bool = False
    """Whether jumps over boundaries are undone."""
    by_steps: bool = False
    """Whether they are undone by adding up steps between frames (`mdio.core.kernels.follow`)."""
    fit: Fit | None = None
    shifts: dict[int, bytes] | None = None
    """`Crossings.shifts` before some frames, packed by `pack_shifts`, by frame."""
    note: str = ""
    """A summary of the steps, for the user."""
    notes: tuple[str, ...] = ()
    """Notes on the selections of the steps."""

    def has_output_atoms(self, atoms: AtomIndices | None) -> bool:
        """Return whether it is for these `atoms`."""
        if atoms is None or self.output_atoms is None:
            return atoms is self.output_atoms
        return np.array_equal(atoms, self.output_atoms)

    def apply(self, block: FrameBlock) -> None:
        """Apply, in place, all steps that need no other frames."""
        positions, box = block.positions, block.box
        if self.bonds is not None:
            kernels.make_whole(positions, box, self.bonds)
        if self.cluster is not None:
            kernels.gather(positions, box, *self.cluster)
        if self.centre_atoms is not None:
            kernels.centre(positions, box, self.centre_atoms)
        if self.wrapped is not None:
            kernels.put_in_cell(positions, box, *self.wrapped)
        if (fit := self.fit) is not None:
            along = [array for array in (block.velocities, block.forces) if array is not None]
            kernels.fit(positions, fit.atoms, fit.reference, rotate=fit.rotates, along=along)


def plan_transform(
    source: Layout,
    atoms: AtomIndices | None,
    pbc: str | None,
    center: str | None,
    load_universe: Callable[[], Any],
    topology_name: Any,
    fit: Fit | None = None,
    selection_notes: Sequence[str] = (),
) -> Transform:
    """Return the transform for some atoms of a source.

    `load_universe()`: returns the Universe of the topology. `topology_name`: its name for messages.
    `fit`: its atoms are indices in the source. `selection_notes`: notes on the fitted atoms.
    """
    n_atoms = source.info.n_atoms
    is_read = np.ones(n_atoms, bool)
    if atoms is not None:
        is_read[:] = False
        is_read[atoms] = True
    centre_atoms, all_selection_notes = None, list(selection_notes)
    if center is not None:
        centre_atoms = _select(load_universe, n_atoms, center, "--center", all_selection_notes)
        is_read[centre_atoms] = True
    if fit is not None:
        is_read[fit.atoms] = True
    cluster_atoms = atoms if centre_atoms is None else centre_atoms
    if pbc == "cluster" and cluster_atoms is None:
        raise PlanError(
            "--pbc cluster brings the molecules of a selection together; name it with --center "
            "SEL, or keep nothing else with --select SEL"
        )
    cluster = bonds = wrapped = None
    notes = []
    if pbc in NEED_BONDS:
        all_atoms = load_universe().atoms
        pairs = _find_bonds(all_atoms, pbc, topology_name, source.options.get("group"))
        molecules, order, parents = find_molecules(pairs, n_atoms)
        is_read = np.isin(molecules, molecules[is_read])
        index_in_read = np.cumsum(is_read) - 1
        is_bound = (parents >= 0) & is_read[order]
        bonds = np.ascontiguousarray(index_in_read[[order[is_bound], parents[is_bound]]].T)
        notes.append(f"{plural(int(is_read.sum()) - len(bonds), 'molecule')} made whole")
        is_wrapped = is_read
        if pbc == "cluster":
            in_cluster = np.isin(molecules, molecules[cluster_atoms])
            is_wrapped = is_read & ~in_cluster
            cluster = _molecules(
                all_atoms, molecules, order[in_cluster[order]], index_in_read, by_mass=False
            )
            notes.append(f"{plural(len(cluster[1]) - 1, 'molecule')} brought together")
        if (pbc == "mol" or centre_atoms is not None) and is_wrapped.any():
            wrapped = _molecules(all_atoms, molecules, order[is_wrapped[order]], index_in_read)
            notes.append(f"{len(wrapped[1]) - 1:,} put into the box by their centres")
    else:
        index_in_read = np.cumsum(is_read) - 1
    read_atoms = np.flatnonzero(is_read)
    n_read = len(read_atoms)
    if pbc in ("atom", "wrap"):
        edges = np.arange(n_read + 1)
        wrapped = (edges[:-1], edges, np.ones(n_read))
        notes.append(f"{plural(n_read, 'atom')} put into the box one by one")
    if centre_atoms is not None:
        notes.insert(
            len(notes) - (wrapped is not None),
            f"the centre of {plural(len(centre_atoms), 'atom')} moved",
        )
    if fit is not None:
        move_text = "moved and rotated" if fit.rotates else "moved"
        atoms_text = plural(len(fit.atoms), "atom")
        notes.append(f"frames {move_text} to superpose {atoms_text} on the reference")
        fit = replace(fit, atoms=np.ascontiguousarray(index_in_read[fit.atoms], np.int64))
    n_output = n_atoms if atoms is None else len(atoms)
    is_exact = n_read == n_atoms if atoms is None else np.array_equal(atoms, read_atoms)
    if not is_exact:
        notes.append(f"{n_read:,} atoms are read for the {n_output:,} that are kept")
    return Transform(
        output_atoms=atoms,
        read_atoms=None if n_read == n_atoms else read_atoms,
        output_in_read=None if is_exact or atoms is None else index_in_read[atoms],
        bonds=bonds,
        cluster=cluster,
        centre_atoms=None if centre_atoms is None else index_in_read[centre_atoms],
        wrapped=wrapped,
        unwraps=pbc in FOLLOWS_ATOMS,
        by_steps=pbc == TOROIDAL,
        fit=fit,
        note=", ".join(notes),
        notes=tuple(all_selection_notes),
    )


def _select(
    load_universe: Callable[[], Any], n_atoms: int, selection: str, option: str, notes: list[str]
) -> NDArray[np.int64]:
    """Return the atoms of a selection, and add notes on it; raises PlanError if there are none."""
    indices = select_stored(Topology(n_atoms, {}), selection)  # by number, without a topology
    if indices is None:
        from mdio.layouts.foreign.universe import select_by_mdanalysis

        indices = select_by_mdanalysis(load_universe().atoms, selection, option, notes)
    if not len(indices):
        raise PlanError(f"{option}: {selection!r} selects no atoms")
    return indices


def _find_bonds(
    atoms: Any, pbc: str | None, topology_name: Any, group: str | None
) -> NDArray[np.int64]:
    """Return the bonds of atoms, (n, 2), and of virtual sites; raises PlanError if none."""
    bonds = getattr(atoms, "bonds", None)
    if bonds is None or not len(bonds):
        advice = "give one that has them with -s/--top (TPR, PSF, PRMTOP, a PDB with CONECT)"
        if group is not None:  # no topology has bonds between its C-alpha atoms
            topology_name = f"{topology_name} of the group {group} alone"
            advice = "read all atoms: select those of the group with --select in place of --group"
        raise PlanError(
            f"--pbc {pbc} needs bonds, and the topology {topology_name} has none; {advice}, or "
            "take --pbc atom, nojump or toroidal"
        )
    pairs = np.asarray(bonds.to_indices(), np.int64)
    masses = getattr(atoms, "masses", np.ones(len(atoms)))
    # Virtual sites, which have no bonds, are bound to the first atom of the residue.
    sites = np.setdiff1d(np.flatnonzero(np.asarray(masses) == 0), pairs)
    residues = atoms.resindices
    first_atoms = np.unique(residues, return_index=True)[1][residues[sites]]
    return np.concatenate([pairs, np.stack([first_atoms, sites], axis=1)])


def _molecules(
    all_atoms: Any,
    molecules: NDArray[np.int64],
    atoms: NDArray[np.int64],
    index_in_read: NDArray[np.int64],
    *,
    by_mass: bool = True,
) -> Molecules:
    """Return the molecules of `atoms`, which are ordered by molecule, among the atoms read.

    Weights are fractions of the molecule's mass, or equal without masses or `by_mass`.
    """
    starts = np.flatnonzero(np.diff(molecules[atoms], prepend=-1, append=-1))
    sizes = np.repeat(np.diff(starts), np.diff(starts))
    all_masses = np.asarray(getattr(all_atoms, "masses", np.ones(0)), np.float64) if by_mass else ()
    masses = all_masses[atoms] if len(all_masses) else np.ones(len(atoms))
    sums = np.repeat(np.add.reduceat(masses, starts[:-1]), np.diff(starts))
    has_mass = np.isfinite(sums) & (sums > 0)
    weights = np.where(has_mass, masses / np.where(has_mass, sums, 1), 1 / sizes)
    return index_in_read[atoms], starts, weights


RUN_NBYTES = 16 << 20
"""Bytes of positions read at a time where only crossings are counted."""
MIN_ROTATION_ATOMS = 3
"""Fewest atoms that define a rotation."""
FIRST_FRAMES, SAMPLE_FRAMES = 3, 8
"""Frames of a sample: at the beginning, and spread over the whole trajectory."""

Shifts = NDArray[np.int64]


@dataclass
class Crossings:
    """Which boundaries atoms have crossed in the frames before `frame`."""

    frame: int
    last: NDArray[np.float64]
    """Where atoms were before, as of `mdio.core.kernels.follow`."""
    shifts: Shifts
    """(A, 3): how often, or by how much; the ``shifts`` of `mdio.core.kernels.follow`."""
    by_steps: bool
    has_last: bool = False
    """Whether `last` is known: there was a frame before."""


class TransformedLayout(Layout):
    """A source whose frames are transformed as they are read.

    The steps are these: jumps undone, molecules made whole, all moved to the centre, molecules (or
    atoms) put into the box, frames superposed on a reference. Only the atoms to return, and those
    that their molecules, the centre and the fit need, are read.

    `path`: path of the source, for messages. `source`: the layout to read from. `top`: topology, a
    file or a `Topology`; None = that of the source. `pbc`: one of
    `mdio.layouts.views.options.PBC`, or None. `center`: selection (or atoms, which become one)
    whose centre of geometry goes to the centre of the box, or None. With ``whole``, molecules are
    then put into the box as with ``mol``, around those atoms. `fit`: one of
    `mdio.layouts.views.options.FITS`, or None. `fit_select`: which atoms are superposed on the
    reference; all by default. `fit_reference`: number of a frame of the source, as it is before the
    fit; or path of a file whose first frame has the source's atoms, those that are kept, those that
    are fitted, or others among which the selection finds as many; frame 0 by default.
    `transform`: as `prepare_transform` returned it, so that workers need not prepare it.
    """

    name = "transformed"
    facts = FormatFacts(
        options=frozenset(
            {"source", "top", "pbc", "center", "fit", "fit_select", "fit_reference", "transform"}
        )
    )

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        source: Layout,
        top: str | PathLike[str] | Topology | None,
        pbc: str | None = None,
        center: Any = None,
        fit: str | None = None,
        fit_select: Any = None,
        fit_reference: int | str | None = None,
        transform: Transform | None = None,
        **options: Any,
    ) -> None:
        center = _selection_text(center, source, "--center")
        in_order = isinstance(fit_reference, str)  # in which the file may have these atoms
        fit_select = _selection_text(fit_select, source, "--fit-select", in_order=in_order)
        own_options: dict[str, Any] = {"top": top, "pbc": pbc, "center": center, "fit": fit}
        own_options |= {"fit_select": fit_select, "fit_reference": fit_reference}
        super().__init__(path, source=source, transform=transform, **own_options, **options)
        self.source, self.pbc, self.center, self.fit_mode = source, pbc, center, fit
        self.needs_box = pbc is not None or center is not None
        self.load_universe: Callable[[], Any] | None = None
        """Returns the Universe of the topology, in place of ``top``."""
        self._crossings: Crossings | None = None
        self._crossings_of_last_run: Crossings | None = None
        """Those up to the end of the run that `count_crossings` was last given."""
        manifests = (file.manifest for file in source.file_layouts() if pbc and transform is None)
        if ROT_TRANS in (stored_transformation(manifest, "fit") for manifest in manifests):
            raise PlanError(
                f"{self.path}: its frames were rotated by a fit when they were stored, and their "
                f"boxes were not, which --pbc {pbc} needs; convert the source again, with both"
            )

    def _open(self) -> TrajectoryInfo:
        # Coordinates are no longer the integers of an XTC source.
        return self.source.info.replace(
            precision=None, rounding=Rounding(), compression=None, groups={}
        )

    @property
    def selections(self) -> dict[str, str | None]:
        """The selections among its options, as texts."""
        names = ("center",) if self.fit_mode is None else ("center", "fit_select")
        return {name: self.options[name] for name in names}

    def is_fitted_by(self, selection: Any) -> bool:
        """Return whether frames are fitted by just these atoms."""
        if self.fit_mode is None:  # indices may then be those of a system with more atoms
            return False
        in_order = isinstance(self.options["fit_reference"], str)
        text = _selection_text(selection, self.source, "select", in_order=in_order)
        return bool(self.options["fit_select"] == text)

    def frame_data(self) -> FrameData:
        """Return the source's numbers of each frame."""
        return self.source.frame_data()

    def _close(self) -> None:
        self.source.close()

    @property
    def stored_times(self) -> StoredTimes:
        """Those of the source."""
        return self.source.stored_times

    def file_layouts(self) -> Iterator[Layout]:
        """Yield itself: its frames differ from its file's."""
        yield self

    @property
    def _inner_layouts(self) -> tuple[Layout, ...]:
        return (self.source,)

    def _inner_runs(self, start: int, stop: int) -> Iterator[tuple[Layout, int, int]]:
        yield self.source, start, stop

    def _ranges(self, start: int, stop: int, atoms: AtomIndices | None) -> Iterator[ByteRange]:
        no_atoms = atoms is not None and not atoms.size
        read_atoms = atoms if no_atoms else self.prepare_transform(atoms).read_atoms
        yield from self.source.byte_ranges(start, stop, read_atoms)

    @cached_property
    def universe(self) -> Any:
        """The Universe of the topology; callers that already have it may set it."""
        from mdio.converters.selection import stored_universe, universe_from_topology

        if self.load_universe is not None:
            return self.load_universe()
        top = self.options["top"]
        if top is not None and not isinstance(top, Topology):
            return universe_from_topology(top, self.source)
        topology = self.source.topology() if top is None else top
        if topology is None:
            raise PlanError(
                f"{self.path}: --pbc {'/'.join(NEED_BONDS_EXAMPLES)}, --center and --fit-select "
                "need a topology, here too if an output was made with them; name one with -s/--top "
                "FILE (in Python: top=)"
            )
        return stored_universe(topology, self.source)

    def prepare_transform(self, atoms: AtomIndices | None) -> Transform:
        """Return the transform for some atoms of the source, cached in the options."""
        transform: Transform | None = self.options["transform"]
        if transform is None or not transform.has_output_atoms(atoms):
            transform = self.options["transform"] = self._plan_transform(atoms)
            self._crossings = self._crossings_of_last_run = None
        return transform

    def _plan_transform(self, atoms: AtomIndices | None) -> Transform:
        top = self.options["top"]
        plan_for = partial(
            plan_transform,
            self.source,
            pbc=self.pbc,
            center=self.center,
            load_universe=lambda: self.universe,
            topology_name=self.path if top is None or isinstance(top, Topology) else top,
        )
        notes: list[str] = []
        fit = None if self.fit_mode is None else self._prepare_fit(plan_for, atoms, notes)
        return plan_for(atoms, fit=fit, selection_notes=notes)

    def _prepare_fit(
        self, plan_for: Callable[..., Transform], atoms: AtomIndices | None, notes: list[str]
    ) -> Fit:
        """Return the fit; `plan_for(atoms)` returns the transform without it."""
        selection, rotates = self.options["fit_select"], self.fit_mode == ROT_TRANS
        n_atoms = self.source.info.n_atoms
        fit_atoms = np.arange(n_atoms, dtype=np.int64)
        if selection is not None:
            fit_atoms = _select(lambda: self.universe, n_atoms, selection, "--fit-select", notes)
        if rotates and len(fit_atoms) < MIN_ROTATION_ATOMS:
            raise PlanError(
                f"{self.path}: --fit {self.fit_mode} needs {MIN_ROTATION_ATOMS} atoms or more, and "
                f"there are {len(fit_atoms)}; select more with --fit-select, or take --fit "
                f"{TRANSLATION}"
            )
        reference_option = self.options["fit_reference"]
        if isinstance(reference_option, str):
            frame = self._reference_from_file(reference_option, fit_atoms, atoms, notes)
        else:
            frame = self._reference_from_frame(reference_option or 0, plan_for(fit_atoms))
        reference = frame.positions[0].astype(np.float64)
        if not np.isfinite(reference).all():
            raise PlanError(
                f"{reference_option or self.path}: the reference has coordinates that are not "
                "numbers"
            )
        return Fit(fit_atoms, reference, rotates, frame.box[0].copy())

    def _reference_from_frame(self, frame: int, transform: Transform) -> FrameBlock:
        """Return the atoms of `transform` in a frame before the fit."""
        n_frames = self.source.info.n_frames
        if not -n_frames <= frame < n_frames:
            raise PlanError(
                f"{self.path}: --fit-reference {frame}: it has frames 0 to {n_frames - 1}"
            )
        frame %= n_frames
        block = self._transformed_frames(frame, frame + 1, transform)
        self._crossings = None  # of other atoms
        return block if transform.output_in_read is None else block.take(transform.output_in_read)

    def _reference_from_file(
        self, file: str, fitted_atoms: AtomIndices, kept_atoms: AtomIndices | None, notes: list[str]
    ) -> FrameBlock:
        """Return the fitted atoms in the first frame of a file.

        The file has all atoms of the trajectory, those that are kept, or the fitted ones; in any
        other the fitted atoms are found by the selection.
        """
        n_atoms = self.source.info.n_atoms
        with open_layout(file) as layout:
            topology, n_reference = layout.topology(), layout.info.n_atoms
            atoms: AtomIndices | None
            if n_reference == n_atoms:
                atoms = fitted_atoms
            elif n_reference == len(fitted_atoms):
                atoms = _order_given(self.options["fit_select"])
                if kept_atoms is not None and len(kept_atoms) == n_reference:
                    order = np.arange(n_reference) if atoms is None else atoms
                    if not np.array_equal(kept_atoms[order], fitted_atoms):
                        notes.append(
                            f"{file}: has as many atoms as are fitted, and as are kept, which are "
                            "others or in another order: it is taken to have those that are fitted"
                        )
            elif (
                kept_atoms is not None
                and n_reference == len(kept_atoms)
                and np.isin(fitted_atoms, kept_atoms).all()
            ):
                order = np.argsort(kept_atoms)
                atoms = order[np.searchsorted(kept_atoms, fitted_atoms, sorter=order)]
            else:
                atoms = self._select_in(file, layout, topology, notes)
                if atoms is None or len(atoms) != len(fitted_atoms):
                    kept_text = "" if kept_atoms is None else f"{len(kept_atoms):,} are kept and "
                    selected_text = "" if atoms is None else f" ({len(atoms):,} of them selected)"
                    raise PlanError(
                        f"{file}: has {plural(n_reference, 'atom')}{selected_text}, but the "
                        f"trajectory has {n_atoms:,}, of which {kept_text}{len(fitted_atoms):,} "
                        "are fitted; give a reference with one of these numbers, or fit atoms that "
                        "both have (--fit-select, by names, such as 'protein and name CA')"
                    )
            if topology is not None:
                from mdio.layouts.foreign.universe import note_on_reference_names, topology_of

                reference_topology = topology if atoms is None else topology.take(atoms)
                own_topology = None
                with suppress(MdioError):  # the trajectory has no topology
                    own_topology = topology_of(self.universe, fitted_atoms)
                if own_topology is not None:
                    notes += note_on_reference_names(
                        own_topology, reference_topology, file, "fitted"
                    )
            return layout.read(0, 1, atoms=atoms)

    def _select_in(
        self, file: str, layout: Layout, topology: Topology | None, notes: list[str]
    ) -> AtomIndices | None:
        """Return the atoms of the fit's selection in a file; None if it selects by numbers."""
        from mdio.converters.selection import stored_universe

        selection, n_atoms = self.options["fit_select"], layout.info.n_atoms
        is_by_number = (
            selection is None or select_stored(Topology(n_atoms, {}), selection) is not None
        )
        if topology is None or is_by_number:
            return None
        load_universe = partial(stored_universe, topology, layout)
        return _select(load_universe, n_atoms, selection, f"{file}: --fit-select", notes)

    def read_with(self, transform: Transform, frame: int, atoms_in_read: AtomIndices) -> FrameBlock:
        """Return a frame with this transform; `atoms_in_read`: indices among the atoms read."""
        block = self._transformed_frames(frame, frame + 1, transform)
        self._crossings = None  # later frames are read first
        return block.take(atoms_in_read)

    def _read_into(
        self, start: int, stop: int, atoms: AtomIndices | None, block: FrameBlock
    ) -> None:
        if atoms is not None and atoms.size == 0:
            self.source.read(start, stop, atoms=atoms, out=block)
            return
        transform = self.prepare_transform(atoms)
        out = block if transform.output_in_read is None else None
        transformed = self._transformed_frames(start, stop, transform, out)
        if transform.output_in_read is not None:
            block.assign(transformed.take(transform.output_in_read))

    def _transformed_frames(
        self, start: int, stop: int, transform: Transform, out: FrameBlock | None = None
    ) -> FrameBlock:
        crossings = self._crossings_before(start, transform) if transform.unwraps else None
        block = self._source_frames(start, stop, transform, out)
        if crossings is not None:
            _count_crossings(crossings, block)
        transform.apply(block)
        return block

    def _source_frames(
        self, start: int, stop: int, transform: Transform, out: FrameBlock | None = None
    ) -> FrameBlock:
        """Return the source's frames; raises PlanError if one lacks a cell that is needed."""
        block = self.source.read(start, stop, atoms=transform.read_atoms, out=out)
        lacks_box = ~(vectors_from_boxes(block.box)[:, 2, 2] > 0)
        lacks_box |= ~np.isfinite(block.box).all(axis=1)
        if self.needs_box and lacks_box.any():
            frame = int(lacks_box.argmax())
            lengths = block.box[frame, :3]
            problem = "has no unit cell, and --pbc and --center need one in every frame"
            names = " and ".join("xyz"[axis] for axis in np.flatnonzero(lengths == 0))
            if names and lengths.any():
                problem = (
                    f"is not periodic along {names}, and --pbc and --center need all three axes"
                )
            raise PlanError(
                f"{self.path}: frame {start + frame} {problem}; leave it out, or leave them out"
            )
        return block

    def _crossings_before(self, start: int, transform: Transform) -> Crossings:
        """Return the crossings of boundaries counted before frame `start`."""
        shifts = transform.shifts or {}
        counted_frame = max((frame for frame in shifts if frame <= start), default=0)
        crossings = self._crossings
        if crossings is None or not counted_frame <= crossings.frame <= start:
            crossings = self._new_crossings(counted_frame, transform, crossings)
            self._crossings = crossings
            if counted_frame:
                crossings.shifts[:] = unpack_shifts(shifts[counted_frame]).reshape(-1, 3)
        return self._advance(crossings, start, transform)

    def n_read(self, transform: Transform) -> int:
        """Return the number of atoms that are read for `transform`."""
        read_atoms = transform.read_atoms
        return self.source.info.n_atoms if read_atoms is None else len(read_atoms)

    def _new_crossings(
        self, frame: int, transform: Transform, counted_before: Crossings | None
    ) -> Crossings:
        """Return crossings that begin with a frame, none before.

        Atoms that are at no finite place there come from where they were last. This is searched
        for backwards, up to the frames of `counted_before`.
        """
        n_atoms = self.n_read(transform)
        crossings = Crossings(
            frame,
            np.full((n_atoms, 3), np.nan),
            np.zeros((n_atoms, 3), np.int64),
            transform.by_steps,
            has_last=frame > 0,
        )
        lost, earlier = np.arange(n_atoms if frame else 0), frame
        while len(lost) and earlier >= 0:
            if counted_before is not None and counted_before.frame == earlier + 1:
                crossings.last[lost] = counted_before.last[lost]
                break
            block = self._source_frames(earlier, earlier + 1, transform)
            is_found = np.isfinite(block.positions[0, lost]).all(axis=1)
            if earlier < frame:
                at_earlier = replace(crossings, last=np.zeros((n_atoms, 3)), has_last=False)
                _count_crossings(at_earlier, block, apply=False)
                crossings.last[lost[is_found]] = at_earlier.last[lost[is_found]]
            lost, earlier = lost[~is_found], earlier - 1
        return crossings

    def _advance(self, crossings: Crossings, stop: int, transform: Transform) -> Crossings:
        batch_frames = max(1, RUN_NBYTES // max(1, 12 * len(crossings.last)))
        while crossings.frame < stop:
            batch_stop = min(crossings.frame + batch_frames, stop)
            block = self._source_frames(crossings.frame, batch_stop, transform)
            _count_crossings(crossings, block, apply=False)
        return crossings

    def count_crossings(self, run: tuple[int, int]) -> bytes:
        """Return how often atoms cross boundaries from one frame to another, packed."""
        start, stop = run
        transform: Transform = self.options["transform"]
        crossings = self._new_crossings(start, transform, self._crossings_of_last_run)
        self._crossings_of_last_run = self._advance(crossings, stop + 1, transform)
        return pack_shifts(crossings.shifts)


def _selection_text(
    atoms: Any, source: Layout, option: str, *, in_order: bool = False
) -> str | None:
    """Return atoms as a selection that chooses them by number; a selection as it is.

    `in_order`: whether the text keeps their order, which `_order_given` returns.
    """
    if atoms is None or isinstance(atoms, str):
        return atoms
    given = atom_indices(atoms, source.info.n_atoms, source.path, option=option)
    indices, first = np.unique(given, return_index=True)
    is_ascending = not in_order or bool((np.diff(first) > 0).all())
    indices = indices if is_ascending else given[np.sort(first)]
    breaks = np.flatnonzero(np.diff(indices) != 1) + 1
    runs = [f"{run[0]}:{run[-1]}" for run in np.split(indices, breaks)]
    if is_ascending:
        return "index " + " ".join(runs)
    return "all and " + " or ".join(f"index {run}" for run in runs)


def _order_given(selection: str | None) -> AtomIndices | None:
    """Return the order that sorts atoms given by number; None if they ascend, or are selected.

    A user's selection "index 5:9 or index 0:3" has atoms that ascend: it does not begin with "all".
    """
    numbers = r"all and index \d+:\d+( or index \d+:\d+)+"
    if selection is None or re.fullmatch(numbers, selection) is None:
        return None
    runs = (map(int, run) for run in re.findall(r"(\d+):(\d+)", selection))
    return np.argsort(np.concatenate([np.arange(low, high + 1) for low, high in runs]))


def _count_crossings(crossings: Crossings, block: FrameBlock, *, apply: bool = True) -> None:
    """Count crossings in the next frames; with `apply`, undo these jumps in the block."""
    kernels.follow(
        block.positions,
        block.box,
        crossings.last,
        crossings.shifts,
        has_last=crossings.has_last,
        apply=apply,
        by_steps=crossings.by_steps,
    )
    crossings.frame, crossings.has_last = crossings.frame + block.n_frames, True


def pack_shifts(shifts: Shifts) -> bytes:
    """Return shifts, most of which are zeros, as compressed bytes."""
    return zlib.compress(shifts.tobytes(), 1)


def unpack_shifts(packed: bytes) -> Shifts:
    """Return the shifts in `pack_shifts`'s bytes, one-dimensional."""
    return np.frombuffer(zlib.decompress(packed), np.int64)


SHIFTS_NBYTES = 512 << 20
"""Memory for all shifts before they are compressed; at least one per worker is kept."""


def count_all_crossings(view: Any, plan: LayoutPlan, executor: Executor) -> None:
    """Count crossings of boundaries in parallel, for the workers that write: the first pass.

    Nothing is done where no atoms are followed, or for one worker, which reads all frames in order.
    Shifts are kept where the pieces of `plan` begin.
    """
    transformed: Any = getattr(view, "source", None)
    if not hasattr(transformed, "count_crossings") or executor.n_workers == 1:
        return
    transform = transformed.prepare_transform(view.atoms)
    if not transform.unwraps:
        return
    n_atoms = transformed.n_read(transform)
    max_kept = max(executor.n_workers, SHIFTS_NBYTES // (24 * n_atoms))
    first_frames = sorted({0, *(int(view.frames[start]) for start, _ in plan.write_tasks())})
    runs = list(pairwise(first_frames[:: -(-len(first_frames) // max_kept)]))
    run_shifts = executor.map(
        transformed.count_crossings, runs, describe=lambda run: f"frames {run[0]} to {run[1]}"
    )
    run_shifts = executor.from_owner(lambda: run_shifts)
    total = np.zeros(3 * n_atoms, np.int64)
    shifts = {}
    for (_, frame), packed in zip(runs, run_shifts, strict=True):
        total += unpack_shifts(packed)
        shifts[frame] = pack_shifts(total)
    transformed.options["transform"] = replace(transform, shifts=shifts)


def notes_on_transform(
    transformed: TransformedLayout, atoms: AtomIndices | None, frames: FrameNumbers, n_workers: int
) -> list[str]:
    """Return a plan's notes on the transform, and on passes over the source."""
    transform = transformed.prepare_transform(atoms)
    options = {
        "--pbc": transformed.pbc,
        "--center": transformed.center,
        "--fit": transformed.fit_mode,
    }
    text = " ".join(f"{name} {value}" for name, value in options.items() if value is not None)
    notes = [f"{text}: {transform.note}"] if transform.note else []
    if transform.unwraps:
        passes = "read once, by one worker"
        if n_workers > 1:
            passes = f"read twice: {n_workers} workers count jumps over the boundaries, then write"
        notes.append(
            f"--pbc {transformed.pbc} follows atoms from the first frame of the source, which is "
            f"{passes}"
        )
        if not transform.by_steps:
            notes += notes_on_nojump(transformed.source, frames)
    return [*notes, *transform.notes]


def notes_on_cut(
    transformed: TransformedLayout,
    output_atoms: AtomIndices | None,
    frames: FrameNumbers,
    residues_of: Callable[[AtomIndices], Residues | None],
    *,
    are_stored: bool = False,
) -> list[str]:
    """Return notes where the box cuts molecules among the atoms that are centred or fitted.

    The reference and some of the `frames` are checked, as they are before centring and fitting.

    `output_atoms`: atoms of the source to return. `residues_of(atoms)`: returns the residues of
    some of its atoms; None without a topology. `are_stored`: whether the frames are stored;
    if so, also check all kept atoms, whose bonds may be missing.
    """
    source, transform = transformed.source, transformed.prepare_transform(output_atoms)
    if not has_box(source):
        return []
    manifest, notes = source.joined_layouts[0][0].manifest, list[str]()
    was_rotated = stored_transformation(manifest, "fit") == ROT_TRANS
    pbc = transformed.pbc or stored_transformation(manifest, "pbc")
    reference_option = transformed.options["fit_reference"]

    def cut_molecule_finder(atoms: AtomIndices, **frame_options: bool) -> CutMoleculeFinder | None:
        source_atoms = atoms if transform.read_atoms is None else transform.read_atoms[atoms]
        return CutMoleculeFinder.of(residues_of(source_atoms), len(source_atoms), **frame_options)

    def note_cut_frames(
        finder: CutMoleculeFinder,
        atoms: AtomIndices,
        previous_transform: Transform,
        use: str,
        effect: str,
    ) -> None:
        """Note in which frames of a sample `atoms` are cut."""
        sample = [int(frames[number]) for number in _sample_frames(len(frames))]
        # What follows atoms needs all earlier frames, and leaves molecules as cut as in frame 0.
        if sample and transform.unwraps:
            sample = [0]
        cut_frames = []
        for frame in sample:
            with suppress(MdioError):  # frames that cannot be read are reported later
                if len(finder.frames(transformed.read_with(previous_transform, frame, atoms))):
                    cut_frames.append(frame)
        if cut_frames:
            n_cut = f"{len(cut_frames)} of the {plural(len(sample), 'frame')} checked"
            notes.append(
                f"the box cuts the {plural(len(atoms), 'atom')} that are {use} in {n_cut} "
                f"({runs_text(runs_from_indices(cut_frames), MAX_RUNS)}): {effect}; {finder.advice}"
            )

    is_whole, is_file = pbc in NEED_BONDS, isinstance(reference_option, str)
    if (centred := transform.centre_atoms) is not None and not is_whole:
        previous_transform = replace(transform, centre_atoms=None, wrapped=None, fit=None)
        if finder := cut_molecule_finder(centred, was_rotated=was_rotated):
            effect = "that is the centre of the pieces"
            note_cut_frames(finder, centred, previous_transform, "centred", effect)
    if (fit := transform.fit) is not None and (is_file or not is_whole):
        finder = cut_molecule_finder(fit.atoms, was_rotated=was_rotated and not is_file)
        reference = FrameBlock.empty(1, len(fit.atoms))
        reference.positions[0], reference.box[0] = fit.reference, fit.box
        if finder is not None and len(finder.frames(reference)):
            advice = f"make molecules whole in {reference_option}" if is_file else finder.advice
            notes.append(
                f"the box cuts the {plural(len(fit.atoms), 'atom')} that are fitted in the "
                f"reference, so that all frames are superposed on it wrongly; {advice}"
            )
        if not is_whole and (finder := cut_molecule_finder(fit.atoms, was_rotated=was_rotated)):
            effect = "such frames are superposed on the reference wrongly"
            note_cut_frames(finder, fit.atoms, replace(transform, fit=None), "fitted", effect)
    if are_stored and transformed.pbc in NEED_BONDS:
        all_read = np.arange(transformed.n_read(transform))
        atoms = all_read if output_atoms is None else transform.output_in_read
        if atoms is not None and (finder := cut_molecule_finder(atoms, is_whole=True)):
            effect = "neighbours lie on two sides of it"
            note_cut_frames(finder, atoms, replace(transform, fit=None), "kept", effect)
    return notes


def _sample_frames(n_frames: int) -> list[int]:
    """Return the numbers of the first frames, and of some spread over all."""
    if not n_frames:
        return []
    spread = np.linspace(0, n_frames - 1, SAMPLE_FRAMES).round().astype(int).tolist()
    return sorted({*range(min(FIRST_FRAMES, n_frames)), *spread})
