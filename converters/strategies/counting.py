"""The first pass of ``--pbc nojump``: workers count jumps over boundaries, each in its blocks."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from mdio.converters.transform import TransformedLayout, packed, unpacked
from mdio.layouts.plan import LayoutPlan
from mdio.parallel.executors import Executor

COUNTS_NBYTES = 512 << 20
"""What all counts that are kept may take before they are compressed; one for each worker may."""


def count_images(view: Any, plan: LayoutPlan, executor: Executor) -> None:
    """Count, in parallel, what those who write pieces of a view have to know: the first pass.

    Nothing is done where frames are not followed, or by one worker, which meets them in order.

    `view`: the frames that are written, of a `TransformedLayout`. `plan`: whose pieces. `executor`:
    where to count.
    """
    whole: TransformedLayout | None = getattr(view, "source", None)
    if whole is None or not hasattr(whole, "counted") or executor.n_workers == 1:
        return
    steps = whole.prepared(view.atoms)
    if not steps.follows:
        return
    n_atoms = view.source.info.n_atoms if steps.needed is None else len(steps.needed)
    most = max(executor.n_workers, COUNTS_NBYTES // (12 * n_atoms))
    firsts = sorted({0, *(int(view.frames[start]) for start, _ in plan.write_tasks())})
    runs = list(pairwise(firsts[:: -(-len(firsts) // most)]))
    found = executor.map(whole.counted, runs, describe=lambda run: f"frames {run[0]} to {run[1]}")
    found = executor.from_owner(lambda: found)
    now = np.zeros(3 * n_atoms, np.int32)
    counts = {}
    for (_, frame), crossed in zip(runs, found, strict=True):
        now += unpacked(crossed)
        counts[frame] = packed(now)
    whole.options["steps"] = replace(steps, counts=counts)


def told_of_passes(pbc: str | None, n_workers: int) -> tuple[str, ...]:
    """Return what a plan tells of the cost of ``--pbc``, if it is more than a step more."""
    if pbc != "nojump":
        return ()
    how = "read once, by one worker"
    if n_workers > 1:
        how = f"read twice: {n_workers} workers count jumps over the boundaries, then write"
    return (f"--pbc nojump follows atoms from the first frame of the source, which is {how}",)
