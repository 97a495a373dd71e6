"""Pictures of a decision, as SVG: totals, parts, scaling, and where the analysis stands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mdio.advisor.decide.decision import Decision, Option
from mdio.advisor.decide.forecast import Forecast
from mdio.analysis.pages.pictures import figure, svg_of, time_axis
from mdio.core.words import plural

COLOURS = ("#000000", "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999999")
MARKERS = "osD^vPX*"
PARTS = {
    "start": ("t_startup_s", "#999999"),
    "open": ("t_open_s", "#CC79A7"),
    "I/O": ("t_io_s", "#0072B2"),
    "compute": ("t_comp_s", "#E69F00"),
    "loop": ("t_rest_s", "#56B4E9"),
    "imbalance": ("t_imbalance_s", "#DDDDDD"),
    "contention": ("t_contention_s", "#D55E00"),
    "gather": ("t_gather_s", "#009E73"),
}
"""The colours of the report of `mdio analyze`, and two more."""
RATIOS = (1.0, 10.0, 100.0)
"""Where an analysis stops being I/O-bound, becomes compute-bound, and so by the papers' rule."""


def _shown(decision: Decision) -> list[Option]:
    return [option for option in decision.options if option.total is not None]


def totals(decision: Decision) -> str:
    """Bars: converting and all passes of each option, with the band of their sum."""
    shown = _shown(decision)
    with figure(1.2 + 0.3 * len(shown)) as (made, axes):
        for place, option in enumerate(shown):
            total = option.total
            assert total is not None
            passes = total.total_s - total.convert_s
            first = place == 0
            axes.barh(place, total.convert_s, 0.7, color="#009E73", label="convert" * first)
            axes.barh(
                place,
                passes,
                0.7,
                left=total.convert_s,
                color="#0072B2",
                label=plural(decision.passes, "pass") * first,
            )
            error = [[total.total_s - total.low_s], [total.high_s - total.total_s]]
            axes.errorbar(total.total_s, place, xerr=error, color="black", capsize=3, fmt="none")
        _names(axes, shown)
        time_axis(axes.xaxis, "time")
        made.legend(loc="outside lower center", ncols=2)
        return svg_of(made, "Predicted total of each layout: converting and all passes")


def breakdown(decision: Decision) -> str:
    """Stacked bars: the parts of one pass with the ranks asked for."""
    shown = _shown(decision)
    runs = [option.total.run for option in shown if option.total is not None]
    with figure(1.4 + 0.3 * len(shown)) as (made, axes):
        left = [0.0] * len(runs)
        for name, (field, colour) in PARTS.items():
            widths = [float(getattr(run, field)) for run in runs]
            if max(widths) > 0.002 * max(run.t_total_s for run in runs):
                axes.barh(range(len(runs)), widths, 0.7, left=left, color=colour, label=name)
            left = [a + b for a, b in zip(left, widths, strict=True)]
        _names(axes, shown)
        time_axis(axes.xaxis, "time of the slowest rank")
        made.legend(loc="outside lower center", ncols=4)
        return svg_of(made, "Parts of one pass on each layout")


def _names(axes: Any, shown: list[Option]) -> None:
    axes.set_yticks(range(len(shown)), [option.name for option in shown])
    for label, option in zip(axes.get_yticklabels(), shown, strict=True):
        label.set_fontweight("bold" if option.is_chosen else "normal")
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.set_xlim(left=0)


def times(decision: Decision) -> str:
    """Lines: t_total of one pass against the ranks, with bands."""
    with figure(3.4) as (made, axes):
        for number, points in enumerate(decision.curves.values()):
            axes.fill_between(
                [point.n_ranks for point in points],
                [max(point.low_s, 1e-6) for point in points],
                [point.high_s for point in points],
                color=COLOURS[number % len(COLOURS)],
                alpha=0.12,
                linewidth=0,
            )
        _lines(axes, decision, lambda points: [point.t_total_s for point in points])
        axes.set(yscale="log")
        time_axis(axes.yaxis, "t_total")
        made.legend(loc="outside lower center", ncols=3)
        return svg_of(made, "Predicted t_total of one pass against ranks, for each layout")


def efficiencies(decision: Decision) -> str:
    """Lines: parallel efficiency against the ranks."""
    with figure(3.2) as (made, axes):
        _lines(axes, decision, _efficiency)
        axes.set(ylabel="efficiency")
        axes.set_ylim(bottom=0)
        made.legend(loc="outside lower center", ncols=3)
        return svg_of(made, "Predicted parallel efficiency against ranks, for each layout")


def _efficiency(points: tuple[Forecast, ...]) -> list[float]:
    alone = next((point for point in points if point.n_ranks == 1), points[0])
    work = alone.t_total_s * alone.n_ranks
    return [work / (point.n_ranks * max(point.t_total_s, 1e-12)) for point in points]


def _lines(
    axes: Any, decision: Decision, values: Callable[[tuple[Forecast, ...]], list[float]]
) -> None:
    """Draw what each option gives over the ranks."""
    for number, (name, points) in enumerate(decision.curves.items()):
        axes.plot(
            [point.n_ranks for point in points],
            values(points),
            color=COLOURS[number % len(COLOURS)],
            marker=MARKERS[number % len(MARKERS)],
            markersize=4,
            linewidth=2.0 if name == decision.recommended.name else 1.0,
            label=name,
        )
    axes.axvline(decision.ranks_asked, color="black", linewidth=0.8, linestyle=":")
    counts = [point.n_ranks for point in next(iter(decision.curves.values()))]
    axes.set_xscale("log", base=2)
    every = max(1, -(-len(counts) // 8))
    ticks = counts[::-1][::every][::-1]
    axes.set_xticks(ticks, [f"{count:,}" for count in ticks])
    axes.minorticks_off()
    axes.set_xlabel("ranks (dotted: asked for)")


def ratio_line(decision: Decision) -> str:
    """Scale from I/O-bound to compute-bound, and where this analysis stands on it."""
    ratio = 1e4 if decision.ratio is None else min(max(decision.ratio, 1e-3), 1e4)
    with figure(1.5) as (made, axes):
        edges = (1e-3, *RATIOS, 1e4)
        colours = ("#0072B2", "#56B4E9", "#F0C15A", "#E69F00")
        words = ("I/O-bound", "balanced", "compute", "just run")
        for left, right, colour, word in zip(edges[:-1], edges[1:], colours, words, strict=True):
            axes.axvspan(left, right, color=colour, alpha=0.35, linewidth=0)
            axes.text((left * right) ** 0.5, 0.12, word, ha="center", fontsize=7)
        axes.plot([ratio], [0.55], "v", color="black", markersize=9)
        text = "no I/O" if decision.ratio is None else f"{decision.ratio:.2g}"
        axes.text(ratio, 0.72, text, ha="center", fontsize=9)
        axes.set(xscale="log", xlim=(1e-3, 1e4), ylim=(0, 1), yticks=[])
        axes.set_xlabel("t_comp / t_IO of one worker on the source as it is")
        return svg_of(made, "Where the analysis lies between I/O-bound and compute-bound")
