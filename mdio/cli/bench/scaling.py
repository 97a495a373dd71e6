"""``mdio bench scaling``."""

from __future__ import annotations

import argparse
import sys

from mdio.analysis.pages.pictures import need_matplotlib
from mdio.benches.records import append_jsonl, make_folder
from mdio.benches.scaling import EXECUTORS, KERNELS, Study, cases_of, run_all, summarise, write_csv
from mdio.benches.scaling_pictures import save_scaling_page
from mdio.cli.bench import one_of, positives
from mdio.cli.shared.common import add, add_bench_output, positive, print_json
from mdio.parallel import GATHERS
from mdio.parallel.executors import available_cores


def _counts() -> str:
    cores = available_cores()
    powers = [1 << n for n in range(cores.bit_length()) if 1 << n <= cores]
    return ",".join(map(str, sorted({*powers, cores})))


def setup(parser: argparse.ArgumentParser) -> None:
    """Add the options of this bench."""
    add(parser, "trajectory TRAJ", "a series for each, any layout", nargs="+")
    add(parser, "-s --top FILE", "topology")
    add(parser, "--select SEL", "which atoms (default: all, or protein)")
    add(parser, "--stop N", "use the first N frames", positive)
    add(parser, "--kernel", "default: rmsd", choices=KERNELS, default="rmsd")
    add(
        parser,
        "--repeat X,X",
        "compute RMSD X times a frame; the papers have 1,40,70,100 (default: 1)",
        positives,
        default=[1],
    )
    add(
        parser,
        "-w --workers N,N",
        "numbers of workers or ranks (default: %(default)s)",
        positives,
        default=_counts(),
    )
    add(
        parser,
        "--executor E,E",
        f"of {', '.join(EXECUTORS)} (default: processes)",
        one_of(EXECUTORS),
        default="processes",
    )
    add(
        parser,
        "--gather G,G",
        f"with mpi, of {', '.join(GATHERS)} (default: blocking)",
        one_of(GATHERS),
        default="blocking",
    )
    add(parser, "--repeats N", "runs of each case (default: 5)", positive, default=5)
    add(parser, "--mpiexec CMD", "launcher of MPI programs, with options")
    add_bench_output(parser, "scaling", "scaling.jsonl, scaling.csv and scaling.html")


def run(args: argparse.Namespace) -> int:
    """Run all cases, save, print a table."""
    need_matplotlib("mdio bench scaling")
    folder = make_folder(args.out)
    study = Study(args.kernel, args.top, args.select, args.stop, args.mpiexec)
    cases = cases_of(args.trajectory, args.executor, args.gather, args.repeat, args.workers)
    silent = args.quiet or args.json

    def tell(line: str) -> None:
        if not silent:
            print(line, file=sys.stderr, flush=True)

    runs = []
    for record in run_all(study, cases, args.repeats, tell):
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
        print(f"{folder}: scaling.html, scaling.csv, scaling.jsonl")
    return 0
