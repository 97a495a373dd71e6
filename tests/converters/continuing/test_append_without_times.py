"""Formats that hold no times: steps tell frames apart, and where there are none, contents."""

from __future__ import annotations

import gsd.hoomd
import numpy as np
import pytest

import mdio
from mdio.cli.main import main
from mdio.core.errors import SourceError


def lammps(path, steps):
    with path.open("w") as out:
        for step in steps:
            out.write(
                f"ITEM: TIMESTEP\n{step}\nITEM: NUMBER OF ATOMS\n3\nITEM: BOX BOUNDS pp pp pp\n"
            )
            out.write("0 20\n" * 3 + "ITEM: ATOMS id type x y z\n")
            out.write("".join(f"{i + 1} 1 {i + step / 1000} {i} 0\n" for i in range(3)))
    return path


def hoomd(path, steps):
    with gsd.hoomd.open(path, "w") as out:
        for step in steps:
            frame = gsd.hoomd.Frame()
            frame.configuration.step, frame.configuration.box = step, [20, 20, 20, 0, 0, 0]
            frame.particles.N = 3
            frame.particles.position = np.arange(9).reshape(3, 3) + step / 1000
            out.append(frame)
    return path


def xyz(path, marks):
    with path.open("w") as out:
        for mark in marks:
            out.write("2\n-\n" + "".join(f"C {i + mark} 0 0\n" for i in range(2)))
    return path


WRITERS = [("lammpstrj", lammps), ("gsd", hoomd)]


def steps_of(out):
    with mdio.open(out) as layout:
        return layout.read(0, layout.info.n_frames).step.tolist()


@pytest.mark.parametrize(("ending", "write"), WRITERS)
@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
@pytest.mark.parametrize("overlap", [None, "keep-last", "keep-first"])
def test_joined_by_steps(tmp_path, ending, write, order, overlap):
    parts = [
        write(tmp_path / f"1.{ending}", range(0, 501, 100)),
        write(tmp_path / f"2.{ending}", range(500, 1001, 100)),
    ]
    out = tmp_path / "out.zarr"
    result = mdio.convert([parts[n] for n in order], out, overlap=overlap)
    assert steps_of(out) == list(range(0, 1001, 100))
    assert any("(500 to 500 steps) dropped" in note for note in result.plan.notes)
    assert mdio.verify(out, against=[parts[n] for n in order]).ok
    with pytest.raises(SourceError, match=r"0 to 500 steps\) and .* overlap"):
        mdio.convert(parts, tmp_path / "no.zarr", overlap="error")
    mdio.convert(parts[::-1], tmp_path / "all.zarr", overlap="keep-all")
    assert len(steps_of(tmp_path / "all.zarr")) == 12


@pytest.mark.parametrize(("ending", "write"), WRITERS)
@pytest.mark.parametrize("layout", ["zarr", "h5md"])
def test_appended_by_steps(tmp_path, ending, write, layout):
    first = write(tmp_path / f"1.{ending}", range(0, 501, 100))
    rest = write(tmp_path / f"2.{ending}", range(500, 1001, 100))
    gap = write(tmp_path / f"3.{ending}", range(1500, 2001, 100))
    out = tmp_path / f"out.{layout}"
    mdio.convert(first, out)
    with pytest.raises(SourceError, match=r"1 frame \(at step 500\) are there"):
        mdio.append(rest, out, overlap="error")
    for part in (gap, rest, first, rest):
        mdio.append(part, out)
    assert steps_of(out) == [*range(0, 1001, 100), *range(1500, 2001, 100)]
    assert mdio.verify(out, against=[first, rest, gap]).ok


def test_segments_that_count_their_steps_are_known_by_contents(tmp_path):
    first = lammps(tmp_path / "1.lammpstrj", range(0, 501, 100))
    grown = lammps(tmp_path / "2.lammpstrj", range(0, 801, 100))
    out = tmp_path / "out.segments"
    mdio.convert(first, out)
    with pytest.raises(SourceError, match="no times or steps of its own"):
        mdio.append(grown, out, overlap="error")
    assert mdio.append(grown, out).n_frames == 9
    assert mdio.append(grown, out).found_complete


