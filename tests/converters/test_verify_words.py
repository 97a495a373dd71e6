"""What verify says of differences that are the rounding of a format's own units."""

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
        block_of(boxes[0]), block_of(boxes[1]), {}, tables=True, rounded=(), rounded_source=True
    )[1]
    assert len(problems) == 1 and problems[0].startswith("box differs by up to")


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
    mdio.convert(adk["dcd"], out)
    files = [path for path in out.rglob("*") if path.is_file()] if out.is_dir() else [out]
    largest = max(files, key=lambda path: path.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 1
    largest.write_bytes(data)
    assert main(["verify", str(out)]) == 1
    told = capsys.readouterr().out
    assert "convert the source again" not in told
    assert f"`mdio repair {out} --against {adk['dcd']}` writes it again" in told
