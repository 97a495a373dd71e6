"""How long workers or ranks take to read a whole trajectory."""

from __future__ import annotations

import os
import time
from typing import Any

from mdio.core.blocks import aligned_blocks, sub_blocks
from mdio.layouts.base import Layout
from mdio.layouts.registry import open_layout
from mdio.parallel.executors import Executor

__all__ = ["read_all"]

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


def read_all(path: str | os.PathLike[str], executor: Executor) -> dict[str, Any]:
    """Read every frame of a trajectory once, each worker a run of neighbouring frames.

    Returns
    -------
    dict
        ``read_s``, from before the first worker opens the trajectory until the last one is
        through; ``n_frames`` and ``nbytes`` (decoded positions) read.
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
