"""The trajectory that all benches use: adenylate kinase of MDAnalysisTests, tiled in time.

98 frames of 3,341 atoms (a closed-to-open transition), repeated until it is long enough. Tiling
keeps what matters here: sizes, and how much one frame resembles the next.
"""

from __future__ import annotations

import warnings
from pathlib import Path

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
