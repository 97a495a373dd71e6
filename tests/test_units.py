"""The factors between units are those of MDAnalysis, to the last bit."""

from MDAnalysis.units import get_conversion_factor

from mdio.core import units


def test_factors_are_those_of_mdanalysis():
    assert units.NM_TO_ANGSTROM == get_conversion_factor("length", "nm", "Angstrom")
    assert units.NM_TO_ANGSTROM == get_conversion_factor("speed", "nm/ps", "Angstrom/ps")
    per_nm, per_angstrom = "kJ/(mol*nm)", "kJ/(mol*Angstrom)"
    assert units.PER_NM_TO_PER_ANGSTROM == get_conversion_factor("force", per_nm, per_angstrom)
    kcal = "kcal/(mol*Angstrom)"
    assert units.KCAL_TO_KJ == get_conversion_factor("force", kcal, per_angstrom)
    assert units.AKMA_TO_PS == get_conversion_factor("time", "AKMA", "ps")
