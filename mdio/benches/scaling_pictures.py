"""The page of a scaling bench: the papers' figures from one's own runs."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any

import numpy as np

from mdio.analysis.pages import page
from mdio.analysis.pages.pictures import BLOCK_COLOURS, components, figure, svg_of

Rows = Sequence[dict[str, Any]]
LINES = {
    "t_total (slowest)": ("t_total_max_s", "t_total_std_s", "#000000"),
    "t_comp": ("t_comp_mean_s", "t_comp_std_s", "#E69F00"),
    "t_IO": ("t_io_mean_s", "t_io_std_s", "#0072B2"),
    "t_comm": ("t_comm_mean_s", "t_comm_std_s", "#009E73"),
    "t_opening": ("t_open_mean_s", "t_open_std_s", "#CC79A7"),
}
MARKERS = "osD^vP*X"
COLUMNS = (
    *(("workers", "n_ranks"), ("t_total, s", "t_total_max_s"), ("±", "t_total_std_s")),
    *(("t_comp, s", "t_comp_mean_s"), ("t_IO, s", "t_io_mean_s"), ("t_open, s", "t_open_mean_s")),
    *(("t_comm, s", "t_comm_mean_s"), ("t_comp/t_IO", "ratio_comp_io")),
    *(("speed-up", "speedup"), ("±", "speedup_std")),
    *(("efficiency", "efficiency"), ("±", "efficiency_std"), ("seconds", "seconds")),
)
"""Heads of the table, and where their numbers are."""


def save_scaling_page(
    path: str | PathLike[str], title: str, rows: Rows, runs: Sequence[dict[str, Any]]
) -> None:
    """Write tables and pictures of a scaling bench as one HTML file.

    `rows`: of `mdio.benches.scaling.summarise`. `runs`: all runs, with what each rank did.
    """
    heads, keys = zip(*COLUMNS, strict=True)
    by_series: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_series.setdefault(row["series"], []).append(row)
    parts = [
        page.section(
            "All series",
            page.picture(
                _curves(by_series, "speedup", "Speed-up t_total(1) / t_total(N)", True),
                "Bars: standard deviation over repeats.",
            ),
            page.picture(_curves(by_series, "efficiency", "Efficiency: speed-up / N", False)),
        )
    ]
    for name, series in by_series.items():
        mine = [run for run in runs if run["series"] == name]
        largest = series[-1]["n_ranks"]
        last = next(run for run in reversed(mine) if run["n_ranks"] == largest)
        parts.append(
            page.section(
                name,
                page.table(heads, [[row[key] for key in keys] for row in series]),
                page.picture(_components(name, series), "Means over ranks and repeats."),
                page.picture(
                    components(last["run"]["ranks"], f"Each of {largest} workers"),
                    "The last repeat.",
                ),
                page.picture(_communication(mine), "All ranks of all repeats."),
            )
        )
    page.save_page(path, title, parts)


def _axis_of_ranks(axes: Any, counts: Sequence[int]) -> None:
    from matplotlib.ticker import NullLocator

    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(set(counts)), [str(count) for count in sorted(set(counts))])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("workers")


def _components(name: str, series: Rows) -> str:
    counts = [row["n_ranks"] for row in series]
    with figure(3.2) as (made, axes):
        for (label, (key, std, colour)), marker in zip(LINES.items(), MARKERS, strict=False):
            values = np.array([row[key] for row in series])
            if values.any():
                errors = [row[std] for row in series]
                axes.errorbar(
                    counts, values, errors, fmt=f"{marker}-", color=colour, label=label, capsize=2
                )
        axes.set_yscale("log")
        axes.set(ylabel="seconds", title="Components over workers")
        _axis_of_ranks(axes, counts)
        made.legend(loc="outside lower center", ncols=3)
        return svg_of(made, f"Components of the time over workers: {name}")


def _curves(by_series: dict[str, list[dict[str, Any]]], key: str, title: str, ideal: bool) -> str:
    height = 2.6 + 0.17 * len(by_series)
    counts = [row["n_ranks"] for series in by_series.values() for row in series]
    with figure(height) as (made, axes):
        for number, (name, series) in enumerate(by_series.items()):
            axes.errorbar(
                [row["n_ranks"] for row in series],
                [row[key] for row in series],
                [row[f"{key}_std"] for row in series],
                fmt=f"{MARKERS[number % len(MARKERS)]}-",
                color=BLOCK_COLOURS[number % len(BLOCK_COLOURS)],
                label=name,
                capsize=2,
            )
        line = sorted(set(counts))
        axes.plot(line, line if ideal else [1] * len(line), "k:", linewidth=1, label="ideal")
        axes.set(ylabel=key, title=title)
        axes.set_ylim(bottom=0)
        _axis_of_ranks(axes, counts)
        made.legend(loc="outside lower center", fontsize=7)
        return svg_of(made, title)


def _communication(runs: Sequence[dict[str, Any]]) -> str:
    counts = sorted({run["n_ranks"] for run in runs})
    groups = [
        [rank["t_comm_s"] for run in runs if run["n_ranks"] == n for rank in run["run"]["ranks"]]
        for n in counts
    ]
    title = "t_comm of all ranks"
    with figure(2.4) as (made, axes):
        for place, values in enumerate(groups):
            if len(values) > 3 and np.ptp(values) > 0:
                body = axes.violinplot(values, [place], widths=0.8, showextrema=False)
                for part in body["bodies"]:
                    part.set(facecolor="#009E73", alpha=0.25)
            aside = place + 0.12 * np.sin(2.4 * np.arange(len(values)))
            axes.plot(aside, values, "o", color="#009E73", markersize=3.5, alpha=0.7)
        axes.set_xticks(range(len(counts)), [str(n) for n in counts])
        axes.set(xlabel="workers", ylabel="t_comm, seconds", title=title)
        axes.set_ylim(bottom=0)
        return svg_of(made, f"{title}: {runs[0]['series']}")
