"""``mdio info``: what is in a trajectory."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mdio._version import __version__
from mdio.cli.shared.common import (
    add,
    add_overlap,
    add_source,
    print_json,
    say_notes,
    source_options,
)
from mdio.converters.selection import open_with_topology
from mdio.core.frame_data import described
from mdio.core.units import FIELD_UNITS
from mdio.core.words import box_text, human_nbytes, times_text
from mdio.layouts.striping.file_systems import get_stripe, unstriped
from mdio.layouts.views.ensemble import ensemble_at

TIMES = ("time_first_ps", "time_last_ps", "dt_ps")


class _Version(argparse.Action):
    """Prints the version and which decoders are in use."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from mdio.core import kernels
        from mdio.core.xtc import codec as xtc_codec

        print(f"mdio {__version__}")
        print(f"kernels: {'native' if kernels.NATIVE else 'NumPy (no compiled module)'}")
        print(f"XTC decoder: {'native' if xtc_codec.NATIVE else 'MDAnalysis (no compiled module)'}")
        parser.exit()


def setup(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add(parser, "path PATH", "trajectory (several are joined)", nargs="+")
    add_overlap(parser)
    add_source(parser)
    add(parser, "-s --top FILE", "topology, for formats that do not count their atoms")
    add(parser, "--json", "print one JSON object")
    add(parser, "--version", "version and decoders in use", nargs=0, action=_Version)


def _times(facts: dict[str, Any]) -> str:
    return times_text(*(facts[key] for key in ("n_frames", *TIMES)))


def _file(path: str, top: str | None) -> dict[str, Any]:
    """Return what one of several files has by itself."""
    kept = ("path", "n_frames", "n_atoms", *TIMES)
    with open_with_topology([path], top) as layout:
        return {name: getattr(layout.info, name) for name in kept}


def _tell_ensemble(args: argparse.Namespace, members: dict[str, Path]) -> int:
    facts = {label: _file(str(path), args.top) for label, path in members.items()}
    if args.json:
        print_json({"layout": "ensemble", "path": args.path[0], "members": facts})
        return 0
    print(f"{args.path[0]}: an ensemble of {len(members)} trajectories")
    for label, one in facts.items():
        print(
            f"  {label:<12} {one['n_frames']:,} frames of {one['n_atoms']:,} atoms, {_times(one)}"
        )
    return 0


def run(args: argparse.Namespace) -> int:
    """Print what is known of the trajectory."""
    how = source_options(args)
    if members := ensemble_at(args.path):
        return _tell_ensemble(args, members)
    with open_with_topology(args.path, args.top, overlap=args.overlap, **how) as layout:
        if not args.json:
            say_notes("info", layout.notes)
        facts: dict[str, Any] = asdict(layout.info) | {"notes": layout.notes}
        first = layout.read(0, 1, atoms=[]) if layout.info.n_frames else None
        facts["box_angstrom"] = (
            None if first is None or not first.box.any() else first.box[0].tolist()
        )
        facts["frame_data"] = described(layout.frame_data())
        facts["step_first"] = None if first is None or first.step is None else int(first.step[0])
    facts["files"] = [_file(path, args.top) for path in args.path] if len(args.path) > 1 else []
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
        "has": ", ".join(
            ["positions"]
            + [name for name in ("velocities", "forces", "box") if facts[f"has_{name}"]]
        )
        + "".join(f"; not all frames have {name}" for name in facts["sparse"]),
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
        "source": (facts["source"] or {}).get("path", ""),
    }
    for one in facts["files"]:
        print(f"{one['path']}: {one['n_frames']:,} frames, {_times(one)}")
    print("together:" if facts["files"] else args.path[0])
    for name, value in rows.items():
        if value:
            print(f"  {name:<12} {value}")
    return 0
