"""Units that AMBER NetCDF and mdtraj's HDF5 spell out, and what makes those of mdio of them.

AMBER NetCDF 1.0 asks for angstrom, degree, picosecond, angstrom/picosecond and
kilocalorie/mole/angstrom; LAMMPS (``dump netcdf``) and ASE name units of their own. mdtraj writes
nanometers, picoseconds and degrees, and converts others that it knows.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from mdio.core.units import KCAL_TO_KJ

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
_TIMES = {
    "picosecond": 1.0,
    "femtosecond": 1e-3,
    "nanosecond": 1e3,
    "microsecond": 1e6,
    "second": 1e12,
}
_ENERGIES = {"kilocalorie/mole": KCAL_TO_KJ, "kilojoule/mole": 1.0, "ev": 96.48533212331}
"""In kJ/mol; an electronvolt by CODATA 2018."""

KNOWN: Mapping[str, Mapping[str, float]] = {
    "coordinates": _LENGTHS,
    "cell_lengths": _LENGTHS,
    "cell_angles": {"degree": 1.0, "radian": 180 / math.pi},
    "time": _TIMES,
    "velocities": {
        f"{length}/{time}": factor / per
        for length, factor in _LENGTHS.items()
        for time, per in _TIMES.items()
    },
    "forces": {
        f"{energy}/{length}": factor / per
        for energy, factor in _ENERGIES.items()
        for length, per in _LENGTHS.items()
    },
}
"""By variable: how many of mdio's units (angstrom, degree, ps, kJ/(mol angstrom)) a unit is."""
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
WITHOUT = "lj"
"""The unit of LAMMPS' reduced units, which says nothing."""


def factor_of(variable: str, unit: str) -> float | None:
    """Return what numbers of a variable in `unit` are multiplied with; None: it is not known."""
    words = re.sub("[()]", "", unit.strip().lower()).split("/")
    names = [word.strip() for word in words]
    names = [name.removesuffix("s") if len(name) > 2 else name for name in names]
    return KNOWN[variable].get("/".join(_SPELLINGS.get(name, name) for name in names))
