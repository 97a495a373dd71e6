"""Draws results (curves, maps of angles, distributions), and times (bars, curves)."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import PlanError
from mdio.core.words import axis_label, duration

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ANGLE = re.compile(r"(?P<part>cos|sin)?\(?(?P<angle>phi|psi|chi1):(?P<residue>[^)]*)\)?")
"""Labels of dihedral angles: ``phi:4AKE:ARG2``, or ``cos(...)`` and ``sin(...)`` of it."""
Residue = tuple[str, int]
"""Name of a residue, and how many before it have the same: chains may have no names."""
MAX_LINES_NAMED = 10
"""Lines that get a legend; with more of one quantity, their distribution is drawn instead."""
MAX_NARROW_LETTERS = 30
"""Longest name, in letters, of which two fit beside each other."""
LEGEND_BELOW: dict[str, Any] = {
    "loc": "upper center",
    "bbox_to_anchor": (0.5, 0),
    "borderaxespad": 4.2,
}
"""Where a legend lies below the name of the axis."""
PERCENTILES = (5, 95)
"""Percentiles between which most of many columns lie."""
FITTED_LAGS = (0.1, 0.5)
"""Part of the lags to which the exponent of a displacement is fitted."""
GAP_FACTOR = 5
"""A curve over time breaks where frames lie this many times the usual interval apart."""


COLOURS = ("#000000", "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999999")
"""Colours that the colour-blind can distinguish (Okabe & Ito), and that differ in grey."""
MARKERS = "osD^vPX*"
MAX_ROWS = 40
"""Bars that get a label and a height each."""
MAX_TICKS = 8
"""Numbers of ranks that an axis names."""

WIDTH_IN = 5.2
"""About the width of a phone; wide screens enlarge pictures."""
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
}


@contextmanager
def figure(height_in: float) -> Iterator[tuple[Any, Any]]:
    """Yield a figure in the common style, and its axes; not of pyplot, which would keep it."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        fig = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
        yield fig, fig.subplots()


def figure_svg(fig: Any, label: str) -> str:
    """Return a figure as an SVG element that scales with the page; `label` is for screen readers.

    Metadata, which refers to other pages and repeats identifiers, is removed.
    """
    from matplotlib import rc_context

    buffer = io.StringIO()
    with rc_context(STYLE):
        fig.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    attributes = f'role="img" aria-label="{escape(label, quote=True)}"'
    return re.sub(r'<svg ([^>]*?)width="[^"]*"', rf"<svg {attributes} \1", text, count=1).replace(
        ' height="', ' data-height="', 1
    )


def time_axis(axis: Any, name: str) -> None:
    """Give an axis in seconds its name, and ticks with units: ``2 ms``, ``1.5 s``."""
    axis.set_major_formatter(lambda seconds, _: duration(seconds))
    if axis.get_scale() == "log":  # which may span less than a decade
        axis.set_minor_formatter(
            lambda seconds, _: duration(seconds) if f"{seconds:e}"[0] in "25" else ""
        )
    axis.set_label_text(name)


