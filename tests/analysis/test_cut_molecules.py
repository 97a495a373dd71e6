"""Molecules that the box cuts: which frames are told of, and what ``pbc`` makes of them."""

import json

import MDAnalysis as mda
import numpy as np
import pytest
from MDAnalysis.analysis import rms
from MDAnalysis.lib.mdamath import triclinic_vectors
from MDAnalysis.transformations import unwrap, wrap
from MDAnalysisTests.datafiles import DCD, PSF

import mdio
from mdio.analysis.kernels.geometry import RadiusOfGyration
from mdio.cli.main import main
from mdio.core.errors import PlanError
from mdio.core.frames import FrameBlock
from mdio.layouts.cut_molecules import CutMoleculeFinder

CA = "name CA"
N_FRAMES = 8
LARGE_BOXES = {
    "orthorhombic": [90, 95, 100, 90, 90, 90],
    "triclinic": [120, 120, 120, 70, 80, 65],
}
BOXES = {"orthorhombic": [62, 70, 66, 90, 90, 90], "triclinic": [75, 75, 75, 70, 80, 65]}


def written(path, box, start):
    """Write a molecule that drifts from a place through a box and is wrapped into it.

    Returns the path, and the frames that are cut.
    """
    universe = mda.Universe(PSF, DCD)
    atoms = universe.atoms
    wraps = wrap(atoms)
    with mda.Writer(str(path), len(atoms)) as writer:
        for ts in universe.trajectory[:N_FRAMES]:
            ts.dimensions = box
            atoms.positions = atoms.positions - atoms.center_of_geometry() + start + 12 * ts.frame
            wraps(ts)
            writer.write(atoms)
    universe = mda.Universe(PSF, str(path))
    frames = []
    for ts in universe.trajectory:
        ends = universe.bonds.to_indices().T
        lengths = np.linalg.norm(ts.positions[ends[0]] - ts.positions[ends[1]], axis=1)
        frames += [ts.frame] * bool((lengths > 10).any())
    assert len(frames) > 0
    return path, frames


@pytest.fixture(scope="module", params=BOXES)
def cut(request, tmp_path_factory):
    """A molecule about as large as its box, and its frames that are cut."""
    return written(tmp_path_factory.mktemp("cut") / "cut.dcd", BOXES[request.param], 0)


@pytest.fixture(scope="module", params=LARGE_BOXES)
def sometimes_cut(request, tmp_path_factory):
    """One that is whole in its first frame, in the middle of a larger box."""
    box = LARGE_BOXES[request.param]
    middle = triclinic_vectors(box).sum(axis=0) / 2
    path, frames = written(tmp_path_factory.mktemp("cut") / "cut.dcd", box, middle)
    assert 0 not in frames
    return path, frames


def named(notes):
    """Return the numbers of frames that a note has, as it counts them."""
    found = [note for note in notes if "the box cuts molecules" in note]
    assert len(found) <= 1
    return int(found[0].split(" in ")[1].split(" of ")[0]) if found else 0


@pytest.mark.parametrize("select", [None, "all"])
def test_a_topology_that_is_given_is_read_though_atoms_are_known_without(cut, select):
    """It tells what is bonded; without it, neighbours in the file are guessed to be."""
    path, frames = cut
    notes = mdio.analyze(path, top=PSF, kernel=mdio.RMSD(select)).notes
    assert named(notes) == len(frames)
    assert not any("top=" in note or "not read" in note for note in notes)


@pytest.mark.parametrize("workers", [None, 2])
@pytest.mark.parametrize("kernel", ["rmsd", "rgyr", "rmsf"])
def test_frames_that_are_cut_are_told_of(cut, kernel, workers):
    path, frames = cut
    result = mdio.analyze(path, top=PSF, kernel=kernel, select="protein", workers=workers)
    assert named(result.notes) == len(frames)
    assert any("--pbc whole" in note for note in result.notes)
    over_all = any("values over all frames are wrong" in note for note in result.notes)
    assert over_all == (kernel == "rmsf")
    some = mdio.analyze(path, top=PSF, kernel=kernel, select="protein", step=3)
    assert named(some.notes) == len([frame for frame in frames if frame % 3 == 0])


