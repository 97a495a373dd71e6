"""Distances and dihedrals over boundaries, in cells that are skewed more than simulations' are."""

import MDAnalysis as mda
import numpy as np
import pytest
from MDAnalysis.lib.distances import calc_dihedrals
from MDAnalysis.lib.mdamath import triclinic_vectors
from numpy.testing import assert_allclose

import mdio

CELLS = [
    (15, 15, 28, 60, 60, 111),
    (20, 20, 20, 35, 35, 35),
    (30, 15, 20, 90, 90, 25),
    (30, 30, 30, 60, 60, 90),
    (30, 30, 30, 70.53, 109.47, 70.53),
    (30, 20, 25, 90, 90, 90),
]


@pytest.fixture(params=CELLS, ids=str)
def chains(tmp_path, request):
    """Chains of four atoms, in random images; where they are whole."""
    cell = np.array(request.param, "f4")
    vectors = triclinic_vectors(cell).astype(float)
    rng = np.random.default_rng(5)
    whole = np.cumsum(rng.uniform(-1, 1, (6, 12, 4, 3)), axis=2) + rng.uniform(-9, 9, (6, 12, 1, 3))
    frames = (whole + rng.integers(-2, 3, (6, 12, 4, 3)) @ vectors).reshape(6, -1, 3)
    universe = mda.Universe.empty(
        48, n_residues=12, atom_resindex=np.arange(48) // 4, trajectory=True
    )
    universe.add_TopologyAttr("names", ["C", "N", "CA", "C"] * 12)
    path, top = tmp_path / "a.dcd", tmp_path / "a.gro"
    universe.load_new(frames.astype("f4"), order="fac", dimensions=cell)
    universe.atoms.write(path, frames="all")
    universe.atoms.write(top)
    return path, top, whole, vectors


def test_pairs(chains):
    path, top, whole, _ = chains
    one, other = (f"index {' '.join(map(str, range(first, 48, 2)))}" for first in (0, 1))
    kernel = mdio.Pairs(one, to=other)
    found = mdio.analyze(path, top=top, kernel=kernel).values
    apart = (whole[:, :, 1::2] - whole[:, :, ::2]).reshape(6, -1, 3)
    assert_allclose(found, np.linalg.norm(apart, axis=2), atol=2e-4)


def test_all_pairs(chains):
    path, top, whole, vectors = chains
    found = mdio.analyze(path, top=top, kernel=mdio.Pairs()).values[0]
    around = np.stack(np.meshgrid(*[np.arange(-9, 10)] * 3), axis=-1).reshape(-1, 3) @ vectors
    flat = whole[0].reshape(-1, 3)
    one, other = np.triu_indices(len(flat), 1)
    for at in range(0, len(one), 7):
        expected = np.linalg.norm(flat[one[at]] - flat[other[at]] + around, axis=1).min()
        assert_allclose(found[at], expected, atol=2e-4)


def test_dihedrals(chains):
    from mdio.analysis.kernels.dihedrals import degrees_of_block

    path, _, whole, _ = chains
    with mdio.open(path) as layout:
        block = layout.read(0, 6)
    found = degrees_of_block(block, np.arange(48).reshape(12, 4))
    corners = [whole[:, :, i].reshape(-1, 3).astype("f4") for i in range(4)]
    expected = np.degrees(calc_dihedrals(*corners)).reshape(6, 12)
    apart = (found - expected + 180) % 360 - 180
    assert_allclose(apart, 0, atol=0.2)
