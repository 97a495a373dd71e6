"""In which order the pieces of a conversion are taken."""

from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mdio
from mdio.converters.strategies import conversion
from mdio.converters.strategies.write_tasks import order_for_concurrent_files


def pieces_of(sizes, n):
    edges = pairwise(accumulate(sizes, initial=0))
    return [(a, min(a + n, stop)) for begin, stop in edges for a in range(begin, stop, n)]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(1, 9), st.integers(1, 8))
def test_each_once(sizes, n, n_workers):
    pieces = pieces_of(sizes, n)
    assert sorted(order_for_concurrent_files(pieces, sizes, n_workers)) == pieces


@pytest.mark.parametrize("n_workers", [2, 3, 7])
def test_those_at_work_together_are_in_different_files(n_workers):
    sizes = [10] * 9 * n_workers
    order = order_for_concurrent_files(pieces_of(sizes, 2), sizes, n_workers)
    files = [start // 10 for start, _ in order]
    for at in range(len(files) - n_workers):
        assert len(set(files[at : at + n_workers])) == n_workers


@pytest.mark.parametrize(("sizes", "n_workers"), [((), 4), ((98,), 4), ((49, 49), 1)])
def test_one_after_the_other_where_it_makes_no_difference(sizes, n_workers):
    pieces = pieces_of(sizes or (98,), 7)
    assert order_for_concurrent_files(pieces, sizes, n_workers) == pieces


@pytest.mark.parametrize("container", ["xtc", "dcd", "ncdf", "trr"])
def test_segments_of_several_pieces_are_what_one_worker_makes(
    adk, tmp_path, container, monkeypatch
):
    monkeypatch.setattr("mdio.layouts.native.encoder.DECODED_PIECE_NBYTES", 200_000)
    files = []
    for n_workers in (1, 3):
        out = tmp_path / f"{n_workers}.segments"
        result = mdio.convert(
            adk["xtc"],
            out,
            storage=mdio.Storage(container=container, segments=7),
            workers=n_workers,
        )
        n_pieces = len(result.plan.write_tasks())
        assert n_pieces == 7 if result.copied else n_pieces > 14
        files.append([file.read_bytes() for file in sorted(out.rglob(f"*.{container}"))])
    assert files[0] == files[1]


def test_the_note_on_lost_steps_is_of_the_first_segment_whichever_is_made_first(
    tmp_path, monkeypatch
):
    source = tmp_path / "a.xtc"
    with mdio.Writer(source) as writer:
        writer.write_block(np.zeros((12, 5, 3)), step=range(500, 6500, 500))
    monkeypatch.setattr(conversion, "order_for_concurrent_files", lambda pieces, *_: pieces[::-1])
    storage = mdio.Storage(container="dcd", segments=3)
    notes = mdio.convert(source, tmp_path / "a.segments", storage=storage).plan.notes
    assert [note[:24] for note in notes if "steps" in note] == ["steps (500, 1000, ...) a"]
