"""Times that repeat or go back in one file: what `convert`, `analyze` and `info` say of them."""

import json

import numpy as np
import pytest
from MDAnalysisTests.datafiles import XTC

import mdio
from mdio.cli.main import main


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Two parts, put into one file in order, twice, and the other way round."""
    folder = tmp_path_factory.mktemp("parts")
    for name, start, stop in (("a", 0, 5), ("b", 4, 10)):
        mdio.convert(XTC, folder / f"{name}.xtc", start=start, stop=stop)
    a, b = ((folder / f"{name}.xtc").read_bytes() for name in "ab")
    (folder / "overlap.xtc").write_bytes(a + b)
    (folder / "back.xtc").write_bytes(b + a)
    return folder


def notes_of(notes):
    return [note for note in notes if "do not ascend" in note]


@pytest.mark.parametrize("out", ["o.zarr", "o.h5md", "o.dcd", "o.xtc"])
@pytest.mark.parametrize(("name", "frame", "n_workers"), [("overlap", 5, 1), ("back", 6, 2)])
def test_conversions(files, tmp_path, out, name, frame, n_workers):
    source = files / f"{name}.xtc"
    result = mdio.convert(source, tmp_path / out, workers=n_workers)
    time = mdio.open(source).read(0, 11).time
    (note,) = notes_of(result.plan.notes)
    assert f"frame {frame} lies at {time[frame]:g} ps" in note and "one by one" in note
    assert np.flatnonzero(np.diff(time) <= 0).tolist() == [frame - 1]
    kept = mdio.convert(source, tmp_path / f"few{out}", stop=frame)
    assert not notes_of(kept.plan.notes)


def test_of_copied_segments_the_first_times_are_known(files, tmp_path):
    result = mdio.split(files / "back.xtc", tmp_path / "a.segments", 3)
    assert result.copied
    (note,) = notes_of(result.plan.notes)
    assert "frame 8" in note and "(at least 1 such frame)" in note


def test_parts_given_one_by_one_are_joined(files, tmp_path):
    parts = [files / "b.xtc", files / "a.xtc"]
    assert not notes_of(mdio.convert(parts, tmp_path / "a.zarr").plan.notes)
    assert not notes_of(mdio.analyze(parts, kernel="rmsd").notes)


def test_who_gave_them_one_by_one_is_not_told_to(files, tmp_path):
    parts = [files / "b.xtc", files / "a.xtc"]
    result = mdio.convert(parts, tmp_path / "a.zarr", overlap="keep-all")
    (note,) = notes_of(result.plan.notes)
    assert "frame 6" in note and "one by one" not in note


@pytest.mark.parametrize("out", ["o.zarr", "o.h5md", "o.segments"])
def test_times_that_go_back_where_frames_are_added(files, tmp_path, out):
    mdio.convert(files / "b.xtc", tmp_path / out)
    (note,) = notes_of(mdio.append(files / "a.xtc", tmp_path / out, overlap="keep-all").plan.notes)
    assert "frame 6" in note and "one by one" not in note
    mdio.convert(files / "a.xtc", tmp_path / out, force=True)
    assert not notes_of(mdio.append(files / "b.xtc", tmp_path / out).plan.notes)


def test_who_appends_all_is_not_told_to_go_by_times_that_go_back(files, tmp_path):
    mdio.convert(files / "b.xtc", tmp_path / "o.zarr", precision="none")
    mdio.convert(files / "a.xtc", tmp_path / "a.dcd")
    notes = mdio.append(tmp_path / "a.dcd", tmp_path / "o.zarr", overlap="keep-all").plan.notes
    (note,) = (note for note in notes if "steps do not go on" in note)
    assert "go by the times" not in note and notes_of(notes)


def test_analyses(files):
    result = mdio.analyze(files / "overlap.xtc", kernel="rmsd", start=2)
    (note,) = notes_of(result.notes)
    assert "frame 5" in note


def test_runs_that_begin_at_the_same_time_are_not_joined_by_it(files, tmp_path):
    both = [files / "a.xtc", files / "a.xtc"]
    mdio.convert(both, tmp_path / "a.zarr", overlap="keep-all")
    for notes in (
        mdio.convert(tmp_path / "a.zarr", tmp_path / "b.dcd").plan.notes,
        mdio.analyze(tmp_path / "a.zarr", kernel="rmsd").notes,
    ):
        (note,) = notes_of(notes)
        assert "frame 5" in note and "one by one" not in note and "mdio.Writer" in note


def test_runs_that_overlap_do_not_begin_at_the_time_that_is_chosen(files):
    # From the last frame of the first run, at whose time the second one begins.
    for notes in (
        mdio.convert(files / "overlap.xtc", files / "late.dcd", start=4).plan.notes,
        mdio.analyze(files / "overlap.xtc", kernel="rmsd", start=4).notes,
    ):
        (note,) = notes_of(notes)
        assert "one by one" in note and "mdio.Writer" not in note


def test_frames_without_times_are_not_told_of(tmp_path):
    with mdio.Writer(tmp_path / "a.zarr") as writer:
        writer.write_block(np.zeros((4, 2, 3)), time=np.zeros(4))
    result = mdio.convert(tmp_path / "a.zarr", tmp_path / "b.zarr")
    assert not notes_of(result.plan.notes)


@pytest.mark.parametrize(("name", "is_told"), [("overlap", False), ("back", True), ("a", False)])
def test_info_knows_the_ends_alone(files, capsys, name, is_told):
    assert main(["info", str(files / f"{name}.xtc"), "--json"]) == 0
    notes = json.loads(capsys.readouterr()[0])["notes"]
    assert any("times go back somewhere between" in note for note in notes) == is_told


@pytest.mark.parametrize("out", ["o.zarr", "o.h5md"])
def test_info_knows_all_times_that_lie_beside_the_frames(files, tmp_path, capsys, out):
    for name, n_told in (("overlap", 1), ("a", 0)):
        mdio.convert(files / f"{name}.xtc", tmp_path / out, force=True)
        assert main(["info", str(tmp_path / out), "--json"]) == 0
        assert len(notes_of(json.loads(capsys.readouterr()[0])["notes"])) == n_told


@pytest.mark.parametrize(("number", "value"), [(0, np.nan), (2, np.nan), (9, np.inf), (9, 1e300)])
def test_one_time_that_is_not_finite_or_no_float32(tmp_path, number, value):
    time = np.arange(10.0)
    time[number] = value
    with mdio.Writer(tmp_path / "a.zarr", 4) as writer:
        writer.write_block(np.zeros((10, 4, 3)), time=time)
    for selection, chosen in (
        (mdio.Selection(begin_ps=3), time >= 3),
        (mdio.Selection(end_ps=6), time <= 6),
        (mdio.Selection(begin_ps=3, end_ps=8, dt_ps=2), np.isin(time, [3, 5, 7])),
        (mdio.Selection(begin_ps=3, dt_ps=2), np.isin(time, [3, 5, 7, 9, 1e300])),
    ):
        mdio.convert(tmp_path / "a.zarr", tmp_path / "b.zarr", selection=selection, force=True)
        written = mdio.open(tmp_path / "b.zarr")
        assert written.read(0, written.info.n_frames).time.tolist() == time[chosen].tolist()


@pytest.mark.filterwarnings("ignore:.*do not ascend:UserWarning")
def test_descending_times_have_no_gap(tmp_path):
    for name, n_frames in (("some", 5), ("all", 10)):
        with mdio.Writer(tmp_path / f"{name}.zarr", 4) as writer:
            writer.write_block(
                np.arange(n_frames * 12).reshape(-1, 4, 3), time=-np.arange(n_frames)
            )
    mdio.convert(tmp_path / "some.zarr", tmp_path / "out.zarr")
    result = mdio.append(tmp_path / "all.zarr", tmp_path / "out.zarr")
    assert result.n_frames == 10
    assert not any("no frames between" in note for note in result.notes)
