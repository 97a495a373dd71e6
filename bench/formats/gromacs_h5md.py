"""H5MD as GROMACS 2026 writes it (a frame a chunk, uncompressed) into Zarr, beside MDAnalysis.

``python bench/formats/gromacs_h5md.py SRC FOLDER [FRAMES]`` repeats the frames of SRC (any
trajectory) until there are FRAMES (300), writes them as GROMACS does, and converts that file in
turn with mdio (to Zarr, floats, verified by reading it again; through the page cache and past it)
and with MDAnalysis' H5MDReader and H5MDWriter. Writing the same bytes, and nothing else, is the
floor of all that go through the page cache. What is compared is CPU time of the whole process,
imports left out; the source is in the page cache.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import h5py
import MDAnalysis
import numpy as np
from MDAnalysis.coordinates.H5MD import H5MDReader, H5MDWriter

import mdio
from mdio.core.boxes import vectors_from_boxes

N_FRAMES, REPEATS = 300, 5


def write_as_gromacs(source: Path, out: Path, n_frames: int = N_FRAMES) -> None:
    """Write positions, cells, steps and times with GROMACS' names, units and chunks."""
    block = mdio.open(source).read(0, min(n_frames, mdio.open(source).info.n_frames))
    rows = np.arange(n_frames) % len(block.time)
    with h5py.File(out, "w") as file:
        head = file.create_group("h5md")
        head.attrs["version"] = [1, 1]
        for who, name in (("author", "bench"), ("creator", "GROMACS")):
            head.create_group(who).attrs["name"] = np.bytes_(name)
        system = file.create_group("particles/system")
        box = system.create_group("box")
        box.attrs["dimension"], box.attrs["boundary"] = 3, [np.bytes_("periodic")] * 3
        values = {
            "position": block.positions / np.float32(10),
            "box/edges": vectors_from_boxes(block.box) / np.float32(10),
        }
        for element, array in values.items():
            value = system.create_dataset(
                f"{element}/value", (n_frames, *array.shape[1:]), "f4", chunks=(1, *array.shape[1:])
            )
            for frame, row in enumerate(rows):
                value[frame] = array[row]
            value.attrs["unit"] = "nm"
        group = system["position"]
        group["step"] = np.arange(n_frames) * 500
        group["time"] = np.arange(n_frames) * 1.0
        group["time"].attrs["unit"] = "ps"
        for name in ("step", "time"):
            system["box/edges"][name] = group[name]


def by_mdanalysis(source: Path, out: Path) -> None:
    """Copy frame by frame, as a user of MDAnalysis does."""
    with H5MDReader(str(source)) as reader:
        universe = MDAnalysis.Universe.empty(reader.n_atoms, trajectory=True)
        with H5MDWriter(
            str(out), reader.n_atoms, n_frames=reader.n_frames, lengthunit="nm", timeunit="ps"
        ) as writer:
            for ts in reader:
                universe.trajectory.ts.positions = ts.positions
                universe.trajectory.ts.dimensions = ts.dimensions
                universe.trajectory.ts.time = ts.time
                writer.write(universe.atoms)


def copy(source: Path, out: Path) -> None:
    """Write the bytes of `source`, a mebibyte at a time, which are read of it again each time."""
    with source.open("rb", buffering=0) as there, out.open("wb", buffering=0) as here:
        while piece := there.read(2**20):
            here.write(piece)


def main(source: Path, folder: Path, n_frames: int = N_FRAMES) -> None:
    """Print the CPU seconds of each, and how often mdio's are in MDAnalysis'."""
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / "gromacs.h5md"
    write_as_gromacs(source, made, n_frames)
    cases: dict[str, Callable[[], object]] = {
        "mdio": lambda: mdio.convert(made, folder / "out.zarr"),
        "mdio, direct": lambda: mdio.convert(made, folder / "out.zarr", direct="on"),
        "bytes copied": lambda: copy(made, folder / "copy"),
        "MDAnalysis": lambda: by_mdanalysis(made, folder / "out.h5md"),
    }
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(REPEATS + 1):
        for name, run in cases.items():
            shutil.rmtree(folder / "out.zarr", ignore_errors=True)
            (folder / "copy").unlink(missing_ok=True)
            begun = time.process_time()
            run()
            seconds[name].append(time.process_time() - begun)
    took = {name: statistics.median(all_[1:]) for name, all_ in seconds.items()}  # one warms up
    cases["mdio"]()
    got, expected = mdio.open(folder / "out.zarr"), H5MDReader(str(made))
    for frame in (0, n_frames - 1):
        assert np.array_equal(got.read(frame, frame + 1).positions[0], expected[frame].positions)
    for name, all_ in seconds.items():
        print(
            f"{name:<14}{took[name]:.3f} s CPU ({min(all_[1:]):.3f} to {max(all_[1:]):.3f}), "
            f"in MDAnalysis' {took['MDAnalysis'] / took[name]:.1f} times"
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:4]))
