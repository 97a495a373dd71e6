"""How results are written: NumPy's archive, and text that spreadsheets, Grace and gnuplot read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["RESULT_SUFFIXES", "columns_of", "save_as", "table"]

Row = tuple[Any, ...]


class Values(Protocol):
    """What is saved of a result; see `mdio.analysis.results.AnalysisResult`."""

    frame: NDArray[np.int64]
    time: NDArray[np.float64]
    values: NDArray[Any]
    labels: Sequence[str]
    row_labels: Sequence[str]
    per_frame: bool

    @property
    def over(self) -> str:
        """What rows are of."""
        ...


def columns_of(values: NDArray[Any]) -> NDArray[Any]:
    """Return values as rows and columns, (rows, columns)."""
    rows = np.atleast_1d(values)
    return rows.reshape(len(rows), -1)


def table(result: Values) -> tuple[list[str], Iterator[Row]]:
    """Return names of columns and the rows: frame or lag, time in ps; or a row's name; values."""
    rows = columns_of(result.values)
    names = list(result.labels)
    if len(names) != rows.shape[1]:
        names = [f"value{column}" for column in range(rows.shape[1])]
    if result.per_frame:
        heads = zip(result.frame.tolist(), result.time.tolist(), strict=True)
        return [result.over, "time_ps", *names], (
            (*head, *row.tolist()) for head, row in zip(heads, rows, strict=True)
        )
    if len(result.row_labels) == len(rows):
        return ["row", "name", *names], (
            (at, name, *row.tolist())
            for at, (name, row) in enumerate(zip(result.row_labels, rows, strict=True))
        )
    return ["row", *names], ((at, *row.tolist()) for at, row in enumerate(rows))


def _npz(result: Values, file: BinaryIO) -> None:
    arrays = {"frame": result.frame, "time": result.time, "values": result.values}
    for name, labels in (("labels", result.labels), ("row_labels", result.row_labels)):
        if len(labels):
            arrays[name] = np.array(labels)
    np.savez(file, **arrays)  # type: ignore[arg-type]


def _words(row: Row) -> list[str]:
    return [value if isinstance(value, str) else repr(value) for value in row]


def _csv(result: Values, file: BinaryIO) -> None:
    names, rows = table(result)
    file.write((",".join(names) + "\n").encode())
    for row in rows:
        file.write((",".join(_words(row)) + "\n").encode())


def _dat(result: Values, file: BinaryIO) -> None:
    names, rows = table(result)
    file.write(("#" + " ".join(names) + "\n").encode())
    for row in rows:
        file.write((" ".join(_words(row)) + "\n").encode())


def _xvg(result: Values, file: BinaryIO) -> None:
    """Write what Grace and GROMACS' tools read: time in ps (or the row), then values."""
    names, rows = table(result)
    first = 1 if result.per_frame else 0
    begin = len(names) - columns_of(result.values).shape[1]
    over = {"frame": "Time (ps)", "lag": "Lag (ps)"}.get(result.over, "Row")
    lines = [f'@    xaxis  label "{over}"', "@TYPE xy"]
    lines += [f'@ s{at} legend "{name}"' for at, name in enumerate(names[begin:])]
    file.write(("\n".join(lines) + "\n").encode())
    for row in rows:
        file.write((" ".join(map(repr, (row[first], *row[begin:]))) + "\n").encode())


WRITERS: dict[str, Callable[[Values, BinaryIO], None]] = {
    ".npz": _npz,
    ".csv": _csv,
    ".dat": _dat,
    ".xvg": _xvg,
}
RESULT_SUFFIXES = tuple(WRITERS)


def save_as(suffix: str, result: Values, file: BinaryIO) -> None:
    """Write a result to an open file, the way one of `RESULT_SUFFIXES` names.

    Text has a line of names and one line a frame (or a row of values); its numbers read back
    exactly. The archive has the arrays ``frame``, ``time``, ``values``, and ``labels`` and
    ``row_labels`` where there are any.
    """
    WRITERS[suffix](result, file)
