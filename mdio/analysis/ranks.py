"""The block-analysis driver on the ranks of an MPI program.

Rank 0 opens the trajectory, reads the topology and prepares the kernel, and broadcasts the plan.
Every rank computes its blocks and keeps their rows; when all are done, times and rows are gathered
on rank 0 without copies.
"""

from __future__ import annotations

import pickle
import time
import zlib
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import reduce
from os import PathLike
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from mdio.analysis.kernels.kernel import UserKernel
from mdio.analysis.placing import blocks_on_ranks
from mdio.analysis.plan import Plan, Request
from mdio.analysis.reducers import Stack, State, result_of
from mdio.analysis.results import AnalysisResult
from mdio.analysis.work import (
    BlockResult,
    BlockWork,
    NumberedBlock,
    Progress,
    block_label,
    check_kinds,
    rank_name,
)
from mdio.core.errors import BlockError, MdioError, PlanError
from mdio.core.files.index import FrameIndex, load_index, store_index
from mdio.core.files.store import path_list
from mdio.core.timing import BlockTiming, Stopwatch, WorkerTiming, per_worker
from mdio.layouts.base import Layout
from mdio.layouts.native.file import is_on_network, join_parts, scan_part
from mdio.layouts.native.trr import TRRLayout
from mdio.layouts.native.xtc import XTCLayout
from mdio.layouts.registry import import_readers
from mdio.parallel import GatherMode
from mdio.parallel.gather import Gathered, gather_rows
from mdio.parallel.mpi_executor import MPIExecutor
from mdio.parallel.pool import PICKLABLE_HINT
from mdio.parallel.sleeping import allgather, bcast


def _not_stored(path: Path) -> FrameIndex:
    raise LookupError(path)


def index_together(trajectory: Any, comm: Any) -> None:
    """Index XTC and TRR files that have no index yet, each rank a part of them (collective).

    Errors are ignored: opening the file will raise them.
    """
    if isinstance(trajectory, Layout):
        return
    paths = path_list(trajectory)
    for path, layout_class in bcast(comm, _without_index(paths) if comm.rank == 0 else None):
        part, n_atoms = None, 0
        with suppress(MdioError, OSError, ValueError):
            magic = layout_class.magic(path)
            n_atoms = magic.n_atoms
            part = scan_part(path, magic, comm.rank, comm.size)
        parts = comm.gather(part)
        if comm.rank == 0:
            index = join_parts(parts, n_atoms, path.stat().st_size)
            if index is not None:
                store_index(path, index)


def _without_index(
    paths: Sequence[str | PathLike[str]],
) -> list[tuple[Path, type[XTCLayout | TRRLayout]]]:
    """Return the files over a network that have no index, and their layouts."""
    files: list[tuple[Path, type[XTCLayout | TRRLayout]]] = []
    for path in map(Path, paths):
        for layout_class in (XTCLayout, TRRLayout):
            try:
                if is_on_network(path) and layout_class.sniff(path):
                    load_index(path, _not_stored)
            except LookupError:
                files.append((path, layout_class))
            except (OSError, ValueError):
                continue  # opening it will raise this
    return files


OwnResults = list[tuple[NumberedBlock, BlockResult]]


