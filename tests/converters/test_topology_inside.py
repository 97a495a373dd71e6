"""What atoms are lies in the output: nothing else is needed to select, to weigh, to look."""

import subprocess
import sys
import warnings

import h5py
import MDAnalysis as mda
import numpy as np
import pytest
from MDAnalysisTests.datafiles import DCD, GRO, PSF, TPR, XTC
from numpy.testing import assert_array_equal
from suites.files_of_others import write_gromacs
from suites.per_rank import convert

import mdio
from mdio.cli.main import main
from mdio.core.errors import PlanError, SourceError

warnings.filterwarnings("ignore", module="MDAnalysis")
OUTPUTS = {
    "o.zarr": {},
    "o.h5md": {},
    "gzip.h5md": {"compression": "gzip"},
    "parts.h5md": {"per_rank": True, "workers": 2},
    "gromacs.h5md": {"flavour": "gromacs"},
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inside")
    for name, options in OUTPUTS.items():
        groups = {"ca": "name CA"}
        convert(DCD, folder / name, top=PSF, stop=20, groups=groups, **options)
    return folder


@pytest.fixture(scope="module")
def known():
    return mda.Universe(PSF, DCD)


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_universe_needs_no_other_file(made, known, name):
    u = mda.Universe(str(made / name))
    for attribute in ["names", "types", "masses", "charges", "resids", "resnames", "segids"]:
        assert_array_equal(getattr(u.atoms, attribute), getattr(known.atoms, attribute))
    assert_array_equal(u.bonds.to_indices(), known.bonds.to_indices())
    np.testing.assert_allclose(u.atoms.positions, known.trajectory[0].positions, rtol=1e-6)
    asked = mda.Universe(str(made / name), format="MDIO")
    assert_array_equal(asked.atoms.names, known.atoms.names)
    assert asked.trajectory.format == "MDIO"
    group = mda.Universe(str(made / name), group="ca")
    assert_array_equal(group.atoms.resids, known.select_atoms("name CA").resids)


@pytest.mark.parametrize("name", OUTPUTS)
def test_kernels_find_atoms_and_masses(made, name):
    for kernel, options in (
        (mdio.RMSD, {"select": "name CA and resid 1:100", "weights": "mass"}),
        (mdio.RMSD, {"select": "name CA and around 5 resid 7"}),
        (mdio.Dihedrals, {}),
    ):
        inside = mdio.analyze(made / name, kernel=kernel(**options)).values
        given = mdio.analyze(made / name, top=PSF, kernel=kernel(**options)).values
        assert_array_equal(inside, given)
    ca = mdio.RMSD(select="name CA")
    of_group = mdio.analyze(made / name, kernel=ca, group="ca").values
    assert_array_equal(of_group, mdio.analyze(made / name, kernel=ca).values)


@pytest.mark.parametrize("name", OUTPUTS)
def test_rows_of_atoms_are_called_as_with_the_topology(made, name):
    for select in (None, "name CA", "resid 3:5"):
        inside, given = (
            mdio.analyze(made / name, top=top, kernel=mdio.RMSF(select)).row_labels
            for top in (None, PSF)
        )
        assert inside == given and inside[0].startswith("4AKE:")


def test_a_topology_that_does_not_fit_is_an_error_though_nothing_is_selected(made):
    with pytest.raises(SourceError, match=r"3341 atoms, but the topology .*adk_oplsaa.gro has 476"):
        mdio.analyze(made / "o.zarr", top=GRO, kernel="rmsd")
    found = mdio.analyze(made / "o.zarr", top=GRO, kernel=mdio.RMSD("all"))
    assert found.notes == (f"{GRO}: not read, since the atoms are known without it",)


def test_a_topology_that_is_given_wins(made, tmp_path):
    u = mda.Universe(PSF)
    u.atoms.names = np.where(u.atoms.names == "CA", "XA", u.atoms.names)
    kernel = mdio.RMSD(select="name XA")
    assert mdio.analyze(made / "o.zarr", top=u, kernel=kernel).values.shape == (20,)
    with pytest.raises(PlanError, match="selects no atom"):
        mdio.analyze(made / "o.zarr", kernel=kernel)


@pytest.fixture(scope="module")
def reordered(made):
    u = mda.Merge(mda.Universe(PSF, DCD).atoms[::-1])
    u.atoms.write(str(made / "reordered.pdb"))
    return made / "reordered.pdb"


@pytest.mark.parametrize("name", OUTPUTS)
@pytest.mark.parametrize("kind", [str, mda.Universe])
def test_a_topology_in_another_order_is_refused(made, reordered, tmp_path, name, kind):
    top, says = kind(reordered), r"in another order than the topology inside .atom 0 is GLY:OT2"
    for options in ({}, {"fit": "translation"}):
        for _ in range(2):  # then it has been parsed before
            with pytest.raises(PlanError, match=says):
                mdio.analyze(made / name, top=top, kernel=mdio.RMSD("name CA"), **options)
    if "gromacs" not in name:
        with pytest.raises(PlanError, match="are not in the stored group"):
            mdio.analyze(made / name, top=top, kernel=mdio.RMSD("name CA"), group="ca")
    with pytest.raises(PlanError, match=says):
        mdio.convert(made / name, tmp_path / "few.zarr", top=top, select="name CA")
    with pytest.raises(PlanError, match=says):
        mdio.sample(made / name, top=top, atoms="name CA")


def test_a_topology_with_other_names_is_told(made, tmp_path):
    u = mda.Universe(PSF)
    u.residues.resnames = np.where(u.residues.resnames == "MET", "MSE", u.residues.resnames)
    says = (
        "names 104 of 3,341 atoms otherwise than the topology inside {} does (atom 0 is MSE:N, "
        "inside MET:N)"
    )
    says = says.format(made / "o.zarr")
    kernel = mdio.RMSD("name CA")
    (note,) = mdio.analyze(made / "o.zarr", top=u, kernel=kernel).notes
    assert says in note
    (note,) = mdio.analyze(made / "o.zarr", top=u, kernel=kernel, group="ca").notes
    assert "names 6 of 214 atoms otherwise" in note
    result = mdio.convert(made / "o.zarr", tmp_path / "few.zarr", top=u, select="name CA")
    assert any(says in note for note in result.plan.notes)
    assert not mdio.analyze(made / "o.zarr", top=PSF, kernel=mdio.RMSD("name CA")).notes


def test_simple_selections_do_not_import_mdanalysis(made):
    program = (
        "import sys; from mdio.cli.main import main\n"
        f"main(['analyze', 'rmsd', {str(made / 'o.zarr')!r}, '--select', 'name CA', '--quiet'])\n"
        "assert not {'MDAnalysis', 'h5py', 'zarr', 'scipy'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("name", OUTPUTS)
def test_it_goes_from_output_to_output(made, tmp_path, name):
    mdio.convert(made / name, tmp_path / "a.zarr", select="name CA", stop=5)
    mdio.convert(tmp_path / "a.zarr", tmp_path / "b.h5md", groups={"few": "resid 1:10"})
    u = mda.Universe(str(tmp_path / "b.h5md"), group="few")
    assert (len(u.atoms), set(u.atoms.names), len(u.bonds)) == (10, {"CA"}, 0)
    assert mdio.verify(tmp_path / "b.h5md", against=tmp_path / "a.zarr").ok


@pytest.mark.parametrize("name", ["o.zarr", "gzip.h5md"])
def test_it_stays_where_frames_are_added(made, tmp_path, name):
    options = OUTPUTS[name]
    convert(DCD, tmp_path / name, top=PSF, stop=20, **options)
    mdio.append(DCD, tmp_path / name)
    assert mda.Universe(str(tmp_path / name)).atoms.names[4] == "CA"
    assert mdio.verify(tmp_path / name).ok


def test_no_topology_leaves_it_out(tmp_path):
    out = tmp_path / "o.zarr"
    words = ["convert", DCD, str(out), "-s", PSF, "--select", "name CA", "--no-topology"]
    assert main([*words, "--quiet"]) == 0
    assert mdio.open(out).topology() is None
    assert [path.name for path in tmp_path.iterdir()] == ["o.zarr"]
    with pytest.raises(PlanError, match="needs a topology"):
        mdio.analyze(out, kernel=mdio.RMSD(select="name CA"))
    assert len(mda.Universe(str(out)).atoms) == 214


def test_plans_count_it(made):
    found = mdio.convert(DCD, made / "planned.zarr", top=PSF, stop=20)
    assert sum(path.is_file() for path in (made / "planned.zarr").rglob("*")) == found.plan.n_files


def test_damage_is_found_and_repaired(tmp_path):
    out = tmp_path / "o.zarr"
    mdio.convert(DCD, out, top=PSF, stop=20)
    file = out / "mdio/topology/c.0"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    assert any("topology" in bad for bad in mdio.verify(out).bad)
    mdio.repair(out, DCD, top=PSF)
    assert mdio.verify(out).ok
    assert mda.Universe(str(out)).atoms.names[4] == "CA"


def test_other_programs_find_bonds_and_masses(made, known):
    with h5py.File(made / "o.h5md") as file:
        assert_array_equal(file["connectivity/bonds"], known.bonds.to_indices())
        np.testing.assert_allclose(file["particles/trajectory/mass"], known.atoms.masses, rtol=1e-6)
        assert file["particles/trajectory/charge"].attrs["unit"] == b"e"


def test_gromacs_molecules_are_read(tmp_path):
    """Two waters, as GROMACS 2026 says what they are (h5md_topologyutils.cpp)."""
    path = tmp_path / "md.h5md"
    write_gromacs(path)
    with h5py.File(path, "r+") as file:
        module = file.create_group("h5md/modules/gromacs_topology")
        module.attrs["molecule_block_names"] = np.array(["SOL"], "S4")
        module.attrs["molecule_block_counts"] = np.array([2], "i4")
        water = module.create_group("SOL")
        water.attrs["particle_count"], water.attrs["residue_count"] = 3, 1
        water["mass"], water["charge"] = np.array([16, 1, 1], "f4"), np.array([-2, 1, 1], "f4")
        water["species"] = np.array([8, 1, 1], "i4")
        water["particle_name"] = np.array([0, 1, 2], "i4")
        water["particle_name_table"] = np.array(["OW", "HW1", "HW2"], "S4")
        water["residue_id"], water["residue_name"] = np.ones(3, "i4"), np.zeros(3, "i4")
        water["residue_name_table"] = np.array(["SOL"], "S4")
        file["connectivity/bonds"] = np.array([[0, 1], [0, 2], [3, 4], [3, 5]])
    mdio.convert(path, tmp_path / "o.zarr", select="name OW and resid 2 or element H")
    u = mda.Universe(str(tmp_path / "o.zarr"))
    assert u.atoms.names.tolist() == ["HW1", "HW2", "OW", "HW1", "HW2"]
    assert u.atoms.elements.tolist() == ["H", "H", "O", "H", "H"]
    assert u.atoms.resids.tolist() == [1, 1, 2, 2, 2]
    assert u.residues.resnames.tolist() == ["SOL", "SOL"]
    assert u.bonds.to_indices().tolist() == [[2, 3], [2, 4]]
    with h5py.File(path, "r+") as file:
        file["h5md/modules/gromacs_topology"].attrs["molecule_block_counts"] = np.array([3])
    with pytest.raises(OSError, match=r"md\.h5md: its topology cannot be read"):
        mdio.open(path).topology()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_universe_is_a_topology_and_an_atom_group_a_selection(adk, tmp_path, workers):
    universe = mda.Universe(str(adk["psf"]), str(adk["dcd"]))
    universe.trajectory[3]
    universe.atoms[5].name = "XX"  # what was changed in memory counts
    ca, outs = universe.select_atoms("name CA"), [tmp_path / "a.zarr", tmp_path / "b.zarr"]
    chosen = mdio.Selection(fit="rot+trans", fit_select="name CA")
    more = {"selection": chosen, "groups": {"five": range(4, 9)}, "workers": workers}
    mdio.convert(adk["dcd"], outs[0], top=universe, **more)
    assert universe.trajectory.frame == 3 and universe.trajectory.n_frames == 98
    mdio.convert(adk["dcd"], outs[1], top=adk["psf"], **more)
    with mdio.open(outs[0]) as one, mdio.open(outs[1]) as other:
        assert_array_equal(one.read(0, 98).positions, other.read(0, 98).positions)
        assert one.topology().per_atom("names").values()[5] == "XX"
        assert one.manifest["recipe"] == other.manifest["recipe"]
    mdio.convert(adk["dcd"], tmp_path / "c.zarr", select=ca)
    mdio.convert(adk["dcd"], tmp_path / "d.zarr", select="name CA", top=universe)
    with mdio.open(tmp_path / "c.zarr") as one, mdio.open(tmp_path / "d.zarr") as other:
        assert one.manifest["atoms"] == other.manifest["atoms"]
        assert mdio.verify(one.path, adk["dcd"]).ok


def test_a_trajectory_in_place_of_a_topology_is_told(adk, tmp_path):
    (note,) = mdio.convert(adk["dcd"], tmp_path / "a.zarr", top=adk["trr"], stop=5).plan.notes
    assert adk["trr"].name in note and "no names" in note
    assert not mdio.convert(adk["dcd"], tmp_path / "b.zarr", top=adk["psf"], stop=5).plan.notes


def test_an_output_stands_for_a_topology_that_is_gone(adk, tmp_path):
    held, out = tmp_path / "a.zarr", tmp_path / "b.zarr"
    mdio.convert(adk["dcd"], held, top=adk["psf"], stop=5)
    with pytest.raises(SourceError, match=r"gone\.psf: no such file.*an output of mdio"):
        mdio.convert(adk["dcd"], out, top=tmp_path / "gone.psf", select="name CA")
    assert mdio.convert(adk["dcd"], out, top=held, select="name CA").n_atoms == 214


@pytest.mark.parametrize("name", ["o.zarr", "o.h5md"])
def test_kinds_of_molecules_of_gromacs(tmp_path, name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        known = mda.Universe(TPR, XTC)
        mdio.convert(XTC, tmp_path / name, top=TPR, stop=1)
        u = mda.Universe(str(tmp_path / name))
    for selection in ("moltype SOL", "molnum 0 3", "moltype AKeco and name CA"):
        expected = known.select_atoms(selection).indices
        assert len(expected)
        assert_array_equal(u.select_atoms(selection).indices, expected)


@pytest.mark.parametrize("name", ["o.zarr", "o.h5md"])
def test_what_moved_atoms_finds_it_there(adk, tmp_path, name):
    """An output of all atoms of an XTC tells what `append`, `verify` and `repair` must do."""
    out, whole = tmp_path / name, tmp_path / "whole.zarr"
    moved = mdio.Selection(pbc="mol", center="resid 1:20")
    mdio.convert(adk["xtc"], whole, top=adk["psf"], selection=moved)
    mdio.convert(adk["xtc"], out, top=adk["psf"], selection=moved, stop=60)
    assert mdio.append(adk["xtc"], out).n_frames == 98
    assert mdio.verify(out, against=adk["xtc"]).ok
    if out.is_dir():
        next(out.glob("particles/trajectory/position/value/c.*")).unlink()
        assert mdio.repair(out, adk["xtc"]).repaired
    with mdio.open(out) as layout, mdio.open(whole) as expected:
        assert np.array_equal(layout.read(0, 98).positions, expected.read(0, 98).positions)


def test_that_of_other_atoms_does_not_do(adk, tmp_path):
    out = tmp_path / "o.zarr"
    moved = mdio.Selection(pbc="mol")
    mdio.convert(adk["xtc"], out, top=adk["psf"], select="resid 1:20", selection=moved, stop=60)
    with pytest.raises(PlanError, match=r"adk\.xtc: .*topology.* -s"):
        mdio.append(adk["xtc"], out)


def test_names_that_the_topology_beside_cuts_are_told(tmp_path):
    universe = mda.Universe.empty(4, n_residues=1, atom_resindex=[0] * 4, trajectory=True)
    universe.add_TopologyAttr("names", ["C1", "OXYGEN1", "OXYGEN2", "HA"])
    universe.add_TopologyAttr("resnames", ["LIG"])
    universe.atoms.write(str(tmp_path / "a.xtc"))

    def notes(out, **options):
        result = mdio.convert(tmp_path / "a.xtc", tmp_path / out, top=universe, **options)
        return [note for note in result.notes if "4 letters" in note]

    (note,) = notes("b.dcd", select=[0, 1, 2])
    assert "2 names of atoms or residues have more, such as OXYGEN1" in note
    assert not notes("c.dcd", select=[0, 3])
    (note,) = notes("d.dcd", select=[0, 1])
    assert "1 name of atoms or residues has more, such as OXYGEN1" in note
    assert not notes("b.zarr", select=[0, 1, 2])
    assert list(mda.Universe(tmp_path / "b.zarr").atoms.names) == ["C1", "OXYGEN1", "OXYGEN2"]


def test_segments_that_become_one_in_the_topology_beside_are_told(tmp_path):
    def notes(select):
        result = mdio.convert(XTC, tmp_path / "a.dcd", top=TPR, select=select, force=True)
        return [note for note in result.notes if "4 letters" in note]

    (note,) = notes("protein or resname NA+")
    assert "seg_0_AKeco and seg_2_NA+ become seg_" in note
    assert not notes("protein")  # 'seg_0_AKeco' is cut, and is still the only one
