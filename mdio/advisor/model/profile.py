"""A machine as the scaling model sees it, and the TOML file that keeps it."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from mdio.advisor.model.access_model import GATHERS, LAYOUTS
from mdio.advisor.model.plain import LARGEST, made_of
from mdio.core.errors import OutputError, SourceError
from mdio.core.files.regular import read_regular

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
