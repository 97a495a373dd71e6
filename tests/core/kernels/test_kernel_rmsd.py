"""RMSD against MDAnalysis, and against the singular values where MDAnalysis is not defined."""

import warnings

import MDAnalysis as mda
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from MDAnalysis.analysis import rms
from MDAnalysisTests.datafiles import DCD, PSF
from suites.kernel_sides import SIDES, in_raw_buffer, kernels_of, random_positions

from mdio.core import kernels


@pytest.fixture(params=SIDES, autouse=True)
def side(request, monkeypatch):
    """Runs every test of this file with every implementation."""
    with kernels_of(request.param, monkeypatch) as chosen:
        yield chosen


def by_singular_values(positions, reference, weights=None):
    """Kabsch's formula in float64 for each frame."""
    w = np.ones(len(reference)) if weights is None else np.asarray(weights, float)
    y = reference - np.average(reference, axis=0, weights=w)
    values = []
    for frame in positions.astype(np.float64):
        x = frame - np.average(frame, axis=0, weights=w)
        inner = (x * w[:, None]).T @ y
        singular = np.linalg.svd(inner, compute_uv=False)
        singular[2] *= np.sign(np.linalg.det(inner)) or 1
        square = (w @ (x**2 + y**2)).sum() - 2 * singular.sum()
        values.append(np.sqrt(max(square, 0) / w.sum()))
    return np.array(values)


def size_of(positions):
    centred = positions.astype(np.float64) - positions.mean(axis=1, keepdims=True)
    return np.abs(centred).max()


def rotations(n, seed=0):
    matrices = np.linalg.qr(np.random.default_rng(seed).normal(size=(n, 3, 3)))[0]
    return matrices * np.linalg.det(matrices)[:, None, None]


def shaken(n_frames, n_atoms, noise=1.0, seed=0):
    """Rotated, moved and shaken copies of one structure, and that structure."""
    rng = np.random.default_rng(seed)
    reference = rng.normal(0, 10, (n_atoms, 3)) * [1, 0.6, 0.4] + [5, -3, 40]
    copies = reference @ rotations(n_frames, seed) + rng.normal(0, 20, (n_frames, 1, 3))
    copies += rng.normal(0, noise, copies.shape)
    return copies.astype(np.float32), reference


@pytest.mark.parametrize("n_atoms", [4, 5, 6, 7, 8, 9, 214, 1001])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("superpose", [False, True])
@pytest.mark.parametrize("noise", [0.1, 1, 30])
def test_same_as_mdanalysis(n_atoms, weighted, superpose, noise):
    positions, reference = shaken(10, n_atoms, noise)
    weights = np.random.default_rng(1).uniform(0, 16, n_atoms) if weighted else None
    theirs = [
        rms.rmsd(frame, reference, weights, center=superpose, superposition=superpose)
        for frame in positions
    ]
    ours = kernels.rmsd(positions, reference, weights, superpose)
    assert ours.dtype == np.float64
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)
    out = np.empty(10)
    raw = in_raw_buffer(positions, gap=7, offset=1)
    assert kernels.rmsd(raw, reference, weights, superpose, out) is out
    np.testing.assert_array_equal(out, ours)


@pytest.mark.parametrize("weights", [None, "mass"])
def test_adk_as_the_rmsd_class_has_it(weights):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        universe = mda.Universe(PSF, DCD)
        atoms = universe.select_atoms("name CA")
        theirs = rms.RMSD(atoms, weights=weights).run().results.rmsd[:, 2]
        positions = universe.trajectory.timeseries(atoms, order="fac")
    reference = positions[0].astype(np.float64)
    ours = kernels.rmsd(positions, reference, None if weights is None else atoms.masses)
    assert theirs.max() > 6
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("n_atoms", [1, 2, 3, 4, 50])
@pytest.mark.parametrize("weighted", [False, True])
def test_copies_have_no_deviation(n_atoms, weighted):
    positions, reference = shaken(20, n_atoms, noise=0)
    weights = np.random.default_rng(1).uniform(0.1, 16, n_atoms) if weighted else None
    assert kernels.rmsd(positions, reference, weights).max() < 1e-5  # float32 rounding alone
    same = np.repeat(reference.astype(np.float32)[None], 3, axis=0)
    exact = kernels.rmsd(same, same[0].astype(np.float64), weights)
    assert exact.max() < 2e-6
    assert not kernels.rmsd(same, same[0].astype(np.float64), weights, superpose=False).any()


