"""``mdio convert``: write a trajectory in another layout, also while the simulation writes it."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from mdio.cli.common import (
    add,
    add_options,
    add_output_options,
    add_resume,
    add_source,
    arguments_for,
    parse_seconds,
    positive,
    print_json,
    print_notes,
    progress_bar,
    source_options,
)
from mdio.cli.plan_table import plan_table
from mdio.cli.workers import add_workers, executor_name
from mdio.converters.convert import prepare
from mdio.converters.ensemble import convert_ensemble, convert_members
from mdio.converters.follow import follow
from mdio.converters.opening import salvage_hint_on_damage
from mdio.converters.options import OPTIONS, ConversionOptions, ConvertResult, Storage, read_recipe
from mdio.converters.strategies.conversion import Conversion
from mdio.converters.strategies.structure import is_structure
from mdio.converters.verify import VerifyResult, verify
from mdio.core.errors import CorruptLayoutError, OutputError, PlanError
from mdio.core.files.store import is_stream
from mdio.core.options import declared_fields
from mdio.core.signals import stop_event_on_signals
from mdio.core.words import human_nbytes, notes_by_label, plural
from mdio.layouts.native import NATIVE_FORMATS
from mdio.layouts.plan import COMPRESSION_NOTE
from mdio.layouts.registry import layout_name_for_output, output_suffixes
from mdio.layouts.views.opening import check_unlabelled, paths_by_label
from mdio.parallel.executors import Executor


def add_follow(parser: argparse.ArgumentParser) -> None:
    """Add the options of a conversion that follows a growing source."""
    group = parser.add_argument_group("a source that is still being written")
    add(
        group,
        "--follow",
        "convert complete frames, a full shard or segment at a time, until Ctrl-C or SIGTERM, "
        "which end it with all complete frames",
    )
    add(group, "--until-idle TIME", "end when SRC stops growing: 10m", parse_seconds)
    add(group, "--frames N", "stop after N frames", positive)
    text = "least time between two publications (default: 60s)"
    add(group, "--every TIME", text, parse_seconds, default=60.0)


def run_follow(options: ConversionOptions, args: argparse.Namespace, executor: Executor) -> int:
    """Follow the source, and print the number of converted frames."""
    is_from_stream = is_stream(args.source[0])
    name = args.source[0] if is_from_stream else "--follow"
    if len(args.source) != 1 or executor.ranks or args.dry_run or args.compared:
        raise PlanError(f"{name} is for one source, without --mpi, --dry-run and --verify")
    if is_from_stream and executor.n_workers > 1:
        raise PlanError(f"{name}: a stream is read by one process; leave out -w and --executor")

    def print_message(message: Warning | str, *_: Any, **_keywords: Any) -> None:
        print(f"mdio convert: {message}", file=sys.stderr)

    def report(n_frames: int) -> None:
        if not args.quiet:
            print_message(f"{args.out}: {plural(n_frames, 'frame')} so far")

    def report_waiting(n_frames: int, unit_frames: int) -> None:
        if not args.quiet:
            print_message(
                f"{args.source[0]}: {plural(n_frames, 'frame')} so far; {args.out} is written "
                f"once there are {unit_frames:,}, or at the end"
            )

    arguments = {
        "every_s": args.every,
        "until_idle_s": args.until_idle,
        "n_frames": args.frames,
        "published": report,
        "force": args.force,
        **options.keywords(),
    }
    result: ConvertResult
    with stop_event_on_signals() as stopped:
        if is_from_stream:
            from mdio.converters.stream import record

            with warnings.catch_warnings(action="always", category=UserWarning):
                warnings.showwarning = print_message
                result = record(args.source[0], args.out, stopped=stopped, **arguments)
        else:
            result = follow(
                args.source[0],
                args.out,
                stopped=stopped,
                waiting=report_waiting,
                executor=executor,
                **arguments,
            )
    if args.json:
        print_json(result.to_json())
    elif not args.quiet:
        print(f"{result.out}: {plural(result.n_frames, 'frame')} as {result.layout}")
        for note in result.plan.notes if is_from_stream else ():
            print(f"  note: {note}")
    return 0


COMMON = (
    *("-s", "--select", "--group", "-b", "-e", "--dt", "--precision", "--compression", "-w"),
    *("--mpi", "--dry-run", "--verify", "--force", "--resume"),
)
"""Options that ``--help`` shows; ``--help-all`` shows all."""

NOT_FOR_ENSEMBLES = {
    "dry_run": ("--dry-run", "plan one of them, without --ensemble: each is planned by itself"),
    "append": ("--append", "leave it out"),
    "follow": ("--follow", "leave it out"),
    "compared": ("--verify", "leave it out"),
}
"""Options that conversions of ensembles do not have, and the advice for each."""


def setup(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    text = "trajectory (several are joined), or imd://HOST:PORT of a simulation that sends frames"
    add(parser, "source SRC", text, nargs="+")
    add(
        parser,
        "--ensemble",
        "do not join them: each SRC, or LABEL=SRC, becomes a group of OUT, NAME.zarr or "
        "NAME.h5md; with an ensemble as SRC, each of its trajectories becomes a file, OUT with "
        "{label} in it",
    )
    add_source(parser)
    add(parser, "out OUT", "output; its suffix names the layout (.gro and .pdb: one frame)")
    add(
        parser,
        "--recipe FILE|OUTPUT",
        "make OUT like this output, or by FILE.json of --dry-run --json; options given beside it "
        "replace its own",
    )
    add_options(parser, *OPTIONS)
    add_run_options(parser)
    text = "replace an existing output, and start again where an earlier run has left files"
    add(parser, "--force", text)
    add_resume(parser)
    add(parser, "--verify", "compare with the source afterwards", dest="compared")
    add_follow(parser)


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of all kinds of conversions on workers and output."""
    add_workers(parser)
    add(parser, "--dry-run", "print the plan, write nothing")
    add_output_options(parser)


