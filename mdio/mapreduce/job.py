"""The tasks of a map-reduce: mapping blocks to sorted runs of pairs, reducing ranges of keys."""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from os import PathLike
from pathlib import Path
from reprlib import repr as short_repr
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mdio.analysis.kernels.kernel import kernel_name
from mdio.analysis.plan import Plan
from mdio.analysis.reducers import Stack
from mdio.analysis.work import BlockWork, NumberedBlock, Progress, block_label
from mdio.core.errors import BlockError, OutputError, error_text
from mdio.core.frames import FrameBlock
from mdio.core.options import option
from mdio.core.timing import BlockTiming
from mdio.mapreduce.pairs import (
    KeyValuePairs,
    Schema,
    SortedRun,
    Spool,
    concatenate_runs,
    convert_keys,
    convert_values,
    refuse_mask,
)
from mdio.mapreduce.program import MappedFrames, Program, combine_pairs
from mdio.mapreduce.results import MapReduceResult
from mdio.parallel.executors import Executor, OneAtATime


class MapTask(NamedTuple):
    """A block to map."""

    first_index: int
    """Index of its first frame among all mapped frames; identifies the block."""
    number: int
    trajectory: int
    label: str
    frames: range
    """Numbers of its frames in the layout."""


def describe_block(task: MapTask) -> str:
    """Return the label of a block, for messages."""
    suffix = f" of {task.label}" if task.label else ""
    return block_label((task.number, task.frames)) + suffix


@dataclass(slots=True)
class MappedBlock:
    """The pairs of a block, and its timing."""

    first_index: int
    runs: list[SortedRun]
    n_pairs: NDArray[np.int64]
    """Pairs of each frame, (F,)."""
    time: NDArray[np.float64]
    timing: BlockTiming


def without_pairs(block: MappedBlock) -> MappedBlock:
    """Return a mapped block whose pairs are left out."""
    return replace(block, runs=[replace(run, pairs=None) for run in block.runs])


def copy_key_range(block: MappedBlock, first: Any, stop: Any) -> list[SortedRun]:
    """Return copies of a block's pairs with keys from `first` on, below `stop`; None: no limit."""
    parts = []
    for run in block.runs:
        assert run.pairs is not None
        first_pair = 0 if first is None else run.edges([first])[1]
        stop_pair = len(run) if stop is None else run.edges([stop])[1]
        part = run.part(first_pair, stop_pair)
        parts.append(replace(part, pairs=concatenate_runs([part])))
    return parts


class MapWork:
    """Maps one block; opens the trajectory once in each process.

    `plans`: one for each trajectory. `program`: its map is called; its reduce is pickled with it,
    so that a reduce that cannot be pickled fails before the work. `spool`: collects the pairs.
    `rank`: of this process, under MPI.
    """

    def __init__(
        self, plans: Sequence[Plan], program: Program, spool: Spool, rank: int | None = None
    ) -> None:
        self._name = kernel_name(plans[0].prepared.function)
        self._spool, self._reduce = spool, program.reduce
        self._one_at_a_time = OneAtATime()  # the spool is for one block
        self._functions = [
            _SpoolingMap(plan.prepared.function, program.per_frame, spool) for plan in plans
        ]
        self._block_works = []
        for plan, function in zip(plans, self._functions, strict=True):
            prepared = replace(plan.prepared, function=function, reducer=Stack(), fills=False)
            self._block_works.append(BlockWork(plan.layout, prepared, plan.open_s, rank=rank))

    def __repr__(self) -> str:
        return f"{self._name} or {kernel_name(self._reduce)}"

    def __call__(self, task: MapTask) -> MappedBlock:
        """Map a block; raises BlockError if that fails."""
        with self._one_at_a_time:
            self._spool.begin(describe_block(task))
            self._functions[task.trajectory].next_index = task.first_index
            result = self._block_works[task.trajectory]((task.number, task.frames))
            n_pairs = Stack().finish(result.state)  # type: ignore[arg-type]
            runs = self._spool.finish()
        return MappedBlock(task.first_index, runs, n_pairs, result.time, result.timing)


