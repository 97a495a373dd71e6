"""``mdio advise``: which layout serves an analysis, from measurements on the spot."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from mdio.advisor.advise import LOCAL, advise
from mdio.advisor.measure.interleaved_repeats import Progress
from mdio.advisor.model.profile import NAMES
from mdio.analysis.kernels.registry import KERNELS
from mdio.analysis.pages.report import check_report
from mdio.analysis.results import check_output
from mdio.cli.shared.common import (
    add_no_verify,
    add_told,
    add_trajectory,
    asked,
    positive,
    print_json,
)
from mdio.core.errors import PlanError


def setup(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add_trajectory(parser, "*")
    parser.add_argument("-s", "--top", metavar="FILE", help="topology, for selections")
    parser.add_argument(
        "--analysis",
        metavar="KERNEL",
        default="rmsd",
        help=f"{', '.join(KERNELS)}, or module:function of your own (default: rmsd)",
    )
    parser.add_argument("--select", metavar="SEL", help="atoms that are analysed")
    parser.add_argument(
        "--ranks",
        type=positive,
        metavar="N",
        help="how many processes will analyse (default: all cores)",
    )
    parser.add_argument(
        "--nodes", type=positive, default=1, metavar="N", help="over which the ranks are spread"
    )
    caches = parser.add_mutually_exclusive_group()
    caches.add_argument(
        "--cold",
        dest="cache",
        action="store_const",
        const="cold",
        default="auto",
        help="passes read from storage (default: from memory if what they read fits into it)",
    )
    caches.add_argument(
        "--warm", dest="cache", action="store_const", const="warm", help="passes read from memory"
    )
    parser.add_argument(
        "--passes",
        type=positive,
        default=1,
        metavar="P",
        help="how often the trajectory will be analysed (default: 1)",
    )
    parser.add_argument(
        "--target",
        metavar="DIR",
        default=".",
        help="where an output would go; trial conversions are made and removed there (default: .)",
    )
    parser.add_argument(
        "--machine",
        metavar="NAME|FILE",
        default=LOCAL,
        help=f"{LOCAL} (this one, default), {', '.join(NAMES)}, or a file of mdio model fit",
    )
    parser.add_argument(
        "--allow-lossy",
        type=_step,
        metavar="STEP",
        help="also consider positions rounded to this step, angstrom",
    )
    parser.add_argument(
        "--local-dir",
        dest="local_folder",
        metavar="DIR",
        help="also consider copies, or a cache, in such a folder on a disk of each node",
    )
    parser.add_argument(
        "--calibrate",
        metavar="[LAYOUT=]T.json",
        nargs="+",
        action="extend",
        default=[],
        help="whole runs on that machine, from mdio analyze --timings (layout: as-is)",
    )
    add_no_verify(parser, "TRAJ")
    parser.add_argument(
        "--save-measurements", dest="save", metavar="FILE", help="keep them for --replay"
    )
    parser.add_argument(
        "--replay", metavar="FILE", help="decide from saved measurements; no data are touched"
    )
    parser.add_argument("--report", metavar="FILE", help="an HTML page with plots and tables")
    add_told(parser, "no progress bar")


def _step(text: str) -> float:
    try:
        step = float(text)
    except ValueError:
        step = 0.0
    if not 0.0 < step < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r}: give a step in angstrom, such as 0.01")
    return step


@contextmanager
def _bar(quiet: bool) -> Iterator[Progress | None]:
    """Yield what shows the steps; None unless stderr is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from tqdm import tqdm

    with tqdm(total=1, desc="advise", unit="step", file=sys.stderr) as bar:

        def advance(text: str, done: int, n_steps: int) -> None:
            bar.total = n_steps
            bar.set_postfix_str(text, refresh=False)
            bar.update(done - bar.n)
            bar.refresh()

        yield advance


def run(args: argparse.Namespace) -> int:
    """Measure or replay, print the advice."""
    if args.replay is None and not args.trajectory:
        raise PlanError("no trajectory is given; name one, or measurements with --replay")
    if args.replay is not None and args.trajectory:
        raise PlanError("--replay decides from a file; leave out the trajectory")
    if args.report is not None:
        check_report(args.report)
    if args.save is not None:
        check_output(args.save)
    with _bar(args.quiet) as progress:
        given = asked(advise, args) | {"trajectory": args.trajectory or None}
        advice = advise(**given, progress=progress)
    if args.report is not None:
        advice.save_report(args.report)
    if args.json:
        print_json(advice.to_json())
    else:
        print(advice)
    return 0
