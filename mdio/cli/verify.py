"""``mdio verify``: is an output whole, and equal to its source?"""

from __future__ import annotations

import argparse

from mdio.cli.common import print_json, progress_bar
from mdio.converters.verify import verify
from mdio.layouts.registry import open_layout

__all__ = ["run", "setup"]


def setup(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("out", metavar="OUT", help="trajectory to check")
    parser.add_argument(
        "--against", metavar="SRC", nargs="+", help="compare every frame with this source"
    )
    parser.add_argument(
        "-s", "--top", metavar="FILE", help="topology (after --pbc/--center, or if SRC needs one)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> int:
    """Check, print what was found, and return 1 if anything is bad."""
    with open_layout(args.out) as layout:
        n_frames = layout.info.n_frames
    with progress_bar(n_frames if args.against else 0, "verify", quiet=args.quiet) as progress:
        result = verify(args.out, args.against, top=args.top, progress=progress)
    if args.json:
        print_json(result.to_json())
    else:
        for problem in result.bad:
            print(f"bad: {problem}")
        compared = (
            f", {result.frames_compared:,} frames compared: largest difference "
            f"{result.max_abs_diff_angstrom:g} angstrom, "
            f"{result.allowed_diff_angstrom or 0:g} allowed"
            if args.against
            else ""
        )
        verdict = "ok" if result.ok else f"NOT ok ({len(result.bad)} bad)"
        print(f"{args.out}: {verdict}, {result.chunks_checked:,} chunks checked{compared}")
    return 0 if result.ok else 1
