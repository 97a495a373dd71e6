"""What an analysis gives back, and how it is saved."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mdio.analysis.saving import RESULT_SUFFIXES, columns_of, dataframe, runs_of, save_as, table
from mdio.analysis.timings import record
from mdio.core.errors import OutputError, PlanError
from mdio.core.files.remote.paths import RemotePath, path_of
from mdio.core.timing import BlockTiming, WorkerTiming, per_worker, summary
from mdio.core.words import axis_label, duration, notes_by_label, plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

MOST_NAMED = 3
"""Columns that a prompt names."""
MOST_LINES_NAMED = 10
"""Lines of a plot that get a legend."""


@dataclass(slots=True)
class AnalysisResult:
    """Values over frames, and where the time went."""

    frame: NDArray[np.int64]
    """Numbers of the frames, (F,)."""
    time: NDArray[np.float64]
    """Their times, ps, (F,)."""
    values: NDArray[Any]
    """What the kernel computed, in the order of frames: (F, ...); or what its reducer made."""
    timings: list[BlockTiming]
    """Of each block, in order."""
    seconds: float
    """From opening the trajectory until all values were there, without imports and topology."""
    executor: str
    workers: int
    """How many the executor had."""
    prepare_s: float = 0.0
    """Topology, selection and reference; imports too, if they were the first."""
    labels: Sequence[str] = field(default_factory=tuple)
    """Names of the columns of `values`, where they have any."""
    row_labels: Sequence[str] = field(default_factory=tuple)
    """Names of its rows, where they are not frames but atoms, say."""
    per_frame: bool = True
    """Whether `values` has one row a frame."""
    label: NDArray[Any] | None = None
    """Of an ensemble: which trajectory each row is of."""
    of_frames: int | None = None
    """Where rows are lags, `frame` and `time` are these, and this many frames were analysed."""
    ranks: list[WorkerTiming] = field(default_factory=list)
    """Of each worker; under MPI also of ranks without any block."""
    gather: str | None = None
    """How ranks brought their rows together, under MPI."""
    tasks: list[dict[str, Any]] = field(default_factory=list)
    """With Dask: which worker had which block when; see `mdio.analysis.timings`."""
    notes: tuple[str, ...] = ()
    """What was dropped where files were joined, or put into another order."""

    def __post_init__(self) -> None:
        if not self.ranks:
            self.ranks = per_worker(self.timings)

    @property
    def n_frames(self) -> int:
        """Number of frames analysed."""
        return len(self.frame) if self.of_frames is None else self.of_frames

    @property
    def over(self) -> str:
        """What rows are of: frames, lags, or whatever has `row_labels`."""
        return "row" if not self.per_frame else "frame" if self.of_frames is None else "lag"

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
        """Write frames, times and values as the suffix says; see `mdio.analysis.saving`.

        The file appears when it is whole, and replaces one of that name.

        Raises
        ------
        PlanError
            The suffix is not known.
        OutputError
            It cannot be written.
        """
        target = check_output(path, RESULT_SUFFIXES)
        from mdio.core.files.publish import publish  # most results are looked at only

        with publish(target, force=True) as temporary, temporary.open("wb") as file:
            save_as(target.suffix.lower(), self, file)

    def to_dataframe(self) -> DataFrame:
        """Return a pandas table with one row a frame, indexed by number and time (ps).

        Raises
        ------
        MissingExtraError
            pandas is not installed.
        """
        names, rows = table(self)
        heads = (self.label is not None) + (2 if self.per_frame else 1)
        found: DataFrame = dataframe(list(rows), names[:heads], names)
        return found

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the values over time (or over their rows), one line a column; needs matplotlib."""
        from matplotlib import pyplot as plt

        ax = plt.subplots()[1] if ax is None else ax
        rows = columns_of(self.values)
        over = self.time if self.per_frame else np.arange(len(rows))
        for part in runs_of(self.label, len(rows)):
            ax.plot(over[part], rows[part], linewidth=1)
        ax.set_xlabel({"frame": "time (ps)", "lag": "lag (ps)"}.get(self.over, "row"))
        names = self.labels if len(self.labels) == rows.shape[1] else ()
        if self.label is not None:
            of = [str(self.label[part.start]) for part in runs_of(self.label, len(rows))]
            names = [f"{one} {name}" for one in of for name in names] if len(names) > 1 else of
        if self.label is None and len(names) == 1:
            ax.set_ylabel(axis_label(names[0]))
        elif 0 < len(names) <= MOST_LINES_NAMED:
            ax.legend(names)
        return ax

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.values.shape))
        told = [plural(self.n_frames, "frame"), f"{shape} {self.values.dtype}"]
        if self.over != "row" and len(self.time):
            lags = "lags of " if self.over == "lag" else ""
            told.append(f"{lags}{self.time[0]:g} to {self.time[-1]:g} ps")
        told += self.labels[:MOST_NAMED] if len(self.labels) <= MOST_NAMED else ()
        if self.label is not None:
            told.append(plural(len(runs_of(self.label, len(self.label))), "trajectory"))
        return (
            f"<AnalysisResult: {', '.join(told)}, "
            f"{duration(self.seconds)} with {plural(self.workers, 'worker')} ({self.executor})>"
        )

    def _repr_html_(self) -> str:
        """Return what notebooks show: mean, least, greatest and course of the columns."""
        html: str = import_module("mdio.analysis.pages.overview").as_html(self)
        return html

    def save_timings(self, path: str | PathLike[str]) -> None:
        """Write where the time went, as JSON; `mdio.analysis.timings` says what is in it.

        Raises
        ------
        OutputError
            It cannot be written.
        """
        from mdio.core.files.publish import publish

        with publish(check_output(path), force=True) as temporary:
            temporary.write_text(json.dumps(record(self), indent=1) + "\n")


