"""Map-reduce on the ranks of an MPI program.

Every rank maps its blocks and keeps their pairs, sorted, in memory or in files of its own node. All
learn samples of all keys and cut them into ranges in the same way; then, round by round, each rank
gets the pairs of one range from all others and reduces it. Rank 0 gathers the rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from mdio.analysis.placing import blocks_of_rank
from mdio.analysis.plan import Request
from mdio.analysis.ranks import index_together, plan_from_root
from mdio.core.timing import Stopwatch
from mdio.mapreduce.job import (
    Job,
    MapItem,
    Mapped,
    MapWork,
    ReduceWork,
    Settings,
    Table,
    block_label,
    head,
    joined,
)
from mdio.mapreduce.pairs import Pairs, Run, choose_cuts, gathered, kind_of
from mdio.mapreduce.results import MapReduceResult
from mdio.parallel.mpi_executor import MPIExecutor
from mdio.parallel.ranks import Agreement, exchange_rows


class _RankWork:
    """Maps this rank's blocks; keeps their pairs here."""

    def __init__(self, work: MapWork, rank: int) -> None:
        self._work, self._rank = work, rank
        self.runs: list[Run] = []

    def __call__(self, item: MapItem) -> Mapped:
        mapped = self._work(item)
        mapped.timing.rank = self._rank
        self.runs += mapped.runs
        return head(mapped)


def map_reduce_on_ranks(
    requests: Mapping[str, Request], settings: Settings, executor: MPIExecutor, stack: ExitStack
) -> MapReduceResult:
    """Run a map-reduce on all ranks (collective); see `mdio.mapreduce.driver`."""
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
        index_together(request.trajectory, comm)
        plans[label] = plan = plan_from_root(request, executor)
        if plan.is_ours:
            stack.callback(plan.layout.close)
    watch = Stopwatch()
    if comm.rank != 0:
        settings = replace(settings, progress=None)
    job = Job.of(plans, settings)
    spool = settings.spool(folder, shares=False)
    opened = list(plans.values())
    work = _RankWork(MapWork(opened, settings.program, spool), comm.rank)
    items, own = job.items(enumerate(plan.blocks) for plan in opened), False
    if all(plan.units is not None for plan in opened):
        items, own = job.items(blocks_of_rank(plan, comm) for plan in opened), True
    for _, one in executor.imap(work, items, describe=block_label, own=own):
        job.note(one)
    job.table.time[:] = comm.bcast(job.table.time)
    map_s = watch.lap()
    every = comm.allgather([replace(run, pairs=None) for run in work.runs])
    runs = [run for of_rank in every for run in of_rank]
    reduced = _reduced(job, runs, work.runs, comm, agreement) if runs else Table.empty()
    result = job.result(reduced, executor, runs)
    result.reduce_s = watch.lap()
    result.seconds += map_s + result.reduce_s
    return comm.bcast(result) if executor.to_all else result


def _reduced(job: Job, runs: list[Run], own: list[Run], comm: Any, agreement: Agreement) -> Table:
    """Return the table on rank 0, and one without rows elsewhere."""
    settings = job.settings
    kind = kind_of(runs)
    n_rounds = math.ceil(settings.n_ranges(runs, kind, comm.size) / comm.size)
    cuts = choose_cuts(runs, kind, n_rounds * comm.size)
    n_rounds = math.ceil((len(cuts) + 1) / comm.size)
    work = ReduceWork(settings.program.reduce, kind, job.table, settings.keep_going)
    tables: list[Table] = []
    edges: list[list[int]] = []
    error: Exception | None = None
    for first in range(0, n_rounds * comm.size, comm.size):
        pairs, counts = Pairs.empty(kind, 0), [0] * comm.size
        try:
            if not error:
                edges = edges or [run.edges(cuts) for run in own]
                parts = [
                    [run.part(*at[n : n + 2]) for run, at in zip(own, edges, strict=True)]
                    for n in range(first, min(first + comm.size, len(cuts) + 1))
                ]
                counts = [sum(map(len, part)) for part in parts] + [0] * (comm.size - len(parts))
                pairs = gathered([run for part in parts for run in part], kind)
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
