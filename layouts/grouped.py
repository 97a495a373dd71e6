"""Which stored atom group answers a selection of atoms with the fewest bytes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

__all__ = ["StoredGroups"]

AtomIndices = NDArray[np.int64]
Covered = tuple[str, AtomIndices | None]


class StoredGroups:
    """The atom groups that an output holds besides the full system.

    Parameters
    ----------
    groups
        Atoms of each group, as indices into the full system, in the order in which they are stored.
    """

    def __init__(self, groups: Mapping[str, AtomIndices]) -> None:
        self._groups = []
        for name in sorted(groups, key=lambda name: groups[name].size):
            order = np.argsort(groups[name], kind="stable")
            self._groups.append((name, groups[name][order], order))
        self._last: tuple[AtomIndices, Covered | None] | None = None

    def cover(self, atoms: AtomIndices) -> Covered | None:
        """Find the smallest group that holds all of `atoms`.

        Parameters
        ----------
        atoms : (n,) int64
            Indices into the full system, in any order.

        Returns
        -------
        (name, indices) or None
            The group, and where in it each of `atoms` is stored; None instead of the indices if
            they are all atoms of the group in its order. None where no group has them all. The
            answer for the last selection is kept, since an analysis asks for one selection
            block after block.
        """
        if self._last is not None and np.array_equal(self._last[0], atoms):
            return self._last[1]
        found = self._search(atoms) if self._groups else None
        self._last = (atoms.copy(), found)
        return found

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
