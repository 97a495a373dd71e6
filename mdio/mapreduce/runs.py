"""Sorted runs of pairs: in memory as long as they fit, in files of a local folder if not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import BlockError, OutputError, SourceError
from mdio.core.files.direct import WrittenFile
from mdio.core.files.reading import OpenFile
from mdio.mapreduce.pairs import Kind, Pairs

SAMPLE_EVERY, LEAST_SAMPLES = 4096, 256
"""One key in so many is kept to know where others lie; short runs keep more."""

Sort = Callable[[Pairs], Pairs]


@dataclass(frozen=True, slots=True)
class Run:
    """Pairs of one block, sorted by key, or some neighbouring ones of them."""

    block: str
    """How messages call the block."""
    kind: Kind
    n_pairs: int
    """Of the whole run."""
    start: int
    stop: int
    pairs: Pairs | None = None
    """Where they are in memory."""
    path: Path | None = None
    """The file, where they are not: one column after the other."""
    every: int = 1
    samples: NDArray[Any] = field(default_factory=lambda: np.empty(0))
    """The keys of every so many pairs, from the first on."""

    def __len__(self) -> int:
        return self.stop - self.start

    def part(self, start: int, stop: int) -> Run:
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
        keys = Pairs.empty(self.kind, stop - first).keys
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
        none = Pairs.empty(self.kind, 0)
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
        self._parts: list[Run] = []
        self._nbytes = 0
        self._runs: list[Run] = []

    def add(self, pairs: Pairs) -> None:
        """Take pairs of the block's next frames."""
        if not len(pairs):
            return
        self._parts.append(Run(self._block, pairs.kind, len(pairs), 0, len(pairs), pairs))
        self._nbytes += len(pairs) * pairs.kind.nbytes
        if self._nbytes > self._most:
            self._flush()

    def finish(self) -> list[Run]:
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
        pairs = gathered(parts)
        parts.clear()
        pairs.sort()
        if self._combine is not None:
            pairs = self._combine(pairs)
        every = max(1, min(SAMPLE_EVERY, len(pairs) // LEAST_SAMPLES))
        run = Run(self._block, pairs.kind, len(pairs), 0, len(pairs), pairs, every=every)
        run = replace(run, samples=pairs.keys[::every].copy())
        nbytes = len(pairs) * pairs.kind.nbytes
        if self._folder is not None and self._kept_nbytes + nbytes > self._keep:
            run = replace(run, pairs=None, path=self._written(pairs, self._folder))
        else:
            self._kept_nbytes += nbytes
        self._runs.append(run)

    @staticmethod
    def _written(pairs: Pairs, folder: Path) -> Path:
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


def kind_of(runs: Sequence[Run]) -> Kind:
    """Return what the columns of pairs of several runs become.

    Raises BlockError: keys or values of two blocks do not go together.
    """

    def joined(first: Run, second: Run) -> Run:
        try:
            return replace(first, kind=first.kind.joined(second.kind))
        except ValueError as error:
            where = first.block if first.block == second.block else f"{first.block}, {second.block}"
            raise BlockError(f"{where}: {error}") from None

    return reduce(joined, runs).kind


def gathered(parts: Sequence[Run], kind: Kind | None = None) -> Pairs:
    """Return the pairs of several runs one after the other; raises what `kind_of` raises."""
    pairs = Pairs.empty(kind or kind_of(parts), sum(map(len, parts)))
    at = 0
    for part in parts:
        part.copy_into(pairs.columns, at)
        at += len(part)
    return pairs


def choose_cuts(runs: Sequence[Run], kind: Kind, n_ranges: int) -> NDArray[Any]:
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
