"""Pairs of keys and values: what a map gives, what travels, and what a reduce gets.

Pairs lie in columns: the keys, which frame each is of (`at`, counted over all frames that are
mapped), and the values by name. Keys are int64, float64, text or bytes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import BlockError, OutputError, SourceError
from mdio.core.files.reading import OpenFile
from mdio.core.files.writing import WrittenFile

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
class KeyValuePairs:
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

    def rows(self, start: int, stop: int) -> KeyValuePairs:
        """Return a run of them (views)."""
        return KeyValuePairs(self.names, [column[start:stop] for column in self.columns])

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


def convert_keys(given: Any) -> NDArray[Any]:
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


def convert_values(given: Any, n_pairs: int) -> dict[str, NDArray[Any]]:
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


SAMPLE_EVERY, LEAST_SAMPLES = 4096, 256
"""One key in so many is kept to know where others lie; short runs keep more."""

Sort = Callable[[KeyValuePairs], KeyValuePairs]


@dataclass(frozen=True, slots=True)
class SortedRun:
    """Pairs of one block, sorted by key, or some neighbouring ones of them."""

    block: str
    """How messages call the block."""
    kind: Kind
    n_pairs: int
    """Of the whole run."""
    start: int
    stop: int
    pairs: KeyValuePairs | None = None
    """Where they are in memory."""
    path: Path | None = None
    """The file, where they are not: one column after the other."""
    every: int = 1
    samples: NDArray[Any] = field(default_factory=lambda: np.empty(0))
    """The keys of every so many pairs, from the first on."""

    def __len__(self) -> int:
        return self.stop - self.start

    def part(self, start: int, stop: int) -> SortedRun:
        """Return some of its pairs, without samples."""
        pairs = None if self.pairs is None else self.pairs.rows(start, stop)
        first = 0 if pairs is not None else start
        return replace(
            self, pairs=pairs, start=first, stop=first + stop - start, samples=self.samples[:0]
        )

    def edges(self, cuts: Iterable[Any]) -> list[int]:
        """Return where the pairs of each range begin, and the end; `cuts` are first keys."""
        inner = [self._first_from(cut) for cut in cuts]
        return [self.start, *inner, self.stop]

    def _first_from(self, key: Any) -> int:
        """Return the number of the first pair whose key is not less than `key`."""
        if self.pairs is not None:
            return int(np.searchsorted(self.pairs.keys, key))
        beyond = int(np.searchsorted(self.samples, key))
        first, stop = max(0, (beyond - 1) * self.every), min(self.n_pairs, beyond * self.every)
        keys = KeyValuePairs.empty(self.kind, stop - first).keys
        with OpenFile(self._file) as file:
            file.fill(first * keys.itemsize, keys)
        return first + int(np.searchsorted(keys, key))

    @property
    def _file(self) -> Path:
        assert self.path is not None
        return self.path

    def copy_into(self, columns: Sequence[NDArray[Any]], at: int) -> None:
        """Copy the pairs into `columns`, from row `at` on.

        Raises SourceError: the file is not what it was.
        """
        rows = slice(at, at + len(self))
        if self.pairs is not None:
            for column, own in zip(columns, self.pairs.columns, strict=True):
                column[rows] = own
            return
        none = KeyValuePairs.empty(self.kind, 0)
        offset = 0
        with OpenFile(self._file, SourceError) as file:
            for column, like in zip(columns, none.columns, strict=True):
                nbytes = like.dtype.itemsize * int(np.prod(like.shape[1:]))
                same = column.dtype == like.dtype
                into = column[rows] if same else np.empty((len(self), *like.shape[1:]), like.dtype)
                if into.nbytes:
                    file.fill(offset + self.start * nbytes, into.reshape(-1).view(np.uint8))
                if not same:
                    column[rows] = into
                offset += self.n_pairs * nbytes


class Spool:
    """Takes the pairs of a block as they come and gives sorted runs back.

    `most_nbytes`: a run has no more than about this. `keep_nbytes`: runs with together no more stay
    in memory; 0 where other processes are to read them. `folder`: where files go; None if all stay
    in memory. `combine`: what is done with a run that has been sorted.
    """

    def __init__(
        self, most_nbytes: float, keep_nbytes: float, folder: Path | None, combine: Sort | None
    ) -> None:
        self._most, self._keep, self._folder = most_nbytes, keep_nbytes, folder
        self._combine = combine
        self._kept_nbytes = 0
        self.begin("")

    def begin(self, block: str) -> None:
        """Start anew with a block; what was not taken of another one is dropped."""
        self._block = block
        self._parts: list[SortedRun] = []
        self._nbytes = 0
        self._runs: list[SortedRun] = []

    def add(self, pairs: KeyValuePairs) -> None:
        """Take pairs of the block's next frames."""
        if not len(pairs):
            return
        self._parts.append(SortedRun(self._block, pairs.kind, len(pairs), 0, len(pairs), pairs))
        self._nbytes += len(pairs) * pairs.kind.nbytes
        if self._nbytes > self._most:
            self._flush()

    def finish(self) -> list[SortedRun]:
        """Return the runs of the block.

        Raises OutputError: a file cannot be written.
        """
        self._flush()
        runs, self._runs = self._runs, []
        return runs

    def _flush(self) -> None:
        if not self._parts:
            return
        parts, self._parts, self._nbytes = self._parts, [], 0
        pairs = concatenate_runs(parts)
        parts.clear()
        pairs.sort()
        if self._combine is not None:
            pairs = self._combine(pairs)
        every = max(1, min(SAMPLE_EVERY, len(pairs) // LEAST_SAMPLES))
        run = SortedRun(self._block, pairs.kind, len(pairs), 0, len(pairs), pairs, every=every)
        run = replace(run, samples=pairs.keys[::every].copy())
        nbytes = len(pairs) * pairs.kind.nbytes
        if self._folder is not None and self._kept_nbytes + nbytes > self._keep:
            run = replace(run, pairs=None, path=self._written(pairs, self._folder))
        else:
            self._kept_nbytes += nbytes
        self._runs.append(run)

    @staticmethod
    def _written(pairs: KeyValuePairs, folder: Path) -> Path:
        path = folder / f"{uuid4().hex}.run"
        try:
            with WrittenFile(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as file:
                columns = (np.ascontiguousarray(one) for one in pairs.columns)
                offset = 0
                for column in columns:
                    offset = file.write(offset, column.reshape(-1).view(np.uint8))
        except OSError as error:
            raise OutputError(
                f"{path}: pairs that do not fit in memory cannot be written ({error.strerror}); "
                "name a folder with room (--local-dir, local_dir=), or give more --memory"
            ) from error
        return path


def common_kind(runs: Sequence[SortedRun]) -> Kind:
    """Return what the columns of pairs of several runs become.

    Raises BlockError: keys or values of two blocks do not go together.
    """

    def joined(first: SortedRun, second: SortedRun) -> SortedRun:
        try:
            return replace(first, kind=first.kind.joined(second.kind))
        except ValueError as error:
            where = first.block if first.block == second.block else f"{first.block}, {second.block}"
            raise BlockError(f"{where}: {error}") from None

    return reduce(joined, runs).kind


def concatenate_runs(parts: Sequence[SortedRun], kind: Kind | None = None) -> KeyValuePairs:
    """Return the pairs of several runs one after the other; raises what `common_kind` raises."""
    pairs = KeyValuePairs.empty(kind or common_kind(parts), sum(map(len, parts)))
    at = 0
    for part in parts:
        part.copy_into(pairs.columns, at)
        at += len(part)
    return pairs


def choose_cuts(runs: Sequence[SortedRun], kind: Kind, n_ranges: int) -> NDArray[Any]:
    """Return first keys of ranges that have about as many pairs each.

    There are fewer ranges where a key has more pairs than that: those of one key stay together.

    Returns (n,) array: ascending; of all ranges but the first.
    """
    dtype = kind.columns[0][0]
    keys = np.concatenate([np.empty(0, dtype), *(run.samples for run in runs)]).astype(dtype)
    weights = np.concatenate([np.empty(0), *(np.full(len(r.samples), r.every) for r in runs)])
    order = np.argsort(keys, kind="stable")
    keys, before = keys[order], np.cumsum(weights[order])
    if not len(keys):
        return keys
    wanted = before[-1] * np.arange(1, n_ranges) / n_ranges
    found = np.unique(keys[np.searchsorted(before, wanted)])
    cuts: NDArray[Any] = found[found > keys[0]]
    return cuts
