"""Steps of everyday use beside the program that people take for them, by CPU time.

``python bench/formats/conversions.py TOP.tpr TRAJECTORY.xtc FOLDER [REPEATS]`` makes files of the
trajectory, its frames 8 times, and times in turn: NetCDF into another file (cpptraj), NetCDF-4 with
integers as cpptraj compresses them (a cpptraj that has HDF5, and the NetCDF library alone, through
which it reads), mdtraj's HDF5 into another (mdconvert), and mean square displacements of water
(MDAnalysis' EinsteinMSD, by FFT where tidynamics is installed). mdio and MDAnalysis run in this
process, whose start and imports are left out; what mdio takes as a process of its own stands
beside. ``CPPTRAJ`` and ``MDCONVERT`` name the programs where they are not on the path; one that is
not there is left out. Given is CPU time, user's and the system's, the least of the repeats. Results
are compared first.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import MDAnalysis as mda
import netCDF4
import numpy as np
from MDAnalysis.analysis.msd import EinsteinMSD

import mdio

N_TIMES = 8
MDIO = (sys.executable, "-m", "mdio.cli.main")


def cpu_s(run: Callable[[], object]) -> float:
    """Return the CPU seconds of a call, in this process and those that it starts."""
    before = os.times()
    run()
    after = os.times()
    return sum(after[:4]) - sum(before[:4])


def program(name: str) -> str | None:
    """Return where a program is."""
    return os.environ.get(name.upper()) or shutil.which(name)


def process(*words: object, stdin: str | None = None) -> Callable[[], object]:
    """Return what runs a command."""
    command = list(map(str, words))

    def run() -> None:
        subprocess.run(command, check=True, input=stdin, text=True, capture_output=True)

    return run


def same(path: Path, other: Path, atol: float) -> None:
    """Compare what two programs wrote: every tenth frame."""
    ours, theirs = mdio.open(path), mdio.open(other)
    n_frames = ours.info.n_frames
    assert n_frames == theirs.info.n_frames, (path, other)
    for frame in range(0, n_frames, 10):
        a, b = (one.read(frame, frame + 1).positions for one in (ours, theirs))
        np.testing.assert_allclose(a, b, atol=atol)


def netcdf(top: Path, source: Path, folder: Path) -> dict[str, Callable[[], object]]:
    """NetCDF into Zarr and DCD, beside cpptraj's NetCDF into DCD."""
    made = folder / "source.ncdf"
    mdio.convert([source] * N_TIMES, made, overlap="keep-all", force=True)
    cases: dict[str, Callable[[], object]] = {
        f"mdio, to {kind}": partial(mdio.convert, made, folder / f"n.{kind}", force=True)
        for kind in ("zarr", "dcd")
    }
    cases["mdio, a process"] = process(*MDIO, "convert", made, folder / "p.zarr", "--force")
    if (cpptraj := program("cpptraj")) is not None:
        parm = folder / "top.pdb"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mda.Universe(str(top), str(source)).atoms.write(str(parm))
        script = f"parm {parm}\ntrajin {made}\ntrajout {folder / 'theirs.dcd'}\nrun\nquit\n"
        cases["cpptraj, to dcd"] = process(cpptraj, stdin=script)
        parsing = f"parm {parm}\nquit\n"
        cases["cpptraj, its topology alone"] = process(cpptraj, stdin=parsing)
        for run in cases.values():
            run()
        same(folder / "n.zarr", folder / "theirs.dcd", 1e-3)
    return cases


def compressed_netcdf(_top: Path, source: Path, folder: Path) -> dict[str, Callable[[], object]]:
    """NetCDF-4 of integers into Zarr and DCD, beside cpptraj and the library that it reads with.

    `folder` holds what `netcdf` has made.
    """
    made, factor = folder / "compressed.nc", 100.0
    with mdio.open(source) as layout, netCDF4.Dataset(made, "w", format="NETCDF4") as file:
        info = layout.info
        file.Conventions, file.ConventionVersion = "AMBER", "1.0"
        for name, size in (("frame", None), ("atom", info.n_atoms), ("spatial", 3)):
            file.createDimension(name, size)
        time_ps = file.createVariable("time", "f4", ("frame",))
        time_ps.units = "picosecond"
        places = file.createVariable(
            *("compressedpos", "i4", ("frame", "atom", "spatial")),
            zlib=True,
            chunksizes=(1, info.n_atoms, 3),
        )
        places.units, places.icompressfac = "angstrom", factor
        for frame in range(N_TIMES * info.n_frames):
            at = frame % info.n_frames
            time_ps[frame] = frame
            places[frame] = np.round(layout.read(at, at + 1).positions[0] * factor)

    def by_library() -> None:
        with netCDF4.Dataset(made) as file:
            file.set_auto_maskandscale(False)
            for frame in range(N_TIMES * info.n_frames):
                (file["compressedpos"][frame] / factor).astype("f4")

    cases: dict[str, Callable[[], object]] = {
        f"mdio, to {kind}": partial(mdio.convert, made, folder / f"c.{kind}", force=True)
        for kind in ("zarr", "dcd")
    }
    cases["mdio, a process"] = process(*MDIO, "convert", made, folder / "p.zarr", "--force")
    cases["netCDF4, reading alone"] = by_library
    for run in cases.values():
        run()
    ours, theirs = mdio.open(folder / "c.zarr"), mdio.open(folder / "n.zarr")
    for frame in (0, N_TIMES * info.n_frames - 1):
        a, b = (one.read(frame, frame + 1).positions for one in (ours, theirs))
        np.testing.assert_allclose(a, b, atol=1e-2)
    if (cpptraj := program("cpptraj")) is not None:
        out = folder / "theirs.dcd"
        out.unlink(missing_ok=True)
        script = f"parm {folder / 'top.pdb'}\ntrajin {made}\ntrajout {out}\nrun\nquit\n"
        run = process(cpptraj, stdin=script)
        with suppress(subprocess.CalledProcessError):  # one without HDF5
            run()
            same(folder / "c.zarr", out, 1e-3)
            cases["cpptraj, to dcd"] = run
    return cases


