"""The table of formats in docs/formats.md says what runs show, cell by cell.

Cells of a program are checked where it is installed. ``MDIO_MATRIX=write`` writes the table anew,
but for the cells of programs that are not.
"""

import bz2
import gzip
import importlib.util
import os
import shutil
import subprocess
import sys
import warnings
from functools import partial
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
from oracles.gromacs_h5md import PROGRAM as GMX_H5MD
from oracles.gromacs_h5md import read_by_gromacs
from suites.files_of_others import (
    write_espresso,
    write_gromacs,
    write_halmd,
    write_lammps,
    write_mdtraj,
)
from suites.outputs import as_options

import mdio
from mdio.core.frames import absent_frames

warnings.filterwarnings("ignore", module="MDAnalysis")
PAGE = ROOT / "docs" / "formats.md"
N_FRAMES, N_ATOMS = 4, 300
YES, NO = "yes", ""
PROGRAMS = ("cpptraj", "mdconvert", "gmx", GMX_H5MD)
COLUMNS = ("read", "written", "MDAnalysis", "library", "chemfiles", *PROGRAMS)


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


def first_by_h5py(path):
    """Return the positions of the first particle group; of ESPResSo's, in the order of ids."""
    with h5py.File(path) as file:
        (group,) = file["particles"].values()
        values = group["position/value"][...]
        if "id" in group:
            values = np.take_along_axis(
                values, np.argsort(group["id/value"][...])[:, :, None], axis=1
            )
        return values


def by_zarr(path):
    return zarr.open_group(str(path), mode="r")["particles/trajectory/position/value"][...]


def by_netcdf4(path):
    with netCDF4.Dataset(path) as file:
        return np.asarray(file["coordinates"][...])


def by_chemfiles(path, kind=""):
    """Return what chemfiles reads; None if it does not know the format."""
    import chemfiles

    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says as a warning, too, what it raises
        try:
            with chemfiles.Trajectory(str(path), "r", kind) as frames:
                for _ in range(min(N_FRAMES, frames.nsteps)):
                    frame = frames.read()  # its positions live as long as it does
                    found.append(frame.positions.copy())
        except chemfiles.ChemfilesError:
            return None
    return np.array(found)


def make_mdtraj(path, positions):
    write_mdtraj(path, positions / np.float32(10), chunks=(1, N_ATOMS, 3))


def make_restart(path, positions):
    with netCDF4.Dataset(path, "w", format="NETCDF3_64BIT_OFFSET") as file:
        file.Conventions, file.ConventionVersion = "AMBERRESTART", "1.0"
        file.program, file.programVersion = "test", "1"
        file.createDimension("atom", N_ATOMS)
        file.createDimension("spatial", 3)
        file.createVariable("time", "f8", ())[...] = 1.5
        file.createVariable("coordinates", "f8", ("atom", "spatial"))[:] = positions[0]
        file["coordinates"].units = "angstrom"


def make_packed(path, positions):
    lines = []
    for frame in positions:
        lines += [str(N_ATOMS), "made here", *(f"C {x:.4f} {y:.4f} {z:.4f}" for x, y, z in frame)]
    raw = "\n".join([*lines, ""]).encode()
    if path.suffix == ".zst":
        raw = zstd().compress(raw)
    else:
        raw = {".gz": gzip, ".bz2": bz2}[path.suffix].compress(raw)
    path.write_bytes(raw)


def zstd():
    in_python = sys.version_info >= (3, 14)
    return importlib.import_module("compression.zstd" if in_python else "backports.zstd")