class _SpoolingMap:
    """Calls a map, spools its pairs, and returns the number of pairs of each frame."""

    def __init__(self, function: Any, per_frame: bool, spool: Spool) -> None:
        self._function, self._per_frame, self._spool = function, per_frame, spool
        self.next_index = 0

    def __call__(self, block: FrameBlock) -> NDArray[np.int64]:
        call = self._map_frames if self._per_frame else self._map_block
        keys, rows, values = call(block)
        n_frames = block.n_frames
        if len(rows) and not 0 <= rows.min() <= rows.max() < n_frames:
            raise ValueError(
                f"rows are {rows.min()} to {rows.max()}, but the {n_frames} frames of the block "
                f"are the rows 0 to {n_frames - 1}"
            )
        frame_index = (self.next_index + rows).astype(np.int64)
        # Blocks are read into the same arrays again: views of them must be copied.
        copies = {name: np.array(value) for name, value in values.items()}
        self._spool.add(KeyValuePairs(tuple(copies), [keys, frame_index, *copies.values()]))
        self.next_index += n_frames
        return np.bincount(rows, minlength=n_frames)

    def _map_block(self, block: FrameBlock) -> tuple[NDArray[Any], NDArray[Any], dict[str, Any]]:
        pairs = self._function(block)
        if not isinstance(pairs, tuple) or len(pairs) != 3:
            type_text = "None" if pairs is None else f"a {type(pairs).__name__}"
            raise ValueError(
                f"{kernel_name(self._function)} returned {type_text}; expected "
                "(keys, rows, values), or per_frame=True for a generator of (key, value)"
            )
        keys, rows = convert_keys(pairs[0]), np.asarray(refuse_mask(pairs[1], "rows"))
        if rows.shape != keys.shape or (rows.dtype.kind not in "iu" and len(rows)):
            raise ValueError(
                f"there are {len(keys)} keys, but rows of shape {rows.shape} and {rows.dtype}; "
                "expected a whole number for each key: which frame of the block its pair belongs to"
            )
        return keys, rows.astype(np.int64), convert_values(pairs[2], len(keys))

    def _map_frames(self, block: FrameBlock) -> tuple[NDArray[Any], NDArray[Any], dict[str, Any]]:
        keys, rows, values = [], [], []
        for row in range(block.n_frames):
            pairs = self._function(block.frames(slice(row, row + 1)))
            if pairs is None:
                name = kernel_name(self._function)
                raise ValueError(f"{name} returned None; expected (key, value) of each pair")
            for key, value in pairs:
                keys.append(key)
                rows.append(row)
                row_columns = value if isinstance(value, dict) else {"value": value}
                values.append(
                    {
                        name: np.array(refuse_mask(number, f"values {name!r}"))
                        for name, number in row_columns.items()
                    }
                )
        names = list(values[0]) if values else []
        for key, row_values in zip(keys, values, strict=True):
            if list(row_values) != names:
                raise ValueError(
                    f"values of the key {key!r} are {list(row_values)}, earlier {names}"
                )
        columns = {name: np.array([row_values[name] for row_values in values]) for name in names}
        return convert_keys(keys), np.array(rows, np.int64), convert_values(columns, len(keys))


RESERVED_NAMES = {"key", "keys", "label", "file"}
"""Names in files of results that no column may have."""

ReduceTask = tuple[int, Sequence[Sequence[SortedRun]]]
"""The number of a range of keys, and its pairs as groups of runs."""


@dataclass(slots=True)
class Table:
    """One row for each key."""

    keys: NDArray[Any]
    trajectory: NDArray[np.int64]
    columns: dict[str, NDArray[Any]]
    failures: list[tuple[Any, int, str]]
    """Keys whose reduce failed, numbers of their trajectories, and errors."""

    @classmethod
    def empty(cls) -> Table:
        """Return a table without rows."""
        return cls(np.empty(0, np.int64), np.empty(0, np.int64), {}, [])