def side_by_side(results: Mapping[str, AnalysisResult]) -> AnalysisResult:
    """Return the results of several trajectories as one, whose rows have labels.

    Raises PlanError: their rows are of different shapes.
    """
    every = list(results.values())
    first = every[0]
    values = [np.atleast_1d(one.values) for one in every]
    if len({one.shape[1:] for one in values}) > 1:
        shapes = ", ".join(f"{k}: {v.shape[1:]}" for k, v in zip(results, values, strict=True))
        raise PlanError(f"rows of different shapes cannot be put side by side ({shapes})")
    return replace(
        first,
        frame=np.concatenate([one.frame for one in every]),
        time=np.concatenate([one.time for one in every]),
        values=np.concatenate(values),
        timings=[timing for one in every for timing in one.timings],
        seconds=sum(one.seconds for one in every),
        prepare_s=sum(one.prepare_s for one in every),
        row_labels=[name for one in every for name in one.row_labels],
        ranks=[],
        label=np.repeat(list(results), [len(one) for one in values]),
        of_frames=sum(one.n_frames for one in every) if first.over == "lag" else None,
        tasks=[task for one in every for task in one.tasks],
        notes=notes_by_label({label: one.notes for label, one in results.items()}),
    )


def check_output(path: str | PathLike[str], suffixes: Sequence[str] = ()) -> Path:
    """Return `path` if a file can be written there, before any work is done.

    Raises PlanError: its suffix is none of `suffixes`, where any are given. OutputError: its folder
    is missing or read-only, or it is a folder itself.
    """
    target = path_of(path)
    if isinstance(target, RemotePath):
        return target
    if target.is_dir():
        raise OutputError(f"{target}: it is a folder; give the name of a file")
    if suffixes and target.suffix.lower() not in suffixes:
        raise PlanError(
            f"{target}: results are saved as {' or '.join(suffixes)}; change the suffix"
        )
    if not target.parent.is_dir():
        raise OutputError(f"{target}: the folder {target.parent} does not exist; make it first")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise OutputError(f"{target}: the folder {target.parent} is not writable")
    return target
