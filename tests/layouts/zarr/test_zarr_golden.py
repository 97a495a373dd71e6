"""Trees of format version 1, as they were first written, stay readable for ever.

They hold `golden_block`, ``v1-bitpack.zarr`` in chunks differenced either way; ``v1-xtc.zarr`` has
its positions rounded as an XTC would.
"""

from pathlib import Path

import numpy as np
import pytest
import zarr

from mdio.core.frames import FrameBlock
from mdio.layouts.registry import open_layout

GOLDEN = Path(__file__).parents[2] / "golden" / "zarr"
TREES = ("v1", "v1-quantised", "v1-bitpack", "v1-xtc")


def golden_block() -> FrameBlock:
    """Return 10 frames of 5 atoms, numbers that float32 and all machines have alike."""
    block = FrameBlock.empty(10, 5, velocities=True)
    numbers = np.arange(10 * 5 * 3).reshape(10, 5, 3)
    block.positions[...] = (numbers * 37 % 1000) / 64 - 5
    block.velocities[...] = (numbers * 11 % 100) / 32
    block.box[...] = [40, 41, 42.5, 90, 75, 60]
    block.time[...] = 2.5 * np.arange(10)
    block.step[...] = 1000 * np.arange(10)
    return block


def xtc_floats(positions: np.ndarray) -> np.ndarray:
    """Return what MDAnalysis reads of an XTC of precision 1000: two products in float32."""
    integers = np.rint(positions.astype(np.float64) * 100).astype(np.float32)
    return integers * (np.float32(1) / np.float32(1000)) * np.float32(10)


@pytest.mark.parametrize("name", TREES)
def test_a_tree_of_version_1_reads_as_on_its_first_day(name):
    expected = golden_block()
    if name == "v1-xtc":
        expected.positions[...] = xtc_floats(expected.positions)
    bound = 0.005 + 1e-6 if name in ("v1-quantised", "v1-bitpack") else 0
    with open_layout(GOLDEN / f"{name}.zarr") as layout:
        info = layout.info
        found = layout.read(0, 10)
        ends = layout.read(3, 9, atoms=[4, 0])
        problems = [problem for _, problem in layout.check() if problem]
    assert (info.n_frames, info.n_atoms, info.dt_ps) == (10, 5, 2.5)
    assert dict(info.groups) == {"ends": 2}
    assert np.abs(found.positions - expected.positions).max() <= bound
    for field in ("velocities", "box", "time", "step"):
        assert np.array_equal(getattr(found, field), getattr(expected, field))
    assert np.array_equal(ends.positions, found.positions[3:9, [4, 0]])
    assert not problems


@pytest.mark.parametrize("name", TREES)
def test_zarr_reads_it_too(name):
    root = zarr.open_group(str(GOLDEN / f"{name}.zarr"), mode="r")
    with open_layout(GOLDEN / f"{name}.zarr") as layout:
        expected = layout.read(0, 10)
    particles = root["particles/trajectory"]
    assert np.array_equal(particles["position/value"][:], expected.positions)
    assert np.array_equal(particles["velocity/value"][:], expected.velocities)
    assert np.array_equal(particles["position/time"][:], expected.time)
