"""``mdio convert --follow``: converts while the simulation still writes."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from typing import Any

from mdio.cli.common import add, positive, print_json
from mdio.converters.follow import follow
from mdio.converters.options import ConvertResult
from mdio.core.errors import PlanError
from mdio.core.signals import ending_signals_noted
from mdio.core.words import plural
from mdio.parallel.executors import Executor

UNITS_S = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds(text: str) -> float:
    """Return the seconds that ``30s``, ``10m`` or ``2h`` mean."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time; write it as 30s, 10m or 2h")
    return float(match[1]) * UNITS_S[match[2]]


def add_follow(parser: argparse.ArgumentParser) -> None:
    """Add the options of a conversion that goes on as its source grows."""
    following = parser.add_argument_group("a source that is still being written")
    add(
        following,
        "--follow",
        "convert what is complete, a full shard or segment at a time, until told to end "
        "(Ctrl-C and SIGTERM end it with all complete frames)",
    )
    add(following, "--until-idle TIME", "end when SRC stops growing: 10m", seconds)
    add(following, "--frames N", "end with so many frames", positive)
    add(
        following,
        "--every TIME",
        "time between two publications at least (default: 60s)",
        seconds,
        default=60.0,
    )


def follow_with(given: Mapping[str, Any], args: argparse.Namespace, executor: Executor) -> int:
    """Follow the source; say so now and then, and in the end."""
    if len(args.source) != 1 or executor.ranks or args.dry_run or args.compared:
        raise PlanError("--follow is for one source, without --mpi, --dry-run and --verify")

    def tell(n_frames: int) -> None:
        if not args.quiet:
            print(f"mdio convert: {args.out}: {plural(n_frames, 'frame')} so far", file=sys.stderr)

    with ending_signals_noted() as stopped:
        result: ConvertResult = follow(
            args.source[0],
            args.out,
            every_s=args.every,
            until_idle_s=args.until_idle,
            n_frames=args.frames,
            stopped=stopped,
            published=tell,
            executor=executor,
            force=args.force,
            **given,
        )
    if args.json:
        print_json(result.to_json())
    elif not args.quiet:
        print(f"{result.out}: {plural(result.n_frames, 'frame')} as {result.layout}")
    return 0
