"""Frames added to an output: the same as converting everything at once, and nothing lost."""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import MDAnalysis as mda
import numpy as np
import pytest
from suites.outputs import as_options

import mdio
from mdio.cli.main import main
from mdio.converters import append as append_module
from mdio.converters.append import Comparison
from mdio.converters.convert import prepare
from mdio.converters.options import ConversionOptions
from mdio.core.errors import CorruptLayoutError, MdioError, OutputError, PlanError, SourceError
from mdio.layouts import continuation, plan
from mdio.parallel.executors import Serial

N_ATOMS, N_FRAMES = 30, 40
APPENDED, SERIAL = ConversionOptions.of(append=True), Serial()
LAYOUTS = {
    "zarr": {"chunk_frames": 2},
    "zarr gzip": {"chunk_frames": 2, "compression": "gzip:1"},
    "zarr auto": {"chunk_frames": 4, "chunk_atoms": N_ATOMS, "precision": "auto"},
    "zarr 0.05": {"chunk_frames": 4, "chunk_atoms": 16, "precision": 0.05},
    "h5md": {"chunk_frames": 2},
    "h5md gzip": {"chunk_frames": 4, "compression": "gzip:1"},
    "h5md 0.05": {"chunk_frames": 4, "precision": 0.05},
    "h5md rigid": {"chunk_frames": 4, "compression": "rigid"},
    "h5md bitpack": {"chunk_frames": 4, "compression": "bitpack"},
    "h5md contiguous": {"contiguous": True},
    "segments": {"segments": 1},
    "segments dcd": {"segments": 1, "container": "dcd"},
}


