"""Conversion between topologies of mdio's outputs and those of MDAnalysis; selections; guesses."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import MdioError, PlanError, one_line
from mdio.core.topology import (
    ATOMS,
    BONDS,
    RESIDUES,
    RESINDEX,
    SEGINDEX,
    SEGMENTS,
    TEXTS,
    Residues,
    Texts,
    Topology,
)
from mdio.core.words import did_you_mean, plural

if TYPE_CHECKING:
    from MDAnalysis import AtomGroup, Universe
    from MDAnalysis.core.topology import Topology as TopologyOfMDAnalysis

    from mdio.layouts.base import Layout

GUESSED = {"types": "type", "masses": "mass"}
"""Attributes that MDAnalysis guesses if a topology lacks them, and their words in selections."""
MAX_NAMES = 6
"""Most names of atoms in a note."""
_USES_POSITIONS = re.compile(
    r"\b(?:around|point|box|(?:sph|iso|cy)layer|(?:sph|cy)zone|same\s+[xyz]\s+as)\b"
    r"|\bprop\s+(?:abs\s+)?(?:[-+.\deE]+\s*[<>=!]+\s*)?[xyz](?![\w])"
)
"""Keywords that make a selection depend on positions."""
_WRONG_SELECTION = (ValueError, AttributeError, TypeError, LookupError, ImportError, RecursionError)
"""Raised by MDAnalysis, besides its own error, where a selection ends too early or needs RDKit."""
_UNKNOWN = re.compile(r"Unknown selection token: '(.+)'")


def select_by_mdanalysis(
    atoms: AtomGroup, selection: str, option: str = "", notes: list[str] | None = None
) -> NDArray[np.int64]:
    """Return the indices of the atoms in a selection; raises PlanError.

    Types and masses that it needs and the topology lacks are guessed, as MDAnalysis does. `notes`:
    are appended, on guesses and on the frame whose positions choose the atoms.
    """
    from MDAnalysis.core.selection import _OPERATIONS, _SELECTIONDICT
    from MDAnalysis.exceptions import SelectionError

    attributes = {name for name, word in GUESSED.items() if re.search(rf"\b{word}\b", selection)}
    try:
        with warnings.catch_warnings(), guessing(atoms.universe, attributes) as (names, source):
            warnings.simplefilter("ignore")
            indices = atoms.select_atoms(selection).indices
            if names and notes is not None:
                notes.append(
                    f"the topology has no {' or '.join(names)}: for {selection!r} they are "
                    f"{_guesses_text(atoms, source)}"
                )
            if notes is not None and _USES_POSITIONS.search(selection):
                frames = atoms.universe.trajectory
                notes.append(
                    f"{selection!r} depends on positions: those of frame {frames.frame} of "
                    f"{frames.filename or 'the Universe'} choose the atoms, for all frames; it is "
                    "not evaluated again as they move"
                )
    except (SelectionError, *_WRONG_SELECTION) as error:
        unknown = _UNKNOWN.search(str(error))
        words = {*_SELECTIONDICT, *_OPERATIONS}
        hint, reason = "", one_line(error)
        # After the last token comes None.
        ends = re.search(r"'None'|NoneType|group: None", reason)
        if isinstance(error, LookupError) or ends is not None:
            reason = "it ends where more is expected"
        elif unknown:
            hint = did_you_mean(unknown[1], words)
        elif isinstance(error, AttributeError) or "does not contain" in reason:
            hint = "; give a topology file that has it with -s/--top FILE (in Python: top=)"
        prefix = f"{option}: " if option else ""
        raise PlanError(f"{prefix}cannot select {selection!r} ({reason}){hint}") from error
    return np.asarray(indices, np.int64)


@contextmanager
def guessing(universe: Universe, attributes: set[str]) -> Iterator[tuple[list[str], str]]:
    """Guess types and masses that a Universe lacks; remove them at the end.

    So they do not become a part of its topology, which is stored in outputs. Yields the guessed
    attributes, and the one from which MDAnalysis guesses: elements, types, or names.
    """
    existing = [name for name in GUESSED if attributes and hasattr(universe.atoms, name)]
    names = [name for name in GUESSED if name in attributes and name not in existing]
    source = "types" if "types" in existing else "names"
    if "types" not in names and hasattr(universe.atoms, "elements"):
        source = "elements"
    if not names:
        yield names, source
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        universe.guess_TopologyAttrs(to_guess=list(GUESSED))
    try:
        yield names, source
    finally:
        for name in GUESSED:
            if hasattr(universe.atoms, name) and name not in existing:
                universe.del_TopologyAttr(name)


def _guesses_text(atoms: AtomGroup, source: str) -> str:
    """Return a text on how masses or types were guessed: from which names or elements."""
    values = np.asarray(getattr(atoms, source))
    pairs = dict(zip(values, atoms.types, strict=True))
    masses = getattr(atoms, "masses", None)
    guesses = [
        f"{name} as {kind or 'nothing'}" if source == "names" else str(name)
        for name, kind in sorted(pairs.items())
    ]
    text = f"guessed from {source} (" + ", ".join(guesses[:MAX_NAMES])
    text += ", ...)" if len(guesses) > MAX_NAMES else ")"
    if masses is not None and (unknown := np.asarray(masses) == 0).any():
        names = sorted(set(values[unknown]))
        names_text = ", ".join(names[:MAX_NAMES]) + (", ..." if len(names) > MAX_NAMES else "")
        text += f"; {int(unknown.sum())} of {len(masses)} atoms weigh 0 ({names_text})"
    return text


def masses_of(
    universe: Universe, atoms: NDArray[np.int64] | None, notes: list[str], topology_name: Any
) -> NDArray[np.float64]:
    """Return masses (u) of all atoms of a Universe; a note, on `atoms`, is added if guessed."""
    with guessing(universe, {"masses"}) as (names, source):
        if names:
            group = universe.atoms if atoms is None else universe.atoms[atoms]
            notes.append(
                f"{topology_name} has no masses: they are {_guesses_text(group, source)}; "
                "--weights none (in Python: weights=None) weights all atoms equally"
            )
        return np.array(universe.atoms.masses, np.float64)


def universe_from_parser(parser: Any) -> Universe:
    """Return a Universe of what a parser of MDAnalysis reads, without masses that it makes up.

    The parser of LAMMPS dumps gives all atoms 1.0 u where a dump has neither masses nor elements.
    """
    import MDAnalysis as mda

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        universe = mda.Universe(parser.parse(), to_guess=())
    if any("Guessed all Masses" in str(warning.message) for warning in caught):
        universe.del_TopologyAttr("masses")
    return universe


def topology_of(universe: Universe, atoms: NDArray[np.int64] | None = None) -> Topology:
    """Return the topology of a Universe's atoms, or of those with these indices, in their order."""
    columns: dict[str, Any] = {}
    levels = ((universe.atoms, ATOMS), (universe.residues, RESIDUES), (universe.segments, SEGMENTS))
    for group, names in levels:
        for name in names:
            values = getattr(group, name, None)
            if values is not None:
                values = np.asarray(values)
                is_number = values.dtype.kind in "iuf" and name not in TEXTS
                columns[name] = values if is_number else Texts.of(values)
    columns[RESINDEX] = np.asarray(universe.atoms.resindices, np.int64)
    columns[SEGINDEX] = np.asarray(universe.residues.segindices, np.int64)
    if hasattr(universe.atoms, BONDS):
        columns[BONDS] = np.asarray(universe.atoms.bonds.to_indices(), np.int64).reshape(-1, 2)
    topology = Topology(len(universe.atoms), columns, classes_of(columns.get("resnames")))
    return topology if atoms is None else topology.take(atoms)


