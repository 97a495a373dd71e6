"""A narrow range of atoms of large uncompressed frames: only its bytes are read."""

import os

import numpy as np
import pytest
from suites.zarr_cases import make_block, write_tree

from mdio.layouts.zarr.layout import ZarrLayout
from mdio.testing.blocks import oracle_of
from mdio.testing.reading import LayoutReadingTests, ReadingCase


def _case(path):
    block = make_block(23, 6000, velocities=True)
    write_tree(path, block, chunk_frames=4, piece_chunks=2)
    return ReadingCase(ZarrLayout, path, oracle_of(block))


class TestNarrowRanges(LayoutReadingTests):
    """Frames so large that of a narrow range of atoms only the bytes are read."""

    @pytest.fixture(scope="class")
    @classmethod
    def case(cls, tmp_path_factory):
        return _case(tmp_path_factory.mktemp("zarr") / "made.zarr")


@pytest.mark.parametrize("n_atoms", [6000, 5000])
def test_of_whole_chunks_too_a_narrow_range_of_large_frames_is_read(tmp_path, monkeypatch, n_atoms):
    """As h5md does: from 64 KiB a frame on, up to a quarter of it, where nothing is verified."""
    block = make_block(20, n_atoms, box=None)
    write_tree(tmp_path / "made.zarr", block, chunk_frames=5)
    large = 12 * n_atoms >= 65536
    with ZarrLayout(tmp_path / "made.zarr", verify=False) as layout:
        layout.read(0, 1)
        read = [0]
        real = os.preadv

        def counting(fd, buffers, offset):
            read[0] += sum(memoryview(buffer).nbytes for buffer in buffers)
            return real(fd, buffers, offset)

        monkeypatch.setattr(os, "preadv", counting)
        tenth = np.arange(n_atoms // 10)
        for atoms in (tenth, tenth + 700, tenth[::-7] * 2 + n_atoms // 2):
            read[0] = 0
            found = layout.read(0, 18, atoms=atoms)
            assert np.array_equal(found.positions, block.positions[:18, atoms])
            if large:
                assert read[0] == 18 * 12 * (int(np.ptp(atoms)) + 1)
            else:
                assert read[0] == 18 * 12 * n_atoms + 3 * 4
        read[0] = 0
        layout.read(0, 20, atoms=[10, 10 + n_atoms // 4])
        assert read[0] == 20 * 12 * n_atoms + 4 * 4
