"""What ranks bring to conversions, on this machine: one command, a known time, a table.

Run it in the environment with MPI, on a quiet machine:
``.venv-mpi/bin/python bench/mpi/scaling.py SRC.xtc -s TOP --folder DIR``.

The source is listed as often as it takes for a job of 30 s on one rank. Runs that are compared are
neighbours in time; in every second round their order is turned round. Beside each job, as many
processes write the same number of bytes into new files in the same folder and do nothing else
(``control.py``): where that does not scale, neither can a conversion whose output is large.
Small outputs (rounded, compressed, a tenth of the atoms) show how the computing scales.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from mpi.control import control
from mpi.jobs import Job, calibrate, jobs, run
from mpi.summary import answers, table

import mdio
from mdio.analysis.scaling import append_jsonl, make_folder
from mdio.cli.common import parse_nbytes
from mdio.core.words import plural

RANKS = (1, 2, 4)
CALIBRATION_S = 90.0
"""Allowed for finding out how long the jobs have to be."""


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", metavar="SRC", help="XTC file")
    parser.add_argument("-s", "--top", help="topology, for the job with a tenth of the atoms")
    parser.add_argument("--folder", default="bench-output/mpi", help="where outputs are written")
    parser.add_argument("--seconds", type=float, default=30.0, help="a job on one rank (30)")
    parser.add_argument("--rounds", type=int, default=2, help="as far as there is time (2)")
    parser.add_argument("--minutes", type=float, default=24.0, help="most of all together (24)")
    parser.add_argument(
        "--most-nbytes",
        type=parse_nbytes,
        help="largest output, such as 6G (default: half of what disk and memory have free)",
    )
    parser.add_argument("--jobs", help="only those whose names begin so, separated by ;")
    parser.add_argument("--mpiexec", help="launcher of MPI programs, with options")
    parser.add_argument("--quick", action="store_true", help="a minute: short jobs, one round")
    return parser.parse_args()


def half_of_what_is_free(folder: Path) -> int:
    """Return half of what the disk has free or memory available, whichever is less."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    fields = dict(line.split(":") for line in lines)
    available = int(fields["MemAvailable"].split()[0]) * 1024
    return min(shutil.disk_usage(folder).free, available) // 2


def runs_of(job: Job, number: int, quick: bool) -> list[tuple[str, int]]:
    """Return the (way, processes) of one round, what is compared side by side."""
    alone = [("alone", 1)] if job.kind == "raw" else []
    ranks = RANKS[:2] if quick else RANKS
    runs = [*alone, *(("mpi", n) for n in ranks), *(("control", n) for n in ranks)]
    return runs if number % 2 == 0 else runs[::-1]


class Measuring:
    """The runs of all jobs, written down as they end."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self.args, self.folder = args, folder
        self.begun = time.perf_counter()
        self.records: list[dict[str, Any]] = []
        self.cores = len(os.sched_getaffinity(0))

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.begun

    def calibrated(self, wanted: list[Job]) -> list[Job]:
        """Return the jobs with their lengths; those that fail are told of and left out."""
        most = self.args.most_nbytes or half_of_what_is_free(self.folder)
        found = []
        for job in wanted:
            try:
                found.append(
                    calibrate(
                        job,
                        self.args.source,
                        self.folder,
                        self.args.mpiexec,
                        seconds=self.args.seconds,
                        most_nbytes=most,
                        most_s=CALIBRATION_S,
                    )
                )
            except RuntimeError as error:
                print(f"left out: {error}", flush=True)
                continue
            one = found[-1]
            print(
                f"  {one.name}: the source {one.copies} times, about {one.one_rank_s:.0f} s and "
                f"{one.nbytes / 1e9:.2f} GB on one rank",
                flush=True,
            )
        return found

    def round(self, number: int, all_jobs: list[Job]) -> None:
        """Run every job once in every way; those for which there is no time left are told of."""
        for job in all_jobs:
            runs = runs_of(job, number, self.args.quick)
            needed = job.estimate(runs, self.cores)
            if self.elapsed_s + needed > 60 * self.args.minutes:
                print(f"round {number + 1}: no time left for {job.name}", flush=True)
                continue
            for way, n in runs:
                self._run(job, way, n, number)

    def _run(self, job: Job, way: str, n: int, number: int) -> None:
        left = 60 * self.args.minutes - self.elapsed_s
        load = os.getloadavg()[0]
        if way == "control":
            found: dict[str, Any] = control(self.folder, n, job.nbytes, sync=job.syncs)
            found["nbytes"] = job.nbytes
        else:
            found = run(
                job, way, n, self.args.source, self.folder, self.args.mpiexec, max(left, 5.0)
            )
        record = {
            "bench": "mpi_scaling",
            "job": job.name,
            "kind": job.kind,
            "way": way,
            "n": n,
            "copies": job.copies,
            "round": number,
            "load": load,
            **found,
        }
        self.records.append(record)
        append_jsonl(self.folder / "mpi_scaling.jsonl", [record])
        said = found.get("failed") or (
            f"{found['write_s']:.2f} s, user {found['user_s']:.1f} s, sys {found['sys_s']:.1f} s"
        )
        print(f"  {self.elapsed_s:5.0f} s: {job.name}, {way} {n}: {said}", flush=True)


def main() -> int:
    args = parse()
    if args.quick:
        args.seconds, args.rounds = min(args.seconds, 1.0), 1
    folder = make_folder(args.folder)
    measuring = Measuring(args, folder)
    print(f"{measuring.cores} cores, load average {os.getloadavg()[0]:.1f}", flush=True)
    with mdio.open(args.source) as source:
        wanted = jobs(source.info.n_atoms, args.top, args.quick)
    if args.jobs:
        wanted = [job for job in wanted if job.name.startswith(tuple(args.jobs.split(";")))]
    print(f"how long are the jobs? (at most {args.minutes:g} minutes for all)", flush=True)
    found = measuring.calibrated(wanted)
    each = sum(job.estimate(runs_of(job, 0, args.quick), measuring.cores) for job in found)
    total = measuring.elapsed_s + args.rounds * each
    print(
        f"a round takes about {each / 60:.1f} minutes; {plural(args.rounds, 'round')}, "
        f"{min(total / 60, args.minutes):.1f} minutes in all, never more than {args.minutes:g}",
        flush=True,
    )
    for number in range(args.rounds):
        measuring.round(number, found)
    lines = [*table(measuring.records, RANKS), "", *answers(measuring.records)]
    (folder / "mpi_scaling.md").write_text("\n".join(lines) + "\n")
    print("\n".join(["", *lines, ""]))
    print(
        f"{measuring.elapsed_s / 60:.1f} minutes, load average {os.getloadavg()[0]:.1f}; "
        f"{folder}: mpi_scaling.jsonl, mpi_scaling.md"
    )
    return 0 if measuring.records else 1


if __name__ == "__main__":
    sys.exit(main())
