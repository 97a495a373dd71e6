"""Random frames of several trajectories: `mdio.sample` beside fetching frames one by one.

    python bench/sampling.py --folder FOLDER [--atoms 3341 47681] [--repeats 5] [--json FILE]

Of each layout there are some copies, as of replicas. Frames one by one: an epoch's first frames, in
random order, each by ``u.trajectory[i]`` and copied into the batch, by mdio's reader and, of the
XTC, by MDAnalysis' own. `mdio.sample`: a whole epoch, with a pool that has room for a small part of
it. Both are given as time per frame, without that of opening the trajectories; cases take turns,
warm ones with all files in the page cache, cold ones with none. CPU time is that of this process.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import adk
import MDAnalysis as mda
import numpy as np
from iterate import settle
from measuring import append_jsonl
from peers.runner import evict

import mdio

warnings.simplefilter("ignore")
N_FRAMES = {3341: 980, 47_681: 100}
LAYOUTS: dict[str, dict[str, Any]] = {"zarr": {}, "h5md": {}, "none.zarr": {"precision": "none"}}
BATCH, POOL_NBYTES = 32, 32 << 20


def copies(folder: Path, n_atoms: int, n_trajectories: int) -> dict[str, list[Path]]:
    """Return the files of each layout, made if they are not there."""
    n_frames = N_FRAMES[n_atoms]
    if n_atoms == 3341:
        source = adk.tiled(folder, n_frames // 98)
    else:
        source = adk.solvated(folder, n_atoms // 47_681, n_frames)
    found: dict[str, list[Path]] = {"xtc": [], **{name: [] for name in LAYOUTS}}
    for number in range(n_trajectories):
        xtc = folder / f"{number}_{source.name}"
        if not xtc.exists():
            shutil.copyfile(source, xtc)
        found["xtc"].append(xtc)
        for suffix, options in LAYOUTS.items():
            path = xtc.with_suffix(f".{suffix}")
            if not path.exists():
                mdio.convert(xtc, path, **options)
            found[suffix].append(path)
    return found


def one_by_one(paths: list[Path], n_atoms: int, n_wanted: int, **options: Any) -> Callable[[], int]:
    """Return what fetches random frames of open Universes, batch after batch."""
    random = np.random.default_rng(0)
    readers = [
        mda.Universe.empty(n_atoms).load_new(str(path), **options).trajectory for path in paths
    ]
    pairs = [(reader, frame) for reader in readers for frame in range(reader.n_frames)]

    def run() -> int:
        order = random.permutation(len(pairs))[:n_wanted]
        for at in range(0, len(order), BATCH):
            picked = order[at : at + BATCH]
            batch = np.empty((len(picked), n_atoms, 3), np.float32)
            for row, number in enumerate(picked):
                reader, frame = pairs[number]
                batch[row] = reader[frame].positions
        return len(order)

    return run


def sampled(paths: list[Path], workers: int | None) -> Callable[[], int]:
    """Return what goes through an epoch."""
    sample = mdio.sample(paths, batch=BATCH, workers=workers, pool_nbytes=POOL_NBYTES)
    return lambda: sum(one.n_frames for one in sample)


def main() -> None:
    """Print a line a case: time and CPU time of a frame, and how many times `mdio.sample`'s."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--atoms", type=int, nargs="+", default=list(N_FRAMES))
    parser.add_argument("--trajectories", type=int, default=8)
    parser.add_argument("--frames", type=int, default=320, help="that are fetched one by one")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    records = []
    for n_atoms in args.atoms:
        files = copies(args.folder, n_atoms, args.trajectories)
        cases = {("xtc", "MDAnalysis"): one_by_one(files["xtc"], n_atoms, args.frames)}
        for layout, paths in files.items():
            cases[layout, "mdio"] = one_by_one(paths, n_atoms, args.frames, format="MDIO")
            cases[layout, "sample"] = sampled(paths, None)
            cases[layout, "sample, 2 workers"] = sampled(paths, 2)
        for cache in ("warm", "cold"):
            taken: dict[tuple[str, str], list[float]] = {case: [] for case in cases}
            cpu: dict[tuple[str, str], list[float]] = {case: [] for case in cases}
            for _ in range(args.repeats):
                for (layout, way), run in cases.items():
                    for path in files[layout]:
                        settle(path) if cache == "warm" else evict(path)
                    begun, cpu_begun = time.perf_counter(), time.process_time()
                    n_frames = run()
                    taken[layout, way].append((time.perf_counter() - begun) / n_frames)
                    cpu[layout, way].append((time.process_time() - cpu_begun) / n_frames)
            medians = {case: statistics.median(seconds) for case, seconds in taken.items()}
            for (layout, way), median in medians.items():
                ratio = median / medians[layout, "sample"]
                cpu_s, least_s = (statistics.median(cpu[layout, one]) for one in (way, "sample"))
                name = f"{layout}, {cache}: {way}"
                print(f"{n_atoms:7d} {name:36s} {1e6 * median:9.1f} us/frame {ratio:7.2f}", end="")
                print(f" {1e6 * cpu_s:9.1f} us of CPU {cpu_s / least_s:7.2f}")
                records.append(
                    {"bench": "sampling", "n_atoms": n_atoms, "layout": layout, "way": way}
                    | {"cache": cache, "us_per_frame": 1e6 * median, "ratio": ratio}
                    | {"cpu_us_per_frame": 1e6 * cpu_s}
                )
    if args.json:
        append_jsonl(args.json, records)


if __name__ == "__main__":
    main()
