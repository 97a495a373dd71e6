"""The result of an analysis: saving it, summaries, and results of several trajectories."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import TextIOWrapper
from itertools import islice, pairwise
from operator import methodcaller
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import MissingExtraError, OutputError, PlanError
from mdio.core.files.store import store_at, to_path
from mdio.core.timing import BlockTiming, WorkerTiming, per_worker, summary, timing_record
from mdio.core.words import duration, notes_by_label, number_text, plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame


Row = tuple[Any, ...]


def result_table(
    result: AnalysisResult, *, labelled: bool = True
) -> tuple[list[str], Iterator[Row]]:
    """Return names of columns and the rows: label; frame or lag, time in ps, or a name; values.

    The fields of structured rows are columns, too.
    """
    columns, names = result.columns, result.column_names
    if (fields := columns.dtype.names) is not None:
        arrays = [name for name in fields if columns.dtype[name].shape]
        if columns.shape[1] > 1 or arrays:
            raise PlanError(
                f"rows have the fields {', '.join(arrays or fields)}, which hold arrays and are no "
                "columns of a table; save them as .npz, or return one number in each"
            )
        columns, names = columns[:, 0], list(fields)
    index_columns: dict[str, Iterable[Any]] = {}
    if labelled and result.label is not None:
        index_columns["label"] = result.label.tolist()
    if result.per_frame:
        index_columns |= {result.over: result.frame.tolist(), "time_ps": result.time.tolist()}
    else:
        index_columns["row"] = result.row_numbers.tolist()
        if result.has_residues:
            index_columns["residue"] = np.array(result.row_residues).tolist()
        if 0 < len(result.row_labels) == len(columns):
            index_columns["name"] = result.row_labels
    if repeated := [name for name in names if name in index_columns]:
        raise PlanError(f"the column {repeated[0]!r} is there already: give it another label")
    rows = zip(*index_columns.values(), columns, strict=True)
    # Dates and spans of time would be numbers without their unit.
    values = (lambda row: map(str, row)) if columns.dtype.kind in "mM" else methodcaller("tolist")
    return [*index_columns, *names], ((*head, *values(row)) for *head, row in rows)


def with_field_columns(result: AnalysisResult) -> AnalysisResult:
    """Return a result whose structured rows are labelled columns, if their fields are numbers."""
    columns = result.columns
    fields = columns.dtype.names
    if not fields or columns.shape[1] != 1:
        return result
    if any(columns.dtype[name].kind not in "biuf" for name in fields):
        return result
    from numpy.lib.recfunctions import structured_to_unstructured  # seldom needed

    return replace(result, values=structured_to_unstructured(columns[:, 0]), labels=fields)


def dataframe(data: Any, index: Sequence[str], columns: Sequence[str] | None = None) -> Any:
    """Return rows or columns as a pandas DataFrame; raises MissingExtraError: pandas is missing."""
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingExtraError(
            'a DataFrame needs pandas; pip install "mdio-layouts[table]"'
        ) from error
    return pd.DataFrame(data, columns=columns).set_index(list(index))


def _write_npz(result: AnalysisResult, file: BinaryIO) -> None:
    arrays = {"frame": result.frame, "time": result.time, "values": result.values}
    for name in ("labels", "row_labels", "row_residues", "label"):
        labels = getattr(result, name)
        if labels is not None and len(labels):
            arrays[name] = np.array(labels)
    np.savez(file, **arrays)  # type: ignore[arg-type]


def write_csv(file: BinaryIO, names: Iterable[str], rows: Iterable[Row]) -> None:
    """Write a line of names and the rows to an open file."""
    from csv import writer  # not imported by every analysis

    text = TextIOWrapper(file, "utf-8", newline="")
    lines = writer(text, lineterminator="\n")
    lines.writerow(names)
    lines.writerows(rows)
    text.detach()  # flushes it, and leaves the file open


def _write_dat(result: AnalysisResult, file: BinaryIO) -> None:
    names, rows = result_table(result)
    file.write(("#" + " ".join(re.sub(r"\s|^$", "_", name) for name in names) + "\n").encode())
    for row in rows:
        words = map(_word, row)
        file.write((" ".join(words) + "\n").encode())


def _word(value: Any) -> str:
    """Return a value as one word of a line, quoted as in CSV if need be; True and False as 1, 0."""
    text = str(int(value) if isinstance(value, bool) else value)
    if re.fullmatch(r'[^\s"#]+', text):
        return text
    line = " ".join(text.splitlines()).replace('"', '""')
    return f'"{line}"'


def _write_xvg(result: AnalysisResult, file: BinaryIO) -> None:
    """Write Grace's format: time in ps (or residue, or row), values; a set for each trajectory."""
    names, rows = result_table(result, labelled=False)
    names = [name.replace('"', "'") for name in names]  # they are quoted
    x_column = 1 if result.per_frame else 0
    if result.has_residues and all(
        len({*result.row_residues[run]}) == run.stop - run.start for run in result.runs
    ):
        x_column = names.index("residue")
    first_value = len(names) - len(result.columns.dtype.names or result.column_names)
    value_names = names[first_value:]
    x_label = {"frame": "Time (ps)", "lag": "Lag (ps)"}.get(result.over, names[x_column].title())
    lines = [f'@    xaxis  label "{x_label}"', "@TYPE xy"]
    if quantity := result.quantity or (value_names[0] if len(value_names) == 1 else ""):
        lines.insert(1, f'@    yaxis  label "{quantity}"')
    runs = result.runs
    labels = [""] if result.label is None else [f"{result.label[run.start]} " for run in runs]
    legends = [label + name for label in labels for name in value_names]
    lines += [f'@ s{number} legend "{legend}"' for number, legend in enumerate(legends)]
    file.writelines(f"{' '.join(line.splitlines())}\n".encode() for line in lines)
    for run in runs:
        for row in islice(rows, run.stop - run.start):
            words = map(_word, (row[x_column], *row[first_value:]))
            file.write((" ".join(words) + "\n").encode())
        file.write(b"&\n" if result.label is not None else b"")


