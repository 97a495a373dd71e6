"""All kernels, and how the command line finds one by name."""

from __future__ import annotations

from mdio.analysis.dihedrals import Dihedrals
from mdio.analysis.kernel import Kernel, Prepared, UserKernel, as_kernel
from mdio.analysis.rmsd import RMSD
from mdio.analysis.structure import RMSF, Distances, RadiusOfGyration

__all__ = [
    "RMSD",
    "RMSF",
    "Dihedrals",
    "Distances",
    "Kernel",
    "Prepared",
    "RadiusOfGyration",
    "UserKernel",
    "as_kernel",
]
