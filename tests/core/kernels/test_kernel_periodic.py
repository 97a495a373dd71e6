"""Molecules in periodic cells, native and NumPy's, beside MDAnalysis, in cells of all shapes."""

import warnings

import MDAnalysis as mda
import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from MDAnalysis.lib.mdamath import triclinic_vectors
from MDAnalysis.transformations import NoJump, center_in_box, unwrap
from numpy.testing import assert_allclose, assert_array_equal
from oracles import plain_distances as plain
from oracles.versions import needs_mda_2_11
from scipy.sparse.csgraph import minimum_spanning_tree

from mdio.core import kernels
from mdio.core.boxes import vectors_from_boxes
from mdio.core.topology import find_molecules


def cells(least, most, height):
    """Return cells of all shapes with angles between two numbers, of at least so much room."""
    length, angle = st.floats(15, 60), st.floats(least, most)
    every = st.tuples(length, length, length, angle, angle, angle)
    return every.filter(lambda cell: vectors_from_boxes(boxes(cell))[0].diagonal().min() > height)


CELLS = cells(60, 120, 10)
SKEWED = cells(30, 150, 5)
SEEDS = st.integers(0, 2**32 - 1)
ALL = settings(max_examples=40)


def system(cell, seed, n_frames=1):
    """Chains and rings, a branch and lone atoms, in random order; a Universe of them, wrapped."""
    rng = np.random.default_rng(seed)
    sizes = [1, 9, 1, 30, 3, 3]
    n_atoms = sum(sizes)
    names = rng.permutation(n_atoms)
    bonds, steps, at = [], np.zeros((n_atoms, 3)), 0
    steps[:] = rng.uniform(-0.8, 0.8, (n_atoms, 3))
    for size in sizes:
        steps[at] = rng.uniform(-100, 100, 3) - steps[:at].sum(axis=0)
        bonds += [(i, i + 1) for i in range(at, at + size - 1)]
        at += size
    bonds.append((3, 5))
    universe = mda.Universe.empty(n_atoms, trajectory=True)
    universe.add_TopologyAttr("bonds", [tuple(sorted(names[list(b)].tolist())) for b in bonds])
    universe.add_TopologyAttr("masses", rng.uniform(1, 30, n_atoms))
    frames = np.empty((n_frames, n_atoms, 3), np.float32)
    frames[:, names] = np.cumsum(steps, axis=0) + np.cumsum(
        rng.uniform(-2, 2, (n_frames, n_atoms, 3)) * (n_frames > 1), axis=0
    )
    for frame in frames:
        frame[:] = mda.lib.distances.apply_PBC(frame, np.array(cell, np.float32))
    universe.load_new(frames, dimensions=np.tile(np.array(cell, np.float32), (n_frames, 1)))
    return universe, frames


def shortest(apart, vectors, reach=4):
    """Return the lengths of the shortest images, of which MDAnalysis misses some in such cells."""
    apart = apart - np.rint(apart @ np.linalg.inv(vectors)) @ vectors
    around = (
        np.stack(np.meshgrid(*[np.arange(-reach, reach + 1)] * 3), axis=-1).reshape(-1, 3) @ vectors
    )
    return np.linalg.norm(apart[..., None, :] - around, axis=-1).min(axis=-1)


def both(name, frames, cells, *arguments):
    """Do it in native code and in NumPy, which are to agree, and return what came out."""
    native, numpy = frames.copy(), frames.copy()
    getattr(kernels, name)(native, cells, *arguments)
    getattr(plain, name)(numpy, vectors_from_boxes(cells).astype(float), *arguments)
    assert_allclose(native, numpy, atol=1e-4)
    return native


def boxes(cell, n_frames=1):
    return np.array([cell] * n_frames, np.float32)


def links_of(universe):
    labels, order, parents = find_molecules(universe.bonds.to_indices(), len(universe.atoms))
    bound = parents >= 0
    return labels, order, np.ascontiguousarray(np.stack([order[bound], parents[bound]], axis=1))