WRITTEN = {
    "XTC": ("o.xtc", {}, "XTC", None),
    "TRR": ("o.trr", {}, "TRR", None),
    "DCD": ("o.dcd", {}, "DCD", None),
    "NetCDF": ("o.nc", {}, "NCDF", by_netcdf4),
    "H5MD": ("o.h5md", {}, "H5MD", by_h5py),
    "H5MD --flavour gromacs": ("g.h5md", {"flavour": "gromacs"}, "H5MD", by_h5py),
    "Zarr": ("o.zarr", {}, None, by_zarr),
}
"""By name: an output, how it is made, MDAnalysis' own reader, a library."""
MADE = {
    "mdtraj HDF5": (
        "m.h5",
        make_mdtraj,
        None,
        lambda path: h5py.File(path)["coordinates"][...] * 10,
    ),
    "H5MD of LAMMPS": ("l.h5md", write_lammps, "H5MD", first_by_h5py),
    "H5MD of HALMD": ("h.h5md", write_halmd, "H5MD", first_by_h5py),
    "H5MD of ESPResSo": ("e.h5md", partial(write_espresso, unit="Angstrom"), "H5MD", first_by_h5py),
    "AMBER restart, as NetCDF": (
        "r.ncrst",
        make_restart,
        "NCDF",
        lambda path: by_netcdf4(path)[None],
    ),
    "XYZ in .gz": ("x.xyz.gz", make_packed, "XYZ", None),
    "XYZ in .bz2": ("x.xyz.bz2", make_packed, "XYZ", None),
    "XYZ in .zst": ("x.xyz.zst", make_packed, "XYZ", None),
}
"""By name: a file that is only read, what makes it of positions, MDAnalysis' reader, a library."""
SAID = {".h5md": {"length_unit": "angstrom"}}
"""By suffix: what is said of files that are only read, since some of their writers do not."""
READ = {
    "H5MD of GROMACS 2026": (None, None),
    "LAMMPS dump": (datafiles.LAMMPSDUMP_chain1, "LAMMPSDUMP"),
    "XYZ": (datafiles.XYZ, "XYZ"),
    "PDB": (datafiles.PDB_multiframe, "PDB"),
    "AMBER restart, as text": (datafiles.INPCRD, "INPCRD"),
    "AMBER trajectory, as text": (datafiles.TRJ, "TRJ"),
    "DL_POLY HISTORY": (datafiles.DLP_HISTORY, "HISTORY"),
    "GSD": (datafiles.GSD, "GSD"),
    "TNG": (datafiles.TNG_traj, "TNG"),
}
"""A file of each format that is only read, and MDAnalysis' name for it."""
CHEMFILES = {"LAMMPS dump": "LAMMPS"}
"""Its name of a format, where the file's does not tell it."""
NEEDS = {"GSD": "gsd", "TNG": "pytng"}
"""Packages without which MDAnalysis does not read a format: its cells are then not looked at."""


def by_program(program, path, pdb, folder):
    """Convert with a program into a format that mdio reads; None where it cannot."""
    if program == GMX_H5MD:
        try:
            frames = [
                arrays["position"] for *_, arrays in read_by_gromacs(path) if "position" in arrays
            ]
        except OSError:
            return None
        return np.array(frames) * np.float32(10)
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
    mdio.convert(TRR, path, select=np.arange(N_ATOMS), stop=N_FRAMES, **as_options(options))
    return {"written": YES} | readings(path, kind, library, expected)


def made_row(name, folder, expected):
    out, make, kind, library = MADE[name]
    path = folder / out
    make(path, expected)
    of_one = path.suffix == ".ncrst"
    expected = expected[:1] if of_one else expected
    said = SAID.get(path.suffix, {})
    return {"written": NO} | readings(path, kind, library, expected, said)


def readings(path, kind, library, expected, said=None):
    """Return who reads the same positions in a file, as cells. `said`: options of mdio's."""
    with mdio.open(path, **said or {}) as layout:
        row = {"read": same(layout.read(0, layout.info.n_frames).positions, expected)}
    row["MDAnalysis"] = kind is not None and mdanalysis_alone(path, kind, expected)
    row["library"] = library is not None and same(library(path), expected)
    if importlib.util.find_spec("chemfiles"):
        found = by_chemfiles(path, "Amber Restart" if path.suffix == ".ncrst" else "")
        row["chemfiles"] = found is not None and same(found, expected)
    for program in PROGRAMS:
        if shutil.which(program):
            found = by_program(program, path, path.parent / "top.pdb", path.parent)
            row[program] = found is not None and same(found, expected)
    return {key: YES if value else NO for key, value in row.items()}


def mdanalysis_alone(path, kind, expected):
    """Return whether MDAnalysis reads it, for Zstandard in a process that has not met mdio."""
    if path.suffix == ".zst":
        words = f"import MDAnalysis; MDAnalysis.Universe({str(path)!r}, format={kind!r})"
        run = subprocess.run([sys.executable, "-c", words], capture_output=True, check=False)
        return run.returncode == 0
    try:
        return same(by_mdanalysis(path, kind), expected)
    except (TypeError, ValueError, OSError, RuntimeError):  # no trajectory; units it does not take
        return False


