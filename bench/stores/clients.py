"""What a client of a store does, one case at a time, told through standard input.

``clients.py KIND FOLDER``: names of cases come as lines; once a case is ready to begin it says so,
and begins with the next line; what it prints then is the seconds that it took. `FOLDER` has what
the bucket has. `KIND` is mdio (with obstore) or zarrtraj, which has an environment of its own.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mdio.layouts.base import Layout

PARTS = 16
RANGE_NBYTES = 4 << 20
BLOCK_FRAMES = 40
N_ATOMS, FRAMES = 3341, 1000
"""That a Universe is iterated over."""
numbers = count(os.getpid() * 1000)
Ready = Callable[[], Callable[[], object]]
"""Gets a case ready, and returns what is timed."""


def mdio_cases(folder: Path) -> dict[str, Ready]:
    from obstore import get_ranges, put
    from obstore.store import from_url

    import mdio
    from mdio.core.blocks import aligned_blocks

    store = from_url("s3://bucket", client_options={"allow_http": True})
    tree = folder / "md.zarr"
    shards = [p for p in tree.rglob("*") if p.is_file() and p.stat().st_size > RANGE_NBYTES // 4]
    raw = {"precision": "none", "compression": "none"}

    def ranges(path: Path) -> None:
        nbytes = path.stat().st_size
        starts = list(range(0, nbytes, RANGE_NBYTES))
        ends = [min(start + RANGE_NBYTES, nbytes) for start in starts]
        get_ranges(store, str(path.relative_to(folder)), starts=starts, ends=ends)

    def got() -> None:
        with ThreadPoolExecutor(PARTS) as pool:
            list(pool.map(ranges, shards))

    def sent() -> None:
        number = next(numbers)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda p: put(store, f"put{number}/{p.name}", p), shards))

    def read(layout: Layout) -> None:
        with layout:
            blocks = aligned_blocks(layout.boundaries(), range(layout.info.n_frames), BLOCK_FRAMES)
            layout.prefetch([(block.start, block.stop) for block in blocks])
            buffer = layout.read(0, len(blocks[0]))
            for block in blocks:  # into the same memory, as an analysis does
                out = buffer if len(block) == buffer.n_frames else None
                layout.read(block.start, block.stop, out=out)

    def opened(name: str) -> Layout:
        layout = mdio.open(f"s3://bucket/{name}")
        _ = layout.info
        return layout

    def reading() -> Callable[[], None]:
        layout = opened("md.zarr")
        return lambda: read(layout)

    def frame() -> Callable[[], object]:
        xtc, at = opened("md.xtc"), 7919 * next(numbers)
        return lambda: xtc.read(at % xtc.info.n_frames, at % xtc.info.n_frames + 1)

    def rmsd() -> object:
        import adk

        kernel = mdio.RMSD("name CA")
        return mdio.analyze("s3://bucket/md.xtc", kernel=kernel, top=str(adk.topology()))

    def iterate() -> None:
        iterated("s3://bucket/md.zarr", format="MDIO")

    return {
        "zarr, opened": lambda: lambda: opened("md.zarr").close(),
        "zarr, read": reading,
        "zarr, opened and read": lambda: lambda: read(opened("md.zarr")),
        "zarr, obstore.get_ranges": lambda: got,
        "zarr, converted into the store": lambda: (
            lambda: mdio.convert(folder / "md.xtc", f"s3://bucket/out{next(numbers)}.zarr", **raw)
        ),
        "zarr, obstore.put": lambda: sent,
        "xtc, one frame": frame,
        "xtc, RMSD of C-alpha": lambda: rmsd,
        "Universe over zarr": lambda: iterate,
    }


def iterated(url: str, **options: str) -> None:
    """Iterate a Universe over the first `FRAMES` frames."""
    import MDAnalysis as mda

    universe = mda.Universe.empty(N_ATOMS)
    universe.load_new(url, **options)
    for _ in universe.trajectory[:FRAMES]:
        pass


def zarrtraj_cases(_: Path) -> dict[str, Ready]:
    import zarrtraj  # noqa: F401  registers its readers

    return {"Universe over zarrtraj's own": lambda: lambda: iterated("s3://bucket/zarrtraj.zarrmd")}


def write_for_zarrtraj(folder: Path) -> None:
    """Write the first `FRAMES` frames as zarrtraj does by itself."""
    import MDAnalysis as mda
    import zarrtraj  # noqa: F401

    universe = mda.Universe.empty(N_ATOMS)
    universe.load_new(str(folder / "md.xtc"))
    out, n_frames = str(folder / "zarrtraj.zarrmd"), min(FRAMES, universe.trajectory.n_frames)
    with mda.Writer(out, N_ATOMS, n_frames=n_frames, format="ZARRMD") as writer:
        for _ in universe.trajectory[:n_frames]:
            writer.write(universe.atoms)


def main() -> int:
    warnings.simplefilter("ignore")
    sys.path.insert(0, str(Path(__file__).parents[1]))
    kind, folder = sys.argv[1], Path(sys.argv[2])
    if kind == "write":
        write_for_zarrtraj(folder)
        return 0
    cases = {"mdio": mdio_cases, "zarrtraj": zarrtraj_cases}[kind](folder)
    for line in sys.stdin:
        if kind == "mdio":
            from mdio.core.files.remote import objects

            objects._answers.clear()  # of the case before
        case = cases[line.strip()]()
        print("ready", flush=True)
        sys.stdin.readline()
        begun = time.perf_counter()
        case()
        print(time.perf_counter() - begun, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