@ALL
@given(CELLS, SEEDS)
def test_whole_as_unwrap(cell, seed):
    universe, frames = system(cell, seed)
    made = both("make_whole", frames, boxes(cell), links_of(universe)[2])
    universe.trajectory.add_transformations(unwrap(universe.atoms))
    assert_allclose(made[0], universe.atoms.positions, atol=1e-3)


@needs_mda_2_11  # leaves no molecule outside of an oblique cell
@ALL
@given(CELLS, SEEDS)
def test_molecules_as_wrap_by_centres_of_mass(cell, seed):
    universe, frames = system(cell, seed)
    labels, order, links = links_of(universe)
    starts = np.flatnonzero(np.diff(labels[order], prepend=-1, append=-1))
    masses = universe.atoms.masses[order]
    weights = masses / np.repeat(np.add.reduceat(masses, starts[:-1]), np.diff(starts))
    made = both("make_whole", frames, boxes(cell), links)
    made = both("put_in_cell", made, boxes(cell), order, starts, weights)
    universe.trajectory.add_transformations(unwrap(universe.atoms))
    wrapped = universe.atoms.wrap(compound="fragments", center="com")
    assert_allclose(made[0], wrapped, atol=1e-3)


@ALL
@given(CELLS, SEEDS, st.sampled_from([np.nan, np.inf]))
def test_an_atom_at_no_place_takes_no_other_along(cell, seed, odd):
    universe, frames = system(cell, seed)
    labels, order, links = links_of(universe)
    starts = np.flatnonzero(np.diff(labels[order], prepend=-1, append=-1))
    weights = np.repeat(1 / np.diff(starts), np.diff(starts))
    lost = seed % frames.shape[1]
    frames[0, lost, seed % 3] = odd
    made = both("make_whole", frames, boxes(cell), links)
    made = both("put_in_cell", made, boxes(cell), order, starts, weights)
    assert np.isfinite(np.delete(made[0], lost, axis=0)).all()


@ALL
@given(CELLS, SEEDS, st.integers(1, 400), st.sampled_from([None, np.nan, np.inf, 1e12]))
def test_lone_atoms_by_the_block_as_one_by_one(cell, seed, n_atoms, odd):
    rng = np.random.default_rng(seed)
    frames = rng.uniform(-100, 100, (2, n_atoms, 3)).astype(np.float32)
    if odd is not None:
        frames[0, rng.integers(n_atoms), 1] = odd
    every, starts, weights = np.arange(n_atoms), np.arange(n_atoms + 1), np.ones(n_atoms)
    made = []
    for atoms in (every, np.roll(every, 1), rng.permutation(n_atoms)):
        made.append(frames.copy())
        kernels.put_in_cell(made[-1], boxes(cell, 2), atoms, starts, weights)
    assert made[0].tobytes() == made[1].tobytes() == made[2].tobytes()
    if odd is None:
        wrapped = [mda.lib.distances.apply_PBC(f, np.array(cell, np.float32)) for f in frames]
        apart = np.abs(made[0] - wrapped)
        vectors = vectors_from_boxes(boxes(cell))[0]
        apart = np.abs(apart @ np.linalg.inv(vectors))  # on a boundary, either is right
        assert_allclose(np.abs(apart - apart.round()), 0, atol=1e-4)