def _conversion_options(args: argparse.Namespace) -> ConversionOptions:
    if len(dict(args.groups)) < len(args.groups):
        raise PlanError("a --group name is given twice; every group needs its own")
    if args.mpio and executor_name(args) != "mpi":
        raise PlanError("--mpio and --collective are for ranks of MPI; add --mpi")
    *components, (_, stripe_count) = args.progressive or [(-1, args.stripe_count)]
    arguments: dict[str, Any] = arguments_for(declared_fields(*OPTIONS), args) | {
        "groups": dict(args.groups),
        "source_options": source_options(args),
        "progressive": components,
        "stripe_count": stripe_count,
        "compare_all": args.append and args.compared,
    }
    options = ConversionOptions.of(**arguments)
    if args.recipe is None:
        return options
    requested = {declaration.name: value for declaration, value in options.changed()}
    recipe = read_recipe(args.recipe)
    if Path(args.out).suffix.lower() in output_suffixes():
        recipe.pop("to", None)
    if structure := is_structure(Path(args.out), args.to):
        layout = Path(args.out).suffix[1:]
        for name in declared_fields(Storage).keys() & recipe.keys():
            del recipe[name]  # a structure file has no options of storage
    else:
        layout = layout_name_for_output(args.out, args.to or recipe.get("to"))
    if isinstance(opened := recipe.get("source_options"), dict):  # replaced one by one
        recipe["source_options"] = opened | requested.pop("source_options", {})
    holds_groups = not structure and layout not in NATIVE_FORMATS
    if "groups" in recipe and "groups" not in requested and not holds_groups:
        del recipe["groups"]
        print_notes("convert", [f"the groups of the recipe are left out, as {layout} holds none"])
    return ConversionOptions.of(**recipe | requested)


def run(args: argparse.Namespace, executor: Executor) -> int:
    """Convert, or print the plan; under MPI, rank 0 owns the output and prints."""
    with salvage_hint_on_damage(args.salvage):
        if not (args.follow or is_stream(args.source[0])):
            for option, value in (("--frames", args.frames), ("--until-idle", args.until_idle)):
                if value is not None:
                    advice = "; --stop N converts the first N frames" * (option == "--frames")
                    raise PlanError(f"{option} is for --follow; add it, or leave it out{advice}")
        if args.ensemble:
            return _run_ensemble(args, executor)
        advice = "add --ensemble to keep trajectories apart by label, or leave out the label"
        check_unlabelled(args.source, advice)
        _check_last_source(args)
        if args.follow or is_stream(args.source[0]):
            return run_follow(_conversion_options(args), args, executor)
        return run_conversion(_conversion_options(args), args, executor)


def _check_last_source(args: argparse.Namespace) -> None:
    """Refuse to replace a native file by several of its format: it may be the last source.

    A native file does not record whether mdio or the simulation wrote it, so it might be lost.
    """
    out = Path(args.out)
    if len(args.source) < 2 or args.dry_run:
        return
    is_native = output_suffixes().get(out.suffix.lower()) in NATIVE_FORMATS
    is_like_source = any(Path(source).suffix == out.suffix for source in args.source)
    if is_native and is_like_source and out.exists():
        raise OutputError(
            f"{out}: it exists already, and the last name is taken for the output, which would "
            "replace it; if it is a source, name the output after it, and if it is an earlier "
            "output, remove it first"
        )


