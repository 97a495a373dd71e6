"""Reducers: the same result for any partition and any order of merging."""

from functools import reduce
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from MDAnalysisTests.datafiles import DCD, PSF

import mdio
from mdio.analysis.reducers import Histogram, Mean, Stack, StandardDeviation, Sum, Variance
from mdio.analysis.work import RowCollector
from mdio.core.errors import BlockError, PlanError

ROWS = hnp.arrays(
    np.float64,
    st.tuples(st.integers(1, 40), st.integers(1, 3), st.just(3)),
    elements=st.floats(-1e6, 1e6),
)
CASES = [
    (Stack(), lambda x: x),
    (Sum(), lambda x: x.sum(axis=0)),
    (Mean(), lambda x: x.mean(axis=0)),
    (Variance(), lambda x: x.var(axis=0)),
    (StandardDeviation(), lambda x: x.std(axis=0)),
    (StandardDeviation(norm=True), lambda x: np.sqrt(x.var(axis=0).sum(axis=-1))),
    (Histogram([-1e6, 0.0, 1.0, 1e6]), lambda x: np.histogram(x, [-1e6, 0.0, 1.0, 1e6])[0]),
]
IDS = [type(reducer).__name__ for reducer, _ in CASES]


def parts_of(rows, cuts):
    edges = sorted({0, len(rows), *(cut % len(rows) for cut in cuts)})
    return [rows[a:b] for a, b in pairwise(edges)]


@pytest.mark.parametrize(("reducer", "want"), CASES, ids=IDS)
@given(rows=ROWS, cuts=st.lists(st.integers(0, 100), max_size=8), right=st.booleans())
def test_any_partition(reducer, want, rows, cuts, right):
    states = [reducer.lift(part) for part in parts_of(rows, cuts)]
    if right:
        joined = reduce(lambda later, earlier: reducer.merge(earlier, later), reversed(states))
    else:
        joined = reduce(reducer.merge, states)
    got = reducer.finish(joined)
    expected = want(rows)
    assert got.shape == expected.shape
    scale = np.abs(rows).max() ** (2 if isinstance(reducer, Variance) else 1)
    np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-11 * (scale * len(rows) + 1))
    if isinstance(reducer, Stack | Histogram):
        assert np.array_equal(got, expected)


def test_small_deviations_about_a_large_mean():
    """Sums of squares would have no digit left."""
    rows = 1e9 + np.random.default_rng(1).normal(size=(1000, 1))
    reducer = Variance()
    got = reducer.finish(reduce(reducer.merge, map(reducer.lift, np.array_split(rows, 7))))
    np.testing.assert_allclose(got, (rows - 1e9).var(axis=0), rtol=1e-6)


def test_float32_rows_are_summed_in_float64():
    rows = np.full((100_000, 1), 0.1, np.float32)
    assert Sum().finish(Sum().lift(rows))[0] == pytest.approx(
        100_000 * float(np.float32(0.1)), rel=1e-12
    )
    assert Mean().finish(Mean().lift(rows)).dtype == np.float64
    counts = Sum().finish(Sum().lift(np.full((300, 2), 100, np.int8)))
    assert counts.tolist() == [30000, 30000]


def test_lifted_rows_may_be_overwritten():
    for reducer, want in CASES:
        rows = np.arange(12.0).reshape(2, 2, 3)
        expected = want(rows.copy())
        state = reducer.lift(rows)
        rows[:] = -1
        np.testing.assert_allclose(reducer.finish(state), expected)


@pytest.mark.parametrize("edges", [[], [1.0], [2.0, 1.0], [[1.0, 2.0]]])
def test_edges(edges):
    with pytest.raises(PlanError, match="edges"):
        Histogram(edges)