@ALL
@given(CELLS, SEEDS, st.integers(1, 30))
@example(
    (15, 15, 28, 60, 60, 111), 1, 3
)  # its third vector is no shorter than 28, the others' sum is
def test_gathered_along_the_shortest_tree(cell, seed, n_molecules):
    """The molecule next to the middle stays."""
    rng = np.random.default_rng(seed)
    cells = boxes(cell, 2)
    vectors = triclinic_vectors(cells[0])
    corners = rng.uniform(-2, 3, (2, n_molecules, 1, 3)).astype(np.float32) @ vectors
    frames = (corners + rng.uniform(0, 4, (n_molecules, 3, 3))).reshape(2, -1, 3)
    frames = frames.astype(np.float32)
    atoms = np.concatenate([rng.permutation(3) + 3 * i for i in rng.permutation(n_molecules)])
    starts = np.arange(0, 3 * n_molecules + 1, 3)
    made = both("gather", frames, cells, atoms, starts, np.full(len(atoms), 1 / 3))
    for was, now in zip(frames, made, strict=True):
        shifts = (now - was).reshape(-1, 3, 3)
        assert_allclose(shifts, shifts[:, :1].repeat(3, axis=1), atol=1e-3)
        images = shifts[:, 0] @ np.linalg.inv(vectors)
        assert_allclose(images, images.round(), atol=1e-3)
        old, new = (one.reshape(-1, 3, 3).mean(axis=1) for one in (was, now))
        middle = shortest(vectors.sum(axis=0) / 2 - old, vectors)
        assert_array_equal(
            was.reshape(-1, 3, 3)[middle.argmin()], now.reshape(-1, 3, 3)[middle.argmin()]
        )
        apart = shortest(old[:, None] - old, vectors)
        tree = minimum_spanning_tree(apart).tocoo()
        lengths = np.linalg.norm(new[tree.row] - new[tree.col], axis=1)
        assert_allclose(lengths, tree.data, atol=1e-3)


def test_what_is_not_a_number_is_not_gathered():
    positions = np.array([[[2, 1, 1], [np.nan, 1, 1], [19, 1, 1], [10, 9, 10]]], np.float32)
    every = np.arange(5)
    cells = boxes([20, 20, 20, 90, 90, 90])
    for frames in (positions, positions[:, ::-1]):
        made = both("gather", frames.copy(), cells, every[:4], every, np.ones(4))
        assert_array_equal(made[0, frames[0, :, 0] == 2], [[2, 1, 1]])
        assert_array_equal(made[0, frames[0, :, 0] == 19], [[-1, 1, 1]])


@ALL
@given(CELLS, SEEDS)
def test_centre_as_center_in_box(cell, seed):
    universe, frames = system(cell, seed)
    picked = np.array([5, 2, 17])
    made = both("centre", frames, boxes(cell), picked)
    universe.trajectory.add_transformations(center_in_box(universe.atoms[picked]))
    assert_allclose(made[0], universe.atoms.positions, atol=1e-3)


@ALL
@given(CELLS, SEEDS, st.integers(1, 11))
def test_nojump_in_blocks_as_nojump(cell, seed, size):
    universe, frames = system(cell, seed, n_frames=12)
    cells = boxes(cell, 12)
    cells[:, :3] *= np.linspace(1, 1.02, 12, dtype=np.float32)[:, None]
    # Atoms move by up to 3.5 angstrom. NoJump takes half of a height for a jump.
    heights = 1 / np.linalg.norm(np.linalg.inv(vectors_from_boxes(cells[:1])[0]), axis=0)
    assume(heights.min() > 8)
    universe.load_new(frames.copy(), dimensions=cells)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        universe.trajectory.add_transformations(NoJump())
        wanted = np.array([ts.positions.copy() for ts in universe.trajectory])
    n_atoms = frames.shape[1]
    for module, positions in ((kernels, frames.copy()), (plain, frames.copy())):
        last, shifts = np.zeros((n_atoms, 3)), np.zeros((n_atoms, 3), np.int64)
        for start in range(0, 12, size):
            rows = slice(start, start + size)
            if module is kernels:
                module.follow(positions[rows], cells[rows], last, shifts, has_last=start > 0)
            else:
                vectors = vectors_from_boxes(cells[rows]).astype(float)
                module.follow(positions[rows], vectors, last, shifts, start > 0, True)
        assert_allclose(positions, wanted, atol=1e-3)


