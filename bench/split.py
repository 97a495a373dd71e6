"""Splitting an XTC file beside ``cp`` of the same file and beside MDAnalysis' XTC writer.

``python bench/split.py`` prints medians of repeats that run in turn on a warm page cache, flushed
to disk, and appends them as JSON lines to bench-output/split.jsonl. What each run has written is
removed before the next one, outside the clock, so that all find the same free memory and a quiet
disk. The goal: at least half the speed of ``cp``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import adk
from measuring import append_jsonl, summary

from mdio.converters.convert import split

Cases = dict[str, Callable[[], None]]


def flush(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def run_mdio(source: Path, out: Path, n_segments: int, workers: int) -> None:
    split(source, out / "a.segments", n_segments, workers=workers)


def run_cp(source: Path, out: Path) -> None:
    subprocess.run(["cp", str(source), str(out / "copy.xtc")], check=True)
    flush(out / "copy.xtc")


def run_mdanalysis(source: Path, out: Path, n_segments: int) -> None:
    """Write the segments frame by frame: decode, encode."""
    import MDAnalysis as mda

    universe = mda.Universe(str(adk.topology()), str(source))
    n_frames = len(universe.trajectory)
    for number in range(n_segments):
        edges = [n_frames * n // n_segments for n in (number, number + 1)]
        path = out / f"{number}.xtc"
        with mda.Writer(str(path), len(universe.atoms)) as writer:
            for _ in universe.trajectory[edges[0] : edges[1]]:
                writer.write(universe.atoms)
        flush(path)


def in_turn(cases: Cases, out: Path, repeats: int) -> dict[str, list[float]]:
    """Return the seconds of each case, run in turn, each in an empty folder."""
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for repeat in range(-1, repeats):  # the first round warms up
        for name, case in cases.items():
            shutil.rmtree(out, ignore_errors=True)
            out.mkdir()
            os.sync()  # or the next one would pay for what was removed
            begun = time.perf_counter()
            case()
            if repeat >= 0:
                seconds[name].append(time.perf_counter() - begun)
    shutil.rmtree(out)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiles", type=int, default=50, help="times 98 frames")
    parser.add_argument("--segments", type=int, default=16)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path("bench-output"))
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    source = adk.tiled(args.folder, args.tiles)
    flush(source)
    out = args.folder / "split-out"
    ours = partial(run_mdio, source, out, args.segments, args.workers)
    cases = {
        "mdio split": ours,
        "cp": partial(run_cp, source, out),
        "MDAnalysis XTCWriter": partial(run_mdanalysis, source, out, args.segments),
    }
    seconds = in_turn(cases, out, args.repeats)
    nbytes = source.stat().st_size
    print(f"{98 * args.tiles} frames, {nbytes / 1e6:.1f} MB, {args.segments} segments")
    records = []
    ours_median = summary(seconds["mdio split"])["median"]
    for name, runs in seconds.items():
        row = summary(runs)
        ratio = row["median"] / ours_median
        print(
            f"{name:24} {row['median']:8.3f} s (from {row['min']:.3f} to {row['max']:.3f})  "
            f"{nbytes / row['median'] / 1e6:7.0f} MB/s  {ratio:6.2f} x the time of mdio split"
        )
        records.append(
            {
                "bench": "split",
                "case": name,
                "seconds": row,
                "nbytes": nbytes,
                "n_frames": 98 * args.tiles,
                "n_segments": args.segments,
                "workers": args.workers,
                "ratio_to_mdio": ratio,
            }
        )
    append_jsonl(args.folder / "split.jsonl", records)


if __name__ == "__main__":
    main()
