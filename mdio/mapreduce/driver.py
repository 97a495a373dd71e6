"""Map-reduce over trajectories: a map over blocks, a shuffle by key, a reduce for each key.

The pairs of a block are sorted by key into runs. When all blocks are mapped, keys are cut, by
samples of them, into ranges that have about as many pairs each, few enough to fit in memory; then
each range is gathered from all runs, sorted and reduced, one by one in each worker. The result does
not depend on where blocks, runs and ranges are cut.

Under MPI every rank maps its blocks and keeps their pairs, sorted, in memory or in files of its own
node. All learn samples of all keys and cut them into ranges in the same way; then, round by round,
each rank gets the pairs of one range from all others and reduces it. Rank 0 gathers the rows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any

from mdio.analysis.kernels.kernel import BlockFunction, Kernel
from mdio.analysis.placing import blocks_on_dask, blocks_on_ranks
from mdio.analysis.plan import Request, Trajectory
from mdio.analysis.work import Progress
from mdio.core.errors import PlanError, WorkerDiedError
from mdio.core.options import build_options, takes_options
from mdio.core.signals import raise_received_signal, signals_as_exceptions
from mdio.core.timing import Stopwatch
from mdio.layouts.views.opening import ensemble_members
from mdio.layouts.views.options import CachedReadOptions
from mdio.mapreduce.job import (
    MappedBlock,
    MapReduceJob,
    MapReduceOptions,
    MapTask,
    MapWork,
    ReduceTask,
    ReduceWork,
    Table,
    concatenate_tables,
    copy_key_range,
    describe_block,
    without_pairs,
)
from mdio.mapreduce.pairs import (
    KeyValuePairs,
    SortedRun,
    choose_cuts,
    common_schema,
    concatenate_runs,
)
from mdio.mapreduce.program import FrameSelector, Program, choose_frames
from mdio.mapreduce.results import MapReduceResult
from mdio.parallel.executors import Executor, choose_executor, results_of

if TYPE_CHECKING:
    from MDAnalysis import Universe

    from mdio.parallel.mpi_executor import MPIExecutor
    from mdio.parallel.ranks import Agreement


BLOCKS_PER_WORKER = 4
MIN_BLOCKS = 16
"""Least number of blocks of several workers: with few blocks, workers wait for the last one."""
MAX_DEATHS = 3
"""Worker processes that may die before the work fails, as in Dask."""


REPLACEMENTS = dict.fromkeys(("start", "stop", "step"), "frames=slice(START, STOP, STEP)")
REPLACEMENTS |= dict.fromkeys(
    ("begin_ps", "end_ps", "dt_ps"), "frames=slice(BEGIN, END, DT), floats, ps"
)
"""How frames are chosen here, by the options of `mdio.analyze`."""


@takes_options(CachedReadOptions, MapReduceOptions, replacements=REPLACEMENTS)
def map_reduce(
    trajectory: Trajectory | Mapping[str, Trajectory],
    *,
    map: Kernel | BlockFunction | Any,
    reduce: Callable[..., Any] | None = None,
    frames: FrameSelector | None = None,
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
        reduced separately, and the table has a row for each key and label.
    map
        A function of a `FrameBlock` that returns ``(keys, rows, values)``: keys (K,), whole
        numbers, floats or text; rows (K,), row of each pair's frame in the block; values, a dict
        of arrays (K, ...). With `per_frame`, a generator of ``(key, value)`` or ``(key, dict of
        values)`` for a block of one frame. Or a program: an object with such a method `map`, or a
        `Kernel` whose `prepare` returns such a function, with a method `reduce`, and perhaps
        `combine`, `per_frame` and `frames`.
    reduce
        Called as ``reduce(key, frame, time, values)`` with all values of a key in the order of
        frames, those of one frame as the map gave them: `frame` (n,) int64, their numbers in the
        trajectory, `time` (n,) in ps, `values` a dict of arrays (n, ...). Returns a dict of
        numbers, text or arrays, the same names and shapes for all keys. If it is the method of an
        object with a method `begin`, that is called before with the numbers and times of all
        mapped frames of the trajectory.
    frames
        See `mdio.mapreduce.program.choose_frames`; each is mapped once.
    top, select, group, progress
        As for `mdio.analyze`.
    fields
        Which per-atom arrays blocks have, where the trajectory has them, besides positions and
        those that the attribute ``fields`` of the map's object names.
    workers
        Worker processes on this machine; by default, all is done in this one.
    executor
        Instead of `workers`: where to run. With `MPIExecutor` all ranks make this call.
    combine
        Combines pairs of a block before they are shuffled: ``sum``, ``min`` or ``max`` of the
        values of each key, with the frame of the first; or a function of keys and values, sorted by
        key and frame, that returns which rows to keep, ascending, and their values. The reduce
        must not depend on how often that happens: sums of floats depend on blocks in their last
        digits.
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
    How far each C-alpha atom moves from where it starts:

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
    reading, shuffle_options = build_options((CachedReadOptions, MapReduceOptions), options)
    memory, blocks_per_worker = shuffle_options.memory, shuffle_options.blocks_per_worker
    if memory < 1 or (blocks_per_worker is not None and blocks_per_worker < 1):
        raise PlanError(
            f"memory is {memory} bytes, blocks per worker {blocks_per_worker}; give more"
        )
    executor = choose_executor(executor, workers)
    executor.agree("map_reduce", trajectory)
    trajectories: Mapping[str, Trajectory]
    if isinstance(trajectory, Mapping):
        trajectories = trajectory
    elif members := executor.from_owner(partial(ensemble_members, trajectory, group)):
        trajectories, group = members, None
    else:
        trajectories = {"": trajectory}
    if not trajectories:
        raise PlanError("no trajectory is given; give at least one")
    n_workers = executor.n_workers
    if blocks_per_worker is None:
        min_blocks = MIN_BLOCKS if n_workers > 1 else 1
        blocks_per_worker = max(BLOCKS_PER_WORKER, math.ceil(min_blocks / n_workers))
    n_blocks = math.ceil(n_workers * blocks_per_worker / len(trajectories))
    requests = {
        str(label): Request(
            trajectory=member,
            kernel=program.kernel,
            top=top,
            group=group,
            n_blocks=n_blocks,
            verify=reading.verify,
            overlap=reading.overlap,
            choose_frames=partial(choose_frames, frames=program.frames),
            cache=reading.opened_cache,
        )
        for label, member in trajectories.items()
    }
    if len(requests) < len(trajectories):
        raise PlanError(f"labels become text, and two of {[*trajectories]} are the same text")
    with signals_as_exceptions(), ExitStack() as stack:
        ranks = executor.ranks
        if ranks is not None:
            from mdio.analysis.ranks import plan_on_ranks
        plans = {}
        for label, request in requests.items():
            plan = request.plan() if ranks is None else plan_on_ranks(request, ranks)
            plans[label] = stack.enter_context(closing(plan))
        job = MapReduceJob(plans, program, shuffle_options, progress if executor.is_owner else None)
        if ranks is not None:
            return _map_reduce_on_ranks(job, ranks, stack)
        return _map_reduce(job, executor, stack, blocks_per_worker)


def _map_reduce(
    job: MapReduceJob, executor: Executor, stack: ExitStack, blocks_per_worker: int
) -> MapReduceResult:
    watch = Stopwatch()
    program, shuffle_options = job.program, job.options
    dask = executor.cluster
    client = dask.client if dask else None
    in_process = executor.shares_memory
    if not (client or in_process or executor.shares_files):
        raise PlanError(
            f"workers of {executor!r} exchange pairs through files, but have no folder in common "
            "(shares_files is False); use Processes(N), DaskExecutor(client) or MPIExecutor(comm)"
        )
    # On a cluster, pairs stay in the memory of the workers, which Dask manages.
    folder = None if client else stack.enter_context(shuffle_options.folder())
    plans = list(job.plans.values())
    worker_plans = plans if in_process else [plan.for_workers() for plan in plans]
    work = MapWork(
        worker_plans, program, shuffle_options.spool(program, folder, is_shared=not in_process)
    )
    if dask and all(plan.units is not None for plan in plans):
        placements = [blocks_on_dask(plan, client, blocks_per_worker) for plan in plans]
        tasks = job.tasks(blocks for blocks, _ in placements)
        dask.place(
            [addresses for _, worker_addresses in placements for addresses in worker_addresses]
        )
    else:
        tasks = job.tasks(enumerate(plan.blocks) for plan in plans)
    futures: dict[int, Any] = {}
    options: dict[str, Any] = {"summarise": without_pairs} if client else {}
    for _, block in _run_tasks(executor, work, tasks, describe_block, **options):
        if client:
            future, block = block
            futures[block.first_index] = future
        job.add(block)
    map_s = watch.lap()
    runs = [run for first in sorted(job.blocks) for run in job.blocks[first].runs]
    table = Table.empty()
    if runs:
        schema = common_schema(runs)
        cuts = choose_cuts(runs, schema, shuffle_options.n_ranges(runs, schema, executor.n_workers))
        ranges: Iterator[ReduceTask]
        if client:
            submit = partial(client.submit, copy_key_range, pure=False)
            block_futures = [futures[first] for first in sorted(futures)]
            key_ranges = itertools.pairwise([None, *cuts.tolist(), None])
            ranges = (
                (number, [submit(future, *keys) for future in block_futures])
                for number, keys in enumerate(key_ranges)
            )
        else:
            edges = [run.edges(cuts) for run in runs]
            ranges = (
                (number, [_range_parts(runs, edges, number)]) for number in range(len(cuts) + 1)
            )
        reduce_work = ReduceWork(program.reduce, schema, job.frames, shuffle_options.keep_going)
        describe_range = "range {0[0]} of the keys".format  # of a `ReduceTask`
        tables = dict(_run_tasks(executor, reduce_work, ranges, describe_range))
        table = concatenate_tables([tables[number] for number in sorted(tables)], schema)
    return job.result(table, executor, runs, map_s, watch.lap())


def _range_parts(
    runs: Sequence[SortedRun], edges: Sequence[Sequence[int]], number: int
) -> list[SortedRun]:
    """Return the pairs of each run in one range of keys; `edges`: of all ranges, by run."""
    return [run.part(*ends[number : number + 2]) for run, ends in zip(runs, edges, strict=True)]


def _run_tasks(
    executor: Executor,
    work: Any,
    tasks: Iterable[Any],
    describe: Callable[[Any], str],
    **options: Any,
) -> Iterator[tuple[int, Any]]:
    """Yield (number, result) of each task once; tasks whose worker died are run again.

    `options`: of `results_of`.
    """
    not_started = enumerate(tasks)
    unfinished: dict[int, Any] = {}

    def submit(numbers: list[int]) -> Iterator[Any]:
        for number, task in itertools.chain(list(unfinished.items()), not_started):
            unfinished[number] = task
            numbers.append(number)
            yield task

    for n_deaths in itertools.count(1):
        numbers: list[int] = []
        try:
            results = results_of(executor, work, submit(numbers), describe, **options)
            for position, result in results:
                raise_received_signal()
                del unfinished[numbers[position]]
                yield numbers[position], result
        except WorkerDiedError:
            if n_deaths > MAX_DEATHS:
                raise
            continue
        return


def _map_reduce_on_ranks(
    job: MapReduceJob, executor: MPIExecutor, stack: ExitStack
) -> MapReduceResult:
    """Run a map-reduce on all ranks (collective)."""
    from mdio.parallel.ranks import Agreement
    from mdio.parallel.sleeping import allgather, bcast

    comm, plans = executor.comm, list(job.plans.values())
    agreement = Agreement(comm, lambda: ((), ""))
    stack.callback(agreement.close)
    error: Exception | None = None
    folder = None
    try:
        folder = stack.enter_context(job.options.folder())
    except Exception as caught:
        error = caught
    agreement.reach(error)
    watch = Stopwatch()
    spool = job.options.spool(job.program, folder, is_shared=False)
    work, own_runs = MapWork(plans, job.program, spool, comm.rank), list[SortedRun]()

    def map_block(task: MapTask) -> MappedBlock:
        block = work(task)
        own_runs.extend(block.runs)
        return without_pairs(block)

    numbered_blocks, own_blocks = blocks_on_ranks(plans, comm)
    tasks = job.tasks(numbered_blocks)
    for _, block in executor.imap(
        map_block, tasks, describe=describe_block, has_own_items=own_blocks
    ):
        job.add(block)
    job.frames.time[:] = bcast(comm, job.frames.time)
    map_s = watch.lap()
    rank_runs = allgather(comm, [replace(run, pairs=None) for run in own_runs])
    runs = list(itertools.chain.from_iterable(rank_runs))
    table = _reduce_on_ranks(job, runs, own_runs, comm, agreement) if runs else Table.empty()
    result = job.result(table, executor, runs, map_s, watch.lap())
    return bcast(comm, result) if executor.to_all else result


def _reduce_on_ranks(
    job: MapReduceJob,
    runs: list[SortedRun],
    own_runs: list[SortedRun],
    comm: Any,
    agreement: Agreement,
) -> Table:
    """Reduce in rounds, a range of keys on each rank; return the table, on rank 0 alone with rows.

    `runs`: of all ranks, without their pairs. `own_runs`: of this one.
    """
    from mdio.parallel.ranks import exchange_rows

    shuffle_options = job.options
    schema = common_schema(runs)
    n_rounds = math.ceil(shuffle_options.n_ranges(runs, schema, comm.size) / comm.size)
    cuts = choose_cuts(runs, schema, n_rounds * comm.size)
    n_rounds = math.ceil((len(cuts) + 1) / comm.size)
    work = ReduceWork(job.program.reduce, schema, job.frames, shuffle_options.keep_going)
    tables: list[Table] = []
    edges: list[list[int]] = []
    error: Exception | None = None
    for first in range(0, n_rounds * comm.size, comm.size):
        pairs, counts = KeyValuePairs.empty(schema, 0), [0] * comm.size
        try:
            if not error:
                edges = edges or [run.edges(cuts) for run in own_runs]
                last = min(first + comm.size, len(cuts) + 1)
                parts = [_range_parts(own_runs, edges, number) for number in range(first, last)]
                counts = [sum(map(len, part)) for part in parts] + [0] * (comm.size - len(parts))
                pairs = concatenate_runs([run for part in parts for run in part], schema)
        except Exception as caught:
            error = caught
        agreement.reach(error, number=comm.rank)
        for number, column in enumerate(pairs.columns):  # one by one, to save memory
            pairs.columns[number] = exchange_rows(column, counts, comm)
            del column
        try:
            tables.append(work.reduce_pairs(pairs))
        except Exception as caught:
            error = caught
    agreement.reach(error, number=comm.rank)
    all_tables: list[Table] = []
    for table in tables:
        all_tables += comm.gather(table) or []
    return concatenate_tables(all_tables, schema)
