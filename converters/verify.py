"""Is an output whole, and does it hold what its source holds?"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.converters.opening import open_damaged, opening_of
from mdio.converters.selection import open_with_topology
from mdio.converters.transform import TransformedLayout
from mdio.core.errors import PlanError, SourceError
from mdio.core.frames import FrameBlock
from mdio.layouts.base import Layout
from mdio.layouts.manifest import indices_from_runs
from mdio.layouts.output import Wanted
from mdio.layouts.registry import layout_class, open_layout
from mdio.layouts.views.view import ViewLayout

__all__ = [
    "VerifyResult",
    "every_nth",
    "sample",
    "source_view",
    "verify",
]

Paths = str | PathLike[str] | Sequence[str | PathLike[str]]
BLOCK_NBYTES = 16 << 20
"""Decoded bytes compared at a time."""


def everything(number: int) -> bool:  # noqa: ARG001
    """Return that every unit is checked."""
    return True


def every_nth(part: int, n_parts: int) -> Wanted:
    """Return what takes one unit of `n_parts`; parts 1 to `n_parts` together are all of them."""
    return lambda number: number % n_parts == part - 1


def sample(share: float) -> Wanted:
    """Return what takes this share of the units, evenly spread, the first among them."""
    return lambda number: math.ceil(number * share) < math.ceil((number + 1) * share)


@dataclass
class VerifyResult:
    """What `verify` found."""

    ok: bool = True
    chunks_checked: int = 0
    frames_compared: int = 0
    units: int = 0
    """How many units there are; with a part or a sample fewer are checked."""
    max_abs_diff_angstrom: float = 0.0
    """Largest difference of a coordinate; 0.0 too where nothing was compared."""
    allowed_diff_angstrom: float | None = None
    """What the output's precision allows besides float32 rounding; None if nothing was compared."""
    bad: list[str] = field(default_factory=list)
    """What is wrong, a line each."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    def add(self, problem: str) -> None:
        """Note a problem."""
        self.ok = False
        self.bad.append(problem)


def verify(
    out: str | PathLike[str],
    against: Paths | None = None,
    *,
    top: str | PathLike[str] | None = None,
    view: ViewLayout | None = None,
    wanted: Wanted = everything,
    progress: Callable[[int, int], None] | None = None,
) -> VerifyResult:
    """Recompute an output's checksums; compare every frame with its source if that is given.

    Parameters
    ----------
    out
        A trajectory of any layout. Native files have no checksums: each frame is decoded.
    against
        The source (or several files): frames and atoms are taken as the manifest of `out` says.
    top
        Topology, needed only where the conversion went through ``--pbc`` or ``--center``.
    view
        Instead of `against`: just the frames and atoms that `out` should hold.
    wanted
        Tells of the number of a unit (a chunk, a segment, a file of numbers; with a source, also a
        block of frames) whether it is checked: `every_nth` or `sample`. All are by default.
    progress
        Called with (frames, decoded bytes) done since the last call.

    Returns
    -------
    VerifyResult
        `ok` and what is `bad`; damage found is a result, not an exception.

    Raises
    ------
    SourceError, CorruptLayoutError, UnknownLayoutError
        `out` or `against` cannot be opened at all.

    Examples
    --------
    >>> import mdio
    >>> from MDAnalysisTests.datafiles import DCD
    >>> _ = mdio.convert(DCD, "adk.h5md")
    >>> found = mdio.verify("adk.h5md", DCD)
    >>> found.ok, found.frames_compared, found.max_abs_diff_angstrom
    (True, 98, 0.0)
    """
    result = VerifyResult()
    with open_damaged(out) as layout:
        _check_all(layout, result, wanted, progress)
        for lost in layout.info.lost:
            result.add(str(lost))
        # Of an output of mdio this covers its groups; in files of others each is read by itself.
        if layout.manifest is None:
            for group in layout.info.groups:
                _check_group(out, group, result, wanted, progress)
        if view is not None:
            _compare(layout, view, result, wanted, progress)
        elif against is not None:
            with open_with_topology(against, top, **opening_of(layout)) as source:
                _compare(layout, source_view(layout, source, top), result, wanted, progress)
    return result


def _check_all(
    layout: Layout,
    result: VerifyResult,
    wanted: Wanted,
    progress: Callable[[int, int], None] | None,
    prefix: str = "",
) -> None:
    first = result.units

    def counted(number: int) -> bool:
        result.units += 1
        return wanted(first + number)

    for name, problem in layout.check(counted):
        result.chunks_checked += 1
        if problem is not None:
            result.add(f"{prefix}{name}: {problem}")
        if progress is not None:
            progress(0, 0)


def _check_group(
    out: str | PathLike[str],
    group: str,
    result: VerifyResult,
    wanted: Wanted,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Read a further particle group of another program's file, if it has positions."""
    try:
        with open_layout(out, group=group) as layout:
            _check_all(layout, result, wanted, progress, f"group {group}, ")
    except SourceError as error:
        result.add(f"group {group}: {error}")


