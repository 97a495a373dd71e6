"""The main job beside its peers: convert, split, iterate, RMSD, size, memory.

``python bench/main_job.py`` prints the table that is in the README (medians of repeats that run in
turn, on a warm page cache) and appends it as JSON lines to bench-output/main_job.jsonl.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import adk
from measuring import append_jsonl, in_turn, summary

import mdio

SELECT = "name CA"


class Iteration:
    """A Universe opened once; each call goes through all its frames."""

    def __init__(self, top: Path, path: Path, **kwargs: Any) -> None:
        import MDAnalysis as mda

        self.universe = mda.Universe(str(top), str(path), **kwargs)

    def __call__(self) -> None:
        """Go through all frames, as an analysis would."""
        for _ in self.universe.trajectory:
            pass


def fresh(path: Path) -> Path:
    """Return `path` with nothing there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    return path


def write_with_mdanalysis(top: Path, source: Path, out: Path) -> None:
    """Copy frame by frame through an MDAnalysis writer."""
    import MDAnalysis as mda

    universe = mda.Universe(str(top), str(source))
    with mda.Writer(str(fresh(out)), len(universe.atoms)) as writer:
        for _ in universe.trajectory:
            writer.write(universe.atoms)


def copy_file(source: Path, out: Path) -> None:
    """``cp``, flushed to disk."""
    subprocess.run(["cp", str(source), str(fresh(out))], check=True)
    with out.open("rb") as file:
        os.fsync(file.fileno())


class PeerRMSD:
    """C-alpha RMSD as MDAnalysis computes it, over a Universe opened once."""

    def __init__(self, top: Path, source: Path) -> None:
        import MDAnalysis as mda

        self.universe = mda.Universe(str(top), str(source))

    def __call__(self) -> None:
        """Run the analysis."""
        from MDAnalysis.analysis import rms

        rms.RMSD(self.universe.select_atoms(SELECT)).run()


def peak_memory_mib(n_atoms: int, n_frames: int, folder: Path, to: str) -> float:
    """Return the largest resident memory of one converting process, with a made-up system."""
    source = folder / f"random_{n_atoms}_{n_frames}.dcd"
    if not source.exists():
        import numpy as np
        from MDAnalysis.lib.formats.libdcd import DCDFile

        rng = np.random.default_rng(0)
        with DCDFile(str(source), "w") as file:
            file.write_header("", n_atoms, 0, 1, 1.0, 1)
            for _ in range(n_frames):
                file.write(rng.random((n_atoms, 3), dtype="f4") * 100, [100, 90, 100, 90, 90, 100])
    code = (
        "import sys, mdio; mdio.convert(sys.argv[1], sys.argv[2], force=True);"
        # Not getrusage: its peak begins with that of the process that started this one.
        "print(*[l.split()[1] for l in open('/proc/self/status') if l.startswith('VmHWM')])"
    )
    out = folder / f"memory.{to}"
    done = subprocess.run(
        [sys.executable, "-c", code, str(source), str(out)],
        check=True,
        capture_output=True,
        text=True,
    )
    fresh(out)
    return int(done.stdout) / 1024