def test_frames_that_are_cut_behind_a_file_without_a_box(cut):
    """As behind a structure that is joined as the first frame."""
    path, frames = cut
    options = {"top": PSF, "kernel": "rgyr", "select": "protein", "overlap": "keep-all"}
    result = mdio.analyze([DCD, path], **options)
    assert named(result.notes) == len(frames)
    result = mdio.analyze([DCD, path], **options, fit="translation", fit_select=CA)
    assert any("atoms that are fitted in" in note for note in result.notes)


def test_frames_that_are_cut_behind_a_frame_without_a_box(cut, tmp_path):
    path, frames = cut
    universe = mda.Universe(PSF, str(path))
    with mda.Writer(str(tmp_path / "a.trr"), len(universe.atoms)) as writer:
        for ts in universe.trajectory:
            ts.dimensions = ts.dimensions if ts.frame else None
            writer.write(universe.atoms)
    options = {"top": PSF, "kernel": "rgyr", "select": "protein"}
    result = mdio.analyze(tmp_path / "a.trr", **options)
    assert named(result.notes) == len(set(frames) - {0})
    result = mdio.analyze(tmp_path / "a.trr", **options, fit="translation", fit_select=CA)
    assert any("atoms that are fitted in" in note for note in result.notes)


def of_reference(notes):
    """Return the notes on a reference that the box cuts."""
    return [note for note in notes if "reference" in note and "all" in note]


@pytest.mark.parametrize("workers", [None, 2])
def test_a_reference_that_is_cut_makes_all_values_wrong(sometimes_cut, workers):
    path, frames = sometimes_cut
    for kernel in (
        mdio.RMSD("protein", reference=frames[0]),
        mdio.RMSD("protein", reference=frames[0] - N_FRAMES),
        mdio.RMSF("protein", superpose=True, reference=frames[0]),
    ):
        result = mdio.analyze(path, top=PSF, kernel=kernel, workers=workers)
        (note,) = of_reference(result.notes)
        assert f"frame {frames[0]}" in note and "all values are wrong" in note
    given = {"top": PSF, "start": frames[0], "stop": frames[0] + 1, "workers": workers}
    result = mdio.analyze(path, kernel=mdio.RMSD("protein", reference=0), **given)
    assert not of_reference(result.notes) and named(result.notes) == 1


@pytest.mark.parametrize("has_box", [True, False])
def test_of_a_reference_in_a_file_that_file_is_named(sometimes_cut, tmp_path, has_box):
    path, frames = sometimes_cut
    file = tmp_path / "cut.pdb"
    mdio.convert(path, file, top=PSF, start=frames[0], stop=frames[0] + 1)
    if not has_box:
        lines = file.read_text().splitlines(keepends=True)
        file.write_text("".join(line for line in lines if "CRYST1" not in line))
    with mdio.open(file) as reference:
        assert reference.info.has_box == has_box
    kernel = mdio.RMSD("protein", reference=file)
    (note,) = of_reference(mdio.analyze(path, top=PSF, kernel=kernel, pbc="whole").notes)
    assert f"all values are wrong; make molecules whole in {file}, or" in note


def test_of_all_atoms_the_reference_is_looked_at_by_the_topology(sometimes_cut):
    path, frames = sometimes_cut
    result = mdio.analyze(path, top=PSF, kernel=mdio.RMSD(reference=frames[-1]))
    assert len(of_reference(result.notes)) == 1
    result = mdio.analyze(
        path, top=PSF, kernel=mdio.RMSD("protein", reference=frames[-1]), pbc="whole"
    )
    assert not of_reference(result.notes)


