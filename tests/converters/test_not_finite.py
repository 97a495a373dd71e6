"""NaN and infinite coordinates are kept, counted and told."""

import json

import numpy as np
import pytest
from MDAnalysisTests.datafiles import DCD
from suites.native_files import CELLS, made_up, write_dcd
from suites.outputs import as_options

import mdio
from mdio.cli.main import main

KINDS = {
    "a.zarr": {},
    "q.zarr": {"precision": 0.01},
    "a.h5md": {},
    "a.segments": {"segments": 2, "container": "ncdf"},
}


@pytest.fixture
def source(tmp_path):
    positions = made_up(9, 20)
    positions[4, 3, 1] = np.nan
    positions[4, 5] = np.inf
    positions[7, 0, 2] = -np.inf
    write_dcd(tmp_path / "source.dcd", positions, CELLS)
    return tmp_path / "source.dcd", positions


@pytest.mark.parametrize("name", KINDS)
def test_they_are_counted(source, tmp_path, name):
    path, positions = source
    result = mdio.convert(path, tmp_path / name, **as_options(KINDS[name]))
    told = "5 coordinates in 2 frames (the first is frame 4) are NaN or infinite"
    assert [note for note in result.plan.notes if told in note]
    with mdio.open(tmp_path / name) as layout:
        expected = {"coordinates": 5, "frames": 2, "first_frame": 4}
        assert layout.manifest["not_finite"] == expected
        got = layout.read(0, 9).positions
    odd = ~np.isfinite(positions)
    assert np.array_equal(got[odd], positions[odd], equal_nan=True)
    assert mdio.verify(tmp_path / name, path).ok


@pytest.mark.parametrize("suffix", ["dcd", "trr", "ncdf", "xtc"])
def test_in_bytes_that_are_copied(source, tmp_path, suffix, capsys):
    path, _ = source
    native = tmp_path / f"native.{suffix}"
    atoms = None if suffix != "xtc" else range(8)  # up to nine are floats in XTC
    mdio.convert(path, native, select=atoms)
    result = mdio.split(native, tmp_path / "a.segments", 2)
    assert result.copied
    told = "5 coordinates in 2 frames (the first is frame 4) are NaN or infinite"
    assert [note for note in result.plan.notes if told in note]
    with mdio.open(tmp_path / "a.segments") as layout:
        expected = {"coordinates": 5, "frames": 2, "first_frame": 4}
        assert layout.manifest["not_finite"] == expected
    assert main(["split", str(native), str(tmp_path / "c.segments"), "-n", "2"]) == 0
    assert capsys.readouterr().out.count("NaN") == 1
    assert main(["split", DCD, str(tmp_path / "b.segments"), "-n", "2"]) == 0
    assert "NaN" not in capsys.readouterr().out


@pytest.mark.parametrize("name", ["a.zarr", "a.segments"])
def test_repaired_outputs_tell_the_same(source, tmp_path, name):
    out = tmp_path / name
    mdio.convert(source[0], out, **as_options(KINDS[name]))
    with mdio.open(out) as layout:
        told = layout.manifest["not_finite"]
    max(out.rglob("c.0.0.0" if name == "a.zarr" else "*.ncdf")).unlink()
    assert mdio.repair(out, source[0]).repaired
    with mdio.open(out) as layout:
        assert layout.manifest["not_finite"] == told


def test_frames_without_positions(tmp_path):
    positions = made_up(9, 20)
    positions[[2, 5]] = np.nan
    write_dcd(tmp_path / "source.dcd", positions, CELLS)
    notes = mdio.convert(tmp_path / "source.dcd", tmp_path / "a.zarr").plan.notes
    assert "2 frames (the first is frame 2) have no positions: all coordinates there" in notes[-1]


def test_frames_that_lose_their_positions_by_an_atom_that_is_centred(source, tmp_path):
    selection = mdio.Selection(stop=6, center="index 5")
    notes = mdio.convert(source[0], tmp_path / "a.zarr", selection=selection).plan.notes
    assert "1 frame (the first is frame 4) has no positions" in notes[-1]
    assert "as atoms of --center or --fit are there" in notes[-1]


def test_of_the_frames_that_are_kept(source, tmp_path, capsys):
    path, _ = source
    words = ["convert", str(path), str(tmp_path / "a.zarr"), "--start", "6", "--json"]
    assert main(words) == 0
    notes = json.loads(capsys.readouterr().out)["plan"]["notes"]
    assert "1 coordinate in 1 frame (the first is frame 1) is NaN or infinite" in notes[-1]
    result = mdio.convert(path, tmp_path / "b.zarr", stop=4)
    assert not [note for note in result.plan.notes if "NaN" in note]
    with mdio.open(tmp_path / "b.zarr") as layout:
        assert "not_finite" not in layout.manifest