def analyze_on_ranks(
    request: Request, executor: MPIExecutor, gather: GatherMode, progress: Progress | None
) -> AnalysisResult:
    """Run an analysis on all ranks of `executor` (collective); see `mdio.analysis.driver`."""
    comm = executor.comm
    plan = plan_on_ranks(request, executor)
    begin_s = blocks_end_s = time.perf_counter()  # the latter is the papers' t5
    is_stacked = isinstance(plan.prepared.reducer, Stack)
    own_results: OwnResults = []

    def work(item: NumberedBlock) -> tuple[State | None, BlockTiming]:
        """Compute a block; rows that are stacked stay here, to be gathered as arrays."""
        nonlocal blocks_end_s
        result = block_work(item)
        own_results.append((item, result if is_stacked else replace(result, state=None)))
        blocks_end_s = time.perf_counter()
        return None if is_stacked else result.state, result.timing

    with closing(plan):
        on_read = None
        if progress is not None and comm.rank == 0:
            on_read = _scale_progress(progress, plan, comm.size)
        block_work = BlockWork(plan.layout, plan.prepared, plan.open_s, on_read, rank=comm.rank)
        (blocks,), own_blocks = blocks_on_ranks([plan], comm)
        block_results = dict(
            executor.imap(work, blocks, describe=block_label, has_own_items=own_blocks)
        )
    wait_end_s = time.perf_counter()
    gathered = _gather(own_results, plan, comm, gather)
    gather_end_s = time.perf_counter()
    rank_timing = WorkerTiming(rank_name(comm.rank), comm.rank)
    if own_results:
        rank_timing = per_worker([result.timing for _, result in own_results])[0]
    rank_timing.t_wait_s = wait_end_s - blocks_end_s
    rank_timing.t_comm_s = gather_end_s - blocks_end_s
    rank_timing.t_put_s = sum(part.t_put_s for part in gathered)
    rank_timing.t_get_s = sum(part.t_get_s for part in gathered)
    plan.add_prepare_nbytes(rank_timing)
    rank_timings = comm.gather(rank_timing)
    fields: dict[str, Any] = {"frame": np.empty(0, np.int64), "timings": [], "seconds": 0.0}
    fields |= {"time": np.empty(0), "values": np.empty(0)}

    def combine() -> None:
        """Complete the fields on rank 0; all ranks learn if the reducer fails."""
        parts = [part.rows for part in gathered]
        fields.update(_combine(plan, block_results, parts, rank_timings))
        fields["seconds"] = plan.open_s + time.perf_counter() - begin_s

    executor.from_owner(combine)
    result = plan.result(executor, gather=gather, **fields)
    return cast(AnalysisResult, bcast(comm, result)) if executor.to_all else result


def _scale_progress(progress: Progress, plan: Plan, n_ranks: int) -> Progress:
    """Return a callback for rank 0 that assumes equal progress of all: they do not communicate."""
    n_left = len(plan.frames)

    def report(n_frames: int, nbytes: int) -> None:
        nonlocal n_left
        n_done = min(n_ranks * n_frames, n_left)
        n_left -= n_done
        progress(n_done, n_ranks * nbytes)

    return report


def plan_on_ranks(request: Request, executor: MPIExecutor) -> Plan:
    """Plan on rank 0 and broadcast the plan, or raise its error on all ranks (collective).

    A user's function is not sent, since every rank has it.
    """
    watch = Stopwatch()
    if not executor.is_owner:
        import_readers(request.trajectory)  # while rank 0 is opening it
    index_together(request.trajectory, executor.comm)
    index_s = watch.lap()
    owner_plan: Plan | None = None

    def make_message() -> bytes:
        nonlocal owner_plan
        plan = request.plan()
        try:
            message = _pickle(plan, request)
        except PlanError:
            plan.close()
            raise
        owner_plan = plan
        return message

    try:
        message = executor.from_owner(make_message)
    except Exception as error:
        if executor.is_owner or isinstance(error, MdioError):
            raise
        # Rank 0 alone prints a traceback of an unexpected error.
        raise BlockError(f"rank 0 failed: {type(error).__name__}: {error}") from error
    plan: Plan = owner_plan or pickle.loads(zlib.decompress(message))
    if owner_plan is None and isinstance(request.kernel, UserKernel):
        plan.prepared = replace(plan.prepared, function=request.kernel.function)
    plan.open_s += index_s
    return plan