WRITERS: dict[str, Callable[[AnalysisResult, BinaryIO], None]] = {
    ".npz": _write_npz,
    ".csv": lambda result, file: write_csv(file, *result_table(result)),
    ".dat": _write_dat,
    ".xvg": _write_xvg,
}
"""Functions that write a result to an open file.

Text has a line of names and one line a frame (or a row of values); its numbers read back exactly.
The archive has the arrays ``frame``, ``time``, ``values``, and ``labels``, ``row_labels``,
``row_residues`` and ``label`` (of the trajectory of each row) where there are any.
"""
RESULT_SUFFIXES = tuple(WRITERS)
PLOT_SUFFIXES = (".png", ".svg", ".pdf")


MAX_NAMED = 3
"""Most columns that are named in the representation of a result."""


@dataclass(slots=True)
class AnalysisResult:
    """Values over frames, and where the time went."""

    frame: NDArray[np.int64]
    """Numbers of the frames, (F,)."""
    time: NDArray[np.float64]
    """Their times, ps, (F,)."""
    values: NDArray[Any]
    """Rows of the kernel in the order of frames, (F, ...); or the result of its reducer."""
    timings: list[BlockTiming]
    """Timings of each block, in order."""
    seconds: float
    """Seconds from opening the trajectory to the last value, without imports and topology."""
    executor: str
    workers: int
    """Number of workers of the executor."""
    prepare_s: float = 0.0
    """Seconds for topology, selection and reference, with imports if not imported before."""
    labels: Sequence[str] = field(default_factory=tuple)
    """Names of the columns of `values`, where they have any."""
    row_labels: Sequence[str] = field(default_factory=tuple)
    """Names of its rows, where they are not frames but atoms, say."""
    row_residues: Sequence[int] = field(default_factory=tuple)
    """Numbers of the residues of its rows, where they are atoms."""
    per_frame: bool = True
    """Whether `values` has one row per frame."""
    label: NDArray[Any] | None = None
    """Label of the trajectory of each row, for an ensemble."""
    of_frames: int | None = None
    """Number of frames analysed, if rows are lags; `frame` and `time` are then the lags."""
    ranks: list[WorkerTiming] = field(default_factory=list)
    """Timings of each worker; under MPI also of ranks without any block."""
    gather: str | None = None
    """Method by which ranks gathered their rows, under MPI."""
    tasks: list[dict[str, Any]] = field(default_factory=list)
    """Worker and times of each block, with Dask; see `mdio.core.timing`."""
    notes: tuple[str, ...] = ()
    """Notes for the user, such as on frames dropped where files were joined."""
    quantity: str = ""
    """Quantity and unit of all columns (``distance_angstrom``), if labels do not name them."""

    def __post_init__(self) -> None:
        if not self.ranks:
            self.ranks = per_worker(self.timings)

    @property
    def n_frames(self) -> int:
        """Number of frames analysed."""
        return len(self.frame) if self.of_frames is None else self.of_frames

    @property
    def over(self) -> str:
        """Kind of the rows: ``frame``, ``lag``, or ``row`` for anything else."""
        return "row" if not self.per_frame else "frame" if self.of_frames is None else "lag"

    @property
    def columns(self) -> NDArray[Any]:
        """The values as rows and columns, (rows, columns)."""
        rows = np.atleast_1d(self.values)
        return rows.reshape(len(rows), math.prod(rows.shape[1:]))

    @property
    def column_names(self) -> list[str]:
        """Names of the columns: their labels, or ``value0`` and so on."""
        n_columns = self.columns.shape[1]
        if len(self.labels) == n_columns:
            return list(self.labels)
        return [f"value{column}" for column in range(n_columns)]

    @property
    def runs(self) -> list[slice]:
        """The rows of each label, one after the other; all of them without labels."""
        n_rows = len(np.atleast_1d(self.values))
        if self.label is None:
            return [slice(0, n_rows)]
        edges = [0, *(np.flatnonzero(self.label[1:] != self.label[:-1]) + 1).tolist(), n_rows]
        return [slice(start, stop) for start, stop in pairwise(edges) if start < stop]

    @property
    def has_residues(self) -> bool:
        """Whether each row has the number of a residue."""
        return 0 < len(self.row_residues) == len(np.atleast_1d(self.values))

    @property
    def row_numbers(self) -> NDArray[np.int64]:
        """Number of each row within its trajectory."""
        numbers = [np.arange(run.stop - run.start) for run in self.runs]
        return np.concatenate([np.arange(0), *numbers])

    def to_json(self) -> dict[str, Any]:
        """Return the numbers of the run: frames, seconds, `mdio.core.timing.summary`."""
        return {
            "n_frames": self.n_frames,
            "seconds": self.seconds,
            "prepare_s": self.prepare_s,
            **summary(self.ranks),
            "workers": self.workers,
            "executor": self.executor,
            "gather": self.gather,
            "blocks": len(self.timings),
            "notes": list(self.notes),
        }

    def save(self, path: str | PathLike[str]) -> None:
        """Write frames, times and values; the suffix gives the format.

        The file appears when it is complete, and replaces one of that name.

        Raises
        ------
        PlanError
            The suffix is not known.
        OutputError
            It cannot be written.
        """
        target = check_output(path, RESULT_SUFFIXES)
        from mdio.core.files.publish import publish  # not imported by every analysis

        with publish(target, force=True) as temporary, temporary.open("wb") as file:
            WRITERS[target.suffix.lower()](self, file)

    def to_dataframe(self) -> DataFrame:
        """Return a pandas table of the rows, indexed by frame or lag and time (ps), or by row.

        The label of the trajectory comes first, for an ensemble.

        Raises
        ------
        MissingExtraError
            pandas is not installed.
        """
        names, rows = result_table(self)
        n_index_columns = (self.label is not None) + (2 if self.per_frame else 1)
        frame: DataFrame = dataframe(list(rows), names[:n_index_columns], names)
        return frame

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the values in a way that suits them; needs matplotlib.

        Dihedrals as a Ramachandran map or distributions, displacements in log-log with the power of
        their lag, fluctuations over residues, all others over time. Fields of structured rows are
        columns.

        Parameters
        ----------
        ax
            Axes to draw in; by default those of a new figure.

        Returns
        -------
        Axes
            Where they were drawn; ``plot().figure.savefig("r.png")`` saves the picture.

        Raises
        ------
        TypeError
            `ax` is the name of a file.
        """
        if isinstance(ax, str | PathLike):
            raise TypeError(
                f"plot draws in Axes of matplotlib, not in the file {os.fspath(ax)}; save the "
                f"picture with .plot().figure.savefig({os.fspath(ax)!r})"
            )
        from matplotlib import pyplot as plt

        from mdio.analysis.plots import draw

        ax = plt.subplots()[1] if ax is None else ax
        draw(with_field_columns(self), ax)
        return ax

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.values.shape)) or "scalar"
        parts = [plural(self.n_frames, "frame"), f"{shape} {self.values.dtype}"]
        if self.over != "row" and len(self.time):
            lags = "lags of " if self.over == "lag" else ""
            parts.append(
                f"{lags}{number_text(self.time.min())} to {number_text(self.time.max())} ps"
            )
        parts += self.labels[:MAX_NAMED] if len(self.labels) <= MAX_NAMED else ()
        if self.label is not None:
            parts.append(plural(len(self.runs), "trajectory"))
        if self.notes:
            parts.append(f"{plural(len(self.notes), 'note')} (.notes)")
        return (
            f"<AnalysisResult: {', '.join(parts)}, "
            f"{duration(self.seconds)} with {plural(self.workers, 'worker')} ({self.executor})>"
        )

    def _repr_html_(self) -> str:
        """Return mean, range and sparkline of the columns, for notebooks."""
        from mdio.core.pages import html_table

        return html_table(repr(self).strip("<>"), _columns(self), ("", "values", "course"))

    def save_timings(self, path: str | PathLike[str]) -> None:
        """Write the timings as JSON; `mdio.core.timing` describes them.

        Raises
        ------
        OutputError
            It cannot be written.
        """
        from mdio.core.files.publish import publish

        with publish(check_output(path), force=True) as temporary:
            temporary.write_text(json.dumps(timing_record(self), indent=1) + "\n")


def side_by_side(
    results: Mapping[str, AnalysisResult], paths: Mapping[str, object]
) -> AnalysisResult:
    """Return the results of several trajectories as one, whose rows have labels."""
    members = list(results.values())
    first = members[0]
    rows = {label: np.atleast_1d(result.values) for label, result in results.items()}
    if len({values.shape[1:] for values in rows.values()}) > 1:
        shapes = ", ".join(f"{label}: {values.shape[1:]}" for label, values in rows.items())
        raise PlanError(f"rows of different shapes cannot be put side by side ({shapes})")
    try:
        all_rows = np.concatenate(list(rows.values()))
    except TypeError:
        types = ", ".join(f"{label}: {values.dtype}" for label, values in rows.items())
        raise PlanError(f"rows of these types cannot be put side by side ({types})") from None
    return replace(
        first,
        frame=np.concatenate([member.frame for member in members]),
        time=np.concatenate([member.time for member in members]),
        values=all_rows,
        timings=_join_timings(members),
        seconds=sum(member.seconds for member in members),
        prepare_s=sum(member.prepare_s for member in members),
        row_labels=[name for member in members for name in member.row_labels],
        row_residues=[number for member in members for number in member.row_residues],
        ranks=[],
        label=np.repeat(list(rows), list(map(len, rows.values()))),
        of_frames=sum(member.n_frames for member in members) if first.over == "lag" else None,
        tasks=[task for member in members for task in member.tasks],
        notes=notes_by_label({label: member.notes for label, member in results.items()}, paths),
    )


def _join_timings(members: Sequence[AnalysisResult]) -> list[BlockTiming]:
    """Return the timings of all blocks of several trajectories.

    Where processes were started for each trajectory, the n-th ones of all count as one worker.
    """
    timings = [timing for member in members for timing in member.timings]
    if len({timing.worker for timing in timings}) <= members[0].workers:
        return timings
    renamed = []
    for member in members:
        names = list(dict.fromkeys(timing.worker for timing in member.timings))
        number_of = {name: number for number, name in enumerate(names)}
        renamed += [
            replace(timing, worker=f"worker {number_of[timing.worker]}")
            for timing in member.timings
        ]
    return renamed


def check_output(path: str | PathLike[str], suffixes: Sequence[str] = ()) -> Path:
    """Return `path` if a file can be written there, before any work is done.

    Raises PlanError: its suffix is none of `suffixes`, where any are given. OutputError: its folder
    is missing, read-only or no folder, or it is a folder itself.
    """
    from mdio.core.files.publish import check_folder  # not imported by every analysis

    target = to_path(path)
    if not store_at(target).has_folders:
        return target
    if target.is_dir():
        raise OutputError(f"{target}: it is a folder; give the name of a file")
    if suffixes and target.suffix.lower() not in suffixes:
        raise PlanError(
            f"{target}: results are saved as {' or '.join(suffixes)}; change the suffix"
        )
    check_folder(target)
    return target


BARS = " ▁▂▃▄▅▆▇█"
WIDTH = 40
"""Letters of a sparkline."""
MAX_COLUMNS = 6
TURNS = {"_degrees": 360.0, "_radians": 2 * np.pi}
"""A full turn of the angles in a column, by the end of its name or of the quantity."""


def mean_of(values: NDArray[Any], period: float | None = None) -> float:
    """Return the mean; of angles with a full `period`, that of their directions."""
    if period is None:
        return float(values.mean())
    return float(np.angle(np.exp(2j * np.pi / period * values).mean()) * period / (2 * np.pi))


def sparkline(values: NDArray[np.float64], period: float | None = None) -> str:
    """Return `values` (F,) as a line of bars, each `mean_of` a part; NaN is blank."""
    parts = [part[np.isfinite(part)] for part in np.array_split(values, min(WIDTH, len(values)))]
    means = [mean_of(part, period) if part.size else None for part in parts]
    numbers = [mean for mean in means if mean is not None]
    if not numbers or not (sys.stdout.encoding or "").lower().startswith("utf"):
        return ""
    low, value_range = min(numbers), (max(numbers) - min(numbers)) or 1.0
    heights = [0 if mean is None else 1 + round((mean - low) / value_range * 7) for mean in means]
    return "".join(BARS[height] for height in heights)


def _columns(result: AnalysisResult) -> list[tuple[str, str, str]]:
    """Return name, statistics and sparkline of the first columns."""
    result = with_field_columns(result)
    if result.values.dtype.kind not in "biuf" or not result.values.size:
        return []
    names, rows = result.column_names, []
    for name, column in zip(names[:MAX_COLUMNS], result.columns.T, strict=False):
        finite = column[np.isfinite(column)]
        quantity = result.quantity or name
        period = next(
            (period for ending, period in TURNS.items() if quantity.endswith(ending)), None
        )
        numbers = "no finite value"
        if finite.size:
            kind = "mean" if period is None else "circular mean"
            mean = mean_of(finite, period)
            numbers = f"{kind} {mean:.4g}, {finite.min():.4g} to {finite.max():.4g}"
            if finite.size < column.size:
                n_others = column.size - finite.size
                numbers += f" (without {n_others:,} of {column.size:,}, NaN or infinite)"
        sparkline_text = sparkline(column.astype(np.float64), period) if len(column) > 1 else ""
        rows.append((name, numbers, sparkline_text))
    if len(names) > MAX_COLUMNS:
        rows.append((f"and {len(names) - MAX_COLUMNS:,} more columns", "", ""))
    return rows


def row_text(result: AnalysisResult) -> str:
    """Return how many values a row has."""
    n_columns, fields = result.columns.shape[1], result.values.dtype.names
    return plural(n_columns * len(fields) if fields else n_columns, "value")


def summary_lines(result: AnalysisResult) -> list[str]:
    """Return a summary: a line for each of the first columns."""
    columns = _columns(result)
    if not columns:
        rows = plural(len(result.columns), result.over)
        columns = [(f"{rows} of {row_text(result)}, {result.values.dtype}", "", "")]
    width = max((len(name) for name, numbers, _ in columns if numbers), default=0)
    lines = [
        f"  {name:<{width}}  {numbers}  {sparkline_text}".rstrip()
        for name, numbers, sparkline_text in columns
    ]
    return [*lines, "  -o FILE saves all of it (.npz, .csv, .dat, .xvg)"]
