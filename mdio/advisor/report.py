"""Reports of ``mdio advise``: as text, and as an HTML page with pictures."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from os import PathLike
from typing import Any

from mdio.advisor.forecast import Forecast
from mdio.advisor.measurements import Source
from mdio.advisor.recommend import Decision, Option
from mdio.analysis.report import check_report, figure, figure_svg, save_page, time_axis
from mdio.core.pages import commands, paragraph, picture, section, table
from mdio.core.words import aligned, duration, plural


def save_advice(decision: Decision, path: str | PathLike[str]) -> None:
    """Write the report as one HTML file that needs nothing else.

    Raises MissingExtraError, OutputError: no matplotlib, or the file cannot be written.
    """
    check_report(path)
    save_page(path, _capital(headline(decision)), _sections(decision))


def advice_html(decision: Decision) -> str:
    """Return the sections for a notebook; without pictures if matplotlib is missing."""
    if find_spec("matplotlib") is None:
        return "".join([_summary(decision), _options(decision), _commands(decision)])
    return "".join(_sections(decision))


def _sections(decision: Decision) -> list[str]:
    return [
        _summary(decision),
        _commands(decision),
        _options(decision),
        _scaling(decision),
        _measurements(decision),
    ]


def _summary(decision: Decision) -> str:
    best, source = decision.recommended, decision.measurements.source
    question = decision.measurements.question
    groups = "; ".join(f"{name}: {text}" for name, text in best.groups.items()) or "none"
    frames = plural(source.n_frames, "frame")
    rows = [
        ("recommended layout", best.name),
        ("analysis", question.analysis),
        ("atoms", question.select or "all"),
        ("frames per chunk", best.chunk_frames),
        ("stored groups", groups),
        ("ranks", best.ranks),
        ("useful ranks, at most", best.useful_ranks),
        ("blocks per worker", best.blocks_per_worker),
        ("gather", best.gather),
        ("t_comp / t_IO", decision.ratio),
        ("passes", decision.passes),
        ("machine", decision.machine),
        ("source", f"{source.layout}, {frames} of {plural(source.n_atoms, 'atom')}"),
    ]
    rule = decision.rule
    papers = f"Guidelines of Khoshlessan et al.: {rule.layout}, {rule.gather} gather ({rule.text})."
    if not rule.agrees:
        papers += f" The advice differs: {rule.why_not}."
    return section(
        "Advice",
        paragraph(_sentence(gain_sentence(decision))),
        table(("", ""), rows),
        paragraph(_sentence(break_even_sentence(decision))),
        paragraph(papers),
        *(paragraph(_sentence(reason)) for reason in decision.reasons),
    )


def _sentence(text: str) -> str:
    return f"{_capital(text)}."


def _capital(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


def _commands(decision: Decision) -> str:
    return section("What to run", commands(decision.commands))


def _options(decision: Decision) -> str:
    rows = []
    for option in decision.options:
        total = option.total
        times: tuple[float | None, ...] = (None,) * 5
        if total is not None:
            run = total.run.t_total_s
            times = (total.convert_s, run, total.total_s, total.low_s, total.high_s)
        name = f"→ {option.name}" if option.is_chosen else option.name
        density = decision.measurements.source.density(option.nbytes)
        shown = map(duration, times)
        rows.append((name, option.nbytes / 1e6, density, *shown, option.problem or ""))
    ranks = plural(decision.ranks, "rank")
    heads = ("layout", "MB", "bytes/atom", "convert", "one pass", "total", "from", "to", "")
    return section(
        f"{plural(decision.passes, 'pass')} with {ranks}",
        picture(totals(decision), "Time to convert once and run all passes, with its range."),
        picture(breakdown(decision), f"Where the time of one pass with {ranks} goes."),
        table(heads, rows),
    )


def _scaling(decision: Decision) -> str:
    parts = [picture(ratio_line(decision))]
    if max(len(points) for points in decision.curves.values()) > 1:
        parts += [
            picture(times(decision), "Time of one pass; the bands show its range."),
            picture(
                efficiencies(decision),
                "Parallel efficiency: t_total(1) / (N t_total(N)) on N ranks.",
            ),
        ]
    return section("Scaling", *parts)


def _measurements(decision: Decision) -> str:
    rows = [
        (
            trial.name,
            run.workers,
            run.cache,
            run.n_frames,
            1e6 * run.t_io_frame_s.median,
            1e6 * run.t_io_frame_s.low,
            1e6 * run.t_io_frame_s.high,
            1e6 * run.t_comp_frame_s.median,
            1e3 * run.t_open_s.median,
        )
        for trial in decision.measurements.trials
        for run in trial.runs
    ]
    heads = (
        "layout",
        "workers",
        "cache",
        "frames",
        "t_IO, µs/frame",
        "from",
        "to",
        "t_comp, µs/frame",
        "t_open, ms",
    )
    host = decision.measurements.host
    place = f"The source is on {host.source_file_system}, outputs go to {host.target_file_system}"
    place += f"; {plural(host.cores, 'core')}."
    if host.target_stripe:
        place += f" Stripes of the target: {host.target_stripe}."
    bands = [
        (bandwidth.readers, bandwidth.cache, bandwidth.nbytes_per_s / 1e6)
        for bandwidth in decision.measurements.bandwidths
    ]
    return section(
        "Measurements",
        paragraph(place),
        table(heads, rows),
        table(("readers", "cache", "MB/s together"), bands) if bands else "",
    )


BOUND = {"io": "I/O-bound", "compute": "compute-bound", "balanced": "balanced"}


def headline(decision: Decision) -> str:
    """Return the recommendation in one line."""
    best = decision.recommended
    ratio = "beyond measure" if decision.ratio is None else f"{decision.ratio:.2g}"
    action = "read the source as it is" if best.layout == "as-is" else f"use {best.name}"
    ranks = plural(best.ranks, "rank")
    if best.ranks < decision.ranks_asked:
        ranks += f" instead of {decision.ranks_asked:,}"
    return (
        f"{action}, with {ranks}: t_comp/t_IO is {ratio} "
        f"({BOUND[decision.bound]}), {plural(decision.passes, 'pass')}"
    )


def gain_sentence(decision: Decision) -> str:
    """Return the gain of the recommendation, as a sentence with its figures."""
    passes = plural(decision.passes, "pass")
    totals = {
        option.name: option.total
        for option in decision.options
        if option.total is not None and option.problem is None
    }
    advised, source = totals[decision.recommended.name], totals["as-is"]
    if advised is not source:
        verb = "copying" if decision.recommended.layout == "local-copy" else "converting"
        return (
            f"{verb} takes {duration(advised.convert_s)} once; a pass then takes "
            f"{duration(advised.run.t_total_s)} instead of {duration(source.run.t_total_s)}; "
            f"in all, {passes}: {duration(advised.total_s)} instead of {duration(source.total_s)}"
        )
    alternatives = {name: total for name, total in totals.items() if name != "as-is"}
    if not alternatives:
        return f"{passes}: {duration(source.total_s)}; nothing else was measured"
    name = min(alternatives, key=lambda name: alternatives[name].total_s)
    least = alternatives[name]
    return (
        f"{passes}: {duration(source.total_s)} without converting; with {name}, the next best, "
        f"{duration(least.total_s)}, including {duration(least.convert_s)} to convert"
    )


def break_even_sentence(decision: Decision) -> str:
    """Return when converting pays, as a sentence."""
    if not any(option.total for option in decision.options if option.name != "as-is"):
        return "whether converting pays was not measured"
    if decision.break_even_passes is None:
        return "converting never pays, however many passes there are"
    passes = plural(decision.break_even_passes, "pass")
    return f"converting to {decision.break_even_layout} pays from {passes} on"


def text_lines(decision: Decision) -> list[str]:
    """Return the report as lines of text."""
    source = decision.measurements.source
    rows = [
        ("", "layout", "bytes/atom", "convert", "one pass", "total", "from", "to"),
        *(_row(option, source) for option in decision.options if option.total is not None),
    ]
    rule = decision.rule
    text = [
        headline(decision),
        gain_sentence(decision),
        "",
        *aligned(rows, 2),
        "",
        break_even_sentence(decision),
    ]
    text.append(f"published rule: {rule.layout}, {rule.gather} gather ({rule.text})")
    if not rule.agrees:
        text.append(f"  why the advice differs: {rule.why_not}")
    text += [f"note: {reason}" for reason in decision.reasons]
    return [*text, "", *(f"  $ {command}" for command in decision.commands)]


def _row(option: Option, source: Source) -> tuple[str, ...]:
    assert option.total is not None
    total = option.total
    figures = (total.convert_s, total.run.t_total_s, total.total_s, total.low_s, total.high_s)
    mark = "->" if option.is_chosen else ""
    density = f"{source.density(option.nbytes):.2f}"
    return (mark, option.name, density, *(duration(figure) for figure in figures))


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
"""Limits of t_comp/t_IO: I/O-bound, compute-bound, and compute-bound by the papers' rule."""


