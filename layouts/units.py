"""Units: what a layout stores, and checks, as one."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, islice, tee
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import CorruptLayoutError
from mdio.core.files.in_flight import (
    MAX_SEPARATE_RUNS,
    ByteRange,
    Opening,
    in_flight,
    prefetch_openings,
)
from mdio.core.frames import TrajectoryInfo
from mdio.core.stalls import is_mount_gone
from mdio.core.words import frames_text

AGAIN = re.compile("(split or )?convert the source again")
"""Advice in messages of damage."""

CHECK_NBYTES = 16 << 20
"""Decoded bytes of a unit where a layout has no chunks of its own."""

UnitFilter = Callable[[int], bool]
"""Tells of the number of a unit whether it is to be checked."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A part that a layout stores and checks as one: a chunk, a segment, a file of numbers."""

    name: str
    check: Callable[[], object]
    """Reads it; raises OSError if it is not what was written."""
    frames: tuple[int, int] | None = None
    """First, and one beyond the last, of those that need it; None = all."""
    group: str | None = None
    """Group of atoms that needs it; None = all."""
    ranges: Callable[[], Iterable[ByteRange]] = tuple
    """Returns what of open files is read; less, or nothing, where nobody gains by knowing."""
    openings: Callable[[], Iterable[Opening]] = tuple
    """Returns the objects of stores that are opened for that."""


def frame_units(
    info: TrajectoryInfo,
    edges: NDArray[np.int64],
    read: Callable[[int, int], Any],
    ranges: Callable[[int, int, None], Iterable[ByteRange]] | None = None,
) -> Iterator[Unit]:
    """Yield the frames of a layout between its boundaries, checked by reading them."""
    n_rows = max(1, CHECK_NBYTES // max(1, info.frame_nbytes))
    first = 0
    while first < info.n_frames:
        stop = int(edges[np.searchsorted(edges, first, side="right")])
        stop = stop if info.chunk_frames else min(stop, first + n_rows)
        unit = Unit(frames_text(first, stop), partial(read, first, stop), (first, stop))
        yield unit if ranges is None else replace(unit, ranges=partial(ranges, first, stop, None))
        first = stop


def check_units(
    units: Iterable[Unit], wanted: UnitFilter | None, *, opens_ahead: bool
) -> Iterator[tuple[str, str | None]]:
    """Check the units whose numbers are `wanted`, or all; yield names and what is wrong.

    `opens_ahead`: whether what they lie in is opened ahead.
    Raises OSError: the mount is gone.
    """
    chosen = (unit for number, unit in enumerate(units) if wanted is None or wanted(number))
    # What is asked for ahead is read in order; a unit that does not say its ranges may not do so.
    for _, some in groupby(chosen, key=lambda unit: unit.ranges is tuple):
        now, coming = tee(some)
        with in_flight(_ranges(_opened_ahead(coming) if opens_ahead else coming)):
            for unit in now:
                problem = None
                try:
                    unit.check()
                except OSError as error:
                    if is_mount_gone(error):
                        raise
                    problem = str(error)
                yield unit.name, problem


def _ranges(units: Iterable[Unit]) -> Iterator[ByteRange]:
    """Yield what checking units reads, as far as that can be found out."""
    for unit in units:
        with suppress(OSError):  # checking it will meet it, too
            yield from unit.ranges()


def _opened_ahead(units: Iterable[Unit]) -> Iterator[Unit]:
    """Yield units, and ask for the objects that those which come next open."""
    coming, near, last = iter(units), deque[Unit](), None
    while True:
        new = list(islice(coming, MAX_SEPARATE_RUNS - len(near)))
        openings = {one.path: one for unit in new for one in unit.openings()}
        prefetch_openings(one for path, one in openings.items() if path != last)
        near.extend(new)
        if not near:
            return
        last = next(reversed(openings), last)
        yield near.popleft()


def add_unit_name(name: str, problem: str) -> str:
    """Return the text of a problem with a unit, which names it."""
    return problem if name in problem else f"{name}: {problem}"


def add_repair_hint(
    path: Path, manifest: Mapping[str, Any] | None, error: CorruptLayoutError
) -> CorruptLayoutError | None:
    """Return an error that names what mends damage to an opened output; None if nothing does."""
    if manifest is None or not AGAIN.search(str(error)):
        return None
    source = str(manifest["source"].get("path", "SRC"))
    hint = f"`mdio repair {quote(str(path))} --against {quote(source)}` writes it again"
    return CorruptLayoutError(AGAIN.sub(lambda _: hint, str(error)))
