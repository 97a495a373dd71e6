"""Frames that are chosen by their times, in trajectories too long for exact times."""

import re

import MDAnalysis as mda
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from suites.outputs import as_options

import mdio
from mdio.cli.main import main
from mdio.core.words import plural


def _trajectory(path, times):
    """Write two atoms a frame at these times, by MDAnalysis."""
    u = mda.Universe.empty(2, trajectory=True)
    with mda.Writer(str(path), 2) as writer:
        for time in times:
            u.trajectory.ts.time = time
            writer.write(u.atoms)
    return path


def _times(path):
    with mdio.open(path) as layout:
        return layout.read(0, layout.info.n_frames, atoms=[]).time


@pytest.mark.parametrize("last_ps", [1e4, 1e7, 1.6e7])
@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"dt_ps": 20.0}, slice(0, None, 2)),
        ({"dt_ps": 100.0}, slice(0, None, 10)),
        ({"begin_ps": -300.0, "end_ps": -200.0}, slice(10, 21)),
        ({"begin_ps": -294.0, "end_ps": -206.0}, slice(11, 20)),
        ({"begin_ps": -300.0, "dt_ps": 30.0}, slice(10, None, 3)),
    ],
)
def test_frames_of_ten_microseconds(tmp_path, last_ps, options, kept):
    times = last_ps + np.arange(-400.0, 1.0, 10.0)
    source = _trajectory(tmp_path / "long.xtc", times)
    wanted = {key: last_ps + value if value < 0 else value for key, value in options.items()}
    mdio.convert(source, tmp_path / "a.zarr", **as_options(wanted))
    assert_array_equal(_times(tmp_path / "a.zarr"), times[kept])


def test_a_long_dt_takes_no_neighbours(tmp_path):
    source = _trajectory(tmp_path / "long.xtc", np.arange(0.0, 3001.0, 1.0))
    mdio.convert(source, tmp_path / "a.zarr", selection=mdio.Selection(dt_ps=1500.0))
    assert_array_equal(_times(tmp_path / "a.zarr"), [0, 1500, 3000])


def test_times_that_a_rounded_step_has_made(adk, tmp_path):
    """In this DCD file they are 0.99999991 ps apart, and drift away from whole numbers."""
    chosen = mdio.Selection(begin_ps=10, end_ps=90, dt_ps=20)
    mdio.convert(adk["dcd"], tmp_path / "a.zarr", selection=chosen)
    assert_array_equal(np.rint(_times(tmp_path / "a.zarr")), [10, 30, 50, 70, 90])


@pytest.mark.parametrize(
    ("dt", "kept", "told"),
    [
        ("20", 20, None),
        (
            "25",
            8,
            "--dt 25 is not a multiple of the 10 ps between frames.*there are 8, 50 ps apart",
        ),
        (
            "4",
            20,
            "--dt 4 is not a multiple of the 10 ps between frames.*there are 20, 20 ps apart",
        ),
        (
            "5",
            40,
            "--dt 5 is not a multiple of the 10 ps between frames.*there are 40, 10 ps apart",
        ),
        ("1234.5", 1, "--dt 1234.5 is not a multiple of .*there are 1$"),
    ],
)
@pytest.mark.parametrize("suffix", ["zarr", "segments"])
def test_a_dt_between_frames_says_what_it_does(tmp_path, capsys, suffix, dt, kept, told):
    source = _trajectory(tmp_path / "a.xtc", np.arange(0.0, 400.0, 10.0))
    assert main(["convert", str(source), str(tmp_path / f"a.{suffix}"), "--dt", dt]) == 0
    printed = capsys.readouterr().out
    assert f"{plural(kept, 'frame')} of 2 atoms" in printed
    notes = re.findall(r"note: (.*)", printed)
    if told is None:
        assert notes == []
    else:
        assert [re.search(told, note) is not None for note in notes] == [True]


@pytest.mark.parametrize(
    ("times", "options", "n_frames", "told"),
    [
        (np.arange(0.0, 20.0, 0.5), ["--step", "2", "--dt", "0.5"], 20, "20 frames, 1 ps apart"),
        (np.arange(0.0, 20.0, 0.5), ["--step", "2", "--dt", "1.5"], 7, "7 frames, 3 ps apart"),
        (np.full(5, 3.0), ["--dt", "2"], 5, "--dt 2 leaves no frame out.*the same time, 3 ps"),
        ([0, 1, 3, 3.5, 10, 11, 12], ["--dt", "2"], 3, "3 frames, the first two 10 ps apart"),
        (1e5 + np.arange(0.0, 5.0, 0.1), ["--dt", "0.2"], 25, None),
        (1e5 + np.arange(0.0, 5.0, 0.1), ["--dt", "1"], 5, None),
        (1e5 + np.arange(0.0, 5.0, 0.1), ["--dt", "0.25"], 10, "multiple of the 0.1 ps between"),
    ],
)
def test_what_else_leaves_out_frames_is_said(tmp_path, capsys, times, options, n_frames, told):
    source = _trajectory(tmp_path / "a.xtc", times)
    assert main(["convert", str(source), str(tmp_path / "a.zarr"), *options]) == 0
    printed = capsys.readouterr().out
    assert f"{n_frames} frames of 2 atoms" in printed
    assert "note:" not in printed if told is None else re.search(f"note: .*{told}", printed)


@pytest.mark.parametrize("option", ["-b", "-e", "--dt"])
def test_a_time_that_is_no_number_is_refused(tmp_path, capsys, option):
    source = _trajectory(tmp_path / "a.xtc", np.arange(3.0))
    assert main(["convert", str(source), str(tmp_path / "a.zarr"), option, "nan"]) != 0
    assert re.search(f"{option} is (not a number|nan ps); give a", capsys.readouterr().err)
