"""``mdio split``: segments by copying bytes."""

from __future__ import annotations

import argparse

from mdio.cli.common import human_nbytes, positive, print_json, progress_bar
from mdio.converters.split import split
from mdio.layouts.chain import open_source

__all__ = ["run", "setup"]


def setup(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("source", metavar="SRC", nargs="+", help="trajectory (several are joined)")
    parser.add_argument("out", metavar="OUT", help="folder of segments, NAME.segments")
    parser.add_argument("-n", "--segments", type=positive, metavar="N", required=True)
    parser.add_argument(
        "-w", "--workers", type=positive, metavar="N", default=1, help="worker processes"
    )
    parser.add_argument("--force", action="store_true", help="replace an existing output")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quiet", action="store_true", help="no progress bar, no summary")


def run(args: argparse.Namespace) -> int:
    """Split and say what was written."""
    with open_source(args.source) as layout:
        n_frames = layout.info.n_frames
    with progress_bar(n_frames, "split", quiet=args.quiet) as progress:
        result = split(
            args.source,
            args.out,
            args.segments,
            force=args.force,
            workers=args.workers,
            progress=progress,
        )
    if args.json:
        print_json(result.to_json())
    elif not args.quiet:
        rate = result.nbytes_out / max(result.seconds, 1e-9) / 1e6
        print(
            f"{result.out}: {result.n_frames:,} frames in {args.segments} segments, "
            f"{human_nbytes(result.nbytes_out)} in {result.seconds:.2f} s ({rate:,.0f} MB/s)"
        )
    return 0
