"""Units: what a layout stores, and checks, as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.frames import TrajectoryInfo
from mdio.layouts.output import Unit, Wanted

__all__ = ["check_units", "runs_of_frames"]

CHECK_NBYTES = 16 << 20
"""Decoded bytes of a unit where a layout has no chunks of its own."""


def runs_of_frames(
    info: TrajectoryInfo, edges: NDArray[np.int64], read: Callable[[int, int], Any]
) -> Iterator[Unit]:
    """Yield the frames of a layout between its boundaries, checked by reading them."""
    n_rows = max(1, CHECK_NBYTES // max(1, info.frame_nbytes))
    at = 0
    while at < info.n_frames:
        stop = int(edges[np.searchsorted(edges, at, side="right")])
        stop = stop if info.chunk_frames else min(stop, at + n_rows)
        yield Unit(f"frames {at} to {stop - 1}", partial(read, at, stop), (at, stop))
        at = stop


def check_units(units: Iterable[Unit], wanted: Wanted | None) -> Iterator[tuple[str, str | None]]:
    """Check the units whose numbers are `wanted`, or all; yield names and what is wrong."""
    for number, unit in enumerate(units):
        if wanted is None or wanted(number):
            problem = None
            try:
                unit.check()
            except OSError as error:
                problem = str(error)
            yield unit.name, problem
