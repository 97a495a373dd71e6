"""Pictures of what the study measured."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from runs import Row, grouped

WIDE = (7.2, 4.4)


def draw(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Draw times over ranks, and shares of the wires; return the files that were made.

    None where there is no matplotlib, or nothing to draw.
    """
    try:
        import matplotlib as mpl
    except ImportError:
        return []
    mpl.use("Agg")
    made = []
    for stripes in dict.fromkeys(row.stripes for row in rows):
        reads = [
            row
            for row in rows
            if row.stripes == stripes and row.cache == "cold" and "t_io_s" in row.said
        ]
        medians: dict[str, dict[int, tuple[float, float]]] = {}
        for same in grouped(reads):
            seconds = statistics.median(row.seconds for row in same)
            wires_s = statistics.median(row.wires_s for row in same)
            what = same[0].what.removesuffix(", all atoms")
            medians.setdefault(what, {})[same[0].ranks] = seconds, wires_s
        # What was run on one number of ranks only is for the table.
        medians = {what: found for what, found in medians.items() if len(found) > 1} or medians
        if medians:
            made.append(_times(medians, stripes, folder / f"cluster-times-{stripes}.png"))
            made.append(_shares(medians, stripes, folder / f"cluster-shares-{stripes}.png"))
    return made


def _times(medians: dict[str, dict[int, tuple[float, float]]], stripes: str, path: Path) -> Path:
    """Seconds over ranks, and as a dashed line of the same colour what the wires allow."""
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=WIDE, layout="constrained")
    for what, found in medians.items():
        ranks = sorted(found)
        (line,) = axes.plot(ranks, [found[n][0] for n in ranks], "o-", label=what)
        axes.plot(ranks, [found[n][1] for n in ranks], "--", color=line.get_color(), alpha=0.6)
    ticks = sorted({n for found in medians.values() for n in found})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, map(str, ticks))
    axes.set_ylim(bottom=0)
    axes.set_xlabel("ranks")
    axes.set_ylabel("seconds (dashed: the wires alone)")
    axes.set_title(f"RMSD of all atoms, cold; stripes: {stripes}")
    figure.legend(fontsize="small", loc="outside right upper")
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def _shares(medians: dict[str, dict[int, tuple[float, float]]], stripes: str, path: Path) -> Path:
    """Share of the time in which the busiest server's cable was needed, a bar a case."""
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=WIDE, layout="constrained")
    ticks = sorted({n for found in medians.values() for n in found})
    width = 0.8 / len(ticks)
    for at, ranks in enumerate(ticks):
        places = [k + at * width for k, found in enumerate(medians.values()) if ranks in found]
        heights = [100 * f[ranks][1] / f[ranks][0] for f in medians.values() if ranks in f]
        axes.bar(places, heights, width, label=f"{ranks} rank{'s' * (ranks > 1)}")
    axes.axhline(80, color="grey", linewidth=0.8, linestyle=":")
    axes.axhline(90, color="grey", linewidth=0.8, linestyle="--")
    middle = (len(ticks) - 1) * width / 2
    axes.set_xticks([k + middle for k in range(len(medians))], list(medians), fontsize="small")
    axes.set_ylim(0, 100)
    axes.set_ylabel("share of the wires, %")
    axes.set_title(f"RMSD of all atoms, cold; stripes: {stripes}")
    figure.legend(fontsize="small", loc="outside right upper")
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path
