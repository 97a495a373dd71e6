"""MDAnalysis' readers, writers and analyses, without mdio."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

import MDAnalysis as mda
import numpy as np
from MDAnalysis.analysis import rms
from MDAnalysis.coordinates.memory import MemoryReader
from MDAnalysis.lib.formats.libmdaxdr import XTCFile

warnings.simplefilter("ignore")
ANGSTROM_PER_NM = 10.0


def versions() -> dict[str, str]:
    return {name: version(name) for name in ("MDAnalysis", "h5py", "netCDF4")}


def universe_of(path: str, n_atoms: int, **options: Any) -> mda.Universe:
    """Return a Universe that needs no topology."""
    universe = mda.Universe.empty(n_atoms)
    universe.load_new(path, **options)
    return universe


def libmdaxdr(path: str) -> Callable[[], Any]:
    """Decode an XTC frame by frame with the bare library, without a reader around it."""

    def run() -> Any:
        with XTCFile(path) as file:
            for frame in file:
                last = frame.x
        return last * ANGSTROM_PER_NM

    return run


def selection(path: str, n_atoms: int, atoms: str) -> Callable[[], Any]:
    """Go through an XTC and take the positions of an AtomGroup.

    ``XTCReader(..., sub=...)``, which would leave the others out, crashes in MDAnalysis 2.11.
    """
    universe = universe_of(path, n_atoms)
    group = universe.atoms[np.load(atoms)]

    def run() -> Any:
        for _ in universe.trajectory:
            positions = group.positions
        return positions

    return run


def iterate(path: str, n_atoms: int, **options: Any) -> Callable[[], Any]:
    """Go through all frames of a Universe."""
    trajectory = universe_of(path, n_atoms, **options).trajectory
    last = trajectory.n_frames - 1

    def run() -> Any:
        for ts in trajectory:
            if ts.frame == last:
                result = ts.positions.copy()
        return result

    return run


def memory(path: str) -> Callable[[], Any]:
    """Go through MDAnalysis' in-memory reader and copy each frame, as a file's reader must."""
    with XTCFile(path) as file:
        frames = np.array([frame.x for frame in file]) * np.float32(ANGSTROM_PER_NM)
    reader = MemoryReader(frames)
    copy = np.empty_like(frames[0])

    def run() -> Any:
        for ts in reader:
            copy[...] = ts.positions
        return copy

    return run


def frames(path: str, n_atoms: int, frames: str, **options: Any) -> Callable[[], Any]:
    """Fetch single frames of a Universe by their numbers."""
    trajectory = universe_of(path, n_atoms, **options).trajectory
    wanted = np.load(frames).tolist()

    def run() -> Any:
        for frame in wanted:
            ts = trajectory[frame]
        return ts.positions

    return run


def rmsd(path: str, top: str, select: str, **options: Any) -> Callable[[], Any]:
    """``rms.RMSD`` of a selection, superposed on the first frame."""
    universe = mda.Universe(top, path, **options)
    atoms = universe.select_atoms(select)

    def run() -> Any:
        return rms.RMSD(atoms).run().results.rmsd[:, 2]

    return run


def positions(universe: mda.Universe) -> Iterator[Any]:
    """Yield the atoms at each frame."""
    for _ in universe.trajectory:
        yield universe.atoms


def write(path: str, n_atoms: int, out: str) -> Callable[[], Any]:
    """Write through the writer that the suffix of `out` names."""

    def run() -> None:
        universe = universe_of(path, n_atoms)
        with mda.Writer(out, n_atoms) as writer:
            for atoms in positions(universe):
                writer.write(atoms)

    return run


CASES: dict[str, Callable[..., Callable[[], Any]]] = {
    "libmdaxdr": libmdaxdr,
    "selection": selection,
    "iterate": iterate,
    "memory": memory,
    "frames": frames,
    "rmsd": rmsd,
    "write": write,
}