def _forecast_options(decision: Decision) -> list[Option]:
    return [option for option in decision.options if option.total is not None]


def totals(decision: Decision) -> str:
    """Draw bars of converting and all passes of each option, with the band of their sum."""
    options = _forecast_options(decision)
    with figure(1.2 + 0.3 * len(options)) as (fig, axes):
        for place, option in enumerate(options):
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
        _names(axes, options)
        time_axis(axes.xaxis, "time")
        fig.legend(loc="outside lower center", ncols=2)
        return figure_svg(fig, "Predicted total of each layout: converting and all passes")


def breakdown(decision: Decision) -> str:
    """Draw stacked bars of the parts of one pass with the requested ranks."""
    options = _forecast_options(decision)
    runs = [option.total.run for option in options if option.total is not None]
    with figure(1.4 + 0.3 * len(options)) as (fig, axes):
        starts = [0.0] * len(runs)
        for name, (field, colour) in PARTS.items():
            widths = [float(getattr(run, field)) for run in runs]
            if max(widths) > 0.002 * max(run.t_total_s for run in runs):
                axes.barh(range(len(runs)), widths, 0.7, left=starts, color=colour, label=name)
            starts = [a + b for a, b in zip(starts, widths, strict=True)]
        _names(axes, options)
        time_axis(axes.xaxis, "time of the slowest rank")
        fig.legend(loc="outside lower center", ncols=4)
        return figure_svg(fig, "Parts of one pass on each layout")