def compare_names(
    topology: AtomGroup | Topology, stored: Topology | None, top: Any, path: Any
) -> tuple[str, ...]:
    """Return a note if a topology has other names of atoms than the one in a trajectory.

    `topology`: of `top`. `stored`: of the trajectory at `path`; nothing is compared without one, or
    with one of other atoms.
    """
    if stored is None or stored.n_atoms != (n := topology.n_atoms):
        return ()
    if not isinstance(topology, Topology):
        columns: dict[str, Any] = {RESINDEX: topology.resindices}
        for name, group in (("names", topology), ("resnames", topology.universe.residues)):
            if hasattr(group, name):
                columns[name] = Texts.of(getattr(group, name))
        topology = Topology(n, columns)
    atoms, is_reordered = topology.differing_names(stored)
    if not atoms.size:
        return ()
    first = int(atoms[0])
    example = f"atom {first} is {topology.name_of(first)}, inside {stored.name_of(first)}"
    if is_reordered:
        raise PlanError(
            f"{top} has the atoms of {path} in another order than the topology inside ({example}); "
            "leave out -s/--top (top=) and the one inside is used, or, if that is wrong, convert "
            "the source again with the right one"
        )
    return (
        f"{top} names {len(atoms):,} of {n:,} atoms otherwise than the topology inside "
        f"{path} does ({example}): {top} is used, and has to have the atoms in the same order",
    )


