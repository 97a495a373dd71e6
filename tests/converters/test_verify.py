"""What `mdio.verify` lets pass and what it does not, where formats have units of their own."""

from itertools import pairwise

import MDAnalysis as mda
import netCDF4
import numpy as np
import pytest
from MDAnalysis.lib.formats.libdcd import DCDFile
from MDAnalysisTests.datafiles import GRO, TRR, XTC, TRR_sub_sol
from suites.outputs import as_options

import mdio
from mdio.cli.main import main
from mdio.core.errors import PlanError, SourceError


def size_of(path):
    return path.stat().st_size


@pytest.fixture
def ncdf(tmp_path):
    """Velocities in AMBER's units and forces in kcal, which rounds them."""
    mdio.convert(TRR_sub_sol, tmp_path / "a.ncdf")
    return tmp_path / "a.ncdf"


def test_units_of_a_container_may_round(ncdf):
    assert mdio.verify(ncdf, TRR_sub_sol).bad == []


@pytest.mark.parametrize("name", ["coordinates", "velocities", "forces"])
def test_more_than_rounding_is_found(ncdf, name):
    with netCDF4.Dataset(ncdf, "a") as file:
        file.set_auto_maskandscale(False)
        row = file[name][1]
        row[7] *= 1 + 1e-5
        file[name][1] = row
    (bad,) = mdio.verify(ncdf, TRR_sub_sol).bad
    assert ("positions" if name == "coordinates" else name) in bad


def test_a_source_that_it_was_not_made_from(adk, tmp_path):
    late, few = tmp_path / "late.zarr", tmp_path / "few.dcd"
    mdio.convert(adk["dcd"], late, start=90, stop=95)
    mdio.convert(adk["dcd"], few, stop=10)
    with pytest.raises(SourceError, match=r"has 10 frames .*late\.zarr \(5 of 3341\) was not made"):
        mdio.verify(late, few)


@pytest.mark.parametrize("suffix", ["h5md", "zarr", "dcd", "trr"])
@pytest.mark.parametrize("option", [{"segments": 3}, {"container": "trr"}])
def test_options_of_segments_are_refused_elsewhere(adk, tmp_path, suffix, option):
    with pytest.raises(PlanError, match=f"belongs to the layout segments, not to {suffix}"):
        mdio.convert(adk["dcd"], tmp_path / f"a.{suffix}", **as_options(option))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["segments", "dcd", "xtc"])
@pytest.mark.parametrize("option", [{"chunk_frames": 3}, {"chunk_atoms": 100}])
def test_chunks_are_refused_where_there_are_none(adk, tmp_path, name, option):
    with pytest.raises(PlanError, match=f"layouts h5md and zarr, not to {name}"):
        mdio.convert(adk["dcd"], tmp_path / f"a.{name}", **as_options(option))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a.zarr", "a.h5md", "a.segments"])
