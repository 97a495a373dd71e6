"""What mdio has set itself to reach beside its peers, and whether a run reached it."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Record = dict[str, Any]


@dataclass(frozen=True)
class Target:
    """In one table, `slow` takes at least (at most) `factor` times as long as `fast`."""

    title: str
    table: str
    slow: str
    fast: str
    factor: float
    at_least: bool = True


TARGETS = [
    Target("XTC, all atoms, beside libmdaxdr", "decode", "libmdaxdr, XTC", "mdio, XTC", 6),
    Target("XTC, all atoms, beside molly", "decode", "molly, XTC", "mdio, XTC", 4),
    Target("XTC, first 10% of the atoms, beside molly", "first", "molly, XTC", "mdio, XTC", 1),
    Target(
        "XTC, first 10% of the atoms, beside molly buffered",
        "first",
        "molly buffered, XTC",
        "mdio, XTC",
        1,
    ),
    *(
        target
        for kind in ("h5md", "zarr")
        for target in (
            Target(
                f"XTC to {kind}, beside MDAnalysis' H5MDWriter",
                "convert",
                "MDAnalysis writer, H5MD",
                f"mdio, {kind}",
                30,
            ),
            Target(
                f"XTC to {kind}, beside decoding it",
                "convert",
                f"mdio, {kind}",
                "mdio, only decoding the XTC",
                2,
                at_least=False,
            ),
            Target(
                f"Universe over {kind}, beside memory and a copy",
                "iterate",
                f"mdio, {kind}",
                "MDAnalysis in memory, and a copy",
                2,
                at_least=False,
            ),
            Target(
                f"random frames of {kind}, beside XTC with offsets",
                "random",
                "MDAnalysis, XTC with offsets",
                f"mdio, {kind}",
                3,
            ),
        )
    ),
    Target("Universe over XTC, format='MDIO'", "iterate", "MDAnalysis, XTC", "mdio, XTC", 5),
    Target("RMSD on the XTC, beside rms.RMSD", "rmsd", "MDAnalysis rms.RMSD, XTC", "mdio, XTC", 9),
    Target("RMSD on the XTC, beside gmx rms", "rmsd", "gmx rms, XTC", "mdio, XTC", 6),
    Target(
        "reading zarr --precision 0.01, beside libmdaxdr",
        "decode",
        "libmdaxdr, XTC",
        "mdio, zarr --precision 0.01",
        5,
    ),
    Target(
        "size of zarr --precision 0.01, beside XTC",
        "size",
        "zarr --precision 0.01",
        "XTC",
        0.85,
        at_least=False,
    ),
    Target(
        "two workers beside one",
        "two workers",
        "mdio, 1 worker",
        "mdio, 2 workers",
        1.85,
    ),
]


def ratio(slow: Record, fast: Record) -> float | None:
    """Return the ratio of sizes, or the median of the ratios of times, repeat by repeat."""
    if "nbytes" in slow and "nbytes" in fast:
        return float(slow["nbytes"] / fast["nbytes"])
    if "seconds" in slow and "seconds" in fast:
        pairs = zip(slow["seconds"], fast["seconds"], strict=False)  # slow cases repeat less
        return statistics.median(a / b for a, b in pairs)
    return None


def user_ratio(slow: Record, fast: Record) -> float | None:
    """Return the ratio of the least user CPU times; None where nothing was timed."""
    if "user_seconds" not in slow or not min(fast["user_seconds"], default=0):
        return None
    return float(min(slow["user_seconds"]) / min(fast["user_seconds"]))


def judge(records: list[Record]) -> Iterator[Record]:
    """Yield a verdict for each target and system: reached, not reached, or not measured."""
    found = {(r["table"], r["system"], r["case"]): r for r in records}
    for target in TARGETS:
        measured = [s for t, s, c in found if t == target.table and c == target.fast]
        for system in measured:
            one = found.get((target.table, system, target.slow))
            found_ratio = ratio(one, found[target.table, system, target.fast]) if one else None
            verdict: Record = {
                "bench": "peers",
                "table": "targets",
                "system": system,
                "case": target.title,
                "wanted": target.factor,
                "at_least": target.at_least,
                "peer": target.slow if target.at_least else target.fast,
            }
            if found_ratio is None:
                yield {**verdict, "verdict": "not measured"}
                continue
            if target.at_least:
                reached = found_ratio >= target.factor
            else:
                reached = found_ratio <= target.factor
            yield {
                **verdict,
                "ratio": found_ratio,
                "user_ratio": user_ratio(one, found[target.table, system, target.fast]),
                "verdict": "reached" if reached else "not reached",
            }
