"""Partitions of frames into blocks: pure arithmetic.

A block is a `range` of frame numbers: it has a length, a first frame and a step, and it pickles to
a few bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mdio.core.errors import PlanError

Edges = NDArray[np.int64]
FrameRun = tuple[int, int]
"""A run of frames: the first, and one beyond the last."""
FrameRuns = Sequence[FrameRun]


def block_name(block: range) -> str:
    """Return how messages call a block: ``frames 0:100`` or ``frames 0:100:5``."""
    step = "" if block.step == 1 else f":{block.step}"
    return f"frames {block.start}:{block.stop}{step}"


def split_evenly(n_frames: int, n_parts: int) -> list[range]:
    """Cut frames into contiguous parts whose lengths differ by at most one, longer ones first.

    There are fewer than `n_parts` if there are fewer frames, and none is empty.
    """
    _check_positive(n_parts)
    n_parts = min(n_parts, n_frames)
    if n_parts <= 0:
        return []
    size, longer = divmod(n_frames, n_parts)
    edges = [part * size + min(part, longer) for part in range(n_parts + 1)]
    return [range(a, b) for a, b in itertools.pairwise(edges)]


def runs_of_parts(edges: Edges, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yield (part, first, one beyond the last of its frames) for frames ``start:stop`` of all.

    `edges`, (n + 1,) int: where each part begins, ascending, and where the last one ends.
    """
    number = int(edges.searchsorted(start, side="right")) - 1
    while start < stop:
        first, end = int(edges[number]), min(stop, int(edges[number + 1]))
        yield number, start - first, end - first
        start, number = end, number + 1


def aligned_blocks(boundaries: ArrayLike, frames: range, n_blocks: int) -> list[range]:
    """Cut frames into contiguous blocks at a layout's own boundaries.

    Boundaries enclose pieces, such as chunks. If at least `n_blocks` pieces hold frames, every
    block is a run of whole pieces, each edge the boundary nearest to an even cut: no chunk is read
    by two workers. If there are fewer pieces than blocks, all boundaries are edges and the longest
    pieces are cut further, evenly: a chunk may then be read by several workers, so that none is
    idle.
    `boundaries`: ascending, as `Layout.boundaries` gives them. There are fewer than `n_blocks` only
    if there are fewer frames, and none is empty.
    Raises PlanError: `n_blocks` or the step of `frames` is not positive.
    """
    _check_positive(n_blocks)
    if frames.step < 1:
        raise PlanError(f"the step is {frames.step}; give 1 or more")
    n_blocks = min(n_blocks, len(frames))
    if n_blocks <= 0:
        return []
    pieces = _piece_edges(boundaries, frames)
    if len(pieces) - 1 >= n_blocks:
        edges = _nearest_edges(pieces, n_blocks)
    else:
        edges = _cut_further(pieces, n_blocks)
    return [frames[a:b] for a, b in itertools.pairwise(edges)]


def sub_blocks(boundaries: ArrayLike, block: range, max_frames: int) -> Iterator[range]:
    """Cut a block into runs for one read each.

    A run is as many whole pieces of the layout as span at most `max_frames` frames of the
    trajectory, or one piece if that is longer; with pieces of one frame, `max_frames` frames.
    `boundaries`: ascending, beginning with 0.
    """
    edges = np.asarray(boundaries, dtype=np.int64)
    begin = 0
    while begin < len(block):
        first = block[begin]
        last = int(np.searchsorted(edges, first + max_frames, side="right")) - 1
        end = int(edges[last])
        if end <= first:
            end = int(edges[last + 1]) if last + 1 < len(edges) else block.stop
        n_before = -(-(end - block.start) // block.step)  # of the frames of the block
        next_begin = max(begin + 1, min(n_before, len(block)))
        yield block[begin:next_begin]
        begin = next_begin


def runs_within(boundaries: ArrayLike, n_frames: int, unit: int, max_frames: int) -> list[range]:
    """Cut all frames into runs that fit into memory.

    As `sub_blocks`, but a longer piece is cut further, down to `unit`, the frames that are decoded
    as one: a piece may be a segment or one of several joined files.
    """
    longest = max(unit, max_frames - max_frames % unit)
    runs = sub_blocks(boundaries, range(n_frames), longest)
    return [run[first : first + longest] for run in runs for first in range(0, len(run), longest)]


def _check_positive(n_parts: int) -> None:
    if n_parts < 1:
        raise PlanError(f"{n_parts} blocks asked for; give 1 or more")


def _piece_edges(boundaries: ArrayLike, frames: range) -> Edges:
    """Return the edges of pieces that hold any of `frames`, as indices into `frames`."""
    edges = np.asarray(boundaries, dtype=np.int64)
    indices = -((frames.start - edges) // frames.step)
    inner = indices[(indices > 0) & (indices < len(frames))]
    edges = np.sort(np.concatenate(([0], inner, [len(frames)])))
    return edges[np.insert(np.diff(edges) > 0, 0, True)]  # np.unique would import numpy.ma


def _nearest_edges(pieces: Edges, n_blocks: int) -> list[int]:
    """Return `n_blocks` + 1 of the edges of `pieces`, each the nearest to an even cut."""
    numbers = [0]
    for block in range(1, n_blocks):
        ideal = int(pieces[-1]) * block / n_blocks
        upper = int(np.searchsorted(pieces, ideal))
        nearest = upper - 1 if ideal - pieces[upper - 1] <= pieces[upper] - ideal else upper
        # Leave at least one edge for each block before, and for each one after.
        numbers.append(min(max(nearest, numbers[-1] + 1), len(pieces) - 1 - (n_blocks - block)))
    return [int(pieces[i]) for i in (*numbers, len(pieces) - 1)]


def _cut_further(pieces: Edges, n_blocks: int) -> list[int]:
    """Return the edges of `pieces` and more, `n_blocks` + 1 in all."""
    lengths = np.diff(pieces)
    parts = np.ones(len(lengths), dtype=np.int64)
    for _ in range(n_blocks - len(lengths)):
        parts[np.argmax(lengths / parts)] += 1
    edges: list[int] = []
    for start, length, n_parts in zip(pieces, lengths, parts, strict=False):
        edges += [int(start) + part.start for part in split_evenly(int(length), int(n_parts))]
    return [*edges, int(pieces[-1])]
