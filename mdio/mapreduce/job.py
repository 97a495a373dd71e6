"""A map-reduce on its way: what was asked for, and what is known of its frames and blocks.

The map: blocks of frames go through the user's function, pairs come out in sorted runs.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mdio.analysis.kernels.kernel import kernel_name
from mdio.analysis.plan import Plan
from mdio.analysis.reducers import Stack
from mdio.analysis.work import BlockWork, NumberedBlock, block_label
from mdio.core.errors import BlockError, OutputError, error_text
from mdio.core.frames import FrameBlock
from mdio.core.timing import BlockTiming
from mdio.mapreduce.pairs import (
    KeyValuePairs,
    Kind,
    SortedRun,
    Spool,
    concatenate_runs,
    convert_keys,
    convert_values,
)
from mdio.mapreduce.program import Combiner, MappedFrames, Program
from mdio.mapreduce.results import MapReduceResult
from mdio.parallel.executors import Executor


class MapTask(NamedTuple):
    """A block to map."""

    at: int
    """Where its first frame is among all that are mapped, by which the block is known."""
    number: int
    trajectory: int
    label: str
    frames: range
    """Of the layout."""


def map_label(item: MapTask) -> str:
    """Return how messages call a block."""
    of = f" of {item.label}" if item.label else ""
    return block_label((item.number, item.frames)) + of


@dataclass(slots=True)
class MappedBlock:
    """What became of a block."""

    at: int
    runs: list[SortedRun]
    n_pairs: NDArray[np.int64]
    """Of each frame."""
    time: NDArray[np.float64]
    timing: BlockTiming


def without_pairs(mapped: MappedBlock) -> MappedBlock:
    """Return it without its pairs."""
    return replace(mapped, runs=[replace(run, pairs=None) for run in mapped.runs])


def copy_key_range(mapped: MappedBlock, first: Any, beyond: Any) -> list[SortedRun]:
    """Return copies of a block's pairs whose keys lie from `first` on, before `beyond`."""
    parts = []
    for run in mapped.runs:
        assert run.pairs is not None
        ends = [None if key is None else run.edges([key])[1] for key in (first, beyond)]
        part = run.part(ends[0] or 0, len(run) if ends[1] is None else ends[1])
        parts.append(replace(part, pairs=concatenate_runs([part])))
    return parts


class MapWork:
    """Maps one block; opens the trajectory once in each process.

    `plans`: of each trajectory. `program`: whose map is called; its reduce comes along, so that one
    that cannot travel is told of before the work. `spool`: where pairs go. `rank`: this process',
    under MPI.
    """

    def __init__(
        self, plans: Sequence[Plan], program: Program, spool: Spool, rank: int | None = None
    ) -> None:
        self._name = kernel_name(plans[0].prepared.function)
        self._spool, self._reduce = spool, program.reduce
        self._functions = [
            _Counting(plan.prepared.function, program.per_frame, spool) for plan in plans
        ]
        self._works = []
        for plan, function in zip(plans, self._functions, strict=True):
            prepared = replace(plan.prepared, function=function, reducer=Stack(), fills=False)
            self._works.append(BlockWork(plan.layout, prepared, plan.opened_s, rank=rank))

    def __repr__(self) -> str:
        return f"{self._name} or {kernel_name(self._reduce)}"

    def __call__(self, item: MapTask) -> MappedBlock:
        """Map a block; raises BlockError if that fails."""
        self._spool.begin(map_label(item))
        self._functions[item.trajectory].at = item.at
        done = self._works[item.trajectory]((item.number, item.frames))
        n_pairs = Stack().finish(done.state)  # type: ignore[arg-type]
        return MappedBlock(item.at, self._spool.finish(), n_pairs, done.time, done.timing)


