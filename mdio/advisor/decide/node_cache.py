"""Whether a cache on each node (``mdio analyze --cache``) pays, also with nodes missing.

A pass whose frames lie on the nodes takes T. With a fraction delta of the nodes missing, their
share is read from the storage: T (1 + delta B / b) at most, where B is what all local disks give
together and b what the storage does (Tu et al. 2010).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from mdio.advisor.decide.forecast import Forecaster, Total
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
