"""Dataclasses made from the values of a JSON or TOML file, every value checked.

The type of a field says what it may be: text, a number (finite, from 0 to 1e30), one above 0
(`Positive`, `Count`), a table or list of these, another dataclass; ``Annotated[Mapping, {...}]`` is
a table with just these keys.
"""

from __future__ import annotations

import json
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, TypeVar

from mdio.core.errors import SourceError
from mdio.core.files.checks import read_regular

Value = TypeVar("Value")
MAX_NUMBER = 1e30
TYPE_TEXTS = {str: "text", int: "whole number from 0 on", float: "number from 0 to 1e30"}
ABOVE_0 = "above 0"
Positive = Annotated[float, ABOVE_0]
Count = Annotated[int, ABOVE_0]


def load_json(path: str | PathLike[str], expectation: str) -> Any:
    """Return the value in a JSON file.

    Raises SourceError: it cannot be read, or is not JSON; the message ends with `expectation`.
    """
    try:
        return json.loads(read_regular(Path(path)))
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{path}: not JSON ({error}); {expectation}") from None


def dataclass_from_json(cls: type[Value], data: Any, path: str, name: str = "") -> Value:
    """Return a dataclass made from a table, the value `name` of the file `path`.

    Raises SourceError: a value is missing, unknown or not allowed; the message names it.
    """
    if not isinstance(data, dict):
        raise _value_error(data, "table", path, name or "it")
    known_fields = fields(cls)  # type: ignore[arg-type]
    default_names = {field.name for field in known_fields if field.default is not MISSING} - set(
        data
    )
    keys = [field.name for field in known_fields if field.name not in default_names]
    if wrong_keys := set(data) ^ set(keys):
        table = f"{path}: {name}" if name else path
        raise SourceError(
            f"{table}: {', '.join(sorted(map(str, wrong_keys)))} missing or unknown; make it again"
        )
    hints = typing.get_type_hints(cls, include_extras=True)
    labels = {key: f"{name}.{key}" if name else key for key in keys}
    return cls(**{key: _check_value(hints[key], data[key], path, labels[key]) for key in keys})


def _check_value(hint: Any, value: Any, path: str, name: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        checked, limit = _check_value(arguments[0], value, path, name), arguments[1]
        if limit is ABOVE_0 and checked < 1 / MAX_NUMBER:
            raise SourceError(f"{path}: {name} is {value!r}; expected a number above 0")
        if limit is not ABOVE_0 and set(checked) != limit:
            raise SourceError(f"{path}: {name} has {sorted(checked)}, expected {sorted(limit)}")
        return checked
    if origin is types.UnionType:
        if value is None and types.NoneType in arguments:
            return None
        for alternative in arguments:
            if alternative in TYPE_TEXTS and _is_valid_value(alternative, value):
                return value
        hint = next(argument for argument in arguments if argument is not types.NoneType)
        return _check_value(hint, value, path, name)
    if origin is tuple and isinstance(value, list):
        return tuple(
            _check_value(arguments[0], item, path, f"{name}[{i}]") for i, item in enumerate(value)
        )
    if origin in (dict, Mapping) and isinstance(value, dict):
        return {
            str(key): _check_value(arguments[1], item, path, f"{name}.{key}")
            for key, item in value.items()
        }
    if isinstance(hint, type) and is_dataclass(hint):
        return dataclass_from_json(hint, value, path, name)
    if hint in TYPE_TEXTS and _is_valid_value(hint, value):
        return value
    if hint is bool and isinstance(value, bool):
        return value
    raise _value_error(value, TYPE_TEXTS.get(hint, "table"), path, name)


def _is_valid_value(cls: type, value: Any) -> bool:
    if cls is str or isinstance(value, bool):
        return cls is str and isinstance(value, str)
    is_number = isinstance(value, int if cls is int else int | float)
    return is_number and math.isfinite(value) and 0 <= value <= MAX_NUMBER


def _value_error(value: Any, expected: str, path: str, name: str) -> SourceError:
    text = repr(value)
    text = text if len(text) < 60 else text[:60] + "..."
    return SourceError(f"{path}: {name} is {text}; expected a {expected}")
