"""``mdio cache``: show, evict and verify the cache of a node; fill it while a simulation writes."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from mdio.cli.common import add, add_output_options, parse_nbytes, parse_seconds, print_json
from mdio.core.cache import Cache, cached_trajectories, evict_units, verify_units
from mdio.core.files.store import COPY_ADVICE, require_disk
from mdio.core.signals import stop_event_on_signals
from mdio.core.words import human_nbytes, plural
from mdio.parallel.assignment import CacheFollower, follow_into_cache


def _parse_size(text: str) -> int:
    return 0 if text == "0" else parse_nbytes(text)


def setup(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    follow = actions.add_parser("follow", help="cache trajectories while a simulation writes them")
    add(follow, "pattern PATTERN", "of trajectories, quoted: 'run/*.xtc'")
    add(follow, "--dir DIR", "folder on a disk of this node", required=True)
    add(follow, "--cache-size SIZE", "as for analyze", parse_nbytes)
    text = "names of all nodes that follow; each takes its share (default: this one alone)"
    add(follow, "--nodes A,B,...", text, lambda names: names.split(","), default=[])
    text = "interval of checks for new frames (default: 60s)"
    add(follow, "--every TIME", text, parse_seconds, default=60.0)
    text = "end when no trajectory has grown for this time: 10m"
    add(follow, "--until-idle TIME", text, parse_seconds)
    status = actions.add_parser("status", help="show the contents, by trajectory")
    evict = actions.add_parser("evict", help="remove units that were not used for longest")
    add(evict, "--keep SIZE", "size to leave (default: nothing)", _parse_size, default=0)
    add(evict, "--trajectory TRAJ", "remove units of this trajectory only")
    verify = actions.add_parser("verify", help="compare all units with their checksums")
    for action in (status, evict, verify):
        add(action, "dir DIR", "the folder given as --cache")
    for action in (follow, status, evict, verify):
        add_output_options(action, "no summary")


def run(args: argparse.Namespace) -> int:
    """Run the chosen action; return 1 if the cache is damaged."""
    code, output, lines = ACTIONS[args.action](args)
    if args.json:
        print_json(output)
    elif not args.quiet:
        print("\n".join(lines))
    return code


Outcome = tuple[int, dict[str, Any], list[str]]
"""Exit code, output for ``--json``, lines of text."""


def _status(args: argparse.Namespace) -> Outcome:
    trajectories = list(cached_trajectories(args.dir))
    nbytes = sum(entry["nbytes"] for entry in trajectories)
    lines = [f"{args.dir}: {human_nbytes(nbytes)} of {plural(len(trajectories), 'trajectory')}"]
    for entry in trajectories:
        names = "".join(f" ({entry[name]})" for name in ("label", "node") if entry[name])
        units = f"{entry['units_cached']:,} of {plural(entry['units'], 'unit')}"
        stale = "; stale: its source is gone or has changed" if entry["is_stale"] else ""
        lines.append(f"  {entry['path']}{names}: {units}, {human_nbytes(entry['nbytes'])}{stale}")
    return 0, {"folder": args.dir, "nbytes": nbytes, "trajectories": trajectories}, lines


def _evict(args: argparse.Namespace) -> Outcome:
    n_files, nbytes = evict_units(args.dir, args.keep, args.trajectory)
    line = f"{args.dir}: {plural(n_files, 'file')} removed, {human_nbytes(nbytes)}"
    return 0, {"folder": args.dir, "files": n_files, "nbytes": nbytes}, [line]


def _verify(args: argparse.Namespace) -> Outcome:
    units = list(verify_units(args.dir))
    bad = [f"{path}: {problem}" for path, problem in units if problem is not None]
    output = {"ok": not bad, "folder": args.dir, "units_checked": len(units), "bad": bad}
    lines = [f"bad: {problem}; it will be read from the source again" for problem in bad]
    lines.append(f"{args.dir}: {plural(len(units), 'unit')} checked, {len(bad):,} damaged")
    return int(bool(bad)), output, lines


def _follow(args: argparse.Namespace) -> Outcome:
    n_reported = 0
    require_disk(args.pattern, f"only trajectories on a disk can be followed; {COPY_ADVICE}")

    def report(follower: CacheFollower) -> None:
        nonlocal n_reported
        if follower.n_units > n_reported and not args.quiet:
            n_reported = follower.n_units
            print(
                f"mdio cache: {args.dir}: {plural(follower.n_units, 'unit')} so far",
                file=sys.stderr,
                flush=True,
            )

    with stop_event_on_signals() as stopped:
        follower = follow_into_cache(
            args.pattern,
            Cache(args.dir, args.cache_size),
            nodes=args.nodes,
            every_s=args.every,
            until_idle_s=args.until_idle,
            stopped=stopped,
            report=report,
        )
    output = {
        "folder": args.dir,
        "units": follower.n_units,
        "nbytes": follower.nbytes,
        "notes": follower.notes,
    }
    size = human_nbytes(follower.nbytes)
    lines = [f"{args.dir}: {plural(follower.n_units, 'unit')} kept, {size}", *follower.notes]
    return 0, output, lines


ACTIONS = {"follow": _follow, "status": _status, "evict": _evict, "verify": _verify}
