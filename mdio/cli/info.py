"""``mdio info``: facts of a trajectory."""

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
from mdio.layouts.manifest import count_indices, indices_from_runs, treatments
from mdio.layouts.striping.file_systems import get_stripe, no_stripes_note
from mdio.layouts.views.opening import ensemble_members
from mdio.layouts.views.options import Reading
from mdio.layouts.views.view import read_times

HAS_FIELDS = ("has_velocities", "has_forces", "has_box")
N_PROBED_FRAMES = 100
"""Frames that are read to find the interval of fields that some frames lack."""
TIMES = ("time_first_ps", "time_last_ps", "dt_ps")


def setup(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add(parser, "path PATH", "trajectory (several are joined)", nargs="+")
    add_options(parser, Reading, overlap="")
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


def _selection_rows(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return which part of the source an output has, and with which options it was made."""
    source = facts["source"] or {}
    n_by_program = count_indices(source.get("by_program", ())) or 0
    counts = {"frames": facts["n_frames"] - n_by_program, "atoms": facts["n_atoms"]}
    parts = [
        f"{n_kept:,} of {source[f'n_{noun}']:,} {noun}"
        for noun, n_kept in counts.items()
        if source.get(f"n_{noun}", n_kept) != n_kept
    ]
    if n_by_program:
        parts.append(f"{plural(n_by_program, 'frame')} written by a program")
    made_with = {**(source.get("transformed") or {}), **treatments(source)}
    options = (f"--{k.replace('_', '-')} {v}" for k, v in made_with.items() if v is not None)
    return {"kept": ", ".join(parts), "made with": " ".join(options)}


def _notes_on_time_order(layout: Layout) -> tuple[str, ...]:
    """Return a note if times go back.

    Where they lie beside the frames all are read, unless the first and the last show that frames
    are evenly spaced; in other files none but these two.
    """
    info = layout.info
    if info.n_frames < 2 or info.dt_ps <= 0:
        return ()
    if info.time_last_ps > info.time_first_ps:
        ends_ps = info.time_first_ps, info.time_last_ps
        if layout.facts.keeps_columns and not are_times_even(info.n_frames, *ends_ps, info.dt_ps):
            with suppress(CorruptLayoutError):  # which verify tells
                return notes_on_times(read_times(layout))
        return ()
    return (
        f"the last of {info.n_frames:,} frames is at {number_text(info.time_last_ps)} ps and the "
        f"first at {number_text(info.time_first_ps)} ps, so times go back somewhere between them; "
        "if this file joins several simulations, give their original files one by one",
    )


def _times_text(facts: dict[str, Any]) -> str:
    n_frames, first, last, dt = (facts[key] for key in ("n_frames", *TIMES))
    text = times_text(n_frames, first, last, dt)
    is_uneven = n_frames > 1 and first != last and not are_times_even(n_frames, first, last, dt)
    return f"{text} (first and last frame), not evenly spaced" if is_uneven else text


def _fields_text(facts: dict[str, Any]) -> str:
    fields = [name for name in ("velocities", "forces", "box") if facts[f"has_{name}"]]
    sparse = (
        f"; {name} {f'every {interval} frames' if interval else 'not in all frames'}"
        for name, interval in facts["field_every"].items()
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


def _first_frame_facts(layout: Layout) -> dict[str, Any]:
    """Return cell and step of the first frame, and intervals of sparse fields."""
    block = layout.read(0, 1, atoms=[]) if layout.info.n_frames else None
    box = None if block is None or not block.box.any() else block.box[0].tolist()
    step = None if block is None or block.step is None else int(block.step[0])
    return {"box_angstrom": box, "step_first": step, "field_every": _field_intervals(layout)}


def _file_facts(path: str, args: argparse.Namespace) -> dict[str, Any]:
    """Return facts of one of several files."""
    names = ("path", "n_frames", "n_atoms", *TIMES, *HAS_FIELDS, "sparse")
    with open_with_topology([path], args.top, **source_options(args)) as layout:
        return {name: getattr(layout.info, name) for name in names} | _first_frame_facts(layout)


def _print_files(args: argparse.Namespace, refusal: SourceError) -> int:
    """Print facts of files that cannot be joined, such as replicas, and the reason."""
    files = [_file_facts(path, args) for path in args.path]
    if args.json:
        print_json({"layout": None, "files": files, "notes": [str(refusal)]})
        return 0
    for facts in files:
        first_step = "" if facts["step_first"] is None else f"{facts['step_first']:,}"
        _print_rows(facts["path"], _common_rows(facts) | {"first step": first_step})
    print(f"mdio info: not joined: {refusal}", file=sys.stderr)
    return 0


def _common_rows(facts: dict[str, Any]) -> dict[str, str]:
    return {
        "frames": f"{facts['n_frames']:,}",
        "atoms": f"{facts['n_atoms']:,}",
        "time": _times_text(facts),
        "has": _fields_text(facts),
        "box": box_text(facts["box_angstrom"]),
    }


def _print_rows(title: str, rows: dict[str, str]) -> None:
    print(title)
    for name, value in rows.items():
        if value:
            print(f"  {name:<12} {value}")


def _print_ensemble(args: argparse.Namespace, members: dict[str, Path]) -> int:
    facts_by_label = {label: _file_facts(str(path), args) for label, path in members.items()}
    if args.json:
        print_json({"layout": "ensemble", "path": args.path[0], "members": facts_by_label})
        return 0
    print(f"{args.path[0]}: an ensemble of {plural(len(members), 'trajectory')}")
    for label, facts in facts_by_label.items():
        size = f"{plural(facts['n_frames'], 'frame')} of {plural(facts['n_atoms'], 'atom')}"
        print(f"  {label:<12} {size}, {_times_text(facts)}")
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
        made_from = layout.info.source or {}
        if left_out := made_from.get("unreadable_frames"):
            stretches = made_from.get("unreadable_stretches", ())  # each counts as one frame
            n_frames = len(indices_from_runs(left_out)) - len(stretches)
            n_frames += sum(stretch["about"] or 1 for stretch in stretches)
            about = "about " if stretches else ""
            notes += (
                f"{about}{plural(n_frames, 'frame')} of the source could not be read, and were "
                f"left out: {runs_text(left_out, MAX_RUNS)}",
            )
        if not args.json:
            print_notes("info", notes)
        facts: dict[str, Any] = asdict(layout.info) | {"notes": notes}
        facts |= facts.pop("rounding")._asdict() | facts.pop("flaws")._asdict()
        stripe_record = (layout.manifest or {}).get("stripe") or {}
        if stripe_record.get("asked") and stripe_record.get("reason"):
            facts["not_striped_as_asked"] = stripe_record["reason"]
        facts |= _first_frame_facts(layout) | {"frame_data": describe_columns(layout.frame_data())}
    facts["files"] = [_file_facts(path, args) for path in args.path] if len(args.path) > 1 else []
    stripe = get_stripe(args.path[0])
    facts["striping"] = None if stripe is None else asdict(stripe)
    facts["no_striping"] = no_stripes_note(args.path[0])
    if args.json:
        print_json(facts)
        return 0
    size = facts["nbytes"]
    rows = {
        "layout": facts["layout"],
        **_common_rows(facts),
        "each frame": facts["frame_data"],
        "groups": ", ".join(f"{name} ({n:,} atoms)" for name, n in facts["groups"].items()),
        "chunks": f"{facts['chunk_frames']} frames x {facts['chunk_atoms'] or facts['n_atoms']:,}"
        " atoms"
        if facts["chunk_frames"]
        else "",
        "compression": facts["compression"] or "none",
        "precision": f"{facts['precision']:g} angstrom" if facts["precision"] else "float32",
        **{
            name: f"rounded to {step:g} {FIELD_UNITS[name]}"
            for name, step in facts["field_precisions"].items()
        },
        "size": f"{human_nbytes(size)} "
        f"({size / max(1, facts['n_frames'] * facts['n_atoms']):.2f} bytes/atom/frame)",
        "striping": facts["striping"]["layout"] if facts["striping"] else facts["no_striping"],
        "not striped": f"as requested: {facts['not_striped_as_asked']}"
        if "not_striped_as_asked" in facts
        else "",
        "source": _source_files(facts["source"] or {}),
        **_selection_rows(facts),
    }
    for file_facts in facts["files"]:
        print(f"{file_facts['path']}: {file_facts['n_frames']:,} frames, {_times_text(file_facts)}")
    _print_rows("together:" if facts["files"] else args.path[0], rows)
    return 0
