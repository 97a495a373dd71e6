"""The first 60 residues of adenylate kinase: what analyses need, and quickly sent to workers."""

import tempfile
import warnings
from functools import cache
from pathlib import Path

import MDAnalysis as mda
from MDAnalysisTests.datafiles import DCD, PSF


@cache
def _parts():
    """Return the atoms as a Universe, and the DCD of all 98 frames in a folder to be kept."""
    folder = tempfile.TemporaryDirectory(prefix="small_adk")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        universe = mda.Universe(PSF, DCD)
        atoms = universe.select_atoms("resid 1:60")
        path = Path(folder.name) / "small.dcd"
        with mda.Writer(str(path), len(atoms)) as writer:
            for _ in universe.trajectory:
                writer.write(atoms)
        return mda.Merge(atoms), path, folder


def small_adk():
    """Return a new Universe of these atoms over a DCD file of 98 frames."""
    merged, path, _ = _parts()
    universe = merged.copy()
    universe.load_new(str(path))
    return universe
