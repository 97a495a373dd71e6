"""``mdio info``: what is in a trajectory."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from mdio._version import __version__
from mdio.cli.common import (
    add,
    add_options,
    add_source,
    print_json,
    print_notes,
    source_options,
)
from mdio.converters.selection import open_with_topology
from mdio.core.errors import SourceError
from mdio.core.frames import absent, described
from mdio.core.units import FIELD_UNITS
from mdio.core.words import box_text, human_nbytes, plural, times_text
from mdio.layouts.base import Layout
from mdio.layouts.striping.file_systems import get_stripe, unstriped
from mdio.layouts.views.opening import ensemble_at
from mdio.layouts.views.options import Reading

HAS = ("has_velocities", "has_forces", "has_box")
LOOKED_AT = 100  # frames, for how often a field comes
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


def _made_of(source: Mapping[str, Any]) -> str:
    """Return the first of the files that an output was made of, and how many more there are."""
    n_more = len(source.get("files", ())) - 1
    path = str(source.get("path", ""))
    return f"{path} and {plural(n_more, 'more file')}" if n_more > 0 else path


def _times(facts: dict[str, Any]) -> str:
    return times_text(*(facts[key] for key in ("n_frames", *TIMES)))


def _fields(facts: dict[str, Any]) -> str:
    fields = [name for name in ("velocities", "forces", "box") if facts[f"has_{name}"]]
    lacking = (
        f"; {name} {f'every {every} frames' if every else 'not in all frames'}"
        for name, every in facts["field_every"].items()
    )
    return ", ".join(["positions", *fields]) + "".join(lacking)


def _every(layout: Layout) -> dict[str, int | None]:
    """Return after how many frames each field comes again that some frames lack.

    None where the first frames have no even interval, or do not tell one.
    """
    names = layout.info.sparse
    if not names:
        return {}
    block = layout.read(0, min(layout.info.n_frames, LOOKED_AT), atoms=[0])
    found = {}
    for name in names:
        values = getattr(block, name)
        if block.n_frames == layout.info.n_frames and not absent(values).any():
            continue  # a format may know of some field only that it is not in all frames
        gaps = set() if values is None else set(np.diff(np.flatnonzero(~absent(values))).tolist())
        found[name] = gaps.pop() if len(gaps) == 1 and gaps != {1} else None
    return found


def _first(layout: Layout) -> dict[str, Any]:
    """Return cell and step of the first frame, and how often fields come."""
    first = layout.read(0, 1, atoms=[]) if layout.info.n_frames else None
    box = None if first is None or not first.box.any() else first.box[0].tolist()
    step = None if first is None or first.step is None else int(first.step[0])
    return {"box_angstrom": box, "step_first": step, "field_every": _every(layout)}


def _file(path: str, args: argparse.Namespace) -> dict[str, Any]:
    """Return what one of several files has by itself."""
    kept = ("path", "n_frames", "n_atoms", *TIMES, *HAS, "sparse")
    with open_with_topology([path], args.top, **source_options(args)) as layout:
        return {name: getattr(layout.info, name) for name in kept} | _first(layout)


def _tell_each(args: argparse.Namespace, refusal: SourceError) -> int:
    """List files that are no parts of one trajectory, as replicas are not; say why not."""
    files = [_file(path, args) for path in args.path]
    if args.json:
        print_json({"layout": None, "files": files, "notes": [str(refusal)]})
        return 0
    for one in files:
        rows = {
            "frames": f"{one['n_frames']:,}",
            "atoms": f"{one['n_atoms']:,}",
            "time": _times(one),
            "first step": "" if one["step_first"] is None else f"{one['step_first']:,}",
            "has": _fields(one),
            "box": box_text(one["box_angstrom"]),
        }
        _print_rows(one["path"], rows)
    print(f"mdio info: not joined: {refusal}", file=sys.stderr)
    return 0


def _print_rows(title: str, rows: dict[str, str]) -> None:
    print(title)
    for name, value in rows.items():
        if value:
            print(f"  {name:<12} {value}")


def _tell_ensemble(args: argparse.Namespace, members: dict[str, Path]) -> int:
    facts = {label: _file(str(path), args) for label, path in members.items()}
    if args.json:
        print_json({"layout": "ensemble", "path": args.path[0], "members": facts})
        return 0
    print(f"{args.path[0]}: an ensemble of {plural(len(members), 'trajectory')}")
    for label, one in facts.items():
        held = f"{plural(one['n_frames'], 'frame')} of {plural(one['n_atoms'], 'atom')}"
        print(f"  {label:<12} {held}, {_times(one)}")
    return 0


def run(args: argparse.Namespace) -> int:
    """Print what is known of the trajectory."""
    how = source_options(args)
    if members := ensemble_at(args.path):
        return _tell_ensemble(args, members)
    try:
        opened = open_with_topology(args.path, args.top, overlap=args.overlap, **how)
    except SourceError as refusal:
        if len(args.path) == 1 or args.overlap is not None:
            raise
        return _tell_each(args, refusal)
    with opened as layout:
        if not args.json:
            print_notes("info", layout.notes)
        facts: dict[str, Any] = asdict(layout.info) | {"notes": layout.notes}
        facts |= facts.pop("rounding")._asdict() | facts.pop("flaws")._asdict()
        requested = (layout.manifest or {}).get("stripe") or {}
        if requested.get("asked") and requested.get("reason"):
            facts["not_striped_as_asked"] = requested["reason"]
        facts |= _first(layout) | {"frame_data": described(layout.frame_data())}
    facts["files"] = [_file(path, args) for path in args.path] if len(args.path) > 1 else []
    found = get_stripe(args.path[0])
    facts["striping"] = None if found is None else asdict(found)
    facts["no_striping"] = unstriped(args.path[0])
    if args.json:
        print_json(facts)
        return 0
    size = facts["nbytes"]
    rows = {
        "layout": facts["layout"],
        "frames": f"{facts['n_frames']:,}",
        "atoms": f"{facts['n_atoms']:,}",
        "time": _times(facts),
        "has": _fields(facts),
        "box": box_text(facts["box_angstrom"]),
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
        "stripes asked": f"not applied: {facts['not_striped_as_asked']}"
        if "not_striped_as_asked" in facts
        else "",
        "source": _made_of(facts["source"] or {}),
    }
    for one in facts["files"]:
        print(f"{one['path']}: {one['n_frames']:,} frames, {_times(one)}")
    _print_rows("together:" if facts["files"] else args.path[0], rows)
    return 0
