"""Pairs of keys and values: a map's output, sorted, in memory or files, and a reduce's input.

Pairs lie in columns: the keys, the frame of each (`frame_index`, counted over all mapped frames),
and the values by name. Keys are int64, float64, text or bytes.
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
from mdio.core.frames import is_masked
from mdio.core.words import list_text

KEY_TYPE_NAMES = {"i": "whole numbers", "f": "numbers with fractions", "U": "text", "S": "bytes"}
"""Types of keys, by NumPy's letter."""
KEY_TYPE_LETTERS = (
    (int | np.integer | np.bool_, "i"),
    (float | np.floating, "f"),
    (str, "U"),
    (bytes, "S"),
)


@dataclass(frozen=True, slots=True)
class Schema:
    """The columns of pairs: names of the values, dtype and shape of a row of each column."""

    names: tuple[str, ...]
    columns: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def nbytes(self) -> int:
        """Bytes of one pair."""
        return sum(np.dtype(dtype).itemsize * math.prod(shape) for dtype, shape in self.columns)

    def common_with(self, other: Schema) -> Schema:
        """Return the schema that both can be converted to; raises ValueError if there is none."""
        if self == other:
            return self
        own_letter, other_letter = (np.dtype(schema.columns[0][0]).kind for schema in (self, other))
        if own_letter != other_letter:
            own_type, other_type = KEY_TYPE_NAMES[own_letter], KEY_TYPE_NAMES[other_letter]
            raise ValueError(f"keys are {own_type} and {other_type}; give all one type")
        if self.names != other.names:
            own_names, other_names = (
                list_text(names) or "none" for names in (self.names, other.names)
            )
            raise ValueError(f"values are named {own_names} in some pairs, {other_names} in others")
        columns = []
        pairs = zip(("", "", *self.names), self.columns, other.columns, strict=True)
        for name, (dtype, shape), (other_dtype, other_shape) in pairs:
            if shape != other_shape:
                raise ValueError(
                    f"each value of {name!r} has the shape {shape} and then {other_shape}"
                )
            try:
                columns.append((np.result_type(dtype, other_dtype).str, shape))
            except TypeError:
                raise ValueError(f"values of {name!r} are {dtype} and then {other_dtype}") from None
        return Schema(self.names, tuple(columns))


@dataclass(slots=True)
class KeyValuePairs:
    """Pairs, in columns of equal length."""

    names: tuple[str, ...]
    columns: list[NDArray[Any]]
    """Keys (K,), frame indices (K,), and the values (K, ...) in the order of `names`."""

    @classmethod
    def empty(cls, schema: Schema, n_pairs: int) -> Self:
        """Return uninitialised pairs."""
        columns = [np.empty((n_pairs, *shape), dtype) for dtype, shape in schema.columns]
        return cls(schema.names, columns)

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def keys(self) -> NDArray[Any]:
        """Keys, (K,)."""
        return self.columns[0]

    @property
    def frame_index(self) -> NDArray[Any]:
        """Frame of each pair, counted over all mapped frames, (K,)."""
        return self.columns[1]

    @property
    def values(self) -> dict[str, NDArray[Any]]:
        """Values by name, (K, ...)."""
        return dict(zip(self.names, self.columns[2:], strict=True))

    @property
    def schema(self) -> Schema:
        """Names, dtypes and shapes of the columns."""
        columns = tuple((column.dtype.str, column.shape[1:]) for column in self.columns)
        return Schema(self.names, columns)

    def rows(self, start: int, stop: int) -> KeyValuePairs:
        """Return the pairs ``start:stop`` (views)."""
        return KeyValuePairs(self.names, [column[start:stop] for column in self.columns])

    def sort(self) -> None:
        """Sort by key, then by frame; pairs of one key and frame keep their order."""
        order = np.argsort(self.keys, kind="stable")
        keys, frames = self.keys[order], self.frame_index[order]
        if np.any((keys[1:] == keys[:-1]) & (frames[1:] < frames[:-1])):
            order = np.lexsort((self.frame_index, self.keys))
            frames = self.frame_index[order]
        self.columns[:2] = [keys, frames]
        for number in range(2, len(self.columns)):  # one by one, to save memory
            self.columns[number] = self.columns[number][order]

    def key_edges(self) -> NDArray[np.int64]:
        """Return the first pair of each key, and the number of pairs; pairs must be sorted."""
        if not len(self):
            return np.zeros(1, np.int64)
        changes = np.flatnonzero(self.keys[1:] != self.keys[:-1]) + 1
        return np.concatenate(([0], changes, [len(self)]))


