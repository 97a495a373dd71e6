"""The papers' figures on the miniature cluster, beside what was published from SDSC Comet.

    python bench/cluster/papers.py --ranks 1,2,4,8,16 --repeats 3        # 25 minutes

The task of Khoshlessan et al.: RMSD of C-alphas by contiguous blocks, one a rank, all caches empty.
MDAnalysis alone does it frame by frame (`by_frames.py`); mdio reads the same XTC, segments, HDF5
and Zarr, and gathers in two ways. Writes papers.jsonl, papers.csv, papers.html (components, each
rank's time, communication) and papers.png (speed-up and efficiency, published and measured).
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster import FOLDER, cold
from machines import Cluster, ClusterError
from runs import MDIO, ROOT, run
from study import N_TILES, prepare

from mdio.analysis.scaling import append_jsonl, save_scaling_page, summarise, write_csv

SELECT = "name CA"
PYTHON = MDIO.with_name("python")
PUBLISHED = ROOT / "bench" / "paper" / "published" / "comet_rmsd.csv"
NAMES = {
    ("xtc-shared", "gather"): "one XTC",
    ("segments", "gather"): "segments",
    ("segments", "global-array"): "segments, global array",
    ("hdf5", "gather"): "parallel HDF5",
}
"""Of the published rows, those with pictures here."""

LINES = {"t_total_max_s": "slowest rank, s", "speedup": "speed-up", "efficiency": "efficiency"}


@dataclass(frozen=True)
class Series:
    """One curve."""

    name: str
    layout: str
    stripes: str = "default"
    gather: str = "blocking"
    """Empty: MDAnalysis alone."""


SERIES = (
    Series("MDAnalysis, XTC on one server", "xtc", "one", gather=""),
    Series("MDAnalysis, XTC", "xtc", gather=""),
    Series("mdio, XTC on one server", "xtc", "one"),
    Series("mdio, XTC", "xtc"),
    Series("mdio, segments", "segments"),
    Series("mdio, segments, one-sided", "segments", gather="one-sided"),
    Series("mdio, h5md of C-alphas", "h5md C-alpha"),
    Series("mdio, h5md of C-alphas, one-sided", "h5md C-alpha", gather="one-sided"),
    Series("mdio, zarr", "zarr"),
)


def run_once(
    cluster: Cluster, series: Series, n_ranks: int, path: Path, top: Path
) -> dict[str, Any]:
    """Empty all caches, run one case, and return its record of timings."""
    cold(cluster)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "timings.json"
        if series.gather:
            program = [str(MDIO), "analyze", "rmsd", str(path), "--quiet", "--select", SELECT]
            program += ["--executor", "mpi", "--gather", series.gather]
            program += [] if series.layout.endswith("C-alpha") else ["-s", str(top)]
        else:
            script = Path(__file__).with_name("by_frames.py")
            program = [str(PYTHON), str(script), str(top), str(path), SELECT]
        run(cluster, n_ranks, ["--timings", str(out)], program)
        found: dict[str, Any] = json.loads(out.read_text())
    return found


def published() -> dict[str, list[dict[str, Any]]]:
    """Return the published rows as `summarise` gives ours, by series."""
    with PUBLISHED.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["workload_x"] == "1"]
    found: dict[str, list[dict[str, Any]]] = {}
    for key, name in NAMES.items():
        mine = [row for row in rows if (row["layout"], row["gather"]) == key]
        mine.sort(key=lambda row: int(row["n_ranks"]))
        first_s = float(mine[0]["t_total_max_s"])
        for row in mine:
            n_ranks = int(row["n_ranks"])
            seconds = float(row["t_total_max_s"])
            speedup = first_s / seconds
            told = {"n_ranks": n_ranks, "speedup": speedup, "efficiency": speedup / n_ranks}
            found.setdefault(name, []).append(told | {"t_total_max_s": seconds})
    return found


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw time, speed-up and efficiency: Comet's on the left, this cluster's on the right."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    ours = {name: list(same) for name, same in itertools.groupby(rows, lambda row: row["series"])}
    figure, axes = plt.subplots(3, 2, figsize=(10, 10), sharex="col", layout="constrained")
    columns = (("SDSC Comet (published)", published()), ("miniature cluster", ours))
    for column, (title, curves) in enumerate(columns):
        counts = sorted({row["n_ranks"] for curve in curves.values() for row in curve})
        for key, axis in zip(LINES, axes[:, column], strict=True):
            for name, curve in curves.items():
                place, height = [row["n_ranks"] for row in curve], [row[key] for row in curve]
                alone, one_sided = name.startswith("MDAnalysis"), name.endswith("one-sided")
                style = "s--" if alone else "^:" if one_sided else "o-"
                axis.plot(place, height, style, ms=4, label=name)
            ideal = {"speedup": counts, "efficiency": [1] * len(counts)}.get(key)
            if ideal is not None:
                axis.plot(counts, ideal, color="grey", lw=0.8)
            axis.set_xscale("log", base=2)
            axis.set_ylabel(LINES[key])
            if key == "efficiency":
                axis.set_ylim(bottom=0)
            else:
                axis.set_yscale("log")
                axis.yaxis.set_major_formatter("{x:g}")
                axis.yaxis.set_minor_formatter(lambda x, _: f"{x:g}" if f"{x:e}"[0] in "25" else "")
        axes[0, column].set_title(title)
        axes[2 * column, column].legend(fontsize="x-small", loc="upper right")
        ticks = counts if column else [1, 8, 24, 72, 192, 384]
        axes[-1, column].set_xticks(ticks, map(str, ticks))
        axes[-1, column].xaxis.set_minor_locator(mpl.ticker.NullLocator())
        axes[-1, column].set_xlabel("ranks")
    figure.savefig(path, dpi=100)
    plt.close(figure)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows in Markdown."""
    lines = [
        "| series | ranks | t_total, s | t_IO, s | t_comp, s | t_comm, s | speed-up | stragglers |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        times = " | ".join(
            f"{row[key]:.2f}"
            for key in ("t_total_max_s", "t_io_mean_s", "t_comp_mean_s", "t_comm_mean_s", "speedup")
        )
        line = f"| {row['series']} | {row['n_ranks']} | {times} | {row['stragglers']:.1f} |"
        lines.append(line)
    return "\n".join(lines)


