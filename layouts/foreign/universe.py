"""Between topologies as outputs hold them and those of MDAnalysis."""

from __future__ import annotations

import re
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import PlanError
from mdio.core.topology.topology import (
    ATOMS,
    BONDS,
    RESIDUES,
    RESINDEX,
    SEGINDEX,
    SEGMENTS,
    Texts,
    Topology,
)
from mdio.core.words import did_you_mean

if TYPE_CHECKING:
    from MDAnalysis import AtomGroup, Universe
    from MDAnalysis.core.topology import Topology as TopologyOfMDAnalysis

_UNKNOWN = re.compile(r"Unknown selection token: '(.+)'")


def selected(atoms: AtomGroup, selection: str, option: str = "") -> NDArray[np.int64]:
    """Return the indices of those of some atoms that a selection means.

    `atoms`: to select from. `selection`: in MDAnalysis' selection language. `option`: what gave it,
    for the message.
    Raises PlanError: MDAnalysis does not understand it, or the topology lacks what it asks for.
    """
    from MDAnalysis.core.selection import _OPERATIONS, _SELECTIONDICT
    from MDAnalysis.exceptions import SelectionError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = atoms.select_atoms(selection).indices
    except (SelectionError, AttributeError, ValueError) as error:
        unknown = _UNKNOWN.search(str(error))
        words = {*_SELECTIONDICT, *_OPERATIONS}
        hint = did_you_mean(unknown[1], words) if unknown else ""
        where = f"{option}: " if option else ""
        raise PlanError(f"{where}cannot select {selection!r} ({error}){hint}") from error
    return np.asarray(found, np.int64)


def topology_of(universe: Universe, atoms: NDArray[np.int64] | None = None) -> Topology:
    """Return what a Universe knows of its atoms, or of some of them.

    `universe`: with what its topology file gave; what MDAnalysis would guess is left to be guessed.
    `atoms`: which atoms, in which order; all by default.
    """
    columns: dict[str, Any] = {}
    levels = ((universe.atoms, ATOMS), (universe.residues, RESIDUES), (universe.segments, SEGMENTS))
    for group, names in levels:
        for name in names:
            values = getattr(group, name, None)
            if values is not None:
                values = np.asarray(values)
                columns[name] = values if values.dtype.kind in "iuf" else Texts.of(values)
    columns[RESINDEX] = np.asarray(universe.atoms.resindices, np.int64)
    columns[SEGINDEX] = np.asarray(universe.residues.segindices, np.int64)
    if hasattr(universe.atoms, BONDS):
        columns[BONDS] = np.asarray(universe.atoms.bonds.to_indices(), np.int64).reshape(-1, 2)
    found = Topology(len(universe.atoms), columns, classes_of(columns.get("resnames")))
    return found if atoms is None else found.take(atoms)


def classes_of(resnames: Texts | None) -> dict[str, tuple[str, ...]]:
    """Return which names of residues MDAnalysis takes for protein, nucleic acid and water."""
    from MDAnalysis.core import selection

    if resnames is None:
        return {}
    kinds = {
        "protein": selection.ProteinSelection.prot_res,
        "nucleic": selection.NucleicSelection.nucl_res,
        "water": selection.WaterSelection.water_res,
    }
    return {
        kind: tuple(name for name in resnames.table if name in known)
        for kind, known in kinds.items()
    }


def made_for_mdanalysis(topology: Topology) -> TopologyOfMDAnalysis:
    """Return a topology as MDAnalysis has it."""
    from MDAnalysis.core import topology as core
    from MDAnalysis.core import topologyattrs

    kinds = {
        "names": topologyattrs.Atomnames,
        "types": topologyattrs.Atomtypes,
        "elements": topologyattrs.Elements,
        "masses": topologyattrs.Masses,
        "charges": topologyattrs.Charges,
        "chainIDs": topologyattrs.ChainIDs,
        "resids": topologyattrs.Resids,
        "resnames": topologyattrs.Resnames,
        "icodes": topologyattrs.ICodes,
        "segids": topologyattrs.Segids,
    }
    attributes = []
    for name, kind in kinds.items():
        column = topology.columns.get(name)
        if column is not None:
            attributes.append(kind(column.values() if isinstance(column, Texts) else column.copy()))
    resindex, segindex = topology.numbers(RESINDEX), topology.numbers(SEGINDEX)
    n_residues = 1 if resindex is None else int(resindex.max(initial=0)) + 1
    n_segments = 1 if segindex is None else int(segindex.max(initial=0)) + 1
    if "resids" not in topology.columns:
        attributes.append(topologyattrs.Resids(np.arange(1, n_residues + 1)))
    if "segids" not in topology.columns:
        attributes.append(topologyattrs.Segids(np.array(["SYSTEM"] * n_segments, object)))
    bonds = topology.numbers(BONDS)
    if bonds is not None:
        attributes.append(topologyattrs.Bonds([tuple(pair) for pair in bonds.tolist()]))
    return core.Topology(
        topology.n_atoms,
        n_residues,
        n_segments,
        attrs=attributes,
        atom_resindex=None if resindex is None else resindex.astype(np.int64),
        residue_segindex=None if segindex is None else segindex.astype(np.int64),
    )


def universe_of(topology: Topology) -> Universe:
    """Return a Universe, without coordinates, of a stored topology; nothing is guessed."""
    import MDAnalysis as mda

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return mda.Universe(made_for_mdanalysis(topology), to_guess=())
