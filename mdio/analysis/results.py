"""What an analysis gives back, and how it is saved."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from mdio.analysis.timings import record
from mdio.core.errors import OutputError, PlanError
from mdio.core.files.publish import publish
from mdio.core.timing import BlockTiming, WorkerTiming, per_worker, summary

__all__ = ["RESULT_SUFFIXES", "AnalysisResult", "check_output"]

RESULT_SUFFIXES = (".npz", ".csv")


@dataclass(slots=True)
class AnalysisResult:
    """Values over frames, and where the time went."""

    frame: NDArray[np.int64]
    """Numbers of the frames, (F,)."""
    time: NDArray[np.float64]
    """Their times, ps, (F,)."""
    values: NDArray[Any]
    """What the kernel computed, in the order of frames: (F, ...); or what its reducer made."""
    timings: list[BlockTiming] = field(repr=False)
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
    per_frame: bool = True
    """Whether `values` has one row a frame."""
    ranks: list[WorkerTiming] = field(default_factory=list, repr=False)
    """Of each worker; under MPI also of ranks without any block."""
    gather: str | None = None
    """How ranks brought their rows together, under MPI."""
    tasks: list[dict[str, Any]] = field(default_factory=list, repr=False)
    """With Dask: which worker had which block when; see `mdio.analysis.timings`."""
    notes: tuple[str, ...] = ()
    """What was dropped where files were joined, or put into another order."""

    def __post_init__(self) -> None:
        if not self.ranks:
            self.ranks = per_worker(self.timings)

    @property
    def n_frames(self) -> int:
        """Number of frames analysed."""
        return len(self.frame)

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
        """Write ``frame``, ``time`` and ``values`` (and ``labels``) to an NPZ or CSV file.

        The file appears when it is whole, and replaces one of that name. A CSV file has a line of
        names and one line a frame (or, with values that are not by frame, one a row); numbers in
        it read back exactly.

        Raises
        ------
        PlanError
            The suffix is neither.
        OutputError
            It cannot be written.
        """
        target = check_output(path, RESULT_SUFFIXES)
        with publish(target, force=True) as temporary, temporary.open("wb") as file:
            if target.suffix.lower() == ".npz":
                arrays = {"frame": self.frame, "time": self.time, "values": self.values}
                if len(self.labels):
                    arrays["labels"] = np.array(self.labels)
                np.savez(file, **arrays)  # type: ignore[arg-type]
            else:
                self._save_csv(file)

    def _save_csv(self, file: BinaryIO) -> None:
        rows = np.atleast_1d(self.values)
        rows = rows.reshape(len(rows), -1)
        names = list(self.labels)
        if len(names) != rows.shape[1]:
            names = [f"value{column}" for column in range(rows.shape[1])]
        if self.per_frame:
            names = ["frame", "time_ps", *names]
            heads = zip(self.frame.tolist(), self.time.tolist(), strict=True)
            lines = (
                (frame, time, *row.tolist()) for (frame, time), row in zip(heads, rows, strict=True)
            )
        else:
            names = ["row", *names]
            lines = ((number, *row.tolist()) for number, row in enumerate(rows))
        file.write((",".join(names) + "\n").encode())
        for line in lines:
            file.write((",".join(map(repr, line)) + "\n").encode())

    def save_timings(self, path: str | PathLike[str]) -> None:
        """Write where the time went, as JSON; `mdio.analysis.timings` says what is in it.

        Raises
        ------
        OutputError
            It cannot be written.
        """
        with publish(check_output(path), force=True) as temporary:
            temporary.write_text(json.dumps(record(self), indent=1) + "\n")


def check_output(path: str | PathLike[str], suffixes: Sequence[str] = ()) -> Path:
    """Return `path` if a file can be written there, before any work is done.

    Raises
    ------
    PlanError
        Its suffix is none of `suffixes`, where any are given.
    OutputError
        Its folder is missing or read-only, or it is a folder itself.
    """
    target = Path(path)
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
