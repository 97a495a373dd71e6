"""Kernels against MDAnalysis, on its own trajectories."""

import warnings

import MDAnalysis as mda
import numpy as np
import pytest
from MDAnalysis.analysis import rms
from MDAnalysis.analysis.dihedrals import Dihedral, Ramachandran
from MDAnalysis.lib.distances import distance_array
from MDAnalysisTests.datafiles import DCD, GRO, PDB, PSF, XTC, PDB_closed, PDB_small
from memory_layout import MemoryLayout, save_memory, save_universe

from mdio.analysis.driver import analyze
from mdio.analysis.kernels import dihedrals, images
from mdio.analysis.kernels.dihedrals import Dihedrals
from mdio.analysis.kernels.geometry import RMSD, RMSF, RadiusOfGyration, ReferenceDistances
from mdio.analysis.kernels.kernel import find_kernel
from mdio.core import kernels
from mdio.core.errors import PlanError, SourceError
from mdio.parallel.executors import Processes

CA = "protein and name CA"

pytestmark = pytest.mark.filterwarnings("ignore:DCDReader currently makes:DeprecationWarning")


@pytest.fixture(scope="module")
def adk():
    return mda.Universe(PSF, DCD)


@pytest.fixture(scope="module")
def adk_path(adk, tmp_path_factory):
    return save_universe(tmp_path_factory.mktemp("adk") / "adk.npz", adk)


@pytest.fixture
def layout(adk_path):
    return MemoryLayout(adk_path, chunk_frames=8)


@pytest.fixture(scope="module")
def water():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return mda.Universe(GRO, XTC)


@pytest.fixture(scope="module")
def water_path(water, tmp_path_factory):
    return save_universe(tmp_path_factory.mktemp("water") / "w.npz", water)


class TestRMSD:
    @pytest.mark.parametrize("select", ["all", CA, "resid 10:40 and backbone"])
    @pytest.mark.parametrize("weights", [None, "mass"])
    @pytest.mark.parametrize("frame", [0, 30, -1])
    def test_equals_mdanalysis(self, adk, layout, select, weights, frame):
        got = analyze(layout, top=PSF, kernel=RMSD(select, frame, weights))
        n_frames = len(adk.trajectory)
        want = (
            rms.RMSD(adk.select_atoms(select), ref_frame=frame % n_frames, weights=weights)
            .run()
            .results.rmsd
        )
        np.testing.assert_allclose(got.values, want[:, 2], atol=1e-5)
        np.testing.assert_allclose(got.time, want[:, 1], atol=1e-9)
        assert np.array_equal(got.frame, want[:, 0])

    @pytest.mark.parametrize(("file", "n_notes"), [(PDB_closed, 0), (PDB, 1)])
    def test_to_a_structure_in_a_file(self, adk, layout, file, n_notes):
        """AdK in water is of E. coli too, with residues that its force field names otherwise."""
        got = analyze(layout, top=PSF, kernel=RMSD(CA, file))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            crystal = mda.Universe(file).select_atoms(CA)
        want = rms.RMSD(adk.select_atoms(CA), crystal).run().results.rmsd
        np.testing.assert_allclose(got.values, want[:, 2], atol=1e-5)
        assert len([note for note in got.notes if "other names in" in note]) == n_notes

    def test_a_structure_of_other_atoms_is_refused(self, layout, tmp_path):
        file = tmp_path / "b.pdb"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mda.Universe(PSF, DCD).select_atoms(CA)[::-1].write(file)
        with pytest.raises(PlanError, match=r"b\.pdb: the reference has 214 atoms, but 3,341"):
            analyze(layout, top=PSF, kernel=RMSD("protein", file))
        few = tmp_path / "few.pdb"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mda.Universe(PSF, DCD).select_atoms(f"{CA} and not resid 40").write(few)
        with pytest.raises(
            PlanError, match=r"has 213 atoms, .* differ from LYS:CA of residue 40 of"
        ):
            analyze(layout, top=PSF, kernel=RMSD(CA, few))
        with pytest.raises(PlanError, match=r"b\.pdb: has the 214 atoms .* in another order"):
            analyze(layout, top=PSF, kernel=RMSD(CA, file))
        with pytest.raises(PlanError, match=r"cannot be looked up .* give select= as text"):
            analyze(layout, top=PSF, kernel=RMSD(np.arange(62), file))

    def test_without_superposition(self, adk, layout):
        got = analyze(layout, top=PSF, kernel=RMSD(CA, superpose=False)).values
        ca = adk.select_atoms(CA)
        adk.trajectory[0]
        first = ca.positions.astype(float)
        want = [rms.rmsd(ca.positions, first) for _ in adk.trajectory]
        np.testing.assert_allclose(got, want, atol=1e-5)

    def test_weights_of_the_callers(self, adk, layout):
        weights = np.random.default_rng(0).random(214)
        got = analyze(layout, top=PSF, kernel=RMSD(CA, weights=weights)).values
        want = rms.RMSD(adk.select_atoms(CA), weights=weights).run().results.rmsd[:, 2]
        np.testing.assert_allclose(got, want, atol=1e-5)

    def test_reference_coordinates(self, adk, layout):
        adk.trajectory[50]
        reference = adk.select_atoms(CA).positions
        got = analyze(layout, top=PSF, kernel=RMSD(CA, reference=reference)).values
        again = analyze(layout, top=PSF, kernel=RMSD(CA, reference=50)).values
        assert np.array_equal(got, again)
        assert got[50] == pytest.approx(0, abs=1e-3)

    def test_repeat_changes_the_work_only(self, layout, monkeypatch):
        calls = []
        superposed = kernels.rmsd

        def counted(*words, **named):
            calls.append(1)
            return superposed(*words, **named)

        monkeypatch.setattr(kernels, "rmsd", counted)
        once = analyze(layout, top=PSF, kernel=RMSD(CA))
        n_once = len(calls)
        often = analyze(layout, top=PSF, kernel=RMSD(CA, repeat=50))
        assert np.array_equal(once.values, often.values)
        assert n_once and len(calls) - n_once == 50 * n_once

    def test_only_selected_atoms_are_read(self, layout):
        analyze(layout, top=PSF, kernel=RMSD(CA))
        sizes = {n for *_, n in layout.reads[1:]}
        assert sizes == {214, 0}  # of no atoms: whether the last frame has a box

    def test_universe_as_topology(self, adk, layout):
        a = analyze(layout, top=adk, kernel=RMSD(CA)).values
        assert np.array_equal(a, analyze(layout, top=PSF, kernel=RMSD(CA)).values)


