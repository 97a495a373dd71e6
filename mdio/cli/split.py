"""``mdio split``: cut a trajectory into segments by copying bytes."""

from __future__ import annotations

import argparse

from mdio.cli.common import (
    add,
    add_options,
    add_output_options,
    add_resume,
    arguments_for,
    positive,
)
from mdio.cli.convert import run_conversion
from mdio.cli.workers import add_workers
from mdio.converters.convert import check_suffix
from mdio.converters.opening import salvage_hint_on_damage
from mdio.converters.options import OPTIONS, ConversionOptions, ConvertResult, Sources
from mdio.core.options import declared_fields
from mdio.core.words import human_nbytes, plural
from mdio.parallel.executors import Executor


def setup(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add(parser, "source SRC", "trajectory (several are joined)", nargs="+")
    add(parser, "out OUT", "folder of segments, NAME.segments, with files */seg-* in it")
    add(parser, "-n --segments N", "number of segments", positive, required=True)
    add_options(parser, Sources, overlap="", salvage="")
    add_workers(parser)
    add(parser, "--force", "replace an existing output")
    add_resume(parser)
    add_output_options(parser)
    parser.set_defaults(dry_run=False, compared=False)


def run(args: argparse.Namespace, executor: Executor) -> int:
    """Split, and print a summary; under MPI, rank 0 prints."""
    check_suffix(args.out)
    arguments = arguments_for(declared_fields(*OPTIONS), args)
    options = ConversionOptions.of(to="segments", **arguments)
    with salvage_hint_on_damage(args.salvage):
        return run_conversion(options, args, executor, _print_summary)


def _print_summary(result: ConvertResult) -> None:
    nbytes = result.nbytes_out * (1 - result.resumed_frames / result.n_frames)
    rate = f" ({nbytes / max(result.seconds, 1e-9) / 1e6:,.0f} MB/s)" if nbytes else ""
    n_segments = len(result.plan.segment_frames)
    print(
        f"{result.out}: {plural(result.n_frames, 'frame')} in {plural(n_segments, 'segment')}, "
        f"{human_nbytes(result.nbytes_out)} in {result.seconds:.2f} s{rate}"
    )
    if not result.copied:
        print(
            "  note: bytes could not be copied: frames were decoded and encoded again, as "
            f"{result.plan.container}"
        )
    for note in result.plan.notes:
        print(f"  note: {note}")
