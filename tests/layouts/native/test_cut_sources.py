"""Sources that end within a frame: whole frames are read, and taken for a whole only if asked."""

import json
import os
from pathlib import Path

import MDAnalysis as mda
import numpy as np
import pytest
from MDAnalysisTests.datafiles import DCD, GRO, NCDF, TRR, XTC
from suites.segment_cases import copy_of, raw_frames

import mdio
from mdio.cli.main import main
from mdio.converters.convert import split
from mdio.converters.verify import verify
from mdio.core.errors import SourceError
from mdio.layouts.registry import open_layout

SOURCES = {"xtc": XTC, "trr": TRR, "dcd": DCD, "ncdf": NCDF}


def cut(kind, folder, left=50):
    """Return a file whose fifth frame has only `left` bytes, and its whole frames."""
    path = copy_of(SOURCES[kind], folder)
    frames = raw_frames(path)
    begin = path.stat().st_size - sum(map(len, frames[4:]))
    os.truncate(path, begin + left)
    with open_layout(SOURCES[kind]) as layout:
        return path, layout.read(0, 4)


@pytest.mark.parametrize("left", [3, 50, 90, 300])
@pytest.mark.parametrize("kind", SOURCES)
def test_whole_frames_are_read(tmp_path, kind, left):
    path, whole = cut(kind, tmp_path, left)
    for _ in range(2):  # the second time with what the first one stored
        with open_layout(path) as layout:
            assert layout.info.n_frames == 4
            (lost,) = layout.info.lost
            assert (lost.frame, lost.nbytes, lost.at_end) == (4, left, True)
            assert np.array_equal(layout.read(0, 4).positions, whole.positions)
            assert "ends within frame 4 (byte" in str(lost) and "4 whole frames before" in str(lost)
    result = verify(path)
    assert not result.ok and "ends within frame 4" in " ".join(result.bad)


@pytest.mark.parametrize("kind", SOURCES)
def test_who_reads_no_notes_is_warned(tmp_path, kind):
    path, _ = cut(kind, tmp_path)
    n_atoms = mdio.open(path).info.n_atoms
    for read in (
        lambda: mda.Universe.empty(n_atoms).load_new(str(path), format="MDIO"),
        lambda: mdio.sample(path),
        lambda: mdio.open(path).to_xarray(),
    ):
        with pytest.warns(UserWarning, match="ends within frame 4.*4 whole frames before it"):
            read()


@pytest.mark.parametrize("kind", SOURCES)
def test_taking_them_has_to_be_asked_for(tmp_path, kind):
    path, whole = cut(kind, tmp_path)
    for take in (
        lambda **how: mdio.convert(path, tmp_path / "a.zarr", **how),
        lambda **how: mdio.convert(
            path, tmp_path / "a.segments", storage=mdio.Storage(segments=2), **how
        ),
    ):
        with pytest.raises(SourceError, match=r"ends within frame 4.*--salvage.* 4 whole frames$"):
            take()
        with pytest.raises(SourceError, match="--salvage"):
            take(stop=5)
        assert take(stop=3).n_frames == 3
    with pytest.raises(SourceError, match="--salvage"):
        split(path, tmp_path / "b.segments", 2)
    assert split(path, tmp_path / "b.segments", 2, salvage=True).n_frames == 4
    out = tmp_path / "c.segments"
    assert main(["split", "--salvage", str(path), str(out), "-n", "2"]) == 0
    with open_layout(out) as layout:
        assert np.array_equal(layout.read(0, 4).positions, whole.positions)
        assert layout.manifest["source"]["lost"][0]["frame"] == 4


@pytest.mark.parametrize("kind", SOURCES)
def test_info_tells(tmp_path, kind, capsys):
    path, _ = cut(kind, tmp_path)
    assert main(["info", str(path), "--json"]) == 0
    told = capsys.readouterr()
    facts = json.loads(told.out)
    assert facts["n_frames"] == 4 and facts["lost"][0]["frame"] == 4
    assert "".join(facts["notes"]).count("ends within frame 4") == 1 and told.err == ""
    assert main(["info", str(path)]) == 0
    assert capsys.readouterr().err.count("ends within frame 4") == 1


def test_frames_that_cannot_be_read_are_told_one_by_one(tmp_path, capsys):
    path = copy_of(XTC, tmp_path)
    frames = [bytearray(frame) for frame in raw_frames(path)]
    for number in (2, 5):  # not 2 to 5, every third
        frames[number][100:] = bytes(len(frames[number]) - 100)
    path.write_bytes(b"".join(frames))
    assert main(["convert", str(path), str(tmp_path / "a.zarr"), "--salvage"]) == 0
    assert "2 frames cannot be read (number 2, 5); left out" in capsys.readouterr().out
    assert main(["verify", str(path)]) == 1
    assert f"bad: {path}: frame 2 at byte" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["xtc", "trr"])
def test_frames_of_another_system_are_not_one_that_is_cut(tmp_path, kind):
    few, path = tmp_path / f"few.{kind}", tmp_path / f"joined.{kind}"
    mdio.convert(SOURCES[kind], few, select="index 0-899", top=GRO, stop=5)
    path.write_bytes(few.read_bytes() + Path(SOURCES[kind]).read_bytes())
    with open_layout(path, salvage=True) as layout:
        (lost,) = layout.info.lost
        assert (lost.frame, lost.offset, lost.at_end) == (5, few.stat().st_size, False)
    assert "hold no whole frame, 5 whole frames before it" in str(lost)


def test_one_whole_frame_is_told_as_one(adk, tmp_path):
    path = tmp_path / "a.xtc"
    mdio.convert(adk["xtc"], path, stop=2)
    os.truncate(path, path.stat().st_size - 100)
    with pytest.raises(SourceError, match=r"take the 1 whole frame$"):
        mdio.convert(path, tmp_path / "a.zarr")
