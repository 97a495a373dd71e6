"""Topologies that fit what was kept: ``NAME.top.pdb`` beside ``NAME.zarr``."""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path

from mdio.converters.selection import AtomChoice

__all__ = ["topologies"]


def topologies(choice: AtomChoice, out: Path) -> dict[Path, bytes]:
    """Return the topology files that belong beside `out`, and what is to be in each.

    One for the kept atoms where only some are kept, and one for each group, with the coordinates
    of the first frame; none where no topology was given.

    Returns
    -------
    dict of path to bytes
        ``NAME.top.pdb`` and ``NAME.GROUP.top.pdb``; ``.gro`` where the coordinates do not fit the
        columns of a PDB file.
    """
    if choice.universe is None:
        return {}
    wanted: list[str | None] = [] if choice.kept is None else [None]
    wanted += choice.groups
    return dict(_topology(choice, out, group) for group in wanted)


def _topology(choice: AtomChoice, out: Path, group: str | None) -> tuple[Path, bytes]:
    atoms = choice.atom_group(group)
    stem = f"{out.stem}.{group}.top" if group else f"{out.stem}.top"
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PDB fields that the topology lacks are filled in
        for suffix in (".pdb", ".gro"):
            written = Path(folder, f"topology{suffix}")
            try:
                atoms.write(str(written))
            except ValueError:
                if suffix == ".gro":
                    raise
            else:
                break
        return out.with_name(stem + suffix), written.read_bytes()
