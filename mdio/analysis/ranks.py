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
from mdio.analysis.placing import blocks_of_rank
from mdio.analysis.plan import Plan, Request
from mdio.analysis.reducers import Stack, State
from mdio.analysis.results import AnalysisResult
from mdio.analysis.work import BlockWork, NumberedBlock, RowShape, check_shapes, describe
from mdio.core.errors import BlockError, MdioError, PlanError
from mdio.core.files.index import FrameIndex, load_index, store_index
from mdio.core.timing import BlockTiming, Stopwatch, WorkerTiming, per_worker, worker_name
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
Done = dict[int, tuple[State | None, BlockTiming]]
Progress = Callable[[int, int], None]


class _RankWork:
    """One rank's blocks; keeps their rows here where they are to be gathered as arrays."""

    def __init__(self, work: BlockWork, plan: Plan, comm: Any) -> None:
        self.work = work
        self.worker = WorkerTiming(f"rank {comm.rank} ({worker_name()})", comm.rank)
        self.keeps = isinstance(plan.prepared.reducer, Stack)
        self.states: list[State] = []
        self.times: list[NDArray[np.float64]] = []
        self.timings: list[BlockTiming] = []
        self.shapes: list[tuple[NumberedBlock, RowShape | None]] = []
        self.done_at = time.perf_counter()
        """When the last block was done (the papers' t5)."""

    def __call__(self, item: NumberedBlock) -> tuple[State | None, BlockTiming]:
        result = self.work(item)
        result.timing.rank, result.timing.worker = self.worker.rank, self.worker.worker
        self.times.append(result.time)
        self.timings.append(result.timing)
        self.shapes.append((item, result.row_shape))
        if self.keeps:
            self.states.append(cast(State, result.state))
        self.done_at = time.perf_counter()
        return None if self.keeps else result.state, result.timing

    def summed(
        self, settled_at: float, gathered_at: float, gathered: list[Gathered]
    ) -> WorkerTiming:
        """Return this rank's times."""
        found = per_worker(self.timings)[0] if self.timings else self.worker
        found.t_wait_s = settled_at - self.done_at
        found.t_comm_s = gathered_at - self.done_at
        found.t_put_s = sum(part.t_put_s for part in gathered)
        found.t_get_s = sum(part.t_get_s for part in gathered)
        return found


def analyze_on_ranks(
    request: Request, executor: MPIExecutor, gather: How, progress: Progress | None
) -> AnalysisResult:
    """Run an analysis on all ranks of `executor` (collective); see `mdio.analysis.driver`."""
    comm = executor.comm
    watch = Stopwatch()
    if comm.rank != 0:
        progress = None
        import_likely(request.trajectory)  # while rank 0 is opening it
    index_together(request.trajectory, comm)
    indexed_s = watch.lap()
    plan = plan_from_root(request, executor)
    plan.opened_s += indexed_s
    begun = time.perf_counter()
    try:
        on_read = None if progress is None else _as_all_ranks(progress, plan, comm.size)
        block_work = BlockWork(plan.layout, plan.prepared, plan.opened_s, on_read)
        work = _RankWork(block_work, plan, comm)
        if plan.units is None:
            results = executor.imap(work, enumerate(plan.blocks), describe=describe)
        else:
            own = blocks_of_rank(plan, comm)
            results = executor.imap(work, own, describe=describe, own=True)
        done = dict(results)
    finally:
        if plan.is_ours:
            plan.layout.close()
    settled_at = time.perf_counter()
    gathered = _gathered(work, plan, comm, gather)
    gathered_at = time.perf_counter()
    summed = work.summed(settled_at, gathered_at, gathered)
    plan.count(summed)
    ranks = comm.gather(summed)
    result = _empty(plan, executor, gather)
    if comm.rank == 0:
        _fill(result, plan, done, [part.rows for part in gathered], ranks)
        result.seconds = plan.opened_s + time.perf_counter() - begun
    if executor.to_all:
        result = comm.bcast(result)
    return result


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


def plan_from_root(request: Request, executor: MPIExecutor) -> Plan:
    """Plan on rank 0 and tell the others, or raise on all ranks what went wrong there.

    A user's own function does not travel: every rank has it already.
    """
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
    if own:
        return own[0]
    plan: Plan = pickle.loads(zlib.decompress(sent))
    if isinstance(request.kernel, UserKernel):
        plan.prepared = replace(plan.prepared, function=request.kernel.function)
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


def _gathered(work: _RankWork, plan: Plan, comm: Any, how: How) -> list[Gathered]:
    """Gather all frames' times and, if they are kept, all rows: each as it lies in memory.

    Raises BlockError: blocks have rows of different shapes (on all ranks).
    """
    parts = [part for state in work.states for part in state[0]]
    own = np.result_type(*parts) if parts else None
    # All that ranks have to know of each other at once: each exchange waits for the last of them.
    facts = allgather(comm, (_unlike(work.shapes), sum(map(len, work.times)), own))
    every = [found for of_rank, _, _ in facts for found in of_rank]
    check_shapes(sorted(every, key=lambda found: found[0][0]), plan.prepared)
    counts = [count for _, count, _ in facts]
    times = np.concatenate(work.times) if work.times else np.empty(0)
    gathered = [gather_counted(times, comm, counts, how)]
    if work.keeps:
        dtype = np.result_type(*(one for _, _, one in facts if one is not None))
        rows = _rows(work, every[0][1], dtype)
        gathered.append(gather_counted(rows, comm, counts, how))
    return gathered


def _unlike(
    shapes: list[tuple[NumberedBlock, RowShape | None]],
) -> list[tuple[NumberedBlock, RowShape | None]]:
    """Return the first block of each shape."""
    first = {shape: (block, shape) for block, shape in reversed(shapes)}
    return list(first.values())


def _rows(work: _RankWork, row_shape: RowShape | None, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return this rank's rows; of a rank without frames, none, of the shape and type of all."""
    if not work.states:
        return np.empty((0, *(row_shape or ())), dtype)
    stack = Stack()
    rows = stack.finish(reduce(stack.merge, work.states))
    work.states.clear()  # joined: what they held need not stay beside it
    return rows.astype(dtype, copy=False)


def _empty(plan: Plan, executor: MPIExecutor, gather: How) -> AnalysisResult:
    return plan.result(
        executor,
        frame=np.empty(0, np.int64),
        time=np.empty(0),
        values=np.empty(0),
        timings=[],
        seconds=0.0,
        gather=gather,
        notes=plan.notes,
    )


def _fill(
    result: AnalysisResult,
    plan: Plan,
    done: Done,
    parts: list[NDArray[Any] | None],
    ranks: list[WorkerTiming],
) -> None:
    """Put on rank 0 what all ranks have sent into the result."""
    numbers = sorted(done)
    timings = [done[number][1] for number in numbers]
    result.time, *rows = (_in_order_of_blocks(part, timings) for part in parts if part is not None)
    if rows:
        result.values = rows[0]
    else:
        reducer = plan.prepared.reducer
        states = [done[number][0] for number in numbers]
        result.values = reducer.finish(reduce(reducer.merge, states))  # type: ignore[arg-type]
    result.frame = plan.frame_numbers
    last = {timing.rank: timing for timing in timings}
    for rank in ranks:
        if rank.rank in last:
            last[rank.rank].t_comm_s = rank.t_comm_s
    result.timings, result.ranks = timings, ranks
    result.notes = plan.notes_on(result, timings)


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
