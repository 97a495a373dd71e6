"""Molecules: what bonds hold together."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def molecules_of(
    bonds: NDArray[Any], n_atoms: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the connected parts of a system, and a tree of bonds through each.

    `bonds`, (B, 2) int: pairs of atoms. `n_atoms`: number of atoms A.
    Returns `molecules`, (A,) int64: of each atom, the number of its molecule. `order`, (A,) int64:
    atoms, one molecule after the other; in each from its first atom outwards. `parents`, (A,)
    int64: of the atoms in that order, the one that each is bound to and that comes before it; -1
    for the first of a molecule.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import breadth_first_order, connected_components

    pairs = np.asarray(bonds, np.int64).reshape(-1, 2)
    ones, shape = np.ones(len(pairs), np.int8), (n_atoms + 1, n_atoms + 1)
    graph = coo_array((ones, (pairs[:, 0], pairs[:, 1])), shape)
    molecules = connected_components(graph, directed=False)[1][:n_atoms].astype(np.int64)
    # One tree for all: a root that is bound to the first atom of each molecule.
    firsts = np.unique(molecules, return_index=True)[1]
    ends = np.concatenate([pairs, np.stack([np.full_like(firsts, n_atoms), firsts], axis=1)])
    graph = coo_array((np.ones(len(ends), np.int8), (ends[:, 0], ends[:, 1])), shape)
    order, parents = breadth_first_order(graph.tocsr(), n_atoms, directed=False)
    order = order[1:].astype(np.int64)
    order = order[np.argsort(molecules[order], kind="stable")]
    found = parents[order].astype(np.int64)
    return molecules, order, np.where(found == n_atoms, -1, found)
