"""The manifest: the description of an output of mdio, as JSON beside the frames."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mdio._version import __version__
from mdio.core.errors import CorruptLayoutError, PlanError
from mdio.core.files.checks import CHECKSUM_KEY, with_checksum
from mdio.core.frames import columns_to_json

if TYPE_CHECKING:
    from mdio.layouts.plan import LayoutPlan
    from mdio.layouts.writer import OutputMeta

FORMAT = "mdio"
FULL_SYSTEM = "trajectory"
"""The particle group of all atoms; MDAnalysis looks for their number under this name."""
FORMAT_VERSION = 1
"""Increased whenever older versions of mdio could misread new outputs."""

IndexRuns = Sequence[Sequence[int]]
"""Indices as runs, each [start, stop, step], as a manifest has them."""

_NUMBER = (int, float)
_NONE = type(None)
_REQUIRED: Mapping[str, type | tuple[type, ...]] = {
    "layout": str,
    "uuid": str,
    "mdio_version": str,
    "created": str,
    "source": dict,
    "n_frames": int,
    "n_atoms": int,
    "dt_ps": _NUMBER,
    "has_box": bool,
    "groups": dict,
    "frames": list,
    "group_atoms": dict,
}
_OPTIONAL: Mapping[str, type | tuple[type, ...]] = {
    "appended_to": str,
    "atoms": (list, _NONE),
    "compression": (str, _NONE),
    "container": str,
    "error_bound_angstrom": _NUMBER,
    "field_error_bounds": dict,
    "field_precisions": dict,
    "fields": list,
    "flavour": str,
    "nbytes": int,
    "precision": (*_NUMBER, _NONE),
    "precision_source": (str, _NONE),
    "not_finite": dict,
    "recipe": dict,
    "repaired": list,
    "sparse": list,
    "stripe": dict,
    "time_first_ps": (*_NUMBER, _NONE),
    "time_last_ps": (*_NUMBER, _NONE),
    CHECKSUM_KEY: int,
}


def stored_transformation(manifest: Mapping[str, Any] | None, option: str) -> Any:
    """Return the ``pbc`` or ``fit`` with which stored frames were made, or None."""
    return stored_transformations((manifest or {}).get("source")).get(option)


def stored_transformations(source: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the values of ``pbc`` and ``fit`` with which the frames of an output were made.

    `source`: that of its manifest; the values with which the source was made count, too.
    """
    source = source or {}
    options = (source.get("transformed") or {}).items()
    own_options = {
        name: value for name, value in options if name in ("pbc", "fit") and value is not None
    }
    return {**source.get("treated", {}), **own_options}


def runs_from_indices(indices: ArrayLike) -> list[list[int]]:
    """Return indices, in any order, as runs of [start, stop, step].

    Each stands for ``range(start, stop, step)``, with `step` > 0; one after the other they give the
    indices.
    """
    values = np.asarray(indices, np.int64)
    steps = np.diff(values)
    # Where runs of equal steps end: step k lies between the values k and k + 1.
    ends = np.append(np.flatnonzero(np.diff(steps)) + 1, steps.size).tolist()
    runs: list[list[int]] = []
    first = 0  # the first value that is in no run yet
    for end in ends if steps.size else []:
        step = int(steps[end - 1])
        if step > 0 and end > first:
            runs.append([int(values[first]), int(values[end]) + 1, step])
            first = end + 1
        elif step <= 0:
            runs += [[int(v), int(v) + 1, 1] for v in values[first:end]]
            first = end
    runs += [[int(v), int(v) + 1, 1] for v in values[first:]]
    return runs


def indices_from_runs(runs: IndexRuns) -> NDArray[np.int64]:
    """Return the indices in `runs`; inverse of `runs_from_indices`."""
    parts = [np.arange(*run, dtype=np.int64) for run in runs]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def build_manifest(plan: LayoutPlan, meta: OutputMeta, **extra: Any) -> dict[str, Any]:
    """Return the manifest of an output as JSON-able values.

    `extra`: values that only the writer knows: at least ``has_box`` (whether any frame has a
    non-zero box), and whatever its layout needs for reading. Frames and atoms that are kept, and
    atoms of groups, are runs of [start, stop, step]; ``atoms`` is None where all are kept; the
    atoms of a group are indices into the kept ones. ``error_bound_angstrom`` is the largest
    difference between a stored coordinate and the source's, before rounding to float32.
    """
    precision = plan.precision
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "layout": plan.layout,
        "uuid": meta.uuid,
        "mdio_version": __version__,
        "created": meta.created,
        "source": dict(meta.source),
        "n_frames": plan.n_frames,
        "n_atoms": plan.n_atoms,
        "dt_ps": float(meta.dt_ps) if math.isfinite(meta.dt_ps) else 0.0,  # JSON has no NaN
        "has_box": False,
        "compression": plan.compression,
        "precision": precision,
        "precision_source": plan.precision_source,
        "error_bound_angstrom": 0.0 if plan.keeps_integers else (precision or 0.0) / 2,
        "groups": {a.group: a.n_atoms for a in plan.arrays if a.group != FULL_SYSTEM},
        "frames": [[int(n) for n in run] for run in meta.frames],
        "atoms": None if meta.atoms is None else runs_from_indices(meta.atoms),
        "group_atoms": {
            name: runs_from_indices(atoms) for name, atoms in (meta.groups or {}).items()
        },
        "stripe": {
            "stripe_nbytes": plan.stripes.stripe_nbytes,
            "stripe_count": plan.stripes.stripe_count,
            **(meta.striping or {}),
        },
        "checksum": "crc32c",
        **({"frame_data": columns_to_json(meta.frame_data)} if meta.frame_data else {}),
        **({} if meta.appended_to is None else {"appended_to": meta.appended_to}),
    }
    if precisions := dict(plan.field_precisions):
        manifest["field_precisions"] = precisions
        manifest["field_error_bounds"] = {name: step / 2 for name, step in precisions.items()}
    if plan.flavour is not None:
        manifest["flavour"] = plan.flavour
    if plan.native.sparse:
        manifest["sparse"] = list(plan.native.sparse)
    if meta.not_finite is not None:
        manifest["not_finite"] = asdict(meta.not_finite)
    if meta.recipe:
        manifest["recipe"] = dict(meta.recipe)
    if meta.repaired:
        manifest["repaired"] = list(meta.repaired)
    return with_checksum(manifest | extra)


