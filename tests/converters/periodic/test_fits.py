"""``--fit`` beside MDAnalysis' AlignTraj, by any number of workers and whatever is read at once."""

import warnings

import MDAnalysis as mda
import numpy as np
import pytest
from MDAnalysis.analysis import align, rms
from MDAnalysis.analysis.msd import EinsteinMSD
from MDAnalysisTests.datafiles import GRO, TPR, XTC
from numpy.testing import assert_allclose, assert_array_equal

import mdio
from mdio.cli.main import main
from mdio.converters.periodic import TransformedLayout
from mdio.core import kernels
from mdio.core.errors import PlanError, SourceError
from mdio.layouts.manifest import stored_transformation

CA = "name CA"
FIT = {"fit": "rot+trans", "fit_select": CA}


@pytest.fixture(scope="module")
def universe(adk):
    return mda.Universe(str(adk["psf"]), str(adk["xtc"]))


def aligned(universe, reference_frame=0, select=CA, reference=None):
    """Positions of all atoms after AlignTraj, (F, A, 3)."""
    mobile = universe.copy()
    mobile.transfer_to_memory()
    reference = universe.copy() if reference is None else reference
    reference.trajectory[reference_frame]
    align.AlignTraj(mobile, reference, select=select, in_memory=True).run()
    return mobile.trajectory.timeseries(order="fac")


def converted(adk, out, **options):
    selection = mdio.Selection(**options)
    mdio.convert(adk["xtc"], out, top=adk["psf"], precision="none", selection=selection)
    with mdio.open(out) as layout:
        return layout.read(0, layout.info.n_frames)


@pytest.mark.parametrize("frame", [0, 40, -1])
def test_the_same_as_aligntraj(adk, universe, tmp_path, frame):
    block = converted(adk, tmp_path / "a.zarr", **FIT, fit_reference=frame)
    # float32 of up to 60 angstrom have steps of 4e-6, and MDAnalysis rounds three times.
    assert_allclose(block.positions, aligned(universe, frame), rtol=0, atol=1.5e-5)
    original = mdio.open(adk["xtc"]).read(0, 98)
    for name in ("box", "time", "step"):
        assert_array_equal(getattr(block, name), getattr(original, name))


def test_onto_a_file(adk, universe, tmp_path):
    universe.trajectory[17]
    structure, few = tmp_path / "all.gro", tmp_path / "ca.gro"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        universe.atoms.write(str(structure))
        universe.select_atoms(CA).write(str(few))
        reference = mda.Universe(str(adk["psf"]), str(structure))
        expected = aligned(universe, select=CA, reference=reference)
    for number, file in enumerate((structure, few)):
        block = converted(adk, tmp_path / f"{number}.zarr", **FIT, fit_reference=file)
        assert_allclose(block.positions, expected, rtol=0, atol=1.5e-5)


def test_onto_a_file_of_the_atoms_that_are_kept(adk, universe, tmp_path):
    """In whatever order: here from the last residue to the first."""
    kept = universe.select_atoms("backbone")[::-1]
    universe.trajectory[17]
    structure = tmp_path / "backbone.gro"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kept.write(str(structure))
        universe.atoms.write(str(tmp_path / "all.gro"))
        reference = mda.Universe(str(adk["psf"]), str(tmp_path / "all.gro"))
    expected = aligned(universe, select=CA, reference=reference)[:, kept.indices]
    chosen = mdio.Selection(**FIT, fit_reference=structure)
    out = tmp_path / "a.zarr"
    options = {"top": adk["psf"], "select": kept.indices, "precision": "none"}
    mdio.convert(adk["xtc"], out, selection=chosen, **options)
    assert_allclose(mdio.open(out).read(0, 98).positions, expected, rtol=0, atol=1.5e-5)