@pytest.mark.parametrize("angles", [(90, 90, 90), (60, 70, 80), (70.53, 109.47, 70.53)])
@pytest.mark.parametrize("size", [1, 5, 12])
def test_steps_are_added_up_in_blocks(angles, size):
    """In a cell that changes: each step is the shortest one in the cell of its later frame."""
    rng = np.random.default_rng(4)
    cells = np.float32([[*rng.uniform(28, 32, 3), *angles] for _ in range(12)])
    vectors = vectors_from_boxes(cells).astype(float)
    fractions = np.cumsum(rng.uniform(-0.2, 0.25, (12, 40, 3)), axis=0)
    frames = np.einsum("fac,fcd->fad", fractions % 1, vectors).astype(np.float32)
    expected = plain.follow_steps(frames, vectors)
    positions = frames.copy()
    last, shifts = np.zeros((40, 3)), np.zeros((40, 3), np.int64)
    for start in range(0, 12, size):
        rows = slice(start, start + size)
        before = positions[rows].copy()
        kernels.follow(
            before,
            cells[rows],
            *(last.copy(), shifts.copy()),
            has_last=start > 0,
            apply=False,
            by_steps=True,
        )
        assert_array_equal(before, frames[rows])
        kernels.follow(
            positions[rows], cells[rows], last, shifts, has_last=start > 0, by_steps=True
        )
    assert_allclose(positions, expected, atol=2e-5)
    assert np.abs(shifts).max() > 20 << 20


@pytest.mark.parametrize("by_steps", [False, True])
def test_what_is_not_a_number_hides_no_jump(by_steps):
    """An atom without a place is followed from the last one that it had."""
    positions = np.full((4, 3, 3), 1.0, np.float32)
    positions[:2, 0] = np.nan
    positions[1, 1] = np.nan, 19, 19  # which are not counted twice
    positions[2:] = 19
    positions[2, 2] = np.inf
    cells = boxes([20, 20, 20, 90, 90, 90], 4)
    expected = positions.copy()
    expected[2:, 1:] -= 20
    for apply in (True, False):
        last, shifts = np.full((3, 3), np.nan), np.zeros((3, 3), np.int64)
        made = positions.copy()
        kernels.follow(made, cells, last, shifts, has_last=False, apply=apply, by_steps=by_steps)
        assert_array_equal(made, expected if apply else positions)
        assert_array_equal(shifts, np.full((3, 3), 20 << 20 if by_steps else 1) * [[0], [1], [1]])


def test_what_is_too_far_takes_no_step():
    positions = np.full((4, 1, 3), 1.0, np.float32)
    positions[1], positions[2:] = 1e12, 19
    last, shifts = np.zeros((1, 3)), np.zeros((1, 3), np.int64)
    kernels.follow(
        positions, boxes([20, 20, 20, 90, 90, 90], 4), last, shifts, has_last=False, by_steps=True
    )
    assert_array_equal(shifts, 0)
    assert_array_equal(positions[2:], 19)


@pytest.mark.parametrize("far", [1e12, 1e24, 3e38])
def test_what_is_beyond_all_cells_has_not_jumped(far):
    positions = np.full((3, 2, 3), 1.0, np.float32)
    positions[1, 0] = far
    last, shifts = np.zeros((2, 3)), np.zeros((2, 3), np.int64)
    cells = boxes([51.37, 51.37, 51.37, 60, 60, 90], 3)
    kernels.follow(positions, cells, last, shifts, has_last=False, apply=False)
    assert_array_equal(shifts, 0)


def test_wrong_arguments():
    positions = np.zeros((2, 4, 3), np.float32)
    cells = boxes([20, 20, 20, 90, 90, 90], 2)
    pair = np.array([[1, 4]])
    with pytest.raises(IndexError, match="0 to 3"):
        kernels.make_whole(positions, cells, pair)
    with pytest.raises(ValueError, match="2 frames"):
        kernels.make_whole(positions, cells[:1], pair - 1)
    cells[1] = 0
    with pytest.raises(ValueError, match="frame 1 has no unit cell"):
        kernels.centre(positions, cells, np.array([0]))
    with pytest.raises(ValueError, match="no atoms"):
        kernels.centre(positions, cells[[0, 0]], np.zeros(0, np.int64))
    with pytest.raises(ValueError, match="shape"):
        kernels.follow(
            positions, cells, np.zeros((3, 3)), np.zeros((4, 3), np.int64), has_last=False
        )
    every = np.arange(4)
    with pytest.raises(ValueError, match="weight"):
        kernels.put_in_cell(positions, cells[[0, 0]], every, np.array([0, 2, 2, 4]), np.ones(4))
    frozen = positions.copy()
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        kernels.centre(frozen, cells[[0, 0]], every)


