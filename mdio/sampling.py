"""Frames of many trajectories in random order, for training a model.

Reading a single frame takes reading its complete chunk. So runs of complete chunks are read, in
random order over all trajectories, into a pool of frames in memory, from which batches are drawn at
random: each frame comes once an epoch, and each byte is read once. The order depends only on seed,
epoch, and sizes of batch and pool: workers may read runs in another order, but they are added to
the pool in this one.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mdio.converters.selection import SelectedAtoms, choose_atoms, open_with_topology
from mdio.core.blocks import cut_runs
from mdio.core.errors import PlanError
from mdio.core.files.reading import Closable, HandleCache
from mdio.core.files.store import AnyPath
from mdio.core.frames import FIELDS, AtomIndices, FrameBlock, TrajectoryInfo
from mdio.core.words import plural
from mdio.layouts.base import Layout, atom_indices, warn_of_lost_frames
from mdio.layouts.foreign.universe import compare_names, stored_topology
from mdio.layouts.manifest import indices_from_runs
from mdio.layouts.views.opening import ensemble_members
from mdio.parallel.executors import check_count, choose_executor

Trajectory = AnyPath | Sequence[AnyPath] | Layout

POOL_NBYTES = 256 << 20
RUN_NBYTES = 4 << 20
"""Decoded bytes of a run, unless a chunk has more: enough to read fast, little beside the pool."""
MIN_RUNS_IN_POOL, MIN_RUNS = 16, 256
"""Least numbers of runs in a pool and in all, since frames of one run are similar."""
MAX_OPEN = 16
"""Most trajectories that a worker has open at a time; each may have some thirty files."""
PAUSE_S = 0.005
"""How long a worker pauses while too many of its blocks wait for those of a slower one."""


@dataclass(slots=True, repr=False)
class Batch(FrameBlock):
    """Frames of several trajectories; see `FrameBlock`, too.

    Attributes
    ----------
    trajectory : (F,) int64
        Trajectory of each frame, as an index in `Sample.paths`.
    frame : (F,) int64
        Number of each frame in its trajectory.
    """

    trajectory: NDArray[np.int64] = field(kw_only=True)
    frame: NDArray[np.int64] = field(kw_only=True)

    def __repr__(self) -> str:
        return f"<Batch: {plural(self.n_frames, 'frame')} of {plural(self.n_atoms, 'atom')}>"


class _Source(NamedTuple):
    """A closed trajectory, and the values that sampling needs."""

    layout: Layout
    atoms: AtomIndices | None
    n_atoms: int
    """Number of chosen atoms."""
    info: TrajectoryInfo
    boundaries: NDArray[np.int64]
    notes: tuple[str, ...]


class _Run(NamedTuple):
    """Neighbouring frames of a trajectory."""

    trajectory: int
    start: int
    stop: int


class _Reader(Closable):
    """Reads runs; in each worker, a few trajectories are open at a time.

    `max_frames`: frames of the longest run. `block_options`: keywords of `FrameBlock.empty`.
    """

    def __init__(
        self, sources: Sequence[_Source], max_frames: int, block_options: dict[str, Any]
    ) -> None:
        self._sources, self._max_frames, self._block_options = sources, max_frames, block_options
        self._buffer: FrameBlock | None = None
        self._layouts = HandleCache[int, Layout](self._layout, MAX_OPEN)

    def _layout(self, number: int) -> Layout:
        return self._sources[number].layout

    def __call__(self, run: _Run | None) -> FrameBlock | None:
        """Return the frames of a run, valid until the next call; None makes a short pause."""
        if run is None:
            time.sleep(PAUSE_S)
            return None
        if self._buffer is None:  # reused, since fresh memory is slow
            self._buffer = FrameBlock.empty(self._max_frames, **self._block_options)
        block = self._buffer.frames(slice(run.stop - run.start))
        atoms = self._sources[run.trajectory].atoms
        return self._layouts[run.trajectory].read(run.start, run.stop, atoms, block)

    def close(self) -> None:
        """Close the open trajectories."""
        self._layouts.close()
        self._buffer = None


class _Pool:
    """Frames in memory, from which batches are drawn; in random order if `random` is given.

    `n_rows`: most frames in the pool.
    """

    def __init__(self, n_rows: int, random: np.random.Generator | None) -> None:
        self._random, self._arrays = random, dict[str, NDArray[Any]]()
        self._rows = np.arange(n_rows)
        """Numbers of rows of `_arrays`: first `n_filled` rows with frames, then the free ones."""
        self.n_filled = 0

    @property
    def n_free(self) -> int:
        """Number of frames that can be added."""
        return len(self._rows) - self.n_filled

    def add(self, run: _Run, block: FrameBlock) -> None:
        """Add the frames of a run; there must be enough free rows."""
        columns = block.arrays() | {
            "frame": np.arange(run.start, run.stop),
            "trajectory": np.full(block.n_frames, run.trajectory),
        }
        rows = self._rows[self.n_filled : self.n_filled + block.n_frames]
        for name, values in columns.items():
            if name not in self._arrays:
                shape = (len(self._rows), *values.shape[1:])
                self._arrays[name] = np.empty(shape, values.dtype)
            self._arrays[name][rows] = values
        self.n_filled += block.n_frames

    def draw(self, n_frames: int) -> Batch:
        """Remove and return `n_frames`, or all if there are fewer."""
        n_filled, rows = self.n_filled, self._rows
        self.n_filled = n_left = max(0, n_filled - n_frames)
        if self._random is None:
            rows[:n_filled] = np.roll(rows[:n_filled], n_left)
        else:
            drawn_slots = self._random.choice(n_filled, n_filled - n_left, replace=False)
            drawn_rows = rows[drawn_slots]
            rows[drawn_slots[drawn_slots < n_left]] = rows[
                np.setdiff1d(np.arange(n_left, n_filled), drawn_slots)
            ]
            rows[n_left:n_filled] = drawn_rows
        return Batch(
            **{name: values[rows[n_left:n_filled]] for name, values in self._arrays.items()}
        )


class Sample:
    """Batches of frames of many trajectories; `mdio.sample` makes it.

    Each iteration over it is an epoch. It pickles, without open files.

    Attributes
    ----------
    paths : list of str
        The trajectories.
    n_frames, n_atoms : int
        Frames of all of them; atoms of each frame of a batch.
    epoch : int
        Number of the next epoch; may be set.
    notes : tuple of str
        Notes on the trajectories, such as on a truncated file.
    """

    def __init__(
        self,
        sources: Sequence[_Source],
        *,
        batch: int,
        shuffle: bool,
        seed: int,
        n_workers: int | None,
        fields: Sequence[str],
        pool_nbytes: int,
    ) -> None:
        self.paths = [str(source.layout.path) for source in sources]
        self.n_frames = sum(source.info.n_frames for source in sources)
        if not self.n_frames:
            raise PlanError(f"{', '.join(self.paths) or 'no trajectory is given'}: no frames")
        self.n_atoms, self.epoch = sources[0].n_atoms, 0
        self.notes = tuple(note for source in sources for note in source.notes)
        self._batch, self._shuffle, self._seed, self._n_workers = batch, shuffle, seed, n_workers
        row_nbytes = 12 * self.n_atoms * len(fields)
        max_nbytes = pool_nbytes // MIN_RUNS_IN_POOL, self.n_frames * row_nbytes // MIN_RUNS
        max_run_frames = min(RUN_NBYTES, *max_nbytes) // row_nbytes
        self._runs = [
            _Run(number, run.start, run.stop)
            for number, (*_, info, boundaries, _) in enumerate(sources)
            for run in cut_runs(boundaries, info.n_frames, info.chunk_frames or 1, max_run_frames)
        ]
        max_frames = max(run.stop - run.start for run in self._runs)
        self._pool_frames = batch + max_frames
        if shuffle:
            self._pool_frames = max(pool_nbytes // row_nbytes, self._pool_frames)
        has_field = {name: name in fields for name in FIELDS[1:]}
        self._reader = _Reader(sources, max_frames, {"n_atoms": self.n_atoms} | has_field)

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        return -(-self.n_frames // self._batch)

    def __iter__(self) -> Iterator[Batch]:
        """Return the batches of the next epoch."""
        self.epoch += 1
        return self.batches(self.epoch - 1)

    def batches(self, epoch: int, shard: tuple[int, int] = (0, 1)) -> Iterator[Batch]:
        """Yield the batches of an epoch, or of one of its shards.

        The last batch may have fewer frames. Files are closed and workers ended with the iterator,
        even if it is not exhausted.

        Parameters
        ----------
        epoch
            0 or more; each has another order.
        shard
            Number of the shard, from 0, and number of shards; together they have each frame once.

        Raises
        ------
        PlanError
            There is no such epoch or shard.
        SourceError, CorruptLayoutError
            Frames cannot be read.
        WorkerDiedError
            A worker was killed.
        """
        shard_number, n_shards = shard
        if epoch < 0 or not 0 <= shard_number < n_shards:
            raise PlanError(f"epoch {epoch}, shard {shard_number} of {n_shards}; both begin with 0")
        order = np.arange(len(self._runs))
        if self._shuffle:
            np.random.default_rng([self._seed, epoch]).shuffle(order)
        runs = [self._runs[number] for number in order[shard_number::n_shards]]
        n_frames = sum(run.stop - run.start for run in runs)
        random = np.random.default_rng([self._seed, epoch, shard_number]) if self._shuffle else None
        return self._draw_batches(runs, _Pool(min(self._pool_frames, n_frames), random))

    def _draw_batches(self, runs: list[_Run], pool: _Pool) -> Iterator[Batch]:
        with closing(self._read(runs)) as blocks:
            for run, block in zip(runs, blocks, strict=True):
                while pool.n_free < block.n_frames:
                    yield pool.draw(self._batch)
                pool.add(run, block)
        while pool.n_filled:
            yield pool.draw(self._batch)

    def _read(self, runs: list[_Run]) -> Generator[FrameBlock]:
        """Yield the frames of runs in their order, in whatever order workers read them."""
        blocks_by_number: dict[int, FrameBlock | None] = {}
        next_number = 0

        def items() -> Iterator[_Run | None]:
            for run in runs:
                while len(blocks_by_number) > executor.n_workers:  # others wait for a slow worker
                    yield None
                yield run

        with self._reader, choose_executor(None, self._n_workers) as executor:
            for number, block_read in executor.imap(
                self._reader, items(), describe=self._describe_run
            ):
                blocks_by_number[number] = block_read
                while next_number in blocks_by_number:
                    block = blocks_by_number.pop(next_number)
                    next_number += 1
                    if block is not None:
                        yield block

    def _describe_run(self, run: _Run | None) -> str:
        return "a pause" if run is None else f"{self.paths[run.trajectory]}, {run.start}:{run.stop}"


def sample(
    trajectories: Trajectory | Sequence[Trajectory],
    *,
    batch: int = 32,
    atoms: str | ArrayLike | Any | None = None,
    top: str | PathLike[str] | None = None,
    shuffle: bool = True,
    seed: int = 0,
    workers: int | None = None,
    fields: Sequence[str] = FIELDS[:1],
    pool_nbytes: int = POOL_NBYTES,
    **options: Any,
) -> Sample:
    """Draw frames of many trajectories in random order, each once an epoch, in batches.

    Complete chunks are read, in random order over all trajectories, into a pool in memory, from
    which batches are drawn.

    Parameters
    ----------
    trajectories
        Trajectories of any layouts: each a path, several files that are joined, or an open
        `Layout`; an ensemble stands for its trajectories.
    batch
        Frames of a batch.
    atoms
        Indices, a mask, an MDAnalysis AtomGroup, the name of a stored group, or a selection, which
        needs `top` or stored topologies: the same number of atoms of each trajectory; all by
        default.
    top
        Topology of all trajectories. Selections by position are made in the first frame of the
        first one.
    shuffle
        False: all frames in order.
    seed
        0 or more. The same one gives the same sequence for the same `batch` and `pool_nbytes`, with
        any number of workers.
    workers
        Processes that read ahead; by default, frames are read in this one.
    fields
        Fields of the batches besides ``positions``: ``velocities``, ``forces``.
    pool_nbytes
        Bytes of the pool, at least those of a chunk and a batch; only frames that are in it at the
        same time are mixed. Each worker also has one or two runs of 4 MiB.
    **options
        As for `mdio.open`: ``cache``, ``verify``, ``overlap``, ...

    Returns
    -------
    Sample
        An iterable; each iteration is an epoch.

    Raises
    ------
    PlanError
        Invalid arguments, or different numbers of atoms of the trajectories.
    SourceError, CorruptLayoutError, UnknownLayoutError
        A trajectory or the topology cannot be read.

    Examples
    --------
    >>> import mdio
    >>> from MDAnalysisTests.datafiles import DCD, DCD2
    >>> sample = mdio.sample([DCD, DCD2], batch=40, atoms=[0, 10, 20], seed=7)
    >>> sample.n_frames, len(sample)
    (200, 5)
    >>> for epoch in range(2):
    ...     print([batch.positions.shape for batch in sample][-1])
    (40, 3, 3)
    (40, 3, 3)
    >>> batch = next(iter(sample))
    >>> sorted(set(batch.trajectory.tolist())), batch.frame.shape
    ([0, 1], (40,))
    """
    numbers: tuple[Any, ...] = (batch, seed, pool_nbytes)
    if not all(hasattr(n, "__index__") for n in numbers) or min(batch, seed + 1, pool_nbytes) < 1:
        raise PlanError(
            f"batches of {batch!r} frames, seed {seed!r}, a pool of {pool_nbytes!r} bytes; give "
            "whole numbers: a batch and a pool of 1 or more, and a seed of 0 or more"
        )
    if workers is not None:
        workers = check_count(workers, "workers")
    fields = (fields,) if isinstance(fields, str) or not isinstance(fields, Iterable) else [*fields]
    if unknown := {*fields} - {*FIELDS}:
        raise PlanError(f"there is no field {unknown.pop()!r}; there are {', '.join(FIELDS)}")
    fields = [name for name in FIELDS if name in {FIELDS[0], *fields}]
    sources: list[_Source] = []
    selected_by_n_atoms: dict[int, SelectedAtoms] = {}
    items: Any = trajectories
    is_single = isinstance(items, str | PathLike | Layout) or hasattr(items, "readline")
    if is_single or not isinstance(items, Iterable):
        items = [trajectories]
    for item in items:
        layouts: Iterable[Any] = [item]
        if not isinstance(item, Layout):
            paths = ensemble_members(item).values() or [item]
            layouts = (open_with_topology(path, top, fields=fields, **options) for path in paths)
        for layout in layouts:  # each is closed before the next is opened: there may be thousands
            with layout:
                indices, notes = _choose_indices(layout, atoms, top, selected_by_n_atoms)
                n_atoms = layout.read(0, 0, indices).n_atoms  # raises for missing atoms
                boundaries, notes = layout.boundaries(), layout.notes + notes
                warn_of_lost_frames(layout.info, stacklevel=2)
                closed = layout.with_metadata()
                sources.append(_Source(closed, indices, n_atoms, layout.info, boundaries, notes))
            _check_last_source(sources, fields)
    return Sample(
        sources,
        batch=batch,
        shuffle=shuffle,
        seed=seed,
        n_workers=workers,
        fields=fields,
        pool_nbytes=pool_nbytes,
    )


def _choose_indices(
    layout: Layout,
    atoms: Any,
    top: str | PathLike[str] | None,
    selected_by_n_atoms: dict[int, SelectedAtoms],
) -> tuple[AtomIndices | None, tuple[str, ...]]:
    """Return indices of the chosen atoms of a trajectory, None for all, and notes on the choice.

    `selected_by_n_atoms`: atoms chosen with `top`, by number of atoms.
    """
    if atoms is None:
        return None, ()
    if not isinstance(atoms, str):
        return atom_indices(atoms, layout.info.n_atoms, layout.path), ()
    runs = (layout.manifest or {}).get("group_atoms", {}).get(atoms)
    if runs is not None:
        return indices_from_runs(runs), ()
    n_atoms = layout.info.n_atoms
    selected_atoms = None if top is None else selected_by_n_atoms.get(n_atoms)
    if selected_atoms is not None and selected_atoms.universe is not None:
        atom_group = selected_atoms.universe.atoms
        return selected_atoms.atoms, compare_names(
            atom_group, stored_topology(layout), top, layout.path
        )
    selected_by_n_atoms[n_atoms] = selected_atoms = choose_atoms(layout, top, atoms, {})
    return selected_atoms.atoms, selected_atoms.notes


def _check_last_source(sources: Sequence[_Source], fields: Sequence[str]) -> None:
    """Raise PlanError if the last trajectory has other numbers of atoms or lacks a field."""
    first, last = sources[0], sources[-1]
    if last.n_atoms != first.n_atoms:
        raise PlanError(
            f"{last.layout.path}: {last.n_atoms} atoms are chosen, but {first.n_atoms} of "
            f"{first.layout.path}; choose the same number of each with atoms="
        )
    for name in fields[1:]:
        if name not in last.info.fields:
            raise PlanError(f"{last.layout.path}: it has no {name}; leave them out of fields=")
