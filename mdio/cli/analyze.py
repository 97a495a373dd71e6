"""``mdio analyze``: run a kernel over blocks of frames, in parallel."""

from __future__ import annotations

import argparse
import sys
from contextlib import redirect_stdout
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any, cast

from mdio.analysis.driver import analyze
from mdio.analysis.kernels.kernel import (
    FORMER_NAMES,
    KERNELS,
    Kernel,
    describe_kernels,
    find_kernel,
    load_kernel,
)
from mdio.analysis.plan import Trajectory
from mdio.analysis.results import (
    PLOT_SUFFIXES,
    RESULT_SUFFIXES,
    WRITERS,
    AnalysisResult,
    check_output,
    row_text,
    summary_lines,
)
from mdio.cli.common import (
    add,
    add_options,
    add_output_options,
    add_settings,
    add_source,
    add_trajectory,
    arguments_for,
    check_outputs_differ,
    parse_reference,
    positive,
    print_json,
    print_notes,
    progress_bar,
    save_result,
    source_options,
    with_settings,
)
from mdio.cli.workers import add_workers, executor_name
from mdio.core.errors import PlanError
from mdio.core.words import duration, human_nbytes, list_text, plural
from mdio.layouts.base import Layout
from mdio.layouts.views.opening import ensemble_members
from mdio.layouts.views.options import CachedReadOptions, FrameOptions
from mdio.layouts.views.view import select_frames
from mdio.parallel import GATHERS
from mdio.parallel.executors import Executor

COMMON = (
    "-s",
    "--select",
    "--group",
    "-b",
    "-e",
    "--dt",
    "-w",
    "--mpi",
    "-o",
    "--plot",
    "--report",
)
"""Options that ``--help`` shows; ``--help-all`` shows all."""

KERNEL_OPTIONS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "--ref-frame N|FILE": (
        "reference",
        "frame that others are compared with (default: 0), or a file with the selected atoms, such "
        "as a crystal's PDB",
        {"type": parse_reference, "default": 0},
    ),
    "--weights": (
        "weights",
        "weight atoms by mass, or equally (default: rgyr by mass, rmsd equally)",
        {"choices": ("mass", "none")},
    ),
    "--angles A,B": (
        "angles",
        "of phi, psi, chi1 (default: phi,psi); columns go by residue, then in this order, of each "
        "its cos before its sin",
        {"default": "phi,psi"},
    ),
    "--degrees": (
        "degrees",
        "dihedrals: angles in degrees instead of their cos and sin",
        {"default": False},
    ),
    "--superpose": (
        "superpose",
        "rmsf, and rmsd after --fit: superpose frames on the reference first (default: use them as "
        "they are; rmsd without --fit always does it)",
        {"default": False},
    ),
    "--to-select SEL": (
        "to",
        "pairs: distances from each atom of --select to the atom at the same place in this "
        "selection (default: all pairs within --select); to the nearest image, also where --pbc "
        "makes molecules whole: --set periodic=false gives distances within them",
        {},
    ),
    "--repeat X": ("repeat", "rmsd: compute every frame X times", {"type": positive, "default": 1}),
    "--max-lag PS": (
        "max_lag_ps",
        "msd, vacf: longest lag (default: from the first frame to the last)",
        {"type": float},
    ),
    "--dims XYZ": ("dims", "msd: along which axes (default: xyz)", {"default": "xyz"}),
}
"""Options of some kernels: name of the kernel's argument, help, and keywords of `add`."""


