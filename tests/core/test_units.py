"""The factors between units are those of MDAnalysis, to the last bit."""

from MDAnalysis.units import get_conversion_factor

from mdio.core import units


def test_factors_are_those_of_mdanalysis():
    assert get_conversion_factor("length", "nm", "Angstrom") == units.NM_TO_ANGSTROM
    assert get_conversion_factor("speed", "nm/ps", "Angstrom/ps") == units.NM_TO_ANGSTROM
    per_nm, per_angstrom = "kJ/(mol*nm)", "kJ/(mol*Angstrom)"
    assert get_conversion_factor("force", per_nm, per_angstrom) == units.PER_NM_TO_PER_ANGSTROM
    kcal = "kcal/(mol*Angstrom)"
    assert get_conversion_factor("force", kcal, per_angstrom) == units.KCAL_TO_KJ
    assert get_conversion_factor("time", "AKMA", "ps") == units.AKMA_TO_PS
