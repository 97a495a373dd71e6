"""Arithmetic that cuts frames into blocks.

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
    size, n_longer = divmod(n_frames, n_parts)
    edges = [part * size + min(part, n_longer) for part in range(n_parts + 1)]
    return [range(a, b) for a, b in itertools.pairwise(edges)]


def runs_in_parts(edges: Edges, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yield (part, first, stop) of frames ``start:stop``, counted from the beginning of each part.

    `edges`, (n + 1,) int: where each part begins, ascending, and where the last one ends.
    """
    part = int(edges.searchsorted(start, side="right")) - 1
    while start < stop:
        part_start, part_stop = int(edges[part]), min(stop, int(edges[part + 1]))
        yield part, start - part_start, part_stop - part_start
        start, part = part_stop, part + 1


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
    index = 0
    while index < len(block):
        first = block[index]
        last_edge = int(np.searchsorted(edges, first + max_frames, side="right")) - 1
        end = int(edges[last_edge])
        if end <= first:
            end = int(edges[last_edge + 1]) if last_edge + 1 < len(edges) else block.stop
        n_before = -(-(end - block.start) // block.step)  # frames of the block before `end`
        next_index = max(index + 1, min(n_before, len(block)))
        yield block[index:next_index]
        index = next_index


def cut_runs(boundaries: ArrayLike, n_frames: int, min_frames: int, max_frames: int) -> list[range]:
    """Cut all frames into runs that fit into memory.

    As `sub_blocks`, but a longer piece, such as a segment or a joined file, is cut further.
    `min_frames`: frames that are decoded as one, which are not cut.
    """
    longest = max(min_frames, max_frames - max_frames % min_frames)
    runs = sub_blocks(boundaries, range(n_frames), longest)
    return [run[first : first + longest] for run in runs for first in range(0, len(run), longest)]


def _check_positive(n_parts: int) -> None:
    if n_parts < 1:
        raise PlanError(f"{n_parts} blocks asked for; give 1 or more")


def _piece_edges(boundaries: ArrayLike, frames: range) -> Edges:
    """Return the edges of pieces that hold any of `frames`, as indices into `frames`."""
    edges = np.asarray(boundaries, dtype=np.int64)
    indices = -((frames.start - edges) // frames.step)
    inner_edges = indices[(indices > 0) & (indices < len(frames))]
    edges = np.sort(np.concatenate(([0], inner_edges, [len(frames)])))
    return edges[np.insert(np.diff(edges) > 0, 0, True)]  # np.unique would import numpy.ma


def _nearest_edges(pieces: Edges, n_blocks: int) -> list[int]:
    """Return `n_blocks` + 1 of the edges of `pieces`, each the nearest to an even cut."""
    chosen = [0]
    for block in range(1, n_blocks):
        cut = int(pieces[-1]) * block / n_blocks
        next_piece = int(np.searchsorted(pieces, cut))
        nearest = (
            next_piece - 1
            if cut - pieces[next_piece - 1] <= pieces[next_piece] - cut
            else next_piece
        )
        # Leave at least one edge for each block before, and for each one after.
        chosen.append(min(max(nearest, chosen[-1] + 1), len(pieces) - 1 - (n_blocks - block)))
    return [int(pieces[i]) for i in (*chosen, len(pieces) - 1)]


def _cut_further(pieces: Edges, n_blocks: int) -> list[int]:
    """Return the edges of `pieces` and more, `n_blocks` + 1 in all."""
    lengths = np.diff(pieces)
    n_parts_of = np.ones(len(lengths), dtype=np.int64)
    for _ in range(n_blocks - len(lengths)):
        n_parts_of[np.argmax(lengths / n_parts_of)] += 1
    edges: list[int] = []
    for start, length, n_parts in zip(pieces, lengths, n_parts_of, strict=False):
        edges += [int(start) + part.start for part in split_evenly(int(length), int(n_parts))]
    return [*edges, int(pieces[-1])]
