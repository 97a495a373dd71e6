"""Map-reduce over trajectories: a map over blocks, a shuffle by key, a reduce for each key.

Pairs that a block gives are sorted by key into runs. When all blocks are mapped, samples of the
keys say where to cut them into ranges that have about as many pairs each, few enough to fit in
memory; then each range is gathered from all runs, sorted and reduced, one by one in each worker.
What comes out does not depend on where blocks, runs and ranges are cut.

Under MPI every rank maps its blocks and keeps their pairs, sorted, in memory or in files of its own
node. All learn samples of all keys and cut them into ranges in the same way; then, round by round,
each rank gets the pairs of one range from all others and reduces it. Rank 0 gathers the rows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any

from mdio.analysis.kernels.kernel import BlockFunction, Kernel
from mdio.analysis.placing import blocks_on_dask, blocks_on_ranks
from mdio.analysis.plan import Request, Trajectory
from mdio.core.errors import PlanError, WorkerDiedError
from mdio.core.options import made_of, option, takes_options
from mdio.core.signals import terminations_raised
from mdio.core.timing import Stopwatch
from mdio.layouts.views.opening import ensemble_at
from mdio.layouts.views.options import CachedReading
from mdio.mapreduce.job import (
    MappedBlock,
    MapReduceJob,
    MapTask,
    MapWork,
    Progress,
    ReduceTask,
    ReduceWork,
    Settings,
    Table,
    copy_key_range,
    joined,
    map_label,
    reduce_label,
    without_pairs,
)
from mdio.mapreduce.pairs import (
    KeyValuePairs,
    SortedRun,
    choose_cuts,
    common_kind,
    concatenate_runs,
)
from mdio.mapreduce.program import Frames, Program, choose_frames
from mdio.mapreduce.results import MapReduceResult
from mdio.parallel.executors import Executor, executor_of

if TYPE_CHECKING:
    from MDAnalysis import Universe

    from mdio.parallel.mpi_executor import MPIExecutor
    from mdio.parallel.ranks import Agreement


MEMORY_NBYTES = 1 << 30
"""What pairs may take in each worker by default."""
BLOCKS_PER_WORKER = 4
LEAST_BLOCKS = 16
"""Of all of several workers: the last of few blocks would keep one of two workers waiting."""
MOST_DEATHS = 3
"""Of processes, before a run is given up, as Dask has it."""


@dataclass(frozen=True, kw_only=True)
class Shuffle:
    """How pairs are made and travel."""

    memory: int = option(
        "what pairs may take in each worker; more goes through sorted files, with Dask the "
        "cluster's own (default: 1G)",
        "--memory SIZE",
        MEMORY_NBYTES,
        kind="nbytes",
    )
    local_dir: str | PathLike[str] | None = option(
        "for these files, a disk of the node itself (default: the system's for temporary files)",
        "--local-dir DIR",
    )
    blocks_per_worker: int | None = option(
        "more than one evens out workers of unequal speed (default: 4, all together 16)",
        "--blocks-per-worker K",
    )
    keep_going: bool = option("leave out keys whose reduce fails, and tell", "--keep-going", False)


@takes_options(CachedReading, Shuffle)
def map_reduce(
    trajectory: Trajectory | Mapping[str, Trajectory],
    *,
    map: Kernel | BlockFunction | Callable[..., Any],
    reduce: Callable[..., Any] | None = None,
    frames: Frames | None = None,
    top: str | PathLike[str] | Universe | None = None,
    select: str | None = None,
    fields: tuple[str, ...] | None = None,
    executor: Executor | None = None,
    workers: int | None = None,
    combine: Callable[..., Any] | str | None = None,
    per_frame: bool | None = None,
    group: str | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> MapReduceResult:
    """Map the frames of a trajectory to keys and values, and reduce the values of each key.

    Parameters
    ----------
    trajectory
        As for `mdio.analyze`; or several by label (replicas), or an ensemble: their values are
        reduced apart, and the table has a row for each key and label.
    map
        A function of a `FrameBlock` that returns ``(keys, rows, values)``: keys (K,), whole
        numbers, floats or text; rows (K,), which frame of the block each pair is of; values, a dict
        of arrays (K, ...). With `per_frame`, a generator of ``(key, value)`` or ``(key, dict of
        values)`` for a block of one frame. Or a program: a `Kernel` whose `prepare` returns such a
        function, with a method `reduce`, perhaps `combine`, `per_frame` and `frames`.
    reduce
        Called as ``reduce(key, frame, time, values)`` with all values of a key in the order of
        frames, those of one frame as the map gave them: `frame` (n,) int64, `time` (n,) in ps,
        `values` a dict of arrays (n, ...). Returns a dict of numbers, text or arrays, the same
        names and shapes for all keys. If it is the method of an object with a method `begin`, that
        is called before with the numbers and times of all frames of the trajectory.
    frames
        See `mdio.mapreduce.program.choose_frames`; each is mapped once.
    top, select, group, progress
        As for `mdio.analyze`.
    fields
        Which per-atom arrays blocks have, where the trajectory has them: by default positions.
    workers
        Worker processes on this machine; by default, all is done in this one.
    executor
        Instead of `workers`: where to run. With `MPIExecutor` all ranks make this call.
    combine
        Makes fewer pairs of those of a block before they travel: ``sum``, ``min`` or ``max`` of the
        values of each key, with the frame of the first; or a function of keys and values, sorted by
        key and frame, that returns which rows to keep, ascending, and their values. The reduce
        must not mind how often that happens: sums of floats depend on blocks in their last digits.
    **options
        <options>

    Returns
    -------
    MapReduceResult
        The same for every executor, number of workers and blocks, and memory. Under MPI all ranks
        have it, or with ``to_all=False`` rank 0; the table of the others is then empty.

    Raises
    ------
    PlanError
        Arguments that do not fit together or do not fit the trajectory, or cannot be pickled.
    SourceError, CorruptLayoutError
        The trajectory or the topology cannot be read, or they do not fit each other.
    BlockError
        The map failed in some block, the reduce for some key, keys or values do not go together,
        or a worker was killed.
    OutputError
        Pairs cannot be written to `local_dir`.

    Examples
    --------
    How far each C-alpha atom gets from where it is first:

    >>> import mdio, numpy as np
    >>> from MDAnalysisTests.datafiles import DCD, PSF
    >>> def places(block):
    ...     rows, atoms = np.indices(block.positions.shape[:2])
    ...     return atoms.ravel(), rows.ravel(), {"xyz": block.positions.reshape(-1, 3)}
    >>> def farthest(key, frame, time, values):
    ...     away = np.linalg.norm(values["xyz"] - values["xyz"][0], axis=1)
    ...     return {"angstrom": away.max(), "at_ps": time[away.argmax()]}
    >>> result = mdio.map_reduce(DCD, top=PSF, select="name CA", map=places, reduce=farthest)
    >>> len(result.keys), round(float(result.columns["angstrom"].max()), 2)
    (214, 17.59)
    """
    program = Program.of(map, reduce, combine, per_frame, frames, select, fields)
    reading, shuffle = made_of((CachedReading, Shuffle), options)
    memory, blocks_per_worker = shuffle.memory, shuffle.blocks_per_worker
    if memory < 1 or (blocks_per_worker is not None and blocks_per_worker < 1):
        raise PlanError(
            f"memory is {memory} bytes, blocks per worker {blocks_per_worker}; give more"
        )
    run_in = executor_of(executor, workers)
    given: Mapping[str, Trajectory]
    if isinstance(trajectory, Mapping):
        given = trajectory
    elif members := run_in.from_owner(partial(ensemble_at, trajectory, group)):
        given, group = members, None
    else:
        given = {"": trajectory}
    if not given:
        raise PlanError("no trajectory is given; give at least one")
    n_workers = run_in.n_workers
    if blocks_per_worker is None:
        least = LEAST_BLOCKS if n_workers > 1 else 1
        blocks_per_worker = max(BLOCKS_PER_WORKER, math.ceil(least / n_workers))
    n_blocks = math.ceil(n_workers * blocks_per_worker / len(given))
    requests = {
        str(label): Request(
            trajectory=one,
            kernel=program.kernel,
            top=top,
            group=group,
            n_blocks=n_blocks,
            verify=reading.verify,
            overlap=reading.overlap,
            choose=partial(choose_frames, frames=program.frames),
            cache=reading.folder,
        )
        for label, one in given.items()
    }
    settings = Settings(program, memory, shuffle.local_dir, shuffle.keep_going, progress)
    with terminations_raised(), ExitStack() as stack:
        if run_in.ranks is not None:
            return map_reduce_on_ranks(requests, settings, run_in.ranks, stack)
        plans = {}
        for label, request in requests.items():
            plans[label] = plan = request.plan()
            if plan.is_ours:
                stack.callback(plan.layout.close)
        return _map_reduce(MapReduceJob.of(plans, settings), run_in, stack, blocks_per_worker)


def _map_reduce(
    job: MapReduceJob, executor: Executor, stack: ExitStack, blocks_per_worker: int
) -> MapReduceResult:
    watch = Stopwatch()
    settings, table = job.settings, job.table
    dask = executor.cluster
    client = dask.client if dask else None
    is_here = executor.shares_memory
    if not (client or is_here or executor.shares_files):
        raise PlanError(
            f"workers of {executor!r} pass pairs on in files, but its shares_files says that they "
            "have no folder in common; take Processes(N), DaskExecutor(client) or MPIExecutor(comm)"
        )
    # On a cluster, pairs stay in the memory of the workers, which Dask looks after.
    folder = None if client else stack.enter_context(settings.folder())
    given = list(job.plans.values())
    plans = given if is_here else [plan.for_workers() for plan in given]
    work = MapWork(plans, settings.program, settings.spool(folder, shares=not is_here))
    items = job.items(enumerate(plan.blocks) for plan in given)
    if dask and all(plan.units is not None for plan in given):
        placed = [blocks_on_dask(plan, client, blocks_per_worker) for plan in given]
        items = job.items(blocks for blocks, _ in placed)
        dask.place([where for _, places in placed for where in places])
    futures: dict[int, Any] = {}
    leave: dict[str, Any] = {"leave": without_pairs} if client else {}
    for _, one in _done(executor, work, items, map_label, **leave):
        if client:
            future, one = one
            futures[one.at] = future
        job.note(one)
    map_s = watch.lap()
    runs = [run for at in sorted(job.mapped) for run in job.mapped[at].runs]
    reduced = Table.empty()
    if runs:
        kind = common_kind(runs)
        cuts = choose_cuts(runs, kind, settings.n_ranges(runs, kind, executor.n_workers))
        ends = [None, *cuts.tolist(), None]
        ranges = enumerate(itertools.pairwise(ends))
        parts: Iterator[ReduceTask]
        if client:
            submit = partial(client.submit, copy_key_range, pure=False)
            mapped = [futures[at] for at in sorted(futures)]
            parts = ((n, [submit(one, *of) for one in mapped]) for n, of in ranges)
        else:
            edges = [run.edges(cuts) for run in runs]
            parts = (
                (n, [[run.part(*at[n : n + 2]) for run, at in zip(runs, edges, strict=True)]])
                for n, _ in ranges
            )
        reducing = ReduceWork(settings.program.reduce, kind, table, settings.keep_going)
        tables = dict(_done(executor, reducing, parts, reduce_label))
        reduced = joined([tables[number] for number in sorted(tables)], kind)
    result = job.result(reduced, executor, runs)
    result.reduce_s = watch.lap()
    result.seconds += map_s + result.reduce_s
    return result


def _done(
    executor: Executor, work: Any, items: Iterable[Any], describe: Callable[[Any], str], **more: Any
) -> Iterator[tuple[int, Any]]:
    """Yield (number, result) of each item once, though processes die that were at one."""
    source = enumerate(items)
    left: dict[int, Any] = {}

    def given(numbers: list[int]) -> Iterator[Any]:
        for number, item in itertools.chain(list(left.items()), source):
            left[number] = item
            numbers.append(number)
            yield item

    for deaths in itertools.count(1):
        numbers: list[int] = []
        try:
            for at, result in executor.imap(work, given(numbers), describe=describe, **more):
                del left[numbers[at]]
                yield numbers[at], result
            return
        except WorkerDiedError:
            if deaths > MOST_DEATHS:
                raise


def map_reduce_on_ranks(
    requests: Mapping[str, Request], settings: Settings, executor: MPIExecutor, stack: ExitStack
) -> MapReduceResult:
    """Run a map-reduce on all ranks (collective); see `mdio.mapreduce.driver`."""
    from mdio.analysis.ranks import plan_on_ranks
    from mdio.parallel.ranks import Agreement

    comm = executor.comm
    agreement = Agreement(comm, list)
    stack.callback(agreement.close)
    error: Exception | None = None
    folder = None
    try:
        folder = stack.enter_context(settings.folder())
    except Exception as caught:
        error = caught
    agreement.reach(error)
    plans = {}
    for label, request in requests.items():
        plans[label] = plan = plan_on_ranks(request, executor)
        if plan.is_ours:
            stack.callback(plan.layout.close)
    watch = Stopwatch()
    if comm.rank != 0:
        settings = replace(settings, progress=None)
    job = MapReduceJob.of(plans, settings)
    spool = settings.spool(folder, shares=False)
    opened = list(plans.values())
    work, runs_here = MapWork(opened, settings.program, spool, comm.rank), list[SortedRun]()

    def map_here(item: MapTask) -> MappedBlock:
        mapped = work(item)
        runs_here.extend(mapped.runs)
        return without_pairs(mapped)

    blocks, own = blocks_on_ranks(opened, comm)
    for _, one in executor.imap(map_here, job.items(blocks), describe=map_label, own=own):
        job.note(one)
    job.table.time[:] = comm.bcast(job.table.time)
    map_s = watch.lap()
    every = comm.allgather([replace(run, pairs=None) for run in runs_here])
    runs = [run for of_rank in every for run in of_rank]
    reduced = _reduced(job, runs, runs_here, comm, agreement) if runs else Table.empty()
    result = job.result(reduced, executor, runs)
    result.reduce_s = watch.lap()
    result.seconds += map_s + result.reduce_s
    return comm.bcast(result) if executor.to_all else result


def _reduced(
    job: MapReduceJob, runs: list[SortedRun], own: list[SortedRun], comm: Any, agreement: Agreement
) -> Table:
    """Return the table on rank 0, and one without rows elsewhere."""
    from mdio.parallel.ranks import exchange_rows

    settings = job.settings
    kind = common_kind(runs)
    n_rounds = math.ceil(settings.n_ranges(runs, kind, comm.size) / comm.size)
    cuts = choose_cuts(runs, kind, n_rounds * comm.size)
    n_rounds = math.ceil((len(cuts) + 1) / comm.size)
    work = ReduceWork(settings.program.reduce, kind, job.table, settings.keep_going)
    tables: list[Table] = []
    edges: list[list[int]] = []
    error: Exception | None = None
    for first in range(0, n_rounds * comm.size, comm.size):
        pairs, counts = KeyValuePairs.empty(kind, 0), [0] * comm.size
        try:
            if not error:
                edges = edges or [run.edges(cuts) for run in own]
                parts = [
                    [run.part(*at[n : n + 2]) for run, at in zip(own, edges, strict=True)]
                    for n in range(first, min(first + comm.size, len(cuts) + 1))
                ]
                counts = [sum(map(len, part)) for part in parts] + [0] * (comm.size - len(parts))
                pairs = concatenate_runs([run for part in parts for run in part], kind)
        except Exception as caught:
            error = caught
        agreement.reach(error, number=comm.rank)
        for number, column in enumerate(pairs.columns):  # room for one column twice
            pairs.columns[number] = exchange_rows(column, counts, comm)
            del column
        try:
            tables.append(work.reduced(pairs))
        except Exception as caught:
            error = caught
    agreement.reach(error, number=comm.rank)
    found: list[Table] = []
    for table in tables:
        found += comm.gather(table) or []
    return joined(found, kind)
