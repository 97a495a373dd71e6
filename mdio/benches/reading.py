"""How long workers or ranks take to read a whole trajectory, and the page cache in between."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mdio.core.blocks import aligned_blocks, sub_blocks
from mdio.layouts.base import Layout
from mdio.layouts.registry import open_layout
from mdio.parallel.executors import Executor

__all__ = ["drop_cache", "read_all"]

BLOCK_NBYTES = 16 << 20
"""Decoded bytes that are read at a time, as an analysis would."""
PAGE_NBYTES = 4096
SAMPLES = 64
"""Pages of each file that are looked at to see whether it has left the cache."""
GONE = 0.1
"""Up to this share of these may still be there: the kernel reads ahead of nobody, but rounds."""


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


def drop_cache(path: Path) -> bool | None:
    """Ask the system to forget what it holds of a file, or of all files in a folder.

    Returns
    -------
    bool or None
        Whether it did; None where that cannot be seen.
    """
    resident: list[bool] = []
    for file in _files(path):
        fd = os.open(file, os.O_RDONLY)
        try:
            os.fsync(fd)  # what is not on disk cannot be forgotten
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            for offset in _sampled(os.fstat(fd).st_size):
                found = _is_resident(fd, offset)
                if found is None:
                    return None
                resident.append(found)
        finally:
            os.close(fd)
    return sum(resident) <= GONE * len(resident)


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    else:
        yield from (file for file in sorted(path.rglob("*")) if file.is_file())


def _sampled(nbytes: int) -> range:
    n_pages = -(-nbytes // PAGE_NBYTES)
    return range(0, nbytes, max(1, n_pages // SAMPLES) * PAGE_NBYTES)


def _is_resident(fd: int, offset: int) -> bool | None:
    """Return whether a page is in the cache: whether it can be read without waiting."""
    try:
        return os.preadv(fd, [bytearray(1)], offset, os.RWF_NOWAIT) > 0
    except BlockingIOError:
        return False
    except (OSError, AttributeError):  # this file system or system cannot tell
        return None
