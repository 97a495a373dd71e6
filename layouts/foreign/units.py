"""Units that H5MD files of others name, and what converts them to those in memory.

The names are those that MDAnalysis' H5MDReader knows, and the factors are computed as
``MDAnalysis.units`` computes them, so that results agree to the last bit.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["factor_of"]

_AVOGADRO_PER_MOL = 6.02214129e23
_CALORIE_J = 4.184
_AKMA_PS = 4.888821e-2
_NEWTON = 1e13 / _AVOGADRO_PER_MOL

_LENGTH = {
    "Angstrom": 1.0,
    "angstrom": 1.0,
    "A": 1.0,
    "nm": 1.0 / 10,
    "pm": 1e2,
    "fm": 1e5,
}
_TIME = {
    "ps": 1.0,
    "fs": 1e3,
    "ns": 1e-3,
    "second": 1e-12,
    "sec": 1e-12,
    "s": 1e-12,
    "AKMA": 1 / _AKMA_PS,
}
_VELOCITY = {
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
_FORCE = {
    "kJ mol-1 Angstrom-1": 1.0,
    "kJ mol-1 nm-1": 10.0,
    "Newton": _NEWTON,
    "N": _NEWTON,
    "J m-1": _NEWTON,
    "kcal mol-1 Angstrom-1": 1 / _CALORIE_J,
    "kcal mol-1 A-1": 1 / _CALORIE_J,
}

UNITS: Mapping[str, Mapping[str, float]] = {
    "positions": _LENGTH,
    "time": _TIME,
    "velocities": _VELOCITY,
    "forces": _FORCE,
}
"""By field: how many of a unit make one of the unit in memory."""


def factor_of(field: str, unit: str | None) -> float:
    """Return what numbers in `unit` are multiplied with.

    Raises
    ------
    KeyError
        The unit is not known; its argument lists those that are.
    """
    known = UNITS[field]
    if unit is None or unit not in known:
        raise KeyError(", ".join(known))
    return 1.0 / known[unit]
