"""Where units of a trajectory are analysed: on the node that has them in its cache."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import chain, zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.analysis.plan import Plan
from mdio.analysis.work import NumberedBlock
from mdio.core.cache import Cache, node_name
from mdio.layouts.caching import CacheUnits
from mdio.parallel.assignment import assign, share_together, unit_keys

Units = NDArray[np.int64]


class _Needed:
    """The units that have any of the frames that are analysed."""

    def __init__(self, plan: Plan) -> None:
        assert plan.units is not None
        self.units = plan.units
        self.frames = plan.frames
        begins = -((plan.frames.start - plan.units.edges) // plan.frames.step)
        places = np.clip(begins, 0, len(plan.frames))
        self.which = np.flatnonzero(np.diff(places) > 0)
        self.places = np.append(places[self.which], len(plan.frames))
        """Where each begins among the frames that are analysed, and their number."""
        keys = [unit_keys(str(part.path), part.numbers) for part in plan.units.parts]
        self.numbers = np.concatenate(keys)[self.which]

    def held(self, cache: Cache) -> NDArray[np.bool_]:
        """Return which of them this node has."""
        return self.units.held(cache)[self.which]

    def blocks(self, some: Units) -> list[NumberedBlock]:
        """Return blocks of some of these units, in order, by the number of the first of each."""
        cuts = np.flatnonzero(np.diff(some) != 1) + 1
        runs = [(int(run[0]), int(run[-1])) for run in np.split(some, cuts) if len(run)]
        return [(a, self.frames[int(self.places[a]) : int(self.places[b + 1])]) for a, b in runs]


def blocks_on_ranks(plans: Sequence[Plan], comm: Any) -> tuple[list[Iterable[NumberedBlock]], bool]:
    """Return the blocks of each trajectory, and whether they are this rank's own (collective).

    Where nodes keep units of all trajectories, each unit is in the blocks of exactly one rank;
    otherwise blocks are the same on all ranks, and the executor shares them out.
    """
    if any(plan.units is None for plan in plans):
        return [enumerate(plan.blocks) for plan in plans], False
    return [_own_blocks(plan, comm) for plan in plans], True


def _own_blocks(plan: Plan, comm: Any) -> list[NumberedBlock]:
    """Return this rank's blocks of one trajectory.

    Nodes are what shares memory, and within that what ``MDIO_NODE`` calls by different names.
    """
    from mpi4py import MPI

    needed = _Needed(plan)
    assert plan.cache is not None
    shared = comm.Split_type(MPI.COMM_TYPE_SHARED)
    called = shared.allgather(node_name() or "")
    node = shared.Split(sorted(set(called)).index(called[shared.rank]))
    leaders = comm.Split(0 if node.rank == 0 else MPI.UNDEFINED, comm.rank)
    n_units = len(needed.which)
    mine = np.empty(-(-n_units // 8), np.uint8)
    if node.rank == 0:
        held = np.packbits(needed.held(plan.cache), bitorder="little")
        mine[:] = share_together(held, n_units, _name_here(), node.size, leaders, needed.numbers)
        leaders.Free()
    node.Bcast(mine)
    units = np.flatnonzero(np.unpackbits(mine, count=n_units, bitorder="little"))
    rank, size = node.rank, node.size
    node.Free()
    shared.Free()
    return needed.blocks(units[len(units) * rank // size : len(units) * (rank + 1) // size])


def _name_here() -> str:
    return node_name() or socket.gethostname()


def _held_here(units: CacheUnits, cache: Cache) -> NDArray[np.bool_]:
    return units.held(cache)


def blocks_on_dask(
    plan: Plan, client: Any, blocks_per_worker: int
) -> tuple[list[NumberedBlock], list[Sequence[str]]]:
    """Return blocks, and for each the workers of the node that it is placed on.

    In an order in which all workers have something to do from the beginning.
    """
    needed = _Needed(plan)
    threads: dict[str, int] = client.nthreads()
    nodes: dict[str, list[str]] = {}
    for address, name in client.run(_name_here, on_error="ignore").items():
        if address in threads:
            nodes.setdefault(name, []).append(address)
    if not nodes:  # they may come later
        blocks = needed.blocks(np.arange(len(needed.which)))
        return blocks, [()] * len(blocks)
    names = sorted(nodes)
    held = np.zeros((len(names), len(needed.which)), bool)
    first = [nodes[name][0] for name in names]
    answers = client.run(_held_here, plan.units, plan.cache, workers=first, on_error="ignore")
    for row, address in enumerate(first):
        with suppress(KeyError):  # a node that is lost has nothing
            held[row] = answers[address][needed.which]
    workers = [sum(threads[address] for address in nodes[name]) for name in names]
    owners = assign(held, names, workers, needed.numbers)
    lanes = []
    for row, name in enumerate(names):
        own = np.flatnonzero(owners == row)
        n_parts = max(1, min(len(own), workers[row] * blocks_per_worker))
        for part in np.array_split(own, n_parts):
            blocks = needed.blocks(part)
            lanes.append(list(zip(blocks, [nodes[name]] * len(blocks), strict=True)))
    placed = [one for one in chain.from_iterable(zip_longest(*lanes)) if one is not None]
    return [block for block, _ in placed], [where for _, where in placed]