class _Counting:
    """Calls a map, spools its pairs, and returns how many each frame gave."""

    def __init__(self, function: Any, per_frame: bool, spool: Spool) -> None:
        self._function, self._per_frame, self._spool = function, per_frame, spool
        self.at = 0

    def __call__(self, block: FrameBlock) -> NDArray[np.int64]:
        keys, rows, values = self._by_frame(block) if self._per_frame else self._at_once(block)
        n_frames = block.n_frames
        if len(rows) and not 0 <= rows.min() <= rows.max() < n_frames:
            raise ValueError(f"rows are {rows.min()} to {rows.max()} in a block of {n_frames}")
        at = (self.at + rows).astype(np.int64)
        # Blocks are read into the same arrays again: what is a view of them must be copied.
        own = {name: np.array(value) for name, value in values.items()}
        self._spool.add(KeyValuePairs(tuple(own), [keys, at, *own.values()]))
        self.at += n_frames
        return np.bincount(rows, minlength=n_frames)

    def _at_once(self, block: FrameBlock) -> tuple[NDArray[Any], NDArray[Any], dict[str, Any]]:
        given = self._function(block)
        if not isinstance(given, tuple) or len(given) != 3:
            raise ValueError(
                f"{kernel_name(self._function)} returned a {type(given).__name__}; expected "
                "(keys, rows, values), or per_frame=True for a generator of (key, value)"
            )
        keys, rows = convert_keys(given[0]), np.asarray(given[1])
        if rows.shape != keys.shape or (rows.dtype.kind not in "iu" and len(rows)):
            raise ValueError(
                f"there are {len(keys)} keys, but rows of shape {rows.shape} and {rows.dtype}; "
                "expected the row in the block of each pair's frame, a whole number"
            )
        return keys, rows.astype(np.int64), convert_values(given[2], len(keys))

    def _by_frame(self, block: FrameBlock) -> tuple[NDArray[Any], NDArray[Any], dict[str, Any]]:
        keys, rows, values = [], [], []
        for row in range(block.n_frames):
            for key, value in self._function(block.frames(slice(row, row + 1))):
                keys.append(key)
                rows.append(row)
                given = value if isinstance(value, dict) else {"value": value}
                values.append({name: np.array(one) for name, one in given.items()})
        names = list(values[0]) if values else []
        odd = next((number for number, one in enumerate(values) if list(one) != names), None)
        if odd is not None:
            raise ValueError(
                f"values of the key {keys[odd]!r} are {list(values[odd])}, before {names}"
            )
        columns = {name: np.array([one[name] for one in values]) for name in names}
        return convert_keys(keys), np.array(rows, np.int64), convert_values(columns, len(keys))


TAKEN = {"key", "keys", "label", "file"}

ReduceTask = tuple[int, Sequence[Sequence[SortedRun]]]
"""The number of a range of keys, and the pairs that it has: of each block, or of all."""


def reduce_label(item: ReduceTask) -> str:
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
        self, reduce: Callable[..., Any], kind: Kind, table: MappedFrames, keep_going: bool
    ) -> None:
        self._reduce, self._kind, self._table, self._keep_going = reduce, kind, table, keep_going
        self._begun = -1

    def __repr__(self) -> str:
        return f"the reduce {kernel_name(self._reduce)}"

    def __call__(self, item: ReduceTask) -> Table:
        """Return the rows of a range; raises BlockError where a reduce fails."""
        return self.reduced(concatenate_runs([run for part in item[1] for run in part], self._kind))

    def reduced(self, pairs: KeyValuePairs) -> Table:
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
                text = error_text(error)
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

    def _row(self, key: Any, trajectory: int, pairs: KeyValuePairs) -> dict[str, NDArray[Any]]:
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


