"""``mdio repair``: writes damaged units of an output again, or lists lost frames."""

from __future__ import annotations

import argparse

from mdio.cli.common import add, add_output_options, positive, print_json, progress_bar
from mdio.converters.repair import RepairResult, repair
from mdio.core.words import plural, runs_text
from mdio.layouts.registry import open_layout


def setup(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add(parser, "out OUT", "output of mdio: zarr, h5md or segments")
    text = "source of the output; without it, only list what is lost"
    add(parser, "--against SRC", text, nargs="+")
    add(parser, "-s --top FILE", "topology (after --pbc/--center, or if SRC needs one)")
    add(parser, "-w --workers N", "worker processes", positive, default=1)
    add(parser, "--force", "start again where an earlier run has left files in a store")
    add_output_options(parser)


def run(args: argparse.Namespace) -> int:
    """Repair, or list lost frames; return 1 if damage remains."""
    with open_layout(args.out, verify=False) as layout:
        n_frames = layout.info.n_frames
    with progress_bar(n_frames if args.against else 0, "repair", args) as progress:
        result = repair(
            args.out,
            args.against,
            top=args.top,
            workers=args.workers,
            force=args.force,
            progress=progress,
        )
    if args.json:
        print_json(result.to_json())
    elif not args.quiet:
        _print_result(result)
    return 1 if result.bad and not result.repaired else 0


def _print_result(result: RepairResult) -> None:
    for problem in result.bad:
        print(f"bad: {problem}")
    if not result.bad:
        print(f"{result.out}: nothing to repair, {plural(result.units, 'unit')} checked")
    elif result.repaired:
        print(
            f"{result.out}: repaired; {len(result.bad):,} of {plural(result.units, 'unit')} did "
            "not match their checksums, the others are unchanged"
        )
    else:
        _print_lost(result)


def _print_lost(result: RepairResult) -> None:
    for group, runs in result.lost_frames.items():
        n_lost = sum(len(range(*run)) for run in runs)
        lost_runs = runs_text(runs, 5)
        system = "the full system" if group == "trajectory" else f"group {group}"
        print(
            f"lost: {n_lost:,} of {plural(result.n_frames, 'frame')} of {system} ({lost_runs}); "
            f"the other {result.n_frames - n_lost:,} can be read"
        )
    if not result.lost_frames:
        print(f"lost: no frame; all {result.n_frames:,} can be read")
    print(
        f"{result.out}: damaged; `mdio repair {result.out} --against SRC` writes the damaged units "
        "again from the trajectory that it was made from"
    )
