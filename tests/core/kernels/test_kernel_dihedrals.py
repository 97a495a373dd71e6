"""Cosines and sines of dihedral angles against MDAnalysis' angles, in every implementation."""

import MDAnalysis as mda
import numpy as np
import pytest
from MDAnalysis.lib.distances import calc_dihedrals
from MDAnalysisTests.datafiles import DCD, PSF
from suites.kernel_sides import SIDES, in_raw_buffer, kernels_of

from mdio.core.kernels import dihedrals


@pytest.fixture(params=SIDES, autouse=True)
def side(request, monkeypatch):
    """Runs every test of this file with every implementation."""
    with kernels_of(request.param, monkeypatch) as chosen:
        yield chosen


def random_quads(n, n_atoms, seed=0):
    rng = np.random.default_rng(seed)
    return np.array([rng.permutation(n_atoms)[:4] for _ in range(n)], np.int64).reshape(-1, 4)


def theirs(positions, quads):
    theta = np.array([calc_dihedrals(*frame[quads.T]) for frame in positions])
    return np.stack([np.cos(theta), np.sin(theta)], axis=-1).reshape(len(positions), -1)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 101])
def test_same_as_mdanalysis(n):
    rng = np.random.default_rng(n)
    positions = rng.normal(30, 8, (6, 40, 3)).astype(np.float32)
    quads = random_quads(n, 40)
    quads[-1, -1] = 39  # the last number of the last frame is the end of the memory
    out = np.full((6, 2 * n), np.nan)
    longest = dihedrals(positions, quads, out)
    np.testing.assert_allclose(out, theirs(positions, quads), rtol=0, atol=1e-13)
    bonds = np.diff(positions[:, quads], axis=2).astype(np.float64)
    expected = np.linalg.norm(bonds, axis=-1).max(axis=(1, 2))
    assert longest == pytest.approx(expected, rel=1e-14)
    one = np.empty((6, 2))
    dihedrals(positions, quads[-1:], one)
    np.testing.assert_array_equal(one, out[:, -2:])  # wherever it stands
    again = np.empty_like(out)
    dihedrals(in_raw_buffer(positions, gap=7, offset=1), quads, again)
    np.testing.assert_array_equal(again, out)


def test_real_proteins_and_flat_angles():
    u = mda.Universe(PSF, DCD)
    positions = u.trajectory.timeseries(order="fac")[::9]
    groups = [
        g
        for kind in ("phi", "omega", "psi")
        for g in getattr(u.residues, f"{kind}_selections")()
        if g is not None
    ]
    quads = np.array([group.indices for group in groups], np.int64)
    out = np.empty((len(positions), 2 * len(quads)))
    longest = dihedrals(positions, quads, out)
    assert 1.3 < longest.min() <= longest.max() < 2.5
    np.testing.assert_allclose(out, theirs(positions, quads), rtol=0, atol=1e-12)


def test_trans_and_cis():
    """A zigzag of 180 degrees and a boat of 0: an arc cosine would magnify their errors."""
    positions = np.zeros((2, 4, 3), np.float32)
    positions[:, :, 0] = [0, 1, 2, 3]
    positions[0, :, 1] = [0, 1, 0, 1]
    positions[1, :, 1] = [1, 0, 0, 1]
    out = np.empty((2, 2))
    dihedrals(positions, np.arange(4)[None], out)
    assert out.tolist() == [[-1, 0], [1, 0]]


@pytest.mark.parametrize("n", [1, 5])
def test_without_an_angle(n):
    """Four atoms on a line or in one place have no angle, nor have atoms that are nowhere."""
    positions = np.zeros((4, 5, 3), np.float32)
    positions[0, :, 0] = np.arange(5)
    positions[2:] = np.random.default_rng(0).normal(size=(2, 5, 3))
    positions[2, 1, 2] = np.nan
    positions[3, 0, 0] = np.inf
    out = np.zeros((4, 2 * n))
    longest = dihedrals(positions, np.tile(np.arange(4), (n, 1)), out)
    assert np.isnan(out).all()
    assert longest[3] == np.inf
    assert (longest[:3] < 10).all()


def test_nothing():
    positions = np.zeros((3, 5, 3), np.float32)
    assert dihedrals(positions, np.empty((0, 4), np.int64), np.empty((3, 0))).tolist() == [0] * 3
    assert dihedrals(positions[:0], np.arange(4)[None], np.empty((0, 2))).shape == (0,)


def test_wrong_arguments():
    positions, quads, out = np.zeros((3, 5, 3), "f4"), np.arange(4)[None], np.zeros((3, 2))
    read_only = out.copy()
    read_only.flags.writeable = False
    for arguments, error in (
        ((positions.astype("f8"), quads, out), TypeError),
        ((positions.astype(">f4"), quads, out), TypeError),
        ((positions[:, :, :2], quads, out), ValueError),
        ((positions, quads.astype("i4"), out), TypeError),
        ((positions, quads[:, :3], out), ValueError),
        ((positions, np.asfortranarray(np.tile(quads, (3, 1))), np.empty((3, 6))), ValueError),
        ((positions, quads + 2, out), IndexError),
        ((positions, quads - 1, out), IndexError),
        ((positions, quads, out[:2]), ValueError),
        ((positions, quads, np.empty((3, 4))[:, ::2]), ValueError),
        ((positions, quads, out.astype("f4")), TypeError),
        ((positions, quads, read_only), ValueError),
    ):
        with pytest.raises(error):
            dihedrals(*arguments)