@pytest.mark.parametrize("workers", [None, 2])
def test_a_fit_hides_no_frame_that_is_cut(sometimes_cut, workers, tmp_path):
    path, frames = sometimes_cut
    given = {"top": PSF, "workers": workers}
    result = mdio.analyze(path, kernel=mdio.RMSD("protein"), fit="rot+trans", **given)
    assert named(result.notes) == len(frames)
    assert not any("frames checked" in note for note in result.notes)  # since all were
    for name, pbc, n_cut in (("fitted.zarr", None, len(frames)), ("whole.zarr", "whole", 0)):
        selection = mdio.Selection(pbc=pbc, fit="rot+trans", fit_select=CA)
        mdio.convert(path, tmp_path / name, top=PSF, selection=selection)
        stored = mdio.analyze(tmp_path / name, kernel="rgyr", select="protein", workers=workers)
        assert named(stored.notes) == n_cut
        assert any("convert the source again" in note for note in stored.notes) == (n_cut > 0)
    given |= {"kernel": "rgyr", "select": "protein", "pbc": "whole"}
    wrapped = mdio.Selection(center="protein", pbc="atom")
    del given["top"]
    with pytest.raises(PlanError, match="their boxes were not"):
        mdio.analyze(tmp_path / "fitted.zarr", **given)
    with pytest.raises(PlanError, match="convert the source again"):
        mdio.convert(tmp_path / "fitted.zarr", tmp_path / "w.zarr", selection=wrapped)
    centred = mdio.Selection(center="protein")  # moves frames, whatever their boxes
    plan = mdio.convert(tmp_path / "fitted.zarr", tmp_path / "c.zarr", selection=centred).plan
    assert any("that are centred" in note for note in plan.notes)


def test_rotated_frames_of_boxes_that_are_not_periodic_along_an_axis():
    block = FrameBlock.empty(3, 2)
    block.positions[:] = 0
    block.positions[:2, 1, 1] = [12, 9]
    block.box[:] = [20, 20, 0, 90, 90, 90]
    finder = CutMoleculeFinder(np.array([0]), 4.0, is_rotated=True)
    assert finder.frames(block).tolist() == [0]


def test_rotated_frames_without_a_topology(cut):
    path, _ = cut
    result = mdio.analyze(path, kernel="rmsd", fit="rot+trans")
    assert named(result.notes) == 0
    assert any("without a topology" in note for note in result.notes)


def test_a_fit_on_other_atoms_is_looked_at(sometimes_cut):
    path, frames = sometimes_cut
    given = {"top": PSF, "fit": "rot+trans", "fit_select": "protein"}
    kernel = mdio.RMSF(select="resid 3 and name CA")
    result = mdio.analyze(path, kernel=kernel, fit_reference=frames[0], **given)
    assert len(of_reference(result.notes)) == 1
    (note,) = [note for note in result.notes if "frames checked" in note]
    assert f"in {len(frames)} of the {N_FRAMES} frames" in note


def test_without_a_topology_more_frames_may_be_cut(cut):
    path, _ = cut
    notes = mdio.analyze(path, kernel=RadiusOfGyration(weights=None)).notes
    assert any("--top" in note and "more frames may be cut" in note for note in notes)
    notes = mdio.analyze(path, top=PSF, kernel="rgyr").notes
    assert not any("more frames may be cut" in note for note in notes)


def test_uneven_frames_are_called_by_their_numbers(cut):
    path, frames = cut
    time = mdio.open(path).read(0, N_FRAMES).time
    # Steps of 2.5 frames.
    dt_ps = 2.5 * (time[1] - time[0])
    result = mdio.analyze(path, top=PSF, kernel="rgyr", select="protein", dt_ps=dt_ps)
    which = [int(frame) for frame in result.frame if int(frame) in frames]
    assert named(result.notes) == len(which)


def test_neighbours_along_the_chain_are_enough(cut):
    path, frames = cut
    result = mdio.analyze(path, top=PSF, kernel="rmsd", select=CA)
    assert 0 < named(result.notes) <= len(frames)


def test_of_a_topology_without_bonds_and_of_none(cut, tmp_path):
    path, frames = cut
    universe = mda.Universe(PSF, str(path))
    universe.atoms.write(str(tmp_path / "top.gro"))
    result = mdio.analyze(path, top=tmp_path / "top.gro", kernel="rmsd", select="protein")
    assert named(result.notes) == len(frames)
    assert named(mdio.analyze(path, kernel="rmsd").notes) > 0


