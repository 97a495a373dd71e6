"""Damaged outputs are repaired from their source to the byte, or it is said what is lost."""

import json
import re
import shlex
import shutil
import subprocess
import sys

import h5py
import MDAnalysis as mda
import numpy as np
import pytest
from MDAnalysisTests.datafiles import GRO, PSF, XTC
from suites.outputs import as_options

import mdio
from mdio.cli.main import main
from mdio.core.errors import CorruptLayoutError, SourceError
from mdio.layouts.units import Unit, check_units

CASES = {
    "zarr": ("a.zarr", {"chunk_frames": 7, "stop": 40}),
    "zarr, group": (
        "a.zarr",
        {"top": PSF, "groups": {"ca": "name CA"}, "select": "index 0:2999", "chunk_frames": 5},
    ),
    "zarr, rounded": ("a.zarr", {"precision": 0.01, "chunk_frames": 9, "workers": 2}),
    "zarr, zstd": ("a.zarr", {"compression": "zstd:3", "chunk_frames": 9, "step": 3}),
    "zarr, centred": ("a.zarr", {"source": XTC, "top": GRO, "center": "protein", "stop": 4}),
    "zarr, auto": ("a.zarr", {"source": XTC, "precision": "auto", "chunk_frames": 3}),
    "zarr, floats of an xtc": ("a.zarr", {"source": XTC, "precision": "none", "chunk_frames": 3}),
    "zarr, floats of some atoms": (
        "a.zarr",
        {"source": XTC, "precision": "none", "compression": "lz4", "select": np.arange(3000)},
    ),
    "h5md": ("a.h5md", {"chunk_frames": 7, "step": 2}),
    "h5md, gzip": ("a.h5md", {"chunk_frames": 7, "compression": "gzip:1"}),
    "h5md, rigid": ("a.h5md", {"source": XTC, "compression": "rigid", "chunk_frames": 3}),
    "h5md, contiguous": ("a.h5md", {"contiguous": True, "chunk_frames": 10}),
    "segments, copied": ("a.segments", {"segments": 5}),
    "segments of xtc": ("a.segments", {"segments": 5, "container": "xtc"}),
    "segments of an xtc": ("a.segments", {"source": XTC, "segments": 3}),
    "segments of ncdf": ("a.segments", {"segments": 3, "container": "ncdf", "start": 3}),
}
NOTED = {"zarr.json", "manifest.json", "parts.json", "a.h5md"}
"""Where the manifest is, which tells of the repair."""


