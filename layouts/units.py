"""Units: the parts of a layout that are stored and checked as one."""

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
from mdio.core.files.store import is_remote
from mdio.core.frames import TrajectoryInfo
from mdio.core.stalls import is_mount_lost
from mdio.core.words import frames_text

CONVERT_AGAIN = re.compile("(split or )?convert the source again")
"""Advice in messages on damage, which may be replaced by the command that repairs."""

CHECK_NBYTES = 16 << 20
"""Decoded bytes of a unit, for layouts without chunks."""
MAX_UNITS = 10_000
"""Largest number of units: checked one by one, millions of tiny frames would take minutes."""

UnitFilter = Callable[[int], bool]
"""Takes the number of a unit; returns whether to check it."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A part that a layout stores and checks as one: a chunk, a segment, a file of numbers."""

    name: str
    check: Callable[[], object]
    """Reads it; raises OSError if it is damaged."""
    frames: tuple[int, int] | None = None
    """Start and stop of the run of frames that needs it; None: all frames."""
    group: str | None = None
    """Group of atoms that needs it; None: all groups."""
    ranges: Callable[[], Iterable[ByteRange]] = tuple
    """Returns the byte ranges that `check` reads; some or all are left out if prefetching gains
    nothing."""
    openings: Callable[[], Iterable[Opening]] = tuple
    """Returns the objects of stores that `check` opens."""
    proves_frames: bool = False
    """Whether its frames are intact if it is, even where their own checksums are lost."""


def frame_units(
    info: TrajectoryInfo,
    edges: NDArray[np.int64],
    read: Callable[[int, int], Any],
    ranges: Callable[[int, int, None], Iterable[ByteRange]] | None = None,
) -> Iterator[Unit]:
    """Yield the frames of a layout between its boundaries, checked by reading them."""
    max_frames = max(1, CHECK_NBYTES // max(1, info.frame_nbytes))
    first, n_more = 0, min((info.n_frames - 1) // MAX_UNITS, max_frames - 1)
    while first < info.n_frames:
        last = min(first + n_more, info.n_frames - 1)
        stop = int(edges[np.searchsorted(edges, last, side="right")])
        stop = stop if info.chunk_frames else min(stop, first + max_frames)
        unit = Unit(frames_text(first, stop), partial(read, first, stop), (first, stop))
        yield unit if ranges is None else replace(unit, ranges=partial(ranges, first, stop, None))
        first = stop


def check_units(
    units: Iterable[Unit], unit_filter: UnitFilter | None, *, opens_ahead: bool
) -> Iterator[tuple[str, str | None]]:
    """Check the units that `unit_filter` accepts, by number; yield names and problems (or None).

    `opens_ahead`: whether their files are opened ahead.
    """
    failures: list[Exception] = []

    def select() -> Iterator[Unit]:
        try:
            yield from (
                unit
                for number, unit in enumerate(units)
                if unit_filter is None or unit_filter(number)
            )
        except Exception as error:  # prefetching, which comes first, would take it for the end
            failures.append(error)

    # Prefetched ranges have to be read in order, which units that list no ranges may not do.
    for _, run in groupby(select(), key=lambda unit: unit.ranges is tuple):
        to_check, to_prefetch = tee(run)
        with in_flight(_ranges(_opened_ahead(to_prefetch) if opens_ahead else to_prefetch)):
            for unit in to_check:
                problem = None
                try:
                    unit.check()
                except OSError as error:
                    if is_mount_lost(error):
                        raise
                    problem = str(error)
                yield unit.name, problem
    if failures:
        raise failures[0]


def _ranges(units: Iterable[Unit]) -> Iterator[ByteRange]:
    """Yield the byte ranges that checking `units` reads; none of a unit that is damaged."""
    for unit in units:
        with suppress(OSError):  # checking the unit raises it again
            yield from unit.ranges()


def _opened_ahead(units: Iterable[Unit]) -> Iterator[Unit]:
    """Yield `units`, and prefetch the objects that the next ones will open."""
    remaining, opened_units, last_path = iter(units), deque[Unit](), None
    while True:
        new_units = list(islice(remaining, MAX_SEPARATE_RUNS - len(opened_units)))
        openings = {opening.path: opening for unit in new_units for opening in unit.openings()}
        prefetch_openings(opening for path, opening in openings.items() if path != last_path)
        opened_units.extend(new_units)
        if not opened_units:
            return
        last_path = next(reversed(openings), last_path)
        yield opened_units.popleft()


def add_unit_name(name: str, problem: str) -> str:
    """Return `problem`, preceded by the unit's name unless it contains it."""
    return problem if name in problem else f"{name}: {problem}"


MAX_FILES_NAMED = 4
"""Files of a source that a message names one by one."""


def add_repair_hint(
    path: Path, manifest: Mapping[str, Any] | None, error: CorruptLayoutError
) -> CorruptLayoutError | None:
    """Return `error` with the command that repairs an opened output; None if it needs none."""
    if manifest is None or not CONVERT_AGAIN.search(str(error)):
        return None
    source = manifest["source"]
    files = dict.fromkeys(str(one.get("path", "SRC")) for one in source.get("files") or [source])
    names = [quote(file) for file in files]
    is_gone = any(not is_remote(file) and not Path(file).exists() for file in files)
    if len(names) > MAX_FILES_NAMED:
        names = [names[0], f"... (all {len(names)})"]
    top = (manifest.get("recipe") or {}).get("top")
    if top and Path(top).exists():  # the topology inside may be what is damaged
        names += ["-s", quote(top)]
    hint = f"`mdio repair {quote(str(path))} --against {' '.join(names)}` writes it again"
    if is_gone:
        hint += "; the source has moved: give its new path"
    return CorruptLayoutError(CONVERT_AGAIN.sub(lambda _: hint, str(error)))
