"""mdio itself, as a library and under MDAnalysis."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import MDAnalysis as mda
import numpy as np
from peers.runner import files_of

import mdio

warnings.simplefilter("ignore")
BLOCK_NBYTES = 4 << 20
"""Positions that `read` asks for at a time."""


def versions() -> dict[str, str]:
    return {"mdio-layouts": version("mdio-layouts")}


def read(path: str, atoms: str | None = None) -> Callable[[], Any]:
    """Read all frames in blocks into one buffer."""
    layout = mdio.open(path)
    indices = None if atoms is None else np.load(atoms)
    info = layout.info
    n_atoms = info.n_atoms if indices is None else len(indices)
    rows = max(1, BLOCK_NBYTES // (12 * n_atoms))
    if info.chunk_frames:
        rows = max(1, rows // info.chunk_frames) * info.chunk_frames
    buffer = mdio.FrameBlock.empty(rows, n_atoms)

    def run() -> Any:
        for start in range(0, info.n_frames, rows):
            stop = min(info.n_frames, start + rows)
            out = buffer if stop - start == rows else None
            block = layout.read(start, stop, atoms=indices, out=out)
        return block.positions[-1]

    return run


def iterate(path: str, n_atoms: int, **options: Any) -> Callable[[], Any]:
    """Go through all frames of a Universe with mdio's reader."""
    universe = mda.Universe.empty(n_atoms)
    universe.load_new(path, **options)
    trajectory = universe.trajectory
    last = trajectory.n_frames - 1

    def run() -> Any:
        for ts in trajectory:
            if ts.frame == last:
                result = ts.positions.copy()
        return result

    return run


def frames(path: str, n_atoms: int, frames: str, **options: Any) -> Callable[[], Any]:
    """Fetch single frames of a Universe by their numbers."""
    universe = mda.Universe.empty(n_atoms)
    universe.load_new(path, **options)
    trajectory = universe.trajectory
    wanted = np.load(frames).tolist()

    def run() -> Any:
        for frame in wanted:
            ts = trajectory[frame]
        return ts.positions

    return run


def rmsd(path: str, top: str, select: str, group: str | None = None) -> Callable[[], Any]:
    """RMSD of a selection, or of a stored group that is that selection."""
    universe = mda.Universe(top)
    analyze, kernel = mdio.analyze, mdio.RMSD

    def run() -> Any:
        if group is not None:
            return analyze(path, group=group, kernel=kernel()).values
        return analyze(path, top=universe, kernel=kernel(select=select)).values

    return run


def convert(path: str | list[str], out: str, **options: Any) -> Callable[[], Any]:
    """Convert into the layout that the suffix of `out` names."""
    function = mdio.convert

    def run() -> None:
        function(path, out, **options)

    return run


def control(nbytes_of: str, out: str) -> Callable[[], Any]:
    """Write as many bytes as a file or folder has into a new file, from memory in the cache."""
    nbytes = sum(file.stat().st_size for file in files_of(Path(nbytes_of)))
    piece = memoryview(bytes(range(256)) * 4096)

    def run() -> Any:
        with open(out, "wb", buffering=0) as file:
            for at in range(0, nbytes, len(piece)):
                file.write(piece[: nbytes - at])

    return run


CASES: dict[str, Callable[..., Callable[[], Any]]] = {
    "read": read,
    "iterate": iterate,
    "frames": frames,
    "rmsd": rmsd,
    "convert": convert,
    "control": control,
}
