"""A decision as text: the headline, why, a table of the options, and what to run."""

from __future__ import annotations

from mdio.advisor.decide.decision import Decision, Option
from mdio.advisor.measure.measurements import Source
from mdio.core.words import aligned, duration, plural

BOUND = {"io": "I/O-bound", "compute": "compute-bound", "balanced": "balanced"}


def headline(decision: Decision) -> str:
    """Return the recommendation in one line."""
    best = decision.recommended
    ratio = "beyond measure" if decision.ratio is None else f"{decision.ratio:.2g}"
    what = "read the source as it is" if best.layout == "as-is" else f"use {best.name}"
    ranks = plural(best.ranks, "rank")
    if best.ranks < decision.ranks_asked:
        ranks += f" instead of {decision.ranks_asked:,}"
    return (
        f"{what}, with {ranks}: t_comp/t_IO is {ratio} "
        f"({BOUND[decision.bound]}), {plural(decision.passes, 'pass')}"
    )


def why(decision: Decision) -> str:
    """Return what the recommendation gains, as a sentence with its figures."""
    passes = plural(decision.passes, "pass")
    totals = {
        option.name: option.total
        for option in decision.options
        if option.total is not None and option.problem is None
    }
    ours, stay = totals[decision.recommended.name], totals["as-is"]
    if ours is not stay:
        verb = "copying" if decision.recommended.layout == "local-copy" else "converting"
        return (
            f"{verb} takes {duration(ours.convert_s)} once; a pass then takes "
            f"{duration(ours.run.t_total_s)} instead of {duration(stay.run.t_total_s)}; "
            f"in all, {passes}: {duration(ours.total_s)} instead of {duration(stay.total_s)}"
        )
    others = {name: total for name, total in totals.items() if name != "as-is"}
    if not others:
        return f"{passes}: {duration(stay.total_s)}; nothing else could be measured"
    name = min(others, key=lambda name: others[name].total_s)
    least = others[name]
    return (
        f"{passes}: {duration(stay.total_s)} without converting; with {name}, the next best, "
        f"{duration(least.total_s)}, including {duration(least.convert_s)} to convert"
    )


def break_even(decision: Decision) -> str:
    """Return when converting pays, as a sentence."""
    if decision.break_even_passes is None:
        return "converting never pays, however many passes there are"
    passes = plural(decision.break_even_passes, "pass")
    return f"converting to {decision.break_even_layout} pays from {passes} on"


def lines(decision: Decision) -> list[str]:
    """Return all of it, line by line."""
    source = decision.measurements.source
    rows = [
        ("", "layout", "bytes/atom", "convert", "one pass", "total", "from", "to"),
        *(_row(option, source) for option in decision.options if option.total is not None),
    ]
    rule = decision.rule
    found = [headline(decision), why(decision), "", *aligned(rows, 2), "", break_even(decision)]
    found.append(f"published rule: {rule.layout}, {rule.gather} gather ({rule.text})")
    if not rule.agrees:
        found.append(f"  why the advice differs: {rule.why_not}")
    found += [f"note: {reason}" for reason in decision.reasons]
    return [*found, "", *(f"  $ {command}" for command in decision.commands)]


def _row(option: Option, source: Source) -> tuple[str, ...]:
    assert option.total is not None
    total = option.total
    figures = (total.convert_s, total.run.t_total_s, total.total_s, total.low_s, total.high_s)
    mark = "->" if option.is_chosen else ""
    density = f"{source.density(option.nbytes):.2f}"
    return (mark, option.name, density, *(duration(figure) for figure in figures))
