"""``mdio advise --report``: one page on which layout serves, what it costs, and why."""

from __future__ import annotations

from html import escape
from importlib.util import find_spec
from os import PathLike

from mdio.advisor.decide.decision import Decision
from mdio.advisor.report import pictures
from mdio.advisor.report.text import break_even, headline, why
from mdio.analysis.pages import page
from mdio.analysis.pages.report import check_report
from mdio.core.words import duration, plural


def save_page(decision: Decision, path: str | PathLike[str]) -> None:
    """Write the report as one HTML file that needs nothing else.

    Raises MissingExtraError, OutputError: no matplotlib, or the file cannot be written.
    """
    check_report(path)
    page.save_page(path, _capital(headline(decision)), _sections(decision))


def html_of(decision: Decision) -> str:
    """Return the sections alone, for a notebook; without matplotlib, without pictures."""
    if find_spec("matplotlib") is None:
        return "".join([_summary(decision), _options(decision), _commands(decision)])
    return "".join(_sections(decision))


def _sections(decision: Decision) -> list[str]:
    return [
        _summary(decision),
        _commands(decision),
        _options(decision),
        _scaling(decision),
        _measured(decision),
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
        ("most ranks that help", best.useful_ranks),
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
    return page.section(
        "Advice",
        page.paragraph(_sentence(why(decision))),
        page.table(("", ""), rows),
        page.paragraph(_sentence(break_even(decision))),
        page.paragraph(papers),
        *(page.paragraph(_sentence(reason)) for reason in decision.reasons),
    )


def _sentence(text: str) -> str:
    return f"{_capital(text)}."


def _capital(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


def _commands(decision: Decision) -> str:
    lines = "\n\n".join(escape(command) for command in decision.commands)
    # Long lines are broken where they are shown, not where they are copied from.
    return page.section("What to run", f'<pre style="white-space: pre-wrap">{lines}</pre>')


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
    heads = (
        "layout",
        "MB",
        "bytes/atom",
        "convert",
        "one pass",
        "total",
        "from",
        "to",
        "",
    )
    return page.section(
        f"{plural(decision.passes, 'pass')} with {ranks}",
        page.picture(
            pictures.totals(decision), "Time to convert once and run all passes, with its range."
        ),
        page.picture(
            pictures.breakdown(decision), f"Where the time of one pass with {ranks} goes."
        ),
        page.table(heads, rows),
    )


def _scaling(decision: Decision) -> str:
    parts = [page.picture(pictures.ratio_line(decision))]
    if max(len(points) for points in decision.curves.values()) > 1:
        parts += [
            page.picture(pictures.times(decision), "Time of one pass; the bands show its range."),
            page.picture(
                pictures.efficiencies(decision),
                "Parallel efficiency: t_total(1) / (N t_total(N)) on N ranks.",
            ),
        ]
    return page.section("Scaling", *parts)


def _measured(decision: Decision) -> str:
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
        "bytes",
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
        (one.readers, one.cache, one.nbytes_per_s / 1e6) for one in decision.measurements.bandwidths
    ]
    return page.section(
        "Measurements",
        page.paragraph(place),
        page.table(heads, rows),
        page.table(("readers", "bytes", "MB/s together"), bands) if bands else "",
    )
