"""Blocks of frames are compared and joined as a whole."""

import numpy as np
import pytest

from mdio.core.frames import FrameBlock, uninitialised_array


def block(n_frames=2, n_atoms=3, **fields):
    made = FrameBlock.empty(n_frames, n_atoms, **fields)
    for array in made.present().values():
        array[...] = np.nan
    return made


@pytest.mark.parametrize("name", ["positions", "box", "time", "step", "velocities"])
def test_blocks_are_equal_if_all_arrays_are(name):
    one, other = block(velocities=True), block(velocities=True)
    assert one == other
    getattr(other, name)[1] = 5
    assert one != other


def test_blocks_of_other_fields_are_not_equal():
    assert block() != block(velocities=True)
    assert block(velocities=True) != block()
    assert block() != block(n_atoms=4)
    assert block() != "a block"


def test_blocks_of_one_kind_are_joined():
    assert FrameBlock.concatenate([block(2), block(1)]) == block(3)
    for others in ([], [block(), block(velocities=True)], [block(), block(n_atoms=4)]):
        with pytest.raises(ValueError, match="same atoms and fields"):
            FrameBlock.concatenate(others)


@pytest.mark.parametrize("shape", [(3, 3341, 3), (1 << 20,), (0, 5, 3), (2, 3, 3)])
@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_arrays_to_fill_are_plain_ones(shape, dtype):
    array = uninitialised_array(shape, dtype)
    assert (array.shape, array.dtype) == (shape, dtype)
    assert array.flags.c_contiguous and array.flags.writeable and type(array) is np.ndarray


def test_large_arrays_begin_apart_from_pages_and_arrays_of_numpy():
    blocks = [FrameBlock.empty(5, 3341 + n, velocities=True) for n in range(20)]
    addresses = [array.ctypes.data for one in blocks for array in (one.positions, one.velocities)]
    assert {address % 4096 for address in addresses} == {256}
