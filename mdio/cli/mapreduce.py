"""``mdio mapreduce``: map frames to keys and values, and reduce the values of each key."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from mdio.analysis.kernels.kernel import import_callable
from mdio.cli.common import (
    add,
    add_options,
    add_output_options,
    add_settings,
    add_trajectory,
    arguments_for,
    check_outputs_differ,
    print_json,
    print_notes,
    progress_bar,
    save_result,
    with_settings,
)
from mdio.cli.workers import add_workers
from mdio.core.errors import PlanError
from mdio.core.words import human_nbytes, plural
from mdio.layouts.views.opening import paths_by_label
from mdio.layouts.views.options import CachedReadOptions, FrameOptions
from mdio.mapreduce.driver import map_reduce
from mdio.mapreduce.job import MapReduceOptions
from mdio.mapreduce.program import FrameSelector
from mdio.mapreduce.results import TABLE_SUFFIXES, MapReduceResult, check_table
from mdio.parallel.executors import Executor

COMMON = ("--set", "-s", "-b", "-e", "-w", "--mpi", "--memory", "--local-dir", "-o")
"""Options that ``--help`` shows; ``--help-all`` shows all."""

MAX_PRINTED_KEYS = 10
"""Most failed keys that are printed."""


def setup(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add(parser, "program MODULE:CLASS", "a class with the methods map and reduce")
    add_trajectory(parser)
    add(parser, "--replicas", "do not join them: each TRAJ, or LABEL=TRAJ, has rows of its own")
    add_settings(parser, "an argument of the class (repeatable)")
    atoms = parser.add_argument_group("atoms")
    add(atoms, "-s --top FILE", "topology, for selections")
    add(atoms, "--select SEL", "which atoms are in the blocks that the map gets")
    add(atoms, "--group NAME", "read this stored group of atoms")
    frames = dict.fromkeys(("start", "stop", "step", "begin_ps", "end_ps", "dt_ps"), "")
    add_options(parser, FrameOptions, **frames)
    add_workers(parser.add_argument_group("workers"))
    add_options(parser, CachedReadOptions, MapReduceOptions)
    add(parser, "-o --out FILE", f"a table with a row for each key: {', '.join(TABLE_SUFFIXES)}")
    add_output_options(parser)


def _create_program(args: argparse.Namespace) -> Any:
    program_class: Any = import_callable(args.program)
    if not isinstance(program_class, type):
        raise PlanError(
            f"{args.program}: not a class; a map-reduce needs one with the methods map and reduce"
        )
    return with_settings(program_class, args.program, args.settings)


def _choose_frames(args: argparse.Namespace) -> FrameSelector | None:
    numbers, times = (args.start, args.stop, args.step), (args.begin_ps, args.end_ps, args.dt_ps)
    by_number, by_time = ({*bounds} != {None} for bounds in (numbers, times))
    if by_number and by_time:
        raise PlanError("choose frames by number (--start --stop --step) or time (-b -e --dt)")
    if by_time:
        return slice(*times)
    return slice(*numbers) if by_number else None


def run(args: argparse.Namespace, executor: Executor) -> int:
    """Map, reduce, save, print a summary; exit code 1 if some keys have failed."""
    trajectory = paths_by_label(args.trajectory) if args.replicas else args.trajectory
    arguments = arguments_for(map_reduce, args) | {
        "trajectory": trajectory,
        "map": _create_program(args),
        "frames": _choose_frames(args),
        "workers": None,
        "executor": executor,
    }
    if args.out is not None:
        check_table(args.out)
        check_outputs_differ([*args.trajectory, args.top], args.out)
    with progress_bar(0, "map", args, executor) as progress:
        result = map_reduce(**arguments, progress=progress)
    if executor.is_owner:
        _write_output(args, result)
    return 1 if result.failures else 0


def _write_output(args: argparse.Namespace, result: MapReduceResult) -> None:
    if args.out is not None:
        save_result(result, args.out)
    for key, label, error in result.failures[:MAX_PRINTED_KEYS]:
        suffix = "" if label is None else f" of {label}"
        print(f"mdio mapreduce: the key {key!r}{suffix} is left out: {error}", file=sys.stderr)
    if len(result.failures) > MAX_PRINTED_KEYS:
        remainder = plural(len(result.failures) - MAX_PRINTED_KEYS, "more key")
        print(f"mdio mapreduce: and {remainder}; --json has all", file=sys.stderr)
    if args.json:
        print_json(result.to_json() | {"out": args.out})
        return
    print_notes("mapreduce", result.notes)
    if not args.quiet:
        pairs = int(result.n_pairs.sum())
        print(
            f"{args.program}: {plural(result.n_frames, 'frame')}, {plural(pairs, 'pair')}, "
            f"{plural(len(result.keys), 'row')} in {result.seconds:.2f} s "
            f"({plural(result.workers, 'worker')}, {result.executor})"
        )
        print(
            f"  shuffle and reduce {result.reduce_s:.2f} s; "
            f"{human_nbytes(result.nbytes_shuffled)} of pairs, "
            f"{human_nbytes(result.nbytes_on_disk)} through files"
        )
        if args.out is not None:
            key = "keys" if Path(args.out).suffix.lower() == ".npz" else "key"
            headings = [key] if result.label is None else ["label", key]
            print(f"  {args.out}: {', '.join([*headings, *result.columns])}")