RANGES_PER_WORKER = 4
"""More than one evens out keys with more work than others."""
LEAST_RANGES = 16
"""Of all of several workers, as `mdio.mapreduce.driver.LEAST_BLOCKS`."""
SHARE = 6
"""A run, and a range while it is sorted, take this part of the memory, and copies as much again;
what is kept for the reduce takes two."""
LEAST_NBYTES = 4096
"""Less memory would be all overhead."""

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Settings:
    """How to go about it, wherever that is."""

    program: Program
    memory: int
    local_dir: str | PathLike[str] | None
    keep_going: bool
    progress: Progress | None

    @property
    def most_nbytes(self) -> int:
        """Of a run, and of a range."""
        return max(LEAST_NBYTES, self.memory // SHARE)

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """Yield a folder for pairs, which goes with all that is in it.

        Raises OutputError: it cannot be made.
        """
        try:
            folder = tempfile.TemporaryDirectory(prefix="mdio-pairs-", dir=self.local_dir)
        except OSError as error:
            where = self.local_dir or tempfile.gettempdir()
            raise OutputError(
                f"{where}: no folder for pairs can be made there ({error.strerror}); name another "
                "one (--local-dir, local_dir=)"
            ) from error
        with folder as name:
            yield Path(name)

    def spool(self, folder: Path | None, *, shares: bool) -> Spool:
        """Return where a worker's pairs go: into files if it shares them; or no folder, no file."""
        combine = self.program.combine
        combined = None if combine is None else Combiner(combine)
        most = math.inf if folder is None else self.most_nbytes
        return Spool(most, 0 if shares else 2 * most, folder, combined)

    def n_ranges(self, runs: Sequence[SortedRun], kind: Kind, n_workers: int) -> int:
        """Return how many ranges of keys to make."""
        nbytes = sum(map(len, runs)) * kind.nbytes
        wanted = max(LEAST_RANGES, n_workers * RANGES_PER_WORKER) if n_workers > 1 else 1
        return max(wanted, math.ceil(nbytes / self.most_nbytes))


@dataclass(slots=True)
class MapReduceJob:
    """A map-reduce whose trajectories are open."""

    plans: dict[str, Plan]
    """By label."""
    settings: Settings
    table: MappedFrames
    mapped: dict[int, MappedBlock] = field(default_factory=dict)
    """What is done, by where it begins."""

    @classmethod
    def of(cls, plans: dict[str, Plan], settings: Settings) -> MapReduceJob:
        """Count frames."""
        table = MappedFrames.of({label: plan.chosen for label, plan in plans.items()})
        return cls(plans, settings, table)

    def items(self, blocks: Iterable[Iterable[NumberedBlock]]) -> list[MapTask]:
        """Return what is to be mapped: some blocks of each trajectory."""
        found = []
        of_each = zip(self.table.firsts.tolist(), self.plans.items(), blocks, strict=True)
        for trajectory, (first, (label, plan), some) in enumerate(of_each):
            for number, block in some:
                at = first + plan.frames.index(block.start)
                found.append(MapTask(at, number, trajectory, label, block))
        return found

    def note(self, mapped: MappedBlock) -> None:
        """Take what became of a block."""
        self.mapped[mapped.at] = mapped
        self.table.time[mapped.at : mapped.at + len(mapped.time)] = mapped.time
        mapped.timing.gathered()
        if self.settings.progress is not None:
            self.settings.progress(mapped.timing.n_frames, mapped.timing.nbytes_read)

    def result(
        self, reduced: Table, executor: Executor, runs: Sequence[SortedRun]
    ) -> MapReduceResult:
        """Return the result, but for how long it took; `runs` are those of all workers."""
        plans = list(self.plans.values())
        mapped = [self.mapped[at] for at in sorted(self.mapped)]
        timings = [one.timing for one in mapped]
        for plan in plans if timings else ():
            plan.count(timings[0])
        labels, of = self.table.labels, reduced.trajectory
        n_pairs = np.zeros(len(self.table.number), np.int64)
        for one in mapped:
            n_pairs[one.at : one.at + len(one.n_pairs)] = one.n_pairs
        nbytes = [(len(run) * run.kind.nbytes, run.path is not None) for run in runs]
        return MapReduceResult(
            keys=reduced.keys,
            columns=reduced.columns,
            label=np.array(labels)[of] if labels else None,
            failures=[(key, labels[t] if labels else None, e) for key, t, e in reduced.failures],
            frame=self.table.number,
            time=self.table.time,
            n_pairs=n_pairs,
            timings=timings,
            seconds=sum(plan.opened_s for plan in plans),
            reduce_s=0.0,
            executor=executor.name,
            workers=executor.n_workers,
            nbytes_shuffled=sum(one for one, _ in nbytes),
            nbytes_on_disk=sum(one for one, on_disk in nbytes if on_disk),
            firsts=tuple(self.table.firsts.tolist()),
            prepare_s=sum(plan.prepare_s for plan in plans),
            notes=tuple(
                dict.fromkeys(
                    [
                        *(note for plan in plans for note in plan.notes),
                        *(note for timing in timings for note in timing.notes),
                    ]
                )
            ),
        )
