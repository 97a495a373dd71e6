"""``mdio verify``: check an output's checksums, or compare it with its source."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from functools import partial

from mdio.cli.common import (
    add,
    add_options,
    add_output_options,
    arguments_for,
    print_json,
    progress_bar,
)
from mdio.cli.workers import add_workers
from mdio.converters.opening import open_or_salvage
from mdio.converters.options import Sources
from mdio.converters.verify import VerifyResult, every_nth, everything, sample, verify
from mdio.core.words import plural
from mdio.layouts.views.opening import check_unlabelled, ensemble_members
from mdio.parallel.executors import Executor


def _parse_part(text: str) -> Callable[[int], bool]:
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise argparse.ArgumentTypeError(f"{text!r}: write K/N with K from 1 to N, as 3/8")
    return every_nth(int(match[1]), int(match[2]))


def _parse_sample(text: str) -> Callable[[int], bool]:
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*%", text)
    if match is None or not 0 < float(match[1]) <= 100:
        raise argparse.ArgumentTypeError(f"{text!r}: write a share of all, as 5%")
    return sample(float(match[1]) / 100)


def setup(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add(parser, "out OUT", "trajectory to check")
    add(parser, "--against SRC", "compare every frame with this source", nargs="+")
    text = "how several SRC are joined (default: as when OUT was made)"
    add_options(parser, Sources, overlap=text)
    add(parser, "-s --top FILE", "topology (after --pbc/--center, or if SRC needs one)")
    amount = parser.add_mutually_exclusive_group()
    text = "check this share of all units (chunks, segments, files of numbers), evenly spread"
    add(amount, "--sample P%", text, _parse_sample, dest="wanted", default=everything)
    text = "check the K-th of N parts of all units; the N parts together are all of them"
    add(amount, "--part K/N", text, _parse_part, dest="wanted")
    text = "check all of them (default)"
    add(amount, "--deep", text, dest="wanted", action="store_const", const=everything)
    add_workers(parser)
    add_output_options(parser, "no progress bar")


def _count_frames(args: argparse.Namespace) -> int:
    n_frames = 0
    for path in ensemble_members(args.out).values() or [args.out]:
        with open_or_salvage(path) as layout:
            n_frames += layout.info.n_frames
    return n_frames


def run(args: argparse.Namespace, executor: Executor) -> int:
    """Check, print the result, and return 1 if anything is bad."""
    check_unlabelled(args.against or (), "leave out the label, which is not needed here")
    n_frames = partial(_count_frames, args) if args.against else 0
    with progress_bar(n_frames, "verify", args, executor) as progress:
        arguments = arguments_for(verify, args) | {"workers": None, "executor": executor}
        result = verify(**arguments, progress=progress)
    if executor.is_owner:
        _print_result(args, result)
    return 0 if result.ok else 1


def _print_result(args: argparse.Namespace, result: VerifyResult) -> None:
    if args.json:
        print_json(result.to_json())
    else:
        for problem in result.bad:
            print(f"bad: {problem}")
        allowed = result.allowed_diff_angstrom or 0.0
        is_rounded = result.ok and result.max_abs_diff_angstrom > allowed
        compared = ", no frame compared" if args.against else ""
        if result.frames_compared:
            compared = (
                f", {plural(result.frames_compared, 'frame')} compared: largest difference "
                f"{result.max_abs_diff_angstrom:g} angstrom, "
                f"{allowed:g} allowed{' besides the rounding of its format' if is_rounded else ''}"
            )
        if result.times_off_ps:
            compared += (
                f"; its times are off by up to {result.times_off_ps:.6g} ps, as it can only count "
                "them (.zarr and .h5md keep them)"
            )
        if result.frames_by_program:
            n_frames = plural(result.frames_by_program, "frame")
            compared += f"; {n_frames} written by a program, in no source"
        if result.frames_left_out:
            n_frames = plural(result.frames_left_out, "frame")
            compared += f"; {n_frames} of the source left out when it was made"
        if result.fields_left_out:
            fields = " and ".join(result.fields_left_out)
            compared += f"; the {fields} of the source are not in it"
        verdict = "ok" if result.ok else f"NOT ok ({len(result.bad)} bad)"
        checked = plural(result.units, "chunk")
        if result.chunks_checked != result.units:
            checked = f"{result.chunks_checked:,} of {checked}"
        if result.ok and not args.against and not result.has_checksums:
            compared = (
                "; it has no checksums, so that only whether frames can be read was checked, not "
                "their values (--against SRC compares those)"
            )
        print(f"{args.out}: {verdict}, {checked} checked{compared}")
