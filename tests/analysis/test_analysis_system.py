"""What kernels ask of a system: atoms of stored groups in any order."""

import MDAnalysis as mda
import numpy as np
import pytest
from MDAnalysisTests.datafiles import DCD, GRO, PSF, XTC
from memory_layout import MemoryLayout, save_memory

import mdio
from mdio.analysis.system import System
from mdio.core.errors import FrameRangeError, PlanError, SourceError

STORED = [4, 1, 7, 2]
"""A group that is not stored in the order of its atoms."""


class GroupLayout(MemoryLayout):
    @property
    def manifest(self):
        runs = [[4, 5, 1], [1, 2, 1], [7, 8, 1], [2, 3, 1]]
        return {"n_atoms": 10, "group_atoms": {"few": runs}}


@pytest.fixture
def universe():
    u = mda.Universe.empty(10, 1, atom_resindex=[0] * 10, trajectory=True)
    u.add_TopologyAttr("names", [f"A{i}" for i in range(10)])
    u.add_TopologyAttr("masses", np.arange(10.0))
    return u


@pytest.fixture
def layout(tmp_path):
    path = save_memory(tmp_path / "few.npz", np.arange(24.0).reshape(2, 4, 3))
    return GroupLayout(path, group="few")


def test_selections_mean_the_same_atoms(layout, universe):
    system = System(layout, universe, "few")
    for names in ("A1", "A1 A2", "A7 A4 A1", "A1 A2 A4 A7"):
        picked = system.select(f"name {names}")
        assert [f"A{STORED[i]}" for i in picked] == sorted(names.split())


def test_masses_follow_the_stored_order(layout, universe):
    system = System(layout, universe, "few")
    assert system.masses(None).tolist() == STORED
    assert system.masses(np.array([2, 0])).tolist() == [7, 4]


def test_topology_of_the_group_itself(layout, universe):
    own = mda.Merge(universe.atoms[STORED])
    assert System(layout, own, "few").select("name A7").tolist() == [2]


def test_what_does_not_fit(layout, universe):
    with pytest.raises(PlanError, match="1 of 2 atoms of 'name A1 A3' are not in the stored group"):
        System(layout, universe, "few").select("name A1 A3")
    with pytest.raises(PlanError, match="1 of 2 atoms selected are not in the stored group"):
        System(layout, universe, "few").select([1, 3])
    with pytest.raises(SourceError, match=r"has 4 atoms, but the topology .* has 10"):
        _ = System(layout, universe).universe
    with pytest.raises(PlanError, match=r"needs a topology.*in Python: top="):
        _ = System(layout).universe
    assert System(layout).select(" all ") is None


def test_frames(layout):
    system = System(layout)
    assert system.frame(-1, None).positions[0, 0, 0] == 12
    for number in (2, -3):
        with pytest.raises(PlanError, match=f"reference frame {number}"):
            system.frame(number, None)


def on_water(result):
    return [note for note in result.notes if "water too" in note]


@pytest.mark.parametrize("inside", [False, True])
def test_all_atoms_with_water_are_told_of(inside, tmp_path):
    """Whether the topology is inside or given; not where atoms are chosen, nor without water."""
    path, top = XTC, GRO
    if inside:
        mdio.convert(XTC, tmp_path / "a.zarr", top=GRO, groups={"ca": "name CA"}, stop=2)
        path, top = tmp_path / "a.zarr", None
        assert not on_water(mdio.analyze(path, kernel="rgyr", group="ca"))
    one = {"top": top, "stop": 1}
    (note,) = on_water(mdio.analyze(path, kernel="rmsd", **one))
    assert note == (
        "all 47,681 atoms are analysed, water too; --select (select= in Python) takes fewer"
    )
    assert not on_water(mdio.analyze(path, kernel="rmsd", select="name CA", **one))
    mdio.convert(XTC, tmp_path / "ca.zarr", top=GRO, select="name CA", stop=2)
    assert not on_water(mdio.analyze(tmp_path / "ca.zarr", kernel="rmsd"))
    assert not mdio.analyze(DCD, top=PSF, kernel="rmsd", stop=1).notes


@pytest.mark.parametrize("how", [list, np.array, lambda ix: mda.Universe(PSF).atoms[ix]])
def test_indices_keep_their_order(adk, how):
    first, second = [700, 3, 41], [9, 900, 20]
    pairs = mdio.Pairs(how(first), to=how(second), periodic=False)
    values = mdio.analyze(adk["dcd"], top=adk["psf"], kernel=pairs).values
    positions = mda.Universe(PSF, DCD).trajectory.timeseries(order="fac")
    want = np.linalg.norm(positions[:, first] - positions[:, second], axis=2)
    np.testing.assert_allclose(values, want, rtol=1e-5)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([0.5], "give one, a mask, an AtomGroup or a selection"),
        ([], "the selection is empty"),
        (np.zeros(3341, bool), "the selection is empty"),
        ([1, 99999], "and select has atom 99999"),
        (np.ones(5, bool), "the mask or Universe has 5 atoms"),
        (mda.Universe.empty(5).atoms, "the mask or Universe has 5 atoms"),
    ],
)
def test_what_is_no_selection(adk, given, says):
    with pytest.raises((PlanError, FrameRangeError), match=says):
        mdio.analyze(adk["dcd"], top=adk["psf"], kernel="rmsd", select=given)


