"""Assigns each unit to the node that reads it; every process computes the same assignment.

After Zazen (Tu, Rendleman, Miller, Sacerdoti, Dror, Shaw 2010): each node says with a bitmap which
units its disk has; all bitmaps together determine the one node that reads each unit.
A unit is read by a node that has it; of several such nodes, and for units that no node has, by the
node with the smallest load. Rendezvous hashing (Thaler and Ravishankar 1998) decides which of the
units, so that all nodes agree and the share of a lost node spreads over all others.

Bits lie in bytes least significant first, as by ``numpy.packbits(..., bitorder="little")``.
"""

from __future__ import annotations

import glob
import hashlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.cache import Cache, node_name
from mdio.core.errors import MdioError, PlanError
from mdio.layouts.base import cache_notes
from mdio.layouts.caching import cached_reads
from mdio.layouts.registry import open_layout

Hashes = NDArray[np.uint64]

UNITS_AT_ONCE = 1 << 20
"""Units, a multiple of 8, that are assigned at a time, each such part evenly by itself."""
MAX_HOLDER_SETS = 2048
"""Most different sets of nodes that have a unit for which loads are balanced, set by set; with more
sets, a unit that several nodes have goes to the one that it prefers."""
MAX_WEIGHTS = 1 << 22
"""Weights (nodes times units) computed at a time."""
SPLITMIX_CONSTANTS = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
"""Constants of SplitMix64 (Steele, Lea, Flood 2014)."""


def _seeds(names: Sequence[str]) -> Hashes:
    digests = [hashlib.sha256(name.encode()).digest() for name in names]
    return np.array([int.from_bytes(digest[:8], "little") for digest in digests], np.uint64)


def _hash(keys: NDArray[np.int64], seeds: Hashes) -> Hashes:
    x = keys.astype(np.uint64) * np.uint64(SPLITMIX_CONSTANTS[0]) + seeds
    x = (x ^ (x >> np.uint64(30))) * np.uint64(SPLITMIX_CONSTANTS[1])
    x = (x ^ (x >> np.uint64(27))) * np.uint64(SPLITMIX_CONSTANTS[2])
    return x ^ (x >> np.uint64(31))


