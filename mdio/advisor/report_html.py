"""``mdio advise --report``: one page on which layout serves, what it costs, and why."""

from __future__ import annotations

from html import escape
from importlib.util import find_spec
from os import PathLike

from mdio.advisor import advice_pictures
from mdio.advisor.advice import Advice
from mdio.analysis import page
from mdio.analysis.report import check_report

__all__ = ["html_of", "save_report"]


def save_report(advice: Advice, path: str | PathLike[str]) -> None:
    """Write the report as one HTML file that needs nothing else.

    Raises
    ------
    MissingExtraError, OutputError
        No matplotlib, or the file cannot be written.
    """
    check_report(path)
    question = advice.measurements.question
    selection = f" of {question.select}" if question.select else ""
    title = f"Layout for {question.analysis}{selection}"
    page.save_page(path, title, _sections(advice))


def html_of(advice: Advice) -> str:
    """Return the sections alone, for a notebook; without matplotlib, without pictures."""
    if find_spec("matplotlib") is None:
        return "".join([_summary(advice), _options(advice), _commands(advice)])
    return "".join(_sections(advice))


def _sections(advice: Advice) -> list[str]:
    return [
        _summary(advice),
        _commands(advice),
        _options(advice),
        _scaling(advice),
        _measured(advice),
    ]


def _summary(advice: Advice) -> str:
    best, source = advice.recommended, advice.measurements.source
    groups = "; ".join(f"{name}: {text}" for name, text in best.groups.items()) or "none"
    rows = [
        ("recommended", best.name),
        ("frames a chunk", best.chunk_frames),
        ("stored groups", groups),
        ("ranks", best.ranks),
        ("more ranks do not help beyond", best.useful_ranks),
        ("blocks a worker", best.blocks_per_worker),
        ("gather", best.gather),
        ("t_comp / t_IO", advice.ratio),
        ("passes", advice.passes),
        ("machine", advice.machine),
        ("source", f"{source.layout}, {source.n_frames:,} frames of {source.n_atoms:,} atoms"),
    ]
    rule = f"Guidelines of Khoshlessan et al.: {advice.rule.layout}, {advice.rule.gather} gather"
    rule += f" ({advice.rule.text})."
    if not advice.rule.agrees:
        rule += f" The advice differs: {advice.rule.why_not}."
    return page.section(
        advice.headline(),
        page.paragraph(_sentence(advice.why_text())),
        page.table(("", ""), rows),
        page.paragraph(f"{_sentence(advice.break_even_text())}"),
        page.paragraph(rule),
        *(page.paragraph(_sentence(reason)) for reason in advice.reasons),
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _commands(advice: Advice) -> str:
    lines = "\n\n".join(escape(command) for command in advice.commands)
    # Long lines are broken where they are shown, not where they are copied from.
    return page.section("What to run", f'<pre style="white-space: pre-wrap">{lines}</pre>')


def _options(advice: Advice) -> str:
    rows = []
    for option in advice.options:
        total = option.total
        times: tuple[object, ...] = (None,) * 5
        if total is not None:
            run = total.run.t_total_s
            times = (total.convert_s, run, total.total_s, total.low_s, total.high_s)
        name = f"→ {option.name}" if option.is_chosen else option.name
        rows.append((name, option.nbytes / 1e6, *times, option.problem or ""))
    heads = ("layout", "MB", "convert, s", "one pass, s", "total, s", "from", "to", "")
    return page.section(
        f"{advice.passes} pass(es) with {advice.ranks} rank(s)",
        page.picture(advice_pictures.totals(advice), "Converting once and all passes, with bands."),
        page.picture(
            advice_pictures.breakdown(advice), f"One pass with {advice.ranks} rank(s), by parts."
        ),
        page.table(heads, rows),
    )


def _scaling(advice: Advice) -> str:
    parts = [
        page.picture(advice_pictures.ratio_line(advice)),
    ]
    if max(len(points) for points in advice.curves.values()) > 1:
        parts += [
            page.picture(
                advice_pictures.times(advice), "t_total of one pass; bands: what may be expected."
            ),
            page.picture(
                advice_pictures.efficiencies(advice), "E(N) = t_total(1) / (N t_total(N))."
            ),
        ]
    return page.section("Scaling", *parts)


def _measured(advice: Advice) -> str:
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
        for trial in advice.measurements.trials
        for run in trial.runs
    ]
    heads = (
        "layout",
        "workers",
        "bytes",
        "frames",
        "t_IO, µs a frame",
        "from",
        "to",
        "t_comp, µs a frame",
        "t_open, ms",
    )
    host = advice.measurements.host
    place = f"Source on {host.source_file_system}, target on {host.target_file_system}"
    place += f", {host.cores} core(s)."
    if host.target_stripe:
        place += f" Stripes of the target: {host.target_stripe}."
    bands = [
        (one.readers, one.cache, one.nbytes_per_s / 1e6) for one in advice.measurements.bandwidths
    ]
    return page.section(
        "Measurements",
        page.paragraph(place),
        page.table(heads, rows),
        page.table(("readers", "bytes", "MB/s together"), bands) if bands else "",
    )