ANYTHING_WITH_ATOMS = {
    "an atom": lambda universe: universe.atoms[7],
    "a residue": lambda universe: universe.residues[5],
    "residues": lambda universe: universe.residues[[9, 2, 3]],
    "a segment": lambda universe: universe.segments[0],
    "segments": lambda universe: universe.segments,
    "a Universe": lambda universe: universe,
}


@pytest.mark.parametrize("name", ANYTHING_WITH_ATOMS)
def test_what_has_atoms_is_taken_as_these(adk, tmp_path, name):
    universe = mda.Universe(PSF)
    given = ANYTHING_WITH_ATOMS[name](universe)
    indices = universe.atoms[[7]].indices if name == "an atom" else given.atoms.indices
    with mdio.open(adk["dcd"]) as layout:
        expected = layout.read(0, 2, indices).positions
        assert np.array_equal(layout.read(0, 2, given).positions, expected)

    def positions(block):
        return block.positions.copy()

    got = [
        mdio.analyze(adk["dcd"], kernel=positions, select=given, stop=2).values,
        mdio.analyze(adk["dcd"], kernel=mdio.UserKernel(positions, given), stop=2).values,
        next(mdio.sample(adk["dcd"], batch=2, atoms=given, shuffle=False).batches(0)).positions,
        mda.Universe(PSF, adk["dcd"], format="MDIO").trajectory.timeseries(given, stop=2),
    ]
    mdio.convert(adk["dcd"], tmp_path / "few.zarr", select=given, stop=2)
    mdio.convert(adk["dcd"], tmp_path / "group.zarr", groups={"few": given}, stop=2)
    got += [mdio.open(tmp_path / "few.zarr").read(0, 2).positions]
    got += [mdio.open(tmp_path / "group.zarr", group="few").read(0, 2).positions]
    for values in got:
        assert np.array_equal(values, expected)
    mask = np.isin(np.arange(3341), indices)
    masked = mdio.analyze(adk["dcd"], kernel=positions, select=mask, stop=2).values
    assert np.array_equal(masked, expected[:, np.argsort(indices)])


def test_kernels_take_residues(adk):
    residues = mda.Universe(PSF).residues[:3]
    n_pairs = len(residues.atoms) * (len(residues.atoms) - 1) // 2
    values = mdio.analyze(adk["dcd"], kernel=mdio.Pairs(residues), stop=2).values
    assert values.shape == (2, n_pairs)
    angles = [
        mdio.analyze(adk["dcd"], top=PSF, kernel=mdio.Dihedrals(chosen), stop=2)
        for chosen in (residues, "resid 1:3")
    ]
    assert angles[0].labels == angles[1].labels
    assert np.array_equal(angles[0].values, angles[1].values)


@pytest.mark.parametrize("is_stored", [False, True])
def test_residues_have_numbers_that_do_not_overflow(adk, tmp_path, is_stored):
    path, top = adk["dcd"], adk["psf"]
    if is_stored:
        path, top = mdio.convert(path, tmp_path / "a.h5md", top=top, stop=1).out, None
    with mdio.open(path) as layout:
        system = System(layout, top)
        residues = system.residues(system.select("name CA"))
    assert residues.resindices.dtype == residues.segments.dtype == np.int64
    assert np.array_equal(residues.resindices, np.arange(214))
    assert residues.names.values()[:2].tolist() == ["MET", "ARG"]
    assert "MET" in residues.classes["protein"]


def test_atoms_of_a_group_are_those_of_its_topology_with_jumps_undone_too(tmp_path):
    mdio.convert(XTC, tmp_path / "a.zarr", top=GRO, groups={"ca": "name CA"}, stop=2)
    atoms = mda.Universe(GRO).select_atoms("name CA")[[9, 3, 40]]
    run = {"top": GRO, "group": "ca", "pbc": "nojump", "superpose": False}
    found = mdio.analyze(tmp_path / "a.zarr", kernel="rmsd", select=atoms, **run)
    assert found.values[1] == pytest.approx(
        mdio.analyze(
            XTC, kernel="rmsd", select=atoms.ix, pbc="nojump", superpose=False, stop=2
        ).values[1]
    )
