"""What native formats cannot hold is told, and what differs from frame to frame is seen."""

import numpy as np
import pytest
from suites.zarr_cases import write_tree

import mdio
from mdio.core.frames import FrameBlock
from mdio.layouts.native.dcd import DCDEncoder
from mdio.layouts.native.trr import TRREncoder
from mdio.layouts.native.xtc import XTCEncoder

N_ATOMS = 12
ALL = ("positions", "velocities", "forces")


def block_of(n_frames, **arrays):
    """Return a block; `arrays`: other times, boxes."""
    block = FrameBlock.empty(n_frames, N_ATOMS, velocities=True, forces=True)
    rng = np.random.default_rng(1)
    for values in block.present().values():
        values[...] = rng.normal(size=values.shape) * 10
    block.time[...] = block.step[...] = np.arange(n_frames)
    block.box[...] = [30, 30, 30, 90, 90, 90]
    for name, values in arrays.items():
        getattr(block, name)[...] = values
    return block


def write_trr(path, block):
    path.write_bytes(TRREncoder(N_ATOMS, ALL, sparse=ALL).encode(block).tobytes())
    return path


def notes_of(path, out):
    """Convert, and return the plan's notes as one text."""
    return " ".join(mdio.convert(path, out).plan.notes)


@pytest.mark.parametrize("turn", [3, 70])
def test_frames_of_one_size_with_other_fields(tmp_path, turn):
    """Those with velocities and those with forces are as long."""
    block = block_of(80)
    block.velocities[turn:], block.forces[:turn] = np.nan, np.nan
    path = write_trr(tmp_path / "md.trr", block)
    with mdio.open(path) as layout:
        info = layout.info
        assert (info.has_velocities, info.has_forces) == (True, True)
        assert info.sparse == ("forces", "velocities")
    mdio.convert(path, tmp_path / "o.trr")
    with mdio.open(tmp_path / "o.trr") as layout:
        assert layout.info.nbytes == path.stat().st_size
        read = layout.read(0, 80)
    for name in ("velocities", "forces"):
        np.testing.assert_allclose(getattr(read, name), getattr(block, name), rtol=1e-6)


def test_fields_of_some_frames_are_nan_in_netcdf(tmp_path):
    block = block_of(6)
    block.velocities[1::2] = np.nan
    path = write_trr(tmp_path / "md.trr", block)
    assert "that a frame lacks are NaN there" in notes_of(path, tmp_path / "o.ncdf")
    with mdio.open(tmp_path / "o.ncdf") as layout:
        assert layout.info.sparse == ("velocities",)
    assert "NaN" not in notes_of(path, tmp_path / "o.zarr")


def xtc_of_steps(path, *steps):
    """Write an XTC with a frame for each step."""
    block = block_of(len(steps))
    frames = [
        XTCEncoder(N_ATOMS, precision=step).encode(block.frames(slice(row, row + 1))).tobytes()
        for row, step in enumerate(steps)
    ]
    path.write_bytes(b"".join(frames))
    return path


def test_the_finest_precision_of_an_xtc_is_kept(tmp_path):
    path = xtc_of_steps(tmp_path / "md.xtc", 0.1, 0.003, 0.001)
    with mdio.open(path) as layout:
        assert layout.info.precision == pytest.approx(0.001)
        assert layout.notes == ()
        expected = layout.read(0, 3).positions
    for name in ("o.xtc", "o.zarr", "o.h5md"):
        mdio.convert(path, tmp_path / name)
        with mdio.open(tmp_path / name) as layout:
            np.testing.assert_allclose(layout.read(0, 3).positions, expected, atol=1e-5)


def test_precisions_that_one_step_does_not_keep(tmp_path):
    path = xtc_of_steps(tmp_path / "md.xtc", 0.01, 10 / 300, 0.01)
    with mdio.open(path) as layout:
        (note,) = layout.notes
        assert "md.xtc: some frames are rounded to 0.0333 angstrom" in note
        expected = layout.read(0, 3).positions
    assert note in mdio.convert(path, tmp_path / "o.xtc").notes
    for name in ("o.zarr", "o.h5md"):
        mdio.convert(path, tmp_path / name)
        with mdio.open(tmp_path / name) as layout:
            np.testing.assert_array_equal(layout.read(0, 3).positions, expected)


@pytest.mark.parametrize(("name", "is_told"), [("o.xtc", True), ("o.trr", True), ("o.dcd", False)])
def test_boxes_that_are_open_along_an_axis(tmp_path, name, is_told):
    block = block_of(3, box=[30, 30, 0, 90, 90, 90])
    block.box[0] = 30, 30, 30, 90, 90, 90
    (tmp_path / "md.dcd").write_bytes(
        DCDEncoder(N_ATOMS).header(block.time, block.step)
        + DCDEncoder(N_ATOMS).encode(block).tobytes()
    )
    told = notes_of(tmp_path / "md.dcd", tmp_path / name)
    assert ("2 frames with such a box have none" in told) == is_told


def test_times_that_single_precision_cannot_hold(tmp_path):
    write_tree(tmp_path / "md.zarr", block_of(4, time=1e9 + np.arange(4)))
    for name in ("o.trr", "o.xtc", "o.ncdf"):
        assert "frame 1 is the first to differ" in notes_of(tmp_path / "md.zarr", tmp_path / name)
