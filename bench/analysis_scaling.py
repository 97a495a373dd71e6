"""Two workers against one, and what a run costs that has next to nothing to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import adk
from analysis_cases import SELECT, quiet_universe
from measuring import in_turn

import mdio
from mdio.parallel.dask_executor import DaskExecutor

X_FOLD = 100
N_PILOT = 16
"""Files of the run that tells how many are needed."""
EFFICIENCY = 0.9
APART = "control: programs that know nothing of each other"
MPI_PYTHON = Path(__file__).parent.parent / ".venv-mpi/bin/python"
IMPORTS = "from mpi4py import MPI; import mdio.cli.main, mdio.cli.analyze, mdio.cli.workers, "
IMPORTS += "mdio.layouts.zarr.layout, mdio.layouts.zarr.own"
"""What a run under MPI imports."""

Record = dict[str, Any]


def mpiexec(n_ranks: int, *words: str, launcher: str = "mpiexec") -> None:
    """Run a program of ranks in the environment that has MPI; raises CalledProcessError."""
    beside = MPI_PYTHON.parent / launcher
    command = [str(beside) if beside.exists() else launcher, "-n", str(n_ranks), str(MPI_PYTHON)]
    subprocess.run([*command, *words], check=True, stdin=subprocess.DEVNULL)


def has_mpi() -> bool:
    """Return whether there is an environment with MPI."""
    return MPI_PYTHON.exists()


def in_process(executor: Any, paths: list[str], repeat: int) -> Callable[[], float]:
    """Return a job on workers of this process."""
    top = quiet_universe(adk.topology())
    kernel = mdio.RMSD(select=SELECT, repeat=repeat)
    return lambda: mdio.analyze(paths, top=top, kernel=kernel, executor=executor).seconds


def on_ranks(n_ranks: int, paths: list[str], repeat: int) -> Callable[[], float]:
    """Return a job that is an MPI program; what it says of itself leaves its imports out."""

    def run() -> float:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "timings.json"
            words = ["-m", "mdio.cli.main", "analyze", "rmsd", *paths, "-s", str(adk.topology())]
            words += ["--select", SELECT, "--repeat", str(repeat), "--executor", "mpi", "--quiet"]
            mpiexec(n_ranks, *words, "--timings", str(out))
            return float(json.loads(out.read_text())["seconds"])

    return run


def programs_apart(n_programs: int, paths: list[str], repeat: int) -> Callable[[], float]:
    """Return what tells how far this machine's cores help each other at all.

    So many programs run side by side, each serially over its share of the files; the longest one's
    own time counts. They have nothing to wait for but the machine.
    """

    def run() -> float:
        with tempfile.TemporaryDirectory() as folder:
            outs = [Path(folder) / f"timings{number}.json" for number in range(n_programs)]
            running = []
            for number, out in enumerate(outs):
                words = ["-m", "mdio.cli.main", "analyze", "rmsd", *paths[number::n_programs]]
                words += ["-s", str(adk.topology()), "--select", SELECT, "--repeat", str(repeat)]
                words += ["--executor", "serial", "--quiet", "--timings", str(out)]
                running.append(subprocess.Popen([sys.executable, *words]))
            if any(program.wait() for program in running):
                raise RuntimeError("a program of the control failed")
            return max(float(json.loads(out.read_text())["seconds"]) for out in outs)

    return run


def n_files_for(seconds: float, path: Path, repeat: int) -> int:
    """Return how often to list a file so that one worker has work for so long."""
    with mdio.Processes(1) as executor:
        job = in_process(executor, [str(path)] * N_PILOT, repeat)
        job()
        return max(2, round(N_PILOT * seconds / job()))


def scaling(path: Path, seconds: float, repeats: int, tell: Callable[[str], None]) -> list[Record]:
    """Time one and two workers of each executor, plain RMSD and the X-fold workload.

    The file is listed as often as the work needs, as the papers tiled theirs: nothing is written.
    """
    found = []
    for repeat in (1, X_FOLD):
        paths = [str(path)] * n_files_for(seconds, path, repeat)
        with DaskExecutor(n_workers=1) as one, DaskExecutor(n_workers=2) as two:
            jobs: dict[tuple[str, int], Callable[[], float]] = {
                ("processes", 1): in_process(mdio.Processes(1), paths, repeat),
                ("processes", 2): in_process(mdio.Processes(2), paths, repeat),
                ("dask", 1): in_process(one, paths, repeat),
                ("dask", 2): in_process(two, paths, repeat),
                (APART, 1): programs_apart(1, paths, repeat),
                (APART, 2): programs_apart(2, paths, repeat),
            }
            if has_mpi():
                jobs |= {("mpi", n): on_ranks(n, paths, repeat) for n in (1, 2)}
            for executor in (one, two):  # the cluster's start is not scaling
                mdio.analyze(str(path), kernel=mdio.RMSD(), stop=100, executor=executor)
            taken: dict[tuple[str, int], list[float]] = {key: [] for key in jobs}
            for _ in range(repeats):
                for key, job in jobs.items():
                    taken[key].append(job())
                    tell(f"{repeat}-fold, {key[1]} of {key[0]}: {taken[key][-1]:.1f} s")
        for name in dict.fromkeys(name for name, _ in jobs):
            one_s, two_s = sorted(taken[name, 1]), sorted(taken[name, 2])
            middle = repeats // 2
            found.append(
                {
                    "workload": f"{repeat}-fold RMSD",
                    "executor": name,
                    "n_files": len(paths),
                    "one_s": one_s,
                    "two_s": two_s,
                    "efficiency": one_s[middle] / two_s[middle] / 2,
                    "efficiency_of_least": one_s[0] / two_s[0] / 2,
                    "load": os.getloadavg()[0],
                }
            )
    return found


def overheads(zarr: Path, repeats: int) -> list[Record]:
    """Time runs of two workers over a hundred frames."""
    kernel = mdio.RMSD()

    def tiny(executor: Any) -> None:
        mdio.analyze(zarr, group="ca", kernel=kernel, stop=100, executor=executor)

    def ranks() -> None:
        words = ["-m", "mdio.cli.main", "analyze", "rmsd", str(zarr), "--group", "ca"]
        mpiexec(2, *words, "--stop", "100", "--executor", "mpi", "--quiet")

    cases: dict[str, Callable[[], Any]] = {
        "serial": lambda: tiny(mdio.Serial()),
        "processes": lambda: tiny(mdio.Processes(2)),
    }
    if has_mpi():
        cases["mpi, imports alone"] = lambda: mpiexec(2, "-c", IMPORTS)
        cases["mpi, with imports"] = ranks
    tiny(mdio.Serial())
    taken = in_turn(cases, repeats)
    begun = time.perf_counter()
    with DaskExecutor(n_workers=2) as executor:
        _ = executor.client
        started = time.perf_counter()
        tiny(executor)
        first = time.perf_counter()
        again = in_turn({"dask, again": lambda: tiny(executor)}, repeats)
    taken["dask, starting its cluster"] = [started - begun]
    taken["dask, first run on it"] = [first - started]
    taken.update(again)
    if has_mpi():
        pairs = zip(taken["mpi, with imports"], taken["mpi, imports alone"], strict=True)
        taken["mpi, beyond imports"] = [run - imports for run, imports in pairs]
    wanted = {"processes": 1.5, "mpi, beyond imports": 1.5, "dask, first run on it": 0.5}
    return [
        {"run": name, "seconds": sorted(seconds), "wanted_s": wanted.get(name)}
        for name, seconds in taken.items()
    ]
