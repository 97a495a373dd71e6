"""The map: blocks of frames go through the user's function, pairs come out in sorted runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mdio.analysis.kernels.kernel import kernel_name
from mdio.analysis.plan import Plan
from mdio.analysis.reducers import Stack
from mdio.analysis.work import BlockWork, describe
from mdio.core.frames import FrameBlock
from mdio.core.timing import BlockTiming
from mdio.mapreduce.pairs import Pairs, as_keys, as_values
from mdio.mapreduce.program import Program
from mdio.mapreduce.runs import Run, Spool, gathered


class MapItem(NamedTuple):
    """A block to map."""

    at: int
    """Where its first frame is among all that are mapped, by which the block is known."""
    number: int
    trajectory: int
    label: str
    frames: range
    """Of the layout."""


def block_label(item: MapItem) -> str:
    """Return how messages call a block."""
    of = f" of {item.label}" if item.label else ""
    return describe((item.number, item.frames)) + of


@dataclass(slots=True)
class Mapped:
    """What became of a block."""

    at: int
    runs: list[Run]
    n_pairs: NDArray[np.int64]
    """Of each frame."""
    time: NDArray[np.float64]
    timing: BlockTiming


def head(mapped: Mapped) -> Mapped:
    """Return it without its pairs."""
    return replace(mapped, runs=[replace(run, pairs=None) for run in mapped.runs])


def part_of(mapped: Mapped, first: Any, beyond: Any) -> list[Run]:
    """Return copies of a block's pairs whose keys lie from `first` on, before `beyond`."""
    parts = []
    for run in mapped.runs:
        assert run.pairs is not None
        ends = [None if key is None else run.edges([key])[1] for key in (first, beyond)]
        part = run.part(ends[0] or 0, len(run) if ends[1] is None else ends[1])
        parts.append(replace(part, pairs=gathered([part])))
    return parts


class MapWork:
    """Maps one block; opens the trajectory once in each process.

    `plans`: of each trajectory. `program`: whose map is called; its reduce comes along, so that one
    that cannot travel is told of before the work. `spool`: where pairs go.
    """

    def __init__(self, plans: Sequence[Plan], program: Program, spool: Spool) -> None:
        self._name = kernel_name(plans[0].prepared.function)
        self._spool, self._reduce = spool, program.reduce
        self._functions = [
            _Counting(plan.prepared.function, program.per_frame, spool) for plan in plans
        ]
        self._works = []
        for plan, function in zip(plans, self._functions, strict=True):
            prepared = replace(plan.prepared, function=function, reducer=Stack(), fills=False)
            self._works.append(BlockWork(plan.layout, prepared, plan.opened_s))

    def __repr__(self) -> str:
        return f"{self._name} or {kernel_name(self._reduce)}"

    def __call__(self, item: MapItem) -> Mapped:
        """Map a block; raises BlockError if that fails."""
        self._spool.begin(block_label(item))
        self._functions[item.trajectory].at = item.at
        done = self._works[item.trajectory]((item.number, item.frames))
        n_pairs = Stack().finish(done.state)  # type: ignore[arg-type]
        return Mapped(item.at, self._spool.finish(), n_pairs, done.time, done.timing)


class _Counting:
    """Calls a map, spools its pairs, and returns how many each frame gave."""

    def __init__(self, function: Any, per_frame: bool, spool: Spool) -> None:
        self._function, self._per_frame, self._spool = function, per_frame, spool
        self.at = 0

    def __call__(self, block: FrameBlock) -> NDArray[np.int64]:
        keys, rows, values = self._by_frame(block) if self._per_frame else self._at_once(block)
        n_frames = block.n_frames
        if len(rows) and not 0 <= rows.min() <= rows.max() < n_frames:
            raise ValueError(f"rows are {rows.min()} to {rows.max()} in a block of {n_frames}")
        at = (self.at + rows).astype(np.int64)
        # Blocks are read into the same arrays again: what is a view of them must be copied.
        own = {name: np.array(value) for name, value in values.items()}
        self._spool.add(Pairs(tuple(own), [keys, at, *own.values()]))
        self.at += n_frames
        return np.bincount(rows, minlength=n_frames)

    def _at_once(self, block: FrameBlock) -> tuple[NDArray[Any], NDArray[Any], dict[str, Any]]:
        given = self._function(block)
        if not isinstance(given, tuple) or len(given) != 3:
            raise ValueError(
                f"{kernel_name(self._function)} returned a {type(given).__name__}; expected "
                "(keys, rows, values), or per_frame=True for a generator of (key, value)"
            )
        keys, rows = as_keys(given[0]), np.asarray(given[1])
        if rows.shape != keys.shape or (rows.dtype.kind not in "iu" and len(rows)):
            raise ValueError(
                f"there are {len(keys)} keys, but rows of shape {rows.shape} and {rows.dtype}; "
                "expected the row in the block of each pair's frame, a whole number"
            )
        return keys, rows.astype(np.int64), as_values(given[2], len(keys))

    def _by_frame(self, block: FrameBlock) -> tuple[NDArray[Any], NDArray[Any], dict[str, Any]]:
        keys, rows, values = [], [], []
        for row in range(block.n_frames):
            for key, value in self._function(block.frames(slice(row, row + 1))):
                keys.append(key)
                rows.append(row)
                given = value if isinstance(value, dict) else {"value": value}
                values.append({name: np.array(one) for name, one in given.items()})
        names = list(values[0]) if values else []
        odd = next((number for number, one in enumerate(values) if list(one) != names), None)
        if odd is not None:
            raise ValueError(
                f"values of the key {keys[odd]!r} are {list(values[odd])}, before {names}"
            )
        columns = {name: np.array([one[name] for one in values]) for name in names}
        return as_keys(keys), np.array(rows, np.int64), as_values(columns, len(keys))