def unit_keys(name: str, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a key for each unit of a trajectory, by which it is assigned to a node.

    `name`: of the trajectory. `numbers`, (n,) int64: of its units. Numbers alone would send the
    units of many small files, each number 0, to the same node.
    """
    digest = hashlib.sha256(name.encode(errors="surrogateescape")).digest()
    return numbers + (int.from_bytes(digest[:8], "little") >> 2)


def preferred_node(
    keys: NDArray[np.int64], names: Sequence[str], cached: NDArray[np.bool_] | None = None
) -> NDArray[np.int64]:
    """Return the node that each unit prefers: that of the largest weight (rendezvous hashing).

    `keys`, (n,) int64: of the units, by `unit_keys`. `names`: of the nodes; their order does not
    matter. `cached`, (N, n) bool: which node has which unit; if given, only those are preferred.
    """
    nodes = np.empty(len(keys), np.int64)
    for units in _unit_runs(len(keys), len(names)):
        weights = _hash(keys[units], _seeds(names)[:, None])
        if cached is not None:
            weights[~cached[:, units]] = 0
        nodes[units] = weights.argmax(axis=0)
    return nodes


def _unit_runs(n_units: int, n_nodes: int) -> Iterator[slice]:
    """Yield runs of units that take little memory for all nodes."""
    step = max(1, MAX_WEIGHTS // max(1, n_nodes))
    for begin in range(0, n_units, step):
        yield slice(begin, begin + step)


def _shares(loads: NDArray[np.int64], workers: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    """Return how many of `n` units each node gets, so that loads per worker become equal."""
    order = np.argsort(loads / workers, kind="stable")
    levels = (n + np.cumsum(loads[order])) / np.cumsum(workers[order])
    is_below = loads[order] / workers[order] <= levels
    level = levels[np.flatnonzero(is_below)[-1]]
    exact_shares = np.maximum(0.0, level * workers - loads)
    shares = np.floor(exact_shares).astype(np.int64)
    n_remaining = n - int(shares.sum())
    shares[np.argsort(shares - exact_shares, kind="stable")[:n_remaining]] += 1
    return np.asarray(shares)


def assign(
    cached: NDArray[np.bool_],
    names: Sequence[str],
    workers: Sequence[int] | None = None,
    keys: NDArray[np.int64] | None = None,
) -> NDArray[np.int64]:
    """Return the node that reads each unit, (U,) int64.

    `cached`, (N, U) bool: which node has which unit. `names`: of the nodes, all different.
    `workers`: how many each node has; one by default. `keys`, (U,) int64: of the units, by
    `unit_keys`; 0 to U - 1 by default.
    """
    n_nodes, n_units = cached.shape
    n_workers = np.ones(n_nodes, np.int64) if workers is None else np.asarray(workers, np.int64)
    keys = np.arange(n_units) if keys is None else keys
    n_holders = cached.sum(axis=0)
    owners = cached.argmax(axis=0)
    loads = np.bincount(owners[n_holders == 1], minlength=n_nodes)
    shared = np.flatnonzero(n_holders > 1)
    holder_sets = np.empty(len(shared), np.uint64)  # a hash of the nodes that hold each unit
    for run in _unit_runs(len(shared), n_nodes):
        holder_sets[run] = _seeds(names) @ cached[:, shared[run]]
    _, first, set_of_unit = np.unique(holder_sets, return_index=True, return_inverse=True)
    if len(first) > MAX_HOLDER_SETS:
        owners[shared] = preferred_node(keys[shared], names, cached[:, shared])
        loads += np.bincount(owners[shared], minlength=n_nodes)
    else:
        for set_number in np.argsort(n_holders[shared[first]], kind="stable"):
            units = shared[set_of_unit == set_number]
            nodes = np.flatnonzero(cached[:, units[0]])
            shares = _shares(loads[nodes], n_workers[nodes], len(units))
            owners[units] = np.repeat(nodes, shares)
            loads[nodes] += shares
    missing = np.flatnonzero(n_holders == 0)
    if len(missing):
        preferred_nodes = preferred_node(keys[missing], names)
        n_free = _shares(loads, n_workers, len(missing))
        order = np.argsort(preferred_nodes, kind="stable")
        queue_position = np.arange(len(missing)) - np.searchsorted(
            preferred_nodes[order], preferred_nodes[order]
        )
        placed = order[queue_position < n_free[preferred_nodes[order]]]
        owners[missing[placed]] = preferred_nodes[placed]
        unplaced = np.setdiff1d(np.arange(len(missing)), placed)
        n_free -= np.bincount(preferred_nodes[placed], minlength=n_nodes)
        owners[missing[unplaced]] = np.repeat(np.arange(n_nodes), n_free)
    return np.asarray(owners)


def assign_together(
    cached: NDArray[np.uint8],
    n_units: int,
    name: str,
    n_workers: int,
    comm: Any,
    keys: NDArray[np.int64] | None = None,
) -> NDArray[np.uint8]:
    """Return the units that this node reads (collective over one rank of each node).

    `cached`, (ceil(U / 8),) uint8: packed bits of the `n_units` units that this node has. `name`,
    `n_workers`: of this node. `keys`: as for `assign`.
    Returns (ceil(U / 8),) uint8: packed bits.
    """
    names, workers = zip(*comm.allgather((name, n_workers)), strict=True)
    if len(set(names)) < len(names):
        names = tuple(f"{name}/{number}" for number, name in enumerate(names))
    keys = np.arange(n_units) if keys is None else keys
    own_units = np.empty_like(cached)
    for first in range(0, n_units, UNITS_AT_ONCE):
        part_keys = keys[first : first + UNITS_AT_ONCE]
        part_bytes = slice(first // 8, (first + UNITS_AT_ONCE) // 8)
        bits = np.empty((comm.size, len(cached[part_bytes])), np.uint8)
        comm.Allgather(cached[part_bytes], bits)
        held = np.unpackbits(bits, axis=1, count=len(part_keys), bitorder="little").view(bool)
        is_own = assign(held, names, workers, part_keys) == comm.rank
        own_units[part_bytes] = np.packbits(is_own, bitorder="little")
    return own_units


@dataclass
class CacheFollower:
    """Caches this node's share of the complete units of files that match a pattern.

    The cache itself records what is done: a follower that was killed is simply started again.

    `pattern`: of paths, as a shell expands it. `cache`: this node's. `nodes`: names of all nodes
    that follow; this one takes the units that prefer it. `own_name`: of this node.
    """

    pattern: str
    cache: Cache
    nodes: Sequence[str]
    own_name: str
    n_units: int = 0
    """Units that were cached."""
    nbytes: int = 0
    notes: list[str] = field(default_factory=list)
    _states: dict[Path, tuple[int, int]] = field(default_factory=dict)
    """Size and time of each file at the last call."""

    def cache_complete_units(self, *, has_ended: bool = False) -> int:
        """Cache complete units, and return how many files have changed since the last call.

        The last unit of a file is complete when the file no longer changes, or if writing
        `has_ended`.
        """
        n_changed = 0
        for name in sorted(glob.glob(self.pattern, recursive=True)):
            path = Path(name)
            try:
                status = path.stat()
                state = status.st_size, status.st_mtime_ns
                is_changed = self._states.get(path) != state
                n_changed += is_changed
                self._states[path] = state
                self._cache_file(path, with_last=has_ended or not is_changed)
            except (MdioError, OSError) as error:
                # Its first frame may not be complete yet.
                self._note(f"{path}: nothing of it is kept yet ({' '.join(str(error).split())})")
        return n_changed

    def _cache_file(self, path: Path, *, with_last: bool) -> None:
        """Cache the units of a file that prefer this node; `with_last`: the last one, too."""
        with open_layout(path, cache=self.cache) as layout:
            reads = cached_reads(layout, None)
            stops = reads.edges[1:]
            numbers = np.arange(len(stops) if with_last else len(stops) - 1)
            numbers = numbers[
                ~reads.source.cached_mask(numbers.tolist(), stops[: len(numbers)].tolist())
            ]
            keys = unit_keys(str(reads.source.path), numbers)
            is_own = preferred_node(keys, self.nodes) == self.nodes.index(self.own_name)
            for number in numbers[is_own].tolist() if reads.has_ranges else ():
                unit = reads.fetch(number)
                name = reads.source.name(number, int(stops[number]))
                if unit is not None and reads.source.has(name):
                    self.n_units += 1
                    self.nbytes += unit.nbytes
            for note in cache_notes(layout):
                self._note(note)

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def follow_into_cache(
    pattern: str,
    cache: Cache,
    *,
    nodes: Sequence[str] = (),
    every_s: float = 60.0,
    until_idle_s: float | None = None,
    stopped: threading.Event | None = None,
    report: Callable[[CacheFollower], None] | None = None,
) -> CacheFollower:
    """Cache what a simulation writes, as it is written, until stopped.

    `pattern`: paths of trajectories, as a shell expands it: of files that grow, and of files and
    outputs that appear later. `cache`: this node's. `nodes`: names of all nodes that follow, each
    of which caches its share; this one alone by default. A name is that of the machine, or
    ``MDIO_NODE``. `every_s`: seconds between two checks of the files. `until_idle_s`: end when
    nothing has changed for this long; None = never. `stopped`: end when this is set; units that are
    complete by then are cached. `report`: called after each check.
    Returns CacheFollower: what was cached, and notes.
    Raises PlanError: this node is not among `nodes`.
    """
    own_name = node_name() or socket.gethostname()
    names = list(dict.fromkeys(nodes)) or [own_name]
    short_name = own_name.partition(".")[0]
    listed_name = next((name for name in names if name in (own_name, short_name)), None)
    if listed_name is None:
        raise PlanError(
            f"this node is {own_name}, which is not among {', '.join(names)}; name it so, or set "
            "MDIO_NODE"
        )
    stopped = stopped or threading.Event()
    follower = CacheFollower(pattern, cache, names, listed_name)
    last_change_s = time.monotonic()
    while True:
        is_idle = until_idle_s is not None and time.monotonic() - last_change_s >= until_idle_s
        has_ended = stopped.is_set() or is_idle
        if follower.cache_complete_units(has_ended=has_ended):
            last_change_s = time.monotonic()
        if report is not None:
            report(follower)
        if has_ended:
            if not follower._states:
                follower._note(f"{pattern}: no file matches this pattern")
            return follower
        stopped.wait(every_s if until_idle_s is None else min(every_s, until_idle_s / 2 + 0.05))
