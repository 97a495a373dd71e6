"""Topologies in H5MD files: mdio's own, and those of GROMACS and other programs.

mdio's own is in ``/mdio/topology``, as bytes (`mdio.core.topology`). For other programs bonds are
in ``/connectivity/bonds``, as GROMACS 2026 writes them, and mass, charge and species (the atomic
number) beside the positions, as in H5MD 1.1. From files of GROMACS,
``/h5md/modules/gromacs_topology`` is read: blocks of molecules, each of a type and a count.
"""

from __future__ import annotations

from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from mdio.core.topology import BONDS, RESINDEX, SEGINDEX, Texts, Topology

TOPOLOGY = "mdio/topology"
GROMACS_MODULE = "h5md/modules/gromacs_topology"
CONNECTIVITY = "connectivity"
BOND_COUNT = "bond_count"
_SYMBOLS_TEXT = """
X H He Li Be B C N O F Ne Na Mg Al Si P S Cl Ar K Ca Sc Ti V Cr Mn Fe Co Ni Cu Zn Ga Ge As Se Br Kr
Rb Sr Y Zr Nb Mo Tc Ru Rh Pd Ag Cd In Sn Sb Te I Xe Cs Ba La Ce Pr Nd Pm Sm Eu Gd Tb Dy Ho Er Tm Yb
Lu Hf Ta W Re Os Ir Pt Au Hg Tl Pb Bi Po At Rn
"""
SYMBOLS = _SYMBOLS_TEXT.split()
"""By atomic number."""
MAX_ATOMS = 1 << 31


def write_topology(file: h5py.File, topology: Topology, group: str) -> None:
    """Write bonds and properties of a particle group's atoms where other programs look."""
    particles = file[f"particles/{group}"]
    for name, column, unit in (("mass", "masses", "u"), ("charge", "charges", "e")):
        values = topology.numbers(column)
        if values is not None:
            dataset = particles.create_dataset(name, data=values.astype("<f4"))
            dataset.attrs["unit"] = np.bytes_(unit)
    elements = topology.texts("elements")
    if elements is not None:
        number_by_symbol = {symbol.upper(): number for number, symbol in enumerate(SYMBOLS)}
        numbers = np.array(
            [number_by_symbol.get(text.strip().upper(), 0) for text in elements.table], "<i4"
        )
        particles.create_dataset("species", data=numbers[elements.codes])
    bonds = topology.numbers(BONDS)
    if bonds is not None:
        connectivity = file.create_group(CONNECTIVITY)
        connectivity.attrs.create(BOND_COUNT, len(bonds), dtype="<i8")
        dataset = connectivity.create_dataset("bonds", data=bonds.reshape(-1, 2).astype("<i8"))
        dataset.attrs["particles_group"] = particles.ref


def read_foreign_topology(file: h5py.File, group: h5py.Group, n_atoms: int) -> Topology | None:
    """Return the topology of a group in a file of another program; None if it has none."""
    columns: dict[str, Any] = (
        _read_molecules(file[GROMACS_MODULE], n_atoms) if GROMACS_MODULE in file else {}
    )
    for name, column in (("mass", "masses"), ("charge", "charges")):
        node = group.get(name)
        if isinstance(node, h5py.Dataset) and node.shape == (n_atoms,) and node.dtype.kind in "fiu":
            columns.setdefault(column, node[...].astype("f8"))
    node = file.get(f"{CONNECTIVITY}/bonds")
    if isinstance(node, h5py.Dataset) and node.ndim == 2 and node.shape[1] == 2:
        pairs = node[...].astype("i8")
        if pairs.min(initial=0) >= 0 and pairs.max(initial=0) < n_atoms:
            columns[BONDS] = pairs
    if not columns:
        return None
    topology = Topology(n_atoms, columns)
    topology.check()
    return topology


def _read_molecules(module: h5py.Group, n_atoms: int) -> dict[str, Any]:
    """Return the topology's columns from GROMACS' module, with each molecule repeated."""
    molecule_names = [_text(name) for name in np.atleast_1d(module.attrs["molecule_block_names"])]
    counts = [int(count) for count in np.atleast_1d(module.attrs["molecule_block_counts"])]
    texts: dict[str, list[str]] = {"names": [], "resnames": [], "segids": molecule_names}
    parts: dict[str, list[NDArray[Any]]] = {name: [] for name in ("masses", "charges", "elements")}
    parts |= {name: [] for name in ("names", "resnames", "residues", "segments")}
    n_residues_so_far = total = 0
    for number, (name, count) in enumerate(zip(molecule_names, counts, strict=True)):
        molecule = module[name]
        n_molecule_atoms = int(molecule.attrs["particle_count"])
        n_residues = int(molecule.attrs["residue_count"])
        total += n_molecule_atoms * count
        if count < 0 or n_molecule_atoms < 0 or total > min(n_atoms, MAX_ATOMS):
            raise ValueError(f"{module.name} has more atoms than the {n_atoms} of the trajectory")
        for column, dataset in (("masses", "mass"), ("charges", "charge"), ("elements", "species")):
            parts[column].append(np.tile(molecule[dataset][...], count))
        for column, dataset in (("names", "particle_name"), ("resnames", "residue_name")):
            table = [_text(text) for text in molecule[f"{dataset}_table"][...]]
            codes = molecule[dataset][...] + len(texts[column])
            texts[column] += table
            if column != "names":  # one per residue: that of its first atom
                codes = codes[np.unique(molecule["residue_id"][...], return_index=True)[1]]
            parts[column].append(np.tile(codes, count))
        residues = molecule["residue_id"][...].astype("i8") - 1
        first_of_each = n_residues_so_far + n_residues * np.arange(count)
        parts["residues"].append((residues + first_of_each[:, None]).ravel())
        parts["segments"].append(np.full(n_residues * count, number))
        n_residues_so_far += n_residues * count
    if total != n_atoms:
        raise ValueError(f"{module.name} has {total} atoms, the trajectory {n_atoms}")
    joined = {name: np.concatenate(part) for name, part in parts.items()}
    numbers_with_symbol = np.where(
        (joined["elements"] > 0) & (joined["elements"] < len(SYMBOLS)), joined["elements"], 0
    )
    return {
        "names": Texts(joined["names"], tuple(texts["names"])),
        "elements": Texts(numbers_with_symbol, ("", *SYMBOLS[1:])),
        "masses": joined["masses"].astype("f8"),
        "charges": joined["charges"].astype("f8"),
        "resids": np.arange(1, n_residues_so_far + 1),
        "resnames": Texts(joined["resnames"], tuple(texts["resnames"])),
        "segids": Texts(np.arange(len(molecule_names)), tuple(molecule_names)),
        RESINDEX: joined["residues"],
        SEGINDEX: joined["segments"],
    }


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
