"""The table of formats in docs/formats.md says what runs show, cell by cell.

Cells of a program are checked where it is installed. ``MDIO_MATRIX=write`` writes the table anew.
"""

import importlib.util
import os
import shutil
import subprocess
import warnings
from pathlib import Path

import h5py
import MDAnalysis as mda
import netCDF4
import numpy as np
import pytest
import zarr
from docs.pages import ROOT, table_rows
from MDAnalysisTests import datafiles
from MDAnalysisTests.datafiles import TRR
from suites.gromacs_files import write_gromacs

import mdio
from mdio.core.frames import absent

warnings.filterwarnings("ignore", module="MDAnalysis")
PAGE = ROOT / "docs" / "formats.md"
N_FRAMES, N_ATOMS = 4, 300
YES, NO = "yes", ""
COLUMNS = ("read", "written", "MDAnalysis", "library", "cpptraj", "mdconvert", "gmx")


def oracle():
    with mdio.open(TRR) as layout:
        return layout.read(0, N_FRAMES, atoms=np.arange(N_ATOMS))


def same(positions, expected):
    return len(positions) >= len(expected) and bool(
        np.allclose(positions[: len(expected)], expected, atol=6e-3)
    )


def by_mdanalysis(path, kind):
    reader = mda.coordinates.core.get_reader_for(str(path), format=kind)
    with reader(str(path)) as frames:
        return np.array([ts.positions.copy() for ts in frames[:N_FRAMES]])


def by_h5py(path):
    with h5py.File(path) as file:
        value = file["particles/trajectory/position/value"]
        return value[...] * (10 if value.attrs["unit"] == "nm" else 1)


def by_zarr(path):
    return zarr.open_group(str(path), mode="r")["particles/trajectory/position/value"][...]


def by_netcdf4(path):
    with netCDF4.Dataset(path) as file:
        return np.asarray(file["coordinates"][...])


WRITTEN = {
    "XTC": ("o.xtc", {}, "XTC", None),
    "TRR": ("o.trr", {}, "TRR", None),
    "DCD": ("o.dcd", {}, "DCD", None),
    "NetCDF": ("o.nc", {}, "NCDF", by_netcdf4),
    "H5MD": ("o.h5md", {}, "H5MD", by_h5py),
    "H5MD --flavour gromacs": ("g.h5md", {"flavour": "gromacs"}, "H5MD", by_h5py),
    "Zarr": ("o.zarr", {}, None, by_zarr),
}
"""By name in the table: an output, how it is made, MDAnalysis' own reader, a library."""
READ = {
    "H5MD of GROMACS 2026": (None, None),
    "LAMMPS dump": (datafiles.LAMMPSDUMP_chain1, "LAMMPSDUMP"),
    "XYZ": (datafiles.XYZ_mini, "XYZ"),
    "PDB": (datafiles.PDB_multiframe, "PDB"),
    "AMBER restart, as text": (datafiles.INPCRD, "INPCRD"),
    "AMBER trajectory, as text": (datafiles.TRJ, "TRJ"),
    "DL_POLY HISTORY": (datafiles.DLP_HISTORY, "HISTORY"),
    "GSD": (datafiles.GSD, "GSD"),
    "TNG": (datafiles.TNG_traj, "TNG"),
}
"""A file of each format that is only read, and MDAnalysis' name for it."""


NEEDS = {"GSD": "gsd", "TNG": "pytng"}
"""Packages without which MDAnalysis does not read a format: its cells are then not looked at."""


def by_program(program, path, pdb, folder):
    """Convert with a program into a format that mdio reads; None where it cannot."""
    out = folder / ("back.trr" if program == "gmx" else "back.dcd")
    out.unlink(missing_ok=True)
    words, said = [], ""
    if program == "cpptraj":
        words = ["cpptraj", "-p", str(pdb), "-y", str(path), "-x", str(out)]
    elif program == "mdconvert":
        words = ["mdconvert", "-f", "-t", str(pdb), "-o", str(out), str(path)]
    else:
        words, said = ["gmx", "trjconv", "-s", str(pdb), "-f", str(path), "-o", str(out)], "0\n"
    subprocess.run(words, input=said, text=True, capture_output=True, check=False, timeout=60)
    try:
        with mdio.open(out) as layout:
            return layout.read(0, layout.info.n_frames).positions
    except OSError:
        return None


def written_row(name, folder, expected):
    out, options, kind, library = WRITTEN[name]
    path = folder / out
    atoms = np.arange(N_ATOMS)
    mdio.convert(TRR, path, select=atoms, stop=N_FRAMES, **options)
    with mdio.open(path) as layout:
        row = {"read": same(layout.read(0, N_FRAMES).positions, expected), "written": True}
    row["MDAnalysis"] = kind is not None and same(by_mdanalysis(path, kind), expected)
    row["library"] = library is not None and same(library(path), expected)
    pdb = folder / "top.pdb"
    for program in COLUMNS[4:]:
        if shutil.which(program):
            found = by_program(program, path, pdb, folder)
            row[program] = found is not None and same(found, expected)
    return {key: YES if value else NO for key, value in row.items()}


def read_row(name, folder):
    path, kind = READ[name]
    if kind in NEEDS and importlib.util.find_spec(NEEDS[kind]) is None:
        return {}
    if path is None:
        path = folder / "md.h5md"
        values = write_gromacs(path)["position"] * np.float32(10)
        with mdio.open(path) as layout:
            found = layout.read(0, layout.info.n_frames).positions
            return {"read": YES if same(found[~absent(found)], values) else NO, "written": NO}
    options = (
        {"n_atoms": mda.Universe(datafiles.PRM).atoms.n_atoms} if path == datafiles.TRJ else {}
    )
    with mdio.open(path, **options) as layout:
        n_frames = min(layout.info.n_frames, N_FRAMES)
        found = layout.read(0, n_frames).positions
    reader = mda.coordinates.core.get_reader_for(str(path), format=kind)
    with reader(str(path), **options) as frames:
        expected = np.array([frames[at].positions.copy() for at in range(n_frames)])
    return {"read": YES if same(found, expected) else NO, "written": NO, "MDAnalysis": YES}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder, expected = tmp_path_factory.mktemp("matrix"), oracle().positions
    atoms = mda.Universe(datafiles.GRO).atoms[:N_ATOMS]
    atoms.write(str(folder / "top.pdb"))
    rows = {name: written_row(name, folder, expected) for name in WRITTEN}
    return rows | {name: read_row(name, folder) for name in READ}


def test_the_table_says_what_runs_show(found):
    if os.environ.get("MDIO_MATRIX") == "write":
        write(found)
    rows = {
        row[0].strip("`"): dict(zip(COLUMNS, row[1:], strict=True))
        for row in table_rows(PAGE, "Matrix")
    }
    assert rows.keys() == found.keys()
    for name, cells in found.items():
        assert {key: rows[name][key] for key in cells} == cells, name


def write(found):
    lines = [f"| format | {' | '.join(COLUMNS)} |", f"| --- |{' --- |' * len(COLUMNS)}"]
    for name, cells in found.items():
        lines.append(f"| `{name}` | " + " | ".join(cells.get(key, NO) for key in COLUMNS) + " |")
    text = PAGE.read_text()
    head, rest = text.split("## Matrix\n", 1)
    words, _, after = rest.partition("| format |")
    after = after.partition("\n\n")[2]
    Path(PAGE).write_text(head + "## Matrix\n" + words + "\n".join(lines) + "\n\n" + after)