class ReduceWork:
    """Reduces a range of keys.

    `reduce`: the user's function. `schema`: of the pairs. `frames`: numbers and times.
    `keep_going`: whether a key whose reduce fails is recorded instead of ending the work.
    """

    def __init__(
        self, reduce: Callable[..., Any], schema: Schema, frames: MappedFrames, keep_going: bool
    ) -> None:
        self._reduce, self._schema = reduce, schema
        self._frames, self._keep_going = frames, keep_going
        self._trajectory = -1
        """Number of the trajectory for which the reduce was prepared last."""

    def __repr__(self) -> str:
        return f"the reduce {kernel_name(self._reduce)}"

    def __call__(self, task: ReduceTask) -> Table:
        """Return the rows of a range; raises BlockError where a reduce fails."""
        _, groups = task
        runs = list(itertools.chain.from_iterable(groups))
        return self.reduce_pairs(concatenate_runs(runs, self._schema))

    def reduce_pairs(self, pairs: KeyValuePairs) -> Table:
        """Sort pairs and reduce them."""
        pairs.sort()
        trajectories = self._frames.trajectory_numbers(pairs.frame_index)
        edges = pairs.key_edges()
        if len(self._frames.firsts) > 1:
            edges = np.union1d(edges, np.flatnonzero(np.diff(trajectories)) + 1)
        first_pairs: list[int] = []
        rows: list[dict[str, NDArray[Any]]] = []
        failures: list[tuple[Any, int, str]] = []
        for first, stop in itertools.pairwise(edges.tolist()):
            key, trajectory = pairs.keys[first].item(), int(trajectories[first])
            self._begin(trajectory)
            try:
                row = self._reduce_key(key, pairs.rows(first, stop))
            except Exception as error:
                text = error_text(error)
                if not self._keep_going:
                    raise BlockError(
                        f"{self._key_label(key, trajectory)} failed: {text}"
                    ) from error
                failures.append((key, trajectory, text))
                continue
            if rows and (problem := _compare_rows(rows[0], row)):
                raise BlockError(f"{self._key_label(key, trajectory)} returned {problem}")
            first_pairs.append(first)
            rows.append(row)
        names = rows[0] if rows else ()
        columns = {name: np.stack([row[name] for row in rows]) for name in names}
        return Table(pairs.keys[first_pairs], trajectories[first_pairs], columns, failures)

    def _key_label(self, key: Any, trajectory: int) -> str:
        suffix = f" of {self._frames.labels[trajectory]}" if self._frames.labels else ""
        return f"{kernel_name(self._reduce)} of the key {key!r}{suffix}"

    def _begin(self, trajectory: int) -> None:
        """Call the method ``begin`` of the object that reduces, once for each trajectory."""
        begin = getattr(getattr(self._reduce, "__self__", None), "begin", None)
        if begin is None or self._trajectory == trajectory:
            return
        frame_numbers, time = self._frames.frame_numbers, self._frames.time
        first, stop = self._frames.edges[trajectory : trajectory + 2]
        try:
            begin(frame_numbers[first:stop], time[first:stop])
        except Exception as error:
            raise BlockError(f"{kernel_name(begin)} failed: {error_text(error)}") from error
        self._trajectory = trajectory

    def _reduce_key(self, key: Any, pairs: KeyValuePairs) -> dict[str, NDArray[Any]]:
        """Return the row of a key; raises errors of `reduce`, TypeError or ValueError."""
        index = pairs.frame_index
        values = self._reduce(
            key, self._frames.frame_numbers[index], self._frames.time[index], pairs.values
        )
        if not isinstance(values, dict):
            raise TypeError(f"it returned {short_repr(values)}; expected a dict")
        row = {
            str(name): np.asarray(refuse_mask(value, f"values {name!r}"))
            for name, value in values.items()
        }
        for name, value in row.items():
            if name in RESERVED_NAMES:
                raise ValueError(f"a column cannot be called {name!r}, as files need the name")
            if value.dtype.kind not in "biufcUSmM":
                raise TypeError(f"{name!r} is {value.dtype}; give numbers, text or arrays of them")
        return row


