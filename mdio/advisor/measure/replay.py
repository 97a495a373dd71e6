"""Measurements as a JSON file: saved, read back and checked, decided upon again."""

from __future__ import annotations

import json
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Any

from mdio.advisor.measure.measurements import Measurements
from mdio.advisor.model.plain import json_at, made_of
from mdio.core.errors import OutputError, SourceError

SCHEMA = "mdio-measurements-1"


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
    return measurements_from(json_at(path, "expected saved measurements"), str(path))


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
    plain = {key: value for key, value in data.items() if key != "schema"}
    found = made_of(Measurements, plain, where)
    if found.source.n_frames < 1 or found.trial("as-is") is None:
        raise SourceError(f"{where}: no frames, or no measurement of the source as it is")
    return found
