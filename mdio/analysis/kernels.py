"""All kernels, and how the command line finds one by name."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

from mdio.analysis.dihedrals import Dihedrals
from mdio.analysis.kernel import Kernel, Prepared, UserKernel, as_kernel
from mdio.analysis.rmsd import RMSD
from mdio.analysis.structure import RMSF, Distances, RadiusOfGyration

__all__ = [
    "KERNELS",
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

KERNELS: MappingProxyType[str, Callable[..., Kernel]] = MappingProxyType(
    {
        "rmsd": RMSD,
        "dihedrals": Dihedrals,
        "distances": Distances,
        "rgyr": RadiusOfGyration,
        "rmsf": RMSF,
    }
)
"""What the command line calls each."""
