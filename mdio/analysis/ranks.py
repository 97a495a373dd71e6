"""The block-analysis driver on the ranks of an MPI program.

Rank 0 opens the trajectory, reads the topology and prepares the kernel, once; what it found is
broadcast. Every rank computes its blocks and keeps their rows; when all are done, times and rows
are gathered on rank 0, the way that was asked for, each straight into the array that it becomes.
"""

from __future__ import annotations

import pickle
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
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
    block_label,
    check_shapes,
    rank_name,
)
from mdio.core.errors import BlockError, MdioError, PlanError
from mdio.core.files.index import FrameIndex, load_index, store_index
from mdio.core.timing import BlockTiming, Stopwatch, WorkerTiming, per_worker
from mdio.layouts.base import Layout
from mdio.layouts.native.file import comes_over_a_network, joined, scan_part
from mdio.layouts.native.trr import TRRLayout
from mdio.layouts.native.xtc import XTCLayout
from mdio.layouts.registry import import_likely
from mdio.parallel import How
from mdio.parallel.gather import Gathered, gather_counted
from mdio.parallel.mpi_executor import MPIExecutor
from mdio.parallel.sleeping import allgather, bcast


class _NotStoredError(Exception):
    """There is no index of a file yet."""


def _not_stored(path: Path) -> FrameIndex:
    raise _NotStoredError(path)


def index_together(trajectory: Any, comm: Any) -> None:
    """Find and store where frames begin in XTC and TRR files that have no index yet (collective).

    Each rank reads the part of a file that it is about to analyse. What cannot be done in this way
    is left to the opening of the file, with all that there may be to say about it.

    `trajectory`: a path, several, or an open layout, which is left alone; the same on all ranks.
    `comm`: an mpi4py intracommunicator.
    """
    if isinstance(trajectory, Layout):
        return
    one = isinstance(trajectory, str | PathLike)
    paths = [trajectory] if one else list(trajectory)
    for path, kind in bcast(comm, _without_index(paths) if comm.rank == 0 else None):
        part, n_atoms = None, 0
        with suppress(MdioError, OSError, ValueError):
            marks = kind.marks(path)
            n_atoms = marks.n_atoms
            part = scan_part(path, marks, comm.rank, comm.size)
        parts = comm.gather(part)
        if comm.rank == 0:
            index = joined(parts, n_atoms, path.stat().st_size)
            if index is not None:
                store_index(path, index)


def _without_index(
    paths: Sequence[str | PathLike[str]],
) -> list[tuple[Path, type[XTCLayout | TRRLayout]]]:
    """Return those of the files for which it pays, and what they are."""
    found: list[tuple[Path, type[XTCLayout | TRRLayout]]] = []
    for path in map(Path, paths):
        for kind in (XTCLayout, TRRLayout):
            try:
                if comes_over_a_network(path) and kind.sniff(path):
                    load_index(path, _not_stored)
            except _NotStoredError:
                found.append((path, kind))
            except (OSError, ValueError):
                continue  # opening it will say what is wrong
    return found


FAST = 1
"""Level of zlib."""
Progress = Callable[[int, int], None]
Mine = list[tuple[NumberedBlock, BlockResult]]


def analyze_on_ranks(
    request: Request, executor: MPIExecutor, gather: How, progress: Progress | None
) -> AnalysisResult:
    """Run an analysis on all ranks of `executor` (collective); see `mdio.analysis.driver`."""
    comm = executor.comm
    plan = plan_on_ranks(request, executor)
    begun = done_at = time.perf_counter()  # the last block was done then (the papers' t5)
    keeps = isinstance(plan.prepared.reducer, Stack)
    mine: Mine = []

    def work(item: NumberedBlock) -> tuple[State | None, BlockTiming]:
        """Keep rows here that are to be gathered as arrays."""
        nonlocal done_at
        result = block_work(item)
        sent = None if keeps else result.state
        mine.append((item, result if keeps else replace(result, state=None)))
        done_at = time.perf_counter()
        return sent, result.timing

    try:
        on_read = None
        if progress is not None and comm.rank == 0:
            on_read = _as_all_ranks(progress, plan, comm.size)
        block_work = BlockWork(plan.layout, plan.prepared, plan.opened_s, on_read, rank=comm.rank)
        (blocks,), own = blocks_on_ranks([plan], comm)
        done = dict(executor.imap(work, blocks, describe=block_label, own=own))
    finally:
        if plan.is_ours:
            plan.layout.close()
    settled_at = time.perf_counter()
    gathered = _gathered(mine, plan, comm, gather)
    gathered_at = time.perf_counter()
    worker = WorkerTiming(rank_name(comm.rank), comm.rank)
    if mine:
        worker = per_worker([result.timing for _, result in mine])[0]
    worker.t_wait_s, worker.t_comm_s = settled_at - done_at, gathered_at - done_at
    worker.t_put_s = sum(part.t_put_s for part in gathered)
    worker.t_get_s = sum(part.t_get_s for part in gathered)
    plan.count(worker)
    ranks = comm.gather(worker)
    found: dict[str, Any] = {"frame": np.empty(0, np.int64), "timings": [], "seconds": 0.0}
    found |= {"time": np.empty(0), "values": np.empty(0)}
    if comm.rank == 0:
        found |= _joined(plan, done, [part.rows for part in gathered], ranks)
        found["seconds"] = plan.opened_s + time.perf_counter() - begun
    result = plan.result(executor, gather=gather, **found)
    return cast(AnalysisResult, comm.bcast(result)) if executor.to_all else result


