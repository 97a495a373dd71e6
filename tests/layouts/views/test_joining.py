"""Files whose times overlap: each frame once, in the order of times, and told so."""

from __future__ import annotations

import json
import pickle

import MDAnalysis as mda
import numpy as np
import pytest

import mdio
from mdio.cli.main import main
from mdio.converters.convert import split
from mdio.converters.verify import verify
from mdio.core.errors import PlanError, SourceError
from mdio.layouts.views import joining
from mdio.layouts.views.chain import ChainLayout

N_ATOMS = 4


def write(path, times, mark):
    """Write frames with MDAnalysis: the first coordinate tells the file, the second the time."""
    universe = mda.Universe.empty(N_ATOMS, trajectory=True)
    with mda.Writer(str(path), N_ATOMS) as writer:
        for time in times:
            ts = universe.trajectory.ts
            ts.positions = np.full((N_ATOMS, 3), (mark, time, 0), np.float32)
            ts.time, ts.data["step"], ts.dimensions = time, round(10 * time), [50.0] * 3 + [90] * 3
            writer.write(universe.atoms)
    return path


@pytest.fixture(params=["xtc", "trr", "ncdf"])
def parts(request, tmp_path):
    """0 to 5 ps; a restart at 3 ps that goes to 8 ps; and one at 8 ps that goes to 10."""
    spans = {"b1": range(6), "c2": range(3, 9), "a3": range(8, 11)}
    return [
        write(tmp_path / f"{name}.{request.param}", times, mark)
        for mark, (name, times) in enumerate(spans.items())
    ]


def seen(layout):
    """Return which file each frame is of, and its time."""
    block = layout.read(0, layout.info.n_frames)
    assert block.time.tolist() == pytest.approx(block.positions[:, 0, 1].tolist(), abs=0.01)
    return block.positions[:, 0, 0].round().astype(int).tolist(), block.time.round(3).tolist()


def once(*counts):
    return [mark for mark, count in enumerate(counts) for _ in range(count)], list(range(11))


@pytest.mark.parametrize("overlap", [None, "keep-last"])
@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1], [1, 2, 0]])
def test_the_continuation_wins_in_any_order(parts, order, overlap):
    with mdio.open([parts[n] for n in order], overlap=overlap) as layout:
        assert seen(layout) == once(3, 5, 3)
        assert (layout.info.time_first_ps, layout.info.time_last_ps) == (0, 10)
        assert layout.boundaries().tolist()[-1] == 11
        assert [layout.read(n, n + 1).time[0].round() for n in (10, 2, 3, 7, 8)] == [10, 2, 3, 7, 8]
        told = "\n".join(layout.notes)
        assert ("put into the order of their times" in told) == (order != [0, 1, 2])
        assert f"{parts[0]}: frames 3 to 5 (3 to 5 ps) dropped, since {parts[1]} covers" in told
        assert f"{parts[1]}: frame 5 (8 to 8 ps) dropped" in told
        again = pickle.loads(pickle.dumps(layout))
        assert seen(again) == once(3, 5, 3)
    assert seen(layout) == once(3, 5, 3)  # opened again


def test_what_was_there_first_is_kept(parts):
    with mdio.open(parts[::-1], overlap="keep-first") as layout:
        assert seen(layout) == once(6, 3, 2)
        assert f"{parts[1]}: frames 0 to 2 (3 to 5 ps) dropped" in "\n".join(layout.notes)


def test_all_are_kept_in_the_order_given(parts):
    with mdio.open(parts[::-1], overlap="keep-all") as layout:
        assert seen(layout)[1] == [8, 9, 10, 3, 4, 5, 6, 7, 8, 0, 1, 2, 3, 4, 5]
        assert (layout.notes, layout.joined) == ((), None)


def test_overlap_may_be_an_error(parts):
    with pytest.raises(SourceError, match=r"b1.*\(0 to 5 ps\) and .*c2.*\(3 to 8 ps\) overlap"):
        mdio.open(parts, overlap="error").info  # noqa: B018
    with pytest.raises(PlanError, match="the overlap is 'all'; give one of keep-last"):
        mdio.open(parts, overlap="all")


def test_times_are_read_in_runs(parts, monkeypatch):
    monkeypatch.setattr(joining, "RUN_FRAMES", 2)
    for overlap, counts in ((None, (3, 5, 3)), ("keep-first", (6, 3, 2))):
        with mdio.open(parts, overlap=overlap) as layout:
            assert seen(layout) == once(*counts)


def test_files_that_follow_each_other_are_joined_as_before(tmp_path):
    paths = [write(tmp_path / f"{n}.xtc", range(3 * n, 3 * n + 3), n) for n in range(3)]
    with mdio.open(paths) as layout:
        assert layout.read(0, 9).time.tolist() == list(range(9))
        assert (layout.notes, layout.joined) == ((), None)


def test_gaps_are_told(tmp_path):
    paths = [write(tmp_path / f"{n}.xtc", range(9 * n, 9 * n + 3), n) for n in range(2)]
    (note,) = mdio.open(paths).notes
    assert note == f"no frames between 2 ps ({paths[0]}) and 9 ps ({paths[1]})"