def refuse_mask(array: Any, name: str) -> Any:
    """Return `array`; raises ValueError, with its name in the plural, if it has masked values."""
    if is_masked(array):
        raise ValueError(
            f"{name} are masked, and the mask would be lost; leave masked ones out, or give "
            ".filled(np.nan)"
        )
    return array


def convert_keys(keys: Any) -> NDArray[Any]:
    """Return keys as an array of int64, float64, text or bytes; raises ValueError."""
    if not isinstance(refuse_mask(keys, "keys"), np.ndarray) or keys.dtype == object:
        keys = list(keys)
        letters = {_type_letter(key) for key in keys}
        if len(letters) > 1:
            names = list_text([KEY_TYPE_NAMES[letter] for letter in sorted(letters)])
            raise ValueError(f"keys are of mixed types, {names}; give all one type")
        keys = np.array(keys, None if keys else np.int64)
    if keys.ndim != 1:
        raise ValueError(
            f"keys have the shape {keys.shape}; expected one number or text for each pair"
        )
    if keys.dtype.kind in "bui":
        if keys.dtype == np.uint64 and keys.size and keys.max() > np.iinfo(np.int64).max:
            raise ValueError(f"the key {keys.max()} does not fit into a signed 64-bit integer")
        return np.array(keys, np.int64)  # a copy: callers may reuse theirs
    if keys.dtype.kind == "f":
        n_nan = int(np.count_nonzero(np.isnan(keys)))
        if n_nan:
            raise ValueError(
                f"{n_nan} of {len(keys)} keys are not a number (NaN), which is equal to no key; "
                "leave these pairs out"
            )
        return np.asarray(keys, np.float64) + 0.0  # -0.0 becomes 0.0
    if keys.dtype.kind not in KEY_TYPE_NAMES:
        raise ValueError(f"keys are {keys.dtype}; give whole numbers, floats, text or bytes")
    return np.asarray(keys)


def _type_letter(key: Any) -> str:
    for types, letter in KEY_TYPE_LETTERS:
        if isinstance(key, types):
            return letter
    raise ValueError(
        f"the key {key!r} is a {type(key).__name__}; give whole numbers, floats, text or bytes"
    )


def convert_values(columns: Any, n_pairs: int) -> dict[str, NDArray[Any]]:
    """Return values as arrays by name with one row for each pair; raises ValueError."""
    if not isinstance(columns, Mapping):
        raise ValueError(
            f"the values are a {type(columns).__name__}; give a dict of arrays by name"
        )
    values = {}
    for name, column in columns.items():
        array = np.asarray(refuse_mask(column, f"values {name!r}"))
        if array.dtype.kind not in "biufcUSmM":
            raise ValueError(f"the values {name!r} are {array.dtype}; give numbers or text")
        if array.ndim < 1 or len(array) != n_pairs:
            raise ValueError(
                f"there are {n_pairs} keys, but the values {name!r} have the shape "
                f"{array.shape}; expected ({n_pairs}, ...)"
            )
        values[str(name)] = array
    return values


SAMPLE_EVERY, MIN_SAMPLES = 4096, 256
"""One key in `SAMPLE_EVERY` is sampled, but at least `MIN_SAMPLES` keys of a run."""

