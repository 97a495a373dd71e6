"""A result at a glance: mean, least and greatest of each column, and its course."""

from __future__ import annotations

import sys

import numpy as np
from numpy.typing import NDArray

from mdio.analysis.results import AnalysisResult
from mdio.analysis.saving import columns_of
from mdio.core.words import html_table

BARS = " ▁▂▃▄▅▆▇█"
WIDTH = 40
MOST_COLUMNS = 6


def sparkline(values: NDArray[np.float64]) -> str:
    """Return the course of `values` (F,) in bars, each the mean of a part; no number is blank."""
    parts = [part[np.isfinite(part)] for part in np.array_split(values, min(WIDTH, len(values)))]
    means = [float(part.mean()) if part.size else None for part in parts]
    known = [mean for mean in means if mean is not None]
    if not known or not (sys.stdout.encoding or "").lower().startswith("utf"):
        return ""
    low, span = min(known), (max(known) - min(known)) or 1.0
    heights = [0 if mean is None else 1 + round((mean - low) / span * 7) for mean in means]
    return "".join(BARS[height] for height in heights)


def _columns(result: AnalysisResult) -> list[tuple[str, str, str]]:
    """Return of the first columns the name, what the numbers are, and their course."""
    if result.values.dtype.kind not in "biuf" or not result.values.size:
        return []
    columns = columns_of(result.values)
    n = columns.shape[1]
    names = list(result.labels) if len(result.labels) == n else [f"value{k}" for k in range(n)]
    found = []
    for name, column in zip(names[:MOST_COLUMNS], columns.T, strict=False):
        finite = column[np.isfinite(column)]
        numbers = "no finite value"
        if finite.size:
            numbers = f"mean {finite.mean():.4g}, {finite.min():.4g} to {finite.max():.4g}"
            if finite.size < column.size:
                numbers += (
                    f" (without {column.size - finite.size:,} of {column.size:,}: no numbers)"
                )
        course = sparkline(column.astype(np.float64)) if len(column) > 1 else ""
        found.append((name, numbers, course))
    if n > MOST_COLUMNS:
        found.append((f"and {n - MOST_COLUMNS:,} more columns", "", ""))
    return found


def shown(result: AnalysisResult) -> list[str]:
    """Return lines that say what was computed: all columns if there are few, else some."""
    columns = _columns(result)
    width = max((len(name) for name, numbers, _ in columns if numbers), default=0)
    lines = [
        f"  {name:<{width}}  {numbers}  {course}".rstrip() for name, numbers, course in columns
    ]
    return [*lines, "  -o FILE keeps all of it (.npz, .csv, .dat, .xvg)"] if lines else []


def as_html(result: AnalysisResult) -> str:
    """Return the same as a table, for notebooks."""
    return html_table(repr(result).strip("<>"), _columns(result), ("", "values", "course"))
