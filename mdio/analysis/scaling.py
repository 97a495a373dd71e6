"""Measures strong scaling: the same analysis on more and more workers, with the papers' components.

A series is one trajectory (and so one layout), executor, gather and workload; its cases differ in
the number of workers. Each repeat runs all cases, so that a drifting machine affects all alike.
"""

from __future__ import annotations

import itertools
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from os import PathLike
from pathlib import Path
from typing import Any

from mdio.analysis import results
from mdio.analysis.driver import analyze
from mdio.analysis.kernels.kernel import FORMER_NAMES, find_kernel
from mdio.analysis.plots import over_ranks, t_comm_distributions
from mdio.analysis.report import components, save_page
from mdio.converters.selection import open_with_topology
from mdio.core.errors import BlockError, MissingExtraError, OutputError
from mdio.core.pages import picture, section, table
from mdio.core.timing import timing_record
from mdio.core.words import plural
from mdio.parallel.executors import Executor, Processes, Serial, available_cores

PACKAGES = ("mdio-layouts", "MDAnalysis", "numpy", "h5py", "zarr", "mpi4py", "distributed")


def provenance() -> dict[str, Any]:
    """Return date, machine and versions, for the record of a measurement."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": platform.machine(),
        "cores": available_cores(),
        "python": platform.python_version(),
        "versions": versions,
    }


def make_folder(path: str | Path) -> Path:
    """Return the folder for a bench's outputs, made if need be."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder}: cannot be made ({error.strerror}); choose another") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OutputError(f"{folder}: is not writable; choose another folder")
    return folder