def read_row(name, folder):
    path, kind = READ[name]
    if kind in NEEDS and importlib.util.find_spec(NEEDS[kind]) is None:
        return {}
    if path is None:
        path = folder / "md.h5md"
        values = write_gromacs(path)["position"] * np.float32(10)
        with mdio.open(path) as layout:
            found = layout.read(0, layout.info.n_frames).positions
        row = {"read": same(found[~absent_frames(found)], values), "written": False}
        if shutil.which(GMX_H5MD):
            row[GMX_H5MD] = same(by_program(GMX_H5MD, path, None, folder), values)
        return {key: YES if value else NO for key, value in row.items()}
    options = (
        {"n_atoms": mda.Universe(datafiles.PRM).atoms.n_atoms} if path == datafiles.TRJ else {}
    )
    with mdio.open(path, **options) as layout:
        n_frames = min(layout.info.n_frames, N_FRAMES)
        found = layout.read(0, n_frames).positions
    reader = mda.coordinates.core.get_reader_for(str(path), format=kind)
    with reader(str(path), **options) as frames:
        expected = np.array([frames[at].positions.copy() for at in range(n_frames)])
    row = {"read": YES if same(found, expected) else NO, "written": NO, "MDAnalysis": YES}
    if importlib.util.find_spec("chemfiles"):
        kind = CHEMFILES.get(name, "")
        theirs = by_chemfiles(path, kind)
        row["chemfiles"] = YES if theirs is not None and same(theirs, expected) else NO
    carbons = folder / f"carbons-{found.shape[1]}.pdb"
    write_carbons(carbons, found.shape[1])
    for program in ("cpptraj", "mdconvert", "gmx"):
        if shutil.which(program):
            theirs = by_program(program, path, carbons, folder)
            row[program] = YES if theirs is not None and same(theirs, expected) else NO
    return row


def write_carbons(path, n_atoms):
    """Write a topology of as many atoms as a trajectory has, too far apart for bonds."""
    atoms = mda.Universe.empty(n_atoms, trajectory=True).atoms
    for name, value in {"names": "C", "elements": "C", "resnames": "UNK", "chainIDs": "A"}.items():
        of_residues = name == "resnames"
        atoms.universe.add_TopologyAttr(name, [value] * (1 if of_residues else n_atoms))
    atoms.positions = 5.0 * np.argwhere(np.ones((60, 60, 60)))[:n_atoms]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what else a PDB has
        atoms.write(str(path))


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder, expected = tmp_path_factory.mktemp("matrix"), oracle().positions
    atoms = mda.Universe(datafiles.GRO).atoms[:N_ATOMS]
    atoms.write(str(folder / "top.pdb"))
    rows = {name: written_row(name, folder, expected) for name in WRITTEN}
    rows |= {name: made_row(name, folder, expected) for name in MADE}
    return rows | {name: read_row(name, folder) for name in READ}


def in_page():
    return {
        row[0].strip("`"): dict(zip(COLUMNS, row[1:], strict=False))
        for row in table_rows(PAGE, "Matrix")
    }


def test_the_table_says_what_runs_show(found):
    if os.environ.get("MDIO_MATRIX") == "write":
        write(found)
    rows = in_page()
    assert rows.keys() == found.keys()
    for name, cells in found.items():
        assert {key: rows[name][key] for key in cells} == cells, name


def write(found):
    lines = [f"| format | {' | '.join(COLUMNS)} |", f"| --- |{' --- |' * len(COLUMNS)}"]
    before = in_page()
    for name, cells in found.items():
        told = before.get(name, {}) | cells
        lines.append(f"| `{name}` | " + " | ".join(told.get(key, NO) for key in COLUMNS) + " |")
    text = PAGE.read_text()
    head, rest = text.split("## Matrix\n", 1)
    words, _, after = rest.partition("| format |")
    after = after.partition("\n\n")[2]
    Path(PAGE).write_text(head + "## Matrix\n" + words + "\n".join(lines) + "\n\n" + after)