def test_whole_molecules_and_single_atoms_are_not_told_of(cut):
    assert named(mdio.analyze(DCD, top=PSF, kernel="rmsd", select=CA).notes) == 0
    path, _ = cut
    scattered = "name CA and resid 1 60 120 180"
    assert named(mdio.analyze(path, top=PSF, kernel="rmsd", select=scattered).notes) == 0
    dihedrals = mdio.analyze(path, top=PSF, kernel="dihedrals", select="resid 1:20")
    assert named(dihedrals.notes) == 0  # it takes the nearest images by itself


@pytest.fixture(scope="module")
def unwrapped(cut):
    """RMSD and radius of gyration of the molecule as MDAnalysis makes it whole."""
    universe = mda.Universe(PSF, str(cut[0]), in_memory=True)
    universe.trajectory.add_transformations(unwrap(universe.atoms))  # done once, in memory
    protein = universe.select_atoms("protein")
    gyration = [protein.radius_of_gyration() for _ in universe.trajectory]
    return rms.RMSD(universe, select=CA).run().results.rmsd[:, 2], gyration


@pytest.mark.parametrize("workers", [None, 2])
def test_whole_is_as_unwrapped_by_mdanalysis(cut, unwrapped, workers):
    path, _ = cut
    given = {"top": PSF, "pbc": "whole", "workers": workers}
    result = mdio.analyze(path, kernel="rmsd", select=CA, **given)
    np.testing.assert_allclose(result.values, unwrapped[0], atol=1e-4)
    assert named(result.notes) == 0
    gyration = mdio.analyze(path, kernel="rgyr", select="protein", **given).values
    np.testing.assert_allclose(gyration, unwrapped[1], atol=1e-4)


@pytest.mark.parametrize("out", ["a.zarr", "a.h5md", "a.segments"])
def test_outputs_need_no_topology_besides_their_own(cut, tmp_path, out, capsys):
    path, frames = cut
    mdio.convert(path, tmp_path / out, top=PSF)
    given = ["--select", "protein", "--json"]
    if out.endswith("segments"):
        given += ["-s", PSF]
    assert main(["analyze", "rgyr", str(tmp_path / out), *given]) == 0
    assert named(json.loads(capsys.readouterr()[0])["notes"]) == len(frames)
    assert main(["analyze", "rgyr", str(tmp_path / out), *given, "--pbc", "whole"]) == 0
    assert named(json.loads(capsys.readouterr()[0])["notes"]) == 0


def test_a_group_is_made_whole_by_the_topology_inside(cut, tmp_path):
    path, _ = cut
    mdio.convert(path, tmp_path / "a.zarr", top=PSF, groups={"protein": "protein"})
    given = {"kernel": "rgyr", "pbc": "whole"}
    grouped = mdio.analyze(tmp_path / "a.zarr", group="protein", **given).values
    direct = mdio.analyze(path, top=PSF, select="protein", **given).values
    np.testing.assert_allclose(grouped, direct, atol=1e-5)


def test_displacements_without_jumps(cut, tmp_path):
    path, _ = cut
    mdio.convert(path, tmp_path / "a.dcd", selection=mdio.Selection(pbc="nojump"))
    converted = mdio.analyze(tmp_path / "a.dcd", top=PSF, kernel="msd", select=CA).values
    for workers in (None, 2):
        given = {"top": PSF, "select": CA, "pbc": "nojump", "workers": workers}
        direct = mdio.analyze(path, kernel="msd", **given).values
        np.testing.assert_allclose(direct, converted, rtol=1e-4, atol=1e-3)


def test_a_group_without_bonds_is_to_be_selected_instead(cut, tmp_path):
    path, _ = cut
    out = tmp_path / "a.zarr"
    mdio.convert(path, out, top=PSF, groups={"ca": CA})
    for top in (None, PSF):
        with pytest.raises(PlanError, match=r"--select in place of --group") as raised:
            mdio.analyze(out, top=top, group="ca", kernel="rmsd", pbc="whole")
        assert "TPR" not in str(raised.value)
    assert mdio.analyze(out, kernel="rmsd", select=CA, pbc="whole").n_frames