def append_jsonl(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """Append records, each with its provenance, to a file of JSON lines."""
    origin = provenance()
    with path.open("a", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps({**record, "provenance": origin}) + "\n")


def mean_and_std(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the standard deviation of a sample (0 for a single value)."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def run_for_json(command: Sequence[str], file: Path | None = None) -> dict[str, Any]:
    """Run a program, and return the JSON object that it prints, or writes to `file`."""
    process = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    with suppress(ValueError, OSError):
        if not process.returncode:
            output: dict[str, Any] = json.loads(
                process.stdout if file is None else file.read_text()
            )
            return output
    stderr = " ".join(process.stderr.split()) or "no message"
    raise BlockError(f"{' '.join(command)} failed ({process.returncode}): {stderr}")


MDIO = ("-m", "mdio.cli.main")
"""Arguments with which Python runs ``mdio``."""


def mpiexec_command(
    mpiexec: str | None, n_ranks: int, *arguments: str, program: Sequence[str] = MDIO
) -> list[str]:
    """Return the command line that runs a Python `program` with `arguments` on `n_ranks` ranks.

    `mpiexec`: the launcher with its options, such as ``srun --mpi=pmi2``; by default the
    ``mpiexec`` beside this Python, or else on PATH.
    """
    name, *options = (mpiexec or "").split() or ["mpiexec"]
    folder = str(Path(sys.executable).parent)
    path = shutil.which(name, path=folder) or shutil.which(name)
    if path is None:
        raise MissingExtraError(
            f"this bench starts MPI programs and finds no {name}; make mpi builds an "
            "environment that has one (.venv-mpi), or name another: --mpiexec"
        )
    return [path, *options, "-n", str(n_ranks), sys.executable, *program, *arguments]


KERNELS = ("rmsd", "dihedrals", "distances")


@dataclass(frozen=True, slots=True)
class Case:
    """One point of a scaling curve."""

    trajectory: str
    layout: str
    executor: str
    gather: str
    workload_x: int
    n_ranks: int

    def series_of(self, name: str) -> str:
        """Return the label of its curve in pictures if its trajectory is called `name`."""
        words = [self.layout, name, self.executor]
        words += [self.gather] if self.executor == "mpi" else []
        return ", ".join([*words, f"{self.workload_x}x"])


@dataclass(frozen=True, slots=True)
class Study:
    """The analysis that all cases run."""

    kernel: str = "rmsd"
    top: str | None = None
    select: str | None = None
    stop: int | None = None
    mpiexec: str | None = None

    def run(self, case: Case) -> dict[str, Any]:
        """Run one case once; return its record of timings."""
        if case.executor == "mpi":
            return self._run_mpi(case)
        arguments: dict[str, Any] = {} if self.select is None else {"select": self.select}
        arguments |= {"repeat": case.workload_x} if self.kernel == "rmsd" else {}
        kernel = find_kernel(FORMER_NAMES.get(self.kernel, self.kernel))(**arguments)
        with _executor(case) as executor:
            executor.map(abs, range(2 * executor.n_workers))  # a cluster's start is not scaling
            return timing_record(
                analyze(
                    case.trajectory, kernel=kernel, top=self.top, executor=executor, stop=self.stop
                )
            )

    def _run_mpi(self, case: Case) -> dict[str, Any]:
        words = ["analyze", self.kernel, case.trajectory, "--executor", "mpi", "--quiet"]
        words += ["--gather", case.gather, "--repeat", str(case.workload_x)]
        for option, value in (("-s", self.top), ("--select", self.select), ("--stop", self.stop)):
            words += [] if value is None else [option, str(value)]
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "timings.json"
            command = mpiexec_command(self.mpiexec, case.n_ranks, *words, "--timings", str(out))
            return run_for_json(command, out)


def _executor(case: Case) -> Executor:
    if case.executor == "dask":
        from mdio.parallel.dask_executor import DaskExecutor

        return DaskExecutor(n_workers=case.n_ranks)
    return Processes(case.n_ranks) if case.executor == "processes" else Serial()


def list_cases(
    trajectories: Sequence[str],
    executors: Sequence[str],
    gathers: Sequence[str],
    workloads: Sequence[int],
    n_ranks: Sequence[int],
    top: str | None = None,
) -> list[Case]:
    """Return all cases, by series; serial has one number of workers, and only MPI has gathers."""
    cases = []
    for path in trajectories:
        with open_with_topology(path, top) as layout:
            name = layout.info.layout
        for executor, workload_x in itertools.product(executors, workloads):
            counts = sorted(set(n_ranks)) if executor != "serial" else [1]
            own_gathers = gathers if executor == "mpi" else ["none"]
            cases += [
                Case(path, name, executor, gather, workload_x, count)
                for gather, count in itertools.product(own_gathers, counts)
            ]
    return cases


def run_all(
    study: Study, cases: Sequence[Case], repeats: int, report: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    """Yield a record of each run: the case, the repeat, its timings.

    Trajectories with equal names are called by their whole paths.
    """
    names = [Path(path).name for path in {case.trajectory for case in cases}]
    for repeat in range(repeats):
        for case in cases:
            name = Path(case.trajectory).name
            series = case.series_of(name if names.count(name) == 1 else case.trajectory)
            run = study.run(case)
            report(
                f"{repeat + 1}/{repeats}  {series}, {plural(case.n_ranks, 'worker')}: "
                f"{run['t_total_s']:.4f} s"
            )
            yield {
                "bench": "scaling",
                "kernel": study.kernel,
                **asdict(case),
                "series": series,
                "repeat": repeat,
                "run": run,
            }


def summarise(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each case: means and standard deviations over repeats, speed-up, efficiency.

    Returns list of dict: ``t_total_max_s`` (the slowest rank, mean over repeats) with
    ``t_total_std_s``; ``t_comp_mean_s``, ``t_io_mean_s``, ``t_open_mean_s``, ``t_comm_mean_s``
    (means over ranks and repeats), with ``t_comp_std_s`` and so on; ``t_comm_max_s``; ``seconds``;
    ``ratio_comp_io``; ``speedup`` = t_total(1) / t_total(N) and ``efficiency`` = speedup / N with
    their standard deviations. A series without a run on one worker is measured against its smallest
    number N0, as if it had scaled perfectly up to there: ``base_ranks``.
    """
    runs_by_case: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for run in runs:
        runs_by_case.setdefault((run["series"], run["n_ranks"]), []).append(run)
    rows = [_row(group) for group in runs_by_case.values()]
    for row in rows:
        series = [other for other in rows if other["series"] == row["series"]]
        base = min(series, key=lambda other: int(other["n_ranks"]))
        mean, std = row["t_total_max_s"], row["t_total_std_s"]
        speedup = base["n_ranks"] * base["t_total_max_s"] / mean
        relative_variance = (base["t_total_std_s"] / base["t_total_max_s"]) ** 2 + (std / mean) ** 2
        row["base_ranks"] = base["n_ranks"]
        row["speedup"] = speedup
        row["speedup_std"] = 0.0 if row is base else speedup * relative_variance**0.5
        row["efficiency"] = speedup / row["n_ranks"]
        row["efficiency_std"] = row["speedup_std"] / row["n_ranks"]
    return sorted(rows, key=lambda row: (row["series"], row["n_ranks"]))


def _row(group: Sequence[dict[str, Any]]) -> dict[str, Any]:
    first = group[0]
    row = {name: first[name] for name in ("series", "kernel", *asdict(Case("", "", "", "", 0, 0)))}
    row["repeats"] = len(group)
    row["n_frames"] = first["run"]["n_frames"]
    row["nbytes"] = first["run"]["nbytes_source"] or None
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
    """Write the rows of `summarise`, and the cores of this machine, for ``mdio model fit``."""
    cores = available_cores()
    with path.open("wb") as file:
        results.write_csv(file, [*rows[0], "cores"], ((*row.values(), cores) for row in rows))


LINES = {
    "t_total (slowest)": ("t_total_max_s", "t_total_std_s"),
    "t_IO": ("t_io_mean_s", "t_io_std_s"),
    "t_comp": ("t_comp_mean_s", "t_comp_std_s"),
    "t_comm": ("t_comm_mean_s", "t_comm_std_s"),
    "t_opening": ("t_open_mean_s", "t_open_std_s"),
}
"""Keys of the means and standard deviations of a curve."""
COLUMNS = (
    *(("workers", "n_ranks"), ("t_total, s", "t_total_max_s"), ("±", "t_total_std_s")),
    *(("t_comp, s", "t_comp_mean_s"), ("t_IO, s", "t_io_mean_s"), ("t_open, s", "t_open_mean_s")),
    *(("t_comm, s", "t_comm_mean_s"), ("t_comp/t_IO", "ratio_comp_io")),
    *(("speed-up", "speedup"), ("±", "speedup_std")),
    *(("efficiency", "efficiency"), ("±", "efficiency_std"), ("seconds", "seconds")),
)
"""Headings of the table, and the keys of their numbers."""
BANDS = "Bands: standard deviation over repeats."


def save_scaling_page(
    path: str | PathLike[str],
    title: str,
    rows: Sequence[dict[str, Any]],
    runs: Sequence[dict[str, Any]],
) -> None:
    """Write tables and pictures of a scaling bench as one HTML file."""
    headings, keys = zip(*COLUMNS, strict=True)
    rows_by_series: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        rows_by_series.setdefault(row["series"], []).append(row)
    counts = sorted({row["n_ranks"] for row in rows})
    pictures = []
    for key, heading, exponent in (
        ("speedup", "Speed-up t_total(1) / t_total(N)", 1),
        ("efficiency", "Efficiency: speed-up / N", 0),
    ):
        lines = {name: _curve(series, key, f"{key}_std") for name, series in rows_by_series.items()}
        ideal = [float(count**exponent) for count in counts]
        lines["ideal"] = list(zip(counts, ideal, ideal, ideal, strict=True))
        pictures.append(picture(over_ranks(lines, heading, key), BANDS))
    parts = [section("All series", *pictures)]
    for name, series in rows_by_series.items():
        own_runs = [run for run in runs if run["series"] == name]
        largest = series[-1]["n_ranks"]
        last = next(run for run in reversed(own_runs) if run["n_ranks"] == largest)
        t_comm: dict[str, list[float]] = {}
        for run in sorted(own_runs, key=lambda run: int(run["n_ranks"])):
            ranks = t_comm.setdefault(plural(run["n_ranks"], "worker"), [])
            ranks += [rank["t_comm_s"] for rank in run["run"]["ranks"]]
        parts.append(
            section(
                name,
                table(headings, [[row[key] for key in keys] for row in series]),
                picture(
                    over_ranks(
                        {
                            line: _curve(series, key, std)
                            for line, (key, std) in LINES.items()
                            if any(row[key] for row in series)
                        },
                        "Components over workers",
                        "time",
                        in_seconds=True,
                    ),
                    "Means over ranks and repeats.",
                ),
                picture(
                    components(last["run"]["ranks"], f"Each of {largest} workers"),
                    "The last repeat.",
                ),
                picture(
                    t_comm_distributions(t_comm, "t_comm of all ranks"), "All ranks of all repeats."
                ),
            )
        )
    save_page(path, title, parts)


def _curve(
    rows: Sequence[dict[str, Any]], key: str, std: str
) -> list[tuple[int, float, float, float]]:
    return [(row["n_ranks"], row[key], row[key] - row[std], row[key] + row[std]) for row in rows]