Combine = Callable[[KeyValuePairs], KeyValuePairs]


@dataclass(frozen=True, slots=True)
class SortedRun:
    """Pairs of one block, sorted by key, or a slice of them."""

    block: str
    """Label of the block, for messages."""
    schema: Schema
    n_pairs: int
    """Number of pairs of the whole run; this has ``start:stop`` of them."""
    start: int
    stop: int
    pairs: KeyValuePairs | None = None
    """The pairs, if they are in memory."""
    path: Path | None = None
    """The file with the pairs otherwise: one column after the other."""
    sample_stride: int = 1
    samples: NDArray[Any] = field(default_factory=lambda: np.empty(0))
    """Every `sample_stride`-th key, from the first on."""

    def __len__(self) -> int:
        return self.stop - self.start

    def part(self, start: int, stop: int) -> SortedRun:
        """Return the pairs ``start:stop``, without samples."""
        pairs = None if self.pairs is None else self.pairs.rows(start, stop)
        first = 0 if pairs is not None else start
        return replace(
            self, pairs=pairs, start=first, stop=first + stop - start, samples=self.samples[:0]
        )

    def edges(self, cuts: Iterable[Any]) -> list[int]:
        """Return the first pair of each range, and the end; `cuts` are the first keys of ranges."""
        first_pairs = [self._first_from(cut) for cut in cuts]
        return [self.start, *first_pairs, self.stop]

    def _first_from(self, key: Any) -> int:
        """Return the number of the first pair whose key is not less than `key`."""
        if self.pairs is not None:
            return int(np.searchsorted(self.pairs.keys, key))
        sample = int(np.searchsorted(self.samples, key))
        first = max(0, (sample - 1) * self.sample_stride)
        stop = min(self.n_pairs, sample * self.sample_stride)
        keys = KeyValuePairs.empty(self.schema, stop - first).keys
        assert self.path is not None
        with OpenFile(self.path) as file:
            file.fill(first * keys.itemsize, keys)
        return first + int(np.searchsorted(keys, key))

    def copy_into(self, columns: Sequence[NDArray[Any]], first_row: int) -> None:
        """Copy the pairs into `columns`, from `first_row` on."""
        rows = slice(first_row, first_row + len(self))
        if self.pairs is not None:
            for column, own_column in zip(columns, self.pairs.columns, strict=True):
                column[rows] = own_column
            return
        assert self.path is not None
        offset = 0
        with OpenFile(self.path, SourceError) as file:
            for column, (dtype, shape) in zip(columns, self.schema.columns, strict=True):
                row_nbytes = np.dtype(dtype).itemsize * math.prod(shape)
                is_converted = column.dtype != dtype
                values = np.empty((len(self), *shape), dtype) if is_converted else column[rows]
                if values.nbytes:
                    file.fill(offset + self.start * row_nbytes, values.reshape(-1).view(np.uint8))
                if is_converted:
                    column[rows] = values
                offset += self.n_pairs * row_nbytes