def shapes():
    rng = np.random.default_rng(3)
    cloud = rng.normal(0, 10, (12, 3))
    line = np.outer(np.arange(12.0), [1, 2, 3])
    flat = cloud * [1, 1, 0]
    cube = np.array(list(np.ndindex(2, 2, 2)), float)
    return {
        "mirror": (cloud * [1, 1, -1], cloud),
        "mirrored cube": (cube @ np.diag([1, 1, -1]) * 5 + cube[::-1] * 0.1, cube * 5),
        "inverted": (-cloud, cloud),
        "line on line": (line, line @ rotations(1)[0]),
        "line reversed": (line[::-1], line),
        "line on cloud": (line, cloud),
        "cloud on line": (cloud, line),
        "flat": (flat, flat @ rotations(1)[0]),
        "flat on cloud": (flat, cloud),
        "one point": (np.zeros((12, 3)), cloud),
        "one point each": (np.ones((12, 3)), np.zeros((12, 3))),
        "cloud on one point": (cloud, np.zeros((12, 3))),
        "unrelated": (rng.normal(0, 10, (12, 3)), cloud),
        "cube on cube": (cube[rng.permutation(8)], cube),
        "two atoms": (cloud[:2], cloud[2:4]),
        "three atoms": (cloud[:3], cloud[3:6]),
        "three on a line": (line[:3], cloud[:3]),
    }


@pytest.mark.parametrize("name", shapes())
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("scale", [1e-15, 1, 1e15])
def test_degenerate_shapes(name, weighted, scale):
    mobile, reference = (scale * part for part in shapes()[name])
    weights = np.random.default_rng(1).uniform(0, 2, len(reference)) if weighted else None
    positions = mobile.astype(np.float32)[None]
    expected = by_singular_values(positions, reference, weights)
    ours = kernels.rmsd(positions, reference, weights)
    np.testing.assert_allclose(ours, expected, rtol=1e-9, atol=3e-7 * scale * 10)


@given(
    arrays(np.float32, (2, 5, 3), elements=st.integers(-4, 4).map(float)),
    arrays(np.float64, (5, 3), elements=st.integers(-4, 4).map(float)),
)
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_lattice_points(positions, reference):
    """Small integers meet every symmetry there is."""
    expected = by_singular_values(positions, reference)
    np.testing.assert_allclose(kernels.rmsd(positions, reference), expected, rtol=0, atol=1e-6)


def test_far_from_the_origin():
    positions, reference = shaken(10, 300)
    positions = positions + np.float32(30_000)
    expected = by_singular_values(positions, reference)
    np.testing.assert_allclose(kernels.rmsd(positions, reference), expected, rtol=0, atol=1e-7)


def test_large_system():
    positions, reference = shaken(2, 30_001)
    expected = by_singular_values(positions, reference)
    np.testing.assert_allclose(kernels.rmsd(positions, reference), expected, rtol=1e-10)


@pytest.mark.parametrize("superpose", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_frames_that_are_not_finite(superpose, weighted, bad):
    positions, reference = shaken(6, 9)
    weights = np.ones(9) if weighted else None
    expected = kernels.rmsd(positions, reference, weights, superpose)
    positions[1, 0, 0] = positions[3, 8, 2] = positions[4, 4] = bad
    ours = kernels.rmsd(positions, reference, weights, superpose)
    assert not np.isfinite(ours[[1, 3, 4]]).any()
    np.testing.assert_array_equal(ours[[0, 2, 5]], expected[[0, 2, 5]])


def test_weights_of_zero_leave_atoms_out():
    positions, reference = shaken(5, 20)
    weights = np.ones(20)
    weights[[0, 7, 19]] = 0
    kept = np.flatnonzero(weights)
    ours = kernels.rmsd(positions, reference, weights)
    some = kernels.rmsd(positions[:, kept].copy(), reference[kept])
    np.testing.assert_allclose(ours, some, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("reference", "weights"),
    [
        (np.zeros((4, 3)), None),
        (np.full((5, 3), np.nan), None),
        (np.zeros((5, 3)), np.zeros(5)),
        (np.zeros((5, 3)), np.array([1, 1, 1, 1, -1])),
        (np.zeros((5, 3)), np.array([1, 1, 1, 1, np.nan])),
        (np.zeros((5, 3)), np.ones(4)),
    ],
)
def test_refused(reference, weights):
    with pytest.raises(ValueError, match=r"reference|weights"):
        kernels.rmsd(random_positions(2, 5), reference, weights)


def test_no_atoms_and_no_frames():
    with pytest.raises(ValueError, match="0 atoms"):
        kernels.rmsd(random_positions(2, 0), np.zeros((0, 3)))
    assert kernels.rmsd(random_positions(0, 5), np.zeros((5, 3))).shape == (0,)
    with pytest.raises(ValueError, match="out"):
        kernels.rmsd(random_positions(2, 5), np.zeros((5, 3)), out=np.empty(3))