def test_what_cannot_be_made_whole_is_refused(cut, tmp_path):
    path, _ = cut
    universe = mda.Universe(PSF, str(path))
    universe.atoms.write(str(tmp_path / "top.gro"))
    with pytest.raises(PlanError, match="needs bonds"):
        mdio.analyze(path, top=tmp_path / "top.gro", kernel="rmsd", select=CA, pbc="whole")
    with pytest.raises(PlanError, match=r"pbc is 'hole' \(did you mean 'whole'"):
        mdio.analyze(path, top=PSF, kernel="rmsd", select=CA, pbc="hole")
    with pytest.raises(PlanError, match="no unit cell"):
        mdio.analyze(DCD, top=PSF, kernel="rmsd", select=CA, pbc="whole")


def test_pieces_that_were_made_whole_one_by_one_may_still_be_cut(sometimes_cut, tmp_path):
    """Without the atoms between, no bonds lead from residue to residue."""
    path, _ = sometimes_cut
    select = "name CA or name CB"
    whole = mdio.analyze(path, top=PSF, kernel="rgyr", select=select, pbc="whole")
    assert named(whole.notes) == 0
    mdio.convert(path, tmp_path / "some.h5md", top=PSF, select=select)
    some = mdio.analyze(tmp_path / "some.h5md", kernel="rgyr", pbc="whole")
    n_wrong = np.count_nonzero(np.abs(some.values - whole.values) > 0.01)
    assert named(some.notes) == n_wrong > 0
    assert any("--select SEL or --group" in note for note in some.notes)
    selection = mdio.Selection(pbc="whole")
    plan = mdio.convert(tmp_path / "some.h5md", tmp_path / "w.zarr", selection=selection).plan
    (note,) = [note for note in plan.notes if "that are kept" in note]
    assert f"in {n_wrong} of the {N_FRAMES} frames" in note
    stored = mdio.analyze(tmp_path / "w.zarr", kernel="rgyr")
    assert named(stored.notes) == n_wrong
    plan = mdio.convert(path, tmp_path / "a.zarr", top=PSF, selection=selection).plan
    assert not any("the box cuts" in note for note in plan.notes)


def test_what_is_centred_is_looked_at(sometimes_cut, tmp_path):
    path, frames = sometimes_cut
    for number, pbc in enumerate((None, "atom", "whole")):
        selection = mdio.Selection(center="protein", pbc=pbc)
        plan = mdio.convert(path, tmp_path / f"{number}.zarr", top=PSF, selection=selection).plan
        found = [note for note in plan.notes if "that are centred" in note]
        assert len(found) == (pbc != "whole")
        assert all(f"in {len(frames)} of the {N_FRAMES} frames" in note for note in found)


def test_a_stored_group_says_how_its_molecules_are_made_whole(sometimes_cut, tmp_path):
    path, _ = sometimes_cut
    out = tmp_path / "a.zarr"
    mdio.convert(path, out, top=PSF, groups={"ca": CA})
    notes = mdio.analyze(out, kernel="rgyr", group="ca").notes
    assert named(notes) > 0
    assert any("with --select SEL in place of --group" in note for note in notes)
    for given in ({}, {"top": PSF}):
        with pytest.raises(PlanError, match="--select"):
            mdio.analyze(out, kernel="rgyr", group="ca", pbc="whole", **given)
    assert named(mdio.analyze(out, kernel="rgyr", select=CA, pbc="whole").notes) == 0


def test_atoms_without_names_of_residues_are_no_molecule(tmp_path):
    """A parser that finds no residues puts all atoms into one."""
    places = np.array([[1, 1, 1], [9, 9, 9], [1, 5, 5], [1.5, 5, 5], [9.9, 5, 5]])
    for number, order in enumerate(([4, 0, 1, 2, 3], [0, 1, 2, 3, 4])):
        rows = [f"{k + 1} 1 1 {x} {y} {z}" for k, (x, y, z) in enumerate(places[order])]
        box = ["ITEM: BOX BOUNDS pp pp pp", "0 10", "0 10", "0 10"]
        head = ["ITEM: TIMESTEP", "0", "ITEM: NUMBER OF ATOMS", "5", *box]
        path = tmp_path / f"{number}.lammpstrj"
        path.write_text("\n".join([*head, "ITEM: ATOMS id type mol x y z", *rows, ""]))
        notes = mdio.analyze(path, kernel=RadiusOfGyration(weights=None)).notes
        assert named(notes) == number  # only what is near enough to be bonded