@pytest.fixture(scope="module")
def made(adk, tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    found = {}
    for name, (out, options) in CASES.items():
        rest = {"source": adk["dcd"], **options}
        source = rest.pop("source")
        path = folder / name.replace(" ", "") / out
        path.parent.mkdir()
        mdio.convert(source, path, **as_options(rest))
        found[name] = path, source, options.get("top")
    return found


@pytest.fixture
def mine(made, tmp_path, request):
    """A copy to damage, its source, and the topology."""
    path, source, top = made[request.param]
    shutil.copytree(path.parent, tmp_path / "mine")
    return tmp_path / "mine" / path.name, source, top


def files_of(out):
    """Return the bytes of all files but indexes, which are made again where they do not fit.

    The folder of parts of what is repaired has another name.
    """
    files = [path for path in out.parent.rglob("*") if path.is_file()]
    return {
        re.sub(r"parts-\w{8}/", "parts/", str(path.relative_to(out.parent))): path.read_bytes()
        for path in files
        if "mdio-index" not in path.name
    }


def victims_of(good):
    """Return the largest file, one in the middle and the smallest, manifests left out."""
    names = sorted(good, key=lambda name: -len(good[name]))
    data = [
        name for name in names if not name.endswith((".json", ".pdb")) and "mdio-parts" not in name
    ]
    return dict.fromkeys([data[0], data[len(data) // 2], data[-1]])


def flip(path):
    data = bytearray(path.read_bytes())
    data[int(0.6 * len(data))] ^= 8
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("mine", CASES, indirect=True)
def test_every_byte_is_as_it_was(mine):
    out, source, top = mine
    good = files_of(out)
    with mdio.open(out) as layout:
        uuid = layout.manifest["uuid"]
    for name in victims_of(good):
        flip(out.parent / name)
    result = mdio.repair(out, source, top=top)
    assert result.bad and result.repaired
    assert not any("again" in problem for problem in result.bad)
    assert mdio.verify(out, source, top=top).ok
    now = files_of(out)
    assert now.keys() == good.keys()
    changed = {name for name in good if now[name] != good[name]}
    assert {name.rpartition("/")[2] for name in changed} <= NOTED | {"0000.h5md", "0001.h5md"}
    with mdio.open(out) as layout:
        (note,) = layout.manifest["repaired"]
        assert layout.manifest["uuid"] == uuid
        assert len(note["units"]) == len(result.bad)
    assert not mdio.repair(out, source, top=top).bad


@pytest.mark.parametrize("mine", ["zarr", "segments, copied"], indirect=True)
def test_files_that_are_missing(mine):
    out, source, _ = mine
    good = files_of(out)
    for name in sorted(victims_of(good)):
        if name != "a.h5md":  # else nothing is known of the rest
            (out.parent / name).unlink()
    assert mdio.repair(out, source, workers=2).repaired
    assert mdio.verify(out, source).ok


@pytest.mark.parametrize("name", ["a.zarr", "a.h5md", "a.segments", "dcd.segments"])
def test_parts_that_overlap_and_were_appended(adk, tmp_path, name):
    """As after a restart from a checkpoint; the frames that overlap are damaged, too."""
    parts, out = [tmp_path / "1.xtc", tmp_path / "2.xtc"], tmp_path / "good" / name
    mdio.convert(adk["xtc"], parts[0], stop=60)
    universe = mda.Universe(str(adk["psf"]), str(adk["xtc"]))
    with mda.Writer(str(parts[1]), 3341) as writer:
        for ts in universe.trajectory[50:]:
            ts.positions[:, 0] += 0.5 * (ts.frame >= 53)
            writer.write(universe)
    out.parent.mkdir()
    how = {"container": "dcd"} if name == "dcd.segments" else {}
    mdio.convert(parts[0], out, storage=mdio.Storage(**how))
    mdio.append(parts[1], out)
    victims = sorted(victims_of(files_of(out)))
    assert len(victims) > 1 or name == "a.h5md"
    for damage in (flip, lambda path: path.write_bytes(path.read_bytes() + b"more")):
        for victim in victims:
            mine = tmp_path / "mine" / name
            shutil.copytree(out.parent, mine.parent)
            damage(mine.parent / victim)
            bad = mdio.verify(mine).bad
            assert bad
            if damage == flip:
                assert f"--against {parts[0]} {parts[1]}`" in bad[0]
            mdio.repair(mine, parts[::-1])
            assert mdio.verify(mine, parts).ok, victim
            shutil.rmtree(mine.parent)


def test_netcdf_files_that_were_added_one_by_one_are_not_repaired(adk, tmp_path):
    parts, out = [tmp_path / "1.ncdf", tmp_path / "2.ncdf"], tmp_path / "a.segments"
    for part, frames in zip(parts, [slice(0, 20), slice(20, 40)], strict=True):
        universe = mda.Universe(str(adk["psf"]), str(adk["xtc"]))
        universe.atoms.write(str(part), frames=universe.trajectory[frames])
    mdio.convert(parts[0], out)
    mdio.append(parts[1], out)
    flip(sorted(out.glob("*/*.ncdf"))[0])
    good = files_of(out)
    with pytest.raises(SourceError, match="added one by one, may not give the checksums"):
        mdio.repair(out, parts)
    assert files_of(out) == good


@pytest.mark.parametrize("name", ["a.zarr", "a.h5md", "a.segments"])
@pytest.mark.parametrize("damage", ["cut", "zeros"])
def test_frames_of_a_damaged_source(adk, tmp_path, name, damage):
    """They were converted with --salvage, which repair has not, as it needs whole frames alone."""
    source, out = tmp_path / "1.xtc", tmp_path / "out" / name
    out.parent.mkdir()
    data = bytearray(adk["xtc"].read_bytes())
    middle = len(data) // 2
    if damage == "cut":
        del data[middle:]
    else:
        data[middle : middle + 30_000] = bytes(30_000)
    source.write_bytes(data)
    mdio.convert(source, out, salvage=True)
    good = mdio.open(out).read(0, mdio.open(out).info.n_frames)
    for victim in sorted(victims_of(files_of(out))):
        flip(out.parent / victim)
        assert not mdio.verify(out).ok
        assert mdio.repair(out, source).repaired
        assert mdio.open(out).read(0, good.n_frames) == good
        assert mdio.verify(out, source).ok


@pytest.mark.parametrize("name", ["a.zarr", "a.segments"])
@pytest.mark.parametrize("is_appended", [False, True])
@pytest.mark.parametrize("frame", [40, 57])
def test_a_damaged_file_among_others(adk, tmp_path, name, is_appended, frame):
    """Frame 57 is in the next file, too, so that nothing is missing."""
    parts, out = [tmp_path / "1.xtc", tmp_path / "2.xtc"], tmp_path / "out" / name
    out.parent.mkdir()
    for part, (start, stop) in zip(parts, [(0, 60), (55, None)], strict=True):
        mdio.convert(adk["xtc"], part, start=start, stop=stop)
    data = bytearray(parts[0].read_bytes())
    begin = int(mdio.open(parts[0]).index.offsets[frame])
    data[begin : begin + 100] = bytes(100)
    parts[0].write_bytes(data)
    if is_appended:
        mdio.convert(parts[0], out, salvage=True)
        mdio.append(parts[1], out)
    else:
        mdio.convert(parts, out, salvage=True)
    missing = [] if frame == 57 else [frame]
    with mdio.open(out) as made, mdio.open(adk["xtc"]) as whole:
        expected = np.delete(whole.read(0, 98, atoms=[]).time, missing)
        np.testing.assert_allclose(made.read(0, made.info.n_frames, atoms=[]).time, expected)
    assert mdio.verify(out, parts).ok
    if name == "a.zarr":
        flip(sorted(out.glob("particles/trajectory/position/value/c.*"))[0])
        assert mdio.repair(out, parts).repaired


@pytest.mark.parametrize("number, frame", [(0, 36), (1, 20)])
def test_what_was_added_to_files_that_overlap_one_of_which_is_damaged(adk, tmp_path, number, frame):
    """Frame 36 of the first is in the next one, too, so that the joined files have it."""
    parts, out = [tmp_path / f"{n}.xtc" for n in (1, 2, 3)], tmp_path / "a.zarr"
    for part, (start, stop) in zip(parts, [(0, 40), (30, 70), (60, None)], strict=True):
        mdio.convert(adk["xtc"], part, start=start, stop=stop)
    data = bytearray(parts[number].read_bytes())
    begin = int(mdio.open(parts[number]).index.offsets[frame])
    data[begin : begin + 100] = bytes(100)
    parts[number].write_bytes(data)
    mdio.convert(parts[:2], out, salvage=True)
    mdio.append(parts[2], out)
    assert mdio.verify(out, parts).ok
    flip(out / "particles/trajectory/position/time/c.0")
    assert mdio.repair(out, parts).repaired


def test_all_frames_of_a_file_added_to_files_that_overlap(adk, tmp_path):
    parts, out = [tmp_path / f"{n}.xtc" for n in (1, 2, 3)], tmp_path / "a.zarr"
    for part, (start, stop) in zip(parts, [(0, 40), (30, 70), (60, None)], strict=True):
        mdio.convert(adk["xtc"], part, start=start, stop=stop)
    mdio.convert(parts[:2], out)
    mdio.append(parts[2], out, overlap="keep-all")
    assert mdio.open(out).info.n_frames == 108
    assert mdio.verify(out, parts).ok
    flip(sorted(out.glob("particles/trajectory/position/value/c.*"))[-1])
    assert mdio.repair(out, parts).repaired


@pytest.mark.parametrize("unreadable", [20, 21])
def test_damaged_times_of_every_nth_frame_that_can_be_read(adk, tmp_path, unreadable):
    """Its number counts, whether it would have been chosen or not."""
    parts, out = [tmp_path / "1.xtc", tmp_path / "2.xtc"], tmp_path / "a.zarr"
    for part, (start, stop) in zip(parts, [(0, 60), (50, None)], strict=True):
        mdio.convert(adk["xtc"], part, start=start, stop=stop)
    data = bytearray(parts[0].read_bytes())
    begin = int(mdio.open(parts[0]).index.offsets[unreadable])
    data[begin : begin + 100] = bytes(100)
    parts[0].write_bytes(data)
    mdio.convert(parts[0], out, salvage=True, start=4, step=2)
    mdio.append(parts[1], out)
    flip(out / "particles/trajectory/position/time/c.0")
    assert mdio.repair(out, parts).repaired
    assert mdio.verify(out, parts).ok


def test_a_source_that_has_grown_and_times_that_are_damaged(adk, tmp_path):
    source, out, data = tmp_path / "1.xtc", tmp_path / "a.zarr", adk["xtc"].read_bytes()
    source.write_bytes(data[: len(data) // 2])
    mdio.convert(source, out, salvage=True)
    source.write_bytes(data[:-100])
    flip(out / "particles/trajectory/position/time/c.0")
    assert mdio.repair(out, source).repaired
    assert mdio.verify(out).ok


@pytest.mark.parametrize("damage", [flip, lambda path: path.write_bytes(path.read_bytes()[:1000])])
@pytest.mark.parametrize("ending", ["xtc", "trr"])
def test_every_nth_frame_of_parts_that_were_appended(adk, tmp_path, ending, damage):
    parts, out = [tmp_path / f"{n}.{ending}" for n in (1, 2)], tmp_path / "a.segments"
    universe = mda.Universe(adk["psf"], adk["xtc"])
    for part, (start, stop) in zip(parts, [(0, 60), (50, None)], strict=True):
        # Another writer's TRR has other bytes in it than mdio's, which the segments have.
        universe.atoms.write(part, frames=universe.trajectory[start:stop])
    storage = mdio.Storage(container="trr", segments=3)
    mdio.convert(parts[0], out, step=2, storage=storage)
    mdio.append(parts[1], out)
    first, *_, last = sorted(out.glob("*/*.trr"))
    for victim in (first, last):
        good = victim.read_bytes()
        damage(victim)
        assert mdio.repair(out, parts).repaired
        assert victim.read_bytes() == good


def test_what_is_whole_is_linked(adk, tmp_path):
    segments = tmp_path / "a.segments"
    mdio.convert(adk["dcd"], segments, storage=mdio.Storage(segments=4))
    files = sorted(segments.glob("000/seg-*.dcd"))
    before = [path.stat().st_ino for path in files]
    flip(files[1])
    assert mdio.repair(segments, adk["dcd"]).repaired
    after = [path.stat().st_ino for path in sorted(segments.glob("000/seg-*.dcd"))]
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, False, True, True]


@pytest.mark.parametrize(
    "mine", ["zarr", "h5md", "segments, copied", "segments of ncdf"], indirect=True
)
def test_another_source_changes_nothing(mine, adk, tmp_path):
    out, source, _ = mine
    with mdio.open(source) as layout:
        n_frames = layout.info.n_frames
    other = tmp_path / "other.dcd"
    mdio.convert([source] * 2, other, overlap="keep-all", start=1, stop=n_frames + 1)
    victim = next(iter(victims_of(files_of(out))))
    flip(out.parent / victim)
    damaged = files_of(out)
    with pytest.raises(SourceError, match=r"does not give the checksums .* nothing was changed"):
        mdio.repair(out, other)
    assert files_of(out) == damaged
    assert mdio.repair(out, source).repaired


@pytest.mark.parametrize("name", ["a.zarr", "a.h5md"])
def test_boxes_that_are_intact_are_kept(tmp_path, name):
    """Of another file of the same frames, which rounds boxes otherwise, only what is lost is."""
    positions = np.random.default_rng(1).uniform(0, 30, (12, 20, 3))
    for source, length in (("a.trr", 30.0), ("b.trr", np.nextafter(np.float32(30), 31))):
        with mdio.Writer(tmp_path / f"{source}.zarr") as writer:
            boxes = [[length, 30, 30, 90, 90, 90]] * 12
            writer.write_block(positions, box=boxes, time=np.arange(12.0), step=np.arange(12))
        mdio.convert(tmp_path / f"{source}.zarr", tmp_path / source)
    out = tmp_path / name
    mdio.convert(tmp_path / "a.trr", out, storage=mdio.Storage(chunk_frames=4))
    good = files_of(out)
    if name == "a.zarr":
        column, box = "mdio/box", out / "mdio/box/c.0.0"
        next(out.glob("particles/trajectory/position/value/c.*")).unlink()
    else:
        column, box = "box", out
        with h5py.File(out) as file:
            value = file["particles/trajectory/position/value"]
            begin = value.id.get_chunk_info(1).byte_offset
        data = bytearray(out.read_bytes())
        data[begin + 5] ^= 8
        out.write_bytes(data)
    assert mdio.repair(out, tmp_path / "b.trr").repaired
    assert mdio.verify(out, tmp_path / "a.trr").ok
    now = files_of(out)
    assert {path.rpartition("/")[2] for path in now if now[path] != good.get(path)} <= NOTED
    if name == "a.h5md":
        with h5py.File(out, "r+") as file:
            file["mdio/box"][3, 0] = 7
    else:
        box.unlink()
    with pytest.raises(SourceError, match=rf"was written with \({column}"):
        mdio.repair(out, tmp_path / "b.trr")
    assert mdio.repair(out, tmp_path / "a.trr").repaired


def test_a_source_of_other_atoms(made, tmp_path):
    path, _, _ = made["zarr"]
    out = shutil.copytree(path, tmp_path / "a.zarr")
    flip(next(path for path in out.rglob("value/c.*") if path.stat().st_size > 100_000))
    with pytest.raises(SourceError, match="was not made from it"):
        mdio.repair(out, XTC)


@pytest.mark.parametrize("mine", ["zarr, group"], indirect=True)
def test_without_a_source_it_says_what_is_lost(mine, capsys):
    out, source, _ = mine
    (shard,) = out.glob("particles/trajectory/position/value/c.0.0.0")
    data = bytearray(shard.read_bytes())
    data[12 * 3000 * 7 + 500] ^= 1  # frame 7: chunks of 5 frames, each with a checksum behind it
    shard.write_bytes(bytes(data))
    damaged = files_of(out)
    assert main(["repair", str(out), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["lost_frames"] == {"trajectory": [[7, 8, 1]]} and not told["repaired"]
    assert main(["repair", str(out)]) == 1
    said = capsys.readouterr().out
    assert "lost: 1 of 98 frames of the full system (7); the other 97 can be read" in said
    assert "--against SRC" in said
    assert files_of(out) == damaged
    assert main(["repair", str(out), "--against", str(source)]) == 0
    said = capsys.readouterr().out
    assert "bad: " in said and "repaired" in said and "convert the source again" not in said
    assert main(["repair", str(out)]) == 0
    assert "nothing to repair" in capsys.readouterr().out
    with mdio.open(out) as layout:
        assert layout.read(7, 8).positions.shape == (1, 3000, 3)


@pytest.mark.parametrize("missing", [[0], [0, 2]])
def test_what_is_lost_with_the_first_segment(missing, adk, tmp_path):
    out = tmp_path / "a.segments"
    mdio.split(adk["dcd"], out, 4)
    segments = sorted(out.glob("000/seg-*.dcd"))
    for number in missing:
        segments[number].unlink()
    with mdio.open(out) as layout:
        runs = [[*layout.boundaries()[n : n + 2].tolist(), 1] for n in missing]
        assert layout.read(runs[0][1], runs[0][1] + 1).n_frames == 1
        with pytest.raises(CorruptLayoutError, match="missing"):
            layout.read(0, 1)
    result = mdio.repair(out)
    assert all(segments[n].name in told for n, told in zip(missing, result.bad, strict=True))
    assert result.lost_frames == {"trajectory": runs}
    assert len(mdio.verify(out).bad) == len(missing)


@pytest.mark.parametrize("n_left", [None, 30])
def test_checksums_of_segments_that_are_lost(n_left, adk, tmp_path, capsys):
    """The segments are whole, which the manifest's checksums of them show."""
    out = tmp_path / "a.segments"
    mdio.split(adk["xtc"], out, 3)
    sums = out / ".mdio-checksums"
    if n_left is None:
        sums.unlink()
    else:
        sums.write_bytes(sums.read_bytes()[:n_left])
    result = mdio.repair(out)
    assert len(result.bad) == 1 and sums.name in result.bad[0] and not result.lost_frames
    (bad,) = mdio.verify(out).bad
    assert main(["convert", str(out), str(tmp_path / "a.xtc")]) == 1
    for said in (bad, capsys.readouterr().err):
        assert "--no-verify" in said and f"mdio repair {out} --against" in said
    assert main(["convert", str(out), str(tmp_path / "a.xtc"), "--no-verify"]) == 0
    segments = sorted(out.glob("000/seg-*.xtc"))
    kept = segments[1].read_bytes()
    flip(segments[1])
    edges = mdio.open(out).boundaries().tolist()
    assert mdio.repair(out).lost_frames == {"trajectory": [[edges[1], edges[2], 1]]}
    segments[1].write_bytes(kept)
    assert mdio.repair(out, adk["xtc"]).repaired and mdio.verify(out, adk["xtc"]).ok


def test_what_cannot_be_repaired(adk, tmp_path, capsys):
    assert main(["repair", str(adk["dcd"])]) == 1
    assert "not an output of mdio" in capsys.readouterr().err
    out = tmp_path / "a.zarr"
    mdio.convert(adk["dcd"], out, stop=3)
    (out / "zarr.json").write_bytes(b"{")
    with pytest.raises((CorruptLayoutError, SourceError)):
        mdio.repair(out, adk["dcd"])


def test_frames_that_were_chosen_by_time(adk, tmp_path):
    out = tmp_path / "a.zarr"
    mdio.convert(
        adk["dcd"],
        out,
        selection=mdio.Selection(begin_ps=5, end_ps=40, dt_ps=3),
        storage=mdio.Storage(chunk_frames=2),
    )
    with mdio.open(out) as layout:
        expected = layout.read(0, layout.info.n_frames)
    flip(max(out.rglob("value/c.*"), key=lambda path: path.stat().st_size))
    assert mdio.repair(out, adk["dcd"]).repaired
    with mdio.open(out) as layout:
        assert np.array_equal(layout.read(0, layout.info.n_frames).positions, expected.positions)


@pytest.mark.parametrize("mine", ["zarr", "h5md", "segments, copied"], indirect=True)
def test_errors_name_the_command_that_mends(mine):
    out, source, _ = mine
    data = max(
        [out] if out.is_file() else (p for p in out.rglob("*") if p.is_file()),
        key=lambda path: path.stat().st_size,
    )
    flip(data)
    with mdio.open(out) as layout, pytest.raises(CorruptLayoutError) as told:
        layout.read(0, layout.info.n_frames)
    command = str(told.value).split("`")[1].split()
    assert command[:2] == ["mdio", "repair"] and command[-1] == str(source)
    assert main(command[1:]) == 0
    with mdio.open(out) as layout:
        layout.read(0, layout.info.n_frames)


@pytest.mark.parametrize("mine", ["zarr"], indirect=True)
def test_one_that_died_at_its_end_leaves_nothing_behind(mine):
    """The repaired output is in place: the next one has nothing to write, but tidies up."""
    out, source, _ = mine
    flip(out.parent / next(iter(victims_of(files_of(out)))))
    code = (
        "import os, sys, mdio\n"
        "from mdio.core.files import replacing\n"
        "replacing.remove = lambda *_: os._exit(9)\n"
        "mdio.repair(sys.argv[1], sys.argv[2])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(out), str(source)], check=False)
    assert done.returncode == 9 and mdio.verify(out, source).ok
    assert [path for path in out.parent.iterdir() if path.name.startswith(f".{out.name}.mdio-")]
    assert not mdio.repair(out, source).bad
    assert not [path for path in out.parent.iterdir() if path.name.startswith(f".{out.name}.mdio-")]


def test_damaged_metadata_of_the_topology(adk, tmp_path, capsys):
    """It was met in looking ahead, which took it for the end: what came after was not checked."""
    out, source = tmp_path / "a.zarr", str(adk["dcd"])
    mdio.convert(adk["dcd"], out, top=PSF, stop=20)
    with mdio.open(out) as layout:
        names = [name for name, _ in layout.check()]
    topology, node = (out / "mdio" / "topology" / name for name in ("c.0", "zarr.json"))
    intact = topology.read_bytes()
    node.write_bytes(node.read_bytes()[:100])
    (out / "mdio" / "zarr.json").write_text("{}")
    with mdio.open(out) as layout:
        found = dict(layout.check())
    assert list(found) == names
    bad = {name for name, problem in found.items() if problem is not None}
    assert bad == {"mdio/topology", "mdio/topology/zarr.json", "mdio/zarr.json"}
    assert main(["verify", str(out)]) == 1
    assert main(["repair", str(out)]) == 1
    assert main(["repair", str(out), "--against", source]) == 1
    assert "(and the topology)" in capsys.readouterr().err
    assert mdio.repair(out, source, top=PSF).repaired
    assert topology.read_bytes() == intact
    assert mdio.verify(out, source).ok


def test_units_that_cannot_be_listed_are_not_the_end():
    """Whoever looks ahead meets the error first."""

    def units():
        yield Unit("one", lambda: None)
        raise CorruptLayoutError("a.zarr: damaged")

    found = check_units(units(), None, opens_ahead=False)
    with pytest.raises(CorruptLayoutError, match="damaged"):
        list(found)


@pytest.mark.parametrize("name", ["a.zarr", "a.h5md"])
def test_the_command_that_is_told_writes_a_given_topology_again(adk, tmp_path, capsys, name):
    out = tmp_path / name
    mdio.convert(adk["xtc"], out, top=adk["psf"], select="name CA", stop=3)
    path, middle = out / "mdio" / "topology" / "c.0", 40
    if name == "a.h5md":
        with h5py.File(out) as file:
            path, middle = out, file["mdio/topology"].id.get_offset() + 40
    data = bytearray(path.read_bytes())
    data[middle] ^= 1
    path.write_bytes(data)
    assert main(["verify", str(out)]) == 1
    told = capsys.readouterr().out
    assert "frames 0 to" not in told
    commands = set(re.findall("`mdio (repair .*?)`", told))
    assert len(commands) == 1
    assert main(shlex.split(commands.pop())) == 0
    assert main(["verify", str(out)]) == 0
