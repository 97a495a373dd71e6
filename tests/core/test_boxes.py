"""Unit cells against MDAnalysis' own functions and readers, bit for bit."""

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from MDAnalysis.coordinates.H5MD import H5MDReader
from MDAnalysis.coordinates.TRR import TRRReader
from MDAnalysis.coordinates.XTC import XTCReader
from MDAnalysis.lib.formats.libmdaxdr import TRRFile, XTCFile
from MDAnalysis.lib.mdamath import triclinic_box, triclinic_vectors
from MDAnalysisTests.datafiles import TRR, XTC, H5MD_xvf

from mdio.core.boxes import are_rotated, boxes_from_vectors, shortest_heights, vectors_from_boxes

DEGENERATE_VECTORS = [
    np.zeros((3, 3)),
    np.eye(3),
    np.eye(3) * 1e-30,
    np.eye(3) * 1e30,
    np.eye(3)[[1, 0, 2]],
    -np.eye(3),
    np.ones((3, 3)),
    [[1, 0, 0], [-1, 0, 0], [0, 0, 1]],
    [[1, 0, 0], [1 + 1e-7, 1e-9, 0], [0, 0, 1]],
    [[1, 0, 0], [-1, 1e-9, 0], [0, 0, 1]],
    [[1, 2, 3], [2, 4, 6], [0, 0, 1]],
    [[1, 0, 0], [0, 0, 0], [0, 0, 1]],
    [[1, 0, 0], [0, np.nan, 0], [0, 0, 1]],
    [[1, 0, 0], [0, np.inf, 0], [0, 0, 1]],
]
DEGENERATE_BOXES = [
    [0, 0, 0, 0, 0, 0],
    [1, 1, 1, 90, 90, 90],
    [0, 1, 1, 90, 90, 90],
    [1, -1, 1, 90, 90, 90],
    [1, 1, 1, 180, 90, 90],
    [1, 1, 1, 90, 0, 90],
    [1, 1, 1, 60, 60, 120],
    [1, 1, 1, 120, 120, 120],
    [1, 1, 1, 30, 60, 90],
    [3, 7, 11, 40, 80, 120],
    [1, 1, 1, 179, 179, 1],
    [1, 1, 1, 90, 90, 60],
    [1, 1, 1, 90, 60, 90],
    [1, 1, 1, 60, 90, 90],
    [np.nan, 1, 1, 90, 90, 90],
    [1, 1, 1, np.nan, 90, 90],
    [np.inf, 1, 1, 90, 90, 90],
    [80.017, 80.017, 80.017, 60, 60, 90],
    # These only just close, or do not: their fate hangs on the last bit of a square.
    [183.43338012695312, 53.128257751464844, 14.723808288574219, 27, 26, 53],
    [22.025259017944336, 30.574485778808594, 123.50654602050781, 75, 84, 159],
    [145.0587158203125, 144.20912170410156, 12.862191200256348, 30, 13, 43],
]


def oracle_boxes(vectors):
    with np.errstate(all="ignore"):
        rows = [triclinic_box(*cell) for cell in vectors]
    return np.array(rows, np.float32).reshape(-1, 6)


def oracle_vectors(boxes):
    with np.errstate(all="ignore"):
        cells = [triclinic_vectors(box) for box in boxes]
    return np.array(cells, np.float32).reshape(-1, 3, 3)


def assert_same_bits(ours, theirs):
    assert ours.dtype == theirs.dtype == np.float32
    assert ours.shape == theirs.shape
    np.testing.assert_array_equal(ours.view(np.int32), theirs.view(np.int32))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_random_vectors(dtype):
    rng = np.random.default_rng(1)
    vectors = rng.normal(0, 5, (5000, 3, 3)).astype(dtype)
    vectors[1000:3000] *= np.tri(3)
    vectors[2000:3000] += np.eye(3) * 50
    vectors[3000:4000] *= np.eye(3)
    assert_same_bits(boxes_from_vectors(vectors), oracle_boxes(vectors))


def test_random_boxes():
    rng = np.random.default_rng(2)
    boxes = rng.uniform(1, 200, (8000, 6)).astype(np.float32)
    boxes[:, 3:] = rng.uniform(0, 180, (8000, 3))
    boxes[2000:4000, 3:] = rng.uniform(60, 120, (2000, 3))
    boxes[4000:6000, 3:] = rng.choice([30, 45, 60, 75, 90, 105, 120, 135], (2000, 3))
    boxes[6000:7000, 3:] = 90
    ours = vectors_from_boxes(boxes)
    assert_same_bits(ours, oracle_vectors(boxes))
    assert 0.2 < np.any(ours, axis=(1, 2)).mean() < 0.9  # both kinds were there


def test_angles_that_only_just_close():
    angles = np.array([(a, b, a + b) for a in range(1, 90) for b in range(1, 90)], np.float32)
    boxes = np.hstack((np.full_like(angles, 7.3), angles))
    assert_same_bits(vectors_from_boxes(boxes), oracle_vectors(boxes))


