"""``mdio split``: segments by copying bytes."""

from __future__ import annotations

import argparse

from mdio.cli.common import (
    add,
    add_options,
    add_output_options,
    add_resume,
    arguments_for,
    positive,
    print_json,
    print_notes,
    progress_bar,
)
from mdio.cli.workers import add_workers, chosen_executor
from mdio.converters.convert import check_suffix, prepare
from mdio.converters.opening import salvage_offered
from mdio.converters.options import OPTIONS, ConversionOptions, ConvertResult, Sources
from mdio.core.options import declared_fields
from mdio.core.words import human_nbytes, plural


def setup(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add(parser, "source SRC", "trajectory (several are joined)", nargs="+")
    add(parser, "out OUT", "folder of segments, NAME.segments")
    add(parser, "-n --segments N", "number of segments", positive, required=True)
    add_options(parser, Sources, overlap="", salvage="")
    add_workers(parser)
    add(parser, "--force", "replace an existing output")
    add_resume(parser)
    add_output_options(parser)


def run(args: argparse.Namespace) -> int:
    """Split, and print a summary; under MPI, rank 0 prints."""
    with chosen_executor(args) as executor, salvage_offered(args.salvage):
        check_suffix(args.out)
        options = ConversionOptions.of(
            to="segments", **arguments_for(declared_fields(*OPTIONS), args)
        )
        conversion = executor.from_owner(lambda: prepare(args.source, args.out, options))
        with progress_bar(conversion.plan.n_frames, "split", args, executor) as progress:
            result = conversion.run(
                executor, force=args.force, resume=args.resume, progress=progress
            )
        if executor.is_owner:
            _print_result(args, result)
    return 0


def _print_result(args: argparse.Namespace, result: ConvertResult) -> None:
    if args.json:
        print_json(result.to_json())
    elif args.quiet:
        print_notes("split", result.plan.notes)
    else:
        rate = result.nbytes_out / max(result.seconds, 1e-9) / 1e6
        print(
            f"{result.out}: {plural(result.n_frames, 'frame')} in "
            f"{plural(args.segments, 'segment')}, {human_nbytes(result.nbytes_out)} in "
            f"{result.seconds:.2f} s ({rate:,.0f} MB/s)"
        )
        if not result.copied:
            print(
                "  note: bytes could not be copied: frames were decoded and encoded again, as "
                f"{result.plan.container}"
            )
        for note in result.plan.notes:
            print(f"  note: {note}")
