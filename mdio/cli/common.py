"""What several subcommands share: sizes, progress bars, JSON."""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, fields
from functools import partial
from inspect import signature
from types import MappingProxyType
from typing import Any, Literal

from mdio.core.errors import PlanError
from mdio.core.words import without_passwords
from mdio.layouts.views.options import FORMER_PBC


def add(
    parser: Any,
    names: str,
    text: str,
    kind: Callable[[str], Any] | None = None,
    *,
    offered: Mapping[str, Any] = MappingProxyType({}),
    **more: Any,
) -> None:
    """Add an option or a place to `parser`, or to a group of one.

    `names`: of it and, last, of its value: ``-w --workers N``; an option without one is a flag.
    `text`: its help. `kind`: makes the value of a text. `offered`: what shells complete, where
    other values are allowed, too: names of classes. `more`: as `add_argument` takes it.
    """
    *names_, last = names.split()
    if last.startswith("-"):
        names_.append(last)
        more = more if {"choices", "action"} & more.keys() else {"action": "store_true"} | more
    else:
        more["metavar"] = last
    more |= {} if kind is None else {"type": kind}
    action = parser.add_argument(*names_, help=text, **more)
    if offered:
        # argcomplete asks for it; zsh and fish show what the classes say of themselves.
        action.completer = lambda **_: {
            name: (one.__doc__ or "").partition("\n")[0].partition(":")[0]
            for name, one in offered.items()
        }


UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def arguments_for(target: Callable[..., Any] | Mapping[str, Any], args: argparse.Namespace) -> Any:
    """Return what `args` has under the names of `target`, or of the arguments of a function."""
    names = getattr(target, "option_names", target)
    names = signature(names).parameters if callable(names) else names
    return {name: vars(args)[name] for name in names if name in args}


def add_options(parser: argparse.ArgumentParser, *parts: type, **texts: str) -> None:
    """Add the options that `parts` declare, under a heading each.

    `texts`: add these alone; what help says of them, where it is not what is declared.
    """
    for part in parts:
        heading = (part.__doc__ or "").partition(".\n")[0].rstrip(".")
        group = parser.add_argument_group(heading[0].lower() + heading[1:])
        together: dict[str, Any] = {}
        for one in fields(part):
            about = one.metadata
            if not about["spelled"] or (texts and one.name not in texts):
                continue
            more: dict[str, Any] = {"dest": one.name}
            if (choices := about.get("choices")) is not None:
                more["choices"] = choices() if callable(choices) else choices
            if one.default is not MISSING:
                more["default"] = one.default
            more |= {"action": "store_false"} if one.default is True else {}
            more |= KINDS.get(about.get("kind", one.type), {})
            place: Any = group
            if (alone := about.get("alone")) is not None:
                place = together[alone] = (
                    together.get(alone) or group.add_mutually_exclusive_group()
                )
            for value, spelled in about.get("values", {None: about["spelled"]}).items():
                const = {} if value is None else {"action": "store_const", "const": value}
                add(place, spelled, texts.get(one.name) or about["text"], **more, **const)


def add_trajectory(parser: argparse.ArgumentParser, nargs: str = "+") -> None:
    """Add trajectories that are read and joined."""
    add(parser, "trajectory TRAJ", "trajectory (several are joined)", nargs=nargs)


def add_output_options(parser: Any, quiet: str = "no progress bar, no summary") -> None:
    """Add how much is printed."""
    add(parser, "--json", "print one JSON object")
    add(parser, "-q --quiet", quiet)


def add_settings(parser: Any, text: str) -> None:
    """Add arguments of a user's own class."""
    add(parser, "--set NAME=VALUE", text, dest="settings", action="append", default=[])


def with_settings(
    make: Callable[..., Any], name: str, settings: Sequence[str], **arguments: Any
) -> Any:
    """Call `make` with `arguments` and those of ``--set``; raises PlanError if it lacks them.

    Values are read as Python's literals; what is none is text.
    """
    from ast import literal_eval  # most commands have no use for it

    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise PlanError(f"--set {setting}: write it as NAME=VALUE")
        try:
            arguments[key] = literal_eval(value)
        except (ValueError, SyntaxError):
            arguments[key] = value
    try:
        return make(**arguments)
    except TypeError as error:
        raise PlanError(f"{name}: {error}; arguments are given with --set") from error


def add_source(parser: argparse.ArgumentParser) -> None:
    """Add what a trajectory may not say of itself."""
    source = parser.add_argument_group("missing metadata")
    add(source, "--format NAME", "its format, if it cannot be recognised")
    add(
        source,
        "--timestep PS",
        "time between frames (in LAMMPS dumps: of a step), for formats that hold none",
        float,
    )
    add(
        source,
        "--length-unit UNIT",
        "length unit, for formats and files that do not record one: nm, Angstrom",
    )


def source_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return them, as options of `open_source`."""
    given = {"format": args.format, "dt": args.timestep, "length_unit": args.length_unit}
    return {name: value for name, value in given.items() if value is not None}


def print_notes(command: str, notes: Sequence[str]) -> None:
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


def parse_group(text: str) -> tuple[str, str]:
    """Return a name and the selection of its atoms."""
    name, equals, selection = text.partition("=")
    if not (name and equals and selection):
        raise argparse.ArgumentTypeError(f'{text!r}: write --group NAME="SELECTION"')
    return name, selection


def _renamed(option: str, names: Mapping[str, str]) -> Callable[[str], str]:
    """Return what reads the value of `option`, and tells what former names of values are now."""

    def parse(text: str) -> str:
        if text in names:
            print(f"mdio: {option} {text} is called {names[text]} now", file=sys.stderr)
        return text

    return parse


def _parse_reference(text: str) -> int | str:
    """Return the number of a frame, or a path."""
    return int(text) if text.removeprefix("-").isdecimal() else text


KINDS: Mapping[str, Mapping[str, Any]] = {
    "auto": {"type": auto_or_positive},
    "compression": {"type": _renamed("--compression", {"small": "rigid (of floats: zstd)"})},
    "files": {"nargs": "+", "action": "extend"},
    "float | None": {"type": float},
    "group": {"type": parse_group, "action": "append", "default": []},
    "int": {"type": int},
    "int | None": {"type": positive},
    "nbytes": {"type": parse_nbytes},
    "pbc": {"type": _renamed("--pbc", FORMER_PBC)},
    "precision": {"type": parse_precision},
    "reference": {"type": _parse_reference},
    "several": {"action": "append", "default": []},
    "step": {"type": parse_step},
    "stripes": {"type": parse_stripes},
}
"""How the texts of declared options are read, by kind or by type."""


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


def add_resume(parser: argparse.ArgumentParser) -> None:
    """Add the option that goes on with what an earlier run left."""
    add(
        parser,
        "--resume",
        "go on with what an earlier run of the same conversion left; begin if it left nothing",
    )


def positives(text: str) -> list[int]:
    """Return whole numbers of at least 1, separated by commas."""
    return [positive(part) for part in text.split(",")]


def names_among(names: tuple[str, ...]) -> Callable[[str], list[str]]:
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
    add_output_options(parser, "print nothing")


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
        return
    from mdio.core.progress import ProgressBar, ProgressLog

    if sys.stderr.isatty():
        with ProgressBar(n_frames(), label, file=sys.stderr) as bar:
            yield bar
    else:
        yield ProgressLog(n_frames, label, sys.stderr)
