"""``mdio append``: frames of a continuation, added to an output."""

from __future__ import annotations

import argparse

from mdio.cli.convert import add_running, run_with
from mdio.cli.shared.common import add, add_no_verify, add_overlap, add_resume, asked
from mdio.cli.shared.workers import chosen_executor
from mdio.converters.options import ConversionOptions


def setup(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add(parser, "source SRC", "what continues the trajectory", nargs="+")
    add_overlap(parser)
    add(parser, "out OUT", "zarr, segments or h5md of mdio, to add to")
    add(parser, "-s --top FILE", "topology, for outputs made with --pbc or --center")
    add_running(parser)
    add(parser, "--force", "start again where an earlier run has left something")
    add_resume(parser)
    add_no_verify(parser, "SRC and OUT")
    parser.set_defaults(compared=False)


def run(args: argparse.Namespace) -> int:
    """Add the frames, and say so; under MPI, rank 0 owns the output and speaks for all."""
    given = asked(ConversionOptions, args) | {"append": True}
    with chosen_executor(args) as executor:
        return run_with(ConversionOptions(**given), args, executor)