def test_onto_a_file_of_other_atoms(adk, universe, tmp_path):
    """The selection finds them there by what they are, as --ref-frame does."""
    universe.trajectory[17]
    heavy = universe.select_atoms("not name H*")
    structure = tmp_path / "heavy.pdb"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        heavy.write(str(structure))
        expected = aligned(universe, select=CA, reference=mda.Universe(str(structure)))
    block = converted(adk, tmp_path / "a.zarr", **FIT, fit_reference=structure)
    assert_allclose(block.positions, expected, rtol=0, atol=1.5e-5)


def test_the_number_of_a_frame_may_be_one_of_numpy(adk, tmp_path):
    manifests = []
    for number in (2, np.int64(2)):
        out = tmp_path / f"{type(number).__name__}.zarr"
        chosen = mdio.Selection(**FIT, fit_reference=number)
        mdio.convert(adk["dcd"], out, top=adk["psf"], stop=4, selection=chosen)
        with mdio.open(out) as layout:
            manifests.append(layout.manifest["source"]["transformed"])
    assert manifests[0] == manifests[1]


def test_moved_alone(adk, universe, tmp_path):
    block = converted(adk, tmp_path / "a.zarr", fit="translation", fit_select=CA)
    original = universe.trajectory.timeseries(order="fac").astype(float)
    ca = universe.select_atoms(CA).indices
    centres = original[:, ca].mean(axis=1, keepdims=True)
    assert_allclose(block.positions, original - centres + centres[:1], rtol=0, atol=1e-5)


def test_the_atoms_that_are_kept_are_fitted_by_themselves(adk, universe, tmp_path):
    block = converted(adk, tmp_path / "a.zarr", fit="rot+trans", select="backbone")
    backbone = universe.select_atoms("backbone").indices
    expected = aligned(universe, select="backbone")[:, backbone]
    assert_allclose(block.positions, expected, rtol=0, atol=1.5e-5)


def test_others_than_those_that_are_kept(adk, universe, tmp_path):
    block = converted(adk, tmp_path / "a.zarr", **FIT, select="resid 1:20")
    some = universe.select_atoms("resid 1:20").indices
    assert_allclose(block.positions, aligned(universe)[:, some], rtol=0, atol=1.5e-5)


@pytest.mark.parametrize("target", ["zarr", "h5md", "segments", "trr"])
def test_any_number_of_workers(adk, tmp_path, target):
    outs = []
    for workers in (1, 3):
        outs.append(tmp_path / f"{workers}.{target}")
        storage = {"zarr": {"chunk_frames": 7}, "segments": {"segments": 5}}.get(target, {})
        mdio.convert(
            adk["trr"],
            outs[-1],
            top=adk["psf"],
            workers=workers,
            selection=mdio.Selection(**FIT, fit_reference=3),
            storage=mdio.Storage(**storage),
        )
    one, other = (mdio.open(out).read(0, 98) for out in outs)
    assert_array_equal(one.positions, other.positions)


def test_whatever_is_read_at_once(adk):
    layout = TransformedLayout(
        adk["xtc"], source=mdio.open(adk["xtc"]), top=adk["psf"], **FIT, fit_reference=5
    )
    whole = layout.read(0, 98).positions
    for size in (1, 7, 30):
        for start in range(0, 98, size):
            stop = min(98, start + size)
            assert_array_equal(layout.read(start, stop).positions, whole[start:stop])
    some = np.array([500, 3, 77])
    assert_array_equal(layout.read(10, 20, atoms=some).positions, whole[10:20, some])


