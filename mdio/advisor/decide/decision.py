"""What was decided, as plain values: what to do, what else there was, and why.

Whether a cache on each node (``mdio analyze --cache``) pays, also with nodes missing.

A pass whose frames lie on the nodes takes T. With a fraction delta of the nodes missing, their
share is read from the storage: T (1 + delta B / b) at most, where B is what all local disks give
together and b what the storage does (Tu et al. 2010).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from mdio.advisor.decide.forecast import Forecast, Forecaster, Total
from mdio.advisor.measure.measurements import SCHEMA, Measurements
from mdio.core.words import plural

MISSING = (0.1, 0.25, 0.5)


@dataclass(frozen=True, slots=True)
class NodeCache:
    """What was weighed."""

    local_nbytes_per_s: float
    """B: what the disk of one node gives."""
    storage_nbytes_per_s: float
    """b: what the storage gives to all."""
    nodes: int
    pays_from_pass: int | None
    """With so many passes in all, the cache has paid; None if it never does."""
    source_pass_s: float
    first_pass_s: float
    """Reading from the source and keeping it."""
    cached_pass_s: float
    """T: all of it kept."""
    missing_pass_s: dict[str, float]
    """T (1 + delta B / b) by delta."""

    def __str__(self) -> str:
        rates = (
            f"a node's disk gives {self.local_nbytes_per_s / 1e6:,.0f} MB/s, the storage "
            f"{self.storage_nbytes_per_s / 1e6:,.0f} MB/s to all"
        )
        if self.pays_from_pass is None:
            return f"a cache on {plural(self.nodes, 'node')} (--cache) does not pay: {rates}"
        missing = ", ".join(
            f"{seconds:.3g} s with {100 * float(share):.0f}%"
            for share, seconds in self.missing_pass_s.items()
        )
        return (
            f"a cache on {plural(self.nodes, 'node')} (--cache) pays from pass "
            f"{self.pays_from_pass} on: {rates}; a pass takes {self.source_pass_s:.3g} s from the "
            f"source, {self.first_pass_s:.3g} s while it is kept, {self.cached_pass_s:.3g} s when "
            f"it is, and with nodes missing at most {missing}"
        )


def node_cache(forecaster: Forecaster, total: Total, ranks: int) -> NodeCache | None:
    """Weigh a cache against reading the source as it is; None if nothing is known of local disks.

    `forecaster`: with the measurements. `total`: of the source as it is. `ranks`: that analyse.
    """
    measurements, profile = forecaster.measurements, forecaster.profile
    local, storage, nodes = (measurements.local, forecaster.storage_nbytes_per_s, forecaster.nodes)
    if profile is not None:
        storage = profile.storage.aggregate_bytes_per_s
        nodes = math.ceil(ranks / profile.cores_per_node)
    trial = measurements.trial("as-is")
    if local is None or storage is None or trial is None:
        return None
    nbytes, source_s = measurements.source.nbytes, total.run.t_total_s
    here_s = nbytes / (nodes * local.read_nbytes_per_s)
    saved_s = 0.0
    if forecaster.cache_of(trial) == "cold" or profile is not None:
        saved_s = min(max(0.0, nbytes / storage - here_s), max(0.0, source_s - here_s))
    keeping_s = nbytes / (nodes * local.write_nbytes_per_s)
    cached_s = source_s - saved_s
    ratio = nodes * local.read_nbytes_per_s / storage
    return NodeCache(
        local.read_nbytes_per_s,
        storage,
        nodes,
        1 + math.ceil(keeping_s / saved_s) if saved_s > 0 else None,
        source_s,
        source_s + keeping_s,
        cached_s,
        {f"{share:g}": cached_s * (1 + share * ratio) for share in MISSING},
    )


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
