"""Numbers as people read them."""

import pytest

from mdio.core import words
from mdio.core.words import duration, frames_text, runs_text
from mdio.layouts.manifest import indices_from_runs, runs_from_indices


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (61.24, "61.2 s"),
        (1.0, "1 s"),
        (0.9996, "1 s"),
        (0.9994, "999 ms"),
        (0.0099995, "10 ms"),
        (0.00099996, "1 ms"),
        (4.14e-6, "4.14 µs"),
        (-0.9996, "-1 s"),
        (1234.5, "1,234 s"),
        (0.0, "0 s"),
        (None, "–"),
    ],
)
def test_a_time_has_three_digits_and_no_exponent(seconds, said):
    assert duration(seconds) == said


def test_frames_and_runs_of_them():
    assert [frames_text(3, stop) for stop in (4, 6)] == ["frame 3", "frames 3 to 5"]
    runs = runs_from_indices([3, 17, 20, 21, 22, 23, 30, 34, 38, 99])
    assert indices_from_runs(runs).tolist() == [3, 17, 20, 21, 22, 23, 30, 34, 38, 99]
    assert runs_text(runs) == "3, 17, 20 to 23, 30 to 38 by 4, 99"
    assert runs_text(runs, 2) == "3, 17, 20 to 23, ..."
    assert runs_text([]) == ""


@pytest.mark.parametrize(
    ("frames", "said"),
    [
        ([5, 98, 99, 100, 101], "5, 98 to 101"),
        ([2, 10, 11, 12, 13, 20], "2, 10 to 13, 20"),
        ([0, 3, 4, 5], "0, 3 to 5"),
        ([1, 8, 12, 16, 20], "1, 8 to 20 by 4"),
        ([3, 4, 7, 8], "3, 4, 7, 8"),
        ([7, 8, 9, 11, 13], "7 to 9, 11, 13"),
        ([9, 4, 5, 6, 6, 7], "9, 4 to 6, 6, 7"),
    ],
)
def test_a_run_begins_with_its_first_number(frames, said):
    assert runs_text(runs_from_indices(frames)) == said


def test_times_of_frames():
    assert words.times_text(99, 0.0, 98.0, 1.0) == "0 to 98 ps, every 1 ps"
    assert words.times_text(2, 35.02, 35.04, 0.0200005) == "35.02 to 35.04 ps, every 0.02 ps"
    assert words.times_text(148, 0.0, 73.25, 0.5) == "0 to 73.25 ps"  # one lies nearer
    assert words.times_text(30, 0.0, 0.0, 0.0) == "0 ps, all frames"
    assert words.times_text(3, 2e6, 2000001.0, 0.5) == "2000000 to 2000001 ps, every 0.5 ps"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0.10000000149, "0.1"),
        (900.0000610351562, "900"),
        (2000000.5, "2000000.5"),
        (1e9, "1000000000"),
        (1e-5, "1e-05"),
        (float("nan"), "nan"),
        (1e300, "1e+300"),
    ],
)
def test_numbers_have_the_digits_of_float32(value, said):
    assert words.number_text(value) == said


def test_columns_on_axes():
    assert words.axis_label("mean_distance_angstrom") == "mean distance (Å)"
    assert words.axis_label("vacf_angstrom2_per_ps2") == "vacf (Å²/ps²)"
    assert words.axis_label("cos(phi:ALA2)") == "cos(phi:ALA2)"
