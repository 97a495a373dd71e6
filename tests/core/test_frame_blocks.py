"""Blocks of frames are compared and joined as a whole."""

import numpy as np
import pytest

from mdio.core.frames import FrameBlock


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