def mdtraj_hdf5(top: Path, source: Path, folder: Path) -> dict[str, Callable[[], object]]:
    """HDF5 of mdtraj into Zarr, beside mdconvert's into DCD and HDF5."""
    mdconvert = program("mdconvert")
    if mdconvert is None:
        return {}
    made, gro = folder / "source.h5", folder / "top.gro"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mda.Universe(str(top), str(source)).atoms.write(str(gro))
    process(mdconvert, *[source] * N_TIMES, "-o", made, "-t", gro, "-f")()
    cases: dict[str, Callable[[], object]] = {
        "mdio, to zarr": partial(mdio.convert, made, folder / "m.zarr", force=True),
        "mdio, a process": process(*MDIO, "convert", made, folder / "p.zarr", "--force"),
    }
    for kind in ("h5", "dcd"):
        out = folder / f"theirs2.{kind}"
        cases[f"mdconvert, to {kind}"] = process(mdconvert, made, "-o", out, "-f")
    for run in cases.values():
        run()
    same(folder / "m.zarr", folder / "theirs2.dcd", 1e-3)
    return cases


def displacement(top: Path, source: Path, folder: Path) -> dict[str, Callable[[], object]]:
    """Mean square displacement of water's oxygens, of files without jumps."""
    waters = "resname SOL and name OW"
    plain, narrow = folder / "on.xtc", folder / "on.zarr"
    mdio.convert(source, plain, selection=mdio.Selection(pbc="nojump"), force=True)
    mdio.convert(
        source,
        narrow,
        selection=mdio.Selection(pbc="nojump"),
        top=top,
        storage=mdio.Storage(pattern="timeseries"),
        force=True,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        universe = mda.Universe(str(top), str(plain))
    fft = importlib.util.find_spec("tidynamics") is not None
    found: dict[str, np.ndarray] = {}

    def ours() -> None:
        found["mdio"] = mdio.analyze(narrow, kernel=mdio.MSD(waters)).values

    def theirs() -> None:
        run = EinsteinMSD(universe, select=waters, fft=fft).run()
        found["MDAnalysis"] = run.results.timeseries

    cases: dict[str, Callable[[], object]] = {
        "mdio, of time series": ours,
        f"MDAnalysis, {'FFT' if fft else 'all pairs'}": theirs,
    }
    for run in cases.values():
        run()
    np.testing.assert_allclose(found["mdio"], found["MDAnalysis"], rtol=2e-2, atol=0.1)
    return cases


STEPS = {
    "NetCDF": netcdf,
    "NetCDF-4, compressed": compressed_netcdf,
    "mdtraj's HDF5": mdtraj_hdf5,
    "mean square displacement": displacement,
}


def main(top: Path, source: Path, folder: Path, repeats: int = 5) -> None:
    """Print what each step takes."""
    folder.mkdir(parents=True, exist_ok=True)
    info = mdio.open(source).info
    print(f"{source.name}: {info.n_frames} frames of {info.n_atoms} atoms, {time.strftime('%F')}")
    print(f"load {os.getloadavg()[0]:.1f}; CPU seconds, least of {repeats} in turn")
    for step, make in STEPS.items():
        cases = make(top, source, folder)
        took: dict[str, list[float]] = {name: [] for name in cases}
        for _ in range(repeats):
            for name, run in cases.items():
                took[name].append(cpu_s(run))
        least = {name: min(all_) for name, all_ in took.items()}
        print(step)
        for name, seconds in least.items():
            ratio = seconds / least[next(iter(least))]
            print(f"  {name:<30}{seconds:8.2f}{ratio:8.1f}x")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]), *map(int, sys.argv[4:5]))
