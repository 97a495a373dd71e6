"""What several subcommands share: sizes, progress bars, JSON."""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from inspect import signature
from types import MappingProxyType
from typing import Any, Literal

from mdio.converters.periodic import PBC_CHOICES
from mdio.core.progress import ProgressBar, ProgressLog
from mdio.core.words import without_passwords
from mdio.layouts.views import OVERLAPS


def add(
    parser: Any,
    names: str,
    told: str,
    kind: Callable[[str], Any] | None = None,
    *,
    offered: Mapping[str, Any] = MappingProxyType({}),
    **more: Any,
) -> None:
    """Add an option or a place to `parser`, or to a group of one.

    `names`: of it and, last, of its value: ``-w --workers N``; an option without one is a flag.
    `told`: its help. `kind`: makes the value of a text. `offered`: what shells complete, where
    other values are allowed, too: names of classes. `more`: as `add_argument` takes it.
    """
    *names_, last = names.split()
    if last.startswith("-"):
        names_.append(last)
        more = more if {"choices", "action"} & more.keys() else {"action": "store_true"} | more
    else:
        more["metavar"] = last
    more |= {} if kind is None else {"type": kind}
    action = parser.add_argument(*names_, help=told, **more)
    if offered:
        # argcomplete asks for it; zsh and fish show what the classes say of themselves.
        action.completer = lambda **_: {
            name: (one.__doc__ or "").partition("\n")[0].partition(":")[0]
            for name, one in offered.items()
        }


def add_periodic(group: Any) -> None:
    """Add ``--pbc`` and ``--center`` to a group of options."""
    add(
        group,
        "--pbc",
        "whole: molecules that the box cuts are made whole (needs bonds); mol: and put into "
        "the box by their centres; cluster: the molecules of --center (or of --select) brought "
        "together, the others around them; atom: each atom into the box; nojump: atoms go on "
        "where they leave the box (unwrap and wrap are whole and atom)",
        choices=PBC_CHOICES,
    )
    add(
        group,
        "--center SEL",
        "move these atoms to the middle of the box, then the others around them as --pbc says "
        "(whole is then mol)",
    )


UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def asked(target: Callable[..., Any], args: argparse.Namespace) -> dict[str, Any]:
    """Return what `args` has under the names of the arguments of `target`."""
    return {name: vars(args)[name] for name in signature(target).parameters if name in args}


def add_trajectory(parser: argparse.ArgumentParser, nargs: str = "+") -> None:
    """Add trajectories that are read and joined."""
    add(parser, "trajectory TRAJ", "trajectory (several are joined)", nargs=nargs)
    add_overlap(parser)


def add_told(parser: Any, quiet: str = "no progress bar, no summary") -> None:
    """Add how much is printed."""
    add(parser, "--json", "print one JSON object")
    add(parser, "-q --quiet", quiet)


def add_overlap(parser: argparse.ArgumentParser) -> None:
    """Add ``--overlap`` to a command that joins trajectories."""
    add(
        parser,
        "--overlap",
        "frames whose times several files have: keep those of the last file (default), of "
        "the first, refuse them, or keep all, with files in the order given",
        choices=OVERLAPS,
    )


def add_source(parser: argparse.ArgumentParser) -> None:
    """Add what a trajectory may not say of itself."""
    source = parser.add_argument_group("what the trajectory does not say")
    add(source, "--format NAME", "its format, where neither its name nor its bytes tell")
    add(
        source,
        "--timestep PS",
        "time between frames (in LAMMPS dumps: of a step), where the format holds none",
        float,
    )
    add(source, "--length-unit UNIT", "of a format or file that names none: nm, Angstrom")


def source_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return them, as options of `open_source`."""
    given = {"format": args.format, "dt": args.timestep, "length_unit": args.length_unit}
    return {name: value for name, value in given.items() if value is not None}


def add_cache(parser: Any) -> None:
    """Add ``--cache`` and ``--cache-size`` to a parser or a group of one."""
    add(
        parser,
        "--cache DIR",
        "keep what is read there, on a disk of each node, and read it from there next time",
    )
    add(
        parser,
        "--cache-size SIZE",
        "of all that is kept there: 200G (default: all but a tenth of the disk or 8 GiB)",
        parse_nbytes,
    )


def say_notes(command: str, notes: Sequence[str]) -> None:
    """Tell on stderr how files were joined."""
    for note in notes:
        print(f"mdio {command}: {without_passwords(note)}", file=sys.stderr)


def parse_nbytes(text: str) -> int:
    """Return the bytes that ``4M``, ``512K``, ``1GiB`` or ``1048576`` mean (powers of 1024)."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write it as 4M or 1048576")
    nbytes = round(float(match[1]) * UNITS[match[2].upper()])
    if nbytes < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is less than one byte")
    return nbytes


