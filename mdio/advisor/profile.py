"""A machine as the scaling model sees it, and the TOML file that keeps it.

Dataclasses from the plain values of a JSON or TOML file, every value checked.
"""

from __future__ import annotations

import dataclasses
import json
import math
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from importlib import resources
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from mdio.core.errors import OutputError, PlanError, SourceError
from mdio.core.files.marks import read_regular

Value = TypeVar("Value")
LARGEST = 1e30
EXPECTED = {str: "text", int: "whole number from 0 on", float: "number from 0 to 1e30"}


def json_at(path: str | PathLike[str], wanted: str) -> Any:
    """Return what is in a JSON file.

    Raises SourceError: it cannot be read, or is no JSON; the message says what is `wanted`.
    """
    try:
        return json.loads(read_regular(Path(path)))
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{path}: not JSON ({error}); {wanted}") from None


def made_of(kind: type[Value], data: Any, where: str, name: str = "") -> Value:
    """Return a dataclass of `kind` made of a table, the value `name` of the file `where`.

    Raises SourceError: a value is missing, unknown, or cannot be; the message names it.
    """
    if not isinstance(data, dict):
        raise _wrong(data, "table", where, name or "it")
    known = fields(kind)  # type: ignore[arg-type]
    added = {field.name for field in known if field.default is not MISSING} - set(data)
    names = [field.name for field in known if field.name not in added]
    if strange := set(data) ^ set(names):
        inside = f"{where}: {name}" if name else where
        said = ", ".join(sorted(map(str, strange)))
        raise SourceError(f"{inside}: {said} missing or unknown; make it again")
    hints = typing.get_type_hints(kind)
    at = {one: f"{name}.{one}" if name else one for one in names}
    return kind(**{one: _checked(hints[one], data[one], where, at[one]) for one in names})