def write(path, frames, mark=0.0):
    """Write frames of one simulation with MDAnalysis; others of them have another `mark`."""
    universe = mda.Universe.empty(N_ATOMS, trajectory=True)
    with mda.Writer(str(path), N_ATOMS) as writer:
        for frame in frames:
            random = np.random.default_rng(frame)
            ts = universe.trajectory.ts
            ts.positions = (10 * random.random((N_ATOMS, 3)) + mark).astype(np.float32)
            ts.time, ts.data["step"] = 2.0 * frame, 100 * frame
            ts.dimensions = [20 + frame, 30, 30, 90, 90, 90]
            writer.write(universe.atoms)
    return path


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Have pieces of 8 frames, however long the trajectory."""
    for name in ("MIN_PIECE_NBYTES", "MAX_PIECE_NBYTES"):
        monkeypatch.setattr(plan, name, 8 * 12 * N_ATOMS)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return write(tmp_path_factory.mktemp("whole") / "md.xtc", range(N_FRAMES))


def everything(path):
    with mdio.open(path) as layout:
        return layout.read(0, layout.info.n_frames)


def assert_same(path, expected):
    mine, theirs = everything(path), everything(expected)
    np.testing.assert_allclose(mine.time, theirs.time, rtol=2e-7)  # a DCD counts, in its own step
    for name in ("positions", "box", "step"):
        np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name), name)
    assert mdio.verify(path).ok


def files(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.endswith(".mdio-index")
    }


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("kind", LAYOUTS)
def test_the_same_as_everything_at_once(tmp_path, whole, kind, workers):
    cuts = sorted(np.random.default_rng(len(kind)).choice(np.arange(9, N_FRAMES), 2, False))
    edges = [0, *map(int, cuts), N_FRAMES]
    parts = [write(tmp_path / f"{n}.xtc", range(*span)) for n, span in enumerate(pairwise(edges))]
    name = kind.partition(" ")[0]
    out, once = tmp_path / f"out.{name}", tmp_path / f"once.{name}"
    options = {"workers": workers, **LAYOUTS[kind]}
    mdio.convert(parts[0], out, **as_options(options))
    first = mdio.open(out).manifest
    for part in parts[1:]:
        former = mdio.open(out).manifest["uuid"]
        result = mdio.append(part, out, workers=workers)
        assert mdio.open(out).manifest["appended_to"] == former
    assert result.n_frames == N_FRAMES
    mdio.convert(whole, once, **as_options(options))
    assert_same(out, once)
    assert mdio.verify(out, against=parts).ok
    if name == "zarr":
        mine, theirs = files(out), files(once)
        assert [path for path in theirs if mine.get(path) != theirs[path]] == ["zarr.json"]
        assert set(mine) == set(theirs)
    if kind == "segments":
        names = [row["file"] for row in mdio.open(out).manifest["segments"]]
        assert b"".join((out / one).read_bytes() for one in names) == whole.read_bytes()
    assert mdio.open(out).manifest["uuid"] != first["uuid"]


def test_what_is_full_is_linked(tmp_path, whole):
    for name, options, unit in (
        ("zarr", {"chunk_frames": 2}, "particles/trajectory/position/value/c.{}.0.0"),
        ("segments", {"segments": 2}, "000/seg-{:06d}.xtc"),
    ):
        out = tmp_path / f"out.{name}"
        mdio.convert(whole, out, stop=20, **as_options(options))

        def inodes(out=out, unit=unit):
            return [(out / unit.format(number)).stat().st_ino for number in range(2)]

        before = inodes()
        mdio.append(whole, out)
        assert inodes() == before
        assert_same(out, whole)


def test_copied_where_there_are_no_links(tmp_path, whole, monkeypatch):
    def refuse(*_):
        raise OSError(1, "Operation not permitted")

    mdio.convert(whole, tmp_path / "out.zarr", stop=20, storage=mdio.Storage(chunk_frames=2))
    monkeypatch.setattr(Path, "hardlink_to", refuse)
    mdio.append(whole, tmp_path / "out.zarr")
    assert_same(tmp_path / "out.zarr", whole)


def test_selection_groups_and_steps_are_those_of_the_output(tmp_path, whole):
    first, rest = (write(tmp_path / f"{a}.xtc", range(a, b)) for a, b in ((0, 23), (23, N_FRAMES)))
    out, once = tmp_path / "out.zarr", tmp_path / "once.zarr"
    options = {
        "select": np.array([3, 1, 20, 7]),
        "groups": {"g": np.array([20, 1])},
        "step": 3,
        "chunk_frames": 2,
    }
    mdio.convert(first, out, **as_options(options))
    mdio.append(rest, out)
    mdio.convert(whole, once, **as_options(options))
    assert_same(out, once)
    assert mdio.verify(out, against=[first, rest]).ok
    with mdio.open(out, group="g") as mine, mdio.open(once, group="g") as theirs:
        np.testing.assert_array_equal(mine.read(0, 14).positions, theirs.read(0, 14).positions)
    few = mda.Universe.empty(4, trajectory=True)
    few.atoms.write(str(tmp_path / "few.xtc"))
    with pytest.raises(SourceError, match=r"few.xtc: has 4 atoms, but .* of 30"):
        mdio.append(tmp_path / "few.xtc", out)


@pytest.mark.parametrize(
    "choice", [{"dt_ps": 4.0}, {"step": 2}, {"dt_ps": 6.0}], ids=["dt", "step", "dt 6"]
)
@pytest.mark.parametrize("cuts", [(1, 9), (2, 9), (3, 4)], ids=str)
def test_frames_are_skipped_as_in_the_output_of_a_single_one(tmp_path, whole, choice, cuts):
    """Parts may have none of the frames at all."""
    parts = [
        write(tmp_path / f"{n}.xtc", range(*span))
        for n, span in enumerate(pairwise((0, *cuts, 20)))
    ]
    out, once = tmp_path / "out.zarr", tmp_path / "once.zarr"
    mdio.convert(parts[0], out, **as_options(choice))
    for part in parts[1:]:
        mdio.append(part, out)
    mdio.convert(whole, once, stop=20, **as_options(choice))
    assert_same(out, once)


def test_the_continuation_wins_unless_asked(tmp_path):
    first = write(tmp_path / "1.xtc", range(20))
    other = write(tmp_path / "2.xtc", range(15, 30), mark=5)
    for overlap, kept in ((None, 15), ("keep-last", 15), ("keep-first", 20)):
        for name in ("zarr", "h5md", "segments"):
            out = tmp_path / f"{overlap}.{name}"
            mdio.convert(first, out)
            result = mdio.append(other, out, overlap=overlap)
            note = f"new: {30 - kept} frames; of the 20 already there, {kept} stay"
            assert note in result.plan.notes[-2]
            told = "left out" if overlap == "keep-first" else "replaced by those of"
            assert told in result.plan.notes[-1]
            block = everything(out)
            np.testing.assert_allclose(block.time, 2.0 * np.arange(30))
            np.testing.assert_array_equal(
                block.positions[:kept], everything(first).positions[:kept]
            )
            np.testing.assert_array_equal(
                block.positions[kept:], everything(other).positions[kept - 15 :]
            )
            assert mdio.verify(out, against=[first, other]).ok
    before = files(tmp_path / "None.zarr")
    with pytest.raises(
        SourceError, match=r"3.xtc: beside .* 5 frames \(at 50 to 58 ps\) are there"
    ):
        mdio.append(
            write(tmp_path / "3.xtc", range(25, 35), mark=9),
            tmp_path / "None.zarr",
            overlap="error",
        )
    with pytest.raises(PlanError, match=r"overlap is 'keep_first' \(did you mean 'keep-first'"):
        mdio.append(tmp_path / "3.xtc", tmp_path / "None.zarr", overlap="keep_first")
    assert files(tmp_path / "None.zarr") == before


def test_of_a_source_that_has_not_changed_some_frames_are_compared(tmp_path, whole, monkeypatch):
    """Evenly spread, with the first and last that both have; of one that has changed, all."""
    compared = []
    blocks_equal = Comparison._blocks_equal

    def counted(comparison, old, new):
        compared.extend(new.time.tolist())
        return blocks_equal(comparison, old, new)

    monkeypatch.setattr(Comparison, "_blocks_equal", counted)
    monkeypatch.setattr(append_module, "COMPARED_NBYTES", 1)
    monkeypatch.setattr(append_module, "MIN_COMPARED", 4)
    out = tmp_path / "out.zarr"
    mdio.convert(whole, out, stop=31)
    mdio.append(whole, out)
    assert_same(out, whole)
    assert compared == [0, 20, 40, 60]
    compared.clear()
    mdio.convert(write(tmp_path / "1.xtc", range(31)), out, force=True)
    mdio.append(whole, out)
    assert compared == (2.0 * np.arange(31)).tolist()


def test_a_note_says_which_file_has_a_frame_already(tmp_path):
    """Of the frames that two parts share, the output itself may have none."""
    spans = {"1": (0, 11), "2": (11, 21), "3": (20, 31), "4": (9, 25), "5": (15, 23)}
    parts = {name: write(tmp_path / f"{name}.xtc", range(*span)) for name, span in spans.items()}
    out = tmp_path / "out.h5md"
    mdio.convert(parts["1"], out)
    notes = mdio.append([parts["3"], parts["2"]], out).plan.notes
    assert f"{parts['3']}: {parts['2']} has 1 of its 11 frames already" in notes
    assert not any(str(out) in note and " of its " in note for note in notes)
    mdio.convert(parts["1"], out, force=True)
    notes = mdio.append([parts["4"], parts["5"], parts["3"]], out).plan.notes
    assert f"{parts['4']}: {out} has 2 of its 16 frames already" in notes
    assert f"{parts['5']}: left out: {parts['4']} has all of its frames already" in notes
    assert f"{parts['3']}: {parts['4']} has 5 of its 11 frames already" in notes


def test_what_is_there_already_is_left_out(tmp_path, whole, capsys):
    """All parts may be given each time, and a file that has grown."""
    parts = [
        write(tmp_path / f"md.part{n}.xtc", range(a, b))
        for n, (a, b) in enumerate([(0, 11), (10, 21), (20, 31), (36, N_FRAMES)])
    ]
    out = tmp_path / "out.zarr"
    mdio.convert(parts[:2], out)
    assert main(["append", *map(str, parts[:3]), str(out), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    notes = "\n".join(report["notes"])
    assert report["n_frames"] == 31
    assert "new: 10 frames; of the 21 already there, 21 stay" in notes
    assert f"{parts[0]}: left out: {out} has all of its frames already" in notes
    assert f"{parts[2]}: {out} has 1 of its 11 frames already" in notes
    assert mdio.verify(out, against=parts[:3]).ok
    assert main(["append", str(whole), str(out), "--quiet"]) == 0
    assert_same(out, whole)
    capsys.readouterr()
    uuid = mdio.open(out).manifest["uuid"]
    assert main(["append", str(whole), str(out)]) == 0
    told = capsys.readouterr().out
    assert "nothing was written" in told and "nothing to add" in told
    assert main(["append", *map(str, parts[:3]), str(out), "--quiet"]) == 0
    assert mdio.append(whole, out).found_complete
    assert mdio.open(out).manifest["uuid"] == uuid


@pytest.mark.parametrize("name", ["zarr", "h5md", "segments"])
def test_all_parts_of_a_restarted_run_may_be_given_each_time(tmp_path, name):
    """Each begins before the end of the one before, with other frames."""
    ranges = [(0, 14), (10, 24), (20, 30)]
    parts = [write(tmp_path / f"{n}.xtc", range(*ends), mark=n) for n, ends in enumerate(ranges)]
    out, everything_at_once = tmp_path / f"a.{name}", tmp_path / "all.zarr"
    mdio.convert(parts, everything_at_once)
    mdio.convert(parts[0], out)
    for n_parts in (2, 2, 3, 3):
        result = mdio.append(parts[:n_parts], out)
    assert result.found_complete
    assert any("keeps its own (8 frames)" in note for note in result.notes)
    assert_same(out, everything_at_once)
    assert mdio.verify(out, against=parts).ok
    with pytest.raises(SourceError, match="give --overlap keep-last to take those of"):
        mdio.append(parts[1], out)
    other = write(tmp_path / "other.xtc", range(20, 30), mark=5)  # the continuation was run anew
    mdio.append([*parts[:2], other], out)
    mdio.convert([*parts[:2], other], everything_at_once, force=True)
    assert_same(out, everything_at_once)


def test_frames_in_place_of_which_others_stay_are_not_said_to_be_there(tmp_path):
    times = [*range(10), 12, 15]
    out = tmp_path / "sparse.zarr"
    mdio.convert(write(tmp_path / "sparse.xtc", times), out)
    other = write(tmp_path / "other.xtc", range(8, 16), mark=5)
    result = mdio.append(other, out, overlap="keep-first")
    assert result.found_complete
    assert any(note.endswith("or keeps its own (8 frames)") for note in result.notes)
    assert any(f"left out, since those of {out} are kept there" in note for note in result.notes)


def test_what_is_no_number_is_counted_once(tmp_path):
    whole = write(tmp_path / "md.trr", range(N_FRAMES))
    universe = mda.Universe(str(whole), format="TRR", topology_format="TRR", to_guess=())
    with mda.Writer(str(tmp_path / "odd.trr"), N_ATOMS) as writer:
        for ts in universe.trajectory:
            ts.positions[: ts.frame % 3 == 1] = np.nan
            writer.write(universe.atoms)
    for stop in (20, 24):
        out = tmp_path / f"{stop}.zarr"
        mdio.convert(tmp_path / "odd.trr", out, stop=stop, storage=mdio.Storage(chunk_frames=2))
        mdio.append(tmp_path / "odd.trr", out)
        expected = {"coordinates": 3 * 13, "frames": 13, "first_frame": 1}
        assert mdio.open(out).manifest["not_finite"] == expected


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("name", ["zarr", "h5md", "segments"])
def test_frames_that_were_added_are_compared_afterwards(tmp_path, whole, name, workers, capsys):
    """With their files: what the former output held is gone by then."""
    parts = [write(tmp_path / f"{a}.xtc", range(a, b)) for a, b in ((0, 21), (15, 30))]
    there, out = tmp_path / f"there.{name}", tmp_path / f"out.{name}"
    mdio.convert(parts[0], there)
    out.symlink_to(there)
    words = ["-w", str(workers), "--verify", "--json"]
    for source, n_added in ((parts[1], 9), (whole, 10), (whole, 0)):
        assert main(["append", str(source), str(out), *words]) == 0
        verified = json.loads(capsys.readouterr().out)["verify"]
        assert verified["ok"] and verified["frames_compared"] == n_added
    assert_same(out, whole)
    conversion = prepare(write(tmp_path / "2.xtc", range(N_FRAMES, 50)), out, APPENDED, SERIAL)
    conversion.run(SERIAL)
    write(tmp_path / "2.xtc", range(N_FRAMES, 50), mark=1)
    found = mdio.verify(conversion.out, view=conversion.expected())
    assert not found.ok and found.bad[0].startswith("frames 40 to 49: positions differ by up to")


@pytest.mark.parametrize(("begin", "n_behind"), [(10, 20), (0, 20)])
def test_frames_that_would_be_dropped_are_counted_before(tmp_path, whole, begin, n_behind):
    out, other = tmp_path / "out.zarr", tmp_path / "other.xtc"
    mdio.convert(whole, out)
    write(other, range(begin, 20), mark=5)
    with pytest.raises(
        SourceError, match=f"other.xtc and drop the {n_behind} frames after it, keep"
    ):
        mdio.append(other, out)
    notes = mdio.append(other, out, overlap="keep-last").notes
    assert any(f"{n_behind} frames (at 40 to 78 ps) dropped" in note for note in notes)


def test_the_summary_is_of_what_was_written(tmp_path, whole, capsys):
    out = tmp_path / "out.zarr"
    mdio.convert(whole, out, stop=20, storage=mdio.Storage(chunk_frames=2))
    assert main(["append", str(whole), str(out)]) == 0
    summary, added, *_ = capsys.readouterr().out.splitlines()
    assert "40 frames of 30 atoms as zarr, 24 of them written, " in summary
    assert "->" not in summary and "new: 20 frames; of the 20 already there, 20 stay" in added


def test_gaps_are_told(tmp_path, capsys):
    out = tmp_path / "out.zarr"
    mdio.convert(write(tmp_path / "1.xtc", range(5)), out)
    args = [str(write(tmp_path / "2.xtc", range(9, 12))), str(out)]
    assert main(["convert", *args, "--append"]) == 0
    assert f"no frames between 8 ps ({out}) and 18 ps ({args[0]})" in capsys.readouterr().out


@pytest.mark.usefixtures("ending_signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ended_while_frames_are_compared(tmp_path, whole, capsys, monkeypatch, number):
    out = tmp_path / "out.zarr"
    mdio.convert(whole, out, stop=20)
    before = files(out)
    monkeypatch.setattr(Comparison, "compare", lambda *_: os.kill(os.getpid(), number))
    with suppress(SystemExit):
        assert main(["append", str(whole), str(out)]) == 130
    told = capsys.readouterr().err
    assert f"comparing the frames that {out} and {whole} both have; nothing was written" in told
    assert files(out) == before


def test_refused(tmp_path, whole):
    out = tmp_path / "out.zarr"
    late = write(tmp_path / "late.xtc", range(20, 25))
    mdio.convert(late, out)
    before = files(out)
    with pytest.raises(PlanError, match="leave out --precision"):
        mdio.append(whole, out, precision=0.1)
    with pytest.raises(PlanError, match="leave out --no-topology"):
        mdio.append(whole, out, storage=mdio.Storage(topology=False))
    with pytest.raises(
        PlanError, match=r"cannot append to xtc, only to .* output last \(mdio append SRC OUT\)"
    ):
        mdio.append(whole, late)
    for path in (tmp_path / "not-there.zarr", late / "X"):
        with pytest.raises(SourceError, match="no such file"):
            mdio.append(whole, path)
    with pytest.raises(OutputError, match=r"late\.xtc is not a folder"):
        mdio.convert(whole, late / "X.zarr")
    assert mdio.append(out, out).found_complete
    with pytest.raises(OutputError, match="the output is the source"):
        mdio.append(out, out, overlap="keep-all")
    array = out / "particles/trajectory/position/value/zarr.json"
    array.write_text(array.read_text().replace('"unit"', '"Unit"'))
    with pytest.raises(PlanError, match="convert all sources together again"):
        mdio.append(write(tmp_path / "next.xtc", range(25, 30)), out)
    array.write_bytes(before[str(array.relative_to(out))])
    assert files(out) == before


def test_two_at_once_lose_nothing(tmp_path, monkeypatch):
    """Who comes second sees that the output is not what it has begun to continue."""
    out = tmp_path / "out.segments"
    mdio.convert(write(tmp_path / "1.xtc", range(10)), out)
    ours, theirs = (write(tmp_path / f"{n}.xtc", range(10, 10 + n)) for n in (2, 3))
    reuse_units = type(continuation.open_continuation(mdio.open(out), 0)).reuse_units

    def slowly(self, writer):
        monkeypatch.undo()
        mdio.append(theirs, out)
        reuse_units(self, writer)

    monkeypatch.setattr(
        type(continuation.open_continuation(mdio.open(out), 0)), "reuse_units", slowly
    )
    with pytest.raises(MdioError, match="another run has changed it meanwhile"):
        mdio.append(ours, out)
    assert mdio.open(out).info.n_frames == 13
    assert mdio.verify(out).ok


@pytest.mark.parametrize("name", ["zarr", "segments", "h5md"])
def test_a_reader_of_the_former_output_is_told(tmp_path, whole, name):
    out = tmp_path / f"out.{name}"
    mdio.convert(whole, out, stop=21)
    expected = everything(whole).positions[:21]
    with mdio.open(out) as layout:
        layout.read(0, 1)
        mdio.append(whole, out)
        try:
            np.testing.assert_array_equal(layout.read(0, 21).positions, expected)
        except CorruptLayoutError as error:
            assert "was replaced while it was open" in str(error)
    assert_same(out, whole)


def test_nothing_changes_if_it_fails(tmp_path, whole):
    out = tmp_path / "out.zarr"
    mdio.convert(whole, out, stop=21, storage=mdio.Storage(chunk_frames=2))
    before = files(out)
    shard = out / "particles/trajectory/position/value/c.1.0.0"
    shard.rename(tmp_path / "aside")
    with pytest.raises(CorruptLayoutError, match=r"c\.1\.0\.0"):
        mdio.append(whole, out)
    (tmp_path / "aside").rename(shard)
    assert files(out) == before
    assert [path.name for path in tmp_path.iterdir()] == ["out.zarr"]


@pytest.mark.parametrize("name", ["a.zarr", "a.h5md", "a.segments"])
def test_what_a_link_leads_to_is_changed(adk, tmp_path, name):
    """And not the link replaced: the output stays on the disk that it was put on."""
    there = tmp_path / "another disk"
    there.mkdir()
    mdio.convert(adk["dcd"], there / name, stop=40)
    link = tmp_path / name
    link.symlink_to(there / name)
    mdio.append(adk["dcd"], link)
    assert link.is_symlink()
    with mdio.open(there / name) as layout:
        assert layout.info.n_frames == 98
        held = (there / name, *there.rglob("*"))
    held = max((path for path in held if path.is_file()), key=lambda path: path.stat().st_size)
    data = bytearray(held.read_bytes())
    data[len(data) // 2] ^= 8
    held.write_bytes(data)
    assert not mdio.verify(link).ok
    assert mdio.repair(link, adk["dcd"]).repaired
    assert link.is_symlink() and mdio.verify(there / name, adk["dcd"]).ok
    assert {path.name for path in tmp_path.iterdir()} == {name, "another disk"}
    assert not [path for path in there.iterdir() if path.name.startswith(".")]


def test_frames_to_begin_with_are_for_keep_all(adk, tmp_path):
    out = tmp_path / "a.zarr"
    mdio.convert(adk["xtc"], out, stop=20)
    with pytest.raises(PlanError, match="leave out --start"):
        mdio.append(adk["xtc"], out, start=3)
    assert mdio.append(adk["xtc"], out, start=3, overlap="keep-all").n_frames == 20 + 95


def test_an_output_that_was_replaced_is_not_called_old(adk, tmp_path):
    out = tmp_path / "a.zarr"
    mdio.convert(adk["xtc"], out, stop=20)
    with mdio.open(out) as old:
        found = continuation.open_continuation(old, 20)
        assert "to which this version cannot add" in str(found.mismatch_error())
        mdio.convert(adk["xtc"], out, stop=30, force=True)
        assert "was replaced" in str(found.mismatch_error())


@pytest.mark.parametrize(
    ("chosen", "n_stored", "n_left_out"),
    [
        ({"step": 3}, 14, 26),
        ({"step": 4}, 10, 30),
        ({"begin_ps": 10.0}, 35, 5),
        ({"start": 5, "step": 3}, 12, 28),
        ({"begin_ps": 10.0, "dt_ps": 4.0}, 18, 22),
    ],
)
def test_what_was_left_out_stays_left_out(tmp_path, chosen, n_stored, n_left_out):
    """By choice of the frames to begin with and of every nth; `verify` knows, too."""
    run = write(tmp_path / "run.xtc", range(N_FRAMES))
    parts = [
        write(tmp_path / f"{k}.xtc", frames) for k, frames in enumerate([range(20), range(16, 40)])
    ]
    out = tmp_path / "a.zarr"
    mdio.convert(parts[0], out, **as_options(chosen))
    mdio.append(parts, out)
    for source in (parts, run):
        found = mdio.verify(out, source)
        assert found.ok, found.bad
        assert (found.frames_compared, found.frames_left_out) == (n_stored, n_left_out)
    assert mdio.append(run, out).n_frames == n_stored
    later = write(tmp_path / "later.xtc", range(N_FRAMES + 8))
    assert "lacks; add them (mdio append" in mdio.verify(out, later).bad[0]
    mdio.append(later, out)
    assert mdio.verify(out, later).ok


def test_frames_before_the_first_are_told(tmp_path):
    run = write(tmp_path / "run.xtc", range(N_FRAMES))
    for options, n_frames in (({"start": 10}, 30), ({"stop": 10}, 40)):
        mdio.convert(run, tmp_path / "a.zarr", **options, force=True)
        found = mdio.append(run, tmp_path / "a.zarr")
        notes = [note for note in found.plan.notes if "stay left out" in note]
        assert (found.n_frames, len(notes)) == (n_frames, "start" in options)


@pytest.mark.parametrize(
    ("chosen", "edges", "expected_ps"),
    [
        ({"step": 3, "begin_ps": 4.0}, [0, 4, 12, 16], [4, 10, 16, 22, 28]),
        ({"dt_ps": 6.0}, [0, 3, 11, 17], [0, 6, 12, 18, 24, 30]),
        ({"dt_ps": 6.0}, [0, 3, None, 7, 11, 17], [0, 18, 24, 30]),
        ({"dt_ps": 3.0}, [0, 3, None, 7, 11, 17], [0, 18, 24, 30]),
        ({"step": 3}, [0, 7, None, 11, 17, 23], [0, 6, 12, 24, 30, 36, 42]),
    ],
)
def test_the_distance_of_frames_where_few_are_kept(tmp_path, chosen, edges, expected_ps):
    """One frame has none, and that of the first two may be a gap (None)."""
    out = tmp_path / "a.zarr"
    first, *others = (pair for pair in pairwise(edges) if None not in pair)
    mdio.convert(write(tmp_path / "0.xtc", range(*first)), out, **as_options(chosen))
    for start, stop in others:
        mdio.append(write(tmp_path / f"{start}.xtc", range(start, stop)), out)
    with mdio.open(out) as layout:
        assert layout.read(0, layout.info.n_frames).time.tolist() == expected_ps


def test_an_output_begun_with_one_frame_is_told_to_have_small_shards(adk, tmp_path, monkeypatch):
    monkeypatch.undo()  # pieces of usual sizes
    out = tmp_path / "a.zarr"
    mdio.convert(adk["dcd"], out, stop=1)
    notes = mdio.append(adk["dcd"], out).plan.notes
    assert ["begun with few frames" in note for note in notes].count(True) == 1
    mdio.convert(adk["dcd"], out, stop=49, force=True)
    assert "begun with few" not in " ".join(mdio.append(adk["dcd"], out).plan.notes)
