"""The first pass of ``--pbc nojump``: workers count jumps over boundaries, each in its blocks."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from mdio.converters.periodic.layout import TransformedLayout, packed, unpacked
from mdio.core.frames import AtomIndices
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
    whole = _transformed(view)
    if whole is None or executor.n_workers == 1:
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


def notes_on_steps(whole: TransformedLayout, kept: AtomIndices | None, n_workers: int) -> list[str]:
    """Return what a plan tells of what is done to frames, and of passes over the source."""
    note = whole.prepared(kept).note
    asked = {"--pbc": whole.pbc, "--center": whole.center}
    options = " ".join(f"{name} {value}" for name, value in asked.items() if value is not None)
    notes = [f"{options}: {note}"] if note else []
    if whole.pbc == "nojump":
        passes = "read once, by one worker"
        if n_workers > 1:
            passes = f"read twice: {n_workers} workers count jumps over the boundaries, then write"
        notes.append(
            f"--pbc nojump follows atoms from the first frame of the source, which is {passes}"
        )
    return notes


def with_cost(plan: LayoutPlan, view: Any) -> LayoutPlan:
    """Return the plan with what the steps of a `TransformedLayout` take, if `view` is of one."""
    whole = _transformed(view)
    if whole is None:
        return plan
    return plan.replace(notes=(*plan.notes, whole.measured(view.atoms)))


def _transformed(view: Any) -> TransformedLayout | None:
    whole: TransformedLayout | None = getattr(view, "source", None)
    return whole if hasattr(whole, "counted") else None
