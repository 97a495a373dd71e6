"""What an analysis gives back, and how it is saved."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import OutputError, PlanError
from mdio.core.publish import publish
from mdio.core.timing import BlockTiming, summary

__all__ = ["AnalysisResult", "check_output"]

SUFFIXES = (".npz", ".csv")


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
            **summary(self.timings),
            "workers": self.workers,
            "executor": self.executor,
            "blocks": len(self.timings),
        }

    def save(self, path: str | PathLike[str], *, force: bool = True) -> None:
        """Write ``frame``, ``time`` and ``values`` (and ``labels``) to an NPZ or CSV file.

        The file appears when it is whole. A CSV file has a line of names and one line a frame;
        numbers in it read back exactly.

        Raises
        ------
        PlanError
            The suffix is neither; values without one row a frame cannot go to a CSV file.
        OutputError
            It cannot be written.
        """
        target = check_output(path)
        with publish(target, force=force) as temporary, temporary.open("wb") as file:
            if target.suffix == ".npz":
                arrays = {"frame": self.frame, "time": self.time, "values": self.values}
                if len(self.labels):
                    arrays["labels"] = np.array(self.labels)
                np.savez(file, **arrays)  # type: ignore[arg-type]
            else:
                self._save_csv(target, file)

    def _save_csv(self, target: Path, file: Any) -> None:
        if self.values.ndim < 1 or len(self.values) != self.n_frames:
            raise PlanError(
                f"{target}: values of shape {self.values.shape} are not one row a frame; "
                "save them as .npz"
            )
        rows = self.values.reshape(self.n_frames, -1)
        names = list(self.labels)
        if len(names) != rows.shape[1]:
            plain = ["value"] if rows.shape[1] == 1 else None
            names = plain or [f"value{column}" for column in range(rows.shape[1])]
        file.write(",".join(["frame", "time_ps", *names]).encode() + b"\n")
        for frame, time, row in zip(self.frame.tolist(), self.time.tolist(), rows, strict=True):
            file.write(",".join([str(frame), repr(time), *map(repr, row.tolist())]).encode())
            file.write(b"\n")

    def save_timings(self, path: str | PathLike[str]) -> None:
        """Write the summary and the times of every block as JSON.

        Raises
        ------
        OutputError
            It cannot be written.
        """
        record = self.to_json() | {"timings": [timing.to_json() for timing in self.timings]}
        try:
            with publish(path, force=True) as temporary:
                temporary.write_text(json.dumps(record, indent=1) + "\n")
        except OSError as error:
            if isinstance(error, OutputError):
                raise
            raise OutputError(f"{path}: it cannot be written ({error.strerror})") from error


def check_output(path: str | PathLike[str]) -> Path:
    """Return `path` if results can go there, before any work is done.

    Raises
    ------
    PlanError
        Its suffix is neither .npz nor .csv.
    """
    target = Path(path)
    if target.suffix.lower() not in SUFFIXES:
        raise PlanError(f"{target}: results are saved as .npz or .csv; change the suffix")
    return target
