"""The block-analysis driver on the ranks of an MPI program.

Rank 0 opens the trajectory, reads the topology and prepares the kernel, once; what it found is
broadcast. Every rank computes its blocks and keeps their rows; when all are done, the rows are
gathered on rank 0 in one go, each with its frame's time, the way that was asked for.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.analysis.kernel import UserKernel
from mdio.analysis.plan import Plan, Request
from mdio.analysis.reducers import Stack, State
from mdio.analysis.results import AnalysisResult
from mdio.analysis.work import BlockWork, NumberedBlock, describe
from mdio.core.errors import BlockError, MdioError, PlanError
from mdio.core.timing import BlockTiming, WorkerTiming, per_worker, worker_name
from mdio.parallel.gather import Gathered, How, gather_rows
from mdio.parallel.mpi_executor import MPIExecutor

__all__ = ["analyze_on_ranks"]

Done = dict[int, tuple[State | None, BlockTiming]]
NAP_S = 0.002


class _RankWork:
    """One rank's blocks; keeps their rows here where they are to be gathered as arrays."""

    def __init__(self, work: BlockWork, rank: int, keeps: bool) -> None:
        self.work = work
        self.worker = WorkerTiming(f"rank {rank} ({worker_name()})", rank)
        self.keeps = keeps
        self.states: list[State] = []
        self.times: list[NDArray[np.float64]] = []
        self.timings: list[BlockTiming] = []
        self.done_at = time.perf_counter()
        """When the last block was done (the papers' t5)."""

    def __call__(self, item: NumberedBlock) -> tuple[State | None, BlockTiming]:
        result = self.work(item)
        result.timing.rank, result.timing.worker = self.worker.rank, self.worker.worker
        self.times.append(result.time)
        self.timings.append(result.timing)
        if self.keeps:
            self.states.append(result.state)
        self.done_at = time.perf_counter()
        return None if self.keeps else result.state, result.timing

    def summed(self, settled_at: float, gathered_at: float, gathered: Gathered) -> WorkerTiming:
        """Return this rank's times."""
        found = per_worker(self.timings)[0] if self.timings else self.worker
        found.t_wait_s = settled_at - self.done_at
        found.t_comm_s = gathered_at - self.done_at
        found.t_put_s, found.t_get_s = gathered.t_put_s, gathered.t_get_s
        return found


def analyze_on_ranks(
    request: Request,
    executor: MPIExecutor,
    gather: How,
    progress: Callable[[int, int], None] | None,
) -> AnalysisResult:
    """Run an analysis on all ranks of `executor` (collective); see `mdio.analysis.driver`."""
    comm = executor.comm
    plan = _plan_from_root(request, comm)
    begun = time.perf_counter()
    try:
        reducer = plan.prepared.reducer
        keeps = isinstance(reducer, Stack)
        work = _RankWork(BlockWork(plan.layout, plan.prepared, plan.opened_s), comm.rank, keeps)
        done: Done = {}
        for number, outcome in executor.imap(work, enumerate(plan.blocks), describe=describe):
            done[number] = outcome
            if progress is not None and comm.rank == 0:
                progress(outcome[1].n_frames, outcome[1].nbytes_read)
    finally:
        if plan.is_ours:
            plan.layout.close()
    settled_at = time.perf_counter()
    gathered = gather_rows(_rows_to_send(work, comm), comm, gather)
    gathered_at = time.perf_counter()
    ranks = comm.gather(work.summed(settled_at, gathered_at, gathered))
    result = _empty(plan, executor, gather)
    if comm.rank == 0:
        assert gathered.rows is not None
        _fill(result, plan, done, gathered.rows, ranks)
        result.seconds = plan.opened_s + time.perf_counter() - begun
    if executor.to_all:
        result = comm.bcast(result)
    return result