def test_the_time_step_that_was_given_goes_for_what_is_added(tmp_path):
    first = lammps(tmp_path / "1.lammpstrj", range(0, 501, 100))
    rest = lammps(tmp_path / "2.lammpstrj", range(500, 1001, 100))
    out = tmp_path / "out.zarr"
    mdio.convert(first, out, source_options={"dt": 0.002})
    mdio.append(rest, out)
    with mdio.open(out) as layout:
        np.testing.assert_allclose(layout.read(0, 11).time, 0.2 * np.arange(11))


@pytest.mark.parametrize("command", ["convert", "split"])
def test_an_overlap_that_cannot_be_followed(tmp_path, capsys, command):
    files = [str(xyz(tmp_path / f"{n}.xyz", range(3 * n, 3 * n + 3))) for n in range(2)]
    out = str(tmp_path / f"out.{'segments' if command == 'split' else 'zarr'}")
    more = ["-n", "1"] if command == "split" else []
    for overlap in ("error", "keep-last", "keep-first"):
        assert main([command, *files, out, *more, "--overlap", overlap]) == 1
        assert f"--overlap {overlap} could be followed" in capsys.readouterr().err
    assert main([command, *files, out, *more]) == 0
    assert "times start again at 0 ps" in capsys.readouterr().out
    assert main(["analyze", "rgyr", *files, "--weights", "none", "--overlap", "error"]) == 1
    assert "could be followed" in capsys.readouterr().err


@pytest.mark.parametrize("layout", ["zarr", "h5md"])
def test_counted_frames_are_known_by_their_contents(tmp_path, layout):
    out = tmp_path / f"out.{layout}"
    first, grown = xyz(tmp_path / "1.xyz", range(3)), xyz(tmp_path / "2.xyz", range(6))
    rest = xyz(tmp_path / "3.xyz", range(6, 9))
    mdio.convert(first, out)
    assert mdio.append(grown, out).n_frames == 6
    assert mdio.append(grown, out).found_complete and mdio.append(first, out).found_complete
    result = mdio.append(rest, out)
    assert result.n_frames == 9 and any("start again" in note for note in result.plan.notes)
    assert mdio.append(rest, out).found_complete
    assert mdio.append(xyz(tmp_path / "4.xyz", range(6, 11)), out).n_frames == 11
    np.testing.assert_array_equal(mdio.open(out).read(0, 11).positions[:, 0, 0], np.arange(11))
    for marks in ([0, 1, 2, 30], [6, 7, 60]):
        with pytest.raises(SourceError, match="is not the one that follows there"):
            mdio.append(xyz(tmp_path / "5.xyz", marks), out)
    with pytest.raises(SourceError, match=r"no times or steps .* keep-all"):
        mdio.append(rest, out, overlap="keep-last")
    assert mdio.append(rest, out, overlap="keep-all").n_frames == 14


@pytest.mark.parametrize("name", ["o.zarr", "o.h5md", "o.segments"])
def test_times_of_cp2k_stay_made_up_in_outputs_of_versions_that_made_them_up(
    tmp_path, monkeypatch, name
):
    """Else times of 0, 1, 2 and 3 ps were followed by one of 0.04 ps."""
    source, out = tmp_path / "md-pos-1.xyz", tmp_path / name
    frames = [
        f"1\n i = {5 * n:8d}, time = {10.0 * n:12.3f}, E = -0.1\nAr {n} 0 0\n" for n in range(6)
    ]
    source.write_text("".join(frames[:4]))
    with monkeypatch.context() as before:
        before.setattr("mdio.layouts.foreign.text.counted.XYZ._cp2k_values", lambda *_: None)
        mdio.convert(source, out)
    assert mdio.verify(out, against=source).ok
    source.write_text("".join(frames))
    mdio.append(source, out)
    with mdio.open(out) as layout:
        assert layout.read(0, 6).time.tolist() == [0, 1, 2, 3, 4, 5]
    assert mdio.verify(out, against=source).ok
