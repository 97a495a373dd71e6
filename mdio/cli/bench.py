"""``mdio bench``: how an analysis scales here, and what Darshan counted in a run."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from mdio.analysis.report import need_matplotlib
from mdio.analysis.scaling import (
    EXECUTORS,
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
from mdio.core.errors import MissingExtraError, OutputError, PlanError, SourceError
from mdio.core.words import duration, human_nbytes
from mdio.parallel import GATHERS
from mdio.parallel.executors import available_cores

MODULE_PREFIXES = {"POSIX": "POSIX", "MPI-IO": "MPIIO", "STDIO": "STDIO", "H5D": "H5D"}
"""Darshan's modules whose counters are read, and the prefixes of the counters' names."""
OPEN_COUNTERS = ("OPENS", "INDEP_OPENS", "COLL_OPENS")
READ_COUNTERS = ("READS", "INDEP_READS", "COLL_READS", "SPLIT_READS", "NB_READS")
WRITE_COUNTERS = ("WRITES", "INDEP_WRITES", "COLL_WRITES", "SPLIT_WRITES", "NB_WRITES")


def _default_workers() -> str:
    cores = available_cores()
    powers = [1 << n for n in range(cores.bit_length()) if 1 << n <= cores]
    return ",".join(map(str, sorted({*powers, cores})))


def _setup_scaling(parser: argparse.ArgumentParser) -> None:
    """Add the options of this bench."""
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


def _run_scaling(args: argparse.Namespace) -> int:
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
    silent = args.quiet or args.json

    def report(line: str) -> None:
        if not silent:
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
        print(f"{folder}: scaling.html, scaling.csv, scaling.jsonl")
    return 0


def _setup_darshan(parser: argparse.ArgumentParser) -> None:
    """Add the options of this bench."""
    parser.add_argument("log", metavar="LOG", help="log that Darshan wrote of a run")
    add(parser, "--files TEXT", "count only files whose path contains this", default="")
    add(parser, "--timings FILE", "what `mdio analyze --timings` wrote of the same run")
    add(parser, "--json", "print one JSON object")


def _run_darshan(args: argparse.Namespace) -> int:
    """Read the log and the timings, and print them."""
    modules = counters(args.log, args.files)
    mdio_nbytes = None
    if args.timings:
        try:
            mdio_nbytes = int(json.loads(Path(args.timings).read_text())["nbytes_source"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SourceError(
                f"{args.timings}: not timings of `mdio analyze --timings` ({error})"
            ) from error
    if args.json:
        print_json({"modules": modules, "nbytes_source": mdio_nbytes})
        return 0
    print(
        f"{'':<8}{'opens':>9}{'reads':>11}{'read':>13}{'writes':>11}{'written':>13}"
        f"{'read time':>11}"
    )
    for name, row in modules.items():
        print(
            f"{name:<8}{row['opens']:>9,}{row['reads']:>11,}{human_nbytes(row['nbytes_read']):>13}"
            f"{row['writes']:>11,}{human_nbytes(row['nbytes_written']):>13}"
            f"{duration(row['t_read_s']):>11}"
        )
    if mdio_nbytes is not None:
        other_nbytes = modules.get("POSIX", {}).get("nbytes_read", 0) - mdio_nbytes
        print(
            f"mdio counted {human_nbytes(mdio_nbytes)} read from files by its blocks; "
            + (
                f"the other {human_nbytes(other_nbytes)} were read to open, index and prepare"
                if other_nbytes >= 0
                else "more than Darshan saw: give the log of the same run, and a wider --files"
            )
        )
    return 0


def counters(log: str, files: str = "") -> dict[str, dict[str, Any]]:
    """Return the sums over ranks and files of each of Darshan's modules.

    Raises MissingExtraError: pydarshan is not installed. SourceError: `log` is not a log of
    Darshan.
    """
    try:
        import darshan
    except ImportError as error:
        raise MissingExtraError(
            "mdio bench darshan needs pydarshan: pip install 'mdio-layouts[darshan]'"
        ) from error
    try:
        report = darshan.DarshanReport(log, read_all=False)
    except (OSError, RuntimeError) as error:
        raise SourceError(f"{log}: not a log of Darshan ({error})") from error
    sums = {}
    for module, prefix in MODULE_PREFIXES.items():
        if module not in report.modules:
            continue
        report.mod_read_all_records(module)
        paths_by_id = report.name_records
        tables = report.records[module].to_df()
        counts, times = (tables[kind] for kind in ("counters", "fcounters"))
        selected = [files in paths_by_id.get(int(number), "") for number in counts["id"]]
        counts, times = counts[selected], times[selected]

        def total(*counter_names: str, table: Any = counts, prefix: str = prefix) -> int:
            columns = (f"{prefix}_{name}" for name in counter_names)
            return sum(int(table[column].sum()) for column in columns if column in table)

        sums[module] = {
            "opens": total(*OPEN_COUNTERS),
            "reads": total(*READ_COUNTERS),
            "nbytes_read": total("BYTES_READ"),
            "writes": total(*WRITE_COUNTERS),
            "nbytes_written": total("BYTES_WRITTEN"),
            "t_read_s": float(times[f"{prefix}_F_READ_TIME"].sum()),
        }
    return sums


def setup(parser: argparse.ArgumentParser) -> None:
    """Add the benches, with their own options."""
    benches = parser.add_subparsers(dest="bench", metavar="BENCH", required=True)
    for name, (text, add_options, _) in BENCHES.items():
        bench_parser = benches.add_parser(
            name, help=text, description=f"{text[0].upper()}{text[1:]}."
        )
        add_options(bench_parser)


def run(args: argparse.Namespace) -> int:
    """Run the chosen bench."""
    return BENCHES[args.bench][2](args)


BENCHES = {
    "scaling": (
        "the same analysis on more and more workers: speed-up, efficiency, parts of the time",
        _setup_scaling,
        _run_scaling,
    ),
    "darshan": (
        "what Darshan counted in a run, by module, beside what mdio counted",
        _setup_darshan,
        _run_darshan,
    ),
}
"""Description of each, and the functions that add its options and run it."""
