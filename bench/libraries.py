"""What is written by hand beside the library that could do the same: the table in docs/design.md.

``python bench/libraries.py OUT.zarr OUT.h5md OUT.ncdf`` reads files that mdio wrote (--precision
none), and ``x.h5``, ``shuffled.h5``, ``x.nc``, ``x.gsd`` and ``x.rst7`` of others (``--make
FOLDER`` writes these), from the page cache; medians of repeats in turn: CPU time of all threads,
but processes (``--processes``) are timed by the clock. mdio also reads times and cells, and
verifies its own; the others read coordinates alone. ``zarrs`` is measured too where it is
installed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.util import find_spec
from multiprocessing import get_context
from os import getloadavg
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np

import mdio
from mdio.core.frames import FrameBlock
from mdio.parallel.executors import Processes
from mdio.parallel.pool import SharedRows

DATASET = "particles/trajectory/position/value"
WINDOW = 100
N_TASKS, N_ROWS, ROW = 2000, 20_000, 500
REPEATS = 7
COPIES = 10
UNITS = {"time": "ps", "length": "Angstrom", "velocity": "Angstrom ps-1", "force": "kJ mol-1 nm-1"}


def compare(cases: dict[str, Callable[[], object]], clock: Callable[[], float]) -> None:
    """Run cases in turn and print the median seconds of each."""
    runs: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(REPEATS):
        for name, run in cases.items():
            begun = clock()
            run()
            runs[name].append(clock() - begun)
    seconds = {name: median(took) for name, took in runs.items()}
    ours = next(iter(seconds.values()))
    for name, took in seconds.items():
        print(f"  {name:<34}{1e3 * took:>10.2f} ms   x {took / ours:.2f}", flush=True)


def readers(path: Path, others: dict[str, Callable[[], Any]]) -> None:
    """Read runs of frames, single frames, and some atoms, by mdio and by others."""
    arrays = {name: opened() for name, opened in others.items()}  # first: HDF5 shares caches
    layout = mdio.open(path)
    ways = {"mdio": layout}
    if path.suffix in (".h5", ".nc"):
        ways["mdio, through the library"] = through_library(path)
    n_frames, n_atoms = layout.info.n_frames, layout.info.n_atoms
    some = np.arange(4, n_atoms, 16)
    window = min(WINDOW, n_frames)
    for size, last, atoms in ((window, n_frames, None), (1, 200, None), (window, n_frames, some)):
        starts = range(0, min(last, n_frames) - size + 1, size)
        block = FrameBlock.empty(size, n_atoms if atoms is None else len(atoms))
        cases: dict[str, Callable[[], object]] = {
            name: lambda one=one, a=atoms, b=block, s=size, all_=starts: [
                one.read(start, start + s, a, b) for start in all_
            ]
            for name, one in ways.items()
        }
        for name, array in arrays.items():
            cases[name] = lambda x=array, a=atoms, s=size, all_=starts: [
                taken(x[start : start + s], a) for start in all_
            ]
        what = n_atoms if atoms is None else f"{len(atoms)} of {n_atoms}"
        print(f"{path.name}: {len(starts) * size} frames of {what} atoms, {size} at a time")
        compare(cases, time.process_time)


def through_library(path: Path) -> Any:
    """Open a file of others so that its chunks are read by HDF5, or netCDF4."""
    with patch("mdio.layouts.foreign.hdf5.chunks_of", return_value=None):
        layout = mdio.open(path)
        layout.read(0, 1)
    return layout


def taken(rows: Any, atoms: Any) -> Any:
    """Return native float32 of some atoms; libraries are slower if asked for these alone."""
    rows = rows if atoms is None else rows[:, atoms]
    return rows if rows.dtype.isnative and rows.base is None else rows.astype("f4")


def zarr_readers(path: Path) -> dict[str, Callable[[], Any]]:
    """Return zarr-python with its usual pipeline, and with others that are installed."""
    import zarr
    from zarr.core import codec_pipeline

    def opened(pipeline: str) -> Any:
        with zarr.config.set({"codec_pipeline.path": pipeline}):
            return zarr.open_group(path, mode="r")[DATASET]

    pipelines = {"zarr-python": "zarr.core.codec_pipeline.BatchedCodecPipeline"}
    if hasattr(codec_pipeline, "FusedCodecPipeline"):  # zarr 3.4, for Python 3.12 and newer
        pipelines["zarr-python, fused"] = "zarr.core.codec_pipeline.FusedCodecPipeline"
    if find_spec("zarrs"):
        import zarrs  # noqa: F401

        pipelines["zarr-python with zarrs"] = "zarrs.ZarrsCodecPipeline"
    return {name: partial(opened, pipeline) for name, pipeline in pipelines.items()}


class IntoBuffer:
    """A dataset of HDF5 that is read without making room each time."""

    def __init__(self, path: Path) -> None:
        import h5py

        # As much as HDF5 1 keeps by itself: no more frames than are read in a repeat.
        self.dataset = h5py.File(path, rdcc_nbytes=1 << 20)[DATASET]
        self.room: dict[int, Any] = {}

    def __getitem__(self, frames: slice) -> Any:
        """Return a run of frames."""
        n_frames = frames.stop - frames.start
        if n_frames not in self.room:
            self.room[n_frames] = np.empty((n_frames, *self.dataset.shape[1:]), np.float32)
        self.dataset.read_direct(self.room[n_frames], frames)
        return self.room[n_frames]


def netcdf_readers(path: Path) -> dict[str, Callable[[], Any]]:
    """Return netCDF4, and scipy with a map of the file."""
    import netCDF4
    from scipy.io import netcdf_file

    netCDF4.set_chunk_cache(1 << 20)  # no more frames than are read in a repeat

    def library() -> Any:
        variable = netCDF4.Dataset(str(path)).variables["coordinates"]
        variable.set_auto_maskandscale(False)
        return variable

    def mapped() -> Any:
        return netcdf_file(str(path), "r", mmap=True, maskandscale=False).variables["coordinates"]

    found = {"netCDF4": library, "scipy, mapped": mapped}
    return found if path.suffix == ".ncdf" else {"netCDF4": library}


class Frames:
    """A GSD file, frame by frame: through its file layer, or as snapshots of HOOMD."""

    def __init__(self, path: Path, snapshots: bool) -> None:
        import gsd.fl
        import gsd.hoomd

        self.file = (gsd.hoomd if snapshots else gsd.fl).open(str(path), "r")
        self.snapshots = snapshots

    def __getitem__(self, frames: slice) -> Any:
        """Return a run of frames."""
        numbers = range(frames.start, frames.stop)
        if self.snapshots:
            return np.stack([self.file[number].particles.position for number in numbers])
        return np.stack([self.file.read_chunk(number, "particles/position") for number in numbers])


def restart(path: Path) -> None:
    """Open and read a restart file, again and again: it has one frame."""
    from MDAnalysis.coordinates.INPCRD import INPReader

    def own() -> Any:
        with mdio.open(path) as layout:
            return layout.read(0, 1).positions

    print(f"{path.name}: opened and read, as text")
    compare(
        {"mdio": own, "MDAnalysis": lambda: INPReader(str(path)).ts.positions}, time.process_time
    )


def make(folder: Path) -> None:
    """Write what other programs would: deflated chunks of HDF5, GSD, a restart file as text."""
    import gsd.hoomd
    import h5py
    import MDAnalysis as mda
    import netCDF4
    from MDAnalysisTests.datafiles import DCD, PSF

    atoms = mda.Universe(PSF, DCD).atoms
    n_atoms, trajectory = len(atoms), atoms.universe.trajectory
    how = {"compression": "gzip", "compression_opts": 4, "positions": True}
    with (
        mda.Writer(str(folder / "x.h5"), n_atoms, format="H5MD", units=UNITS, **how) as file,
        gsd.hoomd.open(str(folder / "x.gsd"), "w") as snapshots,
    ):
        for number, now in enumerate(frame for _ in range(COPIES) for frame in trajectory):
            now.data["step"], now.time = number, float(number)
            file.write(atoms)
            frame = gsd.hoomd.Frame()
            frame.configuration.step, frame.configuration.box = number, [90, 90, 90, 0, 0, 0]
            moved = atoms.positions + np.float32(0.01 * number)  # what is as before is not stored
            frame.particles.N, frame.particles.position = n_atoms, moved
            snapshots.append(frame)
    with h5py.File(folder / "x.h5") as file, netCDF4.Dataset(folder / "x.nc", "w") as copy:
        copy.Conventions = "AMBER"
        for name, length in (("frame", None), ("atom", n_atoms), ("spatial", 3)):
            copy.createDimension(name, length)
        shape, chunk = ("frame", "atom", "spatial"), (1, n_atoms, 3)
        how = {"zlib": True, "complevel": 1, "chunksizes": chunk}
        times = copy.createVariable("time", "f4", ("frame",))
        values = copy.createVariable("coordinates", "f4", shape, **how)
        times.units, values.units = "picosecond", "angstrom"
        times[:], values[:] = np.arange(len(file[DATASET])), file[DATASET][...]
    with h5py.File(folder / "x.h5") as file, h5py.File(folder / "shuffled.h5", "w") as shuffled:
        for name in file:
            file.copy(name, shuffled)
        values, attributes = file[DATASET][...], dict(file[DATASET].attrs)
        del shuffled[DATASET]
        how = {"chunks": (10, n_atoms, 3), "compression": "gzip", "shuffle": True}
        shuffled.create_dataset(DATASET, data=values, **how).attrs.update(attributes)
    numbers = [f"{x:12.7f}" for x in atoms.positions.ravel()]
    lines = ["".join(numbers[at : at + 6]) for at in range(0, len(numbers), 6)]
    (folder / "x.rst7").write_text("\n".join(["ADK", f"{n_atoms:5d}  0.1", *lines, ""]))


def nothing(item: int) -> int:
    """Return what is given."""
    return item


def rows_of(start: int) -> np.ndarray[Any, Any]:
    """Return rows as an analysis would."""
    return np.full((N_ROWS // 20, ROW), float(start))


def fill(task: tuple[SharedRows, int]) -> None:
    """Write such rows where all processes see them."""
    rows, start = task
    rows.accepts((ROW,), np.dtype(float))
    rows.write(start, rows_of(start))


def in_pool(func: Callable[[Any], Any], items: list[Any]) -> list[Any]:
    """Map with concurrent.futures."""
    with ProcessPoolExecutor(2, get_context("fork")) as pool:
        return list(pool.map(func, items))


def ours(func: Callable[[Any], Any], items: list[Any]) -> list[Any]:
    """Map with mdio's pool."""
    with Processes(2) as pool:
        return pool.map(func, items)


