"""RMSF after superposition, pairs, dihedrals in degrees, frames by time: as MDAnalysis has them."""

import MDAnalysis as mda
import numpy as np
import pytest
from MDAnalysis.analysis import align, rms
from MDAnalysis.analysis.atomicdistances import AtomicDistances
from MDAnalysis.lib.distances import self_distance_array
from MDAnalysisTests.datafiles import DCD, GRO, PSF, XTC
from oracles.versions import MDA_2_11

import mdio
from mdio.core.errors import PlanError

pytestmark = pytest.mark.filterwarnings("ignore:DCDReader currently makes")


@pytest.mark.parametrize("n_blocks", [1, 5])
def test_rmsf_after_superposition(n_blocks):
    universe = mda.Universe(PSF, DCD, in_memory=True)
    align.AlignTraj(universe, universe, select="name CA", in_memory=True).run()
    want = rms.RMSF(universe.select_atoms("name CA")).run().results.rmsf
    kernel = mdio.RMSF(select="name CA", superpose=True)
    found = mdio.analyze(DCD, top=PSF, kernel=kernel, blocks_per_worker=n_blocks)
    np.testing.assert_allclose(found.values, want, atol=2e-6)
    assert found.row_labels[:2] == ["4AKE:MET1:CA", "4AKE:ARG2:CA"]
    assert list(found.to_dataframe()["name"][:1]) == ["4AKE:MET1:CA"]


def test_a_reference_goes_with_superposing():
    with pytest.raises(PlanError, match="goes with --superpose"):
        mdio.analyze(DCD, kernel=mdio.RMSF(reference=3))


def test_a_mirror_image_is_no_rotation():
    universe = mda.Universe(PSF, DCD)
    reference = universe.select_atoms("name CA").positions * [1, 1, -1]
    kernel = mdio.RMSF(select="name CA", superpose=True, reference=reference)
    rmsd = mdio.RMSD(select="name CA", reference=reference)
    from mdio.analysis.kernels.geometry import superposed_block

    block = mdio.open(DCD).read(0, 3, atoms=universe.select_atoms("name CA").indices)
    moved = superposed_block(block, reference.astype(float)) - (reference - reference.mean(axis=0))
    want = mdio.analyze(DCD, top=PSF, kernel=rmsd, stop=3).values
    np.testing.assert_allclose(np.sqrt((moved**2).sum(axis=2).mean(axis=1)), want, rtol=1e-5)
    assert mdio.analyze(DCD, top=PSF, kernel=kernel, stop=3).values.shape == (214,)


def test_pairs_one_to_one_and_within():
    universe = mda.Universe(GRO, XTC)
    first, second = "name OW and resid 300:320", "name HW1 and resid 300:320"
    one, other = (universe.select_atoms(select) for select in (first, second))
    want = AtomicDistances(one, other, pbc=True).run().results
    want = want.distances if MDA_2_11 else want
    found = mdio.analyze(XTC, top=GRO, kernel=mdio.Pairs(first, to=second))
    np.testing.assert_allclose(found.values, want, atol=1e-4)
    within = mdio.analyze(XTC, top=GRO, kernel="pairs", select=first).values
    for row, _ in zip(within, universe.trajectory, strict=True):
        np.testing.assert_allclose(
            row, self_distance_array(one.positions, box=universe.dimensions), atol=1e-4
        )


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        ({"select": "name CA", "to": "resid 1"}, "as many of each"),
        ({"select": "name CA and resid 1"}, "select 2 to"),
        ({}, "pairs; select"),
    ],
)
def test_pairs_that_make_no_sense(kwargs, says):
    with pytest.raises(mdio.core.errors.PlanError, match=says):
        mdio.analyze(DCD, top=PSF, kernel=mdio.Pairs(**kwargs))


def test_degrees():
    from MDAnalysis.analysis.dihedrals import Ramachandran

    select = "resid 5:20"
    universe = mda.Universe(PSF, DCD)
    want = Ramachandran(universe.select_atoms(select)).run().results.angles
    found = mdio.analyze(DCD, top=PSF, kernel=mdio.Dihedrals(select=select, degrees=True))
    apart = (found.values.reshape(want.shape) - want + 180) % 360 - 180
    assert np.abs(apart).max() < 1e-3
    assert found.labels[0] == "phi:4AKE:THR5" or found.labels[0].startswith("phi:4AKE:")


@pytest.mark.parametrize("executor", [mdio.Serial(), mdio.Processes(2)])
def test_frames_by_time(executor):
    whole = mdio.analyze(DCD, top=PSF, kernel="rmsd", select="name CA")
    chosen = mdio.analyze(
        DCD,
        top=PSF,
        kernel="rmsd",
        select="name CA",
        begin_ps=10,
        end_ps=50,
        dt_ps=4,
        executor=executor,
    )
    assert list(chosen.frame) == list(range(9, 50, 4))
    np.testing.assert_array_equal(chosen.values, whole.values[chosen.frame])


def test_times_that_lie_unevenly(tmp_path):
    out = tmp_path / "uneven.trr"
    universe = mda.Universe(PSF, DCD)
    with mda.Writer(str(out), universe.atoms.n_atoms) as writer:
        for number in (0, 1, 2, 5, 6, 7, 8, 20):
            universe.trajectory[number].time = float(number)
            writer.write(universe.atoms)
    chosen = mdio.analyze(out, kernel="rmsd", dt_ps=2, executor=mdio.Processes(2))
    assert list(chosen.time) == [0, 2, 6, 8, 20]
    assert list(chosen.frame) == [0, 2, 4, 6, 7]
    whole = mdio.analyze(out, kernel="rmsd")
    np.testing.assert_array_equal(chosen.values, whole.values[chosen.frame])


def test_result_draws_and_speaks():
    pytest.importorskip("matplotlib").use("Agg")
    result = mdio.analyze(DCD, kernel="rmsd")
    assert repr(result).startswith("<AnalysisResult: 98 frames, 98 float64")
    assert len(result.plot().lines) == 1


def test_frames_that_are_not_superposed_are_told(adk, tmp_path):
    def notes(source, superpose=False, **options):
        kernel = mdio.RMSF("name CA", superpose=superpose)
        found = mdio.analyze(source, top=adk["psf"], kernel=kernel, stop=9, **options).notes
        return [note for note in found if "--superpose" in note]

    assert len(notes(adk["dcd"])) == 1
    assert notes(adk["dcd"], superpose=True) == []
    assert notes(adk["dcd"], fit="rot+trans", fit_select="name CA") == []
    fitted = mdio.Selection(fit="rot+trans", fit_select="name CA")
    mdio.convert(adk["dcd"], tmp_path / "a.zarr", top=adk["psf"], stop=9, selection=fitted)
    assert notes(tmp_path / "a.zarr") == []
