"""Partitions: every frame once, in order, on boundaries."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdio.core.blocks import (
    aligned_blocks,
    block_name,
    cut_runs,
    runs_in_parts,
    split_evenly,
    sub_blocks,
)
from mdio.core.errors import PlanError


@st.composite
def trajectories(draw):
    """Boundaries of a layout, and some of its frames."""
    sizes = draw(st.lists(st.integers(1, 40), min_size=1, max_size=30))
    edges = np.cumsum([0, *sizes])
    n_frames = int(edges[-1])
    start = draw(st.integers(0, n_frames))
    stop = draw(st.integers(start, n_frames))
    return edges, range(start, stop, draw(st.integers(1, 9)))


def joined(blocks):
    return [frame for block in blocks for frame in block]


@given(st.integers(0, 500), st.integers(1, 60))
def test_split_evenly(n_frames, n_parts):
    parts = split_evenly(n_frames, n_parts)
    want = [list(p) for p in np.array_split(np.arange(n_frames), min(n_parts, n_frames) or 1)]
    assert [list(p) for p in parts] == [p for p in want if p]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.data())
def test_runs_of_parts(sizes, data):
    edges = np.cumsum([0, *sizes])
    start = data.draw(st.integers(0, sum(sizes)))
    stop = data.draw(st.integers(start, sum(sizes)))
    frames = [(part, at) for part, size in enumerate(sizes) for at in range(size)]
    runs = list(runs_in_parts(edges, start, stop))
    assert [(part, at) for part, a, b in runs for at in range(a, b)] == frames[start:stop]


@given(trajectories(), st.integers(1, 50))
def test_aligned_blocks_cover_frames_once(trajectory, n_blocks):
    edges, frames = trajectory
    blocks = aligned_blocks(edges, frames, n_blocks)
    assert joined(blocks) == list(frames)
    assert len(blocks) == min(n_blocks, len(frames))
    assert all(len(block) for block in blocks)


@given(trajectories(), st.integers(1, 50))
def test_aligned_blocks_share_no_piece(trajectory, n_blocks):
    edges, frames = trajectory
    blocks = aligned_blocks(edges, frames, n_blocks)
    pieces = [set(np.searchsorted(edges, list(block), side="right")) for block in blocks]
    used = set().union(*pieces) if pieces else set()
    if len(used) >= n_blocks:
        assert sum(len(p) for p in pieces) == len(used)
    else:  # every boundary is an edge
        assert all(len(p) == 1 for p in pieces)


@given(st.integers(1, 50), st.integers(1, 20), st.integers(1, 12))
def test_aligned_blocks_are_balanced(n_pieces, chunk, n_blocks):
    frames = range(n_pieces * chunk)
    blocks = aligned_blocks(np.arange(0, len(frames) + 1, chunk), frames, n_blocks)
    lengths = [len(b) for b in blocks]
    if n_pieces >= n_blocks:
        assert max(lengths) - min(lengths) <= 2 * chunk
        assert max(lengths) < len(frames) / n_blocks + chunk
    else:
        assert max(lengths) <= 2 * min(lengths) + 1


def test_blocks_of_single_frames_are_even():
    blocks = aligned_blocks(np.arange(101), range(100), 7)
    assert {len(b) for b in blocks} == {14, 15}


def test_one_chunk_for_many_workers():
    assert aligned_blocks([0, 100], range(100), 4) == split_evenly(100, 4)


@given(trajectories(), st.integers(1, 60))
def test_sub_blocks(trajectory, max_frames):
    edges, frames = trajectory
    runs = list(sub_blocks(edges, frames, max_frames))
    assert joined(runs) == list(frames)
    for run in runs:
        span = run[-1] - run[0] + 1
        first, last = np.searchsorted(edges, [run[0], run[-1]], side="right")
        assert span <= max_frames or first == last
    if frames.step == 1:
        assert all(run.stop in edges for run in runs[:-1])


@given(st.integers(1, 300), st.integers(1, 60))
def test_sub_blocks_of_single_frames_are_full(n_frames, max_frames):
    runs = list(sub_blocks(np.arange(n_frames + 1), range(n_frames), max_frames))
    assert [len(run) for run in runs[:-1]] == [max_frames] * (len(runs) - 1)


def test_names():
    assert block_name(range(3, 9)) == "frames 3:9"
    assert block_name(range(3, 9, 2)) == "frames 3:9:2"


def test_bad_arguments():
    for call in (
        lambda: split_evenly(5, 0),
        lambda: aligned_blocks([0, 5], range(5), 0),
        lambda: aligned_blocks([0, 5], range(5, 0, -1), 1),
    ):
        with pytest.raises(PlanError):
            call()


@pytest.mark.parametrize("unit", [1, 8, 40])
@pytest.mark.parametrize("max_frames", [1, 30, 1000])
def test_runs_are_cut_between_units_alone(unit, max_frames):
    begins = [0, 100, 130]  # of pieces, as of segments
    runs = cut_runs([*begins, 300], 300, unit, max_frames)
    assert [at for run in runs for at in run] == list(range(300))
    assert max(map(len, runs)) <= max(max_frames, unit)
    for run in runs:  # none but that behind a piece's end begins within a unit
        piece = max(begin for begin in begins if begin <= run.start)
        assert (run.start - piece) % unit == 0
