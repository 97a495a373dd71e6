"""Can XTC frames be read whose bytes are copied? Told in much less time than decoding takes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mdio.core.xtc import native
from mdio.core.xtc.native import source_errors
from mdio.layouts.frame_bytes import FrameBytes

__all__ = ["check_frames"]


def check_frames(data: NDArray[np.uint8], run: range, frames: FrameBytes, n_atoms: int) -> None:
    """Follow frames from the first to the last group of atoms: all that can go wrong in them.

    Raises SourceError: a frame is damaged; the message names it.
    """
    n_frames = len(run)
    edges = frames.edges[run.start : run.stop + 1]
    last = np.array([n_atoms - 1])
    if not native.NATIVE:
        _check_with_mdanalysis(frames.path, run, frames, n_atoms)
        return
    with source_errors(frames.path):
        native.kernels.decode(
            data,
            frames.first + run.start,
            np.ascontiguousarray(edges),
            n_atoms,
            np.empty((n_frames, 1, 3), np.float32),
            np.empty((n_frames, 3, 3), np.float32),
            np.empty(n_frames, np.float64),
            np.empty(n_frames, np.int64),
            last,
            None,
            1,
        )


def _check_with_mdanalysis(path: Path, run: range, frames: FrameBytes, n_atoms: int) -> None:
    from mdio.core.xtc import fallback

    positions = np.empty((len(run), n_atoms, 3), np.float32)
    edges = frames.edges[run.start : run.stop + 1]
    with source_errors(path):
        fallback.read_positions(path, frames.first + run.start, edges, n_atoms, positions, None)