class TestCollected:
    def test_rows_are_written_where_they_stay(self):
        collected = RowCollector(Stack(), 5)
        assert collected.buffer(2) is None
        collected.add(np.array([[1.0, 2], [3, 4]]))
        room = collected.buffer(3)
        room[...] = [[5, 6], [7, 8], [9, 10]]
        collected.add(room)
        rows = Stack().finish(collected.state)
        assert rows.tolist() == [[1, 2], [3, 4], [5, 6], [7, 8], [9, 10]]
        assert np.shares_memory(rows, room)

    def test_views_are_copied_and_dtypes_widened(self):
        collected = RowCollector(Stack(), 4)
        buffer = np.array([1, 2], np.int32)
        for scale in (1, 10):
            collected.add((buffer * scale)[:] if scale > 1 else buffer)
        buffer[:] = 0
        assert Stack().finish(collected.state).tolist() == [1, 2, 10, 20]
        collected = RowCollector(Stack(), 3)
        collected.add(np.array([1, 2], np.int32))
        collected.add(np.array([0.5]))
        assert Stack().finish(collected.state).tolist() == [1, 2, 0.5]
        collected = RowCollector(Stack(), 2)
        collected.add(np.array(["a"]))
        collected.add(np.array(["longer"]))
        assert Stack().finish(collected.state).tolist() == ["a", "longer"]

    def test_other_shapes(self):
        collected = RowCollector(Stack(), 4)
        collected.add(np.ones((2, 3)))
        with pytest.raises(BlockError, match="different shapes"):
            collected.add(np.ones((2, 4)))

    def test_reducers_of_ones_own_see_all_rows(self):
        class Doubled(Stack):
            def lift(self, rows):
                return super().lift(2 * rows)

        collected = RowCollector(Doubled(), 2)
        collected.add(np.array([1.0]))
        assert collected.buffer(1) is None
        collected.add(np.array([2.0]))
        assert Doubled().finish(collected.state).tolist() == [2, 4]


@pytest.mark.parametrize("kind", [Sum, Mean, Variance, StandardDeviation])
def test_complex_numbers_keep_their_imaginary_part(kind):
    rng = np.random.default_rng(5)
    rows = rng.normal(size=(40, 3)) + 1j * rng.normal(size=(40, 3))
    name = {Variance: "var", StandardDeviation: "std"}.get(kind, kind.__name__.lower())
    reducer = kind()
    states = [reducer.lift(part) for part in parts_of(rows, [7, 20])]
    values = reducer.finish(reduce(reducer.merge, states))
    np.testing.assert_allclose(values, getattr(rows, name)(axis=0), rtol=1e-12)


@pytest.mark.parametrize("reducer", [Mean(), Variance(), Sum(), Histogram([0, 1])])
def test_rows_that_are_no_numbers_are_refused(reducer):
    name = type(reducer).__name__
    says = f"{name} needs .*numbers; return a plain array, not rows with fields \\(a, b\\)"
    with pytest.raises(TypeError, match=says):
        reducer.lift(np.zeros(3, [("a", float), ("b", float)]))
    with pytest.raises(TypeError, match=f"{name} needs .*numbers, not values of <U3"):
        reducer.lift(np.array(["0.5", "1"]))


def test_a_histogram_has_no_bins_for_complex_numbers():
    with pytest.raises(TypeError, match="Histogram needs real numbers, not values of complex128"):
        Histogram([0, 1]).lift(np.array([0.5 + 1j]))


def test_spans_of_time_have_no_mean():
    with pytest.raises(TypeError, match="Mean needs numbers"):
        Mean().lift(np.array([1, 2], "timedelta64[s]"))


@pytest.mark.parametrize("reducer", [Mean(), Variance(), StandardDeviation(), Histogram([0, 90])])
def test_means_and_deviations_of_angles_are_those_of_their_numbers(reducer):
    kernel = mdio.Dihedrals("resid 10:12", degrees=True)
    notes = mdio.analyze(DCD, top=PSF, kernel=kernel, reducer=reducer, stop=5).notes
    is_noted = any("179 and -179 degrees" in note for note in notes)
    assert is_noted == (not isinstance(reducer, Histogram))
