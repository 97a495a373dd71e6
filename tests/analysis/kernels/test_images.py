"""Distances and dihedrals over boundaries, in cells that are skewed more than simulations' are."""

import MDAnalysis as mda
import numpy as np
import pytest
from MDAnalysis.lib.distances import calc_dihedrals
from MDAnalysis.lib.mdamath import triclinic_vectors
from MDAnalysis.transformations import wrap
from MDAnalysisTests.datafiles import DCD, PSF
from numpy.testing import assert_allclose

import mdio
from mdio.core.errors import PlanError

CELLS = [
    (15, 15, 28, 60, 60, 111),
    (20, 20, 20, 35, 35, 35),
    (30, 15, 20, 90, 90, 25),
    (30, 30, 30, 60, 60, 90),
    (30, 30, 30, 70.53, 109.47, 70.53),
    (30, 30, 10, 60, 60, 90),
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
    universe.add_TopologyAttr("resids", list(range(1, 13)))
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


def test_direct_distances(chains):
    """Between atoms as they lie; in whole molecules, those within them."""
    path, top, whole, _ = chains
    one, other = (f"index {' '.join(map(str, range(first, 48, 2)))}" for first in (0, 1))
    kernel = mdio.Pairs(one, to=other, periodic=False)
    universe = mda.Universe(top, path)
    result = mdio.analyze(path, top=top, kernel=kernel)
    for ts, found in zip(universe.trajectory, result.values, strict=True):
        apart = ts.positions[1::2] - ts.positions[::2]
        assert_allclose(found, np.linalg.norm(apart, axis=1), rtol=1e-5)
    ends = mdio.Pairs("index 0", to="index 3", periodic=False)
    result = mdio.analyze(
        path, top=top, kernel=mdio.Pairs("index 0", to="index 40", periodic=False)
    )
    assert any("no neighbours" in note for note in result.notes)
    universe.add_bonds([(4 * i + j, 4 * i + j + 1) for i in range(12) for j in range(3)])
    result = mdio.analyze(path, top=universe, kernel=ends, pbc="whole")
    expected = np.linalg.norm(whole[:, 0, 3] - whole[:, 0, 0], axis=1)
    assert_allclose(result.values[:, 0], expected, atol=2e-4)
    assert not any("image" in note or "no neighbours" in note for note in result.notes)
    result = mdio.analyze(path, top=universe, kernel=mdio.Pairs("index 0 3"), pbc="whole")
    assert any("periodic=False" in note for note in result.notes)
    with pytest.raises(PlanError, match="periodic is 'no'"):
        mdio.analyze(path, top=top, kernel=mdio.Pairs(one, to=other, periodic="no"))


@pytest.fixture(scope="module")
def solvated(tmp_path_factory):
    """A protein that drifts over a side of its box, and all that after a fit and as it was."""
    folder = tmp_path_factory.mktemp("solvated")
    universe = mda.Universe(PSF, DCD)
    atoms = universe.atoms
    wraps = wrap(atoms)
    with mda.Writer(str(folder / "md.dcd"), len(atoms)) as writer:
        for ts in universe.trajectory[:6]:
            ts.dimensions = [90, 90, 90, 90, 90, 90]
            atoms.positions = atoms.positions - atoms.center_of_geometry() + 45 + 12 * ts.frame
            wraps(ts)
            writer.write(atoms)
    selection = mdio.Selection(fit="rot+trans", fit_select="name CA")
    mdio.convert(folder / "md.dcd", folder / "fitted.zarr", top=PSF, selection=selection)
    return folder


KERNELS = [mdio.Dihedrals("protein", degrees=True), mdio.Pairs("name CA and resid 1:20")]


@pytest.mark.parametrize("kernel", KERNELS)
def test_what_takes_images_refuses_a_rotation(solvated, kernel):
    with pytest.raises(PlanError, match="leave out --fit"):
        mdio.analyze(solvated / "md.dcd", top=PSF, kernel=kernel, fit="rot+trans")
    moved = mdio.analyze(
        solvated / "md.dcd", top=PSF, kernel=kernel, fit="translation", fit_select="protein"
    )
    direct = mdio.analyze(solvated / "md.dcd", top=PSF, kernel=kernel)
    apart = (moved.values - direct.values + 180) % 360 - 180
    assert_allclose(apart, 0, atol=0.01)


@pytest.mark.parametrize(("kernel", "cut"), [(KERNELS[0], [2, 3, 4, 5]), (KERNELS[1], [3, 4])])
def test_of_rotated_frames_no_images_are_taken(solvated, kernel, cut):
    """Frames that are cut are named, and in all others values are as they were before."""
    before = mdio.analyze(solvated / "md.dcd", top=PSF, kernel=kernel).values
    fitted = mdio.analyze(solvated / "fitted.zarr", kernel=kernel)
    assert any("periodic images are ignored" in note for note in fitted.notes)
    apart = np.abs((fitted.values - before + 180) % 360 - 180).max(axis=1)
    (note,) = [note for note in fitted.notes if "the box cuts molecules" in note]
    assert f"in {len(cut)} of 6 frames" in note
    assert np.delete(apart, cut).max() < 0.05 < apart[cut].max()


def test_chi1_of_the_ends_stays_beside_phi_and_psi():
    from MDAnalysisTests.datafiles import DCD, PSF

    def named(angles, name):
        kernel = mdio.Dihedrals("protein", angles=angles, degrees=True)
        result = mdio.analyze(DCD, top=PSF, kernel=kernel, stop=1)
        return [label for label in result.labels if label.startswith(name)]

    assert named(["phi", "psi", "chi1"], "chi1") == named(["chi1"], "chi1")
    assert len(named(["phi", "psi", "chi1"], "phi")) == len(named(["phi", "psi", "chi1"], "psi"))


@pytest.mark.parametrize("workers", [None, 2])
def test_frames_without_a_cell_among_others_are_told_of(tmp_path, workers):
    universe = mda.Universe.empty(2, trajectory=True)
    with mda.Writer(str(tmp_path / "a.trr"), 2) as writer:
        for frame in range(4):
            universe.atoms.positions = [[1, 0, 0], [19, 0, 0]]
            universe.dimensions = None if frame == 2 else [20, 20, 20, 90, 90, 90]
            writer.write(universe.atoms)
    with mda.Writer(str(tmp_path / "none.trr"), 2) as writer:
        universe.dimensions = None
        writer.write(universe.atoms)
    kernel = mdio.Pairs([0], [1])
    result = mdio.analyze(tmp_path / "a.trr", kernel=kernel, workers=workers)
    np.testing.assert_allclose(result.values.ravel(), [2, 2, 18, 2], rtol=1e-6)
    (note,) = [note for note in result.notes if "no unit cell" in note]
    assert note.startswith("1 of 4 frames (2) have no unit cell")
    result = mdio.analyze(tmp_path / "none.trr", kernel=kernel, workers=workers)
    assert not any("no unit cell" in note for note in result.notes)
