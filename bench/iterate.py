"""Going through a Universe: mdio's readers beside MDAnalysis' reader of memory, in one process.

    python bench/iterate.py FOLDER [--atoms 3341 47681 286086] [--repeats 7] [--rmsd] [--json FILE]

Cases run in turn, files are in the page cache, and what counts is the least processor time (user
and system) of the repeats: it does not see the other work of the machine. ``--rmsd`` adds an RMSD
of the C-alpha atoms to each frame, where wall-clock time counts.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import adk
import MDAnalysis as mda
import numpy as np
from MDAnalysis.analysis.rms import rmsd
from MDAnalysis.coordinates.memory import MemoryReader
from measuring import append_jsonl

import mdio

warnings.simplefilter("ignore")
N_FRAMES = {3341: 980, 47_681: 500, 286_086: 60}
LAYOUTS: dict[str, dict[str, Any]] = {
    "h5md": {},
    "zarr": {},
    "floats.zarr": {"precision": "none", "compression": "none"},
    "bitpack.zarr": {"compression": "bitpack"},
    "seek.zarr": {"compression": "rigid-seek"},
    "step.zarr": {"precision": 0.01},
}
BASE = "memory + copy"


def source(folder: Path, n_atoms: int) -> Path:
    """Return the XTC of that many atoms, made if it is not there."""
    n_frames = N_FRAMES[n_atoms]
    if n_atoms == 3341:
        return adk.tiled(folder, n_frames // 98)
    return adk.solvated(folder, n_atoms // 47_681, n_frames)


def made(xtc: Path, suffix: str) -> Path:
    """Return a layout made from the XTC."""
    path = xtc.with_suffix(f".{suffix}")
    if not path.exists():
        mdio.convert(xtc, path, **LAYOUTS[suffix])
    settle(path)
    return path


def settle(path: Path) -> None:
    """Have the page cache hold the files as it does after somebody has gone through them.

    How they lie in memory, and with it the time that copying from there takes, depends up to
    fourfold on how they came there: reads of 128 KiB, as ``cp`` does them, let the kernel read
    ahead in growing pieces; a first read of some megabytes has it take single pages.
    """
    for file in path.rglob("*") if path.is_dir() else [path]:
        if file.is_file():
            with file.open("rb", buffering=0) as data:
                os.fsync(data.fileno())
                os.posix_fadvise(data.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                while data.read(1 << 17):
                    pass


def memory(xtc: Path) -> Callable[[], Any]:
    """Go through MDAnalysis' reader of memory and copy each frame, as a file's reader must."""
    with mdio.open(xtc) as layout:
        reader = MemoryReader(layout.read(0, layout.info.n_frames).positions)
    copy = np.empty((reader.n_atoms, 3), np.float32)

    def run() -> None:
        for ts in reader:
            copy[...] = ts.positions

    return run


def through(path: Path, n_atoms: int, **options: Any) -> Callable[[], Any]:
    """Go through a Universe over a file."""
    universe = mda.Universe.empty(n_atoms)
    universe.load_new(str(path), **options)
    trajectory = universe.trajectory

    def run() -> None:
        for _ in trajectory:
            pass

    return run


def at_random(path: Path, n_atoms: int, **options: Any) -> Callable[[], Any]:
    """Fetch 60 single frames in random order."""
    universe = mda.Universe.empty(n_atoms)
    universe.load_new(str(path), **options)
    trajectory = universe.trajectory
    wanted = np.random.default_rng(0).integers(0, trajectory.n_frames, 60).tolist()

    def run() -> None:
        for frame in wanted:
            trajectory[frame]

    return run


def with_rmsd(path: Path, n_atoms: int, **options: Any) -> Callable[[], Any]:
    """Go through a Universe and superpose some atoms of each frame on the first."""
    universe = mda.Universe.empty(n_atoms)
    universe.load_new(str(path), **options)
    atoms = universe.atoms[:: max(1, n_atoms // 3341)]
    reference = atoms.positions

    def run() -> None:
        for _ in universe.trajectory:
            rmsd(atoms.positions, reference, center=True, superposition=True)

    return run


def list_cases(xtc: Path, n_atoms: int, *, rmsd_too: bool) -> dict[str, Callable[[], Any]]:
    """Return what is timed, by title."""
    paths = {suffix: made(xtc, suffix) for suffix in LAYOUTS}
    if rmsd_too:
        found = {"MDAnalysis, XTC": with_rmsd(xtc, n_atoms)}
        found["XTC"] = with_rmsd(xtc, n_atoms, format="MDIO")
        return found | {suffix: with_rmsd(path, n_atoms) for suffix, path in paths.items()}
    found = {BASE: memory(xtc), "MDAnalysis, XTC": through(xtc, n_atoms)}
    found["XTC"] = through(xtc, n_atoms, format="MDIO")
    found |= {suffix: through(path, n_atoms) for suffix, path in paths.items()}
    found["random: MDAnalysis, XTC"] = at_random(xtc, n_atoms)
    found |= {f"random: {what}": at_random(path, n_atoms) for what, path in paths.items()}
    return found


def main() -> None:
    """Print a line a case: microseconds a frame, and how often the base of its table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--atoms", type=int, nargs="+", default=list(N_FRAMES))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--rmsd", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    clock = time.perf_counter if args.rmsd else time.process_time
    records = []
    for n_atoms in args.atoms:
        cases = list_cases(source(args.folder, n_atoms), n_atoms, rmsd_too=args.rmsd)
        seconds: dict[str, list[float]] = {title: [] for title in cases}
        for _ in range(args.repeats):
            for title, run in cases.items():
                begun = clock()
                run()
                seconds[title].append(clock() - begun)
        base = None
        for title, taken in seconds.items():
            n_frames = 60 if title.startswith("random") else N_FRAMES[n_atoms]
            each = min(taken) / n_frames
            if base is None or title.startswith("random: MDA"):
                base = each
            print(f"{n_atoms:7d} {title:26s} {1e6 * each:9.1f} us/frame {each / base:7.2f}")
            records.append(
                {"bench": "iterate", "n_atoms": n_atoms, "case": title, "rmsd": args.rmsd}
                | {"us_per_frame": 1e6 * each, "ratio": each / base}
            )
    if args.json:
        append_jsonl(args.json, records)


if __name__ == "__main__":
    main()
