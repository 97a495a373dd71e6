"""How long workers or ranks take to read a whole trajectory."""

from __future__ import annotations

import os
import time
from typing import Any

from mdio.core.blocks import aligned_blocks, sub_blocks
from mdio.layouts.base import Layout
from mdio.layouts.registry import open_layout
from mdio.parallel.executors import Executor

BLOCK_NBYTES = 16 << 20
"""Decoded bytes that are read at a time, as an analysis would."""


class _Reader:
    """Reads one worker's share of the frames; returns frames and bytes."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def __call__(self, frames: range) -> tuple[int, int]:
        most = max(1, BLOCK_NBYTES // self.layout.info.frame_nbytes)
        blocks = sub_blocks(self.layout.boundaries(), frames, most)
        nbytes = sum(self.layout.read(one.start, one.stop).positions.nbytes for one in blocks)
        return len(frames), nbytes


def read_all(path: str | os.PathLike[str], executor: Executor) -> dict[str, Any]:
    """Read every frame of a trajectory once, each worker a run of neighbouring frames.

    Returns dict: ``read_s``, from before the first worker opens the trajectory until the last one
    is through; ``n_frames`` and ``nbytes`` (decoded positions) read.
    """
    layout = executor.from_owner(lambda: open_layout(path))
    n_frames = layout.info.n_frames
    shares = aligned_blocks(layout.boundaries(), range(n_frames), min(executor.n_workers, n_frames))
    layout.close()
    executor.from_owner(lambda: None)  # all begin together
    begun = time.perf_counter()
    done = executor.map(_Reader(layout), shares)
    seconds = time.perf_counter() - begun
    n_frames, nbytes = map(sum, zip((0, 0), *done, strict=True))
    return {"read_s": seconds, "n_frames": n_frames, "nbytes": nbytes}
