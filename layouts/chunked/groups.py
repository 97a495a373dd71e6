"""Which stored atom group answers a selection of atoms with the fewest bytes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import CorruptLayoutError
from mdio.core.topology.topology import Topology
from mdio.layouts.manifest import indices_from_runs

AtomIndices = NDArray[np.int64]
Covered = tuple[str, AtomIndices | None]


def stored_topology(data: bytes, manifest: Mapping[str, Any], group: str, path: Path) -> Topology:
    """Return what an output holds of the atoms of one of its groups, or of all.

    Raises CorruptLayoutError: it is damaged, or of another number of atoms.
    """
    found = Topology.from_bytes(data, str(path))
    if found.n_atoms != manifest["n_atoms"]:
        raise CorruptLayoutError(
            f"{path}: its topology has {found.n_atoms} atoms, its frames {manifest['n_atoms']}; "
            "convert the source again"
        )
    runs = manifest["group_atoms"].get(group)
    return found if runs is None else found.take(indices_from_runs(runs))


class StoredGroups:
    """The atom groups that an output holds besides the full system.

    `groups`: atoms of each group, as indices into the full system, in the order in which they are
    stored.
    """

    def __init__(self, groups: Mapping[str, AtomIndices]) -> None:
        self._groups = []
        for name in sorted(groups, key=lambda name: groups[name].size):
            order = np.argsort(groups[name], kind="stable")
            self._groups.append((name, groups[name][order], order))
        self._last: tuple[AtomIndices, Covered | None] | None = None

    def cover(self, atoms: AtomIndices) -> Covered | None:
        """Find the smallest group that holds all of `atoms`.

        `atoms`, (n,) int64: indices into the full system, in any order.
        Returns (name, indices) or None: the group, and where in it each of `atoms` is stored; None
        instead of the indices if they are all atoms of the group in its order. None where no group
        has them all. The answer for the last selection is kept, since an analysis asks for one
        selection block after block.
        """
        if self._last is not None and np.array_equal(self._last[0], atoms):
            return self._last[1]
        found = self._search(atoms) if self._groups else None
        self._last = (atoms.copy(), found)
        return found

    def members(self, name: str) -> AtomIndices:
        """Return the atoms of a group in the order in which they are stored; raises KeyError."""
        for other, members, order in self._groups:
            if other == name:
                stored = np.empty_like(members)
                stored[order] = members
                return stored
        raise KeyError(name)

    def _search(self, atoms: AtomIndices) -> Covered | None:
        for name, members, order in self._groups:
            if not members.size:
                continue
            at = np.minimum(np.searchsorted(members, atoms), members.size - 1)
            if np.array_equal(members[at], atoms):
                indices = order[at]
                whole = np.array_equal(indices, np.arange(members.size))
                return name, None if whole else indices
        return None


def is_everything(atoms: AtomIndices, n_atoms: int) -> bool:
    """Return whether these are all atoms, in order."""
    return atoms.size == n_atoms and bool(np.array_equal(atoms, np.arange(n_atoms)))