def _as_all_ranks(progress: Progress, plan: Plan, n_ranks: int) -> Progress:
    """Return what takes the frames that rank 0 has done for those of each: they begin together.

    Ranks tell each other nothing until their blocks are done.
    """
    n_left = len(plan.frames)

    def told(n_frames: int, nbytes: int) -> None:
        nonlocal n_left
        n_done = min(n_ranks * n_frames, n_left)
        n_left -= n_done
        progress(n_done, n_ranks * nbytes)

    return told


def plan_on_ranks(request: Request, executor: MPIExecutor) -> Plan:
    """Plan on rank 0 and tell the others, or raise on all ranks what went wrong (collective).

    A user's own function does not travel: every rank has it already.
    """
    watch = Stopwatch()
    if not executor.is_owner:
        import_likely(request.trajectory)  # while rank 0 is opening it
    index_together(request.trajectory, executor.comm)
    indexed_s = watch.lap()
    own: list[Plan] = []

    def make() -> bytes:
        plan = request.plan()
        try:
            sent = _pickled(plan, request)
        except PlanError:
            if plan.is_ours:
                plan.layout.close()
            raise
        own.append(plan)
        return sent

    try:
        sent = executor.from_owner(make)
    except Exception as error:
        if executor.is_owner or isinstance(error, MdioError):
            raise
        # One rank tells of what is nobody's message.
        raise BlockError(f"rank 0 failed: {type(error).__name__}: {error}") from error
    plan: Plan = own[0] if own else pickle.loads(zlib.decompress(sent))
    if not own and isinstance(request.kernel, UserKernel):
        plan.prepared = replace(plan.prepared, function=request.kernel.function)
    plan.opened_s += indexed_s
    return plan


def _pickled(plan: Plan, request: Request) -> bytes:
    sent = replace(plan.for_workers(), is_ours=True)
    if isinstance(request.kernel, UserKernel):
        sent.prepared = replace(sent.prepared, function=len)  # type: ignore[arg-type]
    try:
        # Large messages to ranks that share cores take long: times and boxes are mostly alike.
        return zlib.compress(pickle.dumps(sent, pickle.HIGHEST_PROTOCOL), FAST)
    except Exception as error:  # pickling raises nearly anything
        raise PlanError(f"the analysis cannot be sent to other ranks ({error})") from error


def _gathered(mine: Mine, plan: Plan, comm: Any, how: How) -> list[Gathered]:
    """Gather all frames' times and, if they are kept, all rows: each as it lies in memory.

    Raises BlockError: blocks have rows of different shapes (on all ranks).
    """
    states = [result.state for _, result in mine if result.state is not None]
    parts = [part for state in states for part in state[0]]
    own = np.result_type(*parts) if parts else None
    shapes = {result.row_shape: (block, result.row_shape) for block, result in reversed(mine)}
    times = np.concatenate([np.empty(0), *(result.time for _, result in mine)])
    # All that ranks have to know of each other at once: each exchange waits for the last of them.
    facts = allgather(comm, (list(shapes.values()), len(times), own))
    every = [found for of_rank, _, _ in facts for found in of_rank]
    check_shapes(sorted(every, key=lambda found: found[0][0]), plan.layout, plan.prepared)
    counts = [count for _, count, _ in facts]
    gathered = [gather_counted(times, comm, counts, how)]
    stack = plan.prepared.reducer
    if isinstance(stack, Stack):
        dtype = np.result_type(*(one for _, _, one in facts if one is not None))
        if states:
            rows = stack.finish(reduce(stack.merge, states)).astype(dtype, copy=False)
            for _, result in mine:  # joined: what they held need not stay beside it
                result.state = None
            states.clear()
            parts.clear()
        else:
            rows = np.empty((0, *(every[0][1] or ())), dtype)
        gathered.append(gather_counted(rows, comm, counts, how))
    return gathered


def _joined(
    plan: Plan,
    done: dict[int, tuple[State | None, BlockTiming]],
    parts: list[NDArray[Any] | None],
    ranks: list[WorkerTiming],
) -> dict[str, Any]:
    """Return on rank 0 what all ranks have sent, as parts of the result."""
    every = [done[number] for number in sorted(done)]
    timings = [timing for _, timing in every]
    time_ps, *rows = (_in_order_of_blocks(part, timings) for part in parts if part is not None)
    if rows:
        values = rows[0]
    else:
        values = result_of(plan.prepared.reducer, (state for state, _ in every))  # type: ignore[misc]
    last = {timing.rank: timing for timing in timings}
    for rank in ranks:
        if rank.rank in last:
            last[rank.rank].t_comm_s = rank.t_comm_s
    return {
        "frame": plan.frame_numbers,
        "time": time_ps,
        "values": values,
        "timings": timings,
        "ranks": ranks,
    }


def _in_order_of_blocks(rows: NDArray[Any], timings: list[BlockTiming]) -> NDArray[Any]:
    """Return rows, which came in order of rank, in order of block."""
    came = sorted(timings, key=lambda timing: (timing.rank or 0, timing.block))
    if came == timings:
        return rows
    ends = np.cumsum([timing.n_frames for timing in came]).tolist()
    part = {
        timing.block: rows[end - timing.n_frames : end]
        for timing, end in zip(came, ends, strict=True)
    }
    return np.concatenate([part[timing.block] for timing in timings])
