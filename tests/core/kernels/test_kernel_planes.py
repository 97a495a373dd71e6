"""Coordinates into planes, on all sides; encoders that fill memory which held something else."""

from __future__ import annotations

import numpy as np
import pytest
from suites.kernel_sides import N_ATOMS, SIDES, in_raw_buffer, kernels_of, random_positions

from mdio.core.frames import FrameBlock
from mdio.core.kernels import xyz_to_planar
from mdio.layouts.native import encoder as encoding
from mdio.layouts.native.dcd import DCDEncoder
from mdio.layouts.native.netcdf.layout import NCDFEncoder
from mdio.layouts.native.trr import TRREncoder


@pytest.fixture(params=SIDES)
def side(request, monkeypatch):
    with kernels_of(request.param, monkeypatch) as name:
        yield name


@pytest.mark.parametrize("n_atoms", N_ATOMS)
def test_planes_between_record_markers(side, n_atoms):
    positions = random_positions(3, n_atoms)
    record = 4 * n_atoms + 8
    raw = np.full(3 * 3 * record + 5, 0xAB, np.uint8)
    planar = np.ndarray((3, 3, n_atoms), np.float32, raw, 5, (3 * record, record, 4))
    xyz_to_planar(in_raw_buffer(positions, 16, 3), planar)
    np.testing.assert_array_equal(planar, positions.transpose(0, 2, 1))
    untouched = np.ndarray((3, 3, 8), np.uint8, raw, 5 + 4 * n_atoms, (3 * record, record, 1))
    assert (untouched == 0xAB).all()


def test_what_does_not_fit_is_refused(side):
    good = random_positions(2, 5)
    planar = np.empty((2, 3, 5), np.float32)
    for wrong in (
        planar[:1],
        np.empty((2, 5, 3), np.float32),
        planar.astype(">f4"),
        np.empty((2, 3, 10), np.float32)[:, :, ::2],
        np.broadcast_to(planar, planar.shape),
    ):
        with pytest.raises(ValueError):
            xyz_to_planar(good, wrong)
    with pytest.raises(TypeError):
        xyz_to_planar(good.astype(np.float64), planar)


@pytest.mark.parametrize("encoder", [DCDEncoder, NCDFEncoder, TRREncoder])
def test_a_room_that_held_other_frames_changes_nothing(encoder):
    fields = ("positions",) if encoder is DCDEncoder else ("positions", "velocities", "forces")
    block = FrameBlock(
        positions=random_positions(4, 7),
        velocities=random_positions(4, 7, 1),
        forces=random_positions(4, 7, 2),
        box=np.tile(np.array([50, 60, 70, 80, 90, 100], np.float32), (4, 1)),
        time=np.arange(4.0),
        step=np.arange(4),
    )
    one = encoder(7, fields)
    expected = [one.encode(block.frames(slice(*part))).tobytes() for part in ((0, 2), (2, 3))]
    encoding._scratch.buffer("frames", 4 * one.frame_nbytes).fill(0xAB)
    first = encoding.encode_frames(one, block.frames(slice(0, 2)))
    assert first.tobytes() == expected[0]
    second = encoding.encode_frames(one, block.frames(slice(2, 3)))
    assert second.tobytes() == expected[1]
    assert np.shares_memory(first, second)