def setup(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add(
        parser,
        "kernel KERNEL",
        f"{', '.join(KERNELS)}, one of an installed package (any other name lists all), or "
        "module:function for a function of yours that takes a block of frames and returns an array "
        "with one row per frame (module:Class for a Kernel)",
        completer=describe_kernels,
    )
    add_trajectory(parser)
    add_source(parser)
    atoms = parser.add_argument_group("atoms")
    add(atoms, "-s --top FILE", "topology, for selections and masses")
    add(atoms, "--select SEL", "atoms to analyse (default: all; dihedrals: protein)")
    add(atoms, "--group NAME", "read this stored group, or this trajectory of an ensemble")
    add_options(parser, FrameOptions)
    computation = parser.add_argument_group("computation")
    for spelling, (_, text, keywords) in KERNEL_OPTIONS.items():
        add(computation, spelling, text, **keywords)
    text = "an argument of a kernel's class, or fields=velocities of a function (repeatable)"
    add_settings(computation, text)
    workers = parser.add_argument_group("workers")
    add_workers(workers)
    text = "with more than one, fast workers do more blocks than slow ones (default: 1)"
    add(workers, "--blocks-per-worker K", text, positive, default=1)
    text = "with --mpi: how rank 0 collects the results (default: blocking)"
    add(workers, "--gather", text, choices=GATHERS, default="blocking")
    add_options(parser, CachedReadOptions)
    text = "save the results: .npz, .csv, .dat or .xvg; - prints them (default: a summary)"
    add(parser, "-o --out FILE", text)
    add(parser, "--plot FILE", "save a picture of the results: .png, .svg or .pdf")
    add(parser, "--timings FILE", "save the timings of every block, as JSON")
    add(parser, "--report FILE", "save an HTML page on where the time went")
    add_output_options(parser)


def _kernel_arguments(args: argparse.Namespace) -> dict[str, object]:
    """Return those of `KERNEL_OPTIONS` that are not the defaults, as arguments of the kernel."""
    arguments = {}
    for spelling, (name, _, keywords) in KERNEL_OPTIONS.items():
        option = spelling.partition(" ")[0]
        value = getattr(args, option[2:].replace("-", "_"))
        if value == keywords.get("default"):
            continue
        arguments[name] = value
        if name not in signature(find_kernel(args.kernel)).parameters:
            kernels = [
                kernel for kernel in KERNELS if name in signature(load_kernel(kernel)).parameters
            ]
            value_text = "" if value is True else f" {value}"
            raise PlanError(
                f"{option}{value_text} is for {list_text(kernels)}, not for {args.kernel}; "
                "leave it out"
            )
    return arguments


def _create_kernel(args: argparse.Namespace) -> Kernel:
    if args.kernel in FORMER_NAMES:
        name = FORMER_NAMES[args.kernel]
        print_notes("analyze", (f"the kernel {args.kernel} is called {name} now; see pairs, too",))
        args.kernel = name
    arguments = _kernel_arguments(args) | ({} if args.select is None else {"select": args.select})
    if args.weights == "none":
        arguments["weights"] = None
    return cast(
        Kernel, with_settings(find_kernel(args.kernel), args.kernel, args.settings, **arguments)
    )


def _open_trajectory(args: argparse.Namespace, **options: Any) -> Layout:
    """Open the trajectory with its options on the command line, and with `options`."""
    from mdio.converters.selection import open_with_topology  # usually the driver opens it

    options |= source_options(args) | ({} if args.group is None else {"group": args.group})
    return open_with_topology(args.trajectory, args.top, overlap=args.overlap, **options)


def _count_frames(args: argparse.Namespace) -> int:
    """Return the number of frames for the progress bar; 0 for an ensemble."""
    if ensemble_members(args.trajectory):
        return 0
    with _open_trajectory(args) as layout:
        return len(
            select_frames(layout, **FrameOptions(**arguments_for(FrameOptions, args)).frames)
        )


def run(args: argparse.Namespace, executor: Executor) -> int:
    """Analyse, save, print a summary; under MPI, only rank 0 saves and prints."""
    if args.gather != "blocking" and executor_name(args) != "mpi":
        raise PlanError(f"--gather {args.gather} is for ranks of MPI; add --mpi")
    kernel = _create_kernel(args)
    trajectory: Trajectory = args.trajectory
    _check_outputs(args)
    arguments = arguments_for(analyze, args)
    if source_options(args):
        options = {"fields": kernel.fields, **arguments_for(CachedReadOptions, args)}
        del arguments["overlap"], options["overlap"]
        trajectory = executor.from_owner(partial(_open_trajectory, args, **options))
    arguments |= {"trajectory": trajectory, "kernel": kernel, "select": None}
    bar = progress_bar(partial(_count_frames, args), "analyze", args, executor)
    with redirect_stdout(sys.stderr), bar as progress:  # what kernels print is no result
        arguments |= {"workers": None, "executor": executor, "progress": progress}
        result = analyze(**arguments)
    if executor.is_owner:
        _write_output(args, result)
    return 0


def _check_outputs(args: argparse.Namespace) -> None:
    """Raise MdioError if an output cannot be written, or would replace an input."""
    inputs = [*args.trajectory, args.top, args.fit_reference, args.ref_frame or None]
    check_outputs_differ(inputs, args.out, args.plot, args.timings, args.report)
    if args.out not in (None, "-"):
        if Path(args.out).suffix.lower() in PLOT_SUFFIXES:
            raise PlanError(f"{args.out}: -o saves numbers; give pictures as --plot {args.out}")
        check_output(args.out, RESULT_SUFFIXES)
    if args.out == "-" and args.json:
        raise PlanError("-o - and --json both print; choose one")
    if args.timings is not None:
        check_output(args.timings, (".json",))
    if args.plot is not None:
        from mdio.analysis.report import check_plot

        check_plot(args.plot)
    if args.report is not None:
        from mdio.analysis.report import check_report

        check_report(args.report)


def _write_output(args: argparse.Namespace, result: AnalysisResult) -> None:
    """Save and print the results; raises PlanError at the end for those that cannot be saved."""
    problems: list[str] = []
    if args.out == "-":
        WRITERS[".dat"](result, sys.stdout.buffer)
    elif args.out is not None:
        try:
            save_result(result, args.out)
        except PlanError as error:  # what took long is not lost
            args.out = f"{args.out}.npz"
            save_result(result, args.out)
            problems.append(f"{error} (they are kept in {args.out})")
    if args.timings is not None:
        result.save_timings(args.timings)
    n_more = len(args.trajectory) - 1
    source_text = Path(args.trajectory[0]).name + (f" and {n_more} more" if n_more else "")
    title = f"{args.kernel} of {source_text}"
    if args.plot is not None:
        from mdio.analysis.report import save_plot

        try:
            save_plot(result, args.plot, title)
        except PlanError as error:
            problems.append(f"{args.plot}: not made, since {error}")
            args.plot = None
    if args.report is not None:
        from mdio.analysis.report import save_report

        save_report(result, args.report, title=title)
    if args.json:
        print_json(result.to_json() | {"out": args.out})
    else:
        print_notes("analyze", result.notes)  # even with --quiet: they may say values are wrong
        if not args.quiet and args.out != "-":
            _print_summary(args, result)
    if problems:
        files = (args.out, args.timings, args.plot, args.report)
        written = [file for file in files if file not in (None, "-")]
        saved_text = f"saved: {', '.join(written)}" if written else "-o FILE.npz saves the values"
        raise PlanError("; ".join([*problems, saved_text]))


def _print_summary(args: argparse.Namespace, result: AnalysisResult) -> None:
    times = result.to_json()
    ratio = times["ratio_comp_io"]
    rate = result.n_frames / max(result.seconds, 1e-9)
    noun = "rank" if result.executor == "mpi" else "worker"
    print(
        f"{args.kernel}: {plural(result.n_frames, 'frame')} in {duration(result.seconds)} "
        f"({rate:,.0f} frames/s, {plural(result.workers, noun)}, {result.executor})"
    )
    print(
        f"  summed over {noun}s: open {duration(times['t_open_s'])}, "
        f"read {duration(times['t_io_s'])}, compute {duration(times['t_comp_s'])}, "
        f"gather {duration(times['t_comm_s'])}; "
        f"t_comp/t_IO {'-' if ratio is None else f'{ratio:.2f}'}"
    )
    source, decoded = times["nbytes_source"], human_nbytes(times["nbytes_read"])
    speed = human_nbytes(source / max(result.seconds, 1e-9))
    print(f"  read {human_nbytes(source)} of files ({speed}/s), {decoded} decoded")
    if args.out is None:
        print(*summary_lines(result), sep="\n")
    else:
        rows = plural(len(result.columns), result.over if result.per_frame else "row")
        print(f"  {args.out}: {rows} of {row_text(result)}")
    for path, description in (
        (args.timings, "timings of every block"),
        (args.plot, "picture of the results"),
        (args.report, "report on where the time went"),
    ):
        if path is not None:
            print(f"  {path}: {description}")