class TestDihedrals:
    @pytest.mark.parametrize("select", ["protein", "resid 20:60"])
    def test_equals_ramachandran(self, adk, layout, select):
        got = analyze(layout, top=PSF, kernel=Dihedrals(select))
        residues = adk.select_atoms(select).residues
        keep = [
            a is not None and b is not None
            for a, b in zip(residues.phi_selections(), residues.psi_selections(), strict=True)
        ]
        angles = np.radians(Ramachandran(residues[keep]).run().results.angles)
        want = np.stack([np.cos(angles), np.sin(angles)], axis=-1).reshape(len(angles), -1)
        assert got.values.shape == (98, 4 * sum(keep))
        np.testing.assert_allclose(got.values, want, atol=1e-5)
        if select == "protein":
            assert sum(keep) == 212
        assert len(got.labels) == got.values.shape[1]
        assert got.labels[:2] == [
            f"cos(phi:4AKE:{residues[keep][0].resname}{residues[keep][0].resid})",
            f"sin(phi:4AKE:{residues[keep][0].resname}{residues[keep][0].resid})",
        ]

    def test_chi1(self, adk, layout):
        got = analyze(layout, top=PSF, kernel=Dihedrals("resid 5:30", ("chi1",))).values
        groups = [
            g for g in adk.select_atoms("resid 5:30").residues.chi1_selections() if g is not None
        ]
        angles = np.radians(Dihedral(groups).run().results.angles)
        assert got.shape == (98, 2 * len(groups))
        np.testing.assert_allclose(got[:, 0::2], np.cos(angles), atol=1e-5)
        np.testing.assert_allclose(got[:, 1::2], np.sin(angles), atol=1e-5)

    def test_all_three(self, layout):
        three = analyze(layout, top=PSF, kernel=Dihedrals(angles="phi,psi,chi1"))
        two = analyze(layout, top=PSF, kernel=Dihedrals())
        columns = [i for i, label in enumerate(three.labels) if "chi1" not in label]
        assert np.array_equal(three.values[:, columns], two.values)
        assert [three.labels[i] for i in columns] == list(two.labels)

    @pytest.mark.parametrize("cut", [False, True], ids=["whole", "cut by the box"])
    @pytest.mark.parametrize("boxes", ["own", "equal", "some", "ortho"])
    def test_boxes(self, water, water_path, tmp_path, cut, boxes):
        arrays = dict(np.load(water_path))
        n = water.select_atoms("protein").n_atoms
        positions, box = arrays["positions"][:, :n].copy(), arrays["box"].copy()
        if boxes == "ortho":
            box[:, 3:] = 90
        if boxes == "equal":
            box[:] = box[0]
        elif boxes == "some":
            box[3:6] = box[3]
            box[7] = 0
        if cut:  # into the cell, atom by atom
            for frame in range(len(positions)):
                if box[frame].any():
                    shifted = positions[frame] + np.float32([20, 31, 17])
                    positions[frame] = mda.lib.distances.apply_PBC(shifted, box[frame])
        path = save_memory(tmp_path / "p.npz", positions, box)
        u = mda.Merge(water.select_atoms("protein"))
        got = analyze(MemoryLayout(path), top=u, kernel=Dihedrals()).values
        residues = [
            (a.indices, b.indices)
            for a, b in zip(u.residues.phi_selections(), u.residues.psi_selections(), strict=True)
            if a is not None and b is not None
        ]
        quads = np.array(residues).reshape(-1, 4)
        for frame in range(len(positions)):
            corners = positions[frame][quads.T]
            cell = box[frame] if box[frame].any() else None
            theta = mda.lib.distances.calc_dihedrals(*corners, box=cell)
            np.testing.assert_allclose(got[frame, 0::2], np.cos(theta), atol=1e-6)
            np.testing.assert_allclose(got[frame, 1::2], np.sin(theta), atol=1e-6)

    @pytest.mark.parametrize(("shift", "n_calls"), [(0, 0), (60, 10)])
    def test_images_are_looked_for_where_bonds_reach_through_the_box(
        self, water_path, monkeypatch, shift, n_calls
    ):
        calls = []
        real = mda.lib.distances.calc_dihedrals
        monkeypatch.setattr(
            mda.lib.distances, "calc_dihedrals", lambda *a, **k: (calls.append(1), real(*a, **k))
        )
        block = MemoryLayout(water_path).read(0, 10, atoms=np.arange(100))
        block.positions[:, 6] += shift
        dihedrals.dihedrals_of_block(block, np.array([[4, 5, 6, 7], [0, 4, 5, 6]]))
        assert len(calls) == n_calls

    def test_boxes_that_are_periodic_along_some_axes(self, water_path):
        block = MemoryLayout(water_path).read(0, 4, atoms=np.arange(100))
        block.box[:] = [50, 50, 0, 90, 90, 90]
        quads = np.array([[4, 5, 6, 7], [0, 4, 5, 6]])
        whole = dihedrals.dihedrals_of_block(block, quads).copy()
        block.positions[1, 6, 0] += 50
        np.testing.assert_allclose(dihedrals.dihedrals_of_block(block, quads), whole, atol=1e-5)

    @pytest.mark.parametrize("degrees", [False, True])
    def test_a_frame_gives_the_same_in_every_block(self, water_path, degrees):
        """Though of some frames, and so of some blocks, images are looked for."""
        block = MemoryLayout(water_path).read(0, 10, atoms=np.arange(100))
        block.positions[::3, 6] += 60
        quads = np.random.default_rng(3).integers(0, 97, 50)[:, None] + np.arange(4)
        of_block = dihedrals.degrees_of_block if degrees else dihedrals.dihedrals_of_block
        together = of_block(block, quads).copy()
        alone = [of_block(block.frames(slice(k, k + 1)), quads)[0] for k in range(10)]
        np.testing.assert_array_equal(together, alone)

    def test_errors(self, layout):
        for kernel, says in (
            (Dihedrals("resname XXX"), "no atom"),
            (Dihedrals("resid 1"), "no residue"),
            (Dihedrals("wrong ("), "cannot select"),
            (Dihedrals("protien and name CA"), "'protien'.*did you mean 'protein'"),
            (Dihedrals(angles=("omega",)), "phi, psi, chi1"),
            (Dihedrals(angles=()), "phi, psi, chi1"),
        ):
            with pytest.raises(PlanError, match=says):
                analyze(layout, top=PSF, kernel=kernel)
        with pytest.raises(PlanError, match="topology"):
            analyze(layout, kernel=Dihedrals())


