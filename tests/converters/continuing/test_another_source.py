"""A source that goes on is known by its contents, not by its name, size or number of frames."""

from __future__ import annotations

import shutil

import MDAnalysis as mda
import numpy as np
import pytest
from suites.outputs import as_options

import mdio
from mdio.cli.main import main
from mdio.converters.follow import follow
from mdio.core.errors import OutputError, SourceError
from mdio.layouts import plan
from mdio.layouts.segments import writer as segments

N_ATOMS = 30
LAYOUTS = ["zarr", "h5md", "segments"]
ENDINGS = ["xtc", "trr", "dcd", "ncdf"]


@pytest.fixture(autouse=True)
def small_units(monkeypatch):
    for name in ("MIN_PIECE_NBYTES", "MAX_PIECE_NBYTES"):
        monkeypatch.setattr(plan, name, 8 * 12 * N_ATOMS)
    monkeypatch.setattr(segments, "SEGMENT_NBYTES", 8 * 12 * N_ATOMS)


def write(path, n_frames, shift=0.0, changed=()):
    """Write a run; frames that are `changed` have one atom elsewhere."""
    universe = mda.Universe.empty(N_ATOMS, trajectory=True, velocities=False)
    start = np.random.default_rng(1).uniform(0, 50, (N_ATOMS, 3))
    with mda.Writer(str(path), N_ATOMS) as writer:
        for frame in range(n_frames):
            ts = universe.trajectory.ts
            ts.positions = (start + 0.1 * frame + shift).astype("f4")
            ts.positions[3] += 0.5 * (frame in changed)
            ts.time, ts.dimensions = float(frame), [50, 50, 50, 90, 90, 90]
            writer.write(universe.atoms)
    return path


def put(path, other, how):
    """Have `path` hold what is in `other`: as another file, or in the place of what it held."""
    if how == "another file":
        path.unlink()
    path.write_bytes(other.read_bytes())


@pytest.mark.parametrize("how", ["another file", "rewritten"])
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_followed_again(tmp_path, ending, layout, how):
    source, out = write(tmp_path / f"md.{ending}", 10), tmp_path / f"out.{layout}"
    follow(source, out, every_s=0, until_idle_s=0)
    before = mdio.open(out).read(0, 10).positions
    for n_frames in (5, 10, 20):  # also one that has nothing to add
        other = write(tmp_path / f"{n_frames}.{ending}", n_frames, shift=30)
        put(source, other, how)
        with pytest.raises(SourceError, match=r"another trajectory now|frames of it up to"):
            follow(source, out, every_s=0, until_idle_s=0, append=True)
        with mdio.open(out) as left:
            assert left.info.n_frames == 10
            np.testing.assert_array_equal(left.read(0, 10).positions, before)
    put(source, write(tmp_path / f"more.{ending}", 20), how)
    assert follow(source, out, every_s=0, until_idle_s=0, append=True).n_frames == 20
    assert mdio.verify(out, against=source).ok


@pytest.mark.parametrize("changed", [0, 4, 9])
def test_one_frame_is_enough(tmp_path, changed):
    source, out = write(tmp_path / "md.xtc", 10), tmp_path / "out.zarr"
    follow(source, out, every_s=0, until_idle_s=0)
    write(source, 20, changed=[changed])
    with pytest.raises(SourceError, match=f"1 of 10 .* differ, the first at {changed} ps"):
        follow(source, out, every_s=0, until_idle_s=0, append=True)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rewritten_while_it_is_followed(tmp_path, layout):
    """In the same file: its number and size tell nothing."""
    source, out = write(tmp_path / "md.xtc", 40), tmp_path / f"out.{layout}"
    other = write(tmp_path / "other.xtc", 80, shift=30)
    seen, chunks = [], {} if layout == "segments" else {"chunk_frames": 2}
    write(source, 35)

    def published(n_frames):
        seen.append(n_frames)
        put(source, other, "rewritten")

    with pytest.raises(SourceError, match="another trajectory now"):
        follow(source, out, every_s=0, until_idle_s=5, published=published, **as_options(chunks))
    assert mdio.open(out).info.n_frames == seen[-1] <= 40
    assert mdio.verify(out, against=write(tmp_path / "again.xtc", 40)).ok


def test_an_output_that_another_run_has_changed(tmp_path):
    source, out = write(tmp_path / "md.xtc", 35), tmp_path / "out.zarr"
    more = write(tmp_path / "more.xtc", 60)

    def published(n_frames):
        if n_frames < 40:
            mdio.append(more, out)
        put(source, write(tmp_path / "longer.xtc", 80), "rewritten")

    with pytest.raises(OutputError, match="another run has changed it meanwhile"):
        follow(
            source,
            out,
            every_s=0,
            until_idle_s=5,
            published=published,
            storage=mdio.Storage(chunk_frames=2),
        )
    assert mdio.open(out).info.n_frames == 60


@pytest.mark.parametrize("layout", LAYOUTS)
def test_appended(tmp_path, layout, capsys):
    """What has the name of the source now is not taken for it."""
    source, out = write(tmp_path / "md.xtc", 10), tmp_path / f"out.{layout}"
    mdio.convert(source, out)
    put(source, write(tmp_path / "other.xtc", 20, shift=30), "rewritten")
    assert main(["append", str(source), str(out)]) == 1
    err = capsys.readouterr().err
    assert "as replicas do" in err and err.index("keep-all") < err.index("keep-last")
    assert (
        main(["convert", str(source), str(out), "--follow", "--append", "--until-idle", "0"]) == 1
    )
    assert "another trajectory now" in capsys.readouterr().err
    assert mdio.open(out).info.n_frames == 10


def test_a_source_of_the_same_name_that_goes_on(tmp_path):
    """As where each part of a run is called the same: frames are numbered in two files."""
    whole = write(tmp_path / "whole.xtc", 20)
    source, out = tmp_path / "md.xtc", tmp_path / "out.zarr"
    mdio.convert(whole, source, stop=12)
    mdio.convert(source, out)
    mdio.convert(source, tmp_path / "part1.xtc")
    mdio.convert(whole, source, start=12, force=True)
    assert mdio.append(source, out).n_frames == 20
    assert mdio.verify(out, against=[tmp_path / "part1.xtc", source]).ok


@pytest.mark.parametrize("layout", LAYOUTS)
def test_resumed_and_repaired(tmp_path, layout):
    source, out = write(tmp_path / "md.xtc", 10), tmp_path / f"out.{layout}"
    mdio.convert(
        source, out, storage=mdio.Storage(chunk_frames=1)
    ) if layout != "segments" else mdio.convert(source, out)
    block = mdio.open(source).read(4, 5).positions
    held = [path for path in (out, *out.rglob("*")) if path.is_file() and path.suffix != ".json"]
    held = max(held, key=lambda path: path.stat().st_size)
    whole = held.read_bytes()
    for share in np.linspace(0.1, 0.9, 9):  # until a frame is hit
        data = bytearray(whole)
        data[int(share * len(data))] ^= 8
        held.write_bytes(data)
        if mdio.repair(out).lost_frames:
            break
    shutil.copy(source, tmp_path / "kept.xtc")
    put(source, write(tmp_path / "other.xtc", 20, shift=30), "rewritten")
    with pytest.raises(SourceError, match="does not give the checksums"):
        mdio.repair(out, source)
    assert held.read_bytes() == data
    assert mdio.repair(out, tmp_path / "kept.xtc").repaired
    np.testing.assert_array_equal(mdio.open(out).read(4, 5).positions, block)
