"""Many trajectories opened at once: time, memory and open files, beside MDAnalysis' ChainReader.

``python bench/replicas.py`` writes 150 trajectories of 250,000 atoms and 1,000 of 1,000 (XTC, and a
Zarr ensemble of them), and opens them in each way in a process of its own, when the indexes of the
XTCs are there already. Times are of the CPU. The files are copies of one.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from measuring import append_jsonl

SIZES = ((150, 250_000), (1000, 1000))
N_FRAMES, N_RANDOM = 8, 50
WAYS = {
    "zarr": "mdio, an ensemble in Zarr",
    "xtc": "mdio, each XTC by itself",
    "joined": "mdio, the XTCs joined",
    "chain": "MDAnalysis' ChainReader, the XTCs",
}
ANGSTROM = 2.2
"""Between neighbours of the lattice."""


def make(folder: Path, n_replicas: int, n_atoms: int) -> None:
    """Write the trajectories of a size, of atoms that shiver on a lattice."""
    from MDAnalysis.lib.formats.libmdaxdr import XTCFile

    import mdio

    folder.mkdir(parents=True)
    side = int(np.ceil(n_atoms ** (1 / 3)))
    lattice = np.stack(np.unravel_index(np.arange(n_atoms), (side,) * 3), axis=1) * ANGSTROM
    rng, first = np.random.default_rng(1), folder / "r0000.xtc"
    box = np.eye(3, dtype=np.float32) * side * ANGSTROM / 10
    with XTCFile(str(first), "w") as file:
        for n in range(N_FRAMES):
            positions = (lattice + rng.normal(0, 0.3, lattice.shape)).astype(np.float32)
            file.write(positions / 10, box, n, float(n), 1000.0)
    paths = [folder / f"r{n:04d}.xtc" for n in range(n_replicas)]
    for path in paths[1:]:
        shutil.copy(first, path)
    labelled = {path.stem: path for path in paths}
    mdio.convert_ensemble(labelled, folder / "all.zarr", executor=mdio.Processes(2))


def opened(way: str, folder: Path) -> Callable[[int, int], Any]:
    """Open all trajectories; return what reads a frame of one of them."""
    import mdio

    paths = sorted(folder.glob("*.xtc"))
    if way == "chain":
        from MDAnalysis.coordinates.chain import ChainReader

        chain = ChainReader([str(path) for path in paths], format="XTC", dt=1.0)
        return lambda replica, frame: chain[replica * N_FRAMES + frame].positions
    if way == "joined":
        joined = mdio.open(paths, overlap="keep-all")
        assert joined.info.n_frames == len(paths) * N_FRAMES
        at = N_FRAMES
        return lambda replica, frame: joined.read(replica * at + frame, replica * at + frame + 1)
    if way == "zarr":
        layouts = list(mdio.open_ensemble(folder / "all.zarr").values())
    else:
        layouts = [mdio.open(path) for path in paths]
    assert sum(one.info.n_frames for one in layouts) == len(paths) * N_FRAMES
    return lambda replica, frame: layouts[replica].read(frame, frame + 1)


def memory_mb() -> float:
    """Return the memory of this process that is not of files, in MB."""
    with open("/proc/self/status") as status:
        words = next(line for line in status if line.startswith("RssAnon")).split()
    return int(words[1]) * 1024 / 1e6


def measured(way: str, folder: Path, n_replicas: int) -> dict[str, float]:
    """Open all trajectories, read a frame, and then random ones."""
    import MDAnalysis.coordinates.chain  # noqa: F401 - what is imported later counts as memory
    import zarr  # noqa: F401

    opened(way, folder)(0, 0)  # code that is loaded when it is used, and indexes
    before_mb, begun_s = memory_mb(), time.process_time()
    read = opened(way, folder)
    open_s, open_mb, begun_s = (
        time.process_time() - begun_s,
        memory_mb() - before_mb,
        time.process_time(),
    )
    read(0, 0)
    first_s, begun_s, rng = time.process_time() - begun_s, time.process_time(), random.Random(1)
    for _ in range(N_RANDOM):
        read(rng.randrange(n_replicas), rng.randrange(N_FRAMES))
    random_s = (time.process_time() - begun_s) / N_RANDOM
    for replica in range(n_replicas):
        read(replica, 0)
    return {
        "open_s": open_s,
        "open_mb": open_mb,
        "first_ms": 1e3 * first_s,
        "random_ms": 1e3 * random_s,
        "after_all_mb": memory_mb() - before_mb,
        "n_files": len(list(Path("/proc/self/fd").iterdir())),
    }


def main() -> None:
    """Make what is not there, measure, and print a table for each size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("bench-output/replicas"))
    parser.add_argument("--quick", action="store_true", help="three of 300 atoms")
    parser.add_argument("--only", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.only:
        way, folder, n_replicas = args.only
        print(json.dumps(measured(way, Path(folder), int(n_replicas))))
        return
    for n_replicas, n_atoms in ((3, 300),) if args.quick else SIZES:
        folder = args.folder / f"{n_replicas}x{n_atoms}"
        if not folder.exists():
            make(folder, n_replicas, n_atoms)
        print(f"\n{n_replicas:,} trajectories of {n_atoms:,} atoms\n")
        print("| | opened, s | memory, MB | first frame, ms | a random one, ms | open files |")
        print("| --- | --- | --- | --- | --- | --- |")
        for way, name in WAYS.items():
            command = [sys.executable, __file__, "--only", way, str(folder), str(n_replicas)]
            found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
            print(
                f"| {name} | {found['open_s']:.2f} | {found['open_mb']:.0f}, in the end "
                f"{found['after_all_mb']:.0f} | {found['first_ms']:.1f} | {found['random_ms']:.1f} "
                f"| {found['n_files']} |"
            )
            sizes = {"n_replicas": n_replicas, "n_atoms": n_atoms, "n_frames": N_FRAMES}
            append_jsonl(args.folder / "replicas.jsonl", [{"way": way, **sizes, **found}])


if __name__ == "__main__":
    main()
