"""The block-analysis driver beside its peers: kernel, end to end, two workers, fixed costs.

``python bench/analysis.py`` prints tables in Markdown and appends all to
bench-output/analysis.jsonl as JSON lines. Cases of one table run in turn; figures are microseconds
a frame, from opening a trajectory until all values are there, files in the page cache, imports done
and topologies read on both sides. ``--seconds 30`` is how long one worker of the scaling table
shall have to do; ``--only`` names tables: kernel, rmsd, dihedrals, overhead, scaling.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import analysis_cases as cases
import analysis_scaling
from measuring import append_jsonl

NO_GMX = "no gmx: apt-get install gromacs"
TABLES = ("kernel", "rmsd", "dihedrals", "overhead", "scaling")

Record = dict[str, Any]


def gmx_version() -> str:
    """Return what ``gmx --version`` calls itself."""
    told = subprocess.run(["gmx", "--version"], capture_output=True, text=True, check=True).stdout
    lines = [line for line in told.splitlines() if line.startswith("GROMACS version")]
    return f"GROMACS {lines[0].split()[-1]}"


def timed(section: cases.Section, repeats: int) -> list[Record]:
    """Run all cases in turn, and return a record of each."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in section.cases}
    for _ in range(repeats):
        for name, case in section.cases.items():
            user, begun = cases.user_seconds(), time.perf_counter()
            told = case()
            seconds = time.perf_counter() - begun
            user = cases.user_seconds() - user
            if isinstance(told, dict):  # a program, timed without its start
                seconds, user = told["seconds"], told["cpu_seconds"]
            taken[name].append((seconds, user))
    found = []
    for name, times in taken.items():
        per_frame = 1e6 / section.n_frames
        walls = [wall * per_frame for wall, _ in times]
        found.append(
            {
                "bench": "analysis",
                "section": section.title,
                "case": name,
                "n_frames": section.n_frames,
                "us_per_frame": {"median": statistics.median(walls), "min": min(walls)},
                "user_us_per_frame": statistics.median(user for _, user in times) * per_frame,
            }
        )
    return found


def table_of(section: cases.Section, records: list[Record]) -> str:
    """Return the table of a section, and what each target has come to."""
    lines = [f"**{section.title}**, us/frame", ""]
    lines += ["| case | median | least | user CPU | against | ratio | wanted |"]
    lines += ["| --- | --- | --- | --- | --- | --- | --- |"]
    medians = {record["case"]: record["us_per_frame"]["median"] for record in records}
    for record in records:
        own = record["us_per_frame"]
        figures = f"{own['median']:.2f} | {own['min']:.2f} | {record['user_us_per_frame']:.2f}"
        targets = [target for target in section.targets if target.case == record["case"]]
        record["ratios"] = {}
        rows = []
        for target in targets:
            if target.peer not in medians:
                rows.append(f"{target.peer}: not measured |  | {target.factor:g}x")
                continue
            ratio = medians[target.peer] / own["median"]
            record["ratios"][target.peer] = ratio
            wanted = f"{target.factor:g}x" if target.factor else ""
            wanted = f"{target.below_us:g} us" if target.below_us else wanted
            rows.append(f"{target.peer} | {ratio:.1f}x | {wanted}")
        lines.append(f"| {record['case']} | {figures} | {rows[0] if rows else ' |  | '} |")
        lines += [f"|  |  |  |  | {row} |" for row in rows[1:]]
    return "\n".join(lines) + "\n"


def scaling_table(records: list[Record], seconds: float) -> str:
    """Return the table of two workers against one."""
    lines = [f"**Two workers against one**, jobs of about {seconds:g} s with one", ""]
    lines += ["| workload | executor | one, s | two, s | efficiency | of the least | wanted |"]
    lines += ["| --- | --- | --- | --- | --- | --- | --- |"]
    for one in records:
        medians = (statistics.median(one[key]) for key in ("one_s", "two_s"))
        walls = " | ".join(f"{wall:.2f}" for wall in medians)
        control = one["executor"] == analysis_scaling.APART
        wanted = "" if control else f"above {analysis_scaling.EFFICIENCY}"
        lines.append(
            f"| {one['workload']} | {one['executor']} | {walls} | {one['efficiency']:.2f} | "
            f"{one['efficiency_of_least']:.2f} | {wanted} |"
        )
    return "\n".join(lines) + "\n"


def overhead_table(records: list[Record]) -> str:
    """Return the table of runs that have next to nothing to do."""
    lines = ["**Two workers, 100 frames**, s", "", "| run | median | least | wanted |"]
    lines += ["| --- | --- | --- | --- |"]
    for one in records:
        wanted = f"below {one['wanted_s']}" if one["wanted_s"] else ""
        median = statistics.median(one["seconds"])
        lines.append(f"| {one['run']} | {median:.2f} | {one['seconds'][0]:.2f} | {wanted} |")
    return "\n".join(lines) + "\n"


def single_process(
    wanted: list[str], folder: Path, tiles: list[int], repeats: int, with_gmx: bool
) -> list[Record]:
    """Print and return what one core does."""
    everywhere = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(everywhere)})  # the first core serves more interrupts
    sections = [cases.kernel_alone(folder)] if "kernel" in wanted else []
    for n in tiles:
        files = cases.Files.make(folder, n)
        if {"rmsd", "dihedrals"} & set(wanted):
            cases.check(files)
        sections += [cases.rmsd_end_to_end(files, with_gmx)] if "rmsd" in wanted else []
        sections += [cases.dihedrals_end_to_end(files)] if "dihedrals" in wanted else []
    records = []
    for section in sections:
        found = timed(section, repeats)
        print(table_of(section, found), flush=True)
        records += found
    os.sched_setaffinity(0, everywhere)
    return records


def main() -> int:
    """Measure, print, append."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tiles", default="50", help="copies of the 98 frames: 50,200")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=30, help="of one worker (scaling)")
    parser.add_argument("--scaling-repeats", type=int, default=1)
    parser.add_argument("--only", default=",".join(TABLES), help=f"of {','.join(TABLES)}")
    parser.add_argument("--quick", action="store_true", help="few frames, no figures to keep")
    parser.add_argument("--folder", type=Path, default=Path("bench-output"))
    args = parser.parse_args()
    wanted = args.only.split(",")
    if unknown := set(wanted) - set(TABLES):
        parser.error(f"no table is called {', '.join(sorted(unknown))}")
    tiles = [int(n) for n in args.tiles.split(",")]
    if args.quick:
        tiles, args.repeats, args.seconds, args.scaling_repeats = [10], 2, 1.0, 1
    warnings.simplefilter("ignore")
    data = args.folder / "data"
    has_gmx = shutil.which("gmx") is not None
    print(f"load {os.getloadavg()[0]:.1f}, {gmx_version() if has_gmx else NO_GMX}\n")
    records = single_process(wanted, data, tiles, args.repeats, has_gmx)
    files = cases.Files.make(data, tiles[0])
    if "overhead" in wanted:
        found = analysis_scaling.overheads(files.grouped["zarr"], args.repeats)
        print(overhead_table(found), flush=True)
        records += [{"bench": "analysis", "section": "overhead", **one} for one in found]
    if "scaling" in wanted:
        found = analysis_scaling.scaling(
            files.xtc, args.seconds, args.scaling_repeats, lambda text: print(text, file=sys.stderr)
        )
        print(scaling_table(found, args.seconds), flush=True)
        records += [{"bench": "analysis", "section": "scaling", **one} for one in found]
    append_jsonl(args.folder / "analysis.jsonl", records)
    print(f"load at the end {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