def source_view(layout: Layout, source: Layout, top: str | PathLike[str] | None) -> ViewLayout:
    """Return the frames and atoms of the source that `layout` should hold."""
    manifest = layout.manifest
    frames: Any = None
    atoms = None
    lost = None
    whole: Layout = source
    if manifest is not None:
        lost = manifest["source"].get("unreadable_frames")
        runs = manifest["frames"]
        frames = range(*runs[0]) if len(runs) == 1 else indices_from_runs(runs)
        atoms = None if manifest["atoms"] is None else indices_from_runs(manifest["atoms"])
        transformed = manifest["source"].get("transformed")
        if transformed is not None:
            if top is None:
                raise PlanError(
                    f"{layout.path} was made with --pbc or --center; "
                    "to compare it with its source, name the topology with -s/--top FILE"
                )
            whole = TransformedLayout(source.path, source=source, top=str(top), **transformed)
    info = source.info
    last = -1 if frames is None or not len(frames) else int(max(frames[0], frames[-1]))
    if last >= info.n_frames or (atoms is not None and atoms.max(initial=-1) >= info.n_atoms):
        raise SourceError(
            f"{source.path} has {info.n_frames} frames of {info.n_atoms} atoms, so {layout.path} "
            f"({layout.info.n_frames} of {layout.info.n_atoms}) was not made from it; give the "
            "trajectory that it was made from"
        )
    return ViewLayout(source.path, source=whole, frames=frames, atoms=atoms, unreadable=lost)


def _compare(
    layout: Layout,
    source: ViewLayout,
    result: VerifyResult,
    wanted: Wanted,
    progress: Callable[[int, int], None] | None,
) -> None:
    info, expected = layout.info, source.info
    if (info.n_frames, info.n_atoms) != (expected.n_frames, expected.n_atoms):
        result.add(
            f"{layout.path} has {info.n_frames} frames of {info.n_atoms} atoms, "
            f"its source {expected.n_frames} of {expected.n_atoms}"
            + ("" if layout.manifest else "; a native file does not say which ones it should have")
        )
        return
    same_step = info.xtc_integers and info.precision == expected.precision
    exact = info.precision is None or _kept_source_step(layout) or same_step
    result.allowed_diff_angstrom = 0.0 if exact else (info.precision or 0.0) / 2
    rounded = (layout if layout.container is None else layout_class(layout.container)).rounds
    rows = max(1, BLOCK_NBYTES // max(1, info.frame_nbytes))
    starts = [at for at in range(0, info.n_frames, rows) if wanted(at // rows)]
    for one in (layout, source):
        one.expect((at, min(at + rows, info.n_frames)) for at in starts)
    for start in starts:
        stop = min(start + rows, info.n_frames)
        try:
            mine, theirs = layout.read(start, stop), source.read(start, stop)
        except OSError as error:
            result.add(f"frames {start} to {stop - 1}: {error}")
            continue
        tables = layout.keeps_columns
        _compare_blocks(mine, theirs, start, result, tables=tables, rounded=rounded)
        result.frames_compared += stop - start
        if progress is not None:
            progress(stop - start, mine.nbytes)


def _kept_source_step(layout: Layout) -> bool:
    manifest = layout.manifest
    return manifest is not None and manifest.get("precision_source") == "xtc"


def _compare_blocks(
    mine: FrameBlock,
    theirs: FrameBlock,
    start: int,
    result: VerifyResult,
    *,
    tables: bool,
    rounded: Sequence[str],
) -> None:
    stop = start + mine.n_frames
    allowed = result.allowed_diff_angstrom or 0.0
    for name, array in mine.present().items():
        other = getattr(theirs, name)
        if other is None:
            result.add(f"frames {start} to {stop - 1}: the source has no {name}")
            continue
        if name == "positions":
            worst, excess = _difference(array, other, allowed, rounded=name in rounded)
            result.max_abs_diff_angstrom = max(result.max_abs_diff_angstrom, worst)
            if excess:
                result.add(
                    f"frames {start} to {stop - 1}: positions differ by up to {worst:g} angstrom, "
                    f"{allowed:g} is allowed"
                )
        elif _difference(array, other, 0.0, rounded=name in rounded)[1]:
            result.add(f"frames {start} to {stop - 1}: {name} differ")
    if tables:
        for name in ("box", "time", "step"):
            if not np.array_equal(getattr(mine, name), getattr(theirs, name), equal_nan=True):
                result.add(f"frames {start} to {stop - 1}: {name} differs")


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
