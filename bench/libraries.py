"""What is written by hand beside the library that could do the same: the table in docs/design.md.

``python bench/libraries.py OUT.zarr OUT.h5md OUT.ncdf`` reads files that mdio wrote (--precision
none), from the page cache; the least of repeats in turn: CPU time of all threads, but processes are
timed by the clock. mdio also reads times and cells, and verifies; the others read
coordinates alone. ``zarrs`` is measured too where it is installed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

import mdio
from mdio.core.frames import FrameBlock
from mdio.parallel.executors import Processes
from mdio.parallel.shared_rows import SharedRows

DATASET = "particles/trajectory/position/value"
WINDOW = 100
N_TASKS, N_ROWS, ROW = 2000, 20_000, 500
REPEATS = 7


def least(cases: dict[str, Callable[[], object]], clock: Callable[[], float]) -> None:
    """Run cases in turn and print the least seconds of each."""
    seconds = dict.fromkeys(cases, float("inf"))
    for _ in range(REPEATS):
        for name, run in cases.items():
            begun = clock()
            run()
            seconds[name] = min(seconds[name], clock() - begun)
    ours = next(iter(seconds.values()))
    for name, took in seconds.items():
        print(f"  {name:<34}{1e3 * took:>10.2f} ms   x {took / ours:.2f}", flush=True)


def readers(path: Path, others: dict[str, Callable[[], Any]]) -> None:
    """Read runs of frames, single frames, and some atoms, by mdio and by others."""
    layout = mdio.open(path)
    n_frames, n_atoms = layout.info.n_frames, layout.info.n_atoms
    some = np.arange(4, n_atoms, 16)
    arrays = {name: opened() for name, opened in others.items()}
    window = min(WINDOW, n_frames)
    for size, last, atoms in ((window, n_frames, None), (1, 200, None), (window, n_frames, some)):
        starts = range(0, min(last, n_frames) - size + 1, size)
        block = FrameBlock.empty(size, n_atoms if atoms is None else len(atoms))
        cases: dict[str, Callable[[], object]] = {
            "mdio": lambda a=atoms, b=block, s=size, all_=starts: [
                layout.read(start, start + s, a, b) for start in all_
            ]
        }
        for name, array in arrays.items():
            cases[name] = lambda x=array, a=atoms, s=size, all_=starts: [
                taken(x[start : start + s], a) for start in all_
            ]
        what = n_atoms if atoms is None else f"{len(atoms)} of {n_atoms}"
        print(f"{path.name}: {len(starts) * size} frames of {what} atoms, {size} at a time")
        least(cases, time.process_time)


def taken(rows: Any, atoms: Any) -> Any:
    """Return native float32 of some atoms; libraries are slower if asked for these alone."""
    rows = rows if atoms is None else rows[:, atoms]
    return rows if rows.dtype.isnative and rows.base is None else rows.astype("f4")


def zarr_readers(path: Path) -> dict[str, Callable[[], Any]]:
    """Return zarr-python, with and without zarrs' pipeline."""
    import zarr

    def fast() -> Any:
        import zarrs  # noqa: F401

        with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
            return zarr.open_group(path, mode="r")[DATASET]

    found = {"zarr-python": lambda: zarr.open_group(path, mode="r")[DATASET]}
    return {**found, "zarr-python with zarrs": fast} if find_spec("zarrs") else found


class IntoBuffer:
    """A dataset of HDF5 that is read without making room each time."""

    def __init__(self, path: Path) -> None:
        import h5py

        self.dataset = h5py.File(path)[DATASET]
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

    def library() -> Any:
        variable = netCDF4.Dataset(str(path)).variables["coordinates"]
        variable.set_auto_maskandscale(False)
        return variable

    def mapped() -> Any:
        return netcdf_file(str(path), "r", mmap=True, maskandscale=False).variables["coordinates"]

    return {"netCDF4": library, "scipy, mapped": mapped}


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
        rows.whole().sum()


def main() -> int:
    """Measure and print."""
    tree, file, netcdf = map(Path, sys.argv[1:4])
    readers(tree, zarr_readers(tree))
    readers(file, {"h5py, read_direct": lambda: IntoBuffer(file)})
    readers(netcdf, netcdf_readers(netcdf))
    print(f"{N_TASKS} tasks that do nothing, 2 processes")
    tasks = list(range(N_TASKS))
    pools = {"mdio": lambda: ours(nothing, tasks), "futures": lambda: in_pool(nothing, tasks)}
    least(pools, time.perf_counter)
    print(f"{N_ROWS} rows of {ROW} float64 from 2 processes")
    starts = list(range(0, N_ROWS, N_ROWS // 20))
    collected = {
        "mdio, shared rows": shared,
        "mdio, through the pipe": lambda: np.concatenate(ours(rows_of, starts)).sum(),
        "futures": lambda: np.concatenate(in_pool(rows_of, starts)).sum(),
    }
    least(collected, time.perf_counter)
    return 0


if __name__ == "__main__":
    sys.exit(main())
