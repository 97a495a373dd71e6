"""Topologies that fit what was kept: ``NAME.top.pdb`` beside ``NAME.zarr``."""

from __future__ import annotations

import warnings
from pathlib import Path

from mdio.converters.selection import AtomChoice
from mdio.core.publish import temporary_for

__all__ = ["topology_paths", "write_topology"]


def topology_paths(out: Path, group: str | None = None) -> tuple[Path, Path]:
    """Return where the topology of the kept atoms, or of a group, may go: PDB, or else GRO."""
    stem = f"{out.stem}.{group}.top" if group else f"{out.stem}.top"
    return out.with_name(f"{stem}.pdb"), out.with_name(f"{stem}.gro")


def write_topology(choice: AtomChoice, out: Path, group: str | None = None) -> Path:
    """Write the kept atoms (or a group) with their coordinates in the first frame.

    It is written under its temporary name, for `publish` to put in place.

    Returns
    -------
    Path
        Where it will be: a PDB file, or a GRO file if the coordinates do not fit a PDB's columns.
    """
    atoms = choice.atom_group(group)
    pdb, gro = topology_paths(out, group)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PDB fields that the topology lacks are filled in
        try:
            atoms.write(str(temporary_for(pdb)), file_format="PDB", bonds=None)
        except ValueError:
            temporary_for(pdb).unlink(missing_ok=True)
            atoms.write(str(temporary_for(gro)), file_format="GRO")
            return gro
    return pdb
