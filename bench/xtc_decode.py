"""How long a frame of XTC takes to decode: mdio's codec beside MDAnalysis' bare libmdaxdr.

Frames are read in blocks of about 2 MB, again and again into the same arrays, from files in the
page cache, and the readers take turns, so that what else the machine does hits both. Medians::

    python bench/xtc_decode.py                # ADK (protein), and ADK in water
    python bench/xtc_decode.py FILE.xtc ...   # other files
    python bench/xtc_decode.py --json         # one JSON object a line instead of the table
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from adk import tiled
from measuring import in_turn, provenance, summary

from mdio.core.xtc import scan
from mdio.layouts.native.file import PositionalFile
from mdio.layouts.native.xtc import read_frames

BLOCK_NBYTES = 2 << 20
TILES = 10


def example_files(folder: Path) -> list[Path]:
    """Return ADK's 98 frames of 3,341 atoms ten times over, and ADK in water (47,681 atoms)."""
    from MDAnalysisTests.datafiles import XTC

    return [tiled(folder, TILES), Path(XTC)]


def readers(path: Path) -> tuple[dict[str, Callable[[], None]], int, int]:
    """Return what is to be timed, each over the whole file; the frames and atoms of it."""
    from MDAnalysis.lib.formats.libmdaxdr import XTCFile

    index = scan(path)
    n_atoms, n_frames = index.n_atoms, index.n_frames
    n_block = max(1, min(n_frames, BLOCK_NBYTES // (12 * n_atoms)))
    positions = np.empty((n_block, n_atoms, 3), np.float32)
    vectors = np.empty((n_block, 3, 3), np.float32)
    times, steps = np.empty(n_block), np.empty(n_block, np.int64)
    file = PositionalFile(path)
    theirs = XTCFile(str(path))

    def ours(atoms: np.ndarray | None, n_threads: int = 1) -> Callable[[], None]:
        n_wanted = n_atoms if atoms is None else len(atoms)
        out = np.ascontiguousarray(positions[:, :n_wanted])

        def read() -> None:
            for start in range(0, n_frames, n_block):
                stop = min(start + n_block, n_frames)
                n = stop - start
                columns = vectors[:n], times[:n], steps[:n]
                read_frames(file, index, start, stop, out[:n], *columns, atoms, n_threads)

        return read

    def libmdaxdr() -> None:
        theirs.seek(0)
        for i in range(n_frames):
            theirs.read_direct_x(positions[i % n_block])

    return (
        {
            "libmdaxdr": libmdaxdr,
            "mdio": ours(None),
            "mdio, first 10% of atoms": ours(np.arange(n_atoms // 10)),
            "mdio, headers only": ours(np.empty(0, np.int64)),
            "mdio, 2 threads": ours(None, 2),
        },
        n_frames,
        n_atoms,
    )


def measure(path: Path, repeats: int) -> list[dict[str, Any]]:
    """Return one record a reader."""
    cases, n_frames, n_atoms = readers(path)
    in_turn(cases, 1)  # first calls pay for caches and pages
    per_frame = {
        name: summary(seconds, per=n_frames / 1e6)
        for name, seconds in in_turn(cases, repeats).items()
    }
    return [
        {
            "bench": "xtc_decode",
            "file": path.name,
            "n_frames": n_frames,
            "n_atoms": n_atoms,
            "who": name,
            "repeats": repeats,
            "us_per_frame": us,
            "ns_per_atom": 1e3 * us["median"] / n_atoms,
            "times_libmdaxdr": per_frame["libmdaxdr"]["median"] / us["median"],
        }
        for name, us in per_frame.items()
    ]


def main() -> None:
    """Measure, and print what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="*", type=Path, help="XTC files")
    parser.add_argument("--repeats", type=int, default=9, help="turns of each reader (9)")
    parser.add_argument("--json", action="store_true", help="JSON lines instead of a table")
    options = parser.parse_args()
    where = provenance()
    with tempfile.TemporaryDirectory() as folder:
        for path in options.files or example_files(Path(folder)):
            records = measure(path, options.repeats)
            if options.json:
                for record in records:
                    print(json.dumps({**record, "provenance": where}))
                continue
            print(f"{path.name}: {records[0]['n_frames']} frames, {records[0]['n_atoms']} atoms")
            print(f"  {'':26}{'min us/frame':>14}{'median':>10}{'ns/atom':>9}{'against':>9}")
            for r in records:
                us = r["us_per_frame"]
                print(
                    f"  {r['who']:26}{us['min']:14.2f}{us['median']:10.2f}"
                    f"{r['ns_per_atom']:9.2f}{r['times_libmdaxdr']:8.2f}x"
                )


if __name__ == "__main__":
    main()
