"""zarrtraj, which needs zarr 2 and so an environment of its own."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import MDAnalysis as mda
import numcodecs
import zarrtraj  # noqa: F401  registers its readers
from peers.peer_mdanalysis import frames, iterate, universe_of

warnings.simplefilter("ignore")


def versions() -> dict[str, str]:
    return {name: version(name) for name in ("zarrtraj", "zarr", "MDAnalysis")}


def write(path: str, n_atoms: int, out: str, digits: int | None = None) -> Callable[[], Any]:
    """Write ZarrMD, with its own settings or with so many digits (of nm) and zstd 9."""
    options: dict[str, Any] = {}
    if digits is not None:
        options = {"precision": digits, "compressor": numcodecs.Blosc(cname="zstd", clevel=9)}

    def run() -> None:
        universe = universe_of(path, n_atoms)
        n_frames = universe.trajectory.n_frames
        with mda.Writer(out, n_atoms, n_frames=n_frames, format="ZARRMD", **options) as writer:
            for _ in universe.trajectory:
                writer.write(universe.atoms)

    return run


CASES: dict[str, Callable[..., Callable[[], Any]]] = {
    "iterate": iterate,
    "frames": frames,
    "write": write,
}
