"""What was decided, as plain values: what to do, what else there was, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from mdio.advisor.decide.forecast import Forecast, Total
from mdio.advisor.decide.node_cache import NodeCache
from mdio.advisor.measure.measurements import SCHEMA, Measurements


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
class Decision:
    """A recommendation, with all that it follows from."""

    measurements: Measurements
    machine: str
    ranks: int
    """As many as asked for, or fewer if more do not help: those of all passes."""
    ranks_asked: int
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
    node_cache: NodeCache | None = None
    """What a cache on each node would give, where local disks were measured."""

    def to_json(self) -> dict[str, Any]:
        """Return what ``mdio advise --json`` prints."""
        return {
            "ratio": self.ratio,
            "bound": self.bound,
            "machine": self.machine,
            "ranks": self.ranks,
            "ranks_asked": self.ranks_asked,
            "passes": self.passes,
            "recommended": asdict(self.recommended),
            "candidates": [option.to_json() for option in self.options],
            "break_even_passes": self.break_even_passes,
            "break_even_layout": self.break_even_layout,
            "papers_rule": asdict(self.rule),
            "commands": list(self.commands),
            "reasons": list(self.reasons),
            "node_cache": None if self.node_cache is None else asdict(self.node_cache),
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
