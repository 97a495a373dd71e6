"""Many empty tasks: what a scheduler costs, and whether it keeps its pace.

The test of the Dask study that mdio grew from (Khoshlessan et al. 2017): nothing is computed, so
the time is all the scheduler's. Every task returns when it ran, which gives the throughput over
time for schedulers that hand out results only in the end, too.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from os import PathLike
from typing import Any

import numpy as np
from measuring import run_bench

from mdio.analysis import report as page
from mdio.analysis.plots import figure, figure_svg
from mdio.analysis.report import BLOCK_COLOURS, need_matplotlib
from mdio.analysis.scaling import append_jsonl, make_folder
from mdio.cli.common import add, add_bench_output, names_among, positive, print_json
from mdio.core.errors import MissingExtraError
from mdio.parallel.executors import Executor, Processes, Serial, available_cores

WINDOWS = 40
"""Points of the curve of throughput over time."""


def empty_task(_: object) -> float:
    """Do nothing; return when (seconds since the epoch)."""
    return time.time()


def _executor(executor: Executor, n_tasks: int) -> list[float]:
    with executor:
        list(executor.imap(empty_task, range(2 * executor.n_workers)))  # starts the workers
        return [moment for _, moment in executor.imap(empty_task, range(n_tasks))]


def _threads(n_tasks: int, n_workers: int) -> list[float]:
    with ThreadPoolExecutor(n_workers) as pool:
        return list(pool.map(empty_task, range(n_tasks)))


def _dask_module(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingExtraError(
            'this scheduler needs dask, which is not installed; pip install "mdio-layouts[dask]"'
        ) from error


def _graph(n_tasks: int) -> dict[str, Any]:
    """Return a graph of tasks that dask cannot fuse into fewer."""
    return {f"empty-{number}": (empty_task, number) for number in range(n_tasks)}


def _dask_threads(n_tasks: int, n_workers: int) -> list[float]:
    graph = _graph(n_tasks)
    return list(_dask_module("dask.threaded").get(graph, list(graph), num_workers=n_workers))


def _dask_processes(n_tasks: int, n_workers: int) -> list[float]:
    graph = _graph(n_tasks)
    get = _dask_module("dask.multiprocessing").get
    return list(get(graph, list(graph), num_workers=n_workers, chunksize=1))


def _dask_distributed(n_tasks: int, n_workers: int) -> list[float]:
    distributed = _dask_module("distributed")
    with distributed.Client(
        n_workers=n_workers, threads_per_worker=1, dashboard_address=":0", silence_logs=50
    ) as client:
        client.gather(client.map(empty_task, range(-2 * n_workers, 0), pure=False))
        moments: list[float] = client.gather(client.map(empty_task, range(n_tasks), pure=False))
        return moments


SCHEDULERS: dict[str, Callable[[int, int], list[float]]] = {
    "serial": lambda n_tasks, _: _executor(Serial(), n_tasks),
    "processes": lambda n_tasks, n_workers: _executor(Processes(n_workers), n_tasks),
    "threads": _threads,
    "dask-threads": _dask_threads,
    "dask-processes": _dask_processes,
    "dask-distributed": _dask_distributed,
}
"""``processes`` are mdio's; ``threads`` a plain pool; the others Dask's own schedulers."""


def measure(name: str, n_tasks: int, n_workers: int) -> dict[str, Any]:
    """Run empty tasks on a scheduler.

    Returns dict: ``scheduler``, ``n_tasks``, ``n_workers``; ``seconds`` until all results were
    back, start of the scheduler included, and ``start_s`` of these until the first task ran;
    ``tasks_per_s`` from the first task to the last; ``curve``: at most 40 pairs (seconds since the
    first task, tasks a second until then since the pair before).
    Raises MissingExtraError: Dask is not installed.
    """
    begun, begun_unix_s = time.perf_counter(), time.time()
    moments = sorted(SCHEDULERS[name](n_tasks, n_workers))
    seconds = time.perf_counter() - begun
    first = moments[0]
    edges = np.unique(np.linspace(0, n_tasks - 1, WINDOWS + 1).astype(int)).tolist()
    curve = [
        [moments[b] - first, (b - a) / (moments[b] - moments[a])]
        for a, b in itertools.pairwise(edges)
        if moments[b] > moments[a]
    ]
    span_s = moments[-1] - first
    return {
        "scheduler": name,
        "n_tasks": n_tasks,
        "n_workers": n_workers,
        "seconds": seconds,
        "start_s": max(0.0, first - begun_unix_s),
        "tasks_per_s": (n_tasks - 1) / span_s if span_s > 0 else None,
        "curve": curve,
    }


def save_scheduler_page(path: str | PathLike[str], records: Sequence[dict[str, Any]]) -> None:
    """Write table and pictures as one HTML file.

    `records`: of `measure`; of several with one scheduler the table has the median, the picture the
    last.
    """
    names = list(dict.fromkeys(record["scheduler"] for record in records))
    groups = [[record for record in records if record["scheduler"] == name] for name in names]
    rows = []
    for name, group in zip(names, groups, strict=True):
        rates = [record["tasks_per_s"] for record in group if record["tasks_per_s"]]
        seconds = statistics.median(record["seconds"] for record in group)
        start = statistics.median(record["start_s"] for record in group)
        rows.append((name, len(group), statistics.median(rates) if rates else None, seconds, start))
    heads = ("scheduler", "repeats", "tasks/s", "all of it, s", "until the first task, s")
    first = records[0]
    title = f"{first['n_tasks']:,} empty tasks, {first['n_workers']} workers"
    drawn = page.picture(_picture([group[-1] for group in groups]), "The last repeat of each.")
    page.save_page(path, title, [page.section("Throughput", page.table(heads, rows), drawn)])


def _picture(records: Sequence[dict[str, Any]]) -> str:
    with figure(3.4) as (made, axes):
        for number, record in enumerate(records):
            if record["curve"]:
                times, rates = zip(*record["curve"], strict=True)
                colour = BLOCK_COLOURS[number % len(BLOCK_COLOURS)]
                axes.loglog(times, rates, ".-", color=colour, label=record["scheduler"])
        axes.set(xlabel="seconds since the first task", ylabel="tasks per second")
        axes.set_title("Throughput over time")
        made.legend(loc="outside lower center", ncols=3)
        return figure_svg(made, "Throughput of empty tasks over time, by scheduler")


def setup(parser: argparse.ArgumentParser) -> None:
    """Add the options of this bench."""
    parser.add_argument(
        "--tasks", type=positive, default=2000, help="the papers have 100000 (default: 2000)"
    )
    add(parser, "-w --workers N", "default: all cores", positive)
    names = tuple(SCHEDULERS)
    add(
        parser,
        "--scheduler S,S",
        f"of {', '.join(names)} (default: all)",
        names_among(names),
        default=",".join(names),
    )
    add(parser, "--repeats N", "runs of each (default: 3)", positive, default=3)
    add_bench_output(parser, "scheduler", "scheduler.jsonl and scheduler.html")


def run(args: argparse.Namespace) -> int:
    """Run the tasks on each scheduler in turn, save, print."""
    need_matplotlib("bench/scheduler.py")
    folder = make_folder(args.out)
    n_workers = args.workers or available_cores()
    records = []
    for repeat in range(args.repeats):
        for name in args.scheduler:
            found = measure(name, args.tasks, n_workers)
            append_jsonl(folder / "scheduler.jsonl", [{"bench": "scheduler", **found}])
            records.append({"repeat": repeat, **found})
            if not (args.json or args.quiet):
                rate = found["tasks_per_s"]
                print(
                    f"{repeat + 1}/{args.repeats}  {name:<17}"
                    f"{'-' if rate is None else f'{rate:,.0f}':>10} tasks/s"
                    f"{found['seconds']:10.3f} s in all, {found['start_s']:.3f} s to the first",
                    flush=True,
                )
    save_scheduler_page(folder / "scheduler.html", records)
    if args.json:
        print_json({"out": str(folder), "records": records})
    elif not args.quiet:
        print(f"{folder}: scheduler.html, scheduler.jsonl")
    return 0


if __name__ == "__main__":
    sys.exit(run_bench(__doc__, setup, run))
