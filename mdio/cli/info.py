"""``mdio info``: show what a trajectory contains."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from mdio._version import __version__
from mdio.cli.common import add, add_options, add_source, print_json, print_notes, source_options
from mdio.converters.selection import open_with_topology
from mdio.core.errors import CorruptLayoutError, SourceError
from mdio.core.frames import absent_frames, describe_columns, notes_on_times
from mdio.core.units import FIELD_UNITS
from mdio.core.words import (
    MAX_RUNS,
    are_times_even,
    box_text,
    human_nbytes,
    number_text,
    plural,
    runs_text,
    times_text,
)
from mdio.layouts.base import Layout
from mdio.layouts.manifest import count_indices, indices_from_runs, stored_transformations
from mdio.layouts.striping.file_systems import get_stripe, no_stripes_note
from mdio.layouts.views.opening import ensemble_members
from mdio.layouts.views.options import ReadOptions
from mdio.layouts.views.view import read_times

FIELD_FLAGS = ("has_velocities", "has_forces", "has_box")
N_PROBED_FRAMES = 100
"""Frames that are read to find the interval of fields that some frames lack."""
TIME_KEYS = ("time_first_ps", "time_last_ps", "dt_ps")


def setup(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add(parser, "path PATH", "trajectory (several are joined)", nargs="+")
    add_options(parser, ReadOptions, overlap="")
    add_source(parser)
    add(parser, "-s --top FILE", "topology, for formats that do not hold the number of atoms")
    add(parser, "--json", "print one JSON object")
    text = "version and decoders in use"
    add(parser, "--version", text, action="version", version=f"mdio {__version__}")


def _source_files(source: Mapping[str, Any]) -> str:
    """Return the first source file of an output, and the number of further ones."""
    n_more = len(source.get("files", ())) - 1
    path = str(source.get("path", ""))
    return f"{path} and {plural(n_more, 'more file')}" if n_more > 0 else path


def _selection_rows(summary: Mapping[str, Any]) -> dict[str, str]:
    """Return which part of the source an output has, and with which options it was made."""
    source = summary["source"] or {}
    n_by_program = count_indices(source.get("by_program", ())) or 0
    counts = {"frames": summary["n_frames"] - n_by_program, "atoms": summary["n_atoms"]}
    parts = [
        f"{n_stored:,} of {source[f'n_{noun}']:,} {noun}"
        for noun, n_stored in counts.items()
        if source.get(f"n_{noun}", n_stored) != n_stored
    ]
    if n_by_program:
        parts.append(f"{plural(n_by_program, 'frame')} written by a program")
    options = {**(source.get("transformed") or {}), **stored_transformations(source)}
    texts = (
        f"--{name.replace('_', '-')} {value}"
        for name, value in options.items()
        if value is not None
    )
    return {"kept": ", ".join(parts), "made with": " ".join(texts)}


def _notes_on_time_order(layout: Layout) -> tuple[str, ...]:
    """Return a note if times go back.

    Where they lie beside the frames, all are read, unless the first and the last show that frames
    are evenly spaced; elsewhere, only these two are known.
    """
    info = layout.info
    if info.n_frames < 2 or info.dt_ps <= 0:
        return ()
    if info.time_last_ps > info.time_first_ps:
        ends_ps = info.time_first_ps, info.time_last_ps
        if layout.facts.stores_columns_exactly and not are_times_even(
            info.n_frames, *ends_ps, info.dt_ps
        ):
            with suppress(CorruptLayoutError):  # which verify reports
                return notes_on_times(read_times(layout))
        return ()
    return (
        f"the last of {info.n_frames:,} frames is at {number_text(info.time_last_ps)} ps and the "
        f"first at {number_text(info.time_first_ps)} ps, so times go back somewhere between them; "
        "if this file joins several simulations, give their original files one by one",
    )


def _times_text(summary: dict[str, Any]) -> str:
    n_frames, first, last, dt = (summary[key] for key in ("n_frames", *TIME_KEYS))
    text = times_text(n_frames, first, last, dt)
    is_uneven = n_frames > 1 and first != last and not are_times_even(n_frames, first, last, dt)
    return f"{text} (first and last frame), not evenly spaced" if is_uneven else text


def _fields_text(summary: dict[str, Any]) -> str:
    fields = [name for name in ("velocities", "forces", "box") if summary[f"has_{name}"]]
    sparse = (
        f"; {name} {f'every {interval} frames' if interval else 'not in all frames'}"
        for name, interval in summary["field_every"].items()
    )
    return ", ".join(["positions", *fields]) + "".join(sparse)


def _field_intervals(layout: Layout) -> dict[str, int | None]:
    """Return the interval in frames of each field that some frames lack.

    None where the interval differs among the first frames, or too few of them have the field.
    """
    names = layout.info.sparse
    if not names:
        return {}
    block = layout.read(0, min(layout.info.n_frames, N_PROBED_FRAMES), atoms=[0])
    intervals = {}
    for name in names:
        values = getattr(block, name)
        if block.n_frames == layout.info.n_frames and not absent_frames(values).any():
            continue  # the format does not record whether all frames have the field
        gaps: set[int] = set()
        if values is not None:
            gaps = {*np.diff(np.flatnonzero(~absent_frames(values))).tolist()}
        intervals[name] = gaps.pop() if len(gaps) == 1 and gaps != {1} else None
    return intervals


def _first_frame_values(layout: Layout) -> dict[str, Any]:
    """Return cell and step of the first frame, and intervals of sparse fields."""
    block = layout.read(0, 1, atoms=[]) if layout.info.n_frames else None
    box = None if block is None or not block.box.any() else block.box[0].tolist()
    step = None if block is None or block.step is None else int(block.step[0])
    return {"box_angstrom": box, "step_first": step, "field_every": _field_intervals(layout)}


def _summarise_file(path: str, args: argparse.Namespace) -> dict[str, Any]:
    """Return facts of one of several files."""
    names = ("path", "n_frames", "n_atoms", *TIME_KEYS, *FIELD_FLAGS, "sparse")
    with open_with_topology([path], args.top, **source_options(args)) as layout:
        return {name: getattr(layout.info, name) for name in names} | _first_frame_values(layout)


def _print_files(args: argparse.Namespace, refusal: SourceError) -> int:
    """Print facts of files that cannot be joined, such as replicas, and the reason."""
    files = [_summarise_file(path, args) for path in args.path]
    if args.json:
        print_json({"layout": None, "files": files, "notes": [str(refusal)]})
        return 0
    for summary in files:
        first_step = "" if summary["step_first"] is None else f"{summary['step_first']:,}"
        _print_rows(summary["path"], _common_rows(summary) | {"first step": first_step})
    print(f"mdio info: not joined: {refusal}", file=sys.stderr)
    return 0


def _common_rows(summary: dict[str, Any]) -> dict[str, str]:
    return {
        "frames": f"{summary['n_frames']:,}",
        "atoms": f"{summary['n_atoms']:,}",
        "time": _times_text(summary),
        "has": _fields_text(summary),
        "box": box_text(summary["box_angstrom"]),
    }


def _chunks_text(summary: dict[str, Any]) -> str:
    if not summary["chunk_frames"]:
        return ""
    n_atoms = summary["chunk_atoms"] or summary["n_atoms"]
    return f"{summary['chunk_frames']} frames x {n_atoms:,} atoms"


def _print_rows(title: str, rows: dict[str, str]) -> None:
    print(title)
    for name, value in rows.items():
        if value:
            print(f"  {name:<12} {value}")


def _print_ensemble(args: argparse.Namespace, members: dict[str, Path]) -> int:
    summaries = {label: _summarise_file(str(path), args) for label, path in members.items()}
    if args.json:
        print_json({"layout": "ensemble", "path": args.path[0], "members": summaries})
        return 0
    print(f"{args.path[0]}: an ensemble of {plural(len(members), 'trajectory')}")
    for label, summary in summaries.items():
        size = f"{plural(summary['n_frames'], 'frame')} of {plural(summary['n_atoms'], 'atom')}"
        print(f"  {label:<12} {size}, {_times_text(summary)}")
    return 0


def run(args: argparse.Namespace) -> int:
    """Print facts of the trajectory."""
    options = source_options(args)
    if members := ensemble_members(args.path):
        return _print_ensemble(args, members)
    try:
        source = open_with_topology(args.path, args.top, overlap=args.overlap, **options)
    except SourceError as refusal:
        if len(args.path) == 1 or args.overlap is not None:
            raise
        return _print_files(args, refusal)
    with source as layout:
        notes = (*layout.notes, *_notes_on_time_order(layout))
        source_record = layout.info.source or {}
        if unreadable := source_record.get("unreadable_frames"):
            stretches = source_record.get("unreadable_stretches", ())  # each counts as one frame
            n_frames = len(indices_from_runs(unreadable)) - len(stretches)
            n_frames += sum(stretch["about"] or 1 for stretch in stretches)
            about = "about " if stretches else ""
            notes += (
                f"{about}{plural(n_frames, 'frame')} of the source could not be read, and were "
                f"left out: {runs_text(unreadable, MAX_RUNS)}",
            )
        if not args.json:
            print_notes("info", notes)
        summary: dict[str, Any] = asdict(layout.info) | {"notes": notes}
        summary |= summary.pop("rounding")._asdict() | summary.pop("flaws")._asdict()
        stripe_record = (layout.manifest or {}).get("stripe") or {}
        if stripe_record.get("asked") and stripe_record.get("reason"):
            summary["not_striped_as_asked"] = stripe_record["reason"]
        summary |= _first_frame_values(layout) | {
            "frame_data": describe_columns(layout.frame_data())
        }
    summary["files"] = (
        [_summarise_file(path, args) for path in args.path] if len(args.path) > 1 else []
    )
    stripe = get_stripe(args.path[0])
    summary["striping"] = None if stripe is None else asdict(stripe)
    summary["no_striping"] = no_stripes_note(args.path[0])
    if args.json:
        print_json(summary)
        return 0
    size = summary["nbytes"]
    rows = {
        "layout": summary["layout"],
        **_common_rows(summary),
        "each frame": summary["frame_data"],
        "groups": ", ".join(f"{name} ({n:,} atoms)" for name, n in summary["groups"].items()),
        "chunks": _chunks_text(summary),
        "compression": summary["compression"] or "none",
        "precision": f"{summary['precision']:g} angstrom" if summary["precision"] else "float32",
        **{
            name: f"rounded to {step:g} {FIELD_UNITS[name]}"
            for name, step in summary["field_precisions"].items()
        },
        "size": f"{human_nbytes(size)} "
        f"({size / max(1, summary['n_frames'] * summary['n_atoms']):.2f} bytes/atom/frame)",
        "striping": summary["striping"]["layout"]
        if summary["striping"]
        else summary["no_striping"],
        "not striped": f"as requested: {summary['not_striped_as_asked']}"
        if "not_striped_as_asked" in summary
        else "",
        "source": _source_files(summary["source"] or {}),
        **_selection_rows(summary),
    }
    for file in summary["files"]:
        print(f"{file['path']}: {file['n_frames']:,} frames, {_times_text(file)}")
    _print_rows("together:" if summary["files"] else args.path[0], rows)
    return 0
