"""Options, parsers of values and output that several subcommands share."""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import MISSING, fields
from functools import partial
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from mdio.core.errors import OutputError, PlanError
from mdio.core.options import argument_types, call_factory
from mdio.core.words import nbytes_from, without_passwords
from mdio.layouts.views.options import OLD_PBC_NAMES

FILE_VALUES = {"FILE", "FOLDER", "DIR", "SRC"}
"""Names of values of options that cannot be given twice: one of the values would be lost."""


class _StoreOnce(argparse.Action):
    """Store a value, as argparse does by itself, but not a second one in its place."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,  # noqa: ARG002
    ) -> None:
        if getattr(namespace, self.dest) is not self.default:
            raise argparse.ArgumentError(self, "given twice, of which one would be lost; give one")
        setattr(namespace, self.dest, values)


def add(
    parser: Any,
    names: str,
    text: str,
    parse: Callable[[str], Any] | None = None,
    *,
    completer: Callable[..., dict[str, str]] | None = None,
    **keywords: Any,
) -> None:
    """Add an option or a positional argument to `parser`, or to a group of one.

    `names`: its names and the name of its value, ``-w --workers N``; an option without one is a
    flag. `text`: its help. `parse`: parses its value. `completer`: called by argcomplete, returns
    values and descriptions, which zsh and fish show. `keywords`: arguments of `add_argument`.
    """
    *flags, value_name = names.split()
    if value_name.startswith("-"):
        flags.append(value_name)
        if not {"choices", "action"} & keywords.keys():
            keywords["action"] = "store_true"
    else:
        keywords["metavar"] = value_name
        if flags[0].startswith("-") and FILE_VALUES & {*value_name.split("|")}:
            keywords.setdefault("action", _StoreOnce)
    keywords |= {} if parse is None else {"type": parse}
    action = parser.add_argument(*flags, help=text, **keywords)
    if completer is not None:
        action.completer = completer


if TYPE_CHECKING:
    from mdio.analysis.results import AnalysisResult
    from mdio.mapreduce.results import MapReduceResult
    from mdio.parallel.executors import Executor


def arguments_for(target: Callable[..., Any] | Mapping[str, Any], args: argparse.Namespace) -> Any:
    """Return the values of `args` for the names in `target`, or for the arguments of a function."""
    names = getattr(target, "option_names", target)
    names = signature(names).parameters if callable(names) else names
    return {name: vars(args)[name] for name in names if name in args}


def add_options(parser: argparse.ArgumentParser, *parts: type, **texts: str) -> None:
    """Add the options that `parts` declare, each part under a heading.

    `texts`: if given, only the options of these names are added; a text that is not empty
    replaces the declared help.
    """
    for part in parts:
        heading = (part.__doc__ or "").partition(".\n")[0].rstrip(".")
        group = parser.add_argument_group(heading[0].lower() + heading[1:])
        exclusive_groups: dict[str, Any] = {}
        for declaration in fields(part):
            metadata = declaration.metadata
            if not metadata["spelling"] or (texts and declaration.name not in texts):
                continue
            arguments: dict[str, Any] = {"dest": declaration.name}
            if (choices := metadata.get("choices")) is not None:
                arguments["choices"] = choices() if callable(choices) else choices
            if declaration.default is not MISSING:
                arguments["default"] = declaration.default
            arguments |= {"action": "store_false"} if declaration.default is True else {}
            arguments |= PARSER_ARGUMENTS.get(metadata.get("kind", declaration.type), {})
            parent: Any = group
            if (exclusive_group := metadata.get("alone")) is not None:
                parent = exclusive_groups[exclusive_group] = (
                    exclusive_groups.get(exclusive_group) or group.add_mutually_exclusive_group()
                )
            for value, spelling in metadata.get("values", {None: metadata["spelling"]}).items():
                const = {} if value is None else {"action": "store_const", "const": value}
                add(
                    parent,
                    spelling,
                    texts.get(declaration.name) or metadata["text"],
                    **arguments,
                    **const,
                )


def add_trajectory(parser: argparse.ArgumentParser, nargs: str = "+") -> None:
    """Add trajectories that are read and joined."""
    add(parser, "trajectory TRAJ", "trajectory (several are joined)", nargs=nargs)


def add_output_options(parser: Any, quiet: str = "no progress bar, no summary") -> None:
    """Add the options on printing."""
    add(parser, "--json", "print one JSON object")
    add(parser, "-q --quiet", quiet)


def check_outputs_differ(inputs: Sequence[Any], *outputs: Any) -> None:
    """Raise PlanError if an output is an input, or another output; None stands for no output."""
    uses = {os.path.realpath(path): "reads it" for path in inputs if isinstance(path, str)}
    for path in outputs:
        if path not in (None, "-"):
            real_path = os.path.realpath(path)
            if real_path in uses:
                raise PlanError(
                    f"{path}: cannot be written, since the same command {uses[real_path]}; give "
                    "another name"
                )
            uses[real_path] = "writes it already"


def save_result(result: AnalysisResult | MapReduceResult, path: str) -> None:
    """Save a result, which may have taken hours; in the temporary folder if `path` is refused."""
    try:
        result.save(path)
    except OutputError as error:
        import tempfile  # seldom needed

        refused_path = Path(path)
        try:
            descriptor, temporary = tempfile.mkstemp(
                refused_path.suffix, f"mdio-{refused_path.stem}-"
            )
            os.close(descriptor)
        except OSError:
            raise error from None
        try:
            result.save(temporary)
        except OSError:
            with suppress(OSError):
                Path(temporary).unlink()
            raise error from None
        raise OutputError(f"{error}; the result is in {temporary}: move it") from error


def add_settings(parser: Any, text: str) -> None:
    """Add arguments of a user's own class."""
    add(parser, "--set NAME=VALUE", text, dest="settings", action="append", default=[])


