"""Strong scaling: the same analysis on more and more workers, with the papers' components.

A series is one trajectory (and so one layout), executor, gather and workload; its cases differ in
the number of workers. Repeats go round all cases in turn, so that a drifting machine hits all.
"""

from __future__ import annotations

import csv
import itertools
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mdio.analysis.driver import analyze
from mdio.analysis.kernels.dihedrals import Dihedrals
from mdio.analysis.kernels.geometry import ReferenceDistances
from mdio.analysis.kernels.kernel import Kernel
from mdio.analysis.kernels.rmsd import RMSD
from mdio.analysis.timings import record
from mdio.benches.records import mean_and_std, mpiexec_command, told_by
from mdio.core.words import plural
from mdio.layouts.views.opening import open_source
from mdio.parallel.executors import Executor, Processes, Serial

EXECUTORS = ("serial", "processes", "dask", "mpi")
KERNELS = ("rmsd", "dihedrals", "distances")

Run = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """One point of a scaling curve."""

    trajectory: str
    layout: str
    executor: str
    gather: str
    workload_x: int
    n_ranks: int

    @property
    def series(self) -> str:
        """The curve that it is on, as pictures call it."""
        words = [self.layout, Path(self.trajectory).name, self.executor]
        words += [self.gather] if self.executor == "mpi" else []
        return ", ".join([*words, f"{self.workload_x}x"])


@dataclass(frozen=True, slots=True)
class Study:
    """What all cases have in common."""

    kernel: str = "rmsd"
    top: str | None = None
    select: str | None = None
    stop: int | None = None
    mpiexec: str | None = None

    def run(self, case: Case) -> Run:
        """Run one case once; return its record of timings.

        Raises MdioError: as `mdio.analysis.driver.analyze`; BlockError if an MPI program fails.
        """
        if case.executor == "mpi":
            return self._run_mpi(case)
        with _executor(case) as executor:
            executor.map(abs, range(2 * executor.n_workers))  # a cluster's start is not scaling
            return record(
                analyze(
                    case.trajectory,
                    kernel=self._kernel(case),
                    top=self.top,
                    executor=executor,
                    stop=self.stop,
                )
            )

    def _kernel(self, case: Case) -> Kernel:
        chosen: dict[str, Any] = {} if self.select is None else {"select": self.select}
        if self.kernel == "rmsd":
            return RMSD(**chosen, repeat=case.workload_x)
        return Dihedrals(**chosen) if self.kernel == "dihedrals" else ReferenceDistances(**chosen)

    def _run_mpi(self, case: Case) -> Run:
        words = ["analyze", self.kernel, case.trajectory, "--executor", "mpi", "--quiet"]
        words += ["--gather", case.gather, "--repeat", str(case.workload_x)]
        for option, value in (("-s", self.top), ("--select", self.select), ("--stop", self.stop)):
            words += [] if value is None else [option, str(value)]
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "timings.json"
            command = mpiexec_command(self.mpiexec, case.n_ranks, *words, "--timings", str(out))
            return told_by(command, out)


def _executor(case: Case) -> Executor:
    if case.executor == "dask":
        from mdio.parallel.dask_executor import DaskExecutor

        return DaskExecutor(n_workers=case.n_ranks)
    return Processes(case.n_ranks) if case.executor == "processes" else Serial()


def cases_of(
    trajectories: Sequence[str],
    executors: Sequence[str],
    gathers: Sequence[str],
    workloads: Sequence[int],
    n_ranks: Sequence[int],
) -> list[Case]:
    """Return all cases, by series; serial has one number of workers, and only MPI has gathers.

    Raises SourceError, UnknownLayoutError: a trajectory that cannot be read.
    """
    found = []
    for path in trajectories:
        with open_source(path) as layout:
            name = layout.info.layout
        for executor, x in itertools.product(executors, workloads):
            counts = sorted(set(n_ranks)) if executor != "serial" else [1]
            ways = gathers if executor == "mpi" else ["none"]
            found += [Case(path, name, executor, way, x, n) for way in ways for n in counts]
    return found


