"""Large results: cosines and sines of phi and psi of 212 residues, 6.8 kB a frame, of tiled ADK.

``python bench/analysis_large.py`` prints a table in Markdown: what serial runs, worker processes
and, where .venv-mpi is, ranks take for the same frames, and how their values come together. The
file is listed as often as --times says; values of processes are compared with serial ones. Run in
turn, least and median of --repeats; user and system CPU are those of the run with the least wall
time, for ranks with their imports.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import adk
import numpy as np
from analysis_cases import quiet_universe
from analysis_scaling import has_mpi, mpiexec
from peers.runner import RUSAGE_CHILDREN, RUSAGE_SELF, resource

import mdio

Run = Callable[[], tuple[float, np.ndarray | None]]


def cpu_seconds() -> tuple[float, float]:
    """Return user and system CPU time of this process and of those that it has ended."""
    used = [resource.getrusage(who) for who in (RUSAGE_SELF, RUSAGE_CHILDREN)]
    return sum(one.ru_utime for one in used), sum(one.ru_stime for one in used)


def in_process(paths: list[str], executor: mdio.Serial | mdio.Processes) -> Run:
    """Return a run on workers of this process."""
    top, kernel = quiet_universe(adk.topology()), mdio.Dihedrals()

    def run() -> tuple[float, np.ndarray]:
        result = mdio.analyze(paths, top=top, kernel=kernel, executor=executor)
        return result.seconds, result.values

    return run


def on_ranks(paths: list[str], n_ranks: int) -> Run:
    """Return a run as an MPI program; what it says of itself leaves its imports out."""

    def run() -> tuple[float, None]:
        with tempfile.TemporaryDirectory() as folder:
            timings = Path(folder) / "t.json"
            words = ["-W", "ignore", "-m", "mdio.cli.main", "analyze", "dihedrals", *paths]
            words += ["-s", str(adk.topology()), "--executor", "mpi", "--quiet"]
            mpiexec(n_ranks, *words, "--timings", str(timings))
            return float(json.loads(timings.read_text())["seconds"]), None

    return run


def main() -> int:
    """Measure, compare, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tiles", type=int, default=200, help="copies of the 98 frames in a file")
    parser.add_argument("--times", type=int, default=6, help="how often the file is listed")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path("bench-output/data"))
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    paths = [str(adk.tiled(args.folder, args.tiles))] * args.times
    runs = {
        "serial": in_process(paths, mdio.Serial()),
        "1 process": in_process(paths, mdio.Processes(1)),
        "2 processes": in_process(paths, mdio.Processes(2)),
    }
    if has_mpi():
        runs |= {f"{n} ranks": on_ranks(paths, n) for n in (1, 2)}
    taken: dict[str, list[tuple[float, float, float]]] = {name: [] for name in runs}
    print(f"load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    for _ in range(args.repeats):
        expected = None
        for name, run in runs.items():
            user, system = cpu_seconds()
            begun = time.perf_counter()
            seconds, values = run()
            wall = time.perf_counter() - begun
            after = cpu_seconds()
            taken[name].append((seconds, after[0] - user, after[1] - system))
            print(f"{name}: {seconds:.2f} s (with all else {wall:.2f} s)", file=sys.stderr)
            if expected is None:
                expected = values
            elif values is not None and not np.array_equal(values, expected):
                raise RuntimeError(f"{name} has other values than serial")
            del values
        n_frames, nbytes = len(expected), expected.nbytes
    print(f"**{n_frames:,} frames, {nbytes / 1e6:,.0f} MB of values**, s\n")
    print("| run | least | median | user CPU | system CPU | times serial |")
    print("| --- | --- | --- | --- | --- | --- |")
    serial = min(taken["serial"])[0]
    for name, found in taken.items():
        least, user, system = min(found)
        median = statistics.median(seconds for seconds, _, _ in found)
        ratio = serial / least
        print(f"| {name} | {least:.2f} | {median:.2f} | {user:.2f} | {system:.2f} | {ratio:.2f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
