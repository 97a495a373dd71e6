"""Blocks of an output beside the same ones of its source."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mdio.core.frames import FrameBlock

__all__ = ["compare_blocks"]


def compare_blocks(
    mine: FrameBlock,
    theirs: FrameBlock,
    allowed: float,
    *,
    tables: bool,
    rounded: Sequence[str],
) -> tuple[float, list[str]]:
    """Return the largest difference of a coordinate (angstrom), and what is not as it should be.

    `mine`, `theirs`: the same frames and atoms, of the output and of its source. `allowed`: by how
    much positions may differ (angstrom) besides rounding. `tables`: whether the output keeps box,
    time and step of each frame. `rounded`: of which arrays its format rounds float32.
    """
    largest = 0.0
    problems = []
    for name, array in mine.present().items():
        other = getattr(theirs, name)
        if other is None:
            problems.append(f"the source has no {name}")
            continue
        may = allowed if name == "positions" else 0.0
        worst, excess = _difference(array, other, may, rounded=name in rounded)
        if name == "positions":
            largest = worst
        if excess:
            how = f" by up to {worst:g} angstrom, {allowed:g} is allowed"
            problems.append(f"{name} differ{how if name == 'positions' else ''}")
    problems += [
        f"{name} differs"
        for name in (("box", "time", "step") if tables else ())
        if not np.array_equal(getattr(mine, name), getattr(theirs, name), equal_nan=True)
    ]
    return largest, problems


def _difference(
    mine: NDArray[np.float32], theirs: NDArray[np.float32], allowed: float, *, rounded: bool
) -> tuple[float, bool]:
    """Return the largest difference, and whether any exceeds what is allowed.

    Formats with units of their own may round float32 at every step to these and back.
    """
    if np.array_equal(mine, theirs, equal_nan=True):
        return 0.0, False
    finite = np.isfinite(mine) & np.isfinite(theirs)
    same_special = np.array_equal(mine[~finite], theirs[~finite], equal_nan=True)
    diff = np.abs(mine[finite].astype(np.float64) - theirs[finite])
    if (allowed == 0.0 and not rounded) or not same_special:
        return float(diff.max(initial=0.0)), True
    rounding = np.spacing(np.maximum(np.abs(mine[finite]), np.abs(theirs[finite])))
    rounding *= 3 if rounded else 1
    return float(diff.max(initial=0.0)), bool(np.any(diff > allowed + rounding))
