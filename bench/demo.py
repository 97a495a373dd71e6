"""The main job on real data: convert, read back, analyse; each result held against MDAnalysis.

Run it with ``make demo``. It tiles the adenylate kinase trajectory of MDAnalysisTests, converts it
from XTC, DCD and NetCDF into the three layouts, iterates each through MDAnalysis, computes the
C-alpha RMSD with mdio, and compares that with MDAnalysis' own RMSD of the source.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import sys
import time
import warnings
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import adk

import mdio

SELECT = "name CA"
LAYOUTS = {
    "segments": {"storage": mdio.Storage(segments=8)},
    "h5md": {"groups": {"ca": SELECT}},
    "zarr": {"groups": {"ca": SELECT}},
    "zarr --precision 0.01": {"groups": {"ca": SELECT}, "precision": 0.01},
}


def folder_nbytes(path: Path) -> int:
    """Return the bytes of a file or of all files under a folder."""
    files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    return sum(p.stat().st_size for p in files)


def iterate(top: Path, path: Path) -> float:
    """Return microseconds a frame to iterate a Universe over `path`."""
    import MDAnalysis as mda

    universe = mda.Universe(str(top), str(path))
    begun = time.perf_counter()
    for _ in universe.trajectory:
        pass
    return 1e6 * (time.perf_counter() - begun) / len(universe.trajectory)


def reference_rmsd(top: Path, path: Path) -> tuple[np.ndarray, float]:
    """Return MDAnalysis' C-alpha RMSD of `path`, and its microseconds a frame."""
    import MDAnalysis as mda
    from MDAnalysis.analysis import rms

    universe = mda.Universe(str(top), str(path))
    begun = time.perf_counter()
    values = rms.RMSD(universe.select_atoms(SELECT)).run().results.rmsd[:, 2]
    return values, 1e6 * (time.perf_counter() - begun) / len(values)


def row_of(source: Path, name: str, options: dict, top: Path, folder: Path, workers: int) -> dict:
    """Convert, read back and analyse one combination."""
    layout = name.split()[0]
    out = folder / f"{source.stem}_{source.suffix[1:]}_{name.replace(' ', '')}.{layout}"
    result = mdio.convert(source, out, top=top, workers=workers, force=True, **options)
    kernel = mdio.RMSD(select=SELECT)
    analysis = mdio.analyze(out, top=top, kernel=kernel)
    return {
        "source": source.suffix[1:],
        "layout": name,
        "mbytes": folder_nbytes(out) / 1e6,
        "convert_us": 1e6 * result.seconds / result.n_frames,
        "iterate_us": iterate(top, out),
        "rmsd_us": 1e6 * analysis.seconds / result.n_frames,
        "values": np.asarray(analysis.values).ravel(),
    }


def print_table(rows: list[dict], references: dict[str, dict]) -> None:
    """Print what was measured, a line a combination."""
    head = ("source", "layout", "MB", "convert", "iterate", "RMSD", "largest RMSD difference")
    print(
        f"\n{head[0]:<7}{head[1]:<23}{head[2]:>8}{head[3]:>10}{head[4]:>10}{head[5]:>9}  {head[6]}"
    )
    for row in rows:
        print(
            f"{row['source']:<7}{row['layout']:<23}{row['mbytes']:>8.1f}{row['convert_us']:>10.1f}"
            f"{row['iterate_us']:>10.1f}{row['rmsd_us']:>9.1f}  {row['rmsd_diff']:.1e} angstrom"
        )
    for suffix, reference in references.items():
        print(
            f"{suffix:<7}{'as it is, MDAnalysis':<23}{reference['mbytes']:>8.1f}{'-':>10}"
            f"{reference['iterate_us']:>10.1f}{reference['rmsd_us']:>9.1f}  (reference)"
        )
    print(
        "convert (with flushing to disk), iterate and RMSD in microseconds a frame, each measured\n"
        "once, on this machine; reading the topology is left out on both sides"
    )


def save_plot(rows: list[dict], references: dict[str, dict], path: Path) -> None:
    """Draw time to read and to analyse beside MDAnalysis on the source, and the RMSD itself."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    chosen = [row for row in rows if row["source"] == "xtc"]
    labels = ["xtc, MDAnalysis", *(row["layout"] for row in chosen)]
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    place = np.arange(len(labels))
    for offset, key, label in (
        (-0.2, "iterate_us", "iterate all atoms"),
        (0.2, "rmsd_us", "RMSD of C-alpha"),
    ):
        values = [references["xtc"][key], *(row[key] for row in chosen)]
        bars = left.barh(place + offset, values, 0.38, label=label)
        left.bar_label(bars, fmt="%.1f", padding=3, fontsize=8)
    left.set_yticks(place, labels)
    left.invert_yaxis()
    left.set_xscale("log")
    left.margins(x=0.15)
    left.set_xlabel("microseconds a frame (one process)")
    left.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False)
    rmsd = references["xtc"]["values"]
    right.plot(rmsd[:98], color="black", lw=2.5, label="MDAnalysis on the XTC")
    right.plot(chosen[-2]["values"][:98], color="tab:orange", lw=1, label="mdio on the zarr")
    right.set_xlabel("frame (first tile)")
    right.set_ylabel("RMSD of C-alpha (angstrom)")
    right.legend()
    figure.suptitle(f"Adenylate kinase, 3,341 atoms, {len(rmsd):,} frames")
    figure.savefig(path, dpi=130)


def measured(row: dict) -> dict:
    """Return a row without its RMSD values."""
    return {key: value for key, value in row.items() if key != "values"}


def main() -> int:
    """Run the demo."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiles", type=int, default=40, help="copies of the 98 frames")
    parser.add_argument("--folder", type=Path, default=Path("demo-output"))
    parser.add_argument("-w", "--workers", type=int, default=2)
    args = parser.parse_args()
    import MDAnalysis  # noqa: F401 - it sets filters of its own when it is imported

    warnings.simplefilter("ignore")
    top = adk.topology()
    rows, references = [], {}
    for suffix in adk.SUFFIXES:
        source = adk.tiled(args.folder / "data", args.tiles, suffix)
        print(f"{source}: {source.stat().st_size / 1e6:.1f} MB", flush=True)
        reference, rmsd_us = reference_rmsd(top, source)
        references[suffix] = {
            "values": reference,
            "mbytes": source.stat().st_size / 1e6,
            "iterate_us": iterate(top, source),
            "rmsd_us": rmsd_us,
        }
        for name, options in LAYOUTS.items():
            row = row_of(source, name, options, top, args.folder, args.workers)
            row["rmsd_diff"] = float(np.abs(row["values"] - reference).max())
            rows.append(row)
    print_table(rows, references)
    save_plot(rows, references, args.folder / "demo.png")
    record = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "frames": len(reference),
        "rows": [measured(row) for row in rows],
        "references": {suffix: measured(one) for suffix, one in references.items()},
    }
    (args.folder / "demo.json").write_text(json.dumps(record, indent=1))
    print(f"plot: {args.folder / 'demo.png'}")
    shutil.copyfile(top, args.folder / "adk.psf")
    shutil.copyfile(adk.tiled(args.folder / "data", 1), args.folder / "adk.xtc")
    print(f"next: . .venv/bin/activate && cd {args.folder} && mdio info adk.xtc")
    lossy = {row["layout"] for row in rows if "precision" in row["layout"]}
    worst = max(row["rmsd_diff"] for row in rows if row["layout"] not in lossy)
    if worst > 1e-4:
        print(f"RMSD differs from MDAnalysis by {worst:g} angstrom", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
