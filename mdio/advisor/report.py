"""Reports of ``mdio advise``: as text, and as an HTML page with pictures."""

from __future__ import annotations

from importlib.util import find_spec
from os import PathLike

from mdio.advisor.recommend import Decision, Option
from mdio.analysis.plots import bars, over_ranks
from mdio.analysis.report import check_report, save_page
from mdio.core.pages import commands, paragraph, picture, section, table
from mdio.core.words import align_columns, duration, plural


def save_advice(decision: Decision, path: str | PathLike[str]) -> None:
    """Write the report as one self-contained HTML file."""
    check_report(path)
    save_page(path, _capitalised(headline(decision)), _sections(decision))


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
        *([("gather", best.gather)] if _is_gathered(decision) else []),
        ("t_comp / t_IO", decision.ratio),
        ("passes", decision.passes),
        ("machine", decision.machine),
        ("source", f"{source.layout}, {frames} of {plural(source.n_atoms, 'atom')}"),
    ]
    rule = decision.rule
    guidelines = f"Guidelines of Khoshlessan et al.: {_rule_text(decision)}."
    if not rule.agrees:
        guidelines += f" The advice differs: {rule.why_not}."
    return section(
        "Advice",
        paragraph(_sentence(gain_sentence(decision))),
        table(("", ""), rows),
        paragraph(_sentence(break_even_sentence(decision))),
        paragraph(guidelines),
        *(paragraph(_sentence(reason)) for reason in decision.reasons),
    )


def _sentence(text: str) -> str:
    return f"{_capitalised(text)}."


def _capitalised(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


def _commands(decision: Decision) -> str:
    return section("What to run", commands(decision.commands))


TIME_HEADINGS = ("convert", "one pass", "total", "from", "to")


def _times(option: Option) -> list[str]:
    """Return the times of an option under `TIME_HEADINGS`."""
    total = option.total
    if total is None:
        return [duration(None)] * len(TIME_HEADINGS)
    times = (total.convert_s, total.run.t_total_s, total.total_s, total.low_s, total.high_s)
    return [*map(duration, times)]


def _options(decision: Decision) -> str:
    source = decision.measurements.source
    rows = [
        (
            _label(option),
            option.nbytes / 1e6,
            source.nbytes_per_atom(option.nbytes),
            *_times(option),
            option.problem or "",
        )
        for option in decision.options
    ]
    ranks = plural(decision.ranks, "rank")
    headings = ("layout", "MB", "bytes/atom", *TIME_HEADINGS, "")
    return section(
        f"{plural(decision.passes, 'pass')} with {ranks}",
        picture(draw_totals(decision), "Time to convert once and run all passes, with its range."),
        picture(draw_breakdown(decision), f"Where the time of one pass with {ranks} goes."),
        table(headings, rows),
    )


def _scaling(decision: Decision) -> str:
    if max(len(points) for points in decision.curves.values()) < 2:
        return ""
    efficiency = "Parallel efficiency: t_total(1) / (N t_total(N)) on N ranks."
    return section(
        "Scaling",
        picture(draw_times(decision), "Time of one pass; the bands show its range."),
        picture(draw_efficiencies(decision), efficiency),
    )


def _measurements(decision: Decision) -> str:
    rows = [
        {
            "layout": trial.name,
            "workers": run.workers,
            "cache": run.cache,
            "frames": run.n_frames,
            "t_IO, µs/frame": 1e6 * run.t_io_frame_s.median,
            "from": 1e6 * run.t_io_frame_s.low,
            "to": 1e6 * run.t_io_frame_s.high,
            "t_comp, µs/frame": 1e6 * run.t_comp_frame_s.median,
            "t_open, ms": 1e3 * run.t_open_s.median,
        }
        for trial in decision.measurements.trials
        for run in trial.runs
    ]
    host = decision.measurements.host
    text = f"The source is on {host.source_file_system}, outputs go to {host.target_file_system}"
    text += f"; {plural(host.cores, 'core')}."
    if host.target_stripe:
        text += f" Stripes of the target: {host.target_stripe}."
    bandwidth_rows = [
        (bandwidth.readers, bandwidth.cache, bandwidth.nbytes_per_s / 1e6)
        for bandwidth in decision.measurements.bandwidths
    ]
    return section(
        "Measurements",
        paragraph(text),
        table(list(rows[0]), [list(row.values()) for row in rows]),
        table(("readers", "cache", "MB/s together"), bandwidth_rows) if bandwidth_rows else "",
    )


BOUND_NAMES = {"io": "I/O-bound", "compute": "compute-bound", "balanced": "balanced"}


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
        f"({BOUND_NAMES[decision.bound]}), {plural(decision.passes, 'pass')}"
    )


def gain_sentence(decision: Decision) -> str:
    """Return the gain of the recommendation, as a sentence with its figures."""
    passes = plural(decision.passes, "pass")
    totals = {
        option.name: option.total
        for option in decision.options
        if option.total is not None and option.problem is None
    }
    recommended, source = totals[decision.recommended.name], totals["as-is"]
    if recommended is not source:
        verb = "copying" if decision.recommended.layout == "local-copy" else "converting"
        is_small = source.run.t_total_s - recommended.run.t_total_s < START_S
        start_note = ", both within a running process, since each command takes longer to start"
        return (
            f"{verb} takes {duration(recommended.convert_s)} once; a pass then takes "
            f"{duration(recommended.run.t_total_s)} instead of {duration(source.run.t_total_s)}"
            f"{start_note if is_small else ''}; "
            f"in all, {passes}: {duration(recommended.total_s)} instead of "
            f"{duration(source.total_s)}"
        )
    alternatives = {name: total for name, total in totals.items() if name != "as-is"}
    if not alternatives:
        other_options = (
            "could be measured, or fits into its folder"
            if len(decision.options) > 1
            else "was measured"
        )
        return f"{passes}: {duration(source.total_s)}; nothing else {other_options}"
    name = min(alternatives, key=lambda name: alternatives[name].total_s)
    next_best = alternatives[name]
    return (
        f"{passes}: {duration(source.total_s)} without converting; with {name}, the next best, "
        f"{duration(next_best.total_s)}, including {duration(next_best.convert_s)} to convert"
    )