def _names(axes: Any, options: list[Option]) -> None:
    axes.set_yticks(range(len(options)), [option.name for option in options])
    for label, option in zip(axes.get_yticklabels(), options, strict=True):
        label.set_fontweight("bold" if option.is_chosen else "normal")
    axes.set_ylim(len(options) - 0.5, -0.5)
    axes.set_xlim(left=0)


def times(decision: Decision) -> str:
    """Draw t_total of one pass against the ranks, with bands."""
    with figure(3.4) as (fig, axes):
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
        fig.legend(loc="outside lower center", ncols=3)
        return figure_svg(fig, "Predicted t_total of one pass against ranks, for each layout")


def efficiencies(decision: Decision) -> str:
    """Draw the parallel efficiency against the ranks."""

    def efficiency(points: tuple[Forecast, ...]) -> list[float]:
        alone = next((point for point in points if point.n_ranks == 1), points[0])
        work = alone.t_total_s * alone.n_ranks
        return [work / (point.n_ranks * max(point.t_total_s, 1e-12)) for point in points]

    with figure(3.2) as (fig, axes):
        _lines(axes, decision, efficiency)
        axes.set(ylabel="efficiency")
        axes.set_ylim(bottom=0)
        fig.legend(loc="outside lower center", ncols=3)
        return figure_svg(fig, "Predicted parallel efficiency against ranks, for each layout")


def _lines(
    axes: Any, decision: Decision, values: Callable[[tuple[Forecast, ...]], list[float]]
) -> None:
    """Draw a curve of each option against the ranks."""
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
    stride = max(1, -(-len(counts) // 8))
    ticks = counts[::-1][::stride][::-1]
    axes.set_xticks(ticks, [f"{count:,}" for count in ticks])
    axes.minorticks_off()
    axes.set_xlabel("ranks (dotted: asked for)")


def ratio_line(decision: Decision) -> str:
    """Draw the scale from I/O-bound to compute-bound, with this analysis on it."""
    ratio = 1e4 if decision.ratio is None else min(max(decision.ratio, 1e-3), 1e4)
    with figure(1.5) as (fig, axes):
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
        return figure_svg(fig, "Where the analysis lies between I/O-bound and compute-bound")
