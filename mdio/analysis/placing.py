"""Assigns units of a trajectory to the nodes that have them in their caches."""

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
from mdio.core.blocks import aligned_blocks
from mdio.core.cache import Cache, node_name
from mdio.parallel.assignment import assign, assign_together, unit_keys


class _NeededUnits:
    """The units with frames that are analysed."""

    def __init__(self, plan: Plan) -> None:
        assert plan.units is not None
        self.units = plan.units
        self.frames = plan.frames
        starts = -((plan.frames.start - plan.units.edges) // plan.frames.step)
        starts = np.clip(starts, 0, len(plan.frames))
        self.unit_numbers = np.flatnonzero(np.diff(starts) > 0)
        """Number of each needed unit among all units of the trajectory."""
        self.starts = np.append(starts[self.unit_numbers], len(plan.frames)).tolist()
        """Index in `frames` where each needed unit begins, and the number of frames."""
        keys = [unit_keys(str(units.path), units.numbers) for units in plan.units.file_units]
        self.keys = np.concatenate(keys)[self.unit_numbers]

    def cached(self, cache: Cache) -> NDArray[np.bool_]:
        """Return a mask of the needed units that this node has."""
        return self.units.cached(cache)[self.unit_numbers]

    def parts(self, indices: NDArray[np.int64], n_parts: int) -> list[list[NumberedBlock]]:
        """Return the blocks of some needed units, in parts of about equally many frames.

        `indices`: of these among the needed units. There are at most as many parts as units.
        """
        n_frames = np.diff(self.starts)[indices]  # units differ in length
        selected_starts = np.append(0, n_frames.cumsum())
        n_parts = max(1, min(n_parts, len(indices)))
        runs = aligned_blocks(selected_starts, range(int(selected_starts[-1])), n_parts)
        bounds = np.searchsorted(selected_starts, [(run.start, run.stop) for run in runs])
        return [self.blocks(indices[start:stop]) for start, stop in bounds.tolist()]

    def blocks(self, indices: NDArray[np.int64]) -> list[NumberedBlock]:
        """Return a block for each run of consecutive units; its number is the first index."""
        breaks = np.flatnonzero(np.diff(indices) != 1) + 1
        runs = [(int(run[0]), int(run[-1])) for run in np.split(indices, breaks) if len(run)]
        return [
            (first, self.frames[self.starts[first] : self.starts[last + 1]]) for first, last in runs
        ]


def blocks_on_ranks(plans: Sequence[Plan], comm: Any) -> tuple[list[Iterable[NumberedBlock]], bool]:
    """Return the blocks of each trajectory, and whether they are this rank's own (collective).

    With caches on nodes, each unit is in the blocks of exactly one rank; otherwise blocks are the
    same on all ranks, and the executor distributes them. A node is the ranks that share memory and
    have the same ``MDIO_NODE``.
    """
    if any(plan.units is None for plan in plans):
        return [enumerate(plan.blocks) for plan in plans], False
    from mpi4py import MPI

    shared = comm.Split_type(MPI.COMM_TYPE_SHARED)
    names = shared.allgather(node_name() or "")
    node = shared.Split(sorted(set(names)).index(names[shared.rank]))
    leaders = comm.Split(0 if node.rank == 0 else MPI.UNDEFINED, comm.rank)
    blocks: list[Iterable[NumberedBlock]] = []
    n_before = 0
    for plan in plans:
        parts = _parts_of_node(plan, comm.size, node, leaders)
        # Ranks get parts in turn across trajectories, as each may have fewer units than ranks.
        own_parts = parts[(node.rank - n_before) % node.size :: node.size]
        n_before += len(parts)
        blocks.append(list(chain.from_iterable(own_parts)))
    if node.rank == 0:
        leaders.Free()
    node.Free()
    shared.Free()
    return blocks, True


def _parts_of_node(plan: Plan, n_ranks: int, node: Any, leaders: Any) -> list[list[NumberedBlock]]:
    """Return the blocks of one trajectory on this node, in parts for its ranks (collective).

    `node`: the communicator of its ranks. `leaders`: rank 0 of each node.
    """
    needed_units = _NeededUnits(plan)
    assert plan.cache is not None
    n_units = len(needed_units.keys)
    node_unit_bits = np.empty(-(-n_units // 8), np.uint8)
    if node.rank == 0:
        cached_bits = np.packbits(needed_units.cached(plan.cache), bitorder="little")
        node_unit_bits[:] = assign_together(
            cached_bits, n_units, _name_of_this_node(), node.size, leaders, needed_units.keys
        )
    node.Bcast(node_unit_bits)
    indices = np.flatnonzero(np.unpackbits(node_unit_bits, count=n_units, bitorder="little"))
    parts_per_rank = -(-len(plan.blocks) // n_ranks)
    return needed_units.parts(indices, node.size * parts_per_rank)


def _name_of_this_node() -> str:
    return node_name() or socket.gethostname()


def blocks_on_dask(
    plan: Plan, client: Any, blocks_per_worker: int
) -> tuple[list[NumberedBlock], list[Sequence[str]]]:
    """Return blocks, and for each the addresses of the workers of its node.

    They are ordered so that all workers have work from the beginning.
    """
    needed_units = _NeededUnits(plan)
    threads: dict[str, int] = client.nthreads()
    nodes: dict[str, list[str]] = {}
    for address, name in client.run(_name_of_this_node, on_error="ignore").items():
        if address in threads:
            nodes.setdefault(name, []).append(address)
    if not nodes:  # workers may join later
        blocks = needed_units.blocks(np.arange(len(needed_units.keys)))
        return blocks, [()] * len(blocks)
    names = sorted(nodes)
    is_cached = np.zeros((len(names), len(needed_units.keys)), bool)
    leaders = [nodes[name][0] for name in names]
    masks = client.run(needed_units.units.cached, plan.cache, workers=leaders, on_error="ignore")
    for node, address in enumerate(leaders):
        with suppress(KeyError):  # the node has left
            is_cached[node] = masks[address][needed_units.unit_numbers]
    n_threads = [sum(threads[address] for address in nodes[name]) for name in names]
    owners = assign(is_cached, names, n_threads, needed_units.keys)
    placed_parts: list[list[tuple[NumberedBlock, list[str]]]] = []
    for node, name in enumerate(names):
        own_indices = np.flatnonzero(owners == node)
        parts = needed_units.parts(own_indices, n_threads[node] * blocks_per_worker)
        placed_parts += [[(block, nodes[name]) for block in blocks] for blocks in parts]
    interleaved = [
        pair for pair in chain.from_iterable(zip_longest(*placed_parts)) if pair is not None
    ]
    return [block for block, _ in interleaved], [addresses for _, addresses in interleaved]