class Spool:
    """Collects the pairs of a block and returns them as sorted runs.

    `max_run_nbytes`: approximate limit of a run. `max_memory_nbytes`: limit of all runs that stay
    in memory; 0 if other processes must read them. `folder`: for files; None if all stay in memory.
    `combine`: applied to each sorted run.
    """

    def __init__(
        self,
        max_run_nbytes: float,
        max_memory_nbytes: float,
        folder: Path | None,
        combine: Combine | None,
    ) -> None:
        self._max_run_nbytes, self._max_memory_nbytes = max_run_nbytes, max_memory_nbytes
        self._folder, self._combine = folder, combine
        self._memory_nbytes = 0
        """Bytes of the runs that stay in memory."""
        self.begin("")

    def begin(self, block: str) -> None:
        """Start a block; pairs of an unfinished one are dropped."""
        self._block = block
        self._parts: list[SortedRun] = []
        self._nbytes = 0
        self._runs: list[SortedRun] = []

    def add(self, pairs: KeyValuePairs) -> None:
        """Add the pairs of the block's next frames."""
        if not len(pairs):
            return
        # Not sorted yet: `_flush` sorts all parts together.
        self._parts.append(SortedRun(self._block, pairs.schema, len(pairs), 0, len(pairs), pairs))
        self._nbytes += len(pairs) * pairs.schema.nbytes
        if self._nbytes > self._max_run_nbytes:
            self._flush()

    def finish(self) -> list[SortedRun]:
        """Return the runs of the block; raises OutputError if a file cannot be written."""
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
        sample_stride = max(1, min(SAMPLE_EVERY, len(pairs) // MIN_SAMPLES))
        samples = pairs.keys[::sample_stride].copy()
        run = SortedRun(
            self._block,
            pairs.schema,
            n_pairs=len(pairs),
            start=0,
            stop=len(pairs),
            pairs=pairs,
            sample_stride=sample_stride,
            samples=samples,
        )
        nbytes = len(pairs) * pairs.schema.nbytes
        if self._folder is not None and self._memory_nbytes + nbytes > self._max_memory_nbytes:
            run = replace(run, pairs=None, path=_write_run(pairs, self._folder))
        else:
            self._memory_nbytes += nbytes
        self._runs.append(run)


def _write_run(pairs: KeyValuePairs, folder: Path) -> Path:
    path = folder / f"{uuid4().hex}.run"
    try:
        with WrittenFile(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as file:
            offset = 0
            for column in pairs.columns:
                data = np.ascontiguousarray(column).reshape(-1).view(np.uint8)
                offset = file.write(offset, data)
    except OSError as error:
        raise OutputError(
            f"{path}: pairs that do not fit in memory cannot be written ({error.strerror}); "
            "name a folder with room (--local-dir, local_dir=), or give more --memory"
        ) from error
    return path


def common_schema(runs: Sequence[SortedRun]) -> Schema:
    """Return the schema that the pairs of all runs can be converted to.

    Raises BlockError: keys or values of two blocks have no common schema.
    """

    def merge(first: SortedRun, second: SortedRun) -> SortedRun:
        try:
            return replace(first, schema=first.schema.common_with(second.schema))
        except ValueError as error:
            blocks = ", ".join(dict.fromkeys([first.block, second.block]))
            raise BlockError(f"{blocks}: {error}") from None

    return reduce(merge, runs).schema


def concatenate_runs(parts: Sequence[SortedRun], schema: Schema | None = None) -> KeyValuePairs:
    """Return the pairs of runs one after the other; raises BlockError as `common_schema` does."""
    pairs = KeyValuePairs.empty(schema or common_schema(parts), sum(map(len, parts)))
    first_row = 0
    for part in parts:
        part.copy_into(pairs.columns, first_row)
        first_row += len(part)
    return pairs


def choose_cuts(runs: Sequence[SortedRun], schema: Schema, n_ranges: int) -> NDArray[Any]:
    """Return the first keys, (n,), ascending, of all ranges but the first.

    Ranges have nearly equal numbers of pairs; there are fewer than `n_ranges` if a key has more
    pairs than a range should, since the pairs of a key stay together.
    """
    dtype = schema.columns[0][0]
    keys = np.concatenate([np.empty(0, dtype), *(run.samples for run in runs)]).astype(dtype)
    weights = np.concatenate(
        [np.empty(0), *(np.full(len(run.samples), run.sample_stride) for run in runs)]
    )
    order = np.argsort(keys, kind="stable")
    keys, n_pairs = keys[order], np.cumsum(weights[order])
    if not len(keys):
        return keys
    n_before_cuts = n_pairs[-1] * np.arange(1, n_ranges) / n_ranges
    cuts = np.unique(keys[np.searchsorted(n_pairs, n_before_cuts)])
    return np.asarray(cuts[cuts > keys[0]])
