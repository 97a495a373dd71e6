"""The table of measured timings that a machine profile is fitted to: read and checked."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from mdio.advisor.model.closed_form import MAX_RANKS
from mdio.advisor.model.profile import BEHAVES_LIKE, GATHER_NAMES, GATHERS, LAYOUTS
from mdio.core.errors import SourceError

MAX_ROWS = 10_000
MAX_SECONDS = 1e9
MOST_PARTS = 1.5
"""Times the total that its mean parts may be; more is a sum, or another unit."""
OPTIONAL_SECONDS = ("t_open_mean_s", "t_comm_mean_s", "t_comm_max_s", "t_total_std_s")
REQUIRED_SECONDS = ("t_total_max_s", "t_comp_mean_s", "t_io_mean_s")
TABLE_GATHERS = {**GATHER_NAMES, "none": "gather"}
"""Workers without MPI send their rows to one process, which takes them one after another."""
REQUIRED = ("layout", "gather", "workload_x", "n_ranks", *REQUIRED_SECONDS)


@dataclass(frozen=True)
class TimingRow:
    """One measured run, or the mean of its repeats; seconds."""

    layout: str
    gather: str
    workload_x: float
    n_ranks: int
    t_total_max_s: float
    """The slowest rank."""
    t_comp_mean_s: float
    t_io_mean_s: float
    t_open_mean_s: float | None = None
    t_comm_mean_s: float | None = None
    t_comm_max_s: float | None = None
    t_total_std_s: float | None = None
    """Standard deviation of `t_total_max_s` over repeats."""
    machine: str = ""

    @property
    def pair(self) -> tuple[str, str]:
        """Layout and gather."""
        return self.layout, self.gather


def read_timings(path: str | Path) -> list[TimingRow]:
    """Read timings from a CSV file with the columns of `TimingRow`; others are passed over.

    ``machine`` and the columns that may be None may be left out or empty.

    Raises SourceError: the file is missing, empty or no CSV, lacks a column, or holds a value that
    cannot be; the message names file, line and column.
    """
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            return _read(file, str(path))
    except UnicodeDecodeError:
        raise SourceError(f"{path}: this is no text file; expected CSV") from None
    except csv.Error as error:
        raise SourceError(f"{path}: this is no CSV ({error})") from None
    except SourceError:
        raise
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror})") from None


def _read(file: TextIO, path: str) -> list[TimingRow]:
    lines = csv.reader(file, strict=True)
    header = [name.strip() for name in next(lines, [])]
    if not header:
        raise SourceError(f"{path}: the file is empty; expected a header {','.join(REQUIRED)}")
    if missing := [name for name in REQUIRED if name not in header]:
        raise SourceError(
            f"{path}: line 1: column {', '.join(missing)} missing; expected {','.join(REQUIRED)}"
        )
    if twice := {name for name in header if name and header.count(name) > 1}:
        raise SourceError(f"{path}: line 1: column {', '.join(sorted(twice))} is there twice")
    rows: list[TimingRow] = []
    seen: dict[tuple[object, ...], int] = {}
    for cells in lines:
        if not any(cell.strip() for cell in cells):
            continue
        where = f"{path}: line {lines.line_num}"
        if len(cells) != len(header):
            raise SourceError(f"{where}: {len(cells)} columns, expected {len(header)}")
        row = _row(dict(zip(header, (cell.strip() for cell in cells), strict=True)), where)
        key = (*row.pair, row.workload_x, row.n_ranks)
        if key in seen:
            raise SourceError(
                f"{where}: column n_ranks: {row.layout}, {row.gather}, workload {row.workload_x:g} "
                f"at {row.n_ranks} ranks is in line {seen[key]} already; give the mean of repeats"
            )
        if rows and row.machine != rows[0].machine:
            raise SourceError(
                f"{where}: column machine: {row.machine!r} after {rows[0].machine!r}; "
                f"fit one machine at a time"
            )
        if len(rows) == MAX_ROWS:
            raise SourceError(f"{where}: more than {MAX_ROWS:,} rows; give the means of repeats")
        seen[key] = lines.line_num
        rows.append(row)
    if not rows:
        raise SourceError(f"{path}: no row after the header; expected at least one measured run")
    return rows


def _row(cells: dict[str, str], where: str) -> TimingRow:
    # What mdio itself measures (mdio bench scaling) has mdio's own names of layouts and gathers.
    cells["layout"] = BEHAVES_LIKE.get(cells["layout"], cells["layout"])
    cells["gather"] = TABLE_GATHERS.get(cells["gather"], cells["gather"])
    for name, known in (("layout", LAYOUTS), ("gather", GATHERS)):
        if cells[name] not in known:
            raise SourceError(
                f"{where}: column {name}: {cells[name]!r}, expected one of {', '.join(known)}"
            )
    ranks = _number(cells, "n_ranks", where)
    if not (ranks.is_integer() and 1 <= ranks <= MAX_RANKS):
        raise SourceError(
            f"{where}: column n_ranks: {cells['n_ranks']!r}, "
            f"expected a whole number from 1 to {MAX_RANKS:,}"
        )
    seconds: dict[str, float | None] = {}
    for name in REQUIRED_SECONDS:
        seconds[name] = _above_zero(cells, name, where)
    parts_s = (seconds["t_comp_mean_s"] or 0.0) + (seconds["t_io_mean_s"] or 0.0)
    if parts_s > MOST_PARTS * (seconds["t_total_max_s"] or 0.0):
        raise SourceError(
            f"{where}: columns t_comp_mean_s and t_io_mean_s are {parts_s:g} together, "
            f"t_total_max_s is {seconds['t_total_max_s']:g}; expected means over ranks, not sums, "
            "and seconds"
        )
    for name in OPTIONAL_SECONDS:
        seconds[name] = _number(cells, name, where) if cells.get(name) else None
    return TimingRow(
        layout=cells["layout"],
        gather=cells["gather"],
        workload_x=_above_zero(cells, "workload_x", where),
        n_ranks=int(ranks),
        machine=cells.get("machine", ""),
        **seconds,  # type: ignore[arg-type]
    )


def _above_zero(cells: dict[str, str], name: str, where: str) -> float:
    value = _number(cells, name, where)
    if value == 0:
        raise SourceError(f"{where}: column {name}: 0, expected a number above 0")
    return value


def _number(cells: dict[str, str], name: str, where: str) -> float:
    text = cells[name]
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and 0 <= value <= MAX_SECONDS):
        raise SourceError(
            f"{where}: column {name}: {text!r}, expected a number from 0 to {MAX_SECONDS:.0e}"
        )
    return value