def break_even_sentence(decision: Decision) -> str:
    """Return from which pass on converting pays, as a sentence."""
    other_options = [option for option in decision.options if option.name != "as-is"]
    if not other_options:
        return "whether converting pays was not measured"
    if not any(option.total and option.problem is None for option in other_options):
        return "whether converting pays is not known: no output could be measured that fits"
    if decision.break_even_passes is None:
        return "converting never pays, however many passes there are"
    passes = plural(decision.break_even_passes, "pass")
    return f"converting to {decision.break_even_layout} pays from {passes} on"


def _is_gathered(decision: Decision) -> bool:
    """Return whether the advised analysis runs on ranks of MPI, which gather their results."""
    return "--gather" in decision.commands[-1]


def _rule_text(decision: Decision) -> str:
    rule = decision.rule
    gather = f", {rule.gather} gather" if _is_gathered(decision) else ""
    return f"{rule.layout}{gather} ({rule.text})"


def text_lines(decision: Decision) -> list[str]:
    """Return the report as lines of text."""
    source = decision.measurements.source
    rows: list[tuple[str, ...]] = [("", "layout", "bytes/atom", *TIME_HEADINGS)]
    for option in _forecast_options(decision):
        nbytes_per_atom = f"{source.nbytes_per_atom(option.nbytes):.2f}"
        mark = "->" * option.is_chosen
        rows.append((mark, option.name, nbytes_per_atom, *_times(option)))
    rule = decision.rule
    text = [
        headline(decision),
        gain_sentence(decision),
        "",
        *align_columns(rows, 2),
        "",
        break_even_sentence(decision),
    ]
    text.append(f"published rule: {_rule_text(decision)}")
    if not rule.agrees:
        text.append(f"  why the advice differs: {rule.why_not}")
    text += [f"note: {reason}" for reason in decision.reasons]
    return [*text, "", *(f"  $ {command}" for command in decision.commands)]


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
START_S = 0.2
"""Seconds that a command takes at least to start: Python and its imports."""
RANKS = "ranks (dotted: asked for)"


def _forecast_options(decision: Decision) -> list[Option]:
    return [option for option in decision.options if option.total is not None]


def _label(option: Option) -> str:
    return f"→ {option.name}" if option.is_chosen else option.name


def draw_totals(decision: Decision) -> str:
    """Draw bars of converting and all passes of each option, with the range of their sum."""
    options = _forecast_options(decision)
    all_totals = [option.total for option in options if option.total is not None]
    parts = {
        "convert": ([total.convert_s for total in all_totals], "#009E73"),
        plural(decision.passes, "pass"): (
            [total.total_s - total.convert_s for total in all_totals],
            "#0072B2",
        ),
    }
    errors = [
        [total.total_s - total.low_s for total in all_totals],
        [total.high_s - total.total_s for total in all_totals],
    ]
    return bars([*map(_label, options)], parts, "Predicted total of each layout", errors=errors)


def draw_breakdown(decision: Decision) -> str:
    """Draw stacked bars of the parts of one pass with the requested ranks."""
    options = _forecast_options(decision)
    runs = [option.total.run for option in options if option.total is not None]
    min_s = 0.002 * max(run.t_total_s for run in runs)
    parts = {
        name: ([float(getattr(run, field)) for run in runs], colour)
        for name, (field, colour) in PARTS.items()
        if max(getattr(run, field) for run in runs) > min_s
    }
    names = [*map(_label, options)]
    return bars(names, parts, "Parts of one pass on each layout", "time of the slowest rank")


def draw_times(decision: Decision) -> str:
    """Draw t_total of one pass against the ranks, with its range."""
    lines = {
        name: [
            (forecast.n_ranks, forecast.t_total_s, max(forecast.low_s, 1e-6), forecast.high_s)
            for forecast in points
        ]
        for name, points in decision.curves.items()
    }
    title, ranks_asked = "Predicted t_total of one pass", decision.ranks_asked
    return over_ranks(lines, title, "t_total", RANKS, in_seconds=True, ranks_asked=ranks_asked)


def draw_efficiencies(decision: Decision) -> str:
    """Draw the parallel efficiency against the ranks."""
    lines: dict[str, list[tuple[int, float, float, float]]] = {}
    for name, points in decision.curves.items():
        single_rank = next((point for point in points if point.n_ranks == 1), points[0])
        work = single_rank.t_total_s * single_rank.n_ranks
        lines[name] = []
        for point in points:
            share = work / (point.n_ranks * max(point.t_total_s, 1e-12))
            lines[name].append((point.n_ranks, share, share, share))
    title, ranks_asked = "Predicted parallel efficiency", decision.ranks_asked
    return over_ranks(lines, title, "efficiency", RANKS, ranks_asked=ranks_asked)
