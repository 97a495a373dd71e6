"""Units in files of other programs, and their factors to mdio's units.

H5MD: the names are those that MDAnalysis' H5MDReader knows, and the factors are computed as
``MDAnalysis.units`` computes them, so that results agree to the last bit.

AMBER NetCDF and mdtraj's HDF5, which spell units out: AMBER NetCDF 1.0 requires angstrom, degree,
picosecond, angstrom/picosecond and kilocalorie/mole/angstrom; LAMMPS (``dump netcdf``) and ASE
write others. mdtraj writes nanometers, picoseconds and degrees, and converts others.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mdio.core.errors import SourceError
from mdio.core.units import KCAL_TO_KJ
from mdio.layouts.base import TIMES_MADE_UP, TIMES_MADE_UP_NOT_STEPS

BOHR = 0.529177210903
"""CODATA 2018, angstrom."""
_LENGTHS = {
    "angstrom": 1.0,
    "nanometer": 10.0,
    "picometer": 1e-2,
    "micrometer": 1e4,
    "centimeter": 1e8,
    "meter": 1e10,
    "bohr": BOHR,
}
ASE_TIME = "ASE's unit of time"
_TIMES = {
    "picosecond": 1.0,
    "femtosecond": 1e-3,
    "nanosecond": 1e3,
    "microsecond": 1e6,
    "second": 1e12,
    ASE_TIME.lower(): 1.0180505710759416e-2,  # angstrom sqrt(u / eV), by CODATA 2018
}
_ENERGIES = {"kilocalorie/mole": KCAL_TO_KJ, "kilojoule/mole": 1.0, "ev": 96.48533212331}
"""In kJ/mol; an electronvolt by CODATA 2018."""

SPELLED_OUT_FACTORS: Mapping[str, Mapping[str, float]] = {
    "coordinates": _LENGTHS,
    "cell_lengths": _LENGTHS,
    "cell_angles": {"degree": 1.0, "radian": 180 / math.pi},
    "time": _TIMES,
    "velocities": {
        f"{length}/{time}": factor / divisor
        for length, factor in _LENGTHS.items()
        for time, divisor in _TIMES.items()
    },
    "forces": {
        f"{energy}/{length}": factor / divisor
        for energy, factor in _ENERGIES.items()
        for length, divisor in _LENGTHS.items()
    },
}
"""Factors of units to mdio's (angstrom, degree, ps, kJ/(mol angstrom)), by variable."""
_SPELLINGS = {
    "a": "angstrom",
    "nm": "nanometer",
    "pm": "picometer",
    "m": "meter",
    "ps": "picosecond",
    "fs": "femtosecond",
    "ns": "nanosecond",
    "s": "second",
    "sec": "second",
    "kcal": "kilocalorie",
    "kj": "kilojoule",
    "mol": "mole",
    "deg": "degree",
    "rad": "radian",
}
REDUCED_UNITS = "lj"
"""How LAMMPS names its reduced units, of which no factor is known."""


def spelled_out_factor(variable: str, unit: str) -> float | None:
    """Return the factor of a spelled-out `unit` to mdio's; None if it is unknown."""
    words = re.sub("[()]", "", unit.strip().lower()).split("/")
    names = [word.strip() for word in words]
    names = [name.removesuffix("s") if len(name) > 2 else name for name in names]
    return SPELLED_OUT_FACTORS[variable].get("/".join(_SPELLINGS.get(name, name) for name in names))


LENGTH_UNITS_OF_PROGRAMS = {"GROMACS": "nm"}
"""Units of lengths of programs that may write H5MD without units."""

_AVOGADRO_PER_MOL = 6.02214129e23
_CALORIE_J = 4.184
_AKMA_PS = 4.888821e-2
_NEWTON = 1e13 / _AVOGADRO_PER_MOL

_LENGTH_DIVISORS = {
    "Angstrom": 1.0,
    "angstrom": 1.0,
    "A": 1.0,
    "nm": 1.0 / 10,
    "pm": 1e2,
    "fm": 1e5,
}
_TIME_DIVISORS = {
    "ps": 1.0,
    "fs": 1e3,
    "ns": 1e-3,
    "second": 1e-12,
    "sec": 1e-12,
    "s": 1e-12,
    "AKMA": 1 / _AKMA_PS,
}
_VELOCITY_DIVISORS = {
    "Angstrom ps-1": 1.0,
    "A ps-1": 1.0,
    "Angstrom fs-1": 1.0 * 1e-3,
    "A fs-1": 1.0 * 1e-3,
    "Angstrom AKMA-1": _AKMA_PS,
    "A AKMA-1": _AKMA_PS,
    "nm ps-1": 0.1,
    "nm ns-1": 0.1 / 1e-3,
    "pm ps-1": 1e2,
    "m s-1": 1e-10 / 1e-12,
}
_FORCE_DIVISORS = {
    "kJ mol-1 Angstrom-1": 1.0,
    "kJ mol-1 nm-1": 10.0,
    "Newton": _NEWTON,
    "N": _NEWTON,
    "J m-1": _NEWTON,
    "kcal mol-1 Angstrom-1": 1 / _CALORIE_J,
    "kcal mol-1 A-1": 1 / _CALORIE_J,
}

