"""Where the time went: the record of one analysis, and which workers lagged behind.

``mdio analyze --timings T.json`` writes one JSON object. All times are seconds; a name that ends in
``_s`` follows the papers' Table 1 (Khoshlessan et al.), with ``_s`` behind it.

Of the run
    ``schema`` ("mdio-timings-1"), ``executor``, ``gather`` (under MPI), ``workers``, ``blocks``,
    ``n_frames``, ``seconds`` (opening until all values are there), ``prepare_s`` (topology,
    selection, reference), ``t_total_s`` (the largest t_N), ``ratio_comp_io`` and
    ``ratio_comp_comm`` (of the sums over all workers), ``nbytes_read``, and the sums
    and maxima of `mdio.core.timing.summary`.
``ranks``
    One object a worker (under MPI: a rank), sums over its blocks: ``worker``, ``rank`` (null
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
    One object a block, with the same times, and ``block``, ``start``, ``stop``, ``step``,
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

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from mdio.core.timing import BlockTiming, WorkerTiming

SCHEMA = "mdio-timings-1"

FACTOR = 1.2
"""A straggler takes this many times as long as the median worker ..."""
FLOOR_S = 0.01
"""... and at least this much longer."""

PARTS: dict[str, Callable[[WorkerTiming], float]] = {
    "open": lambda w: w.t_open_s,
    "io": lambda w: w.t_io_s,
    "compute": lambda w: w.t_comp_s,
    "communication": lambda w: w.t_comm_s - w.t_wait_s,
    "overhead": lambda w: w.t_overhead1_s + w.t_overhead2_s + w.t_end_loop_s,
}


def stragglers(workers: Sequence[WorkerTiming]) -> list[dict[str, Any]]:
    """Return the workers that took much longer than the median worker, slowest first.

    Waiting for others does not count as a worker's own time: under MPI the last rank makes all
    others wait, and they are not to blame.
    """
    if len(workers) < 2:
        return []
    from statistics import median  # as long to import as a small analysis takes

    typical_s = median(worker.t_own_s for worker in workers)
    typical = {part: median(map(of, workers)) for part, of in PARTS.items()}
    found = []
    for worker in workers:
        beyond_s = worker.t_own_s - typical_s
        if beyond_s < max(FLOOR_S, (FACTOR - 1) * typical_s):
            continue
        beyond = {part: of(worker) - typical[part] for part, of in PARTS.items()}
        cause = max(beyond, key=lambda part: beyond[part])
        found.append(
            {
                "worker": worker.worker,
                "rank": worker.rank,
                "t_own_s": worker.t_own_s,
                "beyond_median_s": beyond_s,
                "times_median": worker.t_own_s / typical_s if typical_s > 0 else None,
                "cause": cause,
                "cause_beyond_s": beyond[cause],
                "slowest_file": worker.slowest_file if cause == "io" else None,
            }
        )
    return sorted(found, key=lambda one: -float(one["beyond_median_s"]))


class Timed(Protocol):
    """What a record is made of: the result of an analysis."""

    ranks: list[WorkerTiming]
    timings: list[BlockTiming]
    tasks: list[dict[str, Any]]

    def to_json(self) -> dict[str, Any]:
        """Return the numbers of the run."""


def record(result: Timed) -> dict[str, Any]:
    """Return the record of one analysis, as the module describes it."""
    numbers = result.to_json()
    found = {
        "schema": SCHEMA,
        **numbers,
        "t_total_s": numbers["t_total_max_s"],
        "ranks": [worker.to_json() for worker in result.ranks],
        "stragglers": stragglers(result.ranks),
        "timings": [timing.to_json() for timing in result.timings],
    }
    if result.tasks:
        found["tasks"] = result.tasks
        found["tasks_per_worker"] = dict(Counter(task["worker"] for task in result.tasks))
    return found