def _checked(hint: Any, value: Any, where: str, name: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:
        if value is None and types.NoneType in arguments:
            return None
        for option in arguments:
            if option in EXPECTED and _is(option, value):
                return value
        hint = next(one for one in arguments if one is not types.NoneType)
        return _checked(hint, value, where, name)
    if origin is tuple and isinstance(value, list):
        return tuple(
            _checked(arguments[0], one, where, f"{name}[{at}]") for at, one in enumerate(value)
        )
    if origin in (dict, Mapping) and isinstance(value, dict):
        return {
            str(key): _checked(arguments[1], one, where, f"{name}.{key}")
            for key, one in value.items()
        }
    if isinstance(hint, type) and is_dataclass(hint):
        return made_of(hint, value, where, name)
    if hint in EXPECTED and _is(hint, value):
        return value
    if hint is bool and isinstance(value, bool):
        return value
    raise _wrong(value, EXPECTED.get(hint, "table"), where, name)


def _is(kind: type, value: Any) -> bool:
    if kind is str or isinstance(value, bool):
        return kind is str and isinstance(value, str)
    number = isinstance(value, int if kind is int else int | float)
    return number and math.isfinite(value) and 0 <= value <= LARGEST


def _wrong(value: Any, expected: str, where: str, name: str) -> SourceError:
    text = repr(value)
    text = text if len(text) < 60 else text[:60] + "..."
    return SourceError(f"{where}: {name} is {text}; expected a {expected}")


LAYOUTS = ("xtc-shared", "segments", "segments-chainreader", "hdf5")
"""One file that all ranks read frame by frame; a file a rank; those files, each opened by each
rank; one HDF5 file read independently through MPI-IO."""

GATHERS = ("gather", "global-array")
"""Blocking collective gather; one-sided puts into an array that rank 0 fetches at the end."""

PAIRS = tuple((layout, gather) for layout in LAYOUTS for gather in GATHERS)

BEHAVES_LIKE = MappingProxyType(
    {
        **dict.fromkeys(("xtc", "trr", "dcd", "ncdf"), "xtc-shared"),
        "h5md": "hdf5",
        "zarr": "segments",
    }
)
"""Layouts of mdio by the published layout they resemble: a shard of Zarr is a file of its own."""

GATHER_NAMES = MappingProxyType(
    {"blocking": "gather", "nonblocking": "gather", "one-sided": "global-array"}
)


def access_model(layout: str) -> str:
    """Return the published layout whose access pattern `layout` shares.

    Raises PlanError: there is no such layout.
    """
    return _modelled("layout", layout, LAYOUTS, BEHAVES_LIKE)


def check_gather(gather: str) -> str:
    """Return the modelled gather of this name.

    Raises PlanError: there is no such gather.
    """
    return _modelled("gather", gather, GATHERS, GATHER_NAMES)


def _modelled(what: str, name: str, modelled: Sequence[str], others: Mapping[str, str]) -> str:
    found = others.get(name, name)
    if found not in modelled:
        known = ", ".join((*modelled, *others))
        raise PlanError(f"{what} {name!r} is not in the scaling model; choose one of {known}")
    return found


def io_family(layout: str) -> str:
    """Return which layouts hold the same bytes: ``hdf5`` holds the selection, the rest is XTC."""
    return "hdf5" if layout == "hdf5" else "xtc"


FORMAT = 1
COUNTS = ("cores_per_node", "task.n_frames", "storage.stripe_count", "storage.stripe_nbytes")
NAMES = ("comet", "generic")
"""Profiles that come with mdio; ``local`` is for the machine one sits at, measured on the spot."""


@dataclass(frozen=True)
class Task:
    """What one rank needs for the whole task that the profile was fitted to."""

    n_frames: int
    result_nbytes_per_frame: float
    nbytes: Mapping[str, float]
    """Bytes that are read, by family of layouts (``xtc``, ``hdf5``)."""
    t_io_s: Mapping[str, float]
    """Seconds one rank reads, by family of layouts."""
    t_open_s: Mapping[str, float]
    """Seconds one rank opens, by family of layouts."""
    t_rest_s: Mapping[str, float]
    """Seconds of one rank's loop over the frames that are neither, by family of layouts."""
    t_comp_fixed_s: float
    """Seconds one rank computes whatever the workload factor X is ..."""
    t_comp_repeat_s: float
    """... and for each of the X repeats."""

    def t_comp_s(self, workload_x: float) -> float:
        """Return the seconds that one rank computes at the X-fold workload."""
        return self.t_comp_fixed_s + workload_x * self.t_comp_repeat_s


@dataclass(frozen=True)
class Storage:
    """Storage and the network to it."""

    aggregate_bytes_per_s: float
    """Bytes/s that all storage targets give together."""
    stripe_bytes_per_s: float
    """Bytes/s of one storage target, that is of one stripe of a file."""
    stripe_count: int
    """Storage targets a shared file lies on."""
    stripe_nbytes: int
    node_bytes_per_s: float
    """Bytes/s of a node's link."""
    lock_s: float
    """Seconds a request to a shared file waits for the lock when another node had it last."""
    lock_gather_s: float
    """Seconds more for it where ranks that are done wait in a blocking gather."""
    client_lock_s: float
    """Seconds a request to a shared file keeps the others of its node from it."""
    open_file_s: float
    """Seconds one rank needs to open and close one more file."""
    metadata_ops_per_s: float
    """Opens and closes that the metadata server does."""
    read_factor: Mapping[str, float]
    """How much slower a rank reads among others than alone, by layout."""

    @property
    def file_bytes_per_s(self) -> float:
        """Bytes/s of one shared file: of its stripes, no more than the whole storage gives."""
        stripes = self.stripe_bytes_per_s * self.stripe_count
        return min(stripes, self.aggregate_bytes_per_s)


@dataclass(frozen=True)
class Noise:
    """How ranks and runs differ, as shares of the mean (standard deviation / mean)."""

    compute: float
    io: Mapping[str, Mapping[str, float]]
    """Between the ranks of a run, by layout and gather."""
    straggler: float
    """Between runs, of the time that contention costs."""
    fit: float
    """Of the model's totals against the rows it was fitted to."""
    carry: float
    """The same for layouts and gathers of which the machine has no row."""


@dataclass(frozen=True)
class Gather:
    """Cost of bringing the results to rank 0."""

    base_s: float
    per_rank_s: float


@dataclass(frozen=True)
class Profile:
    """A machine: its parts, the task it was measured with, and how well the model fits it."""

    name: str
    source: str
    cores_per_node: int
    node_slowdown: float
    """How much slower a core is on a full node than alone, as a share."""
    task: Task
    storage: Storage
    noise: Noise
    gather: Mapping[str, Gather]
    measured: Mapping[str, int]
    """Rows the fit used, by ``layout/gather``."""


def load_profile(name: str | Path) -> Profile:
    """Read a profile by the name of one that comes with mdio, or from a TOML file.

    Raises SourceError: there is no such file, or a value is missing, of the wrong kind or not
    positive.
    """
    if str(name) in NAMES:
        where = f"profile {name}"
        text = resources.files(__package__).joinpath("profiles", f"{name}.toml").read_text("utf-8")
    else:
        where = str(name)
        try:
            text = read_regular(Path(name)).decode()
        except (OSError, UnicodeDecodeError) as error:
            raise SourceError(
                f"{where}: no machine profile can be read ({error}); "
                f"give a TOML file or one of {', '.join(NAMES)}"
            ) from None
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SourceError(f"{where}: this is not TOML ({error})") from None
    if data.pop("format", None) != FORMAT:
        raise SourceError(f"{where}: no machine profile of format {FORMAT}; fit it again")
    data.pop("convert", None)  # older files have this table
    profile = made_of(Profile, data, where)
    _check_names(profile, where)
    _check_numbers(dataclasses.asdict(profile), where)
    return profile


def save_profile(profile: Profile, path: str | Path) -> None:
    """Write the profile as TOML.

    Raises OutputError: the file cannot be written.
    """
    try:
        Path(path).write_text(to_toml(profile), "utf-8")
    except OSError as error:
        raise OutputError(f"{path}: the profile cannot be written ({error.strerror})") from None


def to_toml(profile: Profile) -> str:
    """Return the profile as the text of a TOML file; figures to six digits."""
    lines = [f"format = {FORMAT}"]
    _write(dataclasses.asdict(profile), "", lines)
    return "\n".join(lines) + "\n"


def _write(table: Mapping[str, Any], prefix: str, lines: list[str]) -> None:
    for key, value in table.items():
        if not isinstance(value, Mapping):
            lines.append(f"{_key(key)} = {_value(value)}")
    for key, value in table.items():
        if isinstance(value, Mapping):
            path = f"{prefix}.{_key(key)}" if prefix else _key(key)
            lines.extend(("", f"[{path}]"))
            _write(value, path, lines)


def _key(key: str) -> str:
    bare = all(letter.isalnum() or letter in "-_" for letter in key)
    return key if bare else f'"{key}"'


def _value(value: str | float) -> str:
    if isinstance(value, str):
        escaped = "".join(
            f"\\{letter}" if letter in '"\\' else letter if letter.isprintable() else " "
            for letter in value
        )
        return f'"{escaped}"'
    if isinstance(value, int):
        return str(value)
    text = f"{value:.6g}"
    return text if any(mark in text for mark in ".en") else f"{text}.0"


def _check_names(profile: Profile, where: str) -> None:
    families = {"xtc", "hdf5"}
    wanted: list[tuple[str, Mapping[str, Any], set[str]]] = [
        ("gather", profile.gather, set(GATHERS)),
        ("noise.io", profile.noise.io, set(LAYOUTS)),
        ("storage.read_factor", profile.storage.read_factor, set(LAYOUTS)),
    ]
    wanted += [
        (f"task.{n}", getattr(profile.task, n), families)
        for n in ("nbytes", "t_io_s", "t_open_s", "t_rest_s")
    ]
    wanted += [
        (f"noise.io.{n}", table if isinstance(table, Mapping) else {}, set(GATHERS))
        for n, table in profile.noise.io.items()
    ]
    for name, table, keys in wanted:
        if set(table) != keys:
            raise SourceError(f"{where}: {name} has {sorted(table)}, expected {sorted(keys)}")


def _check_numbers(values: Mapping[str, Any], where: str, name: str = "") -> None:
    """Refuse numbers that the model would divide by, and cannot."""
    for key, value in values.items():
        at = f"{name}.{key}" if name else key
        if isinstance(value, Mapping):
            _check_numbers(value, where, at)
        elif isinstance(value, int | float):
            least = 1 / LARGEST if _divides(at) else 0
            least = 1 if isinstance(value, int) and at in COUNTS else least
            if value < least:
                raise SourceError(f"{where}: {at} is {value!r}; expected a number above 0")


def _divides(where: str) -> bool:
    """Whether the model divides by this, or takes its logarithm."""
    return any(name in where for name in ("_per_s", "t_comp_repeat", "t_io_s", "nbytes", "factor"))
