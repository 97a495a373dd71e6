"""What the advisor says: a value that prints, shows itself in notebooks, and makes a report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from os import PathLike
from typing import Any

from mdio.advisor.forecast import Forecast, Total
from mdio.advisor.measured import Measurements
from mdio.advisor.replay import SCHEMA

__all__ = ["Advice", "Option", "Recommended", "Rule"]


@dataclass(frozen=True, slots=True)
class Recommended:
    """What to do."""

    name: str
    """Of the option."""
    layout: str
    """``as-is`` = read the source as it is, with mdio's own reader."""
    chunk_frames: int | None
    groups: dict[str, str]
    """Stored groups of atoms, as selections."""
    precision: float | str | None
    segments: int | None
    """How many, where the layout is segments."""
    stripe: dict[str, int | None]
    """``nbytes`` and ``count``; no count where the file system has no stripes."""
    ranks: int
    """As many as asked for, or fewer if more do not help."""
    useful_ranks: int
    """Beyond these, more do not help."""
    blocks_per_worker: int
    gather: str


@dataclass(frozen=True, slots=True)
class Rule:
    """What the guidelines of Khoshlessan et al. would have one do."""

    layout: str
    gather: str
    text: str
    agrees: bool
    why_not: str
    """Why the advice differs, where it does."""


@dataclass(frozen=True, slots=True)
class Option:
    """One candidate and its forecast."""

    name: str
    layout: str
    nbytes: float
    total: Total | None
    is_chosen: bool
    problem: str | None

    def to_json(self) -> dict[str, Any]:
        """Return plain values; times are None where there are none."""
        total = self.total
        run = None if total is None else total.run
        return {
            "name": self.name,
            "layout": self.layout,
            "nbytes": self.nbytes,
            "predicted_total_s": None if total is None else total.total_s,
            "low_s": None if total is None else total.low_s,
            "high_s": None if total is None else total.high_s,
            "convert_s": None if total is None else total.convert_s,
            "pass": None if run is None else asdict(run),
            "problem": self.problem,
        }


@dataclass(frozen=True)
class Advice:
    """A recommendation, with all that it follows from."""

    measurements: Measurements
    machine: str
    ranks: int
    passes: int
    ratio: float | None
    """t_comp/t_IO of one worker on the source as it is; None where reading took no time."""
    bound: str
    """``io``, ``compute`` or ``balanced``."""
    recommended: Recommended
    options: tuple[Option, ...]
    break_even_passes: int | None
    """Passes after which converting pays; None if it never does."""
    break_even_layout: str | None
    """Into what."""
    rule: Rule
    commands: tuple[str, ...]
    reasons: tuple[str, ...]
    curves: Mapping[str, tuple[Forecast, ...]]
    """One pass with other numbers of ranks, by option."""

    def to_json(self) -> dict[str, Any]:
        """Return what ``mdio advise --json`` prints."""
        return {
            "ratio": self.ratio,
            "bound": self.bound,
            "machine": self.machine,
            "ranks": self.ranks,
            "passes": self.passes,
            "recommended": asdict(self.recommended),
            "candidates": [option.to_json() for option in self.options],
            "break_even_passes": self.break_even_passes,
            "break_even_layout": self.break_even_layout,
            "papers_rule": asdict(self.rule),
            "commands": list(self.commands),
            "reasons": list(self.reasons),
            "curves": {
                name: [
                    {
                        "ranks": point.n_ranks,
                        "total_s": point.t_total_s,
                        "low_s": point.low_s,
                        "high_s": point.high_s,
                    }
                    for point in points
                ]
                for name, points in self.curves.items()
            },
            "measurements": {"schema": SCHEMA, **asdict(self.measurements)},
        }

    def save_report(self, path: str | PathLike[str]) -> None:
        """Write an HTML page of pictures and tables that needs nothing else.

        Raises
        ------
        MissingExtraError
            There is no matplotlib.
        OutputError
            The file cannot be written.
        """
        from mdio.advisor.report_html import save_report

        save_report(self, path)

    def _repr_html_(self) -> str:
        """Show the tables in a notebook, and the pictures where matplotlib is there."""
        from mdio.advisor.report_html import html_of

        return html_of(self)

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def headline(self) -> str:
        """Return the recommendation in one line."""
        best = self.recommended
        ratio = "beyond measure" if self.ratio is None else f"{self.ratio:.2g}"
        what = "read the source as it is" if best.layout == "as-is" else best.name
        return (
            f"{what}, {best.ranks} rank(s): t_comp/t_IO is {ratio} ({_BOUND[self.bound]}), "
            f"{self.passes} pass(es)"
        )

    def why_text(self) -> str:
        """Return what the recommendation gains, as a sentence with its figures."""
        passes = "1 pass" if self.passes == 1 else f"{self.passes:,} passes"
        totals = {
            option.name: option.total
            for option in self.options
            if option.total is not None and option.problem is None
        }
        ours, stay = totals[self.recommended.name], totals["as-is"]
        if ours is not stay:
            verb = "copying" if self.recommended.layout == "local-copy" else "converting"
            return (
                f"{verb} takes {seconds(ours.convert_s)} once, and a pass then "
                f"{seconds(ours.run.t_total_s)} instead of {seconds(stay.run.t_total_s)}: "
                f"{passes} in {seconds(ours.total_s)} instead of {seconds(stay.total_s)}"
            )
        others = {name: total for name, total in totals.items() if name != "as-is"}
        if not others:
            return f"{passes} in {seconds(stay.total_s)}; nothing else could be measured"
        name = min(others, key=lambda name: others[name].total_s)
        least = others[name]
        return (
            f"{passes} in {seconds(stay.total_s)} without converting; {name}, the next best, needs "
            f"{seconds(least.convert_s)} to convert and {seconds(least.total_s)} in all"
        )

    def lines(self) -> list[str]:
        """Return the advice as text, line by line."""
        rows = [
            ("", "layout", "convert", "one pass", "total", "from", "to"),
            *(_row(option) for option in self.options if option.total is not None),
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        table = []
        for row in rows:
            cells = [row[0].ljust(widths[0]), row[1].ljust(widths[1])]
            cells += [cell.rjust(width) for cell, width in zip(row[2:], widths[2:], strict=True)]
            table.append("  ".join(cells).rstrip())
        found = [self.headline(), self.why_text(), "", *table, "", self.break_even_text()]
        rule = f"papers' rule: {self.rule.layout}, {self.rule.gather} gather ({self.rule.text})"
        found.append(rule)
        if not self.rule.agrees:
            found.append(f"  differs: {self.rule.why_not}")
        found += [f"note: {reason}" for reason in self.reasons]
        return [*found, "", *(f"  $ {command}" for command in self.commands)]

    def break_even_text(self) -> str:
        """Return when converting pays, as a sentence."""
        if self.break_even_passes is None:
            return "converting does not pay, however many passes there are"
        return (
            f"converting into {self.break_even_layout} pays from {self.break_even_passes} "
            "pass(es) on"
        )


_BOUND = {"io": "I/O-bound", "compute": "compute-bound", "balanced": "balanced"}


def _row(option: Option) -> tuple[str, ...]:
    assert option.total is not None
    total = option.total
    figures = (
        total.convert_s,
        total.run.t_total_s,
        total.total_s,
        total.low_s,
        total.high_s,
    )
    mark = "->" if option.is_chosen else ""
    return (mark, option.name, *(seconds(figure) for figure in figures))


def seconds(value: float) -> str:
    """Return a time with its unit, to three digits."""
    if value >= 1000:
        return f"{value:,.0f} s"
    return f"{value:.3g} s"
