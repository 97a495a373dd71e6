"""How long workers or ranks take to read a whole trajectory."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

from mdio.core.blocks import aligned_blocks, sub_blocks
from mdio.layouts.base import Layout
from mdio.layouts.registry import open_layout
from mdio.parallel.executors import Executor
from mdio.parallel.mpi_executor import MPIExecutor

BLOCK_NBYTES = 16 << 20
"""Decoded bytes that are read at a time, as an analysis would."""


class _Reader:
    """Reads one worker's share of the frames; returns frames and bytes."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def blocks(self, frames: range) -> list[range]:
        """Return what is read at a time."""
        most = max(1, BLOCK_NBYTES // self.layout.info.frame_nbytes)
        return list(sub_blocks(self.layout.boundaries(), frames, most))

    def __call__(self, frames: range) -> tuple[int, int]:
        blocks = self.blocks(frames)
        nbytes = sum(self.layout.read(one.start, one.stop).positions.nbytes for one in blocks)
        return len(frames), nbytes


def _told(seconds: float, done: Sequence[tuple[int, int]]) -> dict[str, Any]:
    n_frames, nbytes = map(sum, zip((0, 0), *done, strict=True))
    return {"read_s": seconds, "n_frames": n_frames, "nbytes": nbytes}


def _shares(layout: Layout, n_workers: int) -> list[range]:
    n_frames = layout.info.n_frames
    return aligned_blocks(layout.boundaries(), range(n_frames), min(n_workers, n_frames))


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
        reader = _Reader(layout)
        shares = _shares(layout, comm.size)
        own = shares[comm.rank] if comm.rank < len(shares) else range(0)
        done = reader(own)
        if collective:
            most = max(len(reader.blocks(share)) for share in shares)
            for _ in range(most - len(reader.blocks(own))):
                layout.take_part()
    comm.Barrier()
    seconds = time.perf_counter() - begun
    return _told(seconds, comm.allgather(done))


def read_all(path: str | os.PathLike[str], executor: Executor) -> dict[str, Any]:
    """Read every frame of a trajectory once, each worker a run of neighbouring frames.

    Returns dict: ``read_s``, from before the first worker opens the trajectory until the last one
    is through; ``n_frames`` and ``nbytes`` (decoded positions) read.
    """
    layout = executor.from_owner(lambda: open_layout(path))
    shares = _shares(layout, executor.n_workers)
    layout.close()
    executor.from_owner(lambda: None)  # all begin together
    begun = time.perf_counter()
    done = executor.map(_Reader(layout), shares)
    return _told(time.perf_counter() - begun, done)