@settings(max_examples=30)
@given(CELLS, SEEDS)
def test_frames_that_the_box_cuts(cell, seed):
    """Native and NumPy's agree; a chain that is whole is not cut, one that is wrapped is."""
    rng = np.random.default_rng(seed)
    whole = rng.uniform(-1.5, 1.5, (3, 40, 3)).cumsum(axis=1).astype(np.float32)
    wrapped = np.stack([mda.lib.distances.apply_PBC(frame, np.float32(cell)) for frame in whole])
    wrapped[2, 5] = np.nan
    boxes = np.tile(np.float32(cell), (3, 1))
    boxes[1] = 0
    pairs = np.flatnonzero(rng.random(39) < 0.9)
    positions = np.concatenate([whole, wrapped])
    boxes = np.concatenate([boxes, boxes])
    native = kernels.cut_frames(positions, boxes, pairs, 4.0)
    cells = vectors_from_boxes(boxes).astype(np.float64)
    expected = np.ones(6, bool)
    plain.cut_frames(positions, cells, pairs, 4.0, expected)
    assert_array_equal(native, expected)
    assert not native[:3].any() and not native[4]
    steps = np.linalg.norm(np.diff(wrapped[0].astype(float), axis=0)[pairs], axis=1)
    assert native[3] == (steps > 4).any()


def test_frames_that_a_box_cuts_which_is_not_periodic_along_an_axis():
    """The second atom lies beside the first over the side of the box along x, or along z."""
    positions = np.zeros((4, 2, 3), np.float32)
    positions[:2, 1, 0], positions[2:, 1, 2] = 19.0, 19.0
    boxes = np.tile(np.float32([20, 20, 0, 90, 90, 90]), (4, 1))
    boxes[[1, 3], :3] = 20
    found = kernels.cut_frames(positions, boxes, np.array([0]), 4.0)
    assert_array_equal(found, [True, True, False, True])


@ALL
@given(SKEWED, SEEDS)
@example((15, 15, 28, 60, 60, 111), 1)
@example((20, 20, 20, 35, 35, 35), 1)
def test_nearest_images_in_skewed_cells(cell, seed):
    """Bonds that are longer than half of the cell's least width, and jumps."""
    rng = np.random.default_rng(seed)
    vectors = triclinic_vectors(np.array(cell, np.float32)).astype(float)
    apart = rng.uniform(-3, 3, (20, 3)) @ vectors
    images, squares = plain.nearest_images(apart, vectors)
    assert_array_equal(images, images.round())
    assert_allclose(np.linalg.norm(apart - images @ vectors, axis=1), np.sqrt(squares))
    expected = shortest(apart, vectors, reach=9)
    assert_allclose(np.sqrt(squares), expected, atol=1e-6)

    pairs = np.stack([np.zeros_like(apart), apart], axis=1).astype(np.float32)
    links = np.array([[1, 0]])
    made = both("make_whole", pairs, boxes(cell, len(pairs)), links)
    assert_allclose(np.linalg.norm(made[:, 1] - made[:, 0], axis=1), expected, atol=1e-3)

    starts = np.arange(3)
    made = both("gather", pairs, boxes(cell, len(pairs)), starts[:2], starts, np.ones(2))
    assert_allclose(np.linalg.norm(made[:, 1] - made[:, 0], axis=1), expected, atol=1e-3)