def _plan_from_root(request: Request, comm: Any) -> Plan:
    """Plan on rank 0 and tell the others, or raise on all ranks what went wrong there.

    A user's own function does not travel: every rank has it already.
    """
    plan: Plan | None = None
    error: Exception | None = None
    pickled = b""
    if comm.rank == 0:
        try:
            plan = request.plan()
            pickled = _pickled(_without_function(plan, request))
        except Exception as caught:  # all ranks must learn of it, or they would wait for ever
            error = caught
    told = comm.Ibarrier()
    while not told.Test():  # the wait may be long, and sleeping leaves the cores to rank 0
        time.sleep(NAP_S)
    pickled, message = comm.bcast((pickled, _for_others(error)))
    if error is not None:
        if plan is not None and plan.is_ours:
            plan.layout.close()
        raise error
    if message is not None:
        raise message
    if plan is None:
        plan = pickle.loads(pickled)
        if isinstance(request.kernel, UserKernel):
            plan.prepared = replace(plan.prepared, function=request.kernel.function)
    return plan


def _without_function(plan: Plan, request: Request) -> Plan:
    sent = plan.for_workers()
    if isinstance(request.kernel, UserKernel):
        sent.prepared = replace(sent.prepared, function=len)  # type: ignore[arg-type]
    return replace(sent, is_ours=True)


def _pickled(plan: Plan) -> bytes:
    try:
        return pickle.dumps(plan, pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # pickling raises nearly anything
        raise PlanError(f"the analysis cannot be sent to other ranks ({error})") from error


def _for_others(error: Exception | None) -> MdioError | None:
    if error is None or isinstance(error, MdioError):
        return error
    return BlockError(f"rank 0 failed: {type(error).__name__}: {error}")


def _rows_to_send(work: _RankWork, comm: Any) -> NDArray[Any]:
    """Return this rank's frame times, and with them its rows if they are to be gathered.

    Ranks without frames take part with none, in the shape that the others have.

    Raises
    ------
    BlockError
        Rows of different shapes (on all ranks).
    """
    times = np.concatenate(work.times) if work.times else np.empty(0)
    if not work.keeps:
        return times
    rows = None
    kind: tuple[tuple[int, ...], str] | BlockError | None = None
    try:
        if work.states:
            stack = Stack()
            rows = stack.finish(reduce(stack.merge, work.states))
            kind = rows.shape[1:], rows.dtype.str
    except BlockError as error:
        kind = error
    kinds = comm.allgather(kind)
    failed = next((one for one in kinds if isinstance(one, BlockError)), None)
    if failed is not None:
        raise failed
    shapes = {shape for shape, _ in filter(None, kinds)}
    if len(shapes) > 1:
        raise BlockError(f"rows of different shapes, {sorted(shapes)}, cannot be stacked")
    dtype = np.result_type(*(np.dtype(name) for _, name in filter(None, kinds)))
    records = np.empty(len(times), [("time", "f8"), ("row", dtype, shapes.pop())])
    records["time"] = times
    if rows is not None:
        records["row"] = rows
    return records


def _empty(plan: Plan, executor: MPIExecutor, gather: How) -> AnalysisResult:
    return AnalysisResult(
        frame=np.empty(0, np.int64),
        time=np.empty(0),
        values=np.empty(0),
        timings=[],
        seconds=0.0,
        executor=executor.name,
        workers=executor.n_workers,
        prepare_s=plan.prepare_s,
        labels=plan.prepared.labels,
        per_frame=isinstance(plan.prepared.reducer, Stack),
        gather=gather,
    )


def _fill(
    result: AnalysisResult,
    plan: Plan,
    done: Done,
    rows: NDArray[Any],
    ranks: list[WorkerTiming],
) -> None:
    """Put on rank 0 what all ranks have sent into the result."""
    timings = [done[number][1] for number in range(len(plan.blocks))]
    rows = _in_order_of_blocks(rows, timings)
    if result.per_frame:
        result.time = np.ascontiguousarray(rows["time"])
        result.values = np.ascontiguousarray(rows["row"])
    else:
        result.time = rows
        reducer = plan.prepared.reducer
        states = [done[number][0] for number in range(len(plan.blocks))]
        result.values = reducer.finish(reduce(reducer.merge, states))  # type: ignore[arg-type]
    frames = plan.frames
    result.frame = np.arange(frames.start, frames.stop, frames.step, dtype=np.int64)
    last = {timing.rank: timing for timing in timings}
    for rank in ranks:
        if rank.rank in last:
            last[rank.rank].t_comm_s = rank.t_comm_s
    result.timings, result.ranks = timings, ranks


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
