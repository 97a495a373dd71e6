"""``mdio advise``: which layout is best for an analysis, from measurements on this machine."""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext
from functools import partial

from mdio.advisor.advise import ForecastOptions, advise
from mdio.advisor.measure import TRIALS_PREFIX
from mdio.analysis.kernels.kernel import KERNELS, describe_kernels
from mdio.analysis.report import check_report
from mdio.analysis.results import check_output
from mdio.cli.common import (
    add,
    add_options,
    add_output_options,
    add_trajectory,
    arguments_for,
    check_outputs_differ,
    parse_step,
    positive,
    print_json,
)
from mdio.cli.workers import all_ranks
from mdio.layouts.views.options import ReadOptions
from mdio.parallel.executors import Serial

COMMON = ("-s", "--analysis", "--select", "--ranks", "--passes", "--target", "--mpi", "--report")
"""Options that ``--help`` shows; ``--help-all`` shows all."""


def setup(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add_trajectory(parser, "*")
    add_options(parser, ReadOptions, ForecastOptions)
    add(parser, "-s --top FILE", "topology, for selections")
    names = ", ".join(name for name in KERNELS if name not in ("msd", "vacf"))
    text = f"{names}, or module:function of your own (default: rmsd)"
    add(parser, "--analysis KERNEL", text, default="rmsd", completer=describe_kernels)
    add(parser, "--select SEL", "atoms that the analysis uses")
    text = "under mpiexec: measure the storage from all ranks at once, and advise for these ranks"
    add(parser, "--mpi", text)
    add(parser, "--ranks N", "processes that will run the analysis (default: all cores)", positive)
    add(parser, "--passes P", "number of future analyses (default: 1)", positive, default=1)
    text = "folder for the output; trial conversions are made and removed there (default: .)"
    add(parser, "--target DIR", text, default=".")
    text = "also consider rounding positions to this step, angstrom"
    parse = partial(parse_step, hint="give a step in angstrom, such as 0.01")
    add(parser, "--allow-lossy STEP", text, parse)
    text = "also consider a copy or a cache in this folder, on a local disk of each node"
    add(parser, "--local-dir DIR", text, dest="local_folder")
    add(parser, "--save-measurements FILE", "save the measurements for --replay", dest="save")
    add(parser, "--replay FILE", "decide from saved measurements, without reading any data")
    add(parser, "--report FILE", "an HTML page with plots and tables")
    add_output_options(parser, "do not say how long it takes")


def _print_expected_time(text: str, *_: int) -> None:
    """Print the step that states the expected time of the trials; others are not printed."""
    if text.startswith(TRIALS_PREFIX):
        print(f"mdio advise: {text}", file=sys.stderr)


def run(args: argparse.Namespace) -> int:
    """Measure, or load measurements, and print the advice."""
    with all_ranks("--mpi", args.words) if args.mpi else nullcontext(Serial()) as executor:
        if args.report is not None:
            check_report(args.report)
        if args.save is not None:
            check_output(args.save, (".json",))
        check_outputs_differ([*args.trajectory, args.top, args.replay], args.save, args.report)
        progress = None if args.quiet or not executor.is_owner else _print_expected_time
        arguments = arguments_for(advise, args) | {"trajectory": args.trajectory or None}
        advice = advise(**arguments, progress=progress, executor=executor)
        if not executor.is_owner:
            return 0
        if args.report is not None:
            advice.save_report(args.report)
        if args.json:
            print_json(advice.to_json())
        else:
            print(advice)
    return 0