def test_velocities_and_forces_turn(tmp_path):
    rng = np.random.default_rng(5)
    positions = rng.normal(size=(6, 9, 3)).astype("f4")
    velocities, forces = (rng.normal(size=(6, 9, 3)).astype("f4") for _ in "vf")
    with mdio.Writer(tmp_path / "a.zarr") as writer:
        writer.write_block(positions, velocities=velocities, forces=forces)
    mdio.convert(
        tmp_path / "a.zarr", tmp_path / "b.zarr", selection=mdio.Selection(fit="rot+trans")
    )
    block = mdio.open(tmp_path / "b.zarr").read(0, 6)
    for n in range(6):
        centres = [one.astype(float) - one.mean(axis=0, dtype=float) for one in positions[[n, 0]]]
        rotation, _ = align.rotation_matrix(*centres)
        turned = {"velocities": velocities[n], "forces": forces[n]}
        assert_allclose(
            block.positions[n] - positions[0].mean(axis=0), centres[0] @ rotation.T, atol=1e-6
        )
        for name, vectors in turned.items():
            assert_allclose(getattr(block, name)[n], vectors @ rotation.T, atol=1e-6)
        assert np.linalg.det(rotation) == pytest.approx(1)


def test_after_the_steps_for_the_box(tmp_path):
    """The reference, a frame, is made whole as well; jumps are undone before."""
    protein = {"fit": "rot+trans", "fit_select": "protein and name CA", "select": "protein"}
    for pbc in ("whole", "nojump"):
        whole, fitted = tmp_path / f"{pbc}.zarr", tmp_path / f"{pbc}-fit.zarr"
        selection = mdio.Selection(pbc=pbc, select="protein", stop=6)
        mdio.convert(XTC, whole, top=TPR, precision="none", selection=selection)
        selection = mdio.Selection(pbc=pbc, stop=6, fit_reference=2, **protein)
        mdio.convert(XTC, fitted, top=TPR, precision="none", selection=selection, workers=2)
        u = mda.Universe(str(whole))
        expected = aligned(u, 2)
        found = mdio.open(fitted).read(0, 6).positions
        assert_allclose(found, expected, rtol=0, atol=3e-5)