@pytest.mark.parametrize("weights", [None, "mass"])
def test_the_radius_of_gyration_of_a_frame_is_the_same_in_every_block(layout, weights):
    kernel = RadiusOfGyration(weights=weights)
    values = [
        analyze(layout, top=PSF, kernel=kernel, blocks_per_worker=n).values for n in (1, 7, 98)
    ]
    np.testing.assert_array_equal(values[1], values[0])
    np.testing.assert_array_equal(values[2], values[0])


def test_distances(adk, layout, monkeypatch):
    monkeypatch.setattr(images, "PAIRS_AT_ONCE", 3 * 214 * 214)
    got = analyze(layout, top=PSF, kernel=ReferenceDistances(CA, reference=3)).values
    ca = adk.select_atoms(CA)
    adk.trajectory[3]
    reference = ca.positions.copy()
    want = [distance_array(ca.positions, reference).mean() for _ in adk.trajectory]
    np.testing.assert_allclose(got, want, rtol=1e-9)


@pytest.mark.parametrize("weights", ["mass", None])
def test_radius_of_gyration(adk, layout, weights):
    got = analyze(layout, top=PSF, kernel=RadiusOfGyration("protein", weights)).values
    atoms = adk.select_atoms("protein")
    want = []
    for _ in adk.trajectory:
        if weights == "mass":
            want.append(atoms.radius_of_gyration())
        else:
            x = atoms.positions.astype(float)
            want.append(np.sqrt(np.square(x - x.mean(axis=0)).sum(axis=1).mean()))
    np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.parametrize("blocks", [1, 2, 9])