def main() -> int:
    """Run all cases in turn, as often as asked for, and write what they took."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--ranks", default="1,2,4,8,16")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tiles", type=int, default=N_TILES, help="of 98 frames each")
    parser.add_argument("-o", "--out", type=Path, default=ROOT / "bench-output")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    cluster = Cluster.load(FOLDER)
    wanted = list(dict.fromkeys((one.layout, one.stripes) for one in SERIES))
    paths, top = prepare(cluster, wanted, args.tiles)
    for xtc in (path for (layout, _), path in paths.items() if layout == "xtc"):
        opened = "import MDAnalysis, sys; MDAnalysis.Universe(*sys.argv[1:])"  # keeps its offsets
        cluster.nodes[0].run(str(PYTHON), "-c", opened, str(top), str(xtc))
    counts, runs = [int(word) for word in args.ranks.split(",")], []
    for repeat, series, n_ranks in itertools.product(range(args.repeats), SERIES, counts):
        path = paths[series.layout, series.stripes]
        found = run_once(cluster, series, n_ranks, path, top)
        print(f"{series.name}, {n_ranks} ranks: {found['t_total_s']:.2f} s", flush=True)
        case = {"series": series.name, "trajectory": path.name, "layout": series.layout}
        case |= {"executor": "mpi", "gather": series.gather or "blocking", "workload_x": 1}
        case |= {"bench": "papers", "kernel": "rmsd", "n_ranks": n_ranks, "repeat": repeat}
        runs.append(case | {"run": found})
        append_jsonl(args.out / "papers.jsonl", runs[-1:])
    rows = summarise(runs)
    write_csv(args.out / "papers.csv", rows)
    save_scaling_page(args.out / "papers.html", "RMSD of C-alphas on storage", rows, runs)
    draw(rows, args.out / "papers.png")
    print(table(rows))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ClusterError as error:
        print(f"papers: {error}", file=sys.stderr)
        sys.exit(1)
