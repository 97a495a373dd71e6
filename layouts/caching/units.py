"""The units of whole trajectories, and which of them a node has: what a plan is made of."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.cache.folder import Cache
from mdio.core.cache.source import CachedSource
from mdio.layouts.caching.reads import cached_reads


@dataclass(frozen=True, slots=True, eq=False)
class UnitsOfOne:
    """Units of one file or output."""

    path: Path
    label: str
    uuid: str | None
    numbers: NDArray[np.int64]
    stops: NDArray[np.int64]
    """The frame behind the last of each."""


@dataclass(frozen=True, slots=True, eq=False)
class CacheUnits:
    """Units of a trajectory, of one or several files; pickles to some bytes a unit.

    Attributes: `edges`, (U + 1,) int64: frames at which units begin, ``n_frames`` last. `parts`: of
    what they are, in order.
    """

    edges: NDArray[np.int64]
    parts: list[UnitsOfOne]

    def held(self, cache: Cache) -> NDArray[np.bool_]:
        """Return which units this node has, (U,)."""
        found = []
        for part in self.parts:
            source = CachedSource(cache, part.path, part.label, part.uuid)
            try:
                found.append(source.held(part.numbers.tolist(), part.stops.tolist()))
            except OSError:  # the source is not there: whoever reads it will say so
                found.append(np.zeros(len(part.numbers), bool))
        return np.concatenate(found)


def units_of(layout: Any, atoms: NDArray[np.int64] | None) -> CacheUnits:
    """Return the units that reading `atoms` of an open layout takes, its members' one by one."""
    edges, parts, at = [np.zeros(1, np.int64)], [], 0
    for member, first, last in layout.kept:
        reads = cached_reads(member, atoms)
        own = reads.edges
        a = int(np.searchsorted(own, first, side="right")) - 1
        b = int(np.searchsorted(own, last, side="left"))
        inner = np.minimum(own[a + 1 : b + 1], last) - first
        edges.append(at + inner)
        stops = own[a + 1 : b + 1]
        source = reads.source
        parts.append(UnitsOfOne(source.path, source.label, source.uuid, np.arange(a, b), stops))
        at += last - first
    return CacheUnits(np.concatenate(edges), parts)