def shared() -> None:
    """Collect rows in shared memory."""
    with SharedRows(N_ROWS) as rows:
        ours(fill, [(rows, start) for start in range(0, N_ROWS, N_ROWS // 20)])
        rows.read_all().sum()


def pools() -> None:
    """Share work by processes."""
    print(f"{N_TASKS} tasks that do nothing, 2 processes")
    tasks = list(range(N_TASKS))
    cases = {"mdio": lambda: ours(nothing, tasks), "futures": lambda: in_pool(nothing, tasks)}
    compare(cases, time.perf_counter)
    print(f"{N_ROWS} rows of {ROW} float64 from 2 processes")
    starts = list(range(0, N_ROWS, N_ROWS // 20))
    collected = {
        "mdio, shared rows": shared,
        "mdio, through the pipe": lambda: np.concatenate(ours(rows_of, starts)).sum(),
        "futures": lambda: np.concatenate(in_pool(rows_of, starts)).sum(),
    }
    compare(collected, time.perf_counter)


def main() -> int:
    """Measure and print."""
    if sys.argv[1] == "--make":
        make(Path(sys.argv[2]))
        return 0
    print(f"load {getloadavg()[0]:.1f}")
    for path in map(Path, sys.argv[1:]):
        if path.name == "--processes":
            pools()
        elif path.suffix == ".rst7":
            restart(path)
        elif path.suffix == ".zarr":
            readers(path, zarr_readers(path))
        elif path.suffix in (".ncdf", ".nc"):
            readers(path, netcdf_readers(path))
        elif path.suffix == ".gsd":
            file, snapshots = partial(Frames, path, False), partial(Frames, path, True)
            readers(path, {"gsd.fl": file, "gsd.hoomd": snapshots})
        else:
            readers(path, {"h5py, read_direct": partial(IntoBuffer, path)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
