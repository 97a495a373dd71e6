"""``mdio bench scaling``: how an analysis scales here."""

from __future__ import annotations

import argparse
import sys

from mdio.analysis.report import need_matplotlib
from mdio.analysis.scaling import (
    KERNELS,
    Study,
    append_jsonl,
    list_cases,
    make_folder,
    run_all,
    save_scaling_page,
    summarise,
    write_csv,
)
from mdio.cli.common import add, add_bench_output, names_among, positive, positives, print_json
from mdio.cli.workers import EXECUTORS
from mdio.core.errors import OutputError, PlanError
from mdio.parallel import GATHERS
from mdio.parallel.executors import available_cores


def _default_workers() -> str:
    cores = available_cores()
    powers = [1 << n for n in range(cores.bit_length()) if 1 << n <= cores]
    return ",".join(map(str, sorted({*powers, cores})))


def setup(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    benches = parser.add_subparsers(dest="bench", metavar="BENCH", required=True)
    text = "the same analysis on more and more workers: speed-up, efficiency, parts of the time"
    parser = benches.add_parser("scaling", help=text, description=f"T{text[1:]}.")
    add(parser, "trajectory TRAJ", "trajectories of any layout; each is one series", nargs="+")
    add(parser, "-s --top FILE", "topology")
    add(parser, "--select SEL", "which atoms (default: all; of dihedrals: protein)")
    add(parser, "--stop N", "use the first N frames", positive)
    add(parser, "--kernel", "default: rmsd", choices=KERNELS, default="rmsd")
    text = "compute RMSD X times for each frame; published studies: 1,40,70,100 (default: 1)"
    add(parser, "--repeat X,X", text, positives, default=[1])
    text = "numbers of workers or ranks (default: %(default)s)"
    add(parser, "-w --workers N,N", text, positives, default=_default_workers())
    text = f"any of {', '.join(EXECUTORS)} (default: processes)"
    add(parser, "--executor E,E", text, names_among(EXECUTORS), default="processes")
    text = f"with mpi, of {', '.join(GATHERS)} (default: blocking)"
    add(parser, "--gather G,G", text, names_among(GATHERS), default="blocking")
    add(parser, "--repeats N", "runs of each case (default: 5)", positive, default=5)
    add(parser, "--mpiexec CMD", "launcher of MPI programs, with options")
    add_bench_output(parser, "scaling", "scaling.jsonl, scaling.csv and scaling.html")
    add(parser, "--force", "replace the table and page of an earlier run in the same folder")


def run(args: argparse.Namespace) -> int:
    """Run all cases, save, print a table."""
    need_matplotlib("mdio bench scaling")
    if args.repeat != [1] and args.kernel != "rmsd":
        raise PlanError(f"--repeat is for --kernel rmsd, not for {args.kernel}; leave it out")
    folder = make_folder(args.out)
    existing = [name for name in ("scaling.csv", "scaling.html") if (folder / name).exists()]
    if existing and not args.force:
        raise OutputError(
            f"{folder}: has {' and '.join(existing)} of an earlier run; give another folder with "
            "-o, or --force to replace them (scaling.jsonl keeps the runs of both)"
        )
    study = Study(args.kernel, args.top, args.select, args.stop, args.mpiexec)
    cases = list_cases(
        args.trajectory, args.executor, args.gather, args.repeat, args.workers, args.top
    )
    is_silent = args.quiet or args.json

    def report(line: str) -> None:
        if not is_silent:
            print(line, file=sys.stderr, flush=True)

    runs = []
    for record in run_all(study, cases, args.repeats, report):
        append_jsonl(folder / "scaling.jsonl", [record])
        runs.append(record)
    rows = summarise(runs)
    write_csv(folder / "scaling.csv", rows)
    save_scaling_page(folder / "scaling.html", f"Scaling of {args.kernel}", rows, runs)
    if args.json:
        print_json({"out": str(folder), "rows": rows})
    elif not args.quiet:
        print("workers   t_total s      t_comp      t_IO    t_comm  comp/IO  speed-up  efficiency")
        for row in rows:
            if row["n_ranks"] == row["base_ranks"]:
                print(row["series"])
            ratio = row["ratio_comp_io"]
            print(
                f"{row['n_ranks']:7}{row['t_total_max_s']:9.4f} ± {row['t_total_std_s']:.4f}"
                f"{row['t_comp_mean_s']:10.4f}{row['t_io_mean_s']:10.4f}"
                f"{row['t_comm_mean_s']:10.4f}{'-' if ratio is None else f'{ratio:.2f}':>9}"
                f"{row['speedup']:7.2f} ± {row['speedup_std']:.2f}"
                f"{row['efficiency']:6.2f} ± {row['efficiency_std']:.2f}"
            )
        if (base := max(row["base_ranks"] for row in rows)) > 1:
            print(
                f"speed-up and efficiency are taken to be {base} and 1 with {base} workers, the "
                "fewest of -w; measure them with 1, too"
            )
        print(f"{folder}: scaling.html, scaling.csv, scaling.jsonl")
    return 0
