"""What verify says of differences that are the rounding of a format's own units."""

import shutil
from pathlib import Path

import MDAnalysis as mda
import numpy as np
import pytest

import mdio
from mdio.cli.main import main
from mdio.converters.verify import compare_blocks
from mdio.core.frames import FrameBlock


def test_rounding_to_the_units_of_the_format_is_told(adk, tmp_path, capsys):
    whole, back = tmp_path / "a.zarr", tmp_path / "back.trr"
    mdio.convert(adk["dcd"], whole, stop=5)
    mdio.convert(whole, back)
    assert main(["verify", str(back), "--against", str(whole)]) == 0
    assert "0 allowed besides the rounding of its format" in capsys.readouterr().out


def test_an_output_is_as_what_was_written_back_from_it(tmp_path, capsys):
    """The box of an XTC is rounded to float32 in nm, which may be off by one unit in the last."""
    source, out, back = tmp_path / "a.xtc", tmp_path / "a.zarr", tmp_path / "back.xtc"
    universe = mda.Universe.empty(20, trajectory=True)
    rng = np.random.default_rng(5)
    with mda.Writer(str(source), 20) as writer:
        for _ in range(30):
            universe.trajectory.ts.positions = rng.random((20, 3)) * 40
            angles = rng.uniform(70, 110, 3)
            universe.trajectory.ts.dimensions = [*rng.uniform(40, 60, 3), *angles]
            writer.write(universe)
    mdio.convert(source, out)
    mdio.convert(out, back)
    boxes = [mdio.open(path).read(0, 30).box for path in (out, back)]
    assert not np.array_equal(*boxes)
    assert main(["verify", str(out), "--against", str(back)]) == 0
    assert main(["verify", str(out), "--against", str(source)]) == 0
    boxes[0][3, 0] *= np.float32(1.001)  # another box is another box
    problems = compare_blocks(
        block_of(boxes[0]), block_of(boxes[1]), {}, columns=["box"], rounded=(), is_other_file=True
    )[1]
    ((differing, told),) = problems
    assert told.startswith("box differs by up to") and np.flatnonzero(differing).tolist() == [3]


def block_of(box):
    block = FrameBlock.empty(len(box), 0)
    block.box[:], block.time[:], block.step[:] = box, 0, 0
    return block


def test_what_a_native_file_does_not_record_is_told_once(adk, tmp_path):
    out = tmp_path / "a.dcd"
    fitted = mdio.Selection(fit="rot+trans", fit_select="name CA")
    mdio.convert(adk["dcd"], out, top=adk["psf"], selection=fitted)
    found = mdio.verify(out, adk["dcd"])
    assert not found.ok
    assert sum("does not record --pbc" in problem for problem in found.bad) == 1


@pytest.mark.parametrize("name", ["a.h5md", "a.zarr", "a.segments"])
def test_damage_is_told_with_its_way_out(adk, tmp_path, capsys, name):
    out = tmp_path / name
    source = shutil.copy(adk["dcd"], tmp_path / "source.dcd")
    mdio.convert(source, out)
    files = [path for path in out.rglob("*") if path.is_file()] if out.is_dir() else [out]
    largest = max(files, key=lambda path: path.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 1
    largest.write_bytes(data)
    assert main(["verify", str(out)]) == 1
    told = capsys.readouterr().out
    assert "convert the source again" not in told
    assert f"`mdio repair {out} --against {source}` writes it again" in told
    assert "has moved" not in told
    source.unlink()
    assert main(["verify", str(out)]) == 1
    assert "has moved" in capsys.readouterr().out


@pytest.mark.parametrize("given", ["relative", "absolute"])
def test_damage_is_named_as_the_output_was_given_by_any_number_of_workers(
    adk, tmp_path, monkeypatch, given
):
    monkeypatch.chdir(tmp_path)
    mdio.split(adk["xtc"], "out.segments", 3)
    next(Path("out.segments").rglob("seg-000001.xtc")).unlink()
    out = tmp_path / "out.segments" if given == "absolute" else Path("out.segments")
    alone, shared = (mdio.verify(out, workers=workers).bad for workers in (None, 2))
    assert shared == alone
    assert f"`mdio repair {out} --against" in alone[0] and alone[0].startswith(f"{out}/")


@pytest.mark.parametrize(
    ("changed", "told"),
    [([5], "frame 5"), ([5, 6, 7], "frames 5 to 7"), ([0, 4, 5, 6], "4 frames (0, 4 to 6)")],
)
@pytest.mark.parametrize("suffix", ["zarr", "xtc", "trr"])
def test_the_frames_that_differ_are_named(tmp_path, suffix, changed, told):
    positions = np.random.default_rng(2).random((9, 12, 3)) * 20
    box = np.array([[30, 30, 30, 90, 90, 90]] * 9, np.float32)
    time, step = np.arange(9.0), np.arange(9)
    out, source = tmp_path / f"a.{suffix}", tmp_path / "b.zarr"
    for name in ("b", "c"):
        with mdio.Writer(tmp_path / f"{name}.zarr") as writer:
            writer.write_block(positions, box=box, time=time, step=step)
        positions[changed] += 1
        box[changed, 0] += 2
        time[changed] += 0.25
        step[changed] += 100
    mdio.convert(tmp_path / "c.zarr", out)
    bad = mdio.verify(out, source).bad
    assert len(bad) == 4 and all(problem.startswith(f"{told}: ") for problem in bad), bad


@pytest.mark.parametrize("suffix", ["xtc", "dcd", "trr", "ncdf", "zarr", "h5md", "segments"])
def test_that_values_were_not_checked_is_told(adk, tmp_path, capsys, suffix):
    out = tmp_path / f"a.{suffix}"
    mdio.convert(adk["dcd"], out, stop=5)
    is_native = suffix in ("xtc", "dcd", "trr", "ncdf")
    capsys.readouterr()
    assert main(["verify", str(out)]) == 0
    assert ("it has no checksums" in capsys.readouterr().out) == is_native
    assert mdio.verify(out).has_checksums != is_native
    assert main(["verify", str(out), "--against", str(out if is_native else adk["dcd"])]) == 0
    assert "no checksums" not in capsys.readouterr().out


@pytest.mark.parametrize("executor", [None, "processes"])
def test_a_damaged_header_is_told_once(adk, tmp_path, executor):
    bad = tmp_path / "bad.xtc"
    data = bytearray(adk["xtc"].read_bytes())
    with mdio.open(adk["xtc"]) as layout:
        data[int(layout.tables().frames.edges[5])] ^= 0xFF
    bad.write_bytes(data)
    chosen = mdio.Processes(2) if executor else None
    (problem,) = mdio.verify(bad, executor=chosen).bad
    assert "counts as frame 5" in problem and "--salvage" in problem


def test_a_native_file_of_chosen_frames_is_compared_with_the_same_choice(adk, tmp_path, capsys):
    out, again = tmp_path / "a.xtc", tmp_path / "again.zarr"
    for path in (out, again):
        mdio.convert(adk["xtc"], path, step=2)
    assert main(["verify", str(out), "--against", str(adk["xtc"])]) == 1
    told = capsys.readouterr().out
    assert "convert the source so again, and compare it with that" in told
    assert "no frame compared" in told
    assert main(["verify", str(out), "--against", str(again)]) == 0
