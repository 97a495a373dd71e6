"""What ``--pbc`` and ``--center`` do: which atoms are needed for it, and what happens to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.converters.periodic import NEED_BONDS
from mdio.core import kernels
from mdio.core.errors import PlanError
from mdio.core.frames import AtomIndices, FrameBlock
from mdio.core.topology import molecules_of
from mdio.core.words import plural
from mdio.layouts.base import Layout

Molecules = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]
"""Their atoms one after the other, where each begins among these, and the atoms' weights."""


@dataclass(frozen=True)
class Steps:
    """What is done to the frames of some atoms; atoms are numbered as they are read."""

    wanted: AtomIndices | None
    """Of the source; None = all."""
    needed: AtomIndices | None
    """Which of the source's are read."""
    taken: AtomIndices | None
    """Where those that are wanted are among them; None = just as they are read."""
    links: NDArray[np.int64] | None = None
    gathered: Molecules | None = None
    centred: NDArray[np.int64] | None = None
    molecules: Molecules | None = None
    follows: bool = False
    counts: dict[int, bytes] | None = None
    """Of some frames, over how many boundaries atoms have gone by then."""
    note: str = ""
    """What is done to which molecules."""

    def is_for(self, atoms: AtomIndices | None) -> bool:
        """Return whether these are the steps for `atoms`."""
        if atoms is None or self.wanted is None:
            return atoms is self.wanted
        return np.array_equal(atoms, self.wanted)

    def apply(self, part: FrameBlock) -> None:
        """Do, in place, all that each frame needs by itself."""
        positions, box = part.positions, part.box
        if self.links is not None:
            kernels.make_whole(positions, box, self.links)
        if self.gathered is not None:
            kernels.gather(positions, box, *self.gathered)
        if self.centred is not None:
            kernels.centre(positions, box, self.centred)
        if self.molecules is not None:
            kernels.put_in_cell(positions, box, *self.molecules)


def steps_for(
    source: Layout,
    atoms: AtomIndices | None,
    pbc: str | None,
    center: str | None,
    universe: Callable[[], Any],
    named: Any,
) -> Steps:
    """Return the steps for some atoms of a source.

    `universe` gives the Universe of the topology, which `named` is for messages.
    Raises PlanError: the topology has no bonds, or the selection is wrong.
    """
    n_atoms = source.info.n_atoms
    needed = np.ones(n_atoms, bool)
    if atoms is not None:
        needed[:] = False
        needed[atoms] = True
    centre = None if center is None else _selected(universe().atoms, center)
    if centre is not None:
        needed[centre] = True
    together = atoms if centre is None else centre
    if pbc == "cluster" and together is None:
        raise PlanError(
            "--pbc cluster brings the molecules of a selection together; name it with --center "
            "SEL, or keep nothing else with --select SEL"
        )
    gathered = links = molecules = None
    notes = []
    if pbc in NEED_BONDS:
        everyone = universe().atoms
        labels, order, parents = molecules_of(_bonds(everyone, pbc, named), n_atoms)
        needed = np.isin(labels, labels[needed])
        place = np.cumsum(needed) - 1
        bound = (parents >= 0) & needed[order]
        links = np.ascontiguousarray(place[[order[bound], parents[bound]]].T)
        notes.append(f"{plural(int(needed.sum()) - len(links), 'molecule')} made whole")
        others = needed
        if pbc == "cluster":
            ours = np.isin(labels, labels[together])
            others = needed & ~ours
            gathered = _molecules(everyone, labels, order[ours[order]], place, by_mass=False)
            notes.append(f"{len(gathered[1]) - 1:,} brought together")
        if (pbc == "mol" or centre is not None) and others.any():
            molecules = _molecules(everyone, labels, order[others[order]], place)
            notes.append(f"{len(molecules[1]) - 1:,} put into the box by their centres")
    else:
        place = np.cumsum(needed) - 1
    n_needed = int(needed.sum())
    if pbc in ("atom", "wrap"):
        every = np.arange(n_needed + 1)
        molecules = (every[:-1], every, np.ones(n_needed))
        notes.append(f"{plural(n_needed, 'atom')} put into the box one by one")
    if centre is not None:
        notes.insert(len(notes) - (molecules is not None), f"the centre of {len(centre):,} moved")
    n_wanted = n_atoms if atoms is None else len(atoms)
    which = np.flatnonzero(needed)
    same = n_needed == n_atoms if atoms is None else np.array_equal(atoms, which)
    if not same:
        notes.append(f"{n_needed:,} atoms are read for the {n_wanted:,} that are kept")
    return Steps(
        wanted=atoms,
        needed=None if n_needed == n_atoms else which,
        taken=None if same or atoms is None else place[atoms],
        links=links,
        gathered=gathered,
        centred=None if centre is None else place[centre],
        molecules=molecules,
        follows=pbc == "nojump",
        note=", ".join(notes),
    )


def _selected(atoms: Any, selection: str) -> NDArray[np.int64]:
    from mdio.layouts.foreign.universe import selected

    found = selected(atoms, selection, "--center")
    if not len(found):
        raise PlanError(f"--center: {selection!r} selects no atoms")
    return found


def _bonds(atoms: Any, pbc: str | None, named: Any) -> NDArray[np.int64]:
    bonds = getattr(atoms, "bonds", None)
    if bonds is None or not len(bonds):
        raise PlanError(
            f"--pbc {pbc} needs bonds, and the topology {named} has none; give one that has them "
            "with -s/--top (TPR, PSF, PRMTOP, a PDB with CONECT), or take --pbc atom or nojump"
        )
    found = np.asarray(bonds.to_indices(), np.int64)
    masses = getattr(atoms, "masses", np.ones(len(atoms)))
    # Virtual sites, which topologies have no bonds of, go with the first atom of the residue.
    alone = np.setdiff1d(np.flatnonzero(np.asarray(masses) == 0), found)
    residues = atoms.resindices
    firsts = np.unique(residues, return_index=True)[1][residues[alone]]
    return np.concatenate([found, np.stack([firsts, alone], axis=1)])


def _molecules(
    everyone: Any,
    labels: NDArray[np.int64],
    atoms: NDArray[np.int64],
    place: NDArray[np.int64],
    *,
    by_mass: bool = True,
) -> Molecules:
    """Return the molecules of `atoms`, which come one molecule after the other.

    Weights are masses as parts of the molecule's, where there are some and they are to count.
    """
    starts = np.flatnonzero(np.diff(labels[atoms], prepend=-1, append=-1))
    sizes = np.repeat(np.diff(starts), np.diff(starts))
    given = np.asarray(getattr(everyone, "masses", np.ones(0)), np.float64) if by_mass else ()
    masses = given[atoms] if len(given) else np.ones(len(atoms))
    sums = np.repeat(np.add.reduceat(masses, starts[:-1]), np.diff(starts))
    has_mass = np.isfinite(sums) & (sums > 0)
    weights = np.where(has_mass, masses / np.where(has_mass, sums, 1), 1 / sizes)
    return place[atoms], starts, weights
