"""The shortest selection that holds all atoms an analysis reads: what a stored group should be."""

from __future__ import annotations

import numpy as np

from mdio.advisor.measure.candidates import Group
from mdio.analysis.kernels.kernel import Kernel, Prepared
from mdio.analysis.system import System
from mdio.core.errors import MdioError

__all__ = ["group_of"]

NARROWER = ("backbone and not name O", "backbone")
"""What analyses of a selection may need of it: dihedrals of the backbone."""


def group_of(kernel: Kernel, system: System, prepared: Prepared) -> Group | None:
    """Return the atoms of an analysis as a selection and indices; None if it reads all atoms.

    The selection is the kernel's own, or a narrower one that still covers what is read.
    """
    own = getattr(kernel, "select", None)
    if prepared.atoms is None or not isinstance(own, str):
        return None
    n_read = len(np.unique(prepared.atoms))
    best: Group | None = None
    for text in (own, *(f"({own}) and {narrower}" for narrower in NARROWER)):
        if best is not None and len(best.indices) == n_read:
            break
        try:
            indices = system.select(text)
        except MdioError:
            continue
        if indices is None or not np.isin(prepared.atoms, indices).all():
            continue
        if best is None or len(indices) < len(best.indices):
            best = Group(text, indices)
    return best
