"""Is an output whole, and does it hold what its source holds?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from os import PathLike
from pathlib import Path

from mdio.converters.options import Progress
from mdio.converters.verifying.checks import Checks, Item, VerifyResult
from mdio.core.errors import PlanError
from mdio.layouts.units import Wanted
from mdio.layouts.views.opening import ensemble_at
from mdio.layouts.views.view import ViewLayout
from mdio.parallel.executors import Executor, Serial

Paths = str | PathLike[str] | Sequence[str | PathLike[str]]
PIECES_PER_WORKER = 4
"""Runs of units that each worker gets, so that none waits long for the last."""


def everything(number: int) -> bool:  # noqa: ARG001
    """Return that every unit is checked."""
    return True


def every_nth(part: int, n_parts: int) -> Wanted:
    """Return what takes one unit of `n_parts`; parts 1 to `n_parts` together are all of them."""
    return partial(_is_nth, part, n_parts)


def sample(share: float) -> Wanted:
    """Return what takes this share of the units, evenly spread, the first among them."""
    return partial(_is_sampled, share)


# No lambdas: they travel to other ranks.
def _is_nth(part: int, n_parts: int, number: int) -> bool:
    return number % n_parts == part - 1


def _is_sampled(share: float, number: int) -> bool:
    return math.ceil(number * share) < math.ceil((number + 1) * share)


def verify(
    out: str | PathLike[str],
    against: Paths | None = None,
    *,
    top: str | PathLike[str] | None = None,
    view: ViewLayout | None = None,
    wanted: Wanted = everything,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> VerifyResult:
    """Recompute an output's checksums; compare every frame with its source if that is given.

    Parameters
    ----------
    out
        A trajectory of any layout, or an ensemble. Native files have no checksums: each frame is
        decoded.
    against
        The source (or several files): frames and atoms are taken as the manifest of `out` says.
    top
        Topology, needed only where the conversion went through ``--pbc`` or ``--center``.
    view
        Instead of `against`: just the frames and atoms that `out` should hold.
    wanted
        Tells of the number of a unit (a chunk, a segment, a file of numbers; with a source, also a
        block of frames) whether it is checked: `every_nth` or `sample`. All are by default.
    executor
        Shares the work, in runs of units; under MPI every rank calls this and gets the result.
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
    chosen = executor or Serial()
    if members := chosen.from_owner(partial(ensemble_at, out)):
        if against is not None:
            raise PlanError(
                f"{out}: an ensemble; compare its trajectories one by one "
                f"({next(iter(members.values()))})"
            )
        return _verify_all(members, wanted, executor, progress)
    alone = chosen.shares_memory
    inside = progress if alone else None
    checks = chosen.from_owner(lambda: Checks(out, against, top, view, wanted, inside))
    try:
        found = {}
        items = checks.items(1 if alone else PIECES_PER_WORKER * chosen.n_workers)
        for number, part in chosen.imap(checks, items, describe=_describe):
            found[number] = part
            if progress is not None and not alone:
                progress(part.frames_compared, part.frames_compared * checks.frame_nbytes)
        result = checks.begun
        for number in sorted(found):
            result.take(found[number])
        return chosen.from_owner(lambda: result)
    finally:
        checks.close()


def _verify_all(
    outs: dict[str, Path], wanted: Wanted, executor: Executor | None, progress: Progress | None
) -> VerifyResult:
    result = VerifyResult()
    for label, out in outs.items():
        found = verify(out, wanted=wanted, executor=executor, progress=progress)
        found.bad = [f"{label}: {problem}" for problem in found.bad]
        result.units += found.units
        result.take(found)
    return result


def _describe(item: Item) -> str:
    number, first, last = item
    return f"{'blocks' if number < 0 else 'units'} {first} to {last - 1}"
