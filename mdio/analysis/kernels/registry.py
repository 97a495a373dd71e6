"""All kernels, and how the command line finds one by name."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import cast

from mdio.analysis.kernels.kernel import BlockFunction, Kernel, UserKernel
from mdio.core.errors import PlanError
from mdio.core.words import did_you_mean
from mdio.layouts.registry import load_class


class _Kernels(Mapping[str, Callable[..., Kernel]]):
    """Classes by name, each imported when it is asked for."""

    _homes = {  # noqa: RUF012 - never changed
        "rmsd": "rmsd:RMSD",
        "dihedrals": "dihedrals:Dihedrals",
        "pairs": "geometry:Pairs",
        "rgyr": "geometry:RadiusOfGyration",
        "rmsf": "geometry:RMSF",
        "msd": "correlations:MSD",
        "vacf": "correlations:VACF",
        "reference-distances": "geometry:ReferenceDistances",
    }

    def __getitem__(self, name: str) -> Callable[..., Kernel]:
        address = f"mdio.analysis.kernels.{self._homes[name]}"
        return cast(Callable[..., Kernel], load_class(address))

    def __contains__(self, name: object) -> bool:
        return name in self._homes

    def __iter__(self) -> Iterator[str]:
        return iter(self._homes)

    def __len__(self) -> int:
        return len(self._homes)


KERNELS = _Kernels()
"""What the command line calls each."""
FORMER_NAMES = {"distances": "reference-distances"}
"""Still accepted, with a warning."""


def named_kernel(name: str) -> Callable[..., Kernel]:
    """Return the class that the command line calls `name`.

    Raises PlanError: there is none.
    """
    if name in FORMER_NAMES:
        former, name = name, FORMER_NAMES[name]
        warnings.warn(
            f"the kernel {former!r} is called {name!r} now: mean distances to the atoms of the "
            "reference frame; distances within a frame are 'pairs'",
            DeprecationWarning,
            stacklevel=2,
        )
    if name not in KERNELS and Path(name).exists():
        if Path(name).suffix == ".py":
            raise PlanError(f"{name}: which function in it? write {Path(name).stem}:FUNCTION")
        raise PlanError(
            f"{name} is a file, not a kernel; name the kernel first, one of {', '.join(KERNELS)}, "
            "or module:function"
        )
    if name not in KERNELS:
        raise PlanError(
            f"there is no kernel {name!r}{did_you_mean(name, KERNELS)}; choose one of "
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
            raise PlanError(
                f"a kernel brings its own selection; write {type(kernel).__name__}(select="
                f"{select!r}) and leave out select="
            )
        return kernel
    if isinstance(kernel, type):
        raise PlanError(
            f"the kernel is the class {kernel.__name__}; call it: kernel={kernel.__name__}(...)"
        )
    if not callable(kernel):
        raise PlanError(
            f"the kernel is {kernel!r}; give a kernel of mdio or its name, or a function that "
            "takes a FrameBlock and returns an array with one row per frame"
        )
    return UserKernel(kernel, select)
