"""Units of H5MD files, against MDAnalysis'."""

import pytest

from mdio.layouts.foreign.units import H5MD_DIVISORS, factor_of

H5MD_UNITS = {"positions": "length", "velocities": "velocity", "forces": "force", "time": "time"}


@pytest.mark.parametrize("field", H5MD_DIVISORS)
def test_units_are_those_of_mdanalysis(field):
    from MDAnalysis.coordinates.H5MD import H5MDReader
    from MDAnalysis.units import get_conversion_factor

    kind, base = {
        "positions": ("length", "Angstrom"),
        "velocities": ("speed", "Angstrom/ps"),
        "forces": ("force", "kJ/(mol*Angstrom)"),
        "time": ("time", "ps"),
    }[field]
    names = H5MDReader._unit_translation[H5MD_UNITS[field]]
    assert set(names) == set(H5MD_DIVISORS[field])
    for name, unit in names.items():
        assert factor_of(field, name) == get_conversion_factor(kind, unit, base)
