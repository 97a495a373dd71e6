"""Neighbours within a distance, native and NumPy's, beside all distances by MDAnalysis."""

import numpy as np
import pytest
from MDAnalysis.lib.distances import capped_distance, distance_array
from oracles import plain_distances

from mdio.core.boxes import vectors_from_boxes
from mdio.core.kernels import backend, within

BOXES = {
    "none": [0, 0, 0, 0, 0, 0],
    "cube": [20, 20, 20, 90, 90, 90],
    "slab": [12, 30, 50, 90, 90, 90],
    "dodecahedron": [24, 24, 24, 60, 60, 90],
    "octahedron": [25, 25, 25, 70.53, 109.47, 70.53],
    "skewed": [22, 25, 19, 75, 100, 65],
}


@pytest.mark.parametrize("box", BOXES)
@pytest.mark.parametrize("radius", [0.5, 3.0, 5.5])
@pytest.mark.parametrize("spread", [1, 10])
def test_as_all_distances(box, radius, spread):
    """Also of atoms many cells away."""
    rng = np.random.default_rng(7)
    boxes = np.array([BOXES[box]] * 3, np.float32)
    positions = rng.uniform(-15 * spread, 25 * spread, (3, 400, 3)).astype(np.float32)
    if box == "none":
        positions = rng.uniform(-15, 25, (3, 400, 3)).astype(np.float32)
    sources, targets = np.arange(0, 60), np.arange(40, 400, dtype=np.int64)
    found = within(positions, boxes, sources, targets, radius)
    for frame in range(3):
        pairs, distances = capped_distance(
            positions[frame, sources],
            positions[frame, targets],
            radius + 0.01,
            box=boxes[frame] if box != "none" else None,
            method="bruteforce",
        )
        sure = np.zeros(len(targets), bool)
        sure[pairs[distances <= radius - 1e-4, 1]] = True
        maybe = np.zeros(len(targets), bool)
        maybe[pairs[distances <= radius + 1e-4, 1]] = True
        assert np.all(found[frame] >= sure) and np.all(found[frame] <= maybe)
    same = np.zeros_like(found)
    plain_distances.within(
        positions, vectors_from_boxes(boxes).astype(float), sources, targets, radius, same
    )
    np.testing.assert_array_equal(found, same)
    assert found[:, :20].all()  # a source is near itself


@pytest.mark.parametrize("lengths", [(12, 14, 0), (0, 12, 14), (12, 0, 0), (0, 0, 0)])
def test_axes_that_are_not_periodic(lengths):
    """Atoms lie on both sides of the origin, where a cell would be wrapped."""
    rng = np.random.default_rng(5)
    positions = rng.uniform(-20, 20, (3, 200, 3)).astype(np.float32)
    boxes = np.array([(*lengths, 90, 90, 90)] * 3, np.float32)
    boxes[1] = 0
    positions[2, 7] = np.nan
    sources, targets = np.arange(20), np.arange(20, 200)
    found = within(positions, boxes, sources, targets, 4.0)
    for frame, box in enumerate(boxes):
        apart = distance_array(positions[frame, targets], positions[frame, sources], box=box)
        np.testing.assert_array_equal(found[frame], (apart <= 4.0).any(axis=1))
    assert found.any(axis=1).all()


def test_just_at_the_radius_and_not_finite():
    positions = np.zeros((2, 5, 3), np.float32)
    positions[:, 1, 0] = 2.0
    positions[:, 2, 0] = np.nextafter(np.float32(2), np.float32(3))
    positions[:, 3, 1] = np.nan
    positions[:, 4, 2] = np.inf
    boxes = np.array([[0] * 6, [10, 10, 10, 90, 90, 90]], np.float32)
    every = np.arange(1, 5)
    wanted = [[True, False, False, False]] * 2
    zero, odd = np.array([0]), np.array([3, 4])
    assert within(positions, boxes, zero, every, 2.0).tolist() == wanted
    assert not within(positions, boxes, odd, every, 2.0).any()
    assert within(positions[:0], boxes[:0], zero, every, 2.0).shape == (0, 4)
    assert not within(positions, boxes, zero[:0], every, 2.0).any()


@pytest.mark.parametrize("side", ["numpy", "native"])
def test_refusals(side, monkeypatch):
    if side == "numpy":
        monkeypatch.setattr(backend, "module", plain_distances)
    positions = np.zeros((1, 3, 3), np.float32)
    boxes = np.array([[10, 12, 14, 90, 90, 90]], np.float32)
    some = np.arange(3)
    assert within(positions, boxes, some, some, 10.0).all()
    with pytest.raises(ValueError, match="larger than the cell"):
        within(positions, boxes, some, some, 10.1)
    with pytest.raises(ValueError, match="must be positive"):
        within(positions, boxes, some, some, 0.0)
    with pytest.raises(IndexError):
        within(positions, boxes, some + 1, some, 1.0)
    with pytest.raises(ValueError, match="2 boxes for 1 frames"):
        within(positions, np.repeat(boxes, 2, axis=0), some, some, 1.0)
