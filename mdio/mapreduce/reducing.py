"""The reduce: all pairs of a range of keys, sorted, and the user's function called key by key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.analysis.kernels.kernel import kernel_name
from mdio.core.errors import BlockError
from mdio.mapreduce.frames import FrameTable
from mdio.mapreduce.pairs import Kind, Pairs
from mdio.mapreduce.runs import Run, gathered

TAKEN = {"key", "keys", "label", "file"}

ReduceItem = tuple[int, Sequence[Sequence[Run]]]
"""The number of a range of keys, and the pairs that it has: of each block, or of all."""


def range_label(item: ReduceItem) -> str:
    """Return how messages call a range."""
    return f"range {item[0]} of the keys"


@dataclass(slots=True)
class Table:
    """One row a key."""

    keys: NDArray[Any]
    trajectory: NDArray[np.int64]
    """Which trajectory each row is of."""
    columns: dict[str, NDArray[Any]]
    failures: list[tuple[Any, int, str]]
    """Keys whose reduce failed, their trajectory, and why."""

    @classmethod
    def empty(cls) -> Table:
        """Return a table without rows."""
        return cls(np.empty(0, np.int64), np.empty(0, np.int64), {}, [])


class ReduceWork:
    """Reduces a range of keys.

    `reduce`: the user's function. `kind`: of the pairs. `table`: numbers and times of the frames.
    `keep_going`: whether a key whose reduce fails is noted, and the others go on.
    """

    def __init__(
        self, reduce: Callable[..., Any], kind: Kind, table: FrameTable, keep_going: bool
    ) -> None:
        self._reduce, self._kind, self._table, self._keep_going = reduce, kind, table, keep_going
        self._begun = -1

    def __repr__(self) -> str:
        return f"the reduce {kernel_name(self._reduce)}"

    def __call__(self, item: ReduceItem) -> Table:
        """Return the rows of a range; raises BlockError where a reduce fails."""
        return self.reduced(gathered([run for part in item[1] for run in part], self._kind))

    def reduced(self, pairs: Pairs) -> Table:
        """Sort pairs and reduce them."""
        pairs.sort()
        of = self._table.of_trajectory(pairs.at)
        groups = pairs.groups()
        if len(self._table.firsts) > 1:
            groups = np.union1d(groups, np.flatnonzero(np.diff(of)) + 1)
        keys: list[int] = []
        rows: list[dict[str, NDArray[Any]]] = []
        failures: list[tuple[Any, int, str]] = []
        for first, stop in zip(groups[:-1].tolist(), groups[1:].tolist(), strict=True):
            key, trajectory = pairs.keys[first].item(), int(of[first])
            try:
                row = self._row(key, trajectory, pairs.rows(first, stop))
            except Exception as error:
                text = " ".join(f"{type(error).__name__}: {error}".split())
                if not self._keep_going:
                    raise BlockError(f"{self._named(key, trajectory)} failed: {text}") from error
                failures.append((key, trajectory, text))
                continue
            if rows and (odd := _unlike(rows[0], row)):
                raise BlockError(f"{self._named(key, trajectory)} returned {odd}")
            keys.append(first)
            rows.append(row)
        names = rows[0] if rows else ()
        columns = {name: np.stack([row[name] for row in rows]) for name in names}
        return Table(pairs.keys[keys], of[keys], columns, failures)

    def _named(self, key: Any, trajectory: int) -> str:
        of = f" of {self._table.labels[trajectory]}" if self._table.labels else ""
        return f"{kernel_name(self._reduce)} of the key {key!r}{of}"

    def _row(self, key: Any, trajectory: int, pairs: Pairs) -> dict[str, NDArray[Any]]:
        table, at = self._table, pairs.at
        begin = getattr(getattr(self._reduce, "__self__", None), "begin", None)
        if begin is not None and self._begun != trajectory:
            ends = [*table.firsts[1:].tolist(), len(table.number)]
            mine = slice(int(table.firsts[trajectory]), ends[trajectory])
            begin(table.number[mine], table.time[mine])
            self._begun = trajectory
        given = self._reduce(key, table.number[at], table.time[at], pairs.values)
        if not isinstance(given, dict):
            raise TypeError(f"it returned a {type(given).__name__}; expected a dict")
        row = {str(name): np.asarray(value) for name, value in given.items()}
        for name, value in row.items():
            if name in TAKEN:
                raise ValueError(f"a column cannot be called {name!r}, as files need the name")
            if value.dtype.kind not in "biufcUSmM":
                raise TypeError(f"{name!r} is {value.dtype}; give numbers, text or arrays of them")
        return row


def _unlike(first: dict[str, NDArray[Any]], row: dict[str, NDArray[Any]]) -> str:
    """Return what is wrong with a row beside another one; nothing if they go together."""
    if first.keys() != row.keys():
        return f"{list(row)}, but {list(first)} for other keys"
    for name, value in row.items():
        if value.shape != first[name].shape:
            return (
                f"{name!r} of shape {value.shape}, but {first[name].shape} for other keys; fill up "
                "to one shape"
            )
    return ""


def joined(tables: Sequence[Table], kind: Kind) -> Table:
    """Return the rows of all ranges, in the order of their keys.

    Raises BlockError: they have different columns.
    """
    filled = [table for table in tables if len(table.keys)]
    failures = [failure for table in tables for failure in table.failures]
    if not filled:
        return Table(np.empty(0, kind.columns[0][0]), np.empty(0, np.int64), {}, failures)
    first = filled[0]
    for table in filled[1:]:
        if odd := _unlike(_first_row(first), _first_row(table)):
            raise BlockError(f"the reduce of the key {table.keys[0].item()!r} returned {odd}")
    columns = {
        name: np.concatenate([table.columns[name] for table in filled]) for name in first.columns
    }
    keys = np.concatenate([table.keys for table in filled])
    trajectory = np.concatenate([table.trajectory for table in filled])
    return Table(keys, trajectory, columns, failures)


def _first_row(table: Table) -> dict[str, NDArray[Any]]:
    return {name: column[0] for name, column in table.columns.items()}