@pytest.mark.parametrize("cell", DEGENERATE_VECTORS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_degenerate_vectors(cell, dtype):
    vectors = np.array([cell, np.eye(3)], dtype)
    assert_same_bits(boxes_from_vectors(vectors), oracle_boxes(vectors))
    assert_same_bits(boxes_from_vectors(vectors[:1]), oracle_boxes(vectors[:1]))


@pytest.mark.parametrize("box", DEGENERATE_BOXES)
def test_degenerate_boxes(box):
    boxes = np.array([box, [4, 5, 6, 70, 80, 100]], np.float32)
    assert_same_bits(vectors_from_boxes(boxes), oracle_vectors(boxes))


@given(arrays(np.float32, (3, 3, 3), elements=st.floats(-100, 100, width=32)))
def test_any_vectors(vectors):
    assert_same_bits(boxes_from_vectors(vectors), oracle_boxes(vectors))


@given(arrays(np.float32, 3, elements=st.floats(width=32)), st.sampled_from([None, 10.0]))
def test_any_edges_of_one_cell(edges, scale):
    """As those of several cells, of which single ones take another way."""
    vectors = np.diag(edges)[np.newaxis]
    several = np.concatenate([vectors, vectors])
    assert_same_bits(boxes_from_vectors(vectors, scale), boxes_from_vectors(several, scale)[:1])


NUMBERS = st.sampled_from([90, 90, 60, 120, 0, 180, np.inf, np.nan]) | st.floats(-10, 190, width=32)


@given(arrays(np.float32, st.tuples(st.integers(0, 5), st.just(6)), elements=NUMBERS))
def test_any_boxes(boxes):
    assert_same_bits(vectors_from_boxes(boxes), oracle_vectors(boxes))


def test_empty_and_strided():
    assert boxes_from_vectors(np.zeros((0, 3, 3))).shape == (0, 6)
    assert vectors_from_boxes(np.zeros((0, 6))).shape == (0, 3, 3)
    vectors = np.random.default_rng(3).normal(0, 5, (3, 3, 20)).astype(">f4").T
    assert_same_bits(boxes_from_vectors(vectors), oracle_boxes(vectors))


def test_wrong_shapes():
    with pytest.raises(ValueError, match="frames, 3, 3"):
        boxes_from_vectors(np.zeros((4, 9)))
    with pytest.raises(ValueError, match="frames, 6"):
        vectors_from_boxes(np.zeros((4, 3, 3)))


@pytest.mark.parametrize(
    ("reader", "file", "path"), [(XTCReader, XTCFile, XTC), (TRRReader, TRRFile, TRR)]
)
def test_gromacs_files(reader, file, path):
    """MDAnalysis converts lengths after it has taken the angles, and in float32."""
    theirs = np.array([ts.dimensions.copy() for ts in reader(path)])
    with file(path) as frames:
        vectors = np.array([frame.box for frame in frames])
    assert np.any(theirs[:, 3:] != 90)
    assert_same_bits(boxes_from_vectors(vectors, scale=10), theirs)
    assert_same_bits(vectors_from_boxes(theirs), oracle_vectors(theirs))


def test_h5md_file():
    theirs = np.array([ts.dimensions.copy() for ts in H5MDReader(H5MD_xvf)])
    with h5py.File(H5MD_xvf) as file:
        edges = file["particles/trajectory/box/edges/value"][:]
        assert file["particles/trajectory/box/edges/value"].attrs["unit"] == "nm"
    assert_same_bits(boxes_from_vectors(edges, scale=10), theirs)


def test_shortest_heights():
    """The volume over the largest face; none where there is no cell."""
    boxes = [[30, 20, 25, 90, 90, 90], [30, 30, 30, 60, 60, 90], [15, 15, 28, 60, 60, 111]]
    expected = []
    for box in boxes:
        a, b, c = triclinic_vectors(box).astype(float)
        faces = [np.linalg.norm(np.cross(*pair)) for pair in ((a, b), (b, c), (a, c))]
        expected.append(np.dot(np.cross(a, b), c) / max(faces))
    found = shortest_heights(np.array([*boxes, [0] * 6, [9, 0, 9, 90, 90, 90]], "f4"))
    np.testing.assert_allclose(found, [*expected, np.inf, np.inf], rtol=1e-5)
    assert len(shortest_heights(np.zeros((0, 6), "f4"))) == 0


OBLIQUE = np.array([[30, 0, 0], [5, 40, 0], [3, 7, 50]], float)
ROTATION = np.linalg.qr(np.random.default_rng(2).normal(size=(3, 3)))[0]


@pytest.mark.parametrize(
    ("vectors", "expected"),
    [
        (OBLIQUE, False),
        (OBLIQUE @ ROTATION, True),
        (np.diag([30, 40, 50]) @ ROTATION, True),
        (OBLIQUE[[1, 0, 2]], True),
        (OBLIQUE * [[1], [1], [-1]], True),  # left-handed: the box has its mirror image
        (OBLIQUE[:, [1, 0, 2]], True),
        (np.eye(3)[[1, 2, 0]] * 30, False),  # a cube in any order, and turned by 90 degrees
        (np.diag([30, -40, 50]), False),
        (np.diag([30, 40, 50])[[1, 0, 2]], True),
        *[(vectors, False) for vectors in DEGENERATE_VECTORS],
    ],
)
def test_cells_that_are_rotated(vectors, expected):
    assert are_rotated(np.array([vectors])) == expected
