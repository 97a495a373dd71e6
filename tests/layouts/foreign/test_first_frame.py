"""The first frame of a layout as coordinates of a topology."""

import numpy as np
from MDAnalysis.transformations import translate

import mdio
from mdio.layouts.foreign.first_frame import FirstFrame


def test_transformations_are_made_once_however_often_it_is_read(adk):
    with mdio.open(adk["dcd"]) as layout:
        expected = layout.read(0, 1).positions[0] + np.float32([1, 0, 0])
        frame = FirstFrame(layout)
        frame.add_transformations(translate([1, 0, 0]))
        for reader in (frame, frame.copy()):
            for _ in range(2):
                reader.rewind()
                np.testing.assert_allclose(reader.ts.positions, expected)
        frame.ts.positions[:] = 0
        for ts in frame:
            np.testing.assert_allclose(ts.positions, expected)