def test_a_damaged_unit_is_named_once(adk, tmp_path, name):
    out = tmp_path / name
    mdio.convert(adk["xtc"], out)
    largest = max((path for path in (out, *out.rglob("*")) if path.is_file()), key=size_of)
    with largest.open("r+b") as file:
        file.seek(size_of(largest) // 2)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 8]))
    for bad in (mdio.verify(out).bad, mdio.repair(out).bad):
        assert len(bad) == 1 and bad[0].count("frames") == 1 and name in bad[0], bad


@pytest.mark.parametrize("suffix", ["xtc", "trr", "ncdf", "dcd"])
def test_boxes_and_times_of_native_files_are_compared(tmp_path, suffix):
    out = tmp_path / f"a.{suffix}"
    mdio.convert(XTC, tmp_path / "a.zarr")
    mdio.convert(XTC, out)
    assert mdio.verify(out, XTC).ok
    block = mdio.open(XTC).read(0, 10)
    boxes, times = block.box.copy(), block.time.copy()
    boxes[:, :3] *= 1.01
    for name, changed in (("box", {"box": boxes}), ("time", {"time": times + 7})):
        with mdio.Writer(tmp_path / f"{name}.zarr") as writer:
            values = {"box": block.box, "time": times, "step": block.step} | changed
            writer.write_block(block.positions, **values)
        result = mdio.verify(out, tmp_path / f"{name}.zarr")
        counted = suffix == "dcd" and name == "time"  # DCD computes them
        assert result.ok == counted, result
        assert counted or f"{name} differs by" in result.bad[0]


@pytest.mark.parametrize("cuts", [(0, 10), (0, 4, 10)])
@pytest.mark.parametrize("layout", ["zarr", "h5md", "segments"])
def test_parts_that_another_program_wrote_are_within_its_rounding(tmp_path, layout, cuts):
    universe = mda.Universe(GRO, XTC)
    parts = [tmp_path / f"{stop}.xtc" for stop in cuts[1:]]
    for path, (start, stop) in zip(parts, pairwise(cuts), strict=True):
        with mda.Writer(str(path), universe.atoms.n_atoms) as writer:
            for _ in universe.trajectory[start:stop]:
                writer.write(universe.atoms)
    mdio.convert(parts, tmp_path / f"a.{layout}")
    assert mdio.verify(tmp_path / f"a.{layout}", XTC).bad == []
    assert mdio.verify(tmp_path / f"a.{layout}", parts).bad == []


def test_times_of_a_dcd_are_compared(tmp_path):
    positions = np.random.default_rng(1).normal(size=(6, 9, 3))
    for name, times in (("a", np.arange(6.0)), ("b", 1000 + 7 * np.arange(6.0))):
        with mdio.Writer(tmp_path / f"{name}.zarr") as writer:
            writer.write_block(positions, time=times)
        mdio.convert(tmp_path / f"{name}.zarr", tmp_path / f"{name}.dcd")
        assert mdio.verify(tmp_path / f"{name}.dcd", tmp_path / f"{name}.zarr").ok
    bad = mdio.verify(tmp_path / "a.dcd", tmp_path / "b.zarr").bad
    assert len(bad) == 1 and "time differs by up to 1030" in bad[0]


@pytest.fixture
def copies(tmp_path):
    """Two files of the same frames, whose boxes differ in the last digit, and a part of each."""
    positions = np.random.default_rng(1).uniform(0, 30, (12, 20, 3))
    for name, length in (("a", 30.0), ("b", np.nextafter(np.float32(30), np.float32(31)))):
        with mdio.Writer(tmp_path / f"{name}.zarr") as writer:
            boxes = [[length, 30, 30, 90, 90, 90]] * 12
            writer.write_block(positions, box=boxes, time=np.arange(12.0), step=np.arange(12))
        mdio.convert(tmp_path / f"{name}.zarr", tmp_path / f"{name}.trr")
    return tmp_path / "a.trr", tmp_path / "b.trr"


def test_parts_of_files_that_hold_the_same(tmp_path, copies):
    out, middle = tmp_path / "out.zarr", tmp_path / "middle.trr"
    mdio.convert(copies[0], out, stop=4)
    mdio.convert(copies[1], middle, start=6)
    for file in (middle, copies[0]):
        mdio.append(file, out)
    for given in ([copies[0], middle], [middle, copies[0]]):
        compared = mdio.verify(out, given)
        assert compared.bad == []
        assert compared.frames_compared == 12


@pytest.mark.parametrize("layout", ["zarr", "h5md", "segments"])
def test_parts_that_overlap_stand_for_the_file_that_they_are_of(tmp_path, copies, layout):
    out, parts = tmp_path / f"out.{layout}", [tmp_path / "begin.trr", tmp_path / "end.trr"]
    mdio.convert(copies[0], out)
    data = copies[0].read_bytes()
    frame_nbytes = len(data) // 12
    parts[0].write_bytes(data[: 8 * frame_nbytes])
    parts[1].write_bytes(data[5 * frame_nbytes :])
    for given in (parts, parts[::-1]):
        compared = mdio.verify(out, given)
        assert (compared.bad, compared.frames_compared) == ([], 12)
    if layout == "zarr":
        next(out.glob("particles/trajectory/position/value/c.*")).unlink()
        assert mdio.repair(out, parts).repaired and mdio.verify(out, copies[0]).ok


def test_files_may_be_given_in_another_order(tmp_path, copies):
    mdio.convert(copies[0], tmp_path / "c.trr", stop=5)
    joined = [copies[0], tmp_path / "c.trr"]
    mdio.convert(joined, tmp_path / "out.zarr", overlap="keep-all")
    for given in (joined, joined[::-1]):
        assert mdio.verify(tmp_path / "out.zarr", given).bad == []
    (problem,) = mdio.verify(tmp_path / "out.zarr", [copies[1], *joined]).bad
    assert problem.startswith(f"{copies[1]}: {tmp_path / 'out.zarr'} was made from the other files")
    shard = next((tmp_path / "out.zarr").glob("particles/trajectory/position/value/c.*"))
    shard.unlink()
    assert mdio.repair(tmp_path / "out.zarr", joined[::-1]).repaired


@pytest.mark.parametrize("suffix", ["zarr", "h5md", "segments"])
def test_frames_that_only_the_source_has_are_told(adk, tmp_path, suffix):
    whole, live, out = adk["xtc"], tmp_path / "live.xtc", tmp_path / f"a.{suffix}"
    first, later, gap = (tmp_path / f"{name}.xtc" for name in ("first", "later", "gap"))
    mdio.convert(whole, first, stop=60)
    mdio.convert(whole, later, start=55)
    mdio.convert(whole, gap, start=70)
    live.write_bytes(first.read_bytes())
    mdio.convert(live, out)
    assert mdio.verify(out, live).ok
    assert mdio.verify(out, live).frames_left_out == 0

    def lacking(*sources):
        found = mdio.verify(out, sources)
        assert found.ok == (not found.bad)
        return found.bad

    (problem,) = lacking(live, later)
    assert problem.startswith(f"{later}: {out} was made from the other files")
    assert f"mdio append {later} {out}" in problem
    live.write_bytes(whole.read_bytes())  # the run goes on
    (problem,) = lacking(live)
    assert problem.startswith(f"{live}: has 38 frames (125 to 199 ps)")
    mdio.append(gap, out)
    (problem,) = lacking(whole)
    assert problem.startswith(f"{whole}: has 10 frames (125 to 143 ps)")
    mdio.append(live, out)
    assert not lacking(whole)
    assert not lacking(live, gap, whole)


def test_files_that_it_was_not_made_from_are_told(adk, tmp_path):
    out, part = tmp_path / "a.h5md", tmp_path / "part.xtc"
    mdio.convert(adk["xtc"], out)
    mdio.convert(adk["xtc"], part, start=40)
    for workers in (1, 2):
        found = mdio.verify(out, [part, adk["xtc"], adk["dcd"]], workers=workers)
        assert found.frames_compared == 98
        for problem, path in zip(found.bad, (part, adk["dcd"]), strict=True):
            assert problem.startswith(f"{path}: {out} was made from the other files; leave it out")


@pytest.mark.parametrize("pbc", [None, "nojump"])
def test_frames_that_lack_amid_others_are_told_alone(adk, tmp_path, pbc):
    whole, out = adk["xtc"], tmp_path / "a.zarr"
    ends = [tmp_path / "begin.xtc", tmp_path / "end.xtc"]
    mdio.convert(whole, ends[0], stop=40)
    mdio.convert(whole, ends[1], start=50)
    holes = tmp_path / "holes.xtc"
    holes.write_bytes(b"".join(path.read_bytes() for path in ends))
    mdio.convert(holes, out, selection=mdio.Selection(pbc=pbc), precision="none")
    (problem,) = mdio.verify(out, whole).bad
    assert problem.startswith(f"{whole}: has 10 frames (85 to 103 ps) that {out} lacks")


def test_frames_that_were_left_out_are_no_problem(adk, tmp_path, capsys):
    live, out = tmp_path / "live.xtc", tmp_path / "a.zarr"
    mdio.convert(adk["xtc"], live, stop=60)
    for selection, is_open in (({"stop": 50}, False), ({"step": 2}, True)):
        mdio.convert(live, out, **selection, force=True)
        found = mdio.verify(out, live)
        assert found.ok and found.frames_left_out == 60 - found.frames_compared
        grown = tmp_path / "grown.xtc"
        grown.write_bytes(adk["xtc"].read_bytes())
        bad = mdio.verify(out, grown).bad
        assert [problem.partition(": ")[2][:28] for problem in bad] == (
            ["has 38 frames (125 to 199 ps"] if is_open else []
        )
    assert main(["verify", str(out), "--against", str(live)]) == 0
    assert "; 30 frames of the source left out when it was made" in capsys.readouterr().out


def test_times_that_a_dcd_cannot_hold_are_told(adk, tmp_path, capsys):
    parts = [tmp_path / "1.xtc", tmp_path / "2.xtc"]
    mdio.convert(adk["xtc"], parts[0], stop=20)
    mdio.convert(adk["xtc"], parts[1], start=60)
    mdio.convert(parts, tmp_path / "gap.dcd")
    found = mdio.verify(tmp_path / "gap.dcd", parts)
    times = np.r_[5 + 2.0 * np.arange(20), 5 + 2.0 * np.arange(60, 98)]
    off_ps = np.abs(np.linspace(times[0], times[-1], 58) - times).max()
    assert found.ok and found.times_off_ps == pytest.approx(off_ps, abs=1e-3)
    assert main(["verify", str(tmp_path / "gap.dcd"), "--against", *map(str, parts)]) == 0
    assert "its times are off by up to " in capsys.readouterr().out
    mdio.convert(parts[0], tmp_path / "even.dcd")
    assert "times_off_ps" not in mdio.verify(tmp_path / "even.dcd", parts[0]).to_json()


@pytest.mark.parametrize("kind", ["zarr", "h5md", "segments", "xtc"])
@pytest.mark.parametrize("counting", ["dcd", "ncdf"])
def test_steps_that_a_file_only_counts_are_not_those_of_its_parts(tmp_path, counting, kind):
    """As an AMBER user does before the files that were merged are deleted."""
    positions = np.random.default_rng(2).integers(0, 999, (9, 9, 3)) / np.float32(16)
    times = 1000.1 + 0.3 * np.arange(9)  # not numbers of float32
    with mdio.Writer(tmp_path / "all.zarr") as writer:
        writer.write_block(positions, time=times, step=np.arange(9) ** 2)
    parts = [tmp_path / f"{n}.{counting}" for n in (1, 2)]
    for part, start, stop in zip(parts, (0, 4), (4, 9), strict=True):
        mdio.convert(tmp_path / "all.zarr", part, start=start, stop=stop)
    whole, out = tmp_path / f"whole.{counting}", tmp_path / f"out.{kind}"
    mdio.convert(tmp_path / "all.zarr", whole)
    mdio.convert(parts, out, precision=None if kind != "xtc" else 0.001)
    for source in (whole, parts):
        result = mdio.verify(out, source)
        assert result.bad == [] or (kind == "xtc" and "positions" in result.bad[0])
        assert all("step" not in problem and "time" not in problem for problem in result.bad)
    if kind in ("zarr", "h5md"):  # a step that was stored is still compared where one is held
        mdio.convert(tmp_path / "all.zarr", tmp_path / "whole.trr")
        assert any(
            "step differs" in problem for problem in mdio.verify(out, tmp_path / "whole.trr").bad
        )
        late = tmp_path / f"late.{counting}"
        with mdio.Writer(tmp_path / "late.zarr") as writer:
            writer.write_block(positions, time=times + 0.01, step=np.arange(9))
        mdio.convert(tmp_path / "late.zarr", late)
        assert any("time differs" in problem for problem in mdio.verify(out, late).bad)


@pytest.mark.parametrize("name", ["a.xtc", "a.dcd", "a.zarr"])
def test_fields_that_the_output_lacks_are_told(tmp_path, capsys, name):
    out = tmp_path / name
    if name == "a.zarr":  # what is added has no velocities in an output without them
        block = mdio.open(TRR).read(0, 3)
        with mdio.Writer(out) as writer:
            writer.write_block(block.positions, box=block.box, time=block.time, step=block.step)
        mdio.append(TRR, out)
        assert mdio.open(out).info.sparse == ()
    else:
        mdio.convert(TRR, out)
    assert main(["verify", str(out), "--against", str(TRR)]) == 0
    assert "; the velocities of the source are not in it" in capsys.readouterr().out
    assert mdio.verify(out, TRR).to_json()["fields_left_out"] == ("velocities",)


def test_sources_are_joined_as_asked(tmp_path, capsys):
    """A native file does not record how; runs that each count anew tell only by this."""
    parts = [tmp_path / "1.xtc", tmp_path / "2.xtc"]
    for part in parts:
        mdio.convert(XTC, part, stop=4)
    out = tmp_path / "joined.xtc"
    mdio.convert(parts, out, overlap="keep-all")
    words = ["verify", str(out), "--against", *map(str, parts)]
    assert main(words) == 1
    assert "begin at the same time" in capsys.readouterr().err
    assert main([*words, "--overlap", "keep-all"]) == 0
    assert "8 frames compared" in capsys.readouterr().out
    assert mdio.verify(out, parts, overlap="keep-all").ok


def test_one_frame_is_compared(tmp_path, capsys):
    out = tmp_path / "a.xtc"
    assert main(["convert", XTC, str(out), "--stop", "1", "--verify"]) == 0
    assert "verified: 1 frame compared with the source" in capsys.readouterr().out
    assert main(["verify", str(out), "--against", str(out)]) == 0
    assert ", 1 frame compared: largest" in capsys.readouterr().out


def test_many_frames_are_checked_in_runs_and_damage_in_one_is_found(tmp_path):
    """One by one, 2 million frames of 3 atoms took three minutes."""
    path, n_frames, damaged = tmp_path / "a.dcd", 45_000, 12_345
    with DCDFile(str(path), "w") as file:
        file.write_header("", 1, 0, 1, 1.0, 1)
        for frame in range(n_frames):
            file.write(np.full((1, 3), frame, np.float32), [9, 9, 9, 90, 90, 90])
    assert 5_000 < mdio.verify(path).units <= 10_000
    frame_nbytes = 56 + 3 * 12
    data = bytearray(path.read_bytes())
    at = len(data) - (n_frames - damaged) * frame_nbytes + 56  # length of the record of x
    data[at] ^= 1
    path.write_bytes(data)
    (bad,) = mdio.verify(path, workers=2).bad
    assert f"frame {damaged} is damaged" in bad
    mdio.convert(path, tmp_path / "b.dcd", salvage=True)
    with mdio.open(tmp_path / "b.dcd") as layout:
        frames = layout.read(0, layout.info.n_frames).positions[:, 0, 0]
    assert frames.tolist() == [frame for frame in range(n_frames) if frame != damaged]
