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


def solvated_topology() -> Path:
    """Return the GRO file of one solvated copy: 47,681 atoms."""
    from MDAnalysisTests.datafiles import GRO

    return Path(GRO)


def solvated(folder: Path, n_copies: int, n_frames: int) -> Path:
    """Return an XTC of ``47,681 * n_copies`` atoms: adenylate kinase in water, side by side.

    The 10 frames there are follow each other again and again, each round turned or mirrored
    otherwise, and each copy beside the first begins at another frame, so that no bytes repeat which
    a compressor could find.
    """
    path = folder / f"adk_water_{n_copies}x{n_frames}.xtc"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    from itertools import permutations, product

    import numpy as np
    from MDAnalysis.lib.formats.libmdaxdr import XTCFile
    from MDAnalysisTests.datafiles import XTC

    with XTCFile(XTC) as file:
        frames = [(frame.x.copy(), frame.box.copy()) for frame in file]
    turns = list(product(permutations(range(3)), product((1, -1), repeat=3)))
    part = path.with_name(f"part.{path.name}")
    with XTCFile(str(part), "w") as out:
        for i in range(n_frames):
            order, signs = turns[i // len(frames) % len(turns)]
            copies = [
                frames[(i + 3 * copy) % len(frames)][0][:, order] * np.array(signs, np.float32)
                + copy * frames[0][1][0]
                for copy in range(n_copies)
            ]
            out.write(np.concatenate(copies), frames[i % len(frames)][1], i, float(i), 1000)
    part.rename(path)
    return path