def has_source_integers(manifest: Mapping[str, Any]) -> bool:
    """Return whether an output holds the integers of XTC files, and so lost nothing."""
    return manifest.get("precision_source") not in (None, "asked")


def is_group_name(name: str) -> bool:
    """Return whether a particle group, other than the full system, may have this name.

    A slash or ``..`` would lead elsewhere in the tree, or out of it.
    """
    return name not in ("", ".", "..", FULL_SYSTEM) and "/" not in name and "\0" not in name


def check_group_names(names: Iterable[str]) -> None:
    """Raise PlanError for a name that a particle group cannot have."""
    for name in names:
        if not is_group_name(name):
            raise PlanError(
                f"--group {name}: not a name for a particle group; take one without a slash "
                f"that is not {FULL_SYSTEM!r} (the full system)"
            )


def check_manifest(manifest: Any, path: str | PathLike[str]) -> dict[str, Any]:
    """Return `manifest` if this mdio can read what it describes; raises CorruptLayoutError.

    It is not trusted: a wrong number must not decide how much memory is allocated.
    """

    def damage(text: str) -> CorruptLayoutError:
        return CorruptLayoutError(f"{path}: {text}; convert the source again")

    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise damage("its manifest is not one of mdio")
    version = manifest.get("format_version")
    if not isinstance(version, int) or version < 1:
        raise damage(f"its manifest has format version {version!r}, expected 1 to {FORMAT_VERSION}")
    if version > FORMAT_VERSION:
        raise CorruptLayoutError(
            f"{path}: written in format version {version} by mdio "
            f"{manifest.get('mdio_version')}, this is mdio {__version__} and reads up to "
            f"{FORMAT_VERSION}; install a newer mdio"
        )
    if "checksum" in manifest or CHECKSUM_KEY in manifest:
        expected = with_checksum(manifest)[CHECKSUM_KEY]
        if manifest.get(CHECKSUM_KEY) != expected:
            raise CorruptLayoutError(
                f"{path}: its manifest has the checksum {expected}, expected "
                f"{manifest.get(CHECKSUM_KEY)!r}; it was damaged or changed, convert the source "
                "again"
            )
    if (key := _key_of_wrong_type(manifest)) is not None:
        actual = repr(manifest[key])[:60] if key in manifest else "nothing"
        raise damage(f"its manifest has {actual} for {key!r}")
    n_frames, n_atoms = manifest["n_frames"], manifest["n_atoms"]
    if n_frames < 1 or n_atoms < 1:
        raise damage(f"its manifest has {n_frames} frames of {n_atoms} atoms")
    expected_counts = {"atoms": (manifest.get("atoms"), n_atoms)}
    for name, size in manifest["groups"].items():
        if not is_group_name(name):
            raise damage(f"its manifest has a group {name!r}, which no group may be called")
        runs = manifest["group_atoms"].get(name, [])
        expected_counts[f"group {name}"] = (runs, size)
        if count_indices(runs) is not None and any(run[1] > n_atoms for run in runs):
            raise damage(f"the group {name} in its manifest has atoms beyond its {n_atoms} atoms")
    for name, (runs, expected) in expected_counts.items():
        if runs is not None and count_indices(runs) != expected:
            raise damage(f"the runs of {name} in its manifest do not add up to {expected}")
    return manifest


def _key_of_wrong_type(manifest: Mapping[str, Any]) -> str | None:
    """Return a key whose value has another type than mdio writes: later code does not check."""
    optional = {key: types for key, types in _OPTIONAL.items() if key in manifest}
    for key, types in {**_REQUIRED, **optional}.items():
        value: Any = manifest.get(key)
        # Booleans are ints to Python.
        is_valid = isinstance(value, types) and (types is bool or not isinstance(value, bool))
        if key == "frames":
            is_valid = is_valid and count_indices(value) is not None
        elif key == "fields":
            is_valid = is_valid and all(isinstance(field, str) for field in value)
        elif key == "groups":
            is_valid = is_valid and all(type(n) is int for n in value.values())
        elif key == "field_precisions":
            is_valid = is_valid and all(type(n) in _NUMBER for n in value.values())
        if not is_valid:
            return key
    return None


def count_indices(runs: Any) -> int | None:
    """Return the number of indices in `runs`, without listing them; None for malformed runs."""
    try:
        if any(start < 0 or step < 1 for start, _, step in runs):
            return None
        return sum(len(range(*run)) for run in runs)
    except (TypeError, ValueError, OverflowError):
        return None


def manifest_checksums(manifest: Mapping[str, Any], key: str, path: Any) -> dict[str, Any]:
    """Return the checksums by array that a manifest holds; older manifests hold none."""
    crcs = manifest.get(key, {})
    if not isinstance(crcs, dict):
        raise CorruptLayoutError(
            f"{path}: its manifest has {str(crcs)[:60]!r} for {key!r}; convert the source again"
        )
    return crcs
