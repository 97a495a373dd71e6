"""Pictures of results: curves over time, maps of angles, distributions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.words import axis_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ANGLE = re.compile(r"(?P<part>cos|sin)?\(?(?P<angle>\w+):(?P<residue>[^)]*)\)?")
"""Labels of dihedral angles: ``phi:4AKE:ARG2``, or ``cos(...)`` and ``sin(...)`` of it."""
RESIDUE = re.compile(r":[A-Za-z0-9+-]*?(-?\d+)[A-Za-z]?(?::|$)")
"""In the name of an atom, ``4AKE:MET1:CA``."""
MOST_LINES_NAMED = 10
"""Lines that get a legend."""
FITTED_LAGS = (0.1, 0.5)
"""Share of the lags in which the power of a displacement is fitted."""


def draw(result: Any, ax: Axes) -> None:
    """Draw an `AnalysisResult` in a way that suits its rows and columns.

    Dihedrals are a Ramachandran map, or distributions where there is no pair of phi and psi;
    displacements lie over lags in log-log with their power; rows with names of atoms lie over
    residues; all others are lines over time, or over the number of their row.
    """
    rows = result.columns
    angles = _dihedral_columns(result.labels, rows)
    if angles:
        _draw_angles(angles, ax)
        return
    x: NDArray[Any] = result.time if result.per_frame else np.arange(len(rows))
    ax.set_xlabel({"frame": "time (ps)", "lag": "lag (ps)"}.get(result.over, "row"))
    numbers = [RESIDUE.search(name) for name in result.row_labels]
    if len(numbers) == len(rows) and all(numbers):
        x = np.array([int(match[1]) for match in numbers if match])
        ax.set_xlabel("residue")
    for part in result.runs:
        for part_of_chain in _split_at_falls(x[part], part.start):
            ax.plot(x[part_of_chain], rows[part_of_chain], linewidth=1)
    names = list(result.labels) if len(result.labels) == rows.shape[1] else []
    if result.label is not None:
        labels = [str(result.label[part.start]) for part in result.runs]
        several = len(names) > 1
        names = [f"{label} {name}" for label in labels for name in names] if several else labels
    if result.over == "lag" and result.labels and result.labels[0].startswith("msd"):
        _draw_power(x, rows, result.label, ax)
    if result.label is None and len(names) == 1:
        ax.set_ylabel(axis_label(names[0]))
    elif 0 < len(names) <= MOST_LINES_NAMED:
        ax.legend(names)


def _split_at_falls(over: NDArray[Any], first: int) -> list[slice]:
    """Return runs of rows in which `over` does not fall: residues start anew with each chain."""
    edges = [0, *(np.flatnonzero(np.diff(over) < 0) + 1).tolist(), len(over)]
    return [slice(first + a, first + b) for a, b in pairwise(edges)]


def _draw_power(
    lags: NDArray[Any], rows: NDArray[Any], label: NDArray[Any] | None, ax: Axes
) -> None:
    """Draw displacements in log-log, and the power of the lag that they follow."""
    ax.set_xscale("log")
    ax.set_yscale("log")
    if label is not None:
        return
    low, high = (int(share * len(lags)) for share in FITTED_LAGS)
    x, y = lags[low:high], rows[low:high, 0]
    positive = (x > 0) & (y > 0)
    if np.count_nonzero(positive) < 2:
        return
    power, factor = np.polyfit(np.log(x[positive]), np.log(y[positive]), 1)
    ax.plot(x, np.exp(factor) * x**power, "k--", linewidth=1)
    ax.annotate(f"lag$^{{{power:.2f}}}$", (0.05, 0.9), xycoords="axes fraction")


def _dihedral_columns(
    labels: Sequence[str], rows: NDArray[Any]
) -> dict[str, dict[str, NDArray[Any]]]:
    """Return degrees by name of the angle and residue, if all columns are dihedrals."""
    if len(labels) != rows.shape[1]:
        return {}
    parts: dict[tuple[str, str], dict[str, NDArray[Any]]] = {}
    for label, column in zip(labels, rows.T, strict=True):
        match = ANGLE.fullmatch(label)
        if match is None:
            return {}
        parts.setdefault((match["angle"], match["residue"]), {})[match["part"] or ""] = column
    angles: dict[str, dict[str, NDArray[Any]]] = {}
    for (angle, residue), part in parts.items():
        degrees = part[""] if "" in part else np.degrees(np.arctan2(part["sin"], part["cos"]))
        angles.setdefault(angle, {})[residue] = degrees
    return angles


def _draw_angles(angles: dict[str, dict[str, NDArray[Any]]], ax: Axes) -> None:
    limits = (-180.0, 180.0)
    ax.set_xlim(limits)
    ax.set_xticks(range(-180, 181, 60))
    residues = [residue for residue in angles.get("phi", ()) if residue in angles.get("psi", ())]
    if residues:
        phi, psi = (np.concatenate([angles[name][k] for k in residues]) for name in ("phi", "psi"))
        finite = np.isfinite(phi) & np.isfinite(psi)
        ax.hist2d(
            *(phi[finite], psi[finite]), bins=90, range=(limits, limits), norm="log", cmap="viridis"
        )
        ax.set(xlabel="phi (°)", ylabel="psi (°)", aspect="equal", yticks=range(-180, 181, 60))
        return
    for name, of_residues in angles.items():
        degrees = np.concatenate(list(of_residues.values()))
        finite = degrees[np.isfinite(degrees)]
        ax.hist(finite, bins=90, range=limits, density=True, histtype="step", label=name)
    ax.set(xlabel="angle (°)", ylabel="share of all per degree")
    ax.legend()