def _compare_rows(first: dict[str, NDArray[Any]], row: dict[str, NDArray[Any]]) -> str:
    """Return the difference in names or shapes between two rows, for a message; "" for none."""
    if first.keys() != row.keys():
        return f"{list(row)}, but {list(first)} for other keys"
    for name, value in row.items():
        if value.shape != first[name].shape:
            return (
                f"{name!r} of shape {value.shape}, but {first[name].shape} for other keys; pad "
                "to one shape"
            )
    return ""


def concatenate_tables(tables: Sequence[Table], schema: Schema) -> Table:
    """Return the rows of all ranges, in the order of their keys; raises BlockError."""
    non_empty = [table for table in tables if len(table.keys)]
    failures = [failure for table in tables for failure in table.failures]
    if not non_empty:
        return Table(np.empty(0, schema.columns[0][0]), np.empty(0, np.int64), {}, failures)
    first = non_empty[0]
    for table in non_empty[1:]:
        if problem := _compare_rows(_first_row(first), _first_row(table)):
            raise BlockError(f"the reduce of the key {table.keys[0].item()!r} returned {problem}")
    columns = {
        name: np.concatenate([table.columns[name] for table in non_empty]) for name in first.columns
    }
    keys = np.concatenate([table.keys for table in non_empty])
    trajectory = np.concatenate([table.trajectory for table in non_empty])
    return Table(keys, trajectory, columns, failures)


def _first_row(table: Table) -> dict[str, NDArray[Any]]:
    return {name: column[0] for name, column in table.columns.items()}


MEMORY_NBYTES = 1 << 30
"""Default memory of each worker for pairs."""
RANGES_PER_WORKER = 4
"""More than one evens out keys with more work than others."""
MIN_RANGES = 16
"""Ranges of several workers together, as `mdio.mapreduce.driver.MIN_BLOCKS`."""
MEMORY_PARTS = 6
"""Parts into which the memory is divided. A run, or a range while it is sorted, may use one, and a
copy of it another; runs that stay in memory may use two."""
MIN_NBYTES = 4096
"""With less memory, overhead would dominate."""