def _run_ensemble(args: argparse.Namespace, executor: Executor) -> int:
    """Convert several trajectories into one output, or those of an ensemble back into files."""
    for name, (option, advice) in NOT_FOR_ENSEMBLES.items():
        if getattr(args, name):
            raise PlanError(f"{option} is not for --ensemble; {advice}")
    arguments: dict[str, Any] = {"executor": executor, "force": args.force, "resume": args.resume}
    arguments |= _conversion_options(args).keywords()
    with progress_bar(0, "convert", args, executor) as progress:
        if "{label}" in args.out and len(args.source) == 1:
            results = convert_members(args.source[0], args.out, progress=progress, **arguments)
        else:
            sources = paths_by_label(args.source)
            results = convert_ensemble(sources, args.out, progress=progress, **arguments)
    if not executor.is_owner:
        return 0
    outs = {label: result.out for label, result in results.items()}
    notes = notes_by_label({label: result.plan.notes for label, result in results.items()}, outs)
    if args.json:
        print_json({"members": {label: result.to_json() for label, result in results.items()}})
    elif args.quiet:
        _print_notes_on_values("convert", notes)
    else:
        for result in results.values():
            _print_summary(replace(result, plan=result.plan.replace(notes=())))
        for note in notes:
            print(f"  note: {note}")
    return 0


def run_conversion(
    options: ConversionOptions,
    args: argparse.Namespace,
    executor: Executor,
    print_summary: Callable[[ConvertResult], None] | None = None,
) -> int:
    """Convert with these options; `args` has the paths, and the options on checks and printing."""
    if args.compared and is_structure(Path(args.out), options.storage.to):
        raise PlanError(f"{args.out}: --verify is not for a structure file; leave it out")
    # Prepared by rank 0; others get the opened source and the plan, and read the stored index.
    conversion = executor.from_owner(lambda: prepare(args.source, args.out, options, executor))
    if args.dry_run:
        if executor.is_owner:
            plan, recipe = conversion.plan, options.recipe()
            if args.json:
                print_json({"out": args.out, "plan": plan.to_json(), "recipe": recipe})
            else:
                print(plan_table(plan, conversion.n_reused_frames))
                if recipe:
                    print(f"recipe: {json.dumps(recipe)}")
        conversion.close()
        return 0
    with progress_bar(conversion.plan.n_frames, args.command, args, executor) as progress:
        result = conversion.run(executor, force=args.force, resume=args.resume, progress=progress)
    verification = _verify(args, conversion, executor) if args.compared else None
    if executor.is_owner:
        output = result.to_json()
        if verification is not None:
            output["verify"] = verification.to_json()
        if args.json:
            print_json(output)
        elif args.quiet:
            _print_notes_on_values(args.command, result.plan.notes)
        else:
            if print_summary is None or result.found_complete:
                n_existing = None if conversion.extended is None else conversion.n_reused_frames
                print_summary = partial(_print_summary, n_existing=n_existing)
            print_summary(result)
            if verification is not None and verification.ok:
                noun = "frame" if conversion.extended is None else "added frame"
                print(
                    f"  verified: {plural(verification.frames_compared, noun)} compared with the "
                    f"source, largest difference {verification.max_abs_diff_angstrom:g} angstrom"
                )
    if verification is not None and not verification.ok:
        raise CorruptLayoutError(f"{args.out}: verify failed: {verification.bad[0]}")
    return 0


def _print_notes_on_values(command: str, notes: Sequence[str]) -> None:
    """Print the notes, without those on the compression."""
    print_notes(command, [note for note in notes if COMPRESSION_NOTE not in note])


def _verify(args: argparse.Namespace, conversion: Conversion, executor: Executor) -> VerifyResult:
    with progress_bar(conversion.plan.n_frames, "verify", args, executor) as progress:
        try:
            view = executor.from_owner(conversion.expected)
            return verify(conversion.out, view=view, executor=executor, progress=progress)
        finally:
            conversion.close()


def _print_summary(result: ConvertResult, n_existing: int | None = None) -> None:
    """Print a line, and notes; `n_existing`: frames that were there already, if some were added."""
    if result.found_complete:
        print(f"{result.out}: already complete, nothing was written")
        for note in result.plan.notes:
            print(f"  note: {note}")
        return
    size = human_nbytes(result.nbytes_out)
    n_written = result.n_frames - (n_existing or 0)
    sizes = f"{human_nbytes(result.nbytes_in)} -> {size}"
    if n_existing is not None:
        sizes = f"{n_written:,} of them written, {size}"
    n_new = n_written - result.resumed_frames
    rate = f"{n_new / max(result.seconds, 1e-9):,.0f} frames/s, " if n_new else ""
    print(
        f"{result.out}: {plural(result.n_frames, 'frame')} of {plural(result.n_atoms, 'atom')} "
        f"as {result.layout}, {sizes} "
        f"in {result.seconds:.2f} s ({rate}{plural(result.workers, 'worker')})"
    )
    for note in result.plan.notes:
        print(f"  note: {note}")
    for path in result.topologies:
        print(f"  matching topology: {shlex.quote(path)}")
