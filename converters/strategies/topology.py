"""Topologies that fit what was kept: ``NAME.top.pdb`` beside ``NAME.zarr``."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from mdio.converters.selection import AtomChoice
from mdio.core.files.regular import read_regular
from mdio.layouts.registry import output_suffixes


def topologies(choice: AtomChoice, out: Path, sources: Sequence[Path] = ()) -> dict[Path, bytes]:
    """Return the topology files that belong beside `out`, and what is to be in each.

    One for the kept atoms where only some are kept, and one for each group, with the coordinates
    of the first frame; none where no topology was given. Outputs that share their stem (``md.zarr``
    and ``md.h5md``) share a topology if it is the same; where another one has the name and may
    belong to another output, the name gets the suffix of `out` too (``md.h5md.top.pdb``).

    `choice`: what is kept. `out`: the output. `sources`: what is converted: no outputs, even if
    they share the stem.
    Returns dict of path to bytes: ``NAME.top.pdb`` and ``NAME.GROUP.top.pdb``; ``.gro`` where the
    coordinates do not fit the columns of a PDB file.
    """
    wanted: list[str | None] = [] if choice.kept is None else [None]
    wanted += choice.groups
    made = {}
    for group in wanted:
        suffix, data = _topology(choice, group)
        ending = f".{group}.top{suffix}" if group else f".top{suffix}"
        path = out.with_name(out.stem + ending)
        if os.path.lexists(path) and not holds(path, data) and _has_namesakes(out, sources):
            path = out.with_name(out.name + ending)
        made[path] = data
    return made


def holds(path: Path, data: bytes) -> bool:
    """Return whether a file is there, and has these bytes."""
    with suppress(OSError):  # the name may be too long for a file
        return path.is_file() and read_regular(path) == data
    return False


def _has_namesakes(out: Path, sources: Sequence[Path]) -> bool:
    """Return whether trajectories besides `out` have its stem."""
    names = {out.stem + suffix for suffix in output_suffixes()} - {out.name}
    there = [out.with_name(name) for name in names if os.path.lexists(out.with_name(name))]
    given = {os.path.realpath(source) for source in sources}
    return any(os.path.realpath(path) not in given for path in there)


def _topology(choice: AtomChoice, group: str | None) -> tuple[str, bytes]:
    """Return the suffix and the bytes of a topology."""
    atoms = choice.atom_group(group)
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
        return suffix, written.read_bytes()
