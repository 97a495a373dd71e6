"""The block-analysis driver: a kernel over the frames of any layout, in parallel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import reduce
from os import PathLike
from typing import TYPE_CHECKING

import numpy as np

from mdio.analysis.kernel import BlockFunction, Kernel, as_kernel
from mdio.analysis.reducers import Reducer, Stack
from mdio.analysis.results import AnalysisResult
from mdio.analysis.system import System, members
from mdio.analysis.work import BlockResult, BlockWork, NumberedBlock
from mdio.core.blocks import aligned_blocks, block_name
from mdio.core.errors import PlanError
from mdio.core.timing import Stopwatch
from mdio.layouts.base import Layout
from mdio.layouts.chain import open_source
from mdio.parallel.executors import Executor, Serial

if TYPE_CHECKING:
    from MDAnalysis import Universe

__all__ = ["analyze"]

WITH_GROUPS = ("h5md", "zarr")
"""Layouts that may hold atom groups besides the full system."""

Trajectory = str | PathLike[str] | Sequence[str | PathLike[str]] | Layout


def analyze(
    trajectory: Trajectory,
    *,
    kernel: Kernel | BlockFunction,
    top: str | PathLike[str] | Universe | None = None,
    select: str | None = None,
    group: str | None = None,
    executor: Executor | None = None,
    blocks_per_worker: int = 1,
    start: int | None = None,
    stop: int | None = None,
    step: int | None = None,
    reducer: Reducer | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> AnalysisResult:
    """Compute a kernel over the frames of a trajectory.

    Parameters
    ----------
    trajectory
        A path of any layout, several paths that are joined, or an open `Layout`.
    kernel
        `RMSD`, `Dihedrals`, ..., or any function that takes a `FrameBlock` and returns an array
        with one row a frame.
    top
        Topology for selections and masses: a file or a Universe. It is read only if needed.
    select
        For a function: the atoms that it gets. Kernels of mdio have their own.
    group
        Read this stored atom group instead of the full system.
    executor
        `Serial` by default.
    blocks_per_worker
        More than one evens out workers of unequal speed.
    start, stop, step
        Frames, as a Python slice with a positive step.
    reducer
        How rows become the result, instead of the kernel's own way.
    progress
        Called with (frames, decoded bytes) as blocks are done (serially, as reads are).

    Returns
    -------
    AnalysisResult
        With frames in order, whatever the executor and the number of blocks.

    Raises
    ------
    PlanError
        Arguments that do not fit together or do not fit the trajectory.
    SourceError, CorruptLayoutError
        The trajectory or the topology cannot be read, or they do not fit each other.
    BlockError
        The kernel failed in some block, or a worker was killed.
    """
    chosen = as_kernel(kernel, select)
    if blocks_per_worker < 1:
        raise PlanError(f"{blocks_per_worker} blocks per worker asked for; give 1 or more")
    run_in = executor if executor is not None else Serial()
    layout = _open(trajectory, group, chosen.fields)  # imports what reads it; opens no frame yet
    watch = Stopwatch()
    is_ours = layout is not trajectory
    try:
        frames = _frames(layout, start, stop, step)
        edges = layout.boundaries()
        opened_s = watch.lap()
        prepared = chosen.prepare(System(layout, top, group))
        if reducer is not None:
            prepared = replace(prepared, reducer=reducer)
        prepare_s = watch.lap()
        blocks = aligned_blocks(edges, frames, run_in.n_workers * blocks_per_worker)
        here = isinstance(run_in, Serial)  # then progress need not wait for whole blocks
        work = BlockWork(layout, prepared, opened_s, progress if here else None)
        results = _gather(run_in, work, blocks, None if here else progress)
        state = reduce(prepared.reducer.merge, (result.state for result in results))
        values = prepared.reducer.finish(state)
        return AnalysisResult(
            frame=np.arange(frames.start, frames.stop, frames.step, dtype=np.int64),
            time=np.concatenate([result.time for result in results]),
            values=values,
            timings=[result.timing for result in results],
            seconds=opened_s + watch.lap(),
            executor=run_in.name,
            workers=run_in.n_workers,
            prepare_s=prepare_s,
            labels=prepared.labels,
            per_frame=isinstance(prepared.reducer, Stack),
        )
    finally:
        if is_ours:
            layout.close()


def _open(trajectory: Trajectory, group: str | None, fields: tuple[str, ...]) -> Layout:
    if isinstance(trajectory, Layout):
        if group is not None and trajectory.options.get("group") != group:
            raise PlanError(f"{trajectory.path}: open the layout with group={group!r} instead")
        return trajectory
    if not isinstance(trajectory, str | PathLike) and not len(trajectory):
        raise PlanError("no trajectory is given; name one at least")
    options = {} if group is None else {"group": group}
    layout = open_source(trajectory, fields=fields, **options)
    for member in members(layout):
        if group is not None and member.name not in WITH_GROUPS:
            raise PlanError(
                f"{member.path}: a trajectory of layout {member.name} has no stored groups; "
                f"leave out group {group!r} and select atoms instead"
            )
    return layout


def _frames(layout: Layout, start: int | None, stop: int | None, step: int | None) -> range:
    if step is not None and step < 1:
        raise PlanError(f"the step is {step}; give 1 or more")
    n_frames = layout.info.n_frames
    frames = range(*slice(start, stop, step).indices(n_frames))
    if not frames:
        raise PlanError(
            f"{layout.path}: no frame of {n_frames} is left by start {start}, stop {stop}, "
            f"step {step}; widen the range"
        )
    return frames


def _gather(
    executor: Executor,
    work: BlockWork,
    blocks: list[range],
    progress: Callable[[int, int], None] | None,
) -> list[BlockResult]:
    """Return the results of all blocks in their order."""
    results: dict[int, BlockResult] = {}

    def describe(item: NumberedBlock) -> str:
        return f"block {item[0]} ({block_name(item[1])})"

    items: Iterable[NumberedBlock] = enumerate(blocks)
    for number, result in executor.imap(work, items, describe=describe):
        result.timing.gathered()
        results[number] = result
        if progress is not None:
            progress(result.timing.n_frames, result.timing.nbytes_read)
    return [results[number] for number in range(len(blocks))]