NOT_FINITE = ("inf", "-inf", "nan")


def with_settings(
    factory: Callable[..., Any], name: str, settings: Sequence[str], **arguments: Any
) -> Any:
    """Call `factory` with `arguments` and those of ``--set``; raises PlanError if it refuses them.

    Values are Python's literals, ``true``, ``false`` and ``none`` in any case, and `NOT_FINITE`
    numbers; others are text, and so is all for an argument that takes text.
    """
    from ast import literal_eval  # most commands do not need it

    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise PlanError(f"--set {setting}: write it as NAME=VALUE")
        if key in arguments:
            raise PlanError(f"--set {setting}: {key} is given twice; give it once")
        parsed: Any
        try:
            words = ("True", "False", "None")
            parsed = literal_eval(value.title() if value.title() in words else value)
        except (ValueError, SyntaxError):
            parsed = float(value) if value in NOT_FINITE else value
        types = argument_types(factory, key)
        takes_text = "str" in types and types <= {"str", "None"}
        is_accepted = isinstance(parsed, str) or (parsed is None and "None" in types)
        arguments[key] = value if takes_text and not is_accepted else parsed
    return call_factory(factory, name, arguments)


def add_source(parser: argparse.ArgumentParser) -> None:
    """Add options for metadata that a trajectory may lack."""
    source = parser.add_argument_group("missing metadata")
    add(source, "--format NAME", "its format, if it cannot be recognised")
    text = "time between frames (in LAMMPS dumps: of a step), for formats that hold none"
    add(source, "--timestep PS", text, float)
    text = "length unit, for formats and files that do not record one: nm, Angstrom"
    add(source, "--length-unit UNIT", text)