H5MD_DIVISORS: Mapping[str, Mapping[str, float]] = {
    "positions": _LENGTH_DIVISORS,
    "time": _TIME_DIVISORS,
    "velocities": _VELOCITY_DIVISORS,
    "forces": _FORCE_DIVISORS,
}
"""Units of H5MD: how many make one of mdio's unit, by field; the reciprocal of a factor."""


_DALTON_KG = 1.0 / (_AVOGADRO_PER_MOL * 1e3)
_BASE_UNITS: Mapping[str, tuple[float, tuple[int, int, int]]] = {
    **{name: (scale, (1, 0, 0)) for name, scale in {"m": 1e10, "cm": 1e8, "um": 1e4}.items()},
    **{
        name: (1.0 / divisor, (1, 0, 0))
        for name, divisor in {**_LENGTH_DIVISORS, "\u00c5": 1.0}.items()
    },
    **{name: (1.0 / divisor, (0, 1, 0)) for name, divisor in _TIME_DIVISORS.items()},
    **dict.fromkeys(("u", "Da", "amu", "dalton"), (1.0, (0, 0, 1))),
    "g": (1e-3 / _DALTON_KG, (0, 0, 1)),
    "kg": (1.0 / _DALTON_KG, (0, 0, 1)),
    "J": (1e-4 / _DALTON_KG, (2, -2, 1)),
    "kJ": (1e-1 / _DALTON_KG, (2, -2, 1)),
    "kcal": (_CALORIE_J * 1e-1 / _DALTON_KG, (2, -2, 1)),
    "eV": (1.602176634e-19 * 1e-4 / _DALTON_KG, (2, -2, 1)),
    "N": (1e-14 / _DALTON_KG, (1, -2, 1)),
    "mol": (_AVOGADRO_PER_MOL, (0, 0, 0)),
}
"""Units that others are composed of (https://www.nongnu.org/h5md/modules/units.html): their value
in angstrom, ps and dalton, and the powers of these."""
_DIMENSIONS = {
    "positions": ((1, 0, 0), 1.0),
    "time": ((0, 1, 0), 1.0),
    "velocities": ((1, -1, 0), 1.0),
    "forces": ((1, -2, 1), 1e-2),  # u A ps-2 to kJ mol-1 A-1
}


def _composed_factor(field: str, unit: str) -> float | None:
    """Return the factor of a unit of H5MD that is composed of `_BASE_UNITS`; None if it is not."""
    powers, factor = np.zeros(3, int), 1.0
    tokens = unit.replace("*", " ").split()
    if tokens and re.fullmatch(r"\d+(\.\d+)?", tokens[0]):
        factor = float(tokens.pop(0))
    for token in tokens:
        match = re.fullmatch(r"([A-Za-z\u00c5]+)\^?([+-]?\d{1,2})?", token)
        if match is None or match[1] not in _BASE_UNITS:
            return None
        scale, unit_powers = _BASE_UNITS[match[1]]
        power = int(match[2] or 1)
        powers, factor = powers + power * np.array(unit_powers), factor * scale**power
    expected, final_factor = _DIMENSIONS[field]
    return factor * final_factor if tuple(powers) == expected else None


def factor_of(field: str, unit: str | None) -> float:
    """Return the factor of a unit of H5MD to mdio's.

    Raises KeyError: the unit is unknown; the argument of the error lists known units.
    """
    divisors = H5MD_DIVISORS[field]
    if unit is None:
        raise KeyError(", ".join(divisors))
    if unit in divisors:
        return 1.0 / divisors[unit]
    variable = {"positions": "coordinates"}.get(field, field)
    factor = _composed_factor(field, unit) or spelled_out_factor(variable, unit)
    if factor is None:
        raise KeyError(", ".join(divisors))
    return factor


def made_up_notes(
    format_name: str,
    options: Mapping[str, Any],
    *,
    times: str | None,
    lengths: bool,
    fields: Sequence[str] = (),
    has_steps: bool = False,
) -> Iterator[str]:
    """Yield notes on values that a format lacks, and those made up instead.

    `times`: what is 1 ps apart, such as frames; None if the format has times. `lengths`: whether it
    lacks the units of lengths and `fields`. `has_steps`: whether it numbers integration steps.
    """
    if times is not None:
        dt = options.get("dt")
        spacing = "1 ps apart without --timestep" if dt is None else f"{dt:g} ps apart, as asked"
        begin = TIMES_MADE_UP_NOT_STEPS if has_steps else TIMES_MADE_UP
        yield f"{begin}, since {format_name} holds none: {times} are {spacing}"
    if lengths:
        unit = options.get("length_unit")
        unit_text = "angstrom without --length-unit" if unit is None else f"{unit}, as asked"
        yield f"{format_name} names no unit of lengths: assumed to be {unit_text}"
        assumed_units = {"velocities": f"{unit or 'angstrom'}/ps", "forces": "kJ/(mol angstrom)"}
        for name in fields:
            yield f"{format_name} names no unit of {name}: assumed to be {assumed_units[name]}"


def length_factor(path: Path, options: Mapping[str, Any]) -> np.float32:
    """Return the factor of lengths, from ``length_unit``; raises SourceError."""
    unit = options.get("length_unit")
    try:
        return np.float32(1.0 if unit is None else factor_of("positions", unit))
    except KeyError as error:
        raise SourceError(
            f"{path}: --length-unit {unit} is not a unit of length; give one of {error.args[0]}"
        ) from None
