"""The block-analysis driver: a kernel over the frames of any layout, in parallel."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, closing, nullcontext
from dataclasses import replace
from functools import partial
from operator import itemgetter
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mdio.analysis.kernels.kernel import (
    BlockFunction,
    Kernel,
    SeriesKernel,
    kernel_options,
    make_kernel,
)
from mdio.analysis.plan import Plan, Request, Trajectory
from mdio.analysis.reducers import Reducer, Stack, check_reducer, result_of
from mdio.analysis.results import AnalysisResult, side_by_side
from mdio.analysis.work import (
    BlockResult,
    BlockWork,
    NumberedBlock,
    Progress,
    block_label,
    check_kinds,
)
from mdio.core.errors import BlockError, PlanError
from mdio.core.files.store import path_list
from mdio.core.options import build_options, declared_fields, takes_options
from mdio.core.signals import signals_as_exceptions
from mdio.core.timing import Stopwatch
from mdio.layouts.base import Layout
from mdio.layouts.views.opening import ensemble_members
from mdio.layouts.views.options import CachedReadOptions, FrameOptions
from mdio.layouts.views.view import select_frames
from mdio.parallel import GATHERS, GatherMode
from mdio.parallel.executors import (
    Executor,
    Serial,
    choose_executor,
    has_enough_replicas,
    results_of,
)

if TYPE_CHECKING:
    from MDAnalysis import Universe

    from mdio.parallel.pool import SharedRows


@takes_options(
    FrameOptions,
    CachedReadOptions,
    further_names=kernel_options,
    replacements={"to_select": "to", "ref_frame": "reference"},  # names on the command line
)
def analyze(
    trajectory: Trajectory,
    *,
    kernel: Kernel | BlockFunction | str,
    top: str | PathLike[str] | Universe | None = None,
    select: Any = None,
    group: str | None = None,
    workers: int | None = None,
    executor: Executor | None = None,
    blocks_per_worker: int = 1,
    reducer: Reducer | None = None,
    gather: GatherMode = "blocking",
    progress: Progress | None = None,
    **options: Any,
) -> AnalysisResult:
    """Compute a kernel over the frames of a trajectory.

    Parameters
    ----------
    trajectory
        A path of any layout, several paths that are joined, or an open `Layout`. Trajectories of
        an ensemble are analysed one after the other, or, if there are enough, each by one worker;
        each row of the result has its `label`.
    kernel
        `RMSD`, `Dihedrals`, ..., or the name that the command line has for one, whose options
        (``superpose=True`` of ``"rmsf"``) are then given here, too; or any function that takes a
        `FrameBlock` and returns an array with one row per frame. It gets positions, box, time and
        step (with ``fields="velocities"`` these, too), in arrays that are used again for later
        frames: it copies what it keeps.
    top
        Topology for selections and masses: a file or a Universe. It is read only if needed.
    select
        For a function or a name: which atoms, as a selection of MDAnalysis, an AtomGroup or a list
        of indices, whose order is kept. A kernel of mdio has its own.
    group
        Read this stored atom group instead of the full system; of an ensemble, which trajectories
        (a label, or a pattern such as ``replica0*``).
    workers
        Worker processes on this machine; by default, all is done in this one.
    executor
        Instead of `workers`: where to run. With `MPIExecutor(comm)` all ranks make this call; only
        rank 0 reads topology and trajectory beforehand, and the others open just the files of their
        blocks.
    blocks_per_worker
        More than one evens out workers of unequal speed.
    reducer
        How rows become the result, instead of the kernel's own way.
    gather
        How ranks gather their rows (`mdio.parallel.gather`); without MPI it has no effect.
    progress
        Called with (frames, decoded bytes) as blocks are done (serially, as reads are).
    **options
        <options>

    Returns
    -------
    AnalysisResult
        With frames in order. Kernels of mdio give a frame the same row, bit for bit, for any
        executor and number of blocks; sums over frames (`RMSF`, the reducer `Mean`) are rounded in
        float64 as blocks are divided. Under MPI all ranks have it, or with
        ``MPIExecutor(comm, to_all=False)`` rank 0; the arrays of the other ranks are then empty.

    Raises
    ------
    PlanError
        Arguments that do not fit together or do not fit the trajectory.
    SourceError, CorruptLayoutError
        The trajectory or the topology cannot be read, or they do not fit each other.
    BlockError
        The kernel failed in some block, or a worker was killed.

    Examples
    --------
    >>> import mdio
    >>> from MDAnalysisTests.datafiles import DCD, PSF
    >>> result = mdio.analyze(DCD, top=PSF, kernel=mdio.RMSD(select="name CA"), step=10)
    >>> result.values.shape
    (10,)

    A function of your own returns one row per frame:

    >>> def end_to_end(block):
    ...     return ((block.positions[:, -1] - block.positions[:, 0]) ** 2).sum(axis=1) ** 0.5
    >>> mdio.analyze(DCD, top=PSF, kernel=end_to_end, select="name CA").values.shape
    (98,)
    """
    if not isinstance(trajectory, str | PathLike | Layout):
        trajectory = path_list(trajectory)  # an iterator can be consumed only once
    frame_options = declared_fields(FrameOptions, CachedReadOptions).keys() & options.keys()
    arguments = {name: value for name, value in options.items() if name not in frame_options}
    if isinstance(kernel, str) and frame_options:
        for name in frame_options & {*kernel_options({"kernel": kernel})}:
            raise PlanError(
                f"{name} is an option of analyze and of the kernel {kernel!r}: for the kernel, "
                f"give an object of its class, kernel=CLASS({name}=...); {name}= is for analyze"
            )
    kernel = make_kernel(kernel, select, **arguments)
    if not hasattr(blocks_per_worker, "__index__") or blocks_per_worker < 1:
        raise PlanError(f"{blocks_per_worker!r} blocks per worker; give a whole number from 1 on")
    if reducer is not None:
        check_reducer(reducer)
    if gather not in GATHERS:
        raise PlanError(f"the gather is {gather!r}; give one of {', '.join(GATHERS)}")
    executor = choose_executor(executor, workers)
    frames, reading = build_options((FrameOptions, CachedReadOptions), options)
    request = Request(
        trajectory=trajectory,
        kernel=kernel,
        top=top,
        group=group,
        reducer=reducer,
        n_blocks=executor.n_workers * blocks_per_worker,
        verify=reading.verify,
        overlap=reading.overlap,
        choose_frames=partial(select_frames, **frames.frames),
        dt_ps=frames.dt_ps,
        cache=reading.opened_cache,
        transformed=frames.transformation(getattr(kernel, "select", None)),
    )
    run = partial(
        _run,
        executor=executor,
        gather=gather,
        progress=progress,
        blocks_per_worker=blocks_per_worker,
    )
    with signals_as_exceptions() if executor.ranks is None else nullcontext():  # ends workers
        executor.agree("analyze", trajectory)
        members = executor.from_owner(partial(ensemble_members, trajectory, group))
        requests = {
            label: replace(request, trajectory=path, group=None) for label, path in members.items()
        }
        if not requests:
            return run(request)
        if has_enough_replicas(executor, len(requests), [top] * len(requests)):
            return analyze_members(requests, executor, progress, blocks_per_worker)
        results = {label: run(request) for label, request in requests.items()}
        return side_by_side(results, members)


def analyze_members(
    requests: Mapping[str, Request],
    executor: Executor,
    progress: Progress | None,
    blocks_per_worker: int,
) -> AnalysisResult:
    """Analyse the trajectories of an ensemble in parallel, each in one worker."""
    watch = Stopwatch()
    work = partial(analyze_member, n_blocks=blocks_per_worker)
    first, *other_requests = requests.items()
    # In this process, so that workers forked later inherit its imports and its topology.
    results = {0: work(first)}
    _report_progress(results[0], progress)
    for number, result in results_of(executor, work, other_requests, itemgetter(0)):
        result.timings[-1].record_arrival()
        results[number + 1] = result
        _report_progress(result, progress)
    return replace(
        side_by_side(
            {label: results[number] for number, label in enumerate(requests)},
            {label: request.trajectory for label, request in requests.items()},
        ),
        executor=executor.name,
        workers=executor.n_workers,
        seconds=watch.lap(),
    )


def _report_progress(result: AnalysisResult, progress: Progress | None) -> None:
    if progress is not None:
        nbytes = sum(timing.nbytes_read for timing in result.timings)
        progress(result.of_frames or result.n_frames, nbytes)


def analyze_member(member: tuple[str, Request], n_blocks: int) -> AnalysisResult:
    """Analyse one trajectory of an ensemble serially; raises BlockError with its label."""
    label, request = member
    try:
        return _run(replace(request, n_blocks=n_blocks), Serial(), "blocking", None, 1)
    except BlockError as error:
        raise BlockError(f"{label}: {error}") from error


def _run(
    request: Request,
    executor: Executor,
    gather: GatherMode,
    progress: Progress | None,
    blocks_per_worker: int,
) -> AnalysisResult:
    if isinstance(request.kernel, SeriesKernel):
        from mdio.analysis.series import analyze_series

        return analyze_series(request, request.kernel, executor, progress)
    if executor.ranks is not None:
        from mdio.analysis.ranks import analyze_on_ranks

        return analyze_on_ranks(request, executor.ranks, gather, progress)
    with closing(request.plan()) as plan:
        return _analyze(plan, executor, progress, blocks_per_worker)


def _analyze(
    plan: Plan, executor: Executor, progress: Progress | None, blocks_per_worker: int
) -> AnalysisResult:
    watch = Stopwatch()
    items = list(enumerate(plan.blocks))
    if plan.units is not None and executor.cluster is not None:
        from mdio.analysis.placing import blocks_on_dask

        items, addresses = blocks_on_dask(plan, executor.cluster.client, blocks_per_worker)
        executor.cluster.place(addresses)
        plan.blocks = [block for _, block in sorted(items, key=lambda item: item[0])]
    with ExitStack() as stack:
        shared_rows: SharedRows | None = None
        if executor.shares_memory:  # progress is reported after each read, not each block
            work = BlockWork(plan.layout, plan.prepared, plan.open_s, progress)
            progress = None
        else:
            if executor.forks and type(plan.prepared.reducer) is Stack:
                from mdio.parallel.pool import SharedRows

                if SharedRows.available():
                    shared_rows = stack.enter_context(SharedRows(len(plan.frames)))
            shared = None if shared_rows is None else (shared_rows, plan.frames)
            work = BlockWork(plan.for_workers().layout, plan.prepared, shared=shared)
        results = _run_blocks(executor, work, items, progress)
        values = _combine(plan, results, shared_rows)
    plan.add_prepare_nbytes(results[0].timing)
    return plan.result(
        executor,
        frame=plan.frame_numbers,
        time=np.concatenate([result.time for result in results]),
        values=values,
        timings=[result.timing for result in results],
        seconds=plan.open_s + watch.lap(),
        tasks=[task | {"block": items[task["block"]][0]} for task in executor.tasks],
    )


def _run_blocks(
    executor: Executor, work: BlockWork, items: list[NumberedBlock], progress: Progress | None
) -> list[BlockResult]:
    """Return the results of all blocks in their order."""
    results: dict[int, BlockResult] = {}
    for number, result in results_of(executor, work, items, block_label):
        result.timing.record_arrival()
        results[items[number][0]] = result
        if progress is not None:
            progress(result.timing.n_frames, result.timing.nbytes_read)
    return [results[number] for number in sorted(results)]


def _combine(
    plan: Plan, results: list[BlockResult], shared_rows: SharedRows | None
) -> NDArray[Any]:
    """Return the values of all blocks; `shared_rows` has the rows of blocks without a state."""
    row_kinds = [result.row_kind for result in results]
    check_kinds(list(enumerate(plan.blocks)), row_kinds, plan.layout, plan.prepared)
    states = [result.state for result in results]
    if shared_rows is not None and None in states:
        rows = shared_rows.read_all()
        if all(state is None for state in states):
            return rows
        for number, block in enumerate(plan.blocks):
            if states[number] is None:
                first = plan.frames.index(block.start)
                states[number] = ([rows[first : first + len(block)]],)
    return result_of(plan.prepared.reducer, states)  # type: ignore[arg-type]
