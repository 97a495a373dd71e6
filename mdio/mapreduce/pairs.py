"""Pairs of keys and values: what a map gives, what travels, and what a reduce gets.

Pairs lie in columns: the keys, which frame each is of (`at`, counted over all frames that are
mapped), and the values by name. Keys are int64, float64, text or bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

KEYS = {"i": "whole numbers", "f": "numbers with fractions", "U": "text", "S": "bytes"}
"""What keys may be, by numpy's letter."""
TYPES = ((int | np.integer | np.bool_, "i"), (float | np.floating, "f"), (str, "U"), (bytes, "S"))


@dataclass(frozen=True, slots=True)
class Kind:
    """The columns of pairs: names of the values, dtype and shape of a row of each column."""

    names: tuple[str, ...]
    columns: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def nbytes(self) -> int:
        """Of one pair."""
        return sum(np.dtype(dtype).itemsize * math.prod(shape) for dtype, shape in self.columns)

    def joined(self, other: Kind) -> Kind:
        """Return the kind that both can be turned into.

        Raises ValueError: there is none.
        """
        if self == other:
            return self
        mine, theirs = (np.dtype(kind.columns[0][0]).kind for kind in (self, other))
        if mine != theirs:
            raise ValueError(f"keys are {KEYS[mine]} and {KEYS[theirs]}; give all one type")
        if self.names != other.names:
            raise ValueError(f"values are {_list(self.names)} and then {_list(other.names)}")
        columns = []
        pairs = zip(("", "", *self.names), self.columns, other.columns, strict=True)
        for name, (one, shape), (two, other_shape) in pairs:
            if shape != other_shape:
                raise ValueError(
                    f"each value of {name!r} has the shape {shape} and then {other_shape}"
                )
            try:
                columns.append((np.result_type(one, two).str, shape))
            except TypeError:
                raise ValueError(f"values of {name!r} are {one} and then {two}") from None
        return Kind(self.names, tuple(columns))


@dataclass(slots=True)
class Pairs:
    """Pairs, in columns of equal length.

    Attributes: `names`: of the values. `columns`: keys (K,), `at` (K,), and the values (K, ...) in
    the order of their names.
    """

    names: tuple[str, ...]
    columns: list[NDArray[Any]]

    @classmethod
    def empty(cls, kind: Kind, n_pairs: int) -> Self:
        """Return room for pairs."""
        columns = [np.empty((n_pairs, *shape), dtype) for dtype, shape in kind.columns]
        return cls(kind.names, columns)

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def keys(self) -> NDArray[Any]:
        """(K,)."""
        return self.columns[0]

    @property
    def at(self) -> NDArray[Any]:
        """Which of all frames that are mapped, (K,)."""
        return self.columns[1]

    @property
    def values(self) -> dict[str, NDArray[Any]]:
        """By name, (K, ...)."""
        return dict(zip(self.names, self.columns[2:], strict=True))

    @property
    def kind(self) -> Kind:
        """What the columns are."""
        return Kind(self.names, tuple((one.dtype.str, one.shape[1:]) for one in self.columns))

    def rows(self, start: int, stop: int) -> Pairs:
        """Return a run of them (views)."""
        return Pairs(self.names, [column[start:stop] for column in self.columns])

    def sort(self) -> None:
        """Sort by key, those of one key by frame, those of one frame as they came."""
        order = np.argsort(self.keys, kind="stable")
        keys, at = self.keys[order], self.at[order]
        if np.any((keys[1:] == keys[:-1]) & (at[1:] < at[:-1])):
            order = np.lexsort((self.at, self.keys))
            at = self.at[order]
        self.columns[:2] = [keys, at]
        for number in range(2, len(self.columns)):  # one after the other: room for one copy
            self.columns[number] = self.columns[number][order]

    def groups(self) -> NDArray[np.int64]:
        """Return where the pairs of each key begin, and the end; they must be sorted."""
        if not len(self):
            return np.zeros(1, np.int64)
        changes = np.flatnonzero(self.keys[1:] != self.keys[:-1]) + 1
        return np.concatenate(([0], changes, [len(self)]))


def as_keys(given: Any) -> NDArray[Any]:
    """Return keys as an array of one of the types that keys have.

    Raises ValueError: they are of several types, of another type, or not a number.
    """
    if not isinstance(given, np.ndarray) or given.dtype == object:
        given = list(given)
        kinds = {kind for one in given for kind in [_letter(one)]}
        if len(kinds) > 1:
            raise ValueError(
                f"keys are of mixed types, {_list([KEYS[kind] for kind in sorted(kinds)])}; give "
                "all one type"
            )
        given = np.array(given, np.int64 if not given else None)
    keys: NDArray[Any] = given
    if keys.ndim != 1:
        raise ValueError(f"keys have the shape {keys.shape}; one number or text a pair is wanted")
    if keys.dtype.kind in "bui":
        if keys.dtype == np.uint64 and keys.size and keys.max() > np.iinfo(np.int64).max:
            raise ValueError(f"the key {keys.max()} is beyond 64 bits with a sign")
        return keys.astype(np.int64)
    if keys.dtype.kind == "f":
        n_nan = int(np.count_nonzero(np.isnan(keys)))
        if n_nan:
            raise ValueError(
                f"{n_nan} of {len(keys)} keys are not a number (NaN), which is equal to no key; "
                "leave these pairs out"
            )
        return keys.astype(np.float64) + 0.0  # of two zeros one
    if keys.dtype.kind not in KEYS:
        raise ValueError(f"keys are {keys.dtype}; give whole numbers, floats, text or bytes")
    return keys


def _letter(key: Any) -> str:
    for types, letter in TYPES:
        if isinstance(key, types):
            return letter
    raise ValueError(
        f"the key {key!r} is a {type(key).__name__}; give whole numbers, floats, text or bytes"
    )


def as_values(given: Any, n_pairs: int) -> dict[str, NDArray[Any]]:
    """Return values as arrays with one row a pair.

    Raises ValueError: they are no such arrays by name, or have another length.
    """
    if not isinstance(given, Mapping):
        raise ValueError(f"the values are a {type(given).__name__}; give a dict of arrays by name")
    values = {}
    for name, column in given.items():
        array = np.asarray(column)
        if array.dtype.kind not in "biufcUSmM":
            raise ValueError(f"the values {name!r} are {array.dtype}; give numbers or text")
        if array.ndim < 1 or len(array) != n_pairs:
            raise ValueError(
                f"there are {n_pairs} keys, but the values {name!r} have the shape "
                f"{array.shape}; expected ({n_pairs}, ...)"
            )
        values[str(name)] = array
    return values


def _list(words: Sequence[str]) -> str:
    return " and ".join(words) if words else "none"