@dataclass(frozen=True, kw_only=True)
class MapReduceOptions:
    """Memory, files and blocks of the work."""

    memory: int = option(
        "memory for pairs in each worker; the rest goes through sorted files; with Dask the "
        "workers' own limit applies (default: 1G)",
        "--memory SIZE",
        MEMORY_NBYTES,
        kind="nbytes",
    )
    local_dir: str | PathLike[str] | None = option(
        "folder for sorted files, on the node's own disk (default: that for temporary files)",
        "--local-dir DIR",
    )
    blocks_per_worker: int | None = option(
        "more than one evens out workers of unequal speed (default: 4, but at least 16 in all)",
        "--blocks-per-worker K",
    )
    keep_going: bool = option("leave out keys whose reduce fails", "--keep-going", False)

    @property
    def max_nbytes(self) -> int:
        """Most bytes of a run, and of a range."""
        return max(MIN_NBYTES, self.memory // MEMORY_PARTS)

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """Yield a temporary folder for pairs; raises OutputError."""
        try:
            folder = tempfile.TemporaryDirectory(prefix="mdio-pairs-", dir=self.local_dir)
        except OSError as error:
            parent = self.local_dir or tempfile.gettempdir()
            raise OutputError(
                f"{parent}: no folder for pairs can be made there ({error.strerror}); name another "
                "one (--local-dir, local_dir=)"
            ) from error
        with folder as name:
            yield Path(name)

    def spool(self, program: Program, folder: Path | None, *, is_shared: bool) -> Spool:
        """Return the spool of a worker; if `is_shared`, others read its runs, which go to files."""
        combiner = None if program.combine is None else partial(combine_pairs, program.combine)
        max_nbytes = math.inf if folder is None else self.max_nbytes
        return Spool(max_nbytes, 0 if is_shared else 2 * max_nbytes, folder, combiner)

    def n_ranges(self, runs: Sequence[SortedRun], schema: Schema, n_workers: int) -> int:
        """Return the number of ranges into which the keys are cut."""
        nbytes = sum(map(len, runs)) * schema.nbytes
        min_ranges = max(MIN_RANGES, n_workers * RANGES_PER_WORKER) if n_workers > 1 else 1
        return max(min_ranges, math.ceil(nbytes / self.max_nbytes))


@dataclass(slots=True)
class MapReduceJob:
    """A map-reduce whose trajectories are open."""

    plans: dict[str, Plan]
    program: Program
    options: MapReduceOptions
    progress: Progress | None
    frames: MappedFrames = field(init=False)
    """The frames of all plans."""
    blocks: dict[int, MappedBlock] = field(default_factory=dict)
    """Mapped blocks by index of their first frame."""

    def __post_init__(self) -> None:
        frames = {label: plan.source_frames for label, plan in self.plans.items()}
        self.frames = MappedFrames.of(frames)

    def tasks(self, blocks: Iterable[Iterable[NumberedBlock]]) -> list[MapTask]:
        """Return tasks for the numbered blocks of each trajectory."""
        tasks = []
        trajectories = zip(self.frames.firsts.tolist(), self.plans.items(), blocks, strict=True)
        for trajectory, (first, (label, plan), numbered_blocks) in enumerate(trajectories):
            for number, frames in numbered_blocks:
                first_index = first + plan.frames.index(frames.start)
                tasks.append(MapTask(first_index, number, trajectory, label, frames))
        return tasks

    def add(self, block: MappedBlock) -> None:
        """Add a mapped block, and report progress."""
        first = block.first_index
        self.blocks[first] = block
        self.frames.time[first : first + len(block.time)] = block.time
        block.timing.record_arrival()
        if self.progress is not None:
            self.progress(block.timing.n_frames, block.timing.nbytes_read)

    def result(
        self,
        table: Table,
        executor: Executor,
        runs: Sequence[SortedRun],
        map_s: float,
        reduce_s: float,
    ) -> MapReduceResult:
        """Return the result; `runs` are those of all workers."""
        plans = list(self.plans.values())
        timings = [self.blocks[first].timing for first in sorted(self.blocks)]
        for plan in plans if timings else ():
            plan.add_prepare_nbytes(timings[0])
        labels = self.frames.labels
        n_pairs = np.zeros(len(self.frames.frame_numbers), np.int64)
        for first, block in self.blocks.items():
            n_pairs[first : first + len(block.n_pairs)] = block.n_pairs
        notes = [*self.program.notes, *(note for plan in plans for note in plan.notes)]
        notes += [note for timing in timings for note in timing.notes]
        block_edges = np.searchsorted(sorted(self.blocks), self.frames.edges)
        bounds = itertools.pairwise(block_edges.tolist())
        for (label, plan), (first, end) in zip(self.plans.items(), bounds, strict=True):
            doubts = plan.notes_on_doubt(timings[first:end], len(plan.frames))
            notes += [f"{label}: {note}" if labels else note for note in doubts]
        return MapReduceResult(
            keys=table.keys,
            columns=table.columns,
            label=np.array(labels)[table.trajectory] if labels else None,
            failures=[
                (key, labels[trajectory] if labels else None, error)
                for key, trajectory, error in table.failures
            ],
            frame=self.frames.frame_numbers,
            time=self.frames.time,
            n_pairs=n_pairs,
            timings=timings,
            seconds=sum(plan.open_s for plan in plans) + map_s + reduce_s,
            reduce_s=reduce_s,
            executor=executor.name,
            workers=executor.n_workers,
            nbytes_shuffled=sum(len(run) * run.schema.nbytes for run in runs),
            nbytes_on_disk=sum(
                len(run) * run.schema.nbytes for run in runs if run.path is not None
            ),
            firsts=tuple(self.frames.firsts.tolist()),
            prepare_s=sum(plan.prepare_s for plan in plans),
            notes=tuple(dict.fromkeys(notes)),
        )