def measure(folder: Path, n_tiles: int, repeats: int) -> list[dict[str, Any]]:
    """Run every case and return a record for each."""
    top = adk.topology()
    xtc = adk.tiled(folder, n_tiles)
    n_frames = 98 * n_tiles
    outs = {name: folder / f"out.{name}" for name in ("h5md", "zarr", "segments", "p.zarr")}
    ca = {"top": top, "groups": {"ca": SELECT}}

    def to(name: str, workers: int, **options: Any) -> None:
        mdio.convert(xtc, outs[name], workers=workers, force=True, **options)

    records = []

    def run(title: str, cases: dict[str, Any]) -> None:
        print(title, flush=True)
        for name, seconds in in_turn(cases, repeats).items():
            row = {"bench": title, "case": name, "us_per_frame": summary(seconds, 1e-6 * n_frames)}
            records.append(row)
            print(f"  {name:<44}{row['us_per_frame']['median']:>9.2f} us/frame", flush=True)

    run(
        "convert XTC",
        {
            "MDAnalysis to H5MD": lambda: write_with_mdanalysis(top, xtc, folder / "mda.h5md"),
            "mdio to h5md, 1 worker": lambda: to("h5md", 1),
            "mdio to h5md, 2 workers": lambda: to("h5md", 2),
            "mdio to zarr, 1 worker": lambda: to("zarr", 1, precision="none"),
            "mdio to zarr, 2 workers": lambda: to("zarr", 2, precision="none"),
            "mdio to segments --container dcd, 1 worker": lambda: to(
                "segments", 1, storage=mdio.Storage(container="dcd", segments=8)
            ),
        },
    )
    run(
        "split XTC in 8",
        {
            "MDAnalysis XTC writer": lambda: write_with_mdanalysis(top, xtc, folder / "mda.xtc"),
            "cp and fsync": lambda: copy_file(xtc, folder / "copy.xtc"),
            "mdio split": lambda: mdio.split(xtc, folder / "split.segments", 8, force=True),
        },
    )
    run(
        "iterate a Universe",
        {
            "MDAnalysis on the XTC": Iteration(top, xtc),
            "MDAnalysis H5MDReader on our h5md": Iteration(top, outs["h5md"], format="H5MD"),
            "mdio on h5md": Iteration(top, outs["h5md"]),
            "mdio on zarr": Iteration(top, outs["zarr"]),
            "mdio on segments of dcd": Iteration(top, outs["segments"]),
            "mdio on the XTC itself": Iteration(top, xtc, format="MDIO"),
        },
    )
    to("h5md", 2, **ca)
    to("zarr", 2, precision="none", **ca)
    to("p.zarr", 2, precision=0.01)
    run(
        "RMSD of C-alpha, end to end",
        {
            "MDAnalysis rms.RMSD on the XTC": PeerRMSD(top, xtc),
            "mdio from the ca group of h5md": lambda: mdio.analyze(
                outs["h5md"], group="ca", kernel=mdio.RMSD()
            ),
            "mdio from the ca group of zarr": lambda: mdio.analyze(
                outs["zarr"], group="ca", kernel=mdio.RMSD()
            ),
            "mdio on the XTC itself, with its topology": lambda: mdio.analyze(
                xtc, top=top, kernel=mdio.RMSD(select=SELECT)
            ),
        },
    )
    run(
        "--precision 0.01",
        {
            "MDAnalysis on the XTC": Iteration(top, xtc),
            "mdio on zarr --precision 0.01": Iteration(top, outs["p.zarr"]),
        },
    )
    atoms = 3341 * n_frames
    for name, path in (("XTC", xtc), ("zarr --precision 0.01", outs["p.zarr"])):
        files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
        size = sum(p.stat().st_size for p in files) / atoms
        records.append({"bench": "size", "case": name, "bytes_per_atom_frame": size})
        print(f"  {name:<44}{size:>9.2f} bytes/atom/frame", flush=True)
    print("peak memory of a conversion of 100,000 atoms, one process")
    for kind in ("h5md", "zarr", "segments"):
        for frames in (100, 400):
            mib = peak_memory_mib(100_000, frames, folder, kind)
            records.append({"bench": "peak memory", "case": f"{kind}, {frames} frames", "mib": mib})
            print(f"  {kind + f', {frames} frames':<44}{mib:>9.0f} MiB", flush=True)
    return records


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiles", type=int, default=50, help="copies of the 98 frames")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path("bench-output"))
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    records = measure(args.folder / "data", args.tiles, args.repeats)
    append_jsonl(args.folder / "main_job.jsonl", records)
    return 0


if __name__ == "__main__":
    sys.exit(main())
