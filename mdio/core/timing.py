"""Where the time of a parallel analysis goes, in the terms of Khoshlessan et al. (their Table 1).

The papers time every frame of a rank; here t_io and t_comp are measured once for all frames of a
call, so that measuring takes no noticeable time.

``mdio analyze --timings T.json`` writes one JSON object, with the times of one analysis and the
workers that were much slower than others. All times are seconds. Most names are those of the
papers' Table 1, with the suffix ``_s``.

Of the run
    ``schema`` ("mdio-timings-1"), ``executor``, ``gather`` (under MPI), ``workers``, ``blocks``,
    ``n_frames``, ``seconds`` (from opening until all values are computed), ``prepare_s`` (topology,
    selection, reference), ``t_total_s`` (the largest t_N), ``ratio_comp_io`` and
    ``ratio_comp_comm`` (of the sums over all workers), ``nbytes_read``, and the sums
    and maxima of `mdio.core.timing.summary`.
``ranks``
    One object per worker (under MPI: a rank), sums over its blocks: ``worker``, ``rank`` (null
    without MPI), ``n_blocks``, ``n_frames``, ``nbytes_read`` (decoded bytes);
    ``t_opening_trajectory_s`` = t0 - t00; ``t_IO_s`` and ``t_comp_s`` (the papers' t_IO,final and
    t_comp,final), each also ``per_frame``; ``t_end_loop_s`` = t3 - t1; ``t_all_frame_s`` = t3 - t0;
    ``t_block_s`` = t5 - t4, the papers' t_RMSD (older files: ``t_RMSD_s``); ``t_comm_s`` = t6 - t5,
    with a global array (t6 - t5) + (t7 - t6);
    ``t_overhead1_s`` = t_all_frame - t_IO - t_comp - t_end_loop;
    ``t_overhead2_s`` = t_block - t_all_frame - t_opening_trajectory; ``t_N_s`` = t_block + t_comm;
    ``ratio_comp_io``, ``ratio_comp_comm``. Of t_comm, under MPI: ``t_wait_s`` until the last rank
    was done with its blocks, ``t_put_s`` and ``t_get_s`` of the global array.
``timings``
    One object per block, with the same times, and ``block``, ``start``, ``stop``, ``step``,
    ``n_frames``, ``worker``, ``rank``, ``began_unix_s``. Under MPI a rank's t_comm stands in its
    last block.
``stragglers``
    One object for each worker that took much longer than the median worker: ``worker``, ``rank``,
    ``t_own_s`` (t_N without the wait for others), ``beyond_median_s``, ``times_median``, ``cause``
    (``open``, ``io``, ``compute``, ``communication`` or ``overhead``: the part furthest beyond its
    own median), ``cause_beyond_s`` and, where that is ``io``, ``slowest_file``: that of its
    longest read (of each worker and block ``slowest_read_s``).
``tasks`` and ``tasks_per_worker``
    With Dask, what the scheduler saw of each block: ``block``, ``worker`` (its address),
    ``thread``, ``start_unix_s``, ``stop_unix_s``, and ``transfer_s`` and ``deserialize_s`` before
    it could begin.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any


def worker_name() -> str:
    """Return host and process, and the thread if it is not the main one (as in Dask's workers)."""
    name = f"{os.uname().nodename}:{os.getpid()}"
    if threading.current_thread() is threading.main_thread():
        return name
    return f"{name}:{threading.get_native_id()}"


class Stopwatch:
    """Measures the seconds between calls of `lap`."""

    __slots__ = ("_last_s",)

    def __init__(self) -> None:
        self._last_s = time.perf_counter()

    def lap(self) -> float:
        """Return the seconds since the last lap, or since the start."""
        last_s, self._last_s = self._last_s, time.perf_counter()
        return self._last_s - last_s


PAPER_NAMES = {
    "t_open_s": "t_opening_trajectory_s",
    "t_io_s": "t_IO_s",
    "t_comp_s": "t_comp_s",
    "t_end_loop_s": "t_end_loop_s",
    "t_all_frame_s": "t_all_frame_s",
    "t_block_s": "t_block_s",
    "t_comm_s": "t_comm_s",
    "t_overhead1_s": "t_overhead1_s",
    "t_overhead2_s": "t_overhead2_s",
    "t_total_s": "t_N_s",
}
"""The papers' names of the times (Table 1), with units; without t_RMSD."""


@dataclass(slots=True, kw_only=True)
class _Times:
    """Times and bytes measured for a block or a worker, and values derived from them."""

    t_open_s: float = 0.0
    """Opening the trajectory, t0 - t00: in the first block of each worker only."""
    t_io_s: float = 0.0
    """Reading all frames into memory."""
    t_comp_s: float = 0.0
    """Computing all frames."""
    t_end_loop_s: float = 0.0
    """From the end of the last computation until the loop is left, t3 - t1."""
    t_all_frame_s: float = 0.0
    """The loop over all frames, t3 - t0."""
    t_block_s: float = 0.0
    """The whole block function, t5 - t4: the papers' t_RMSD."""
    t_comm_s: float = 0.0
    """From the end of the block function until its result has been gathered, t6 - t5.

    Under MPI the ranks gather once, and all of that time is counted in the last block of each rank.
    """
    nbytes_read: int = 0
    """Decoded bytes of the frames that were read."""
    nbytes_source: int = 0
    """Bytes that were read for them from files."""
    nbytes_cache: int = 0
    """Bytes that were read for them from the node's cache."""
    slowest_read_s: float = 0.0
    """Longest time that one read took."""
    slowest_file: str | None = None
    """The file from which it read."""

    @property
    def t_overhead1_s(self) -> float:
        """Time of the loop without reading and computing."""
        return self.t_all_frame_s - self.t_io_s - self.t_comp_s - self.t_end_loop_s

    @property
    def t_overhead2_s(self) -> float:
        """Time of the block function outside of the loop and of opening."""
        return self.t_block_s - self.t_all_frame_s - self.t_open_s

    @property
    def t_total_s(self) -> float:
        """All time of the worker, the papers' t_N: t_block + t_comm."""
        return self.t_block_s + self.t_comm_s

    def table1(self) -> dict[str, float]:
        """Return all times, derived ones too, by the papers' names."""
        return {paper: getattr(self, name) for name, paper in PAPER_NAMES.items()}


@dataclass(slots=True)
class BlockTiming(_Times):
    """The times of one block in one worker, in seconds."""

    block: int
    frames: range
    """Frames of the trajectory."""
    worker: str = field(default_factory=worker_name)
    """Host and process."""
    rank: int | None = None
    """Under MPI."""
    began_unix_s: float = field(default_factory=time.time)
    """When the worker began the block, by the worker's clock."""
    notes: tuple[str, ...] = ()
    """Notes of this worker's cache."""
    doubtful_frames: list[int] = field(default_factory=list)
    """Frames whose values are in doubt; see `mdio.Prepared.doubt_finder`."""

    @property
    def n_frames(self) -> int:
        """Number of frames."""
        return len(self.frames)

    def record_arrival(self) -> None:
        """Record that the result has arrived; called where all results are gathered.

        The clocks of two machines are compared; if they differ so much that the result seems to
        arrive before it was sent, its `t_comm_s` is 0.
        """
        sent_unix_s = self.began_unix_s + self.t_block_s
        self.t_comm_s = max(0.0, time.time() - sent_unix_s)

    def to_json(self) -> dict[str, Any]:
        """Return all as plain values, the times by the papers' names."""
        omitted = {*PAPER_NAMES, "frames", "notes", "doubtful_frames"}
        plain = {name: value for name, value in asdict(self).items() if name not in omitted}
        frames = {name: getattr(self.frames, name) for name in ("start", "stop", "step")}
        return plain | frames | {"n_frames": self.n_frames} | self.table1()


@dataclass(slots=True)
class WorkerTiming(_Times):
    """The times of one worker or rank, summed over its blocks, in seconds."""

    worker: str
    rank: int | None = None
    n_blocks: int = 0
    n_frames: int = 0
    t_wait_s: float = 0.0
    """Part of t_comm: under MPI, from the end of this rank's last block until all ranks had done
    theirs."""
    t_put_s: float = 0.0
    """Part of t_comm: one-sided, making the global array, putting this rank's rows (t6 - t5)."""
    t_get_s: float = 0.0
    """Part of t_comm: one-sided, getting the whole array (t7 - t6; rank 0)."""

    @property
    def t_own_s(self) -> float:
        """Time of this worker itself: t_N without the wait for others."""
        return self.t_total_s - self.t_wait_s

    def to_json(self) -> dict[str, Any]:
        """Return all as plain values, the times by the papers' names, and their ratios."""
        plain = {name: value for name, value in asdict(self).items() if name not in PAPER_NAMES}
        n_frames = max(1, self.n_frames)
        return plain | {
            **self.table1(),
            "t_comp_per_frame_s": self.t_comp_s / n_frames,
            "t_IO_per_frame_s": self.t_io_s / n_frames,
            "ratio_comp_io": _ratio(self.t_comp_s, self.t_io_s),
            "ratio_comp_comm": _ratio(self.t_comp_s, self.t_comm_s),
        }


SUMMED_FIELDS = ("n_frames", *(f.name for f in fields(_Times) if not f.name.startswith("slowest")))
"""Fields that are summed over a worker's blocks."""


def _ratio(dividend: float, divisor: float) -> float | None:
    return dividend / divisor if divisor > 0 else None


def per_worker(timings: Sequence[BlockTiming]) -> list[WorkerTiming]:
    """Return the sums over each worker's blocks, in order of rank, else of first block."""
    by_worker: dict[str, WorkerTiming] = {}
    for timing in timings:
        worker = by_worker.setdefault(timing.worker, WorkerTiming(timing.worker, timing.rank))
        worker.n_blocks += 1
        for name in SUMMED_FIELDS:
            setattr(worker, name, getattr(worker, name) + getattr(timing, name))
        if timing.slowest_read_s > worker.slowest_read_s:
            worker.slowest_read_s = timing.slowest_read_s
            worker.slowest_file = timing.slowest_file
    return sorted(by_worker.values(), key=lambda worker: -1 if worker.rank is None else worker.rank)


SUMMARY_TIMES = ("t_open_s", "t_io_s", "t_comp_s", "t_comm_s")
"""Times of which `summary` has the sum over all workers, too."""


def summary(workers: Sequence[WorkerTiming]) -> dict[str, Any]:
    """Return sums and maxima of the workers' times.

    ``t_open_s``, ``t_io_s``, ``t_comp_s``, ``t_comm_s``: sums over all workers; each also as
    ``t_*_max_s``, of the worker with most of it; ``t_total_max_s``, the papers' t_total (the
    longest sum of a worker's blocks); ``ratio_comp_io`` and ``ratio_comp_comm`` (None where the
    divisor is 0); ``workers``: how many took part; ``nbytes_read``, ``nbytes_source`` and
    ``nbytes_cache``.
    """
    totals: dict[str, Any] = {}
    for name in (*SUMMARY_TIMES, "t_total_s"):
        sums = [getattr(worker, name) for worker in workers]
        if name in SUMMARY_TIMES:
            totals[name] = sum(sums)
        totals[f"{name.removesuffix('_s')}_max_s"] = max(sums, default=0.0)
    totals["ratio_comp_io"] = _ratio(totals["t_comp_s"], totals["t_io_s"])
    totals["ratio_comp_comm"] = _ratio(totals["t_comp_s"], totals["t_comm_s"])
    totals["workers"] = len(workers)
    for name in ("nbytes_read", "nbytes_source", "nbytes_cache"):
        totals[name] = sum(getattr(worker, name) for worker in workers)
    return totals


SCHEMA = "mdio-timings-1"

STRAGGLER_FACTOR = 1.2
"""A straggler takes at least this many times as long as the median worker ..."""
MIN_STRAGGLER_S = 0.01
"""... and is at least this much slower."""

CAUSES: dict[str, Callable[[WorkerTiming], float]] = {
    "open": lambda w: w.t_open_s,
    "io": lambda w: w.t_io_s,
    "compute": lambda w: w.t_comp_s,
    "communication": lambda w: w.t_comm_s - w.t_wait_s,
    "overhead": lambda w: w.t_overhead1_s + w.t_overhead2_s + w.t_end_loop_s,
}


def stragglers(workers: Sequence[WorkerTiming]) -> list[dict[str, Any]]:
    """Return the workers that took much longer than the median worker, slowest first.

    Waiting for others, as all ranks do, does not count as a worker's own time.
    """
    if len(workers) < 2:
        return []
    from statistics import median  # importing it takes as long as a small analysis

    median_s = median(worker.t_own_s for worker in workers)
    medians_s = {cause: median(map(time_of, workers)) for cause, time_of in CAUSES.items()}
    slow_workers = []
    for worker in workers:
        slower_by_s = worker.t_own_s - median_s
        if slower_by_s < max(MIN_STRAGGLER_S, (STRAGGLER_FACTOR - 1) * median_s):
            continue
        excess_s = {name: time_of(worker) - medians_s[name] for name, time_of in CAUSES.items()}
        cause = max(excess_s, key=lambda name: excess_s[name])
        slow_workers.append(
            {
                "worker": worker.worker,
                "rank": worker.rank,
                "t_own_s": worker.t_own_s,
                "beyond_median_s": slower_by_s,
                "times_median": worker.t_own_s / median_s if median_s > 0 else None,
                "cause": cause,
                "cause_beyond_s": excess_s[cause],
                "slowest_file": worker.slowest_file if cause == "io" else None,
            }
        )
    return sorted(slow_workers, key=lambda straggler: -float(straggler["beyond_median_s"]))


def timing_record(result: Any) -> dict[str, Any]:
    """Return the record of the times of the result of an analysis; see the module."""
    values = result.to_json()
    record = {
        "schema": SCHEMA,
        **values,
        "t_total_s": values["t_total_max_s"],
        "ranks": [worker.to_json() for worker in result.ranks],
        "stragglers": stragglers(result.ranks),
        "timings": [timing.to_json() for timing in result.timings],
    }
    if result.tasks:
        record["tasks"] = result.tasks
        record["tasks_per_worker"] = dict(Counter(task["worker"] for task in result.tasks))
    return record
