"""Factors that convert the units of file formats to those of mdio, which are MDAnalysis'.

They are the numbers by which MDAnalysis 2.x multiplies (``MDAnalysis.units``), to the last bit, so
that reading a file without MDAnalysis gives the same results.
"""

FIELD_UNITS = {"positions": "angstrom", "velocities": "angstrom/ps", "forces": "kJ/(mol angstrom)"}
"""Units of the per-atom arrays of a block."""

NM_TO_ANGSTROM = 10.0
"""Lengths and velocities of GROMACS files."""

PER_NM_TO_PER_ANGSTROM = 0.1
"""Forces of GROMACS files: kJ/(mol nm) to kJ/(mol angstrom)."""

KCAL_TO_KJ = 4.184
"""Forces of AMBER files: the thermochemical calorie."""

AKMA_TO_PS = 0.04888821
"""The time unit of CHARMM: that of angstrom, kcal/mol and atomic mass units."""
FS_TO_PS = 1e-3

ATOMIC_TIME_TO_PS = 2.4188843265864e-5
"""A Hartree atomic unit of time, by CODATA 2018."""