def test_rmsf(adk, layout, blocks):
    got = analyze(layout, top=PSF, kernel=RMSF(CA), executor=Processes(2), blocks_per_worker=blocks)
    want = rms.RMSF(adk.select_atoms(CA)).run().results.rmsf
    np.testing.assert_allclose(got.values, want, atol=1e-5)
    assert got.n_frames == 98


def centres(block):
    return block.positions.mean(axis=1)


def test_user_function(adk, layout):
    got = analyze(layout, top=PSF, kernel=centres, select=CA).values
    want = [adk.select_atoms(CA).positions.mean(axis=0) for _ in adk.trajectory]
    np.testing.assert_allclose(got, want, atol=1e-4)


def test_function_by_address(layout, tmp_path, monkeypatch):
    (tmp_path / "my_kernels_7.py").write_text(
        "constant = 3\ndef heights(block):\n    return block.positions[:, :, 2].max(axis=1)\n"
    )
    (tmp_path / "broken_kernels_7.py").write_text("import no_such_module_7\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    kernel = find_kernel("my_kernels_7:heights")()
    assert analyze(layout, kernel=kernel, executor=Processes(2)).values.shape == (98,)
    for address, says in (
        ("my_kernels_7:depths", "no function 'depths'"),
        ("my_kernels_7:constant", "is not a function"),
        ("no_kernels_7:heights", "cannot import"),
        ("broken_kernels_7:heights", "no_such_module_7"),
    ):
        with pytest.raises(PlanError, match=says):
            find_kernel(address)


class TestTopologies:
    def test_other_numbers_of_atoms(self, layout):
        with pytest.raises(SourceError, match=r"adk.npz has 3341 atoms.*has 47681") as e:
            analyze(layout, top=GRO, kernel=RMSD(CA))
        assert "\n" not in str(e.value)
        with pytest.raises(SourceError, match=r"adk.npz has 3341 atoms.*47681"):
            analyze(layout, top=mda.Universe(GRO), kernel=RMSD(CA))

    def test_not_a_topology(self, layout, tmp_path):
        (tmp_path / "x.pdb").write_bytes(b"\x00\xff" * 100)
        for path in (tmp_path / "x.pdb", tmp_path / "missing.psf", tmp_path / "x.unknown"):
            with pytest.raises(SourceError, match=path.name):
                analyze(layout, top=path, kernel=RMSD(CA))

    @pytest.mark.parametrize("select", ["name XYZ", "nonsense (", "prop"])
    def test_selections(self, layout, select):
        with pytest.raises(PlanError, match="select"):
            analyze(layout, top=PSF, kernel=RMSD(select))

    def test_topology_is_read_only_if_needed(self, layout):
        assert analyze(layout, top="no/such/file.psf", kernel=RMSD("all")).n_frames == 98
        with pytest.raises(SourceError, match=r"no/such/file\.psf"):
            analyze(layout, top="no/such/file.psf", kernel=RMSD())

    def test_masses_from_elements(self, adk, layout):
        """A PDB has no masses; MDAnalysis tells them from its elements."""
        got = analyze(layout, top=PDB_small, kernel=RMSD(CA, weights="mass")).values
        want = analyze(layout, top=PSF, kernel=RMSD(CA)).values
        np.testing.assert_allclose(got, want, atol=1e-6)
