"""All kernels, and how the command line finds one by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType

from mdio.analysis.kernels.correlations import MSD, VACF
from mdio.analysis.kernels.dihedrals import Dihedrals
from mdio.analysis.kernels.geometry import RMSF, Distances, Pairs, RadiusOfGyration
from mdio.analysis.kernels.kernel import BlockFunction, Kernel, UserKernel
from mdio.analysis.kernels.rmsd import RMSD
from mdio.core.errors import PlanError
from mdio.core.words import did_you_mean

KERNELS: MappingProxyType[str, Callable[..., Kernel]] = MappingProxyType(
    {
        "rmsd": RMSD,
        "dihedrals": Dihedrals,
        "distances": Distances,
        "pairs": Pairs,
        "rgyr": RadiusOfGyration,
        "rmsf": RMSF,
        "msd": MSD,
        "vacf": VACF,
    }
)
"""What the command line calls each."""


def named_kernel(name: str) -> Callable[..., Kernel]:
    """Return the class that the command line calls `name`.

    Raises PlanError: there is none.
    """
    if name not in KERNELS and Path(name).exists():
        raise PlanError(
            f"{name} is a file, no kernel; the kernel comes first, one of {', '.join(KERNELS)}, or "
            "module:function"
        )
    if name not in KERNELS:
        raise PlanError(
            f"there is no kernel {name!r}{did_you_mean(name, KERNELS)}; choose from "
            f"{', '.join(KERNELS)}, or name your own as module:function"
        )
    return KERNELS[name]


def as_kernel(kernel: Kernel | BlockFunction | str, select: str | None = None) -> Kernel:
    """Return `kernel`, or make one of a name or a function and the atoms that it shall get.

    A name is one of `KERNELS`, or ``module:function``.
    Raises PlanError: `kernel` is neither, or `select` is given besides a kernel, which has its own.
    """
    if isinstance(kernel, str) and ":" in kernel:
        return UserKernel.from_address(kernel, select)
    if isinstance(kernel, str):
        return named_kernel(kernel)(**({} if select is None else {"select": select}))
    if isinstance(kernel, Kernel):
        if select is not None:
            raise PlanError(f"give the selection to the kernel: {type(kernel).__name__}(select=)")
        return kernel
    if not callable(kernel) or isinstance(kernel, type):
        raise PlanError(
            f"the kernel is {kernel!r}; give one of mdio's, or a function that takes a FrameBlock "
            "and returns an array with one row a frame"
        )
    return UserKernel(kernel, select)