@pytest.mark.parametrize("workers", [1, 3])
def test_in_analyses(adk, universe, workers):
    moved = universe.copy()
    moved.load_new(aligned(universe))
    ca = moved.select_atoms(CA)
    run = {"top": adk["psf"], "workers": workers, "fit": "rot+trans"}
    found = mdio.analyze(adk["xtc"], kernel="rmsf", select=CA, **run)
    assert_allclose(found.values, rms.RMSF(ca).run().results.rmsf, atol=1e-5)
    # Of other atoms than those that are fitted.
    side = "resid 50:60 and not backbone"
    kernel = mdio.RMSF(select=side)
    found = mdio.analyze(adk["xtc"], kernel=kernel, fit_select=CA, **run)
    expected = rms.RMSF(moved.select_atoms(side)).run().results.rmsf
    assert_allclose(found.values, expected, atol=1e-5)
    found = mdio.analyze(adk["xtc"], kernel="msd", select=CA, **run)
    expected = EinsteinMSD(moved, select=CA, fft=False).run().results.timeseries
    assert_allclose(found.values, expected[: len(found.values)], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("fit", ["translation", "rot+trans"])
def test_rmsd_of_frames_as_a_fit_lays_them(adk, tmp_path, fit):
    """Of other atoms than those that are fitted; superposing them anew would undo the fit."""
    side = "resid 50:60 and not backbone"
    run = {"top": adk["psf"], "fit": fit, "fit_select": CA}
    result = mdio.analyze(adk["xtc"], kernel=mdio.RMSD(side), **run)
    assert any(f"as --fit {fit} lays them" in note for note in result.notes)
    moved = converted(adk, tmp_path / "a.zarr", fit=fit, fit_select=CA).positions
    atoms = mda.Universe(str(adk["psf"])).select_atoms(side).indices
    apart = moved[:, atoms].astype(float) - moved[0, atoms]
    expected = np.sqrt((apart**2).sum(axis=2).mean(axis=1))
    assert_allclose(result.values, expected, atol=1e-5)
    anew = mdio.analyze(adk["xtc"], kernel=mdio.RMSD(side, superpose=True), **run)
    plain = mdio.analyze(adk["xtc"], kernel=mdio.RMSD(side), top=adk["psf"])
    assert_allclose(anew.values, plain.values, atol=1e-5)
    assert not plain.notes
    assert plain.values[-1] < result.values[-1] - 1


def test_on_the_command_line(adk, tmp_path, capsys):
    words = ["-s", str(adk["psf"]), "--fit", "rot+trans", "--fit-select", CA]
    out = str(tmp_path / "a.zarr")
    code = main(["convert", str(adk["xtc"]), out, *words, "--fit-reference", "7", "-q"])
    assert code == 0, capsys.readouterr().err
    assert mdio.open(out).manifest["source"]["transformed"] == {
        "pbc": None,
        "center": None,
        "fit": "rot+trans",
        "fit_select": CA,
        "fit_reference": 7,
    }
    assert main(["verify", out, "--against", str(adk["xtc"]), "-s", str(adk["psf"])]) == 0
    again = str(tmp_path / "again.zarr")
    recipe = ["--recipe", out, "-s", str(adk["psf"])]
    assert main(["convert", str(adk["xtc"]), again, *recipe, "-q"]) == 0
    blocks = [mdio.open(path).read(0, 98).positions for path in (out, again)]
    assert_array_equal(*blocks)
    capsys.readouterr()
    values = str(tmp_path / "rmsf.npz")
    assert main(["analyze", "rmsf", str(adk["xtc"]), "--select", CA, *words, "-o", values]) == 0


def test_repaired_and_continued(adk, tmp_path):
    out = tmp_path / "a.zarr"
    before = converted(adk, out, **FIT).positions
    shard = next(path for path in out.rglob("*") if path.stat().st_size > 100_000)
    data = bytearray(shard.read_bytes())
    data[1000] ^= 1
    shard.write_bytes(data)
    mdio.repair(out, against=adk["xtc"], top=adk["psf"])
    assert_array_equal(mdio.open(out).read(0, 98).positions, before)
    with pytest.raises(PlanError, match=r"a\.zarr was made with --fit to a frame"):
        mdio.append(adk["xtc"], out, top=adk["psf"])
    structure = tmp_path / "r.gro"
    onto_file = {**FIT, "fit_reference": structure}
    u = mda.Universe(str(adk["psf"]), str(adk["dcd"]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        u.atoms.write(str(structure))
    some = tmp_path / "some.zarr"
    converted(adk, some, stop=50, **onto_file)
    mdio.append(adk["xtc"], some, top=adk["psf"])
    whole = converted(adk, tmp_path / "whole.zarr", **onto_file)
    assert_array_equal(mdio.open(some).read(0, 98).positions, whole.positions)


def test_what_does_not_fit(adk, tmp_path):
    cases = [
        ({"fit_select": CA}, "--fit-select goes with --fit"),
        ({"fit": "rotation"}, "fit is 'rotation'.*; give one of rot.trans, translation"),
        ({"fit": "rot+trans", "fit_select": "resid 1 and name CA"}, "needs 3 atoms or more"),
        ({"fit": "rot+trans", "fit_select": "name XX"}, "--fit-select: 'name XX' selects no"),
        ({"fit": "rot+trans", "fit_reference": 98}, "it has frames 0 to 97"),
        ({"fit": "rot+trans", "fit_reference": GRO}, "has 47,681 atoms, but the trajectory has"),
        ({**FIT, "fit_select": "name CA HN", "fit_reference": GRO}, "of them selected.*by names"),
        ({**FIT, "fit_select": "index 0:9", "fit_reference": GRO}, "47,681 atoms, but the tr.*10 "),
        ({"fit": "rot+trans", "select": np.arange(2)}, "needs 3 atoms or more"),
        ({"fit": "rot+trans", "fit_select": [0.5]}, "fit-select: .0.5., but atom indices"),
    ]
    for options, message in cases:
        with pytest.raises(PlanError, match=message):
            converted(adk, tmp_path / "a.zarr", **options)
    with pytest.raises(SourceError, match=r"nope\.gro"):
        converted(adk, tmp_path / "a.zarr", **FIT, fit_reference=tmp_path / "nope.gro")
    assert not (tmp_path / "a.zarr").exists()


@pytest.mark.parametrize("kind", [lambda atoms: atoms, lambda atoms: atoms.indices.tolist()])
def test_atoms_in_place_of_a_selection(adk, universe, tmp_path, kind):
    chosen = kind(universe.select_atoms(CA))
    expected = converted(adk, tmp_path / "text.zarr", **FIT, fit_reference=7).positions
    options = {"fit": FIT["fit"], "fit_select": chosen, "fit_reference": 7}
    selection = mdio.Selection(**options)
    mdio.convert(adk["xtc"], tmp_path / "atoms.zarr", precision="none", selection=selection)
    with mdio.open(tmp_path / "atoms.zarr") as layout:
        assert_array_equal(layout.read(0, 98).positions, expected)
    assert mdio.verify(tmp_path / "atoms.zarr", against=adk["xtc"]).ok
    by_text, by_atoms = (
        mdio.analyze(adk["xtc"], top=top, kernel=positions, select=select, fit="rot+trans", stop=9)
        for top, select in ((adk["psf"], CA), (None, chosen))
    )
    assert_array_equal(by_atoms.values, by_text.values)
    assert by_atoms.notes == by_text.notes


def positions(block):
    return block.positions.copy()


def test_frames_with_atoms_that_are_nowhere():
    """Such a frame is not a number; those beside it are as ever, and no mirror image is taken."""
    rng = np.random.default_rng(8)
    reference = rng.normal(size=(5, 3))
    frames = np.stack([reference * [1, 1, -1], reference, reference]).astype("f4")
    frames[1, 2, 0] = np.nan
    fitted = frames.copy()
    kernels.fit(fitted, np.arange(5), reference)
    assert np.isnan(fitted[1]).all()
    assert_allclose(fitted[2], reference, atol=1e-6)
    rotation, _ = align.rotation_matrix(
        frames[0].astype(float) - frames[0].mean(axis=0, dtype=float),
        reference - reference.mean(axis=0),
    )
    expected = (frames[0] - frames[0].mean(axis=0)) @ rotation.T + reference.mean(axis=0)
    assert_allclose(fitted[0], expected, atol=1e-5)
    with pytest.raises(ValueError, match="a reference of shape"):
        kernels.fit(frames, np.arange(4), reference)


def test_notes_where_the_box_cuts_the_fitted_atoms(tmp_path):
    """One molecule in a box of 40, whole in all frames but two; atoms beside it are never cut."""
    universe = mda.Universe.empty(12, 6, atom_resindex=np.repeat(np.arange(6), 2), trajectory=True)
    for name, values in (("names", ["CA", "CB"] * 6), ("resids", range(1, 7))):
        universe.add_TopologyAttr(name, list(values))
    universe.add_TopologyAttr("resnames", ["ALA"] * 5 + ["LIG"])
    universe.atoms.write(str(tmp_path / "top.pdb"))
    chain = np.random.default_rng(5).uniform(-2, 2, (12, 3)).cumsum(axis=0)
    with mda.Writer(str(tmp_path / "md.xtc"), 12) as writer:
        for frame in range(20):
            universe.dimensions = [40, 40, 40, 90, 90, 90]
            positions = chain + (20 if frame not in (2, 7) else [40.0, 0, 20] - chain[5])
            positions[10:] = 20
            universe.atoms.positions = positions % 40
            writer.write(universe.atoms)
    source = {"top": tmp_path / "top.pdb"}

    def notes(n, **fit):
        selection = mdio.Selection(fit="rot+trans", **fit)
        out = tmp_path / f"{n}.zarr"
        result = mdio.convert(tmp_path / "md.xtc", out, selection=selection, **source)
        return [note for note in result.plan.notes if "the box cuts" in note]

    (note,) = notes(0, fit_select="resname ALA")  # of frames 0 to 2 and some further ones
    assert "10 atoms" in note and "(2)" in note and "--pbc whole" in note
    reference, _ = notes(1, fit_select="resname ALA", fit_reference=7)
    assert "all frames" in reference
    assert notes(2, fit_select="name CA and not resid 2 4 5") == []
    atoms = mda.Universe(str(tmp_path / "top.pdb"), str(tmp_path / "md.xtc")).atoms
    for frame in (0, 7):
        atoms.universe.trajectory[frame]
        atoms.write(str(tmp_path / f"{frame}.gro"))
    whole = {"fit_select": "resname ALA", "pbc": "nojump"}
    (note,) = notes(3, fit_reference=str(tmp_path / "7.gro"), **whole)
    assert "all frames" in note and note.endswith(
        "make molecules whole in " + str(tmp_path / "7.gro")
    )
    assert notes(4, fit_reference=str(tmp_path / "0.gro"), **whole) == []


@pytest.mark.parametrize("chosen_by", ["select", "fit_select"])
def test_a_file_of_the_reference_has_atoms_in_the_order_in_which_they_are_chosen(
    adk, universe, tmp_path, chosen_by
):
    """Not in ascending order: those of a file without names were taken for it."""
    atoms = np.random.default_rng(3).permutation(universe.select_atoms("name CA").ix)[:40]
    reference = tmp_path / "reference.dcd"
    mdio.convert(adk["xtc"], reference, top=adk["psf"], select=atoms, start=7, stop=8)
    chosen = {"fit_select": atoms} if chosen_by == "fit_select" else {}
    options = {"fit": FIT["fit"], **chosen}
    for given, out in ((7, "a.zarr"), (reference, "b.zarr")):
        mdio.convert(
            adk["xtc"],
            tmp_path / out,
            top=adk["psf"],
            select=atoms if chosen_by == "select" else None,
            selection=mdio.Selection(**options, fit_reference=given),
        )
    frames = [mdio.open(tmp_path / out).read(0, 98).positions for out in ("a.zarr", "b.zarr")]
    np.testing.assert_allclose(*frames, atol=1e-3)
    assert mdio.verify(tmp_path / "b.zarr", against=adk["xtc"], top=adk["psf"]).ok
    rmsd = mdio.RMSD(atoms, reference=reference)
    values = [
        mdio.analyze(adk["xtc"], top=adk["psf"], kernel=rmsd, fit="rot+trans", **chosen, **given)
        for given in ({"fit_reference": 7}, {"fit_reference": reference})
    ]
    np.testing.assert_allclose(*(result.values for result in values), atol=1e-4)


@pytest.mark.parametrize("text", ["index 300:400 or index 10:60", "index 10:60 or index 40:100"])
def test_a_file_of_the_reference_has_the_atoms_of_a_selection_in_ascending_order(
    adk, tmp_path, text
):
    """However the selection names them."""
    reference = tmp_path / "reference.dcd"
    mdio.convert(adk["xtc"], reference, top=adk["psf"], select=text, start=7, stop=8)
    frames = []
    for given in (7, reference):
        selection = mdio.Selection(fit=FIT["fit"], fit_select=text, fit_reference=given, stop=3)
        mdio.convert(adk["xtc"], tmp_path / "a.zarr", selection=selection, force=True)
        frames.append(mdio.open(tmp_path / "a.zarr").read(0, 3).positions)
    np.testing.assert_allclose(*frames, atol=1e-3)


def test_a_file_of_the_reference_may_have_the_order_of_the_atoms_that_are_kept(
    adk, universe, tmp_path
):
    """Which its number of atoms does not tell."""
    kept = universe.select_atoms("name CA").ix[::-1]
    reference = tmp_path / "reference.dcd"
    mdio.convert(adk["xtc"], reference, top=adk["psf"], select=kept, start=7, stop=8)
    for fit_select, is_noted in ((CA, True), (kept, False)):
        selection = mdio.Selection(fit="rot+trans", fit_select=fit_select, fit_reference=reference)
        choice = {"top": adk["psf"], "select": kept, "stop": 2, "force": True}
        notes = mdio.convert(adk["xtc"], tmp_path / "a.zarr", **choice, selection=selection).notes
        assert any("in another order" in note for note in notes) == is_noted


def test_names_in_a_file_of_the_reference_are_compared(adk, universe, tmp_path):
    given = {
        "top": adk["psf"],
        "kernel": "rmsd",
        "select": "name CA",
        "fit": "rot+trans",
        "stop": 3,
    }
    few = universe.select_atoms("name CA")
    few.write(str(tmp_path / "right.gro"))
    right = mdio.analyze(adk["dcd"], fit_reference=str(tmp_path / "right.gro"), **given)
    assert not any("other names" in note for note in right.notes)
    renamed = mda.Merge(few)
    renamed.atoms[3].name = "XX"
    renamed.atoms.write(str(tmp_path / "renamed.gro"))
    found = mdio.analyze(adk["dcd"], fit_reference=str(tmp_path / "renamed.gro"), **given)
    (note,) = [note for note in found.notes if "other names" in note]
    assert note.startswith("1 of the 214 atoms") and "XX there" in note
    assert np.array_equal(found.values, right.values)
    few[::-1].write(str(tmp_path / "turned.gro"))
    with pytest.raises(PlanError, match=r"turned\.gro: .*another order"):
        mdio.analyze(adk["dcd"], fit_reference=str(tmp_path / "turned.gro"), **given)


def test_frames_that_cannot_be_read_are_left_to_the_conversion(adk, tmp_path):
    """With --salvage they are left out; without, the error is that of any conversion."""
    universe = mda.Universe(adk["psf"], adk["dcd"])
    with mda.Writer(str(tmp_path / "md.xtc"), universe.atoms.n_atoms) as writer:
        for _ in universe.trajectory[:6]:
            universe.dimensions = [200, 200, 200, 90, 90, 90]
            writer.write(universe.atoms)
    data = bytearray((tmp_path / "md.xtc").read_bytes())
    size = len(data) // 6
    data[size + 100 : 2 * size - 200] = bytes(size - 300)
    (tmp_path / "md.xtc").write_bytes(data)
    selection = mdio.Selection(fit="rot+trans", fit_select="name CA")
    given = {"top": adk["psf"], "selection": selection}
    with pytest.raises(SourceError):
        mdio.convert(tmp_path / "md.xtc", tmp_path / "a.zarr", **given)
    result = mdio.convert(tmp_path / "md.xtc", tmp_path / "a.zarr", salvage=True, **given)
    assert result.n_frames == 5


def test_what_was_done_to_frames_is_known_after_further_conversions(adk, tmp_path):
    fitted = mdio.Selection(fit="rot+trans", fit_select="name CA")
    mdio.convert(adk["dcd"], tmp_path / "a.zarr", top=adk["psf"], selection=fitted, stop=5)
    mdio.convert(tmp_path / "a.zarr", tmp_path / "b.h5md")
    mdio.convert(tmp_path / "b.h5md", tmp_path / "c.zarr", select="name CA")
    for name in ("a.zarr", "b.h5md", "c.zarr"):
        with mdio.open(tmp_path / name) as layout:
            _ = layout.info
            assert stored_transformation(layout.manifest, "fit") == "rot+trans"
        notes = mdio.analyze(tmp_path / name, kernel=mdio.RMSF("name CA")).notes
        assert not any("motion of all selected atoms" in note for note in notes)