def run_all(
    study: Study, cases: Sequence[Case], repeats: int, tell: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    """Yield a record of each run: the case, the repeat, its timings."""
    for repeat in range(repeats):
        for case in cases:
            run = study.run(case)
            tell(
                f"{repeat + 1}/{repeats}  {case.series}, {plural(case.n_ranks, 'worker')}: "
                f"{run['t_total_s']:.4f} s"
            )
            yield {
                "bench": "scaling",
                "kernel": study.kernel,
                **asdict(case),
                "series": case.series,
                "repeat": repeat,
                "run": run,
            }


def summarise(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row a case: means and standard deviations over repeats, speed-up, efficiency.

    Returns list of dict: ``t_total_max_s`` (the slowest rank, mean over repeats) with
    ``t_total_std_s``; ``t_comp_mean_s``, ``t_io_mean_s``, ``t_open_mean_s``, ``t_comm_mean_s``
    (means over ranks and repeats) and ``t_comm_max_s``, each with ``_std``; ``seconds``;
    ``ratio_comp_io``; ``speedup`` = t_total(1) / t_total(N) and ``efficiency`` = speedup / N with
    their standard deviations. A series without a run on one worker is measured against its smallest
    number N0, as if it had scaled perfectly up to there: ``base_ranks``.
    """
    by_case: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for run in runs:
        by_case.setdefault((run["series"], run["n_ranks"]), []).append(run)
    rows = [_row(group) for group in by_case.values()]
    for row in rows:
        series = [other for other in rows if other["series"] == row["series"]]
        base = min(series, key=lambda other: int(other["n_ranks"]))
        mean, std = row["t_total_max_s"], row["t_total_std_s"]
        speedup = base["n_ranks"] * base["t_total_max_s"] / mean
        relative = (base["t_total_std_s"] / base["t_total_max_s"]) ** 2 + (std / mean) ** 2
        row["base_ranks"] = base["n_ranks"]
        row["speedup"], row["speedup_std"] = (
            speedup,
            0.0 if row is base else speedup * relative**0.5,
        )
        row["efficiency"] = speedup / row["n_ranks"]
        row["efficiency_std"] = row["speedup_std"] / row["n_ranks"]
    return sorted(rows, key=lambda row: (row["series"], row["n_ranks"]))


def _row(group: Sequence[dict[str, Any]]) -> dict[str, Any]:
    first = group[0]
    row = {name: first[name] for name in ("series", "kernel", *asdict(Case("", "", "", "", 0, 0)))}
    row["repeats"] = len(group)
    row["n_frames"] = first["run"]["n_frames"]
    row["seconds"], row["seconds_std"] = mean_and_std([run["run"]["seconds"] for run in group])
    totals = [run["run"]["t_total_s"] for run in group]
    row["t_total_max_s"], row["t_total_std_s"] = mean_and_std(totals)
    for name, key in {
        "t_comp": "t_comp_s",
        "t_io": "t_IO_s",
        "t_open": "t_opening_trajectory_s",
        "t_comm": "t_comm_s",
    }.items():
        means = [statistics.fmean(rank[key] for rank in run["run"]["ranks"]) for run in group]
        row[f"{name}_mean_s"], row[f"{name}_std_s"] = mean_and_std(means)
    row["t_comm_max_s"] = statistics.fmean(
        max(rank["t_comm_s"] for rank in run["run"]["ranks"]) for run in group
    )
    row["ratio_comp_io"] = row["t_comp_mean_s"] / row["t_io_mean_s"] if row["t_io_mean_s"] else None
    row["stragglers"] = statistics.fmean(len(run["run"]["stragglers"]) for run in group)
    return row


def write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write the rows of `summarise`, with the columns that ``mdio model fit`` needs among them."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