def parse_precision(text: str) -> float | Literal["auto", "none"]:
    """Return a step in angstrom, or one of two words."""
    if text == "auto" or text == "none":
        return "auto" if text == "auto" else "none"
    return parse_step(text, "give a step in angstrom (0.01), auto or none")


def parse_step(text: str, wanted: str = "give a positive number") -> float:
    """Return a step of stored numbers; an error says what is `wanted`."""
    try:
        step = float(text)
    except ValueError:
        step = 0.0
    if not 0.0 < step < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r}: {wanted}")
    return step


def parse_stripes(text: str) -> list[tuple[int, int]]:
    """Return (end in bytes, stripe count) of each component; the last end is -1, the file's."""
    parts = []
    for part in text.split(","):
        end, _, count = part.partition(":")
        if not re.fullmatch(r"-1|\d+", count):
            raise argparse.ArgumentTypeError(f"{text!r}: write END:COUNT,...,-1:COUNT")
        parts.append((-1 if end == "-1" else parse_nbytes(end), int(count)))
    ends = [end for end, _ in parts[:-1]]
    if parts[-1][0] != -1 or -1 in ends or ends != sorted(set(ends)) or not ends:
        raise argparse.ArgumentTypeError(
            f"{text!r}: the ends must increase, and the last one must be -1"
        )
    return parts


def positive(text: str) -> int:
    """Return a whole number of at least 1."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return number


def auto_or_positive(text: str) -> int | None:
    """Parse a count, or ``auto``, which is None."""
    return None if text == "auto" else positive(text)


def print_json(value: dict[str, Any]) -> None:
    """Print one JSON object; NaN and infinity, which JSON lacks, become null."""
    print(json.dumps(_plain(value), allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "item") and not isinstance(value, str | bytes):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def add_frame_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose frames."""
    frames = parser.add_argument_group("frames")
    add(frames, "--start N", "first frame (0 is the first)", int)
    add(frames, "--stop N", "frame to stop before", int)
    add(frames, "--step N", "every Nth frame", positive)
    for names, dest, text in (
        (("-b", "--begin"), "begin_ps", "first time, ps"),
        (("-e", "--end"), "end_ps", "last time, ps"),
        (("--dt",), "dt_ps", "keep one frame every PS ps"),
    ):
        frames.add_argument(*names, dest=dest, type=float, metavar="PS", help=text)


def add_resume(parser: argparse.ArgumentParser) -> None:
    """Add the option that goes on with what an earlier run left."""
    add(
        parser,
        "--resume",
        "go on with what an earlier run of the same conversion left; begin if it left nothing",
    )


def add_no_verify(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the option that trusts the disk; `what` is read."""
    add(
        parser,
        "--no-verify",
        f"trust the disk: do not compare what is read of {what} with its checksums",
        dest="verify",
        action="store_false",
    )


def positives(text: str) -> list[int]:
    """Return whole numbers of at least 1, separated by commas."""
    return [positive(part) for part in text.split(",")]


def one_of(names: tuple[str, ...]) -> Callable[[str], list[str]]:
    """Return a parser of names separated by commas."""

    def parse(text: str) -> list[str]:
        for name in text.split(","):
            if name not in names:
                raise argparse.ArgumentTypeError(
                    f"{name!r} is none of {', '.join(names)}; separate several by commas"
                )
        return text.split(",")

    return parse


def add_bench_output(parser: argparse.ArgumentParser, name: str, files: str) -> None:
    """Add where the bench `name` keeps its `files`, and what it prints."""
    add(
        parser,
        "-o --out FOLDER",
        f"for {files} (default: %(default)s)",
        default=f"bench-output/{name}",
    )
    add_told(parser, "print nothing")


@contextmanager
def progress_bar(
    total: int | Callable[[], int], label: str, *, quiet: bool = False
) -> Iterator[Callable[[int, int], None] | None]:
    """Yield a callback for (frames, bytes) done; None if it is to be `quiet`.

    It draws a bar, or writes a line now and then where stderr is no terminal: under mpiexec, and in
    the logs of jobs. `total`: frames in all, or what tells them; 0 if they are not known.
    """
    n_frames = total if callable(total) else partial(int, total)
    if quiet:
        yield None
    elif sys.stderr.isatty():
        with ProgressBar(n_frames(), label, file=sys.stderr) as bar:
            yield bar
    else:
        yield ProgressLog(n_frames, label, sys.stderr)