def _pickle(plan: Plan, request: Request) -> bytes:
    """Return the plan for other ranks, as bytes; raises PlanError: it cannot be pickled."""
    copy = replace(plan.for_workers(), has_opened_layout=True)
    if isinstance(request.kernel, UserKernel):
        copy.prepared = replace(copy.prepared, function=len)  # type: ignore[arg-type]
    try:
        # Compressed, since large messages to ranks that share cores are slow.
        return zlib.compress(pickle.dumps(copy, pickle.HIGHEST_PROTOCOL), 1)
    except Exception as error:  # pickling raises nearly anything
        raise PlanError(
            f"the analysis cannot be sent to other ranks ({error}); {PICKLABLE_HINT}"
        ) from error


def _gather(own_results: OwnResults, plan: Plan, comm: Any, mode: GatherMode) -> list[Gathered]:
    """Gather the times of all frames and, for a `Stack`, all rows, without copies."""
    states = [result.state for _, result in own_results if result.state is not None]
    parts = [part for state in states for part in state[0]]
    own_dtypes = list(dict.fromkeys(part.dtype for part in parts))
    first_blocks = {result.row_kind: block for block, result in reversed(own_results)}
    times = np.concatenate([np.empty(0), *(result.time for _, result in own_results)])
    # In one exchange, since each waits for the last rank.
    rank_values = allgather(comm, (list(first_blocks.items()), len(times), own_dtypes))
    pairs = [pair for kinds, _, _ in rank_values for pair in kinds]
    pairs.sort(key=lambda pair: pair[1][0])
    row_kinds = [kind for kind, _ in pairs]
    check_kinds([block for _, block in pairs], row_kinds, plan.layout, plan.prepared)
    counts = [count for _, count, _ in rank_values]
    gathered = [gather_rows(times, comm, counts, mode)]
    stack = plan.prepared.reducer
    if isinstance(stack, Stack):
        dtype = np.result_type(*(dtype for _, _, dtypes in rank_values for dtype in dtypes))
        if states:
            rows = stack.finish(reduce(stack.merge, states)).astype(dtype, copy=False)
            for _, result in own_results:  # frees the parts, which are in `rows` now
                result.state = None
            states.clear()
            parts.clear()
        else:
            row_shape, _ = row_kinds[0] or ((), None)
            rows = np.empty((0, *row_shape), dtype)
        gathered.append(gather_rows(rows, comm, counts, mode))
    return gathered


def _combine(
    plan: Plan,
    block_results: dict[int, tuple[State | None, BlockTiming]],
    parts: list[NDArray[Any] | None],
    rank_timings: list[WorkerTiming],
) -> dict[str, Any]:
    """Return fields of the result on rank 0, from the gathered parts of all ranks."""
    blocks = [block_results[number] for number in sorted(block_results)]
    timings = [timing for _, timing in blocks]
    time_ps, *rows = (_in_order_of_blocks(part, timings) for part in parts if part is not None)
    if rows:
        values = rows[0]
    else:
        values = result_of(plan.prepared.reducer, (state for state, _ in blocks))  # type: ignore[misc]
    last_blocks = {timing.rank: timing for timing in timings}
    for rank_timing in rank_timings:
        if rank_timing.rank in last_blocks:
            last_blocks[rank_timing.rank].t_comm_s = rank_timing.t_comm_s
    return {
        "frame": plan.frame_numbers,
        "time": time_ps,
        "values": values,
        "timings": timings,
        "ranks": rank_timings,
    }


def _in_order_of_blocks(rows: NDArray[Any], timings: list[BlockTiming]) -> NDArray[Any]:
    """Sort rows by block; they are sorted by rank."""
    by_rank = sorted(timings, key=lambda timing: (timing.rank or 0, timing.block))
    if by_rank == timings:
        return rows
    ends = np.cumsum([timing.n_frames for timing in by_rank]).tolist()
    parts = {
        timing.block: rows[end - timing.n_frames : end]
        for timing, end in zip(by_rank, ends, strict=True)
    }
    return np.concatenate([parts[timing.block] for timing in timings])