def name_rows(axes: Any, names: Sequence[str]) -> None:
    """Name the rows of horizontal bars, from the top, as many as there is room for."""
    stride = max(1, -(-len(names) // MAX_ROWS))
    axes.set_yticks(range(0, len(names), stride), names[::stride])
    axes.set_ylim(len(names) - 0.4, -0.6)


def bars(
    names: Sequence[str],
    parts: Mapping[str, tuple[Sequence[float], str]],
    title: str,
    axis_name: str = "time",
    errors: Any = None,
) -> str:
    """Draw a bar for each name, stacked from `parts`: the seconds of each name, and a colour.

    `errors`: how far the ends may lie below and above, (2, names).
    """
    ends = np.zeros(len(names))
    with figure(1.3 + 0.26 * min(len(names), MAX_ROWS)) as (fig, axes):
        for name, (seconds, colour) in parts.items():
            if np.any(seconds):
                axes.barh(range(len(names)), seconds, 0.8, left=ends, color=colour, label=name)
            ends += np.asarray(seconds)
        if errors is not None:
            axes.errorbar(
                ends, range(len(names)), xerr=errors, color="black", capsize=3, fmt="none"
            )
        name_rows(axes, names)
        axes.set_xlim(left=0)
        time_axis(axes.xaxis, axis_name)
        fig.suptitle(title, fontsize=10)
        fig.legend(loc="outside lower center", ncols=4)
        return figure_svg(fig, f"{title}: {', '.join(parts)}")


def over_ranks(
    lines: Mapping[str, Sequence[tuple[int, float, float, float]]],
    title: str,
    axis_name: str,
    x_label: str = "workers",
    *,
    in_seconds: bool = False,
    ranks_asked: int | None = None,
) -> str:
    """Draw curves over numbers of ranks: at each a value, its lower and its upper limit.

    The curve ``ideal`` and the number of `ranks_asked` are dotted lines.
    """
    counts = sorted({point[0] for line in lines.values() for point in line})
    with figure(2.7 + 0.1 * len(lines)) as (fig, axes):
        for number, (name, line) in enumerate(lines.items()):
            rank_counts, values, low, high = zip(*line, strict=True)
            if name == "ideal":
                axes.plot(rank_counts, values, "k:", linewidth=1, label=name)
                continue
            style = {"color": COLOURS[number % len(COLOURS)]}
            axes.fill_between(rank_counts, low, high, alpha=0.12, linewidth=0, **style)
            style["marker"] = MARKERS[number % len(MARKERS)]
            axes.plot(rank_counts, values, markersize=4, linewidth=1, label=name, **style)
        if in_seconds:
            axes.set(yscale="log")
            time_axis(axes.yaxis, axis_name)
        else:
            axes.set(ylabel=axis_name, ylim=(0, None))
        axes.set_xscale("log", base=2)
        ticks = counts[:: -max(1, -(-len(counts) // MAX_TICKS))]
        axes.set_xticks(ticks, [f"{count:,}" for count in ticks])
        axes.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
        if ranks_asked is not None:
            axes.axvline(ranks_asked, color="black", linewidth=0.8, linestyle=":")
        axes.set_xlabel(x_label)
        axes.set_title(title)
        fig.legend(loc="outside lower center", ncols=3)
        return figure_svg(fig, title)


def t_comm_distributions(groups: Mapping[str, Sequence[float]], title: str) -> str:
    """Draw all t_comm of each group, and their median."""
    with figure(1.3 + 0.6 * len(groups)) as (fig, axes):
        for row, values in enumerate(groups.values()):
            height = row + 0.25 * np.sin(2.4 * np.arange(len(values)))  # jitter, always the same
            axes.plot(values, height, "o", color="#009E73", markersize=4, alpha=0.8)
            axes.plot([np.median(values)] * 2, [row - 0.4, row + 0.4], "k--", linewidth=1)
        name_rows(axes, list(groups))
        axes.set(title=title, xlim=(0, None))
        time_axis(axes.xaxis, "t_comm (dashed: median)")
        return figure_svg(fig, title)


def draw(result: Any, ax: Axes) -> None:
    """Draw an `AnalysisResult` in a way that suits its rows and columns.

    Dihedrals are a Ramachandran map, or distributions where there is no pair of phi and psi;
    displacements are drawn over lags in log-log, with a fitted power law; rows of atoms over
    residues; many columns of one quantity as their mean, range and 5 to 95% percentiles; all others
    as lines over time, or over the number of their row.
    """
    rows = result.columns
    if rows.dtype.kind not in "biuf":
        advice = {
            "c": "plot values.real, or their absolute values",
            "V": "return rows of numbers, or one number in each field",
        }.get(rows.dtype.kind, "return rows of numbers")
        raise PlanError(f"values of type {rows.dtype} cannot be drawn: {advice}")
    if rows.dtype.kind == "b":
        rows = rows.astype(np.uint8)
    if not rows.size:
        ax.text(0.5, 0.5, "no values", transform=ax.transAxes, ha="center")
        return
    angles = _dihedral_columns(result.labels, rows)
    if angles:
        _draw_angles(angles, ax)
        return
    x: NDArray[Any] = result.time if result.per_frame else result.row_numbers
    ax.set_xlabel({"frame": "time (ps)", "lag": "lag (ps)"}.get(result.over, "row"))
    if result.per_frame and len(x) > 1 and np.ptp(x) == 0:  # a file without times
        x = result.frame
        ax.set_xlabel("frame")
    if result.has_residues:
        x = np.array(result.row_residues)
        ax.set_xlabel("residue")
    elif (
        result.over == "row"
        and result.label is None
        and (len(result.row_labels) == len(rows) <= MAX_LINES_NAMED)
    ):
        ax.set_xticks(x, result.row_labels)
    has_many_columns = bool(result.quantity) and rows.shape[1] > MAX_LINES_NAMED
    # With many lines, those of one trajectory of an ensemble have one colour and one name.
    one_name_each = result.label is not None and len(result.runs) * rows.shape[1] > MAX_LINES_NAMED
    first_lines = []
    for number, run in enumerate(result.runs):
        style: dict[str, Any] = {"color": f"C{number}"} if one_name_each else {}
        first_lines.append(len(ax.lines))
        for rising in _split_at_falls(x[run], run.start):
            rising_x, rising_rows = x[rising], rows[rising]
            if result.per_frame:
                rising_x, rising_rows = _break_at_gaps(rising_x, rising_rows)
            if result.has_residues and result.label is None and (np.diff(rising_x) == 0).any():
                _draw_atoms(rising_x, rising_rows, ax)
            elif has_many_columns and result.label is None:
                _draw_spread(rising_x, rising_rows, ax)
            else:
                marker = "." if len(rising_x) == 1 else None  # a line of one point is not seen
                ax.plot(rising_x, rising_rows, linewidth=1, marker=marker, **style)
    names = list(result.labels) if len(result.labels) == rows.shape[1] else []
    lines: Sequence[Any] = ax.lines
    if result.label is not None:
        labels = [str(result.label[run.start]) for run in result.runs]
        if one_name_each or rows.shape[1] == 1:
            names, lines = labels, [ax.lines[first] for first in first_lines]
        else:
            names = [f"{label} {name}" for label in labels for name in result.column_names]
    if result.over == "lag" and result.labels and result.labels[0].startswith("msd"):
        _draw_power(x, rows, result.label, ax)
    if result.label is None and len(names) == 1 and not result.quantity:
        ax.set_ylabel(axis_label(names[0]))
        return
    if result.quantity:
        ax.set_ylabel(axis_label(result.quantity))
    if 0 < len(names) <= MAX_LINES_NAMED:
        n_columns = 2 if max(map(len, names)) <= MAX_NARROW_LETTERS else 1
        ax.legend(lines[: len(names)], names, ncols=n_columns, **LEGEND_BELOW)


def _draw_atoms(residues: NDArray[Any], rows: NDArray[Any], ax: Axes) -> None:
    """Draw a point for each atom, and their mean over residues that have several."""
    ax.plot(residues, rows, ".", markersize=2, color=COLOURS[-1])
    numbers, first = np.unique(residues, return_index=True)
    means = np.add.reduceat(rows, first) / np.diff([*first, len(rows)])[:, None]
    ax.plot(numbers, means, linewidth=1, color=COLOURS[1])
    ax.set_xlabel("residue (points: atoms; line: their mean)")


def _draw_spread(x: NDArray[Any], rows: NDArray[Any], ax: Axes) -> None:
    """Draw the mean of many columns, where most of them lie, and where all do."""
    with np.errstate(invalid="ignore"):
        low, high = np.percentile(rows, PERCENTILES, axis=1)
        mean, lowest, highest = rows.mean(axis=1), rows.min(axis=1), rows.max(axis=1)
    style: dict[str, Any] = {"color": COLOURS[1], "linewidth": 0}
    ax.fill_between(x, lowest, highest, alpha=0.15, label="all", **style)
    ax.fill_between(x, low, high, alpha=0.3, label="{} to {} %".format(*PERCENTILES), **style)
    ax.plot(x, mean, color=COLOURS[0], linewidth=1, label=f"mean of {rows.shape[1]:,}")
    ax.legend(ncols=3, **LEGEND_BELOW)


def _split_at_falls(x: NDArray[Any], first: int) -> list[slice]:
    """Return runs of rows in which `x` does not fall: residue numbers restart with each chain."""
    edges = [0, *(np.flatnonzero(np.diff(x) < 0) + 1).tolist(), len(x)]
    return [slice(first + start, first + stop) for start, stop in pairwise(edges)]


def _break_at_gaps(x: NDArray[Any], rows: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return a curve with NaN in each gap between two runs of several rows, where it breaks."""
    if len(x) < 4:
        return x, rows
    steps = np.diff(x)
    is_gap = np.pad(steps > GAP_FACTOR * np.median(steps), 1, constant_values=True)
    gaps = np.flatnonzero(is_gap[1:-1] & ~is_gap[:-2] & ~is_gap[2:]) + 1
    with_nan = [np.insert(values.astype(float), gaps, np.nan, axis=0) for values in (x, rows)]
    return with_nan[0], with_nan[1]


def _draw_power(
    lags: NDArray[Any], rows: NDArray[Any], label: NDArray[Any] | None, ax: Axes
) -> None:
    """Draw displacements in log-log, and the power of the lag that they follow."""
    if not (rows > 0).any():  # NaN
        return
    ax.set_xscale("log", nonpositive="mask")  # the lag 0 is left out, not drawn at the edge
    ax.set_yscale("log", nonpositive="mask")
    if label is not None:
        return
    low, high = (int(share * len(lags)) for share in FITTED_LAGS)
    x, y = lags[low:high], rows[low:high, 0]
    positive = (x > 0) & (y > 0)
    if np.count_nonzero(positive) < 2:
        return
    power, log_factor = np.polyfit(np.log(x[positive]), np.log(y[positive]), 1)
    ax.plot(x, np.exp(log_factor) * x**power, "k--", linewidth=1)
    ax.annotate(f"lag$^{{{power:.2f}}}$", (0.05, 0.9), xycoords="axes fraction")


def _dihedral_columns(
    labels: Sequence[str], rows: NDArray[Any]
) -> dict[str, dict[Residue, NDArray[Any]]]:
    """Return degrees by name of the angle and residue, if all columns are dihedrals."""
    if len(labels) != rows.shape[1]:
        return {}
    n_columns = Counter[str]()
    parts: dict[tuple[str, Residue], dict[str, NDArray[Any]]] = {}
    for label, column in zip(labels, rows.T, strict=True):
        match = ANGLE.fullmatch(label)
        if match is None:
            return {}
        residue = match["residue"], n_columns[label]
        n_columns[label] += 1
        parts.setdefault((match["angle"], residue), {})[match["part"] or ""] = column
    angles: dict[str, dict[Residue, NDArray[Any]]] = {}
    for (angle, residue), part in parts.items():
        degrees = part[""] if "" in part else np.degrees(np.arctan2(part["sin"], part["cos"]))
        angles.setdefault(angle, {})[residue] = degrees
    return angles


def _draw_angles(angles: dict[str, dict[Residue, NDArray[Any]]], ax: Axes) -> None:
    limits = (-180.0, 180.0)
    ax.set_xlim(limits)
    ax.set_xticks(range(-180, 181, 60))
    residues = [residue for residue in angles.get("phi", ()) if residue in angles.get("psi", ())]
    if residues:
        phi = np.concatenate([angles["phi"][residue] for residue in residues])
        psi = np.concatenate([angles["psi"][residue] for residue in residues])
        is_finite = np.isfinite(phi) & np.isfinite(psi)
        phi, psi = phi[is_finite], psi[is_finite]
        bins: dict[str, Any] = {"bins": 90, "range": (limits, limits)}
        ax.hist2d(phi, psi, norm="log", cmap="viridis", rasterized=True, **bins)
        ax.set(xlabel="phi (°)", ylabel="psi (°)", aspect="equal", yticks=range(-180, 181, 60))
        if others := [name for name in angles if name not in ("phi", "psi")]:
            ax.set_title(f"without {' and '.join(others)}: draw these separately")
        return
    for name, residue_degrees in angles.items():
        degrees = np.concatenate(list(residue_degrees.values()))
        degrees = degrees[np.isfinite(degrees)]
        ax.hist(degrees, bins=90, range=limits, density=True, histtype="step", label=name)
    ax.set(xlabel="angle (°)", ylabel="probability per degree")
    ax.legend()
