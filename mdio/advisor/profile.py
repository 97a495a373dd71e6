"""A machine's profile for the scaling model, and its TOML file."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

from mdio.core.errors import PlanError, SourceError
from mdio.core.files.checks import read_regular
from mdio.core.files.publish import publish
from mdio.core.json_dataclasses import Count, Positive, dataclass_from_json

ACCESS_MODELS = ("xtc-shared", "segments", "segments-chainreader", "hdf5")
"""Published layouts. xtc-shared: one file that all ranks read frame by frame. segments: a file for
each rank. segments-chainreader: these files, each rank opens all. hdf5: one file that ranks read
independently through MPI-IO."""

GATHERS = ("gather", "global-array")
"""Blocking collective gather; one-sided puts into an array that rank 0 fetches at the end."""

LAYOUT_GATHER_PAIRS = tuple((layout, gather) for layout in ACCESS_MODELS for gather in GATHERS)

MODELLED_LAYOUTS = MappingProxyType(
    {
        **dict.fromkeys(("xtc", "trr", "dcd", "ncdf"), "xtc-shared"),
        "h5md": "hdf5",
        "zarr": "segments",
    }
)
"""The layout of the model for each layout of mdio; each shard of Zarr is a separate file."""

MODELLED_GATHERS = MappingProxyType(
    {"blocking": "gather", "nonblocking": "gather", "one-sided": "global-array"}
)


def access_model(layout: str) -> str:
    """Return the published layout whose access pattern `layout` shares; raises PlanError: none."""
    return _model_name("layout", layout, ACCESS_MODELS, MODELLED_LAYOUTS)


def gather_model(gather: str) -> str:
    """Return the modelled gather of this name; raises PlanError: there is none."""
    return _model_name("gather", gather, GATHERS, MODELLED_GATHERS)


def _model_name(kind: str, name: str, modelled: Sequence[str], aliases: Mapping[str, str]) -> str:
    model = aliases.get(name, name)
    if model not in modelled:
        names = ", ".join((*modelled, *aliases))
        raise PlanError(f"{kind} {name!r} is not in the scaling model; choose one of {names}")
    return model


def io_family(layout: str) -> str:
    """Return the family of layouts with equal bytes: ``hdf5`` (selected atoms) or ``xtc`` (all)."""
    return "hdf5" if layout == "hdf5" else "xtc"


FORMAT = 1
PROFILE_NAMES = ("comet", "generic")
"""Profiles that mdio ships; ``local`` means this machine, without a profile."""


ByFamily = Annotated[Mapping[str, float], {"xtc", "hdf5"}]
PositiveByFamily = Annotated[Mapping[str, Positive], {"xtc", "hdf5"}]


@dataclass(frozen=True)
class Task:
    """The task that the profile was fitted to, on a single rank."""

    n_frames: Count
    result_nbytes_per_frame: Positive
    nbytes: PositiveByFamily
    t_io_s: PositiveByFamily
    t_open_s: ByFamily
    t_rest_s: ByFamily
    """Other seconds of the loop over frames."""
    t_comp_fixed_s: float
    """Seconds for computing, independent of the workload factor X."""
    t_comp_repeat_s: Positive
    """Seconds for computing each of the X repeats."""

    def t_comp_s(self, workload_x: float) -> float:
        """Return the seconds that one rank computes at the X-fold workload."""
        return self.t_comp_fixed_s + workload_x * self.t_comp_repeat_s


@dataclass(frozen=True)
class StorageModel:
    """Storage and the network to it."""

    aggregate_bytes_per_s: Positive
    """Bytes/s of all storage targets together."""
    stripe_bytes_per_s: Positive
    """Bytes/s of one storage target, that is of one stripe of a file."""
    stripe_count: Count
    """Storage targets of a shared file."""
    stripe_nbytes: Count
    node_bytes_per_s: Positive
    """Bytes/s of a node's link."""
    lock_s: float
    """Seconds that a request to a shared file waits for a lock that another node had last."""
    lock_gather_s: float
    """Further seconds of a request if ranks that are done wait in a blocking gather."""
    client_lock_s: float
    """Seconds that a request to a shared file blocks those of other ranks on its node."""
    open_file_s: float
    """Seconds one rank needs to open and close one more file."""
    metadata_ops_per_s: Positive
    """Opens and closes per second of the metadata server."""
    read_factor: Annotated[Mapping[str, Positive], {*ACCESS_MODELS}]
    """Time of a rank's reads among other ranks, divided by its time alone, by layout."""

    @property
    def file_bytes_per_s(self) -> float:
        """Bytes/s of one shared file: those of its stripes, at most those of the whole storage."""
        stripes = self.stripe_bytes_per_s * self.stripe_count
        return min(stripes, self.aggregate_bytes_per_s)


@dataclass(frozen=True)
class Noise:
    """Variation of times, as standard deviation / mean."""

    compute: float
    """Computing, between the ranks of a run."""
    io: Annotated[Mapping[str, Annotated[Mapping[str, float], {*GATHERS}]], {*ACCESS_MODELS}]
    """Reading, between the ranks of a run, by layout and gather."""
    straggler: float
    """Contention, between runs."""
    fit: float
    """Error of the model's totals for the layouts and gathers that it was fitted to."""
    carry: float
    """Error of the model's totals for other layouts and gathers."""


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
    cores_per_node: Count
    node_slowdown: float
    """Slow-down of a core on a full node, as a share."""
    task: Task
    storage: StorageModel
    noise: Noise
    gather: Annotated[Mapping[str, Gather], {*GATHERS}]
    measured: Mapping[str, int]
    """Number of rows that the fit used, by ``layout/gather``."""

    def slowdown(self, n_ranks: int) -> float:
        """Return the factor by which ranks are slower than one alone, as nodes are filled."""
        n_others = self.cores_per_node - 1
        node_share = min(n_ranks - 1, n_others) / n_others if n_others else 0.0
        return 1 + self.node_slowdown * node_share


def load_profile(name: str | Path) -> Profile:
    """Read a profile by the name of one that comes with mdio, or from a TOML file."""
    if str(name) in PROFILE_NAMES:
        path = f"profile {name}"
        text = resources.files(__package__).joinpath("profiles", f"{name}.toml").read_text("utf-8")
    else:
        path = str(name)
        try:
            text = read_regular(Path(name)).decode()
        except (OSError, UnicodeDecodeError) as error:
            raise SourceError(
                f"{path}: the machine profile cannot be read ({error}); "
                f"give a TOML file or one of {', '.join(PROFILE_NAMES)}"
            ) from None
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SourceError(f"{path}: this is not TOML ({error})") from None
    if data.pop("format", None) != FORMAT:
        raise SourceError(f"{path}: not a machine profile of format {FORMAT}; fit it again")
    data.pop("convert", None)  # older files have this table
    return dataclass_from_json(Profile, data, path)


def save_profile(profile: Profile, path: str | Path) -> None:
    """Write the profile as TOML, figures to six digits."""
    lines = [f"format = {FORMAT}"]
    _write(dataclasses.asdict(profile), "", lines)
    with publish(path, force=True) as temporary:
        temporary.write_text("\n".join(lines) + "\n", "utf-8")


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
    is_bare = all(letter.isalnum() or letter in "-_" for letter in key)
    return key if is_bare else f'"{key}"'


def _value(value: str | float) -> str:
    if isinstance(value, str):
        printable = "".join(letter if letter.isprintable() else " " for letter in value)
        return json.dumps(printable, ensure_ascii=False)
    if isinstance(value, int):
        return str(value)
    text = f"{value:.6g}"
    return text if any(mark in text for mark in ".en") else f"{text}.0"
