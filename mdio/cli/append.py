"""``mdio append``: add the frames of a continuation to an output."""

from __future__ import annotations

import argparse

from mdio.cli.common import add, add_options, add_resume, arguments_for
from mdio.cli.convert import add_run_options, run_conversion
from mdio.converters.options import ConversionOptions, Sources
from mdio.core.options import declared_fields
from mdio.parallel.executors import Executor


def setup(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add(parser, "source SRC", "continuation of the trajectory", nargs="+")
    add(parser, "out OUT", "zarr, segments or h5md of mdio, to add to")
    top = "topology, for outputs made with --pbc or --center"
    add_options(parser, Sources, overlap="", top=top, salvage="", verify="")
    add_run_options(parser)
    add(parser, "--force", "start again where an earlier run has left something")
    add_resume(parser)
    text = "compare all frames that SRC and OUT share, and afterwards those that were added"
    add(parser, "--verify", text, dest="compared")


def run(args: argparse.Namespace, executor: Executor) -> int:
    """Add the frames and print a summary; under MPI, rank 0 owns the output and prints."""
    options = arguments_for(declared_fields(Sources), args)
    options |= {"append": True, "compare_all": args.compared}
    return run_conversion(ConversionOptions.of(**options), args, executor)