def source_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options for missing metadata, as `open_source` takes them."""
    options = {"format": args.format, "dt": args.timestep, "length_unit": args.length_unit}
    return {name: value for name, value in options.items() if value is not None}


def print_notes(command: str, notes: Sequence[str]) -> None:
    """Print notes on stderr."""
    for note in notes:
        print(f"mdio {command}: {without_passwords(note)}", file=sys.stderr)


def parse_nbytes(text: str) -> int:
    """Return bytes; see `mdio.core.words.nbytes_from`."""
    try:
        return nbytes_from(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


UNITS_S = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_seconds(text: str) -> float:
    """Return the seconds that ``30s``, ``10m`` or ``2h`` mean."""
    match = re.fullmatch(r"(\d+\.?\d*|\.\d+)((?:e\d+)?)([smhd]?)", text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time; write it as 30s, 10m or 2h")
    return float(match[1] + match[2]) * UNITS_S[match[3]]


def parse_precision(text: str) -> float | Literal["auto", "none"]:
    """Return a step in angstrom, ``auto`` or ``none``."""
    if text in ("auto", "none"):
        return cast(Literal["auto", "none"], text)
    return parse_step(text, "give a step in angstrom (0.01), auto or none")


def parse_step(text: str, hint: str = "give a positive number") -> float:
    """Return the step to which numbers are rounded; `hint` is the end of error messages."""
    try:
        step = float(text)
    except ValueError:
        step = 0.0
    if not 0.0 < step < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r}: {hint}")
    return step


def parse_stripes(text: str) -> list[tuple[int, int]]:
    """Return (end in bytes, stripe count) of each component; the last end is -1, the file's end."""
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
        raise argparse.ArgumentTypeError(
            f'{text!r}: write --group NAME="SELECTION", to store these atoms once more under that '
            'name, or --select "SELECTION", to store them alone'
        )
    return name, selection


def _parser_of_renamed(option: str, names: Mapping[str, str]) -> Callable[[str], str]:
    """Return a parser for values of `option` that prints the new names of old values."""

    def parse(text: str) -> str:
        if text in names:
            print(f"mdio: {option} {text} is called {names[text]} now", file=sys.stderr)
        return text

    return parse


def parse_reference(text: str) -> int | str:
    """Return the number of a frame, or a path."""
    return int(text) if text.removeprefix("-").isdecimal() else text


PARSER_ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "auto": {"type": auto_or_positive},
    "compression": {
        "type": _parser_of_renamed("--compression", {"small": "rigid (for floats: zstd)"})
    },
    "files": {"nargs": "+", "action": "extend", "default": []},
    "float | None": {"type": float},
    "group": {"type": parse_group, "action": "append", "default": []},
    "int": {"type": int},
    "int | None": {"type": positive},
    "nbytes": {"type": parse_nbytes},
    "pbc": {"type": _parser_of_renamed("--pbc", OLD_PBC_NAMES)},
    "precision": {"type": parse_precision},
    "reference": {"type": parse_reference},
    "several": {"action": "append", "default": []},
    "step": {"type": parse_step},
    "stripes": {"type": parse_stripes},
}
"""Arguments of `add_argument` for declared options, by kind or by type."""


def print_json(value: dict[str, Any]) -> None:
    """Print one JSON object; NaN and infinity, which JSON lacks, become null."""
    print(json.dumps(_to_json(value), allow_nan=False))


def _to_json(value: Any) -> Any:
    """Return a value as JSON holds it."""
    if isinstance(value, dict):
        return {str(_to_json(key)): _to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(item) for item in value]
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if hasattr(value, "item") and not isinstance(value, str):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def add_resume(parser: argparse.ArgumentParser) -> None:
    """Add the option to resume an unfinished conversion."""
    add(parser, "--resume", "resume an unfinished run of the same conversion, if there is one")


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
    """Add the options of bench `name` on its output `files`, and on printing."""
    text = f"for {files} (default: %(default)s)"
    add(parser, "-o --out FOLDER", text, default=f"bench-output/{name}")
    add_output_options(parser, "print nothing")


@contextmanager
def progress_bar(
    total: int | Callable[[], int],
    label: str,
    args: argparse.Namespace,
    executor: Executor | None = None,
) -> Iterator[Callable[[int, int], None] | None]:
    """Yield a callback for (frames, bytes) done; None with ``--quiet``, and on ranks other than 0.

    It draws a bar, or, if stderr is not a terminal (under mpiexec, in the logs of jobs), writes a
    line now and then. `total`: number of frames, or a function that returns it; 0 if it is unknown.
    """
    n_frames = total if callable(total) else partial(int, total)
    if args.quiet or not (executor is None or executor.is_owner):
        yield None
        return
    from mdio.core.progress import ProgressBar, ProgressLog

    if sys.stderr.isatty():
        with ProgressBar(n_frames(), label, file=sys.stderr) as bar:
            yield bar
    else:
        yield ProgressLog(n_frames, label, sys.stderr)