def note_on_reference_names(
    trajectory: Topology, reference: Topology, file: Any, role: str
) -> tuple[str, ...]:
    """Return a note if atoms have other names in another file, such as that of a reference.

    `trajectory`, `reference`: the topologies of those atoms there and in `file`. `role`: what is
    done with the atoms, such as ``fitted``, for the message.
    """
    atoms, is_reordered = trajectory.differing_names(reference)
    if not len(atoms):
        return ()
    first, compared = int(atoms[0]), plural(trajectory.n_atoms, "atom")
    example = f"{trajectory.name_of(first)} is {reference.name_of(first)} there"
    if is_reordered:
        raise PlanError(
            f"{file}: has the {compared} that are {role} in another order than the trajectory "
            f"({example}); give one in the same order"
        )
    return (
        f"{len(atoms):,} of the {compared} that are {role} have other names in {file} "
        f"({example}): they are taken for the same ones, in the order of that file",
    )


def stored_topology(layout: Layout) -> Topology | None:
    """Return the topology inside a trajectory, to compare another with; None if it is damaged."""
    try:
        return layout.topology()
    except MdioError:
        return None


def classes_of(resnames: Texts | None) -> dict[str, tuple[str, ...]]:
    """Return the names of residues that MDAnalysis takes for protein, nucleic acid and water."""
    from MDAnalysis.core import selection

    if resnames is None:
        return {}
    classes = {
        "protein": selection.ProteinSelection.prot_res,
        "nucleic": selection.NucleicSelection.nucl_res,
        "water": selection.WaterSelection.water_res,
    }
    return {
        kind: tuple(name for name in resnames.table if name in names)
        for kind, names in classes.items()
    }


def residues_of(universe: Universe, atoms: NDArray[np.int64] | None = None) -> Residues:
    """Return the residues of a Universe's atoms, or of some of them."""
    names = getattr(universe.residues, "resnames", None)
    texts = None if names is None else Texts.of(names)
    resindices, segments = universe.atoms.resindices, universe.residues.segindices
    return Residues(resindices, segments, texts, classes_of(texts)).take(atoms)


def to_mdanalysis_topology(topology: Topology) -> TopologyOfMDAnalysis:
    """Return a topology of mdio as one of MDAnalysis."""
    from MDAnalysis import _TOPOLOGY_ATTRS
    from MDAnalysis.core import topology as core
    from MDAnalysis.core import topologyattrs

    attributes = []
    for name in (*ATOMS, *RESIDUES, *SEGMENTS):
        column = topology.columns.get(name)
        if column is not None:
            values = column.values() if isinstance(column, Texts) else column.copy()
            attributes.append(_TOPOLOGY_ATTRS[name](values))
    resindex, segindex = topology.numbers(RESINDEX), topology.numbers(SEGINDEX)
    n_residues = 1 if resindex is None else max(1, topology.n_parents(RESINDEX))
    n_segments = 1 if segindex is None else max(1, topology.n_parents(SEGINDEX))
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
    """Return a Universe of a stored topology, without coordinates and guessed attributes."""
    import MDAnalysis as mda

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return mda.Universe(to_mdanalysis_topology(topology), to_guess=())