@ALL
@given(st.one_of(CELLS, SKEWED), SEEDS)
def test_distances_of_pairs(cell, seed):
    """To the nearest image; as they lie in a frame without a cell."""
    rng = np.random.default_rng(seed)
    vectors = vectors_from_boxes(np.float32([cell]))[0].astype(float)
    positions = (rng.uniform(-3, 3, (2, 20, 3)) @ vectors).astype(np.float32)
    first, second = rng.integers(0, 20, (2, 50))
    cells = np.float32([cell, [0] * 6])
    found = kernels.distances(positions, cells, first, second)
    apart = positions[:, second].astype(float) - positions[:, first]
    expected = np.sqrt(plain.nearest_images(apart[0], vectors)[1])
    assert_allclose(found, [expected, np.linalg.norm(apart[1], axis=1)], rtol=1e-7, atol=1e-7)
    positions[0, first[0]] = np.nan
    assert np.isnan(kernels.distances(positions, cells, first, second)[0, 0])


def test_distances_where_a_box_is_not_periodic_along_an_axis():
    positions = np.float32([[[1, 1, 1], [9, 1, 1], [1, 1, 9]]])
    boxes = np.float32([[10, 10, 0, 90, 90, 90]])
    found = kernels.distances(positions, boxes, np.array([0, 0]), np.array([1, 2]))
    assert_array_equal(found, [[2, 8]])


def test_distances_need_atoms_that_there_are():
    positions, boxes = np.zeros((1, 3, 3), np.float32), np.zeros((1, 6), np.float32)
    for first, second in (([0], [3]), ([-1], [0])):
        with pytest.raises(IndexError, match="from 0 to 2"):
            kernels.distances(positions, boxes, np.array(first), np.array(second))
    with pytest.raises(ValueError, match="shape"):
        kernels.distances(positions, boxes, np.array([0, 1]), np.array([1]))


def test_the_longest_distance_of_neighbours():
    positions = np.float32([[[0, 0, 0], [3, 4, 0], [3, 4, 1], [np.nan, 0, 0], [0, 0, 0]]])
    assert_array_equal(kernels.longest_distances(positions, np.array([1, 2, 3])), [1])
    assert_array_equal(kernels.longest_distances(positions, np.arange(4)), [5])
    with pytest.raises(IndexError):
        kernels.longest_distances(positions, np.array([4]))


@ALL
@given(SKEWED, SEEDS)
@example((15, 15, 28, 60, 60, 111), 1)
@example((60, 60, 60, 60, 60, 60), 0)
@example((60, 60, 60, 70.53, 109.47, 70.53), 0)
def test_jumps_in_skewed_cells(cell, seed):
    """Atoms that go less than half of the shortest way to an image of theirs."""
    rng = np.random.default_rng(seed)
    vectors = triclinic_vectors(np.array(cell, np.float32)).astype(float)
    every = (np.stack(np.meshgrid(*[np.arange(-9, 10)] * 3), axis=-1).reshape(-1, 3)) @ vectors
    longest = np.sort(np.linalg.norm(every, axis=1))[1] / 2
    steps = rng.normal(size=(30, 4, 3))
    steps *= longest * rng.uniform(0, 0.99, (30, 4, 1)) / np.linalg.norm(steps, axis=2)[..., None]
    ways = np.cumsum(steps, axis=0)
    wrapped = ways - np.floor(ways @ np.linalg.inv(vectors)) @ vectors
    frames, cells_of = wrapped.astype(np.float32), boxes(cell, len(wrapped))
    for name in ("native", "NumPy"):
        made, last, shifts = frames.copy(), np.zeros((4, 3)), np.zeros((4, 3), np.int64)
        if name == "native":
            kernels.follow(made, cells_of, last, shifts, has_last=False)
        else:
            plain.follow(
                made, vectors_from_boxes(cells_of).astype(float), last, shifts, False, True
            )
        assert_allclose(np.diff(made, axis=0), np.diff(ways, axis=0), atol=1e-3)