def test_a_file_that_is_given_twice_is_meant_so(parts):
    """To repeat it for a longer trajectory, as benchmarks do."""
    with mdio.open([parts[1], parts[1], parts[0]]) as layout:
        assert seen(layout)[1] == [*range(3, 9), *range(3, 9), *range(6)]
        assert layout.notes[0].startswith(f"{parts[1]}: given more than once")


@pytest.mark.parametrize("times", [range(4), range(6), [0]])
def test_replicas_are_no_trajectory(tmp_path, times):
    paths = [write(tmp_path / "r1.xtc", range(4), 0), write(tmp_path / "r2.xtc", times, 1)]
    with pytest.raises(SourceError, match=r"as replicas do.*convert --ensemble.*keep-all"):
        mdio.open(paths).info  # noqa: B018
    assert mdio.open(paths, overlap="keep-all").info.n_frames == 4 + len(times)


def test_a_part_that_ends_before_the_former_is_not_chosen_unasked(tmp_path):
    paths = [write(tmp_path / "a.xtc", range(9), 0), write(tmp_path / "b.xtc", range(3, 6), 1)]
    with pytest.raises(SourceError, match="the second ends before the first"):
        mdio.open(paths).info  # noqa: B018
    assert seen(mdio.open(paths, overlap="keep-last"))[1] == list(range(6))
    first = mdio.open(paths, overlap="keep-first")
    assert seen(first) == ([0] * 9, list(range(9)))
    assert [str(member.path) for member in first.sources] == [str(paths[0])]


def test_steps_decide_where_times_are_too_coarse(tmp_path):
    """Near a microsecond, float32 times of neighbouring frames are the same."""
    paths = []
    for name, steps in (("a", range(6)), ("b", range(4, 9))):
        paths.append(tmp_path / f"{name}.trr")
        with mda.Writer(str(paths[-1]), N_ATOMS) as writer:
            universe = mda.Universe.empty(N_ATOMS, trajectory=True)
            for step in steps:
                ts = universe.trajectory.ts
                ts.time, ts.data["step"] = 2.0**24 + 2 * (step // 6), step
                writer.write(universe.atoms)
    with mdio.open(paths, overlap="keep-last") as layout:
        assert layout.read(0, layout.info.n_frames).step.tolist() == list(range(9))


def test_where_frames_are_but_counted_files_are_joined_as_given(tmp_path):
    frame = f"{N_ATOMS}\n\n" + "H 1 2 3\n" * N_ATOMS
    paths = [tmp_path / "b.xyz", tmp_path / "a.xyz"]
    for path in paths:
        path.write_text(frame * 3)
    assert mdio.open(paths).info.n_frames == 6


@pytest.mark.parametrize("suffix", ["zarr", "segments", "trr"])
def test_an_output_knows_how_its_source_was_joined(parts, tmp_path, suffix):
    out = tmp_path / f"out.{suffix}"
    result = mdio.convert(parts[::-1], out, workers=2)
    assert any("dropped" in note for note in result.plan.notes)
    with mdio.open(out) as layout:
        assert layout.read(0, 11).time.round(3).tolist() == list(range(11))
        if layout.manifest is not None:
            kept = [[2, 0, 3], [1, 0, 5], [0, 0, 3]]
            assert layout.manifest["source"]["joined"] == {"overlap": None, "parts": kept}
    assert verify(out, parts[::-1]).ok
    assert verify(out, parts).frames_compared == 11


def test_bytes_are_copied_without_what_is_dropped(parts, tmp_path):
    result = split(parts, tmp_path / "out.segments", 2)
    assert result.copied == (parts[0].suffix != ".ncdf")
    assert result.n_frames == 11
    with mdio.open(tmp_path / "out.segments") as layout:
        assert seen(layout) == once(3, 5, 3)
    assert verify(tmp_path / "out.segments", parts).ok


def second_coordinate(block):
    return block.positions[:, 0, 1]


@pytest.mark.parametrize("workers", [None, 2])
def test_an_analysis_sees_each_frame_once(parts, workers):
    executor = mdio.Serial() if workers is None else mdio.Processes(workers)
    result = mdio.analyze(parts, kernel=second_coordinate, executor=executor)
    assert result.values.ravel().round(2).tolist() == list(range(11))
    assert any("dropped" in note for note in result.notes)


def test_the_command_line(parts, tmp_path, capsys):
    names = [str(path) for path in parts]
    assert main(["info", *names, "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["n_frames"] == 11
    assert "dropped" in "".join(json.loads(out)["notes"]) and err == ""
    assert main(["info", *names]) == 0
    err = capsys.readouterr().err
    assert "mdio info: " in err and "dropped" in err
    assert main(["convert", *names, str(tmp_path / "a.zarr"), "--overlap", "keep-all"]) == 0
    assert "15 frames" in capsys.readouterr().out
    assert main(["info", str(tmp_path / "a.zarr")]) == 0
    assert f"{names[0]} and 2 more files" in capsys.readouterr().out
    assert main(["split", *names, str(tmp_path / "a.segments"), "-n", "2"]) == 0
    assert "note: " in capsys.readouterr().out
    assert main(["analyze", "reference-distances", *names, "--overlap", "error"]) == 1
    assert "overlap in time" in capsys.readouterr().err


def test_an_object_may_be_in_it_twice(parts):
    layout = mdio.open(parts[0])
    with ChainLayout([layout, layout]) as chain:
        assert chain.read(0, 12).time.round(3).tolist() == [*range(6), *range(6)]
