"""The result of a map-reduce: a table with one row for each key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.analysis.results import check_output, dataframe, write_csv
from mdio.core.errors import MissingExtraError, PlanError
from mdio.core.files.publish import publish
from mdio.core.timing import BlockTiming, per_worker, summary
from mdio.core.words import plural

TABLE_SUFFIXES = (".npz", ".csv", ".parquet")
MAP_TOTALS = ("t_open_s", "t_io_s", "t_comp_s", "nbytes_read", "nbytes_source", "nbytes_cache")
"""Times and bytes of the map that `MapReduceResult.to_json` has."""

MAX_ROWS, MAX_COLUMNS = 10, 8
"""Size of the table in a notebook."""


def check_table(path: str | PathLike[str]) -> Path:
    """Return `path` if a table can be written there, before any work is done; else raise."""
    target = check_output(path, TABLE_SUFFIXES)
    if target.suffix.lower() == ".parquet":
        try:
            import pyarrow.parquet  # type: ignore[import-untyped]  # noqa: F401
        except ImportError as error:
            raise MissingExtraError(
                'Parquet needs pyarrow; pip install "mdio-layouts[table]", or save .npz or .csv'
            ) from error
    return target


@dataclass(slots=True, repr=False)
class MapReduceResult:
    """A row for each key, keys ascending; several trajectories of a key in the order given."""

    keys: NDArray[Any]
    """Keys, (K,)."""
    columns: dict[str, NDArray[Any]]
    """Values returned by the reduce, by name, (K, ...)."""
    label: NDArray[Any] | None
    """The trajectory of each row, (K,), where several were given by label."""
    failures: list[tuple[Any, str | None, str]]
    """Keys whose reduce failed (with `keep_going`), label of the trajectory, and error."""
    frame: NDArray[np.int64]
    """Numbers of all frames that were mapped, (F,)."""
    time: NDArray[np.float64]
    """Their times, ps, (F,)."""
    n_pairs: NDArray[np.int64]
    """Number of pairs of each frame, (F,)."""
    timings: list[BlockTiming]
    """Timings of each block of the map."""
    seconds: float
    """Seconds from opening the trajectory to the finished table, without imports and topology."""
    reduce_s: float
    """Seconds of the shuffle and the reduce, part of `seconds`."""
    executor: str
    workers: int
    nbytes_shuffled: int
    """Bytes of the combined pairs."""
    nbytes_on_disk: int
    """Bytes of pairs that were written to the local folder."""
    firsts: tuple[int, ...] = (0,)
    """Index of the first frame of each trajectory."""
    prepare_s: float = 0.0
    """Seconds for topology and selections, and for the imports that these still needed."""
    notes: tuple[str, ...] = ()
    """Notes for the user, such as on frames dropped where files were joined."""

    @property
    def n_frames(self) -> int:
        """Number of frames that were mapped."""
        return len(self.frame)

    def trajectories(self) -> list[slice]:
        """Return the slice of `frame` of each trajectory."""
        ends = [*self.firsts[1:], len(self.frame)]
        return [slice(first, end) for first, end in zip(self.firsts, ends, strict=True)]

    def __repr__(self) -> str:
        columns = ", ".join(
            name + (f" ({'x'.join(map(str, column.shape[1:]))})" if column.ndim > 1 else "")
            for name, column in self.columns.items()
        )
        parts = [plural(len(self.keys), "key")]
        parts += [f"{len(self.failures):,} failed"] if self.failures else []
        parts += [f"columns {columns or 'none'}", plural(self.n_frames, "frame")]
        return (
            f"<MapReduceResult: {', '.join(parts)}, "
            f"{self.seconds:.2f} s, {self.workers} workers ({self.executor})>"
        )

    def _repr_html_(self) -> str:
        """Return the first rows of the table, for notebooks."""
        from mdio.core.pages import html_table

        flat = dict(list(self._columns())[:MAX_COLUMNS])
        rows = zip(*(column[:MAX_ROWS].tolist() for column in flat.values()), strict=True)
        return html_table(repr(self).strip("<>"), rows, list(flat))

    def to_json(self) -> dict[str, Any]:
        """Return the numbers of the run."""
        times = summary(per_worker(self.timings))
        return {
            "n_frames": self.n_frames,
            "n_pairs": int(self.n_pairs.sum()),
            "n_keys": len(self.keys),
            "columns": {name: list(column.shape[1:]) for name, column in self.columns.items()},
            "failed": [
                {"key": key, "label": label, "error": error} for key, label, error in self.failures
            ],
            "seconds": self.seconds,
            "reduce_s": self.reduce_s,
            "prepare_s": self.prepare_s,
            **{name: times[name] for name in MAP_TOTALS},
            "executor": self.executor,
            "workers": self.workers,
            "nbytes_shuffled": self.nbytes_shuffled,
            "nbytes_on_disk": self.nbytes_on_disk,
            "notes": list(self.notes),
        }

    def flat(self) -> dict[str, NDArray[Any]]:
        """Return the table with a column for each number: those of arrays are ``NAME_0``, ...

        With several trajectories the first column is ``label``, as in results of `mdio.analyze`.

        Raises
        ------
        PlanError
            Two columns would have one name.
        """
        columns: dict[str, NDArray[Any]] = {}
        for name, column in self._columns():
            if name in columns:
                raise PlanError(f"two columns would be called {name!r}; save an .npz instead")
            columns[name] = column
        return columns

    def _columns(self) -> Iterator[tuple[str, NDArray[Any]]]:
        if self.label is not None:
            yield "label", self.label
        yield "key", self.keys
        for name, column in self.columns.items():
            if column.ndim == 1:
                yield name, column
            for index in np.ndindex(column.shape[1:]) if column.ndim > 1 else ():
                yield "_".join([name, *map(str, index)]), column[(slice(None), *index)]

    def to_dataframe(self) -> Any:
        """Return the columns of `flat` as a pandas DataFrame, indexed by label and key.

        Without labels, by key alone; `mdio.analyze` has labels in the index too.

        Raises
        ------
        MissingExtraError
            pandas is not installed.
        """
        index_columns = ["key"] if self.label is None else ["label", "key"]
        return dataframe(self.flat(), index_columns)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the table to an NPZ, CSV or Parquet file, which appears when it is complete.

        An NPZ file has the arrays ``keys``, ``label`` (where there is one) and those of `columns`,
        of any shape; the others have the columns of `flat`.

        Raises
        ------
        PlanError
            The suffix is none of these.
        MissingExtraError
            The suffix is that of Parquet, and pyarrow is not installed.
        OutputError
            The file cannot be written.
        """
        target = check_table(path)
        with publish(target, force=True) as temporary, temporary.open("wb") as file:
            if target.suffix.lower() == ".npz":
                arrays = {"keys": self.keys, **self.columns}
                if self.label is not None:
                    arrays["label"] = self.label
                np.savez(file, **arrays)  # type: ignore[arg-type]
                return
            flat = {name: column.tolist() for name, column in self.flat().items()}
            if target.suffix.lower() == ".csv":
                write_csv(file, flat, zip(*flat.values(), strict=True))
                return
            from pyarrow import parquet, table

            parquet.write_table(table(flat), file)
