"""All kernels, and how the command line finds one by name."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

from mdio.analysis.kernels.dihedrals import Dihedrals
from mdio.analysis.kernels.geometry import RMSF, Distances, RadiusOfGyration
from mdio.analysis.kernels.kernel import Kernel, Prepared, UserKernel, as_kernel
from mdio.analysis.kernels.rmsd import RMSD

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
