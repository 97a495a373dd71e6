"""The trajectory that all benches use: adenylate kinase of MDAnalysisTests, tiled in time.

98 frames of 3,341 atoms (a closed-to-open transition), repeated until it is long enough. Tiling
keeps what matters here: sizes, and how much one frame resembles the next.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.random import Generator
    from numpy.typing import NDArray

SUFFIXES = ("xtc", "dcd", "ncdf")


def topology() -> Path:
    """Return the PSF that belongs to the trajectory."""
    from MDAnalysisTests.datafiles import PSF

    return Path(PSF)


def tiled(folder: Path, n_tiles: int, suffix: str = "xtc") -> Path:
    """Return a file of ``98 * n_tiles`` frames, made by MDAnalysis' writer if it is not there."""
    path = folder / f"adk_{n_tiles}x.{suffix}"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    import MDAnalysis as mda
    from MDAnalysisTests.datafiles import DCD, PSF

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        universe = mda.Universe(PSF, DCD)
        universe.transfer_to_memory()
        part = path.with_name(f"part.{path.name}")
        # The DCD header has one time step for all; other writers take each frame's own time.
        step = {"dt": 1.0} if suffix == "dcd" else {}
        with mda.Writer(str(part), len(universe.atoms), **step) as writer:
            for tile in range(n_tiles):
                for ts in universe.trajectory:
                    ts.data["step"] = tile * len(universe.trajectory) + ts.frame
                    ts.time = float(ts.data["step"])
                    ts.dimensions = [100.0, 100.0, 100.0, 90.0, 90.0, 90.0]
                    writer.write(universe.atoms)
    part.rename(path)
    return path


def solvated_topology() -> Path:
    """Return the GRO file of one solvated copy: 47,681 atoms."""
    from MDAnalysisTests.datafiles import GRO

    return Path(GRO)


def solvated(folder: Path, n_copies: int, n_frames: int) -> Path:
    """Return an XTC of ``47,681 * n_copies`` atoms: adenylate kinase in water, side by side.

    The 10 frames that there are follow each other again and again. In every round and every copy
    the water molecules change places in the file, and copies begin at different frames: otherwise
    compressors would find what the rounds have in common, which real trajectories do not have.
    """
    path = folder / f"adk_water_{n_copies}x{n_frames}.xtc"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    import numpy as np
    from MDAnalysis.lib.formats.libmdaxdr import XTCFile
    from MDAnalysisTests.datafiles import XTC

    with XTCFile(XTC) as file:
        frames = [(frame.x.copy(), frame.box.copy()) for frame in file]
    beside = frames[0][1][0]
    rng = np.random.default_rng(0)
    part = path.with_name(f"part.{path.name}")
    with XTCFile(str(part), "w") as out:
        for i in range(n_frames):
            if i % len(frames) == 0:
                orders = [shuffled_water(rng) for _ in range(n_copies)]
            copies = [
                frames[(i + 3 * copy) % len(frames)][0][order] + copy * beside
                for copy, order in enumerate(orders)
            ]
            out.write(np.concatenate(copies), frames[i % len(frames)][1], i, float(i), 1000)
    part.rename(path)
    return path


def shuffled_water(rng: Generator) -> NDArray[np.int64]:
    """Return an order of the 47,681 atoms in which the water molecules have changed places."""
    import numpy as np

    n_protein, n_waters, n_sites = 3341, 11_084, 4
    water = n_protein + np.arange(n_waters * n_sites).reshape(n_waters, n_sites)
    ions = np.arange(n_protein + water.size, 47_681)
    return np.concatenate([np.arange(n_protein), rng.permutation(water).ravel(), ions])
