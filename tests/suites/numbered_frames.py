"""Frames that tell their number, and what an output of them is to hold."""

import numpy as np
from numpy.testing import assert_array_equal

import mdio

N_ATOMS = 10_000


def frames_of(first, stop, n_atoms=N_ATOMS):
    """Positions that tell the number of their frame, each coordinate another."""
    numbers = np.arange(first, stop, dtype=np.float32)[:, np.newaxis, np.newaxis]
    return numbers + np.arange(3 * n_atoms, dtype=np.float32).reshape(1, n_atoms, 3) / 8192


def assert_frames(path, n_frames, n_atoms=N_ATOMS):
    with mdio.open(path) as layout:
        assert layout.info.n_frames == n_frames
        for start in range(0, n_frames, 97):
            stop = min(start + 5, n_frames)
            block = layout.read(start, stop)
            assert_array_equal(block.positions, frames_of(start, stop, n_atoms))
            assert_array_equal(block.time, np.arange(start, stop))
    assert mdio.verify(path).ok
