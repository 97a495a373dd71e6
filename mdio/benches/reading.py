"""How long workers or ranks take to read a whole trajectory."""

from __future__ import annotations

import os
import time
from typing import Any

from mdio.core.blocks import aligned_blocks, sub_blocks
from mdio.layouts.base import Layout
from mdio.layouts.registry import open_layout
from mdio.parallel.executors import Executor
from mdio.parallel.mpi_executor import MPIExecutor

BLOCK_NBYTES = 16 << 20
"""Decoded bytes that are read at a time, as an analysis would."""


class _Reader:
    """Reads one worker's share of the frames; returns bytes and frames."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def __call__(self, frames: tuple[int, int]) -> tuple[int, int]:
        info = self.layout.info
        most = max(1, BLOCK_NBYTES // info.frame_nbytes)
        n_frames = nbytes = 0
        for block in sub_blocks(self.layout.boundaries(), range(*frames), most):
            read = self.layout.read(block.start, block.stop)
            n_frames += read.n_frames
            nbytes += read.positions.nbytes
        return n_frames, nbytes


def read_shared(
    path: str | os.PathLike[str], ranks: MPIExecutor, *, collective: bool
) -> dict[str, Any]:
    """Read every frame of an h5md file of ours once through parallel HDF5, on all ranks.

    `path`: the file. `ranks`: each reads a run of neighbouring frames, as in `read_all`.
    `collective`: whether ranks read together, in as many rounds as the longest run has blocks.
    Returns dict: as `read_all`, on every rank.
    """
    from mdio.layouts.h5md.layout import H5MDLayout

    comm = ranks.comm
    comm.Barrier()
    begun = time.perf_counter()
    with H5MDLayout(path, driver="mpio", comm=comm, collective=collective) as layout:
        info, edges = layout.info, layout.boundaries()
        shares = aligned_blocks(edges, range(info.n_frames), min(comm.size, info.n_frames))
        most = max(1, BLOCK_NBYTES // info.frame_nbytes)
        lists = [list(sub_blocks(edges, share, most)) for share in shares]
        own = lists[comm.rank] if comm.rank < len(lists) else []
        n_frames = nbytes = 0
        for block in own:
            read = layout.read(block.start, block.stop)
            n_frames += read.n_frames
            nbytes += read.positions.nbytes
        if collective:
            for _ in range(max(map(len, lists)) - len(own)):
                layout.take_part()
    comm.Barrier()
    seconds = time.perf_counter() - begun
    done = comm.allgather((n_frames, nbytes))
    return {
        "read_s": seconds,
        "n_frames": sum(frames for frames, _ in done),
        "nbytes": sum(nbytes for _, nbytes in done),
    }


def read_all(path: str | os.PathLike[str], executor: Executor) -> dict[str, Any]:
    """Read every frame of a trajectory once, each worker a run of neighbouring frames.

    Returns dict: ``read_s``, from before the first worker opens the trajectory until the last one
    is through; ``n_frames`` and ``nbytes`` (decoded positions) read.
    """
    layout = executor.from_owner(lambda: open_layout(path))
    n_frames, edges = layout.info.n_frames, layout.boundaries()
    blocks = aligned_blocks(edges, range(n_frames), min(executor.n_workers, n_frames))
    shares = [(block.start, block.stop) for block in blocks]
    layout.close()
    executor.from_owner(lambda: None)  # all begin together
    begun = time.perf_counter()
    done = executor.map(_Reader(layout), shares)
    seconds = time.perf_counter() - begun
    return {
        "read_s": seconds,
        "n_frames": sum(frames for frames, _ in done),
        "nbytes": sum(nbytes for _, nbytes in done),
    }
