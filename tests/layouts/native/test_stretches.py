"""Damage that hides how many frames are lost: that is said, and guessed from sizes and times."""

from __future__ import annotations

import re

import MDAnalysis as mda
import numpy as np
import pytest

import mdio
from mdio.cli.main import main
from mdio.core.errors import PlanError

N_ATOMS, N_FRAMES = 50, 40


def write(path, frames):
    universe = mda.Universe.empty(N_ATOMS, trajectory=True)
    start = np.random.default_rng(1).uniform(0, 50, (N_ATOMS, 3))
    with mda.Writer(str(path), N_ATOMS) as writer:
        for frame in frames:
            ts = universe.trajectory.ts
            ts.positions = (start + 0.5 * frame).astype("f4")
            ts.time, ts.data["step"], ts.dimensions = frame, frame, [50, 50, 50, 90, 90, 90]
            writer.write(universe.atoms)
    return path


def damaged(path, whole, *spans):
    """Write zeros over frames."""
    edges = np.append(mdio.open(whole).index.offsets, whole.stat().st_size)
    data = bytearray(whole.read_bytes())
    for first, stop in spans:
        begin, end = int(edges[first]), int(edges[stop])
        data[begin:end] = bytes(end - begin)
    path.write_bytes(data)
    return [int(edges[stop] - edges[first]) for first, stop in spans]


@pytest.fixture(params=["xtc", "trr"])
def whole(request, tmp_path):
    return write(tmp_path / f"whole.{request.param}", range(N_FRAMES))


@pytest.mark.parametrize("command", ["convert", "split"])
def test_at_least_one(tmp_path, whole, capsys, command):
    path = tmp_path / f"md{whole.suffix}"
    first, second = damaged(path, whole, (10, 15), (20, 21))
    out = tmp_path / ("out.segments" if command == "split" else "out.zarr")
    more = ["-n", "2"] if command == "split" else []
    assert main([command, str(path), str(out), *more, "--salvage"]) == 0
    told = capsys.readouterr().out
    assert f"at least 1 frame ({first:,} bytes, 9 to 15 ps) cannot be read, about 5 by" in told
    assert "counts as frame 10, and those after it had numbers higher by about 4" in told
    assert re.search(
        rf"at least 1 frame \({second:,} bytes, 19 to 21 ps\) cannot be read; it", told
    )
    assert "34 whole frames kept" in told
    source = mdio.open(out).manifest["source"]
    assert source["unreadable_frames"] == [[10, 17, 6]]
    assert [
        (one["frame"], one["nbytes"], one["about"]) for one in source["unreadable_stretches"]
    ] == [
        (10, first, 5),
        (16, second, 1),
    ]
    assert mdio.verify(out, against=path).ok
    assert main(["info", str(out)]) == 0
    assert "about 6 frames of the source could not be read, and were left out: 10, 16" in (
        capsys.readouterr().err
    )
    assert main(["verify", str(path)]) == 1
    assert f"at least 1 frame ({first:,} bytes" in capsys.readouterr().out


def test_of_files_that_are_joined(tmp_path, whole):
    path = tmp_path / f"md{whole.suffix}"
    damaged(path, whole, (10, 15))
    rest = write(tmp_path / f"rest{whole.suffix}", range(N_FRAMES, N_FRAMES + 5))
    other = tmp_path / f"other{whole.suffix}"
    damaged(other, rest, (2, 4))
    result = mdio.convert([path, other], tmp_path / "out.zarr", salvage=True)
    told = [note for note in result.plan.notes if "at least 1 frame" in note]
    assert len(told) == 2 and f"{other}: " in told[1] and "it counts as frame 38" in told[1]


@pytest.mark.parametrize("layout", ["zarr", "h5md", "segments"])
def test_what_is_lost_comes_from_a_whole_file(tmp_path, whole, layout):
    path, out = tmp_path / f"md{whole.suffix}", tmp_path / f"out.{layout}"
    damaged(path, whole, (10, 15))
    mdio.convert(path, out, salvage=True)
    assert mdio.append(whole, out).n_frames == N_FRAMES
    assert "unreadable_frames" not in mdio.open(out).manifest["source"]
    found = mdio.verify(out, against=whole)
    assert found.ok and found.frames_compared == N_FRAMES


def test_nojump_follows_atoms_through_all_frames(tmp_path, whole):
    path = tmp_path / f"md{whole.suffix}"
    damaged(path, whole, (10, 15))
    with pytest.raises(PlanError, match="convert with --salvage alone"):
        mdio.convert(
            path, tmp_path / "a.zarr", salvage=True, selection=mdio.Selection(pbc="nojump")
        )
