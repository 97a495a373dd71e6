"""Measurements as a JSON file: saved, read back and checked, decided upon again."""

from __future__ import annotations

import json
import math
import types
import typing
from dataclasses import MISSING, asdict, fields, is_dataclass
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from mdio.advisor.measure.measurements import Measurements
from mdio.core.errors import OutputError, SourceError

__all__ = ["SCHEMA", "load_measurements", "measurements_from", "save_measurements"]

SCHEMA = "mdio-measurements-1"
Value = TypeVar("Value")


def save_measurements(measurements: Measurements, path: str | PathLike[str]) -> None:
    """Write measurements, for `load_measurements`.

    Raises OutputError: the file cannot be written.
    """
    text = json.dumps({"schema": SCHEMA, **asdict(measurements)}, indent=1)
    try:
        Path(path).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise OutputError(
            f"{path}: measurements cannot be written ({error.strerror}); choose another place"
        ) from None


def load_measurements(path: str | PathLike[str]) -> Measurements:
    """Read what `save_measurements` wrote, or the ``measurements`` of ``mdio advise --json``.

    Raises SourceError: there is no such file, it is no measurements, or a value in it cannot be.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{path}: not JSON ({error}); expected saved measurements") from None
    return measurements_from(data, str(path))


def measurements_from(data: Any, where: str) -> Measurements:
    """Return measurements from plain values.

    Raises SourceError: they are no measurements, or one of them cannot be; the message names it.
    """
    if isinstance(data, dict) and "measurements" in data:
        data = data["measurements"]
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise SourceError(
            f"{where}: no measurements of schema {SCHEMA}; make them with "
            "mdio advise --save-measurements"
        )
    found = _build(
        Measurements, {key: value for key, value in data.items() if key != "schema"}, where
    )
    if found.source.n_frames < 1 or found.trial("as-is") is None:
        raise SourceError(f"{where}: no frames, or no measurement of the source as it is")
    return found


def _build(kind: type[Value], data: Any, where: str) -> Value:
    """Return a dataclass of `kind` made of a JSON object, every value checked."""
    if not isinstance(data, dict):
        raise SourceError(f"{where}: {_short(data)} found, expected an object")
    known = fields(kind)  # type: ignore[arg-type]
    added = {field.name for field in known if field.default is not MISSING} - set(data)
    names = [field.name for field in known if field.name not in added]
    if strange := set(data) ^ set(names):
        raise SourceError(f"{where}: {', '.join(sorted(map(str, strange)))} missing or unknown")
    hints = typing.get_type_hints(kind)
    return kind(**{name: _value(hints[name], data[name], f"{where}: {name}") for name in names})


def _value(hint: Any, value: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:
        if value is None and types.NoneType in arguments:
            return None
        for option in arguments:
            if option in (int, float, str) and _is(option, value):
                return _value(option, value, where)
        return _value(next(a for a in arguments if a is not types.NoneType), value, where)
    if origin is tuple and isinstance(value, list):
        items = [_value(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(value)]
        return tuple(items)
    if origin is dict and isinstance(value, dict):
        return {str(key): _value(arguments[1], item, where) for key, item in value.items()}
    if isinstance(hint, type) and is_dataclass(hint):
        return _build(hint, value, where)
    if isinstance(hint, type) and _is(hint, value):
        return value
    name = getattr(hint, "__name__", str(hint))
    raise SourceError(f"{where}: {_short(value)} found, expected {name} (numbers of 0 or more)")


def _is(kind: type, value: Any) -> bool:
    if kind in (int, float):
        number = isinstance(value, int if kind is int else int | float)
        return number and not isinstance(value, bool) and math.isfinite(value) and value >= 0
    return isinstance(value, kind)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 60 else text[:60] + "..."
