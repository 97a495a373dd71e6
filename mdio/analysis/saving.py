"""How results are written: NumPy's archive, and text that spreadsheets, Grace and gnuplot read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice, pairwise
from typing import Any, BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import MissingExtraError

Row = tuple[Any, ...]


class Values(Protocol):
    """What is saved of a result; see `mdio.analysis.results.AnalysisResult`."""

    frame: NDArray[np.int64]
    time: NDArray[np.float64]
    values: NDArray[Any]
    labels: Sequence[str]
    row_labels: Sequence[str]
    per_frame: bool
    label: NDArray[Any] | None

    @property
    def over(self) -> str:
        """What rows are of."""
        ...


def columns_of(values: NDArray[Any]) -> NDArray[Any]:
    """Return values as rows and columns, (rows, columns)."""
    rows = np.atleast_1d(values)
    return rows.reshape(len(rows), -1)


def runs_of(label: NDArray[Any] | None, n_rows: int) -> list[slice]:
    """Return the rows that have the same label, one after the other; all of them without labels."""
    if label is None:
        return [slice(0, n_rows)]
    edges = [0, *(np.flatnonzero(label[1:] != label[:-1]) + 1).tolist(), n_rows]
    return [slice(a, b) for a, b in pairwise(edges)]


def table(result: Values) -> tuple[list[str], Iterator[Row]]:
    """Return names of columns and the rows: label; frame or lag, time in ps, or a name; values."""
    names, rows = _table(result)
    if result.label is None:
        return names, rows
    labels = result.label.tolist()
    return ["label", *names], ((label, *row) for label, row in zip(labels, rows, strict=True))


def _table(result: Values) -> tuple[list[str], Iterator[Row]]:
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


def dataframe(data: Any, index: Sequence[str], columns: Sequence[str] | None = None) -> Any:
    """Return rows or columns as a pandas DataFrame; raises MissingExtraError: pandas is missing."""
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingExtraError(
            'a DataFrame needs pandas; pip install "mdio-layouts[table]"'
        ) from error
    return pd.DataFrame(data, columns=columns).set_index(list(index))


def _npz(result: Values, file: BinaryIO) -> None:
    arrays = {"frame": result.frame, "time": result.time, "values": result.values}
    for name, labels in (
        ("labels", result.labels),
        ("row_labels", result.row_labels),
        ("label", result.label),
    ):
        if labels is not None and len(labels):
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
    """Write what Grace and GROMACS' tools read: time in ps (or the row), then values.

    A set for each trajectory of an ensemble.
    """
    names, rows = _table(result)
    first = 1 if result.per_frame else 0
    begin = len(names) - columns_of(result.values).shape[1]
    over = {"frame": "Time (ps)", "lag": "Lag (ps)"}.get(result.over, "Row")
    lines = [f'@    xaxis  label "{over}"', "@TYPE xy"]
    runs = runs_of(result.label, len(columns_of(result.values)))
    of = [""] if result.label is None else [f"{result.label[run.start]} " for run in runs]
    legends = [one + name for one in of for name in names[begin:]]
    lines += [f'@ s{at} legend "{legend}"' for at, legend in enumerate(legends)]
    file.write(("\n".join(lines) + "\n").encode())
    for run in runs:
        for row in islice(rows, run.stop - run.start):
            file.write((" ".join(map(repr, (row[first], *row[begin:]))) + "\n").encode())
        file.write(b"&\n" if result.label is not None else b"")


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
